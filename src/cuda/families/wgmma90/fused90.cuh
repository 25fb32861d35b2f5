/* What the fused kernels of sm_90 share. They are warp-specialized: a block takes one work tile after the other
 * (boxes.cuh), one thread of its first warpgroup, the producer, fetches boxes of rows by the copy engine (TMA), and the
 * other warpgroups, the consumers, own 64 rows each and multiply. Boxes land in shared memory swizzled as wgmma reads
 * them. */
#pragma once
#define NH_POSITION int
#include "boxes.cuh"
#include "mma.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

#define OWN_ROWS (64 * NH_WARPGROUPS)
#define THREADS (128 * (NH_WARPGROUPS + 1))
/* Registers per thread of the producer warpgroup and of the others, for setmaxnreg: the sum over all threads must not
 * exceed the 64 K of a multiprocessor. */
#ifndef PRODUCER_REGISTERS
#define PRODUCER_REGISTERS (NH_WARPGROUPS == 2 ? 24 : 32)
#define CONSUMER_REGISTERS (NH_WARPGROUPS == 2 ? 240 : 160)
#endif

#if WARPGROUP_TILES != NH_WARPGROUPS
#error "a warpgroup tile for each warpgroup"
#endif

/* A row of a tile in shared memory is cut into chunks of one swizzle atom, 128 bytes or, for 32 elements, 64. */
#define CHUNK(dim) ((dim) == 32 ? 32 : 64)
#define CHUNKS(dim) (((dim) + 63) / 64)
#define ROW_BYTES(dim) (2 * CHUNK(dim))
#define TILE_BYTES(rows, dim) ((rows) * ROW_BYTES(dim) * CHUNKS(dim))

/* Rows of a loop tile as the columns of a product, in groups of 8, and as its depth, in steps of 16. Tiles of whole
 * lines (fused90_mask_step.cuh) may have fewer rows; those that no copy writes are zeros. */
#ifndef NH_MASK_STEP
#define NH_MASK_STEP 0
#endif
#define LOOP_COLUMNS ((NH_LOOP_ROWS + 7) / 8 * 8)
#define LOOP_DEPTH ((NH_LOOP_ROWS + 15) / 16 * 16)
#if NH_LOOP_N % 16
#define LOOP_N16 NH_PASTE(NH_LOOP_N16, _HALF)
#else
#define LOOP_N16 NH_LOOP_N16
#endif

/* Fetches a box into a tile of `rows` rows; the barrier already expects its bytes. */
template <int LAYOUT>
__device__ __forceinline__ void fetch_more(unsigned to, const nh_tensor_map *map, unsigned barrier, int rows, int dim,
                                           int head, int heads, const int token[3], int batch) {
    int at[5];
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS(dim); chunk++) {
        place<LAYOUT>(at, chunk * 64, head, heads, dim, token, batch);
        nh_copy_box(to + chunk * rows * ROW_BYTES(dim), map, barrier, at);
    }
}

/* Dilated axes are fetched with element strides if these are in the copy engine's range. In one dimension any dilation
 * is possible, with NH_FOLDED: the map's axis y counts the dilation groups, and z their positions. In more dimensions,
 * axes in the mask NH_FAR count positions too, and the group is part of the origin, in layout 4. The first groups of an
 * axis may be a token longer than the others. Axes where this is so are in the mask NH_UNEVEN, and the shorter groups
 * have maps of their own, after those of the longer ones. */
#ifndef NH_FOLDED
#define NH_FOLDED 0
#define NH_FAR 0
#define NH_UNEVEN 0
#endif
#define MAP_VARIANTS (1 << (NH_UNEVEN & 1) + (NH_UNEVEN >> 1 & 1) + (NH_UNEVEN >> 2 & 1))
#define IS_FAR(a) (NH_FAR >> (a) & 1)

/* Maps of a part of a grid begin with the first token that tensors have. In the map, a work tile has another dilation
 * group than in the grid, whose first position is that of the group's first row. OWN: for owned rows, else for those of
 * the loop. */
template <bool OWN> __device__ __forceinline__ long long tokens_of_map(const nh_tiled_args &args, int a) {
#if NH_REGIONS
    return (OWN == (bool)NH_INVERSE ? args.region[a].key : args.region[a].query).length;
#else
    return args.axis[a].length;
#endif
}

template <bool OWN, class WorkTile>
__device__ __forceinline__ int first_in_map(const nh_tiled_args &args, const WorkTile &work_tile, int a) {
#if NH_REGIONS
    return OWN ? work_tile.rows[a] : (int)work_tile.columns[a].begin;
#else
    return 0;
#endif
}

template <bool OWN, class WorkTile>
__device__ __forceinline__ int group_in_map(const nh_tiled_args &args, const WorkTile &work_tile, int a) {
#if NH_REGIONS
    const nh_cuda_box &box = OWN == (bool)NH_INVERSE ? args.region[a].key : args.region[a].query;
    if (!nh_is_cut(a)) return work_tile.group[a];
    return first_in_map<OWN>(args, work_tile, a) * (int)NH_DILATION(args.axis[a]) + work_tile.group[a] -
           (int)box.offset;
#else
    return work_tile.group[a];
#endif
}

template <bool OWN> __device__ __forceinline__ int longer_groups(const nh_tiled_args &args, int a) {
    return (int)(tokens_of_map<OWN>(args, a) % args.axis[a].dilation);
}

/* The work tile's maps; there are `count` for each kind of groups. */
template <bool OWN = true>
__device__ __forceinline__ const nh_tensor_map *maps_of(const nh_tiled_args &args, const nh_work_tile &work_tile,
                                                        const nh_tensor_map *map, int count) {
    int variant = 0, variants = 1;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        if (!(NH_UNEVEN >> a & 1)) continue;
        if (group_in_map<OWN>(args, work_tile, a) >= longer_groups<OWN>(args, a)) variant += variants;
        variants *= 2;
    }
    return map + variant * count;
}

/* The coordinates of a position of the work tile's dilation groups in the maps. */
template <bool OWN>
__device__ __forceinline__ void token_of(const nh_tiled_args &args, const nh_work_tile &work_tile,
                                         const int position[3], int token[3]) {
#if NH_FOLDED
    int longer = longer_groups<OWN>(args, 2), group = group_in_map<OWN>(args, work_tile, 2);
    token[0] = 0;
    token[1] = group - (group >= longer ? longer : 0);
    token[2] = position[2] - first_in_map<OWN>(args, work_tile, 2);
#else
#pragma unroll
    for (int a = 0; a < 3; a++) {
        token[a] = 0;
        if (a < NH_FIRST_AXIS) continue;
#if NH_REGIONS
        if (nh_is_cut(a) && !IS_FAR(a)) { /* counted from the first token of the box, wherever its group begins */
            const nh_cuda_box &box = OWN == (bool)NH_INVERSE ? args.region[a].key : args.region[a].query;
            token[a] = position[a] * (int)NH_DILATION(args.axis[a]) + work_tile.group[a] - (int)box.offset;
            continue;
        }
#endif
        token[a] = position[a] - first_in_map<OWN>(args, work_tile, a);
        if (!IS_FAR(a)) token[a] = token[a] * (int)NH_DILATION(args.axis[a]) + group_in_map<OWN>(args, work_tile, a);
    }
#endif
}

/* The argument `head` of place(): the head or, in layout 4, the origin of the work tile's boxes in units of 16
 * bytes. */
template <int LAYOUT, int UNIT = 8, class WorkTile>
__device__ __forceinline__ int head_or_origin(const nh_tiled_args &args, int slot, const WorkTile &work_tile,
                                              int head) {
    if constexpr (LAYOUT == 4) {
        const nh_cuda_tensor &t = args.tensor[slot];
        long long origin = work_tile.batch * t.batch + head * t.head;
#pragma unroll
        for (int a = 0; a < 3; a++) {
            if (!IS_FAR(a)) continue;
            const bool own = (slot == NH_K || slot == NH_V) == (bool)NH_INVERSE;
            origin +=
                (own ? group_in_map<true>(args, work_tile, a) : group_in_map<false>(args, work_tile, a)) * t.axis[a];
        }
        return (int)(origin / UNIT);
    }
    return head;
}

/* Bytes of an owned tile that are fetched: all rows but padding rows. */
#define OWN_BYTES(dim) (WARPGROUP_TILES * WARPGROUP_POSITIONS * NH_OWN_HEADS * ROW_BYTES(dim) * CHUNKS(dim))

/* Fetches an owned tile; the barrier already expects its OWN_BYTES. */
template <int LAYOUT>
__device__ __forceinline__ void fetch_own(const nh_tiled_args &args, unsigned to, const nh_tensor_map *map,
                                          unsigned barrier, int dim, const nh_work_tile &work_tile, int head,
                                          int heads) {
    int position[3], token[3];
#pragma unroll
    for (int warpgroup_tile = 0; warpgroup_tile < WARPGROUP_TILES; warpgroup_tile++) {
        nh_row_position(64 * warpgroup_tile, position);
        for (int a = 0; a < 3; a++)
            position[a] += work_tile.own[a];
        token_of<true>(args, work_tile, position, token);
        fetch_more<LAYOUT>(to + 64 * warpgroup_tile * ROW_BYTES(dim), map, barrier, OWN_ROWS, dim, head, heads, token,
                           work_tile.batch);
    }
}

/* All threads of a block clear the last rows of each of so many groups of rows, which no copy writes. */
__device__ __forceinline__ void clear_last_rows(unsigned start, int groups, int rows, int last, int row_bytes) {
    const int unit = 16, units = last * row_bytes / unit;
    for (int i = (int)threadIdx.x; i < groups * units; i += THREADS) {
        unsigned group = start + i / units * (rows * row_bytes);
        nh_store_shared(group + (rows - last) * row_bytes + i % units * unit, 0, 0, 0, 0);
    }
}

/* Clears the padding rows of an owned tile before it is fetched. */
__device__ __forceinline__ void clear_padding_rows(unsigned tile, int dim) {
    clear_last_rows(tile, CHUNKS(dim) * WARPGROUP_TILES, 64, PADDING_ROWS, ROW_BYTES(dim));
}

/* The stage of tile n of a ring, and the parity of the number of times that it was used before. */
#if NH_STAGES <= 4 || NH_STAGES == 8
#define SLOT(n) ((n) % NH_STAGES)
#define PHASE(n) ((n) / NH_STAGES & 1)
#define NEXT(n) ((n) + 1)
#define TILES_AHEAD(n, before) ((n) - (before))
#else
/* A division would delay every product, so n has the stage in its lowest byte and counts rounds above it. */
#define SLOT(n) ((n) & 255u)
#define PHASE(n) ((n) >> 8 & 1)
#define NEXT(n) (SLOT(n) == NH_STAGES - 1 ? ((n) | 255u) + 1 : (n) + 1)
#define TILES_AHEAD(n, before) (((n) >> 8) * NH_STAGES + SLOT(n) - ((before) >> 8) * NH_STAGES - SLOT(before))
#endif

/* ---- consumers ---- */

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Packs scores as the A operand of a product: the accumulators of two groups of 8 columns are in its layout already. */
__device__ __forceinline__ void pack_weights(unsigned *weight, const float *score) {
#pragma unroll
    for (int i = 0; i < LOOP_COLUMNS / 4; i++)
        weight[i] = nh_pack(score[2 * i], score[2 * i + 1]);
}

/* Four lanes hold 4 words each of one row, lane t word t of every fourth part; afterwards lane t holds part t. */
__device__ __forceinline__ void transpose_quad(unsigned w[4]) {
    int t = threadIdx.x & 3;
#pragma unroll
    for (int step = 1; step <= 2; step *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & step) continue;
            unsigned send = t & step ? w[i] : w[i + step];
            unsigned got = __shfl_xor_sync(~0u, send, step);
            if (t & step) {
                w[i] = got;
            } else {
                w[i + step] = got;
            }
        }
}

/* Stores one of the two rows of a thread: columns 8 j + 2 (lane % 4) + {0, 1} are out[4 j + 2 half + {0, 1}]. */
template <int DIM>
__device__ __forceinline__ void store_row(elem *row, bool valid, const float *out, int half, float factor) {
    int t = threadIdx.x & 3;
#pragma unroll
    for (int part = 0; part < DIM / 32; part++) {
        unsigned w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = nh_pack(out[16 * part + 4 * i + 2 * half] * factor, out[16 * part + 4 * i + 2 * half + 1] * factor);
        transpose_quad(w);
        if (valid) *(uint4 *)(row + 32 * part + 8 * t) = make_uint4(w[0], w[1], w[2], w[3]);
    }
#pragma unroll
    for (int j = DIM / 32 * 4; j < DIM / 8; j++)
        if (valid)
            *(unsigned *)(row + 8 * j + 2 * t) =
                nh_pack(out[4 * j + 2 * half] * factor, out[4 * j + 2 * half + 1] * factor);
}

/* Sets the token of an owned row; false if the row is padding or outside its dilation group. */
__device__ __forceinline__ bool row_token(const nh_tiled_args &args, const nh_work_tile &work_tile, int row,
                                          long long token[3]) {
    int at[3];
    bool inside = !nh_row_is_padding(row);
    nh_row_position(row, at);
#pragma unroll
    for (int a = 0; a < 3; a++) {
        token[a] = 0;
        if (a < NH_FIRST_AXIS) continue;
        int position = work_tile.own[a] + at[a];
        inside = inside && position < work_tile.length[a];
        token[a] = (long long)position * NH_DILATION(args.axis[a]) + work_tile.group[a];
    }
    return inside;
}

/* Stores this thread's two rows of sums, if the tensor is asked for. */
template <int DIM>
__device__ __forceinline__ void finish_rows(const nh_tiled_args &args, const nh_work_tile &work_tile, int slot, int row,
                                            const float *sum, float factor) {
    const nh_cuda_tensor &t = args.tensor[slot];
    if (!t.data) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        long long token[3];
        bool inside = row_token(args, work_tile, row + 8 * half, token);
        store_row<DIM>(nh_row(t, work_tile.batch, token, work_tile.head), inside, sum, half, factor);
    }
}

/* Returns zero, or NaN if one of this thread's sums is not finite. */
template <int COUNT> __device__ __forceinline__ float doubt(const float *sum) {
    float zero = 0;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        zero = fmaf(0, sum[i], zero);
    return zero;
}

/* Notes that a stored sum is not finite, for the launch that repairs rows (repair_noted.cuh). */
__device__ __forceinline__ void note_repair(const nh_tiled_args &args) {
    ((unsigned *)args.tensor[NH_QUEUE].data)[1] = 1;
}

/* to = A B^T, 64 x LOOP_COLUMNS: A this warpgroup's rows of an owned tile, B a loop tile, both of `dim` columns. */
#define ISSUE_ROWS(dim, to, a, b) ISSUE_ROWS_ONTO(0, dim, to, a, b)

/* The same, or, if `accumulate` is 1, to += A B^T. */
#define ISSUE_ROWS_ONTO(accumulate, dim, to, a, b)                                                 \
    do {                                                                                           \
        const int per_chunk_ = CHUNK(dim) / 16;                                                    \
        _Pragma("unroll") for (int i_ = 0; i_ < (dim) / 16; i_++) {                                \
            unsigned long long ai_ = (a) + (i_ / per_chunk_) * (OWN_ROWS * ROW_BYTES(dim) >> 4) +  \
                                     (i_ % per_chunk_) * 2;                                        \
            unsigned long long bi_ =                                                               \
                (b) + (i_ / per_chunk_) * (LOOP_COLUMNS * ROW_BYTES(dim) >> 4) +                   \
                (i_ % per_chunk_) * 2;                                                             \
            if (i_ == 0) {                                                                         \
                NH_WGMMA_SHARED(LOOP_N16, NH_LOOP_N, to, ai_, bi_, accumulate, 0);                 \
            } else {                                                                               \
                NH_WGMMA_SHARED(LOOP_N16, NH_LOOP_N, to, ai_, bi_, 1, 0);                          \
            }                                                                                      \
        }                                                                                          \
        NH_WGMMA_COMMIT();                                                                         \
    } while (0)

__device__ __forceinline__ void release(unsigned barrier) {
    if ((threadIdx.x & 31) == 0) nh_barrier_arrive(barrier);
}

/* Releases a barrier after reads that each lane makes on its own. */
__device__ __forceinline__ void release_warp(unsigned barrier) {
    __syncwarp();
    release(barrier);
}

/* ---- the structure of a kernel ---- */

/* Barriers of a ring: full when what was fetched has landed, free when every consumer warp has released the stage. */
__device__ __forceinline__ void init_ring(unsigned full, unsigned free, int slots) {
    for (int i = 0; i < slots; i++) {
        nh_barrier_init(full + 8 * i, 1);
        nh_barrier_init(free + 8 * i, 4 * NH_WARPGROUPS);
    }
}

/* The body of a kernel. Each kernel defines its Layout of shared memory and, for that, the functions lay_out,
 * init_barriers, clear_padding (clears what no copy writes: padding rows of its owned tiles, and rows that loop tiles
 * lack), produce (called by one thread of each of
 * PRODUCERS warps), help (with HELPERS: called by the other warps of the first warpgroup) and consume (called by the
 * warpgroups that multiply). */
template <class Layout, int PRODUCERS = 1, bool HELPERS = false, class Maps>
__device__ __forceinline__ void run_block(const nh_tiled_args &args, const Maps &maps) {
    extern __shared__ unsigned char memory[];
    Layout s;
    /* The swizzle has a period of 1024 bytes. */
    lay_out(s, ((unsigned)__cvta_generic_to_shared(memory) + 1023u) & ~1023u);
    /* The shuffle tells the compiler that the value is the same for all lanes of a warp. */
    int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0) - 1;
    if (threadIdx.x == 0) {
        init_barriers(s);
        nh_barrier_init_done();
    }
    if (PADDING_ROWS || NH_MASK_STEP) {
        clear_padding(s);
        nh_show_shared();
    }
    __syncthreads();
    if (warpgroup < 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(PRODUCER_REGISTERS));
        if (threadIdx.x % 32 == 0 && threadIdx.x / 32 < PRODUCERS) produce(args, maps, s);
        if constexpr (HELPERS)
            if (threadIdx.x / 32 >= PRODUCERS) help(args, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(CONSUMER_REGISTERS));
        consume(args, s, warpgroup);
    }
}
