/* What the fused kernels of sm_90 share. They are warp-specialized: a block takes one work tile after the other
 * (boxes.cuh), one thread of its first warpgroup, the producer, fetches boxes of rows by the copy engine (TMA),
 * swizzled as wgmma reads them, and the other warpgroups, the consumers, own 64 rows each and multiply. */
#pragma once
#include "wgmma90_kernel.cuh"

#include "boxes.cuh"
#include "mma.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

namespace nh_wgmma90 {

/* How the kernel cuts the problem, for boxes.cuh. In the joint kernel, a key outside the tensors is zeros in shared
 * memory, and its weight has to be 0: otherwise an infinite weight times zero would be NaN in dQ. With a bias, a row
 * outside the grid has a query of zeros, whose weights could become infinite by a large bias, and then its gradient. */
constexpr nh_tiles T = {.rank = C.rank,
                        .inverse = wgmma90_owns_keys(&C),
                        .own = {C.own[0], C.own[1], C.own[2]},
                        .own_heads = C.own_heads,
                        .loop = {C.loop[0], C.loop[1], C.loop[2]},
                        .loop_boxes = C.loop_boxes,
                        .stack = C.stack,
                        .run_axis = wgmma90_run_axis(&C),
                        .outside_sees = C.kernel != WGMMA90_JOINT && !(C.kernel == WGMMA90_QUERY && C.biased),
                        .cluster = C.cluster,
                        .head_parts = C.head_parts};
static_assert(nh_tiles_are_cut<T> && C.warpgroups == nh_warpgroup_tiles<T>, "a warpgroup tile for each warpgroup");
static_assert(NH_REGIONS == (C.region_axes != 0), "kernels for parts of a grid are told which axes are cut");

constexpr int FIRST_AXIS = nh_first_axis<T>, PADDING_ROWS = nh_padding_rows<T>, RUNS = nh_runs<T>;
constexpr int WARPGROUP_X = nh_warpgroup_extent<T, 0>, WARPGROUP_Y = nh_warpgroup_extent<T, 1>,
              WARPGROUP_Z = nh_warpgroup_extent<T, 2>;
constexpr int BOX_ROWS = nh_rows_of_box<T>, LOOP_ROWS = nh_rows_of_loop<T>, LOOP_COLUMNS = wgmma90_loop_columns(&C),
              LOOP_DEPTH = wgmma90_loop_depth(&C);
constexpr int OWN_ROWS = wgmma90_own_rows(&C), THREADS = 128 * (C.warpgroups + 1);
/* A block starts with 65,536 registers divided among its threads, rounded down to a multiple of 8 for each: setmaxnreg
 * would wait for more forever. */
static_assert(wgmma90_producer_registers(&C) + C.warpgroups * wgmma90_consumer_registers(&C) <=
                  65536 / THREADS / 8 * 8 * (C.warpgroups + 1),
              "registers of a block");

__device__ constexpr int chunk_columns(int dim) {
    return wgmma90_chunk(dim);
}

__device__ constexpr int chunks(int dim) {
    return wgmma90_chunks(dim);
}

__device__ constexpr int chunk_bytes(int dim) {
    return wgmma90_chunk_bytes(dim);
}

__device__ constexpr int tile_bytes(int rows, int dim) {
    return wgmma90_tile_bytes(rows, dim);
}

/* Fetches a box into a tile of ROWS rows of DIM columns; the barrier already expects its bytes. */
template <int LAYOUT, int ROWS, int DIM>
NH_DEVICE void fetch_more(unsigned to, const nh_tensor_map *map, unsigned barrier, int head, int heads,
                          const int token[3], int batch) {
    int at[5];
    NH_UNROLL for (int chunk = 0; chunk < chunks(DIM); chunk++) {
        place<LAYOUT>(at, chunk * 64, head, heads, DIM, token, batch);
        nh_copy_box(to + chunk * ROWS * chunk_bytes(DIM), map, barrier, at);
    }
}

/* Dilated axes are fetched with element strides if these are in the copy engine's range. In one dimension any dilation
 * is possible, with C.folded: the map's axis y counts the dilation groups, and z their positions. In more dimensions,
 * axes in C.far_axes count positions too, and the group is part of the origin, in layout 4. The first groups of an axis
 * may be a token longer than the others. Axes where this is so are in C.uneven_axes, and the shorter groups have maps
 * of their own, after those of the longer ones. */
constexpr int MAP_VARIANTS = 1 << ((C.uneven_axes & 1) + (C.uneven_axes >> 1 & 1) + (C.uneven_axes >> 2 & 1));

__device__ constexpr bool is_far(int axis) {
    return C.far_axes >> axis & 1;
}

/* The box of a map's tensor: OWN: of owned rows, else of those of the loop. */
template <bool OWN, class Args> NH_DEVICE const nh_cuda_box &box_of_map(const Args &args, int a) {
    return OWN == (bool)T.inverse ? args.region[a].key : args.region[a].query;
}

/* Maps of a part of a grid begin with the first token that tensors have. In the map, a work tile has another dilation
 * group than in the grid, whose first position is that of the group's first row. */
template <bool OWN, class Args> NH_DEVICE long long tokens_of_map(const Args &args, int a) {
    if constexpr (NH_REGIONS) {
        return box_of_map<OWN>(args, a).length;
    } else {
        return args.axis[a].length;
    }
}

template <bool OWN, class WorkTile> NH_DEVICE int first_in_map(const WorkTile &work_tile, int a) {
    if constexpr (NH_REGIONS) {
        return OWN ? work_tile.rows[a] : (int)work_tile.columns[a].begin;
    } else {
        return 0;
    }
}

template <bool OWN, class Args, class WorkTile>
NH_DEVICE int group_in_map(const Args &args, const WorkTile &work_tile, int a) {
    if constexpr (NH_REGIONS) {
        const nh_cuda_box &box = box_of_map<OWN>(args, a);
        if (!nh_is_cut(a)) return work_tile.group[a];
        return first_in_map<OWN>(work_tile, a) * (int)NH_DILATION(args.axis[a]) + work_tile.group[a] - (int)box.offset;
    } else {
        return work_tile.group[a];
    }
}

template <bool OWN> NH_DEVICE int longer_groups(const nh_tiled_args &args, int a) {
    return (int)(tokens_of_map<OWN>(args, a) % args.axis[a].dilation);
}

/* The work tile's maps; there are `count` for each kind of groups. */
template <bool OWN = true>
NH_DEVICE const nh_tensor_map *maps_of(const nh_tiled_args &args, const nh_work_tile &work_tile,
                                       const nh_tensor_map *map, int count) {
    int variant = 0, variants = 1;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        if (!(C.uneven_axes >> a & 1)) continue;
        if (group_in_map<OWN>(args, work_tile, a) >= longer_groups<OWN>(args, a)) variant += variants;
        variants *= 2;
    }
    return map + variant * count;
}

/* The coordinates of a position of the work tile's dilation groups in the maps. */
template <bool OWN, class Args>
NH_DEVICE void token_of(const Args &args, const nh_work_tile &work_tile, const int position[3], int token[3]) {
    if (C.folded) {
        int longer = longer_groups<OWN>(args, 2), group = group_in_map<OWN>(args, work_tile, 2);
        token[0] = 0;
        token[1] = group - (group >= longer ? longer : 0);
        token[2] = position[2] - first_in_map<OWN>(work_tile, 2);
        return;
    }
    NH_UNROLL for (int a = 0; a < 3; a++) {
        token[a] = 0;
        if (a < FIRST_AXIS) continue;
        if constexpr (NH_REGIONS) {
            if (nh_is_cut(a) && !is_far(a)) { /* counted from the first token of the box, wherever its group begins */
                const nh_cuda_box &box = box_of_map<OWN>(args, a);
                token[a] = position[a] * (int)NH_DILATION(args.axis[a]) + work_tile.group[a] - (int)box.offset;
                continue;
            }
        }
        token[a] = position[a] - first_in_map<OWN>(work_tile, a);
        if (!is_far(a)) token[a] = token[a] * (int)NH_DILATION(args.axis[a]) + group_in_map<OWN>(args, work_tile, a);
    }
}

/* The argument `head` of place(): the head or, in layout 4, the origin of the boxes in units of 16 bytes. */
template <int LAYOUT, int UNIT = 8, class WorkTile>
NH_DEVICE int head_or_origin(const nh_tiled_args &args, int slot, const WorkTile &work_tile, int head) {
    if constexpr (LAYOUT == 4) {
        const nh_cuda_tensor &t = args.tensor[slot];
        long long origin = work_tile.batch * t.batch + head * t.head;
        NH_UNROLL for (int a = 0; a < 3; a++) {
            if (!is_far(a)) continue;
            const bool own = (slot == NH_K || slot == NH_V) == (bool)T.inverse;
            origin +=
                (own ? group_in_map<true>(args, work_tile, a) : group_in_map<false>(args, work_tile, a)) * t.axis[a];
        }
        return (int)(origin / UNIT);
    }
    return head;
}

/* Bytes of an owned tile that are fetched: all rows but padding rows. */
__device__ constexpr int own_bytes(int dim) {
    return tile_bytes(C.warpgroups * nh_warpgroup_positions<T> * C.own_heads, dim);
}

/* Fetches an owned tile; the barrier already expects its OWN_BYTES. */
template <int LAYOUT, int DIM>
NH_DEVICE void fetch_own(const nh_tiled_args &args, unsigned to, const nh_tensor_map *map, unsigned barrier,
                         const nh_work_tile &work_tile, int head, int heads) {
    int position[3], token[3];
    NH_UNROLL for (int warpgroup_tile = 0; warpgroup_tile < C.warpgroups; warpgroup_tile++) {
        nh_row_position<T>(64 * warpgroup_tile, position);
        for (int a = 0; a < 3; a++)
            position[a] += work_tile.own[a];
        token_of<true>(args, work_tile, position, token);
        fetch_more<LAYOUT, OWN_ROWS, DIM>(to + 64 * warpgroup_tile * chunk_bytes(DIM), map, barrier, head, heads, token,
                                          work_tile.batch);
    }
}

/* All threads of a block clear the last rows of each of so many groups of rows, which no copy writes. */
NH_DEVICE void clear_last_rows(unsigned start, int groups, int rows, int last, int row_bytes) {
    const int unit = 16, units = last * row_bytes / unit;
    for (int i = (int)threadIdx.x; i < groups * units; i += THREADS) {
        unsigned group = start + i / units * (rows * row_bytes);
        nh_store_shared(group + (rows - last) * row_bytes + i % units * unit, 0, 0, 0, 0);
    }
}

/* Clears the padding rows of an owned tile before it is fetched. */
NH_DEVICE void clear_padding_rows(unsigned tile, int dim) {
    clear_last_rows(tile, chunks(dim) * C.warpgroups, 64, PADDING_ROWS, chunk_bytes(dim));
}

/* The stage of tile n of a ring, and the parity of the number of times that it was used before. */
constexpr bool COUNTS_TILES = C.stages <= 4 || C.stages == 8;

/* A division by other numbers would delay products. There n has the stage in its lowest byte, and rounds above. */
NH_DEVICE unsigned slot(unsigned n) {
    if constexpr (COUNTS_TILES) {
        return n % C.stages;
    } else {
        return n & 255u;
    }
}

NH_DEVICE unsigned phase(unsigned n) {
    return (COUNTS_TILES ? n / C.stages : n >> 8) & 1;
}

NH_DEVICE unsigned next(unsigned n) {
    if (COUNTS_TILES) return n + 1;
    return slot(n) == C.stages - 1 ? (n | 255u) + 1 : n + 1;
}

NH_DEVICE unsigned tiles_ahead(unsigned n, unsigned before) {
    if (COUNTS_TILES) return n - before;
    return (n >> 8) * C.stages + slot(n) - (before >> 8) * C.stages - slot(before);
}

/* ---- consumers ---- */

NH_DEVICE float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Packs scores as the A operand of a product: the accumulators of two groups of 8 columns are in its layout already. */
NH_DEVICE void pack_weights(unsigned *weight, const float *score) {
    NH_UNROLL for (int i = 0; i < LOOP_COLUMNS / 4; i++)
        weight[i] = nh_pack(score[2 * i], score[2 * i + 1]);
}

/* Four lanes hold 4 words each of one row, lane t word t of every fourth part; afterwards lane t holds part t. */
NH_DEVICE void transpose_quad(unsigned w[4]) {
    int t = threadIdx.x & 3;
    NH_UNROLL for (int step = 1; step <= 2; step *= 2)
        NH_UNROLL for (int i = 0; i < 4; i++) {
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
template <int DIM> NH_DEVICE void store_row(elem *row, bool valid, const float *out, int half, float factor) {
    int t = threadIdx.x & 3;
    NH_UNROLL for (int part = 0; part < DIM / 32; part++) {
        unsigned w[4];
        NH_UNROLL for (int i = 0; i < 4; i++)
            w[i] = nh_pack(out[16 * part + 4 * i + 2 * half] * factor, out[16 * part + 4 * i + 2 * half + 1] * factor);
        transpose_quad(w);
        if (valid) *(uint4 *)(row + 32 * part + 8 * t) = make_uint4(w[0], w[1], w[2], w[3]);
    }
    NH_UNROLL for (int j = DIM / 32 * 4; j < DIM / 8; j++)
        if (valid)
            *(unsigned *)(row + 8 * j + 2 * t) =
                nh_pack(out[4 * j + 2 * half] * factor, out[4 * j + 2 * half + 1] * factor);
}

/* Sets the token of an owned row; false if the row is padding or outside its dilation group. */
NH_DEVICE bool row_token(const nh_tiled_args &args, const nh_work_tile &work_tile, int row, long long token[3]) {
    int at[3];
    bool inside = !nh_row_is_padding<T>(row);
    nh_row_position<T>(row, at);
    NH_UNROLL for (int a = 0; a < 3; a++) {
        token[a] = 0;
        if (a < FIRST_AXIS) continue;
        int position = work_tile.own[a] + at[a];
        inside = inside && position < work_tile.length[a];
        token[a] = (long long)position * NH_DILATION(args.axis[a]) + work_tile.group[a];
    }
    return inside;
}

/* Stores this thread's two rows of sums, if the tensor is asked for. */
template <int DIM>
NH_DEVICE void finish_rows(const nh_tiled_args &args, const nh_work_tile &work_tile, int slot, int row,
                           const float *sum, float factor) {
    const nh_cuda_tensor &t = args.tensor[slot];
    if (!t.data) return;
    NH_UNROLL for (int half = 0; half < 2; half++) {
        long long token[3];
        bool inside = row_token(args, work_tile, row + 8 * half, token);
        store_row<DIM>(nh_row(t, work_tile.batch, token, work_tile.head), inside, sum, half, factor);
    }
}

/* Returns zero, or NaN if one of this thread's sums is not finite. */
template <int COUNT> NH_DEVICE float doubt(const float *sum) {
    float zero = 0;
    NH_UNROLL for (int i = 0; i < COUNT; i++)
        zero = fmaf(0, sum[i], zero);
    return zero;
}

/* Notes that a stored sum is not finite, for the launch that repairs rows (repair_noted.cuh). */
NH_DEVICE void note_repair(const nh_tiled_args &args) {
    ((unsigned *)args.tensor[NH_QUEUE].data)[1] = 1;
}

/* to = A B^T or, if ONTO is 1, to += A B^T: A the warpgroup's owned rows, B LOOP_COLUMNS rows, both of DIM columns. */
template <int DIM, int ONTO = 0> NH_DEVICE void issue_rows(float *to, unsigned long long a, unsigned long long b) {
    constexpr int per_chunk = chunk_columns(DIM) / 16;
    NH_UNROLL for (int i = 0; i < DIM / 16; i++) {
        unsigned long long ai = a + (i / per_chunk) * (OWN_ROWS * chunk_bytes(DIM) >> 4) + (i % per_chunk) * 2;
        unsigned long long bi = b + (i / per_chunk) * (LOOP_COLUMNS * chunk_bytes(DIM) >> 4) + (i % per_chunk) * 2;
        if (i == 0) {
            nh_wgmma_shared<LOOP_COLUMNS, ONTO, 0>(to, ai, bi);
        } else {
            nh_wgmma_shared<LOOP_COLUMNS, 1, 0>(to, ai, bi);
        }
    }
    nh_wgmma_commit();
}

NH_DEVICE void release(unsigned barrier) {
    if ((threadIdx.x & 31) == 0) nh_barrier_arrive(barrier);
}

/* Releases a barrier after reads that each lane makes on its own. */
NH_DEVICE void release_warp(unsigned barrier) {
    __syncwarp();
    release(barrier);
}

/* ---- the structure of a kernel ---- */

/* Barriers of a ring: full when what was fetched has landed, free when every consumer warp has released the stage. */
NH_DEVICE void init_ring(unsigned full, unsigned free, int slots) {
    for (int i = 0; i < slots; i++) {
        nh_barrier_init(full + 8 * i, 1);
        nh_barrier_init(free + 8 * i, 4 * C.warpgroups);
    }
}

/* Addresses in shared memory. */
struct layout : wgmma90_layout {};

/* The body of a kernel, which defines the functions init_barriers, clear_padding (clears what no copy writes: padding
 * rows of its owned tiles, and rows that loop tiles lack), produce (called by one thread of each of PRODUCERS warps),
 * help (with HELPERS: called by the other warps of the first warpgroup) and consume (called by the others). */
template <int PRODUCERS = 1, bool HELPERS = false, class Maps, class Layout = layout>
NH_DEVICE void run_block(const nh_tiled_args &args, const Maps &maps) {
    extern __shared__ unsigned char memory[];
    const unsigned begin = (unsigned)__cvta_generic_to_shared(memory), period = WGMMA90_ALIGNMENT;
    const Layout s = {wgmma90_layout_at(&C, (begin + period - 1) & ~(period - 1))};
    /* The shuffle tells the compiler that the value is the same for all lanes of a warp. */
    int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0) - 1;
    if (threadIdx.x == 0) {
        init_barriers(s);
        nh_barrier_init_done();
    }
    if (PADDING_ROWS || C.mask == WGMMA90_MASK_PRODUCT) {
        clear_padding(s);
        nh_show_shared();
    }
    __syncthreads();
    if (warpgroup < 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(wgmma90_producer_registers(&C)));
        if (threadIdx.x % 32 == 0 && threadIdx.x / 32 < PRODUCERS) produce(args, maps, s);
        if constexpr (HELPERS)
            if (threadIdx.x / 32 >= PRODUCERS) help(args, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(wgmma90_consumer_registers(&C)));
        consume(args, s, warpgroup);
    }
}

} // namespace nh_wgmma90
