/* What a launch hands to a kernel: plain data, compiled by the host and by NVRTC alike, so only types whose size is the
 * same for both. Extents are arguments and never part of a kernel's key, so that a new size recompiles nothing. */
#ifndef NH_KERNEL_ABI_H
#define NH_KERNEL_ABI_H

/* The tensors that a kernel may be handed: NHOOD_Q .. NHOOD_D_EXTRA_V by their numbers, then those in the workspace. */
enum nh_slot {
    NH_Q,
    NH_K,
    NH_V,
    NH_O,
    NH_LSE,
    NH_A,
    NH_BIAS,
    NH_EXTRA_K,
    NH_EXTRA_V,
    NH_D_O,
    NH_D_LSE,
    NH_D_Q,
    NH_D_K,
    NH_D_V,
    NH_D_BIAS,
    NH_D_EXTRA_K,
    NH_D_EXTRA_V,
    /* rowsum(dO * O) - dLSE, [B, X.., H], in the type of arithmetic; with LSE beside it, as nh_cuda_bind_stats says */
    NH_DELTA,
    /* attention weights and their gradient, laid out as A */
    NH_P,
    NH_D_S,
    /* sums of dQ in f32, to which several blocks add: joint90.cu */
    NH_D_Q_SUMS,
    /* two 32-bit words that start as zero: the counter of work_queue.cuh, and a flag that some sum was not finite */
    NH_QUEUE,
    /* 32-bit words per work tile, for tests only: kernels/common/tile_note.cuh */
    NH_NOTES,
    NH_CUDA_TENSORS
};

/* 1: kernels are told the boxes that tensors cover, which are not all of the grid, or some axis is periodic. */
#ifndef NH_REGIONS
#define NH_REGIONS 0
#endif

/* Bits of the axes whose windows are not by formula. With NH_REGIONS, as queries and keys of such an axis are counted apart. */
#ifndef NH_TABLES
#define NH_TABLES 0
#endif

#if NH_TABLES
/* What a row of an axis with a window table sees: a range of keys or of queries. The layout of nhood_range. */
struct nh_cuda_seen {
    int first, count;
};
#endif

struct nh_cuda_axis {
    /* `length` is that of the queries' grid, if keys have another one */
    long long length, window, stride, dilation;
    int causal;
    int reserved;
#if NH_TABLES
    /* The axis' window table, or NULL: what queries see at [0], what keys see at [1]. */
    const struct nh_cuda_seen *seen[2];
#endif
};

/* Strides in elements; the channels of a row are contiguous. data is NULL for tensors that the pass does not use. */
struct nh_cuda_tensor {
    void *data;
    long long batch, axis[3], head;
};

/* Tokens [offset, offset + length) of an axis, modulo its length where it is periodic. */
struct nh_cuda_box {
    long long offset, length;
};

/* What the tensors of queries and those of keys cover of an axis. Addresses are shifted (step.c) so that coordinates in
 * the grid index the tensor; on a periodic axis those of a box may go on beyond its length. */
struct nh_cuda_region {
    struct nh_cuda_box query, key;
};

/* The warps of a block of bias_sum.cu, which several families launch. */
enum { NH_BIAS_SUM_WARPS = 32 };

struct nh_cuda_args {
    struct nh_cuda_tensor tensor[NH_CUDA_TENSORS];
    /* Slowest first; problems of fewer axes have unit axes in front. */
    struct nh_cuda_axis axis[3];
    long long batch, heads, kv_heads, dim, dim_v, extra_tokens;
    /* Slots of A: the product of the windows. */
    long long window_count;
    double scale;
    /* NHOOD_FLAG_* */
    unsigned flags;
    int has_bias, rank, dtype;
#if NH_REGIONS
    struct nh_cuda_region region[3];
#endif
};

/* Declares a family's arguments: the shared ones, then `members`. In kernels, which are C++, the struct derives from
 * the shared part, so that device code of several families accepts it. The layout is the same in C. */
#ifdef __cplusplus
#define NH_FAMILY_ARGS(name, members)                                                              \
    struct name : nh_cuda_args {                                                                   \
        members                                                                                    \
    }
#else
#define NH_FAMILY_ARGS(name, members)                                                              \
    struct name {                                                                                  \
        struct nh_cuda_args shared;                                                                \
        members                                                                                    \
    }
#endif

/* How a fused kernel cuts a problem into work tiles, one per query tile, or per key tile if blocks own keys: computed
 * on the host when a plan is built. */
struct nh_cuda_tiling {
    /* owned tiles per axis of the longest dilation group */
    int tiles[3];
    /* the axes of the problem from the one along which tiles are numbered first */
    int order[3];
    /* key tiles of extra tokens, which the loop visits after those of the window */
    int extra_tiles;
    int work_tiles;
};

/* The arguments of the families with a loop over tiles. */
NH_FAMILY_ARGS(nh_tiled_args, struct nh_cuda_tiling tiling;);

/* What queries attend of the keys that tensors cover: a box by axis. */
struct nh_cuda_attended {
    struct nh_cuda_box box[3];
};

NH_FAMILY_ARGS(nh_clear_keys_args, struct nh_cuda_attended attended;);

#endif
