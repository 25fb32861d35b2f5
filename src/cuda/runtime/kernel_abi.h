/* What a launch hands to a kernel: plain data, compiled by the host and by NVRTC alike, so only types whose
 * size both agree on. Extents are arguments and never part of a kernel's key: a new size recompiles nothing. */
#ifndef NH_KERNEL_ABI_H
#define NH_KERNEL_ABI_H

/* The tensors a kernel may be handed: NHOOD_Q .. NHOOD_D_EXTRA_V under the same numbers, then what only lives in
 * the workspace. */
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
    /* rowsum(dO * O) - dLSE, [B, X.., H], in the arithmetic's type */
    NH_DELTA,
    /* attention weights and their gradient, as A */
    NH_P,
    NH_D_S,
    /* dQ in f32 while it is summed, see joint90.cu */
    NH_D_Q_SUMS,
    /* two 32-bit words that start as zero: the counter of work_queue.cuh; whether a sum was not finite */
    NH_QUEUE,
    /* 32-bit words per work tile, of the counting build alone: kernels/common/tile_note.cuh */
    NH_NOTES,
    NH_CUDA_TENSORS
};

/* 1: the tensors cover boxes of the grid, which kernels are told, or some axis is periodic. */
#ifndef NH_REGIONS
#define NH_REGIONS 0
#endif

struct nh_cuda_axis {
    long long length, window, stride, dilation;
    int causal;
    int reserved;
};

/* Strides in elements; the last axis is contiguous. data is NULL for what the pass does not use. */
struct nh_cuda_tensor {
    void *data;
    long long batch, axis[3], head;
};

/* Tokens [offset, offset + length) of an axis, modulo its length where it is periodic. */
struct nh_cuda_box {
    long long offset, length;
};

/* What the tensors of queries and those of keys cover of an axis. Their addresses are moved (step.c) so that a token is
 * found at its coordinate in the grid; on a periodic axis coordinates go on beyond its length up to the end of the box. */
struct nh_cuda_region {
    struct nh_cuda_box query, key;
};

/* The warps of a block of bias_sum.cu, which two solvers launch. */
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

/* A family's own arguments: what all share, and then `members`. To kernels, which are C++, the whole is one of what all
 * share, so that device code of several families takes it as it is; its layout is the same. */
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

/* How a fused kernel cuts a problem into work tiles, one per query tile: worked out on the host, once. */
struct nh_cuda_tiling {
    /* query tiles per axis of one dilation group, of the longest group */
    int tiles[3];
    /* which axis' tiles come one after the other: order[0] fastest */
    int order[3];
    /* tiles of extra tokens after those of the window */
    int extra_tiles;
    int work_tiles;
};

/* The arguments of the families with a loop over tiles. */
NH_FAMILY_ARGS(nh_tiled_args, struct nh_cuda_tiling tiling;);

/* What queries attend of the keys that tensors cover: a box by axis. */
struct nh_cuda_attended {
    struct nh_cuda_box box[3];
};

/* The arguments of clear_keys.cu. */
NH_FAMILY_ARGS(nh_clear_keys_args, struct nh_cuda_attended attended;);

#endif
