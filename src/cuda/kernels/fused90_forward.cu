/* Fused forward for sm_90: O = softmax(scale Q K^T) V without ever writing a weight.
 *
 * One block per multiprocessor walks work items. One thread of the first warpgroup fetches boxes of Q, K and V by the
 * copy engine, straight from the caller's tensors; NH_WARPGROUPS warpgroups of 64 queries each multiply. Boxes may
 * start anywhere, so that the walk over keys starts exactly where the window does; what lies outside the grid arrives
 * as zeros and is masked like everything else outside the window. Only key tiles that some query of a warpgroup does
 * not see as a whole are masked, by bits.
 *
 * Inside a warpgroup the scores of tile t + 1 are multiplied while the softmax of tile t runs. No product is issued
 * under an if: ptxas would serialise all of them, so the walk has a head, a steady state and a tail.
 *
 * Knobs: NH_DTYPE, NH_RANK, NH_DIM, NH_DIM_V (multiples of 16), tiles NH_QX.. NH_QH, NH_KX.., NH_WARPGROUPS, NH_STAGES,
 * NH_HOLD (Q in registers: less traffic of shared memory), NH_EXTRA (extra tokens), NH_Q_MAP, NH_K_MAP, NH_V_MAP: how a map's five axes are used, see place(). */
#define NH_POSITION int
#include "boxes.cuh"
#include "mma.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

#define QUERIES (64 * NH_WARPGROUPS)
#define THREADS (128 * (NH_WARPGROUPS + 1))

/* A row of a tile in shared memory is cut into chunks of one swizzle atom, 128 bytes or, for 32 elements, 64. */
#define CHUNK(dim) ((dim) == 32 ? 32 : 64)
#define CHUNKS(dim) (((dim) + 63) / 64)
#define ROW_BYTES(dim) (2 * CHUNK(dim))
#define TILE_BYTES(rows, dim) ((rows) * ROW_BYTES(dim) * CHUNKS(dim))
#define Q_BYTES TILE_BYTES(QUERIES, NH_DIM)
#define K_BYTES TILE_BYTES(NH_KEYS, NH_DIM)
#define V_BYTES TILE_BYTES(NH_KEYS, NH_DIM_V)

#define SCORES (NH_KEYS / 2)
#define OUTS (NH_DIM_V / 2)

#define MAP_Q 0
#define MAP_K 1
#define MAP_V 2
#define MAP_EXTRA_K 3
#define MAP_EXTRA_V 4

struct maps {
    nh_tensor_map map[NH_EXTRA ? 5 : 3];
};

/* Coordinates of a map's five axes. 0: D, head, z, y, batch (ranks 1, 2); 1: D, head, z, y, x (one batch entry);
 * 2: head and D, z, y, x, batch (heads next to each other); 3: D, z, y, x, batch and head. */
template <int LAYOUT>
__device__ __forceinline__ void place(int to[5], int column, int head, int heads, int dim, const int token[3],
                                      int batch) {
    to[0] = LAYOUT == 2 ? head * dim + column : column;
    if (LAYOUT < 2) {
        to[1] = head;
        to[2] = token[2];
        to[3] = token[1];
        to[4] = LAYOUT == 0 ? batch : token[0];
    } else {
        to[1] = token[2];
        to[2] = token[1];
        to[3] = token[0];
        to[4] = LAYOUT == 2 ? batch : batch * heads + head;
    }
}

struct shared_layout {
    unsigned q, k, v, q_full, q_free, k_full, k_free, v_full, v_free;
};

__device__ __forceinline__ shared_layout lay_out(unsigned base) {
    shared_layout s;
    s.q = base;
    s.k = s.q + Q_BYTES;
    s.v = s.k + NH_STAGES * K_BYTES;
    s.q_full = s.v + NH_STAGES * V_BYTES;
    s.q_free = s.q_full + 8;
    s.k_full = s.q_free + 8;
    s.k_free = s.k_full + 8 * NH_STAGES;
    s.v_full = s.k_free + 8 * NH_STAGES;
    s.v_free = s.v_full + 8 * NH_STAGES;
    return s;
}

#define SLOT(n) ((n) % NH_STAGES)
#define PHASE(n) ((n) / NH_STAGES & 1)

/* ---- producer ---- */

template <int LAYOUT>
__device__ __forceinline__ void fetch(unsigned to, const nh_tensor_map *map, unsigned barrier, int rows, int dim,
                                      int head, int heads, const int token[3], int batch) {
    int at[5];
    nh_barrier_expect(barrier, TILE_BYTES(rows, dim));
#pragma unroll
    for (int chunk = 0; chunk < CHUNKS(dim); chunk++) {
        place<LAYOUT>(at, chunk * 64, head, heads, dim, token, batch);
        nh_copy_box(to + chunk * rows * ROW_BYTES(dim), map, barrier, at);
    }
}

/* Token of a position of the item's dilation groups. */
__device__ __forceinline__ void token_of(const nh_cuda_args &args, const nh_item &item, const int position[3],
                                         int token[3]) {
#pragma unroll
    for (int a = 0; a < 3; a++)
        token[a] = a < NH_FIRST_AXIS ? 0 : position[a] * (int)args.axis[a].dilation + item.group[a];
}

__device__ __forceinline__ void produce(const nh_cuda_args &args, const maps &maps, const shared_layout &s) {
    const int k_tile[3] = NH_K_TILE;
    unsigned n = 0, items = 0;
    int heads = (int)args.heads, kv_heads = (int)args.kv_heads, token[3];
    nh_item item;
    for (int round = 0, index; (index = nh_item_index(round)) < args.tiling.items; round++) {
        nh_item_at(args, index, item);
        if (items) nh_barrier_wait(s.q_free, (items - 1) & 1);
        items++;
        token_of(args, item, item.query, token);
        fetch<NH_Q_MAP>(s.q, &maps.map[MAP_Q], s.q_full, QUERIES, NH_DIM, item.head, heads, token, item.batch);
        int tile[3] = {0, 0, 0};
        for (int t = item.tiles[0] * item.tiles[1] * item.tiles[2]; t > 0; t--, n++) {
            int position[3];
#pragma unroll
            for (int a = 0; a < 3; a++)
                position[a] = item.key[a] + tile[a] * k_tile[a];
            token_of(args, item, position, token);
            nh_barrier_wait(s.k_free + 8 * SLOT(n), PHASE(n) ^ 1);
            fetch<NH_K_MAP>(s.k + SLOT(n) * K_BYTES, &maps.map[MAP_K], s.k_full + 8 * SLOT(n), NH_KEYS, NH_DIM,
                            item.kv_head, kv_heads, token, item.batch);
            nh_barrier_wait(s.v_free + 8 * SLOT(n), PHASE(n) ^ 1);
            fetch<NH_V_MAP>(s.v + SLOT(n) * V_BYTES, &maps.map[MAP_V], s.v_full + 8 * SLOT(n), NH_KEYS, NH_DIM_V,
                            item.kv_head, kv_heads, token, item.batch);
            if (++tile[2] < item.tiles[2]) continue;
            tile[2] = 0;
            if (++tile[1] < item.tiles[1]) continue;
            tile[1] = 0;
            tile[0]++;
        }
#if NH_EXTRA
        for (int e = 0; e < args.tiling.extra_tiles; e++, n++) {
            int first[3] = {0, 0, e * NH_KEYS};
            nh_barrier_wait(s.k_free + 8 * SLOT(n), PHASE(n) ^ 1);
            fetch<0>(s.k + SLOT(n) * K_BYTES, &maps.map[MAP_EXTRA_K], s.k_full + 8 * SLOT(n), NH_KEYS, NH_DIM,
                     item.kv_head, kv_heads, first, item.batch);
            nh_barrier_wait(s.v_free + 8 * SLOT(n), PHASE(n) ^ 1);
            fetch<0>(s.v + SLOT(n) * V_BYTES, &maps.map[MAP_EXTRA_V], s.v_full + 8 * SLOT(n), NH_KEYS, NH_DIM_V,
                     item.kv_head, kv_heads, first, item.batch);
        }
#endif
    }
}

/* ---- consumers ---- */

/* The box of queries of one warpgroup: 64 rows in a row. */
#define SLAB (64 / NH_QH)
#define PLANE (NH_QY * NH_QZ)
#define SLAB_X (PLANE <= SLAB ? SLAB / PLANE : 1)
#define SLAB_Y (PLANE <= SLAB ? NH_QY : NH_QZ <= SLAB ? SLAB / NH_QZ : 1)
#define SLAB_Z (NH_QZ <= SLAB ? NH_QZ : SLAB)
#if SLAB_X * SLAB_Y * SLAB_Z * NH_QH != 64 || NH_QX * NH_QY * NH_QZ * NH_QH != QUERIES
#error "the query tile does not split into boxes of 64"
#endif
#if NH_KZ % 8 || NH_KEYS % 16
#error "key tiles are runs of 8 keys, an even number of them"
#endif

struct rows {
    float largest[2], sum[2], shrink[2];
};

/* Q's rows of this warpgroup: in shared memory, or also held in registers. */
struct queries {
    unsigned long long shared;
#if NH_HOLD
    unsigned held[NH_DIM / 4];
#endif
};

#if NH_HOLD
/* Lane l names row l % 8 of the 8x8 matrix l / 8: rows 0-7 and 8-15 of the first 8 columns, then of the next. */
__device__ __forceinline__ void hold_queries(queries &q, unsigned tile, int warpgroup) {
    int lane = threadIdx.x & 31, row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (lane & 15);
    int turn = ROW_BYTES(NH_DIM) == 128 ? row & 7 : row >> 1 & 3; /* of the swizzle */
    const int per_chunk = CHUNK(NH_DIM) / 16;
#pragma unroll
    for (int i = 0; i < NH_DIM / 16; i++) {
        int part = (i % per_chunk) * 2 + lane / 16;
        unsigned chunk = tile + (i / per_chunk) * (QUERIES * ROW_BYTES(NH_DIM));
        nh_load_matrices_at(q.held + 4 * i, chunk + row * ROW_BYTES(NH_DIM) + ((part ^ turn) << 4));
    }
}
#endif

/* S = Q K^T, 64 x NH_KEYS. */
__device__ __forceinline__ void issue_scores(float *score, queries &q, unsigned long long k) {
    const int per_chunk = CHUNK(NH_DIM) / 16;
#pragma unroll
    for (int i = 0; i < NH_DIM / 16; i++) {
        unsigned long long ki = k + (i / per_chunk) * (NH_KEYS * ROW_BYTES(NH_DIM) >> 4) + (i % per_chunk) * 2;
#if NH_HOLD
        if (i == 0) {
            NH_WGMMA_HELD(NH_KEYS16, NH_KEYS_N, score, q.held + 4 * i, ki, 0, 0);
        } else {
            NH_WGMMA_HELD(NH_KEYS16, NH_KEYS_N, score, q.held + 4 * i, ki, 1, 0);
        }
#else
        unsigned long long qi =
            q.shared + (i / per_chunk) * (QUERIES * ROW_BYTES(NH_DIM) >> 4) + (i % per_chunk) * 2;
        if (i == 0) {
            NH_WGMMA_SHARED(NH_KEYS16, NH_KEYS_N, score, qi, ki, 0);
        } else {
            NH_WGMMA_SHARED(NH_KEYS16, NH_KEYS_N, score, qi, ki, 1);
        }
#endif
    }
    NH_WGMMA_COMMIT();
}

/* O += P V. */
__device__ __forceinline__ void issue_values(float *out, unsigned *weight, unsigned long long v) {
#pragma unroll
    for (int i = 0; i < NH_KEYS / 16; i++)
        NH_WGMMA_HELD(NH_DIM_V16, NH_DIM_V, out, weight + 4 * i, v + i * (16 * ROW_BYTES(NH_DIM_V) >> 4), 1, 1);
    NH_WGMMA_COMMIT();
}

__device__ __forceinline__ float exp2_of(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

__device__ __forceinline__ unsigned pack(float low, float high) {
    unsigned both;
#if NH_DTYPE == NH_F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}

__device__ __forceinline__ void mask(float *score, unsigned a0, unsigned a1, unsigned b0, unsigned b1) {
#pragma unroll
    for (int j = 0; j < NH_KEYS / 8; j++) {
        score[4 * j + 0] = a0 & 1u << j ? score[4 * j + 0] : NH_MINUS_INFINITY;
        score[4 * j + 1] = a1 & 1u << j ? score[4 * j + 1] : NH_MINUS_INFINITY;
        score[4 * j + 2] = b0 & 1u << j ? score[4 * j + 2] : NH_MINUS_INFINITY;
        score[4 * j + 3] = b1 & 1u << j ? score[4 * j + 3] : NH_MINUS_INFINITY;
    }
}

__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

/* Online softmax: scores become weights, the rows' maxima and sums advance. The largest score starts finite, so
 * that a row without a key in its first tiles needs no special case: its next shrink wipes what it gathered. */
__device__ __forceinline__ void soften(float *score, rows &r, float scale) {
    float a = r.largest[0], b = r.largest[1];
#pragma unroll
    for (int j = 0; j < NH_KEYS / 8; j++) {
        a = fmaxf(a, fmaxf(score[4 * j], score[4 * j + 1]));
        b = fmaxf(b, fmaxf(score[4 * j + 2], score[4 * j + 3]));
    }
    a = quad_max(a);
    b = quad_max(b);
    r.shrink[0] = exp2_of((r.largest[0] - a) * scale);
    r.shrink[1] = exp2_of((r.largest[1] - b) * scale);
    r.largest[0] = a;
    r.largest[1] = b;
    r.sum[0] *= r.shrink[0];
    r.sum[1] *= r.shrink[1];
    a *= -scale;
    b *= -scale;
#pragma unroll
    for (int j = 0; j < NH_KEYS / 8; j++) {
        score[4 * j + 0] = exp2_of(fmaf(score[4 * j + 0], scale, a));
        score[4 * j + 1] = exp2_of(fmaf(score[4 * j + 1], scale, a));
        score[4 * j + 2] = exp2_of(fmaf(score[4 * j + 2], scale, b));
        score[4 * j + 3] = exp2_of(fmaf(score[4 * j + 3], scale, b));
        r.sum[0] += score[4 * j + 0] + score[4 * j + 1];
        r.sum[1] += score[4 * j + 2] + score[4 * j + 3];
    }
}

/* Most tiles move no row's maximum. */
__device__ __forceinline__ void shrink(float *out, const rows &r) {
    if (__all_sync(~0u, r.shrink[0] == 1.0f && r.shrink[1] == 1.0f)) return;
#pragma unroll
    for (int j = 0; j < OUTS / 4; j++) {
        out[4 * j + 0] *= r.shrink[0];
        out[4 * j + 1] *= r.shrink[0];
        out[4 * j + 2] *= r.shrink[1];
        out[4 * j + 3] *= r.shrink[1];
    }
}

/* The accumulators of two groups of 8 columns are the A operand of 16: nothing to exchange. */
__device__ __forceinline__ void pack_weights(unsigned *weight, const float *score) {
#pragma unroll
    for (int i = 0; i < SCORES / 2; i++)
        weight[i] = pack(score[2 * i], score[2 * i + 1]);
}

/* Four lanes hold 4 words each of one row, lane t the word t of every fourth part: after this lane t holds part t. */
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

/* One of the two rows of a thread: columns 8 j + 2 (lane % 4) + {0, 1} are out[4 j + 2 half + {0, 1}]. */
__device__ __forceinline__ void store_row(elem *row, bool valid, const float *out, int half, float factor) {
    int t = threadIdx.x & 3;
#pragma unroll
    for (int part = 0; part < NH_DIM_V / 32; part++) {
        unsigned w[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            w[i] = pack(out[16 * part + 4 * i + 2 * half] * factor, out[16 * part + 4 * i + 2 * half + 1] * factor);
        transpose_quad(w);
        if (valid) *(uint4 *)(row + 32 * part + 8 * t) = make_uint4(w[0], w[1], w[2], w[3]);
    }
#pragma unroll
    for (int j = NH_DIM_V / 32 * 4; j < NH_DIM_V / 8; j++)
        if (valid)
            *(unsigned *)(row + 8 * j + 2 * t) =
                pack(out[4 * j + 2 * half] * factor, out[4 * j + 2 * half + 1] * factor);
}

__device__ __forceinline__ void finish_row(const nh_cuda_args &args, const nh_item &item, int row,
                                           const float *out, int half, float largest, float sum) {
    int at[3];
    bool valid = true;
    long long token[3];
    nh_row_position(row, at);
#pragma unroll
    for (int a = 0; a < 3; a++) {
        token[a] = 0;
        if (a < NH_FIRST_AXIS) continue;
        int position = item.query[a] + at[a];
        valid = valid && position < item.length[a];
        token[a] = (long long)position * args.axis[a].dilation + item.group[a];
    }
    int head = item.head + row % NH_QH;
    sum = quad_sum(sum);
    store_row(nh_row(args.tensor[NH_O], item.batch, token, head), valid, out, half, 1.0f / sum);
    if (args.tensor[NH_LSE].data && valid && (threadIdx.x & 3) == 0)
        *nh_scalar(args.tensor[NH_LSE], item.batch, token, head) =
            largest * (float)args.scale + logf(sum);
}

#define K_TILE_AT(n) nh_descriptor(s.k + SLOT(n) * K_BYTES, ROW_BYTES(NH_DIM), 16)
#define V_TILE_AT(n)                                                                               \
    nh_descriptor(s.v + SLOT(n) * V_BYTES, ROW_BYTES(NH_DIM_V), NH_KEYS * ROW_BYTES(NH_DIM_V))

__device__ __forceinline__ void release(unsigned barrier) {
    if ((threadIdx.x & 31) == 0) nh_barrier_arrive(barrier);
}

/* After reads that lanes make on their own. */
__device__ __forceinline__ void release_warp(unsigned barrier) {
    __syncwarp();
    release(barrier);
}

/* The walk of a consumer over the key tiles of its item. */
struct walk {
    int t, last, window_tiles, tile[3];
    nh_full full;
    nh_sight sight[2];
};

__device__ __forceinline__ void advance(walk &w, const nh_item &item) {
    w.t++;
    if (++w.tile[2] < item.tiles[2]) return;
    w.tile[2] = 0;
    if (++w.tile[1] < item.tiles[1]) return;
    w.tile[1] = 0;
    w.tile[0]++;
}

__device__ __forceinline__ bool seen_whole(const walk &w) {
    bool whole = true;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        whole = whole && w.tile[a] >= w.full.begin[a] && w.tile[a] < w.full.end[a];
    return whole;
}

__device__ __forceinline__ void mask_tile(const nh_cuda_args &args, const walk &w, float *score) {
    const int k_tile[3] = NH_K_TILE;
    int c = 2 * (threadIdx.x & 3), start[3];
#if NH_EXTRA
    if (w.t >= w.window_tiles) {
        int count = (int)args.extra_tokens - (w.t - w.window_tiles) * NH_KEYS;
        if (count >= NH_KEYS) return;
        unsigned even = nh_count_bits(count, c), odd = nh_count_bits(count, c + 1);
        mask(score, even, odd, even, odd);
        return;
    }
#endif
    if (seen_whole(w)) return;
#pragma unroll
    for (int a = 0; a < 3; a++)
        start[a] = w.tile[a] * k_tile[a];
    mask(score, nh_sight_bits(w.sight[0], start, c), nh_sight_bits(w.sight[0], start, c + 1),
         nh_sight_bits(w.sight[1], start, c), nh_sight_bits(w.sight[1], start, c + 1));
}

__device__ __forceinline__ void walk_begin(const nh_cuda_args &args, const nh_item &item, int warpgroup, int row,
                                           walk &w) {
    const int extent[3] = {SLAB_X, SLAB_Y, SLAB_Z};
    int first[3];
    nh_row_position(64 * warpgroup, first);
    w.full = nh_full_tiles(args, item, first, extent);
    w.sight[0] = nh_sight_of(args, item, row);
    w.sight[1] = nh_sight_of(args, item, row + 8);
    /* The same by construction: said, so that the compiler makes their bits once. */
    if (8 % (NH_QZ * NH_QH) == 0 || NH_QH % 16 == 0) {
        w.sight[1].begin[2] = w.sight[0].begin[2];
        w.sight[1].end[2] = w.sight[0].end[2];
    }
    if (PLANE * NH_QH % 16 == 0) {
        w.sight[1].begin[0] = w.sight[0].begin[0];
        w.sight[1].end[0] = w.sight[0].end[0];
    }
    w.t = 0;
    w.tile[0] = w.tile[1] = w.tile[2] = 0;
    w.window_tiles = item.tiles[0] * item.tiles[1] * item.tiles[2];
    w.last = w.window_tiles + (NH_EXTRA ? args.tiling.extra_tiles : 0) - 1;
}

__device__ __forceinline__ void consume(const nh_cuda_args &args, const shared_layout &s, int warpgroup) {
    int row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    float scale = (float)(args.scale * 1.4426950408889634);
    queries q;
    q.shared = nh_descriptor(s.q + warpgroup * 64 * ROW_BYTES(NH_DIM), ROW_BYTES(NH_DIM), 16);
    unsigned n = 0, items = 0, weight[SCORES / 2];
    float score[SCORES], out[OUTS];
    nh_item item;
    walk w;
    rows r;
    for (int round = 0, index; (index = nh_item_index(round)) < args.tiling.items; round++) {
        nh_item_at(args, index, item);
        walk_begin(args, item, warpgroup, row, w);
#pragma unroll
        for (int i = 0; i < OUTS; i++)
            out[i] = 0;
        r.largest[0] = r.largest[1] = -1e30f;
        r.sum[0] = r.sum[1] = 0;
        nh_barrier_wait(s.q_full, items & 1);
        items++;
#if NH_HOLD
        hold_queries(q, s.q, warpgroup);
        release_warp(s.q_free);
#endif
        nh_barrier_wait(s.k_full + 8 * SLOT(n), PHASE(n));
        NH_WGMMA_FENCE();
        issue_scores(score, q, K_TILE_AT(n));
        NH_WGMMA_WAIT(0);
        release(s.k_free + 8 * SLOT(n));
        if (!NH_HOLD && w.t == w.last) release(s.q_free);
        mask_tile(args, w, score);
        soften(score, r, scale);
        pack_weights(weight, score);
        n++;
        advance(w, item);
        while (w.t <= w.last) {
            nh_barrier_wait(s.k_full + 8 * SLOT(n), PHASE(n));
            NH_WGMMA_FENCE();
            issue_scores(score, q, K_TILE_AT(n));
            nh_barrier_wait(s.v_full + 8 * SLOT(n - 1), PHASE(n - 1));
            issue_values(out, weight, V_TILE_AT(n - 1));
            NH_WGMMA_WAIT(1);
            release(s.k_free + 8 * SLOT(n));
            if (!NH_HOLD && w.t == w.last) release(s.q_free);
            mask_tile(args, w, score);
            soften(score, r, scale);
            NH_WGMMA_WAIT(0);
            release(s.v_free + 8 * SLOT(n - 1));
            shrink(out, r);
            pack_weights(weight, score);
            n++;
            advance(w, item);
        }
        nh_barrier_wait(s.v_full + 8 * SLOT(n - 1), PHASE(n - 1));
        NH_WGMMA_FENCE();
        issue_values(out, weight, V_TILE_AT(n - 1));
        NH_WGMMA_WAIT(0);
        release(s.v_free + 8 * SLOT(n - 1));
        finish_row(args, item, row, out, 0, r.largest[0], r.sum[0]);
        finish_row(args, item, row + 8, out, 1, r.largest[1], r.sum[1]);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    fused90_forward(const __grid_constant__ nh_cuda_args args, const __grid_constant__ maps maps) {
    extern __shared__ unsigned char memory[];
    /* The swizzle repeats every 1024 bytes. */
    shared_layout s = lay_out(((unsigned)__cvta_generic_to_shared(memory) + 1023u) & ~1023u);
    /* Shuffled, so that the compiler knows it to be the same in a warp. */
    int warpgroup = __shfl_sync(~0u, (int)threadIdx.x / 128, 0) - 1;
    if (threadIdx.x == 0) {
        nh_barrier_init(s.q_full, 1);
        nh_barrier_init(s.q_free, 4 * NH_WARPGROUPS);
        for (int i = 0; i < NH_STAGES; i++) {
            nh_barrier_init(s.k_full + 8 * i, 1);
            nh_barrier_init(s.k_free + 8 * i, 4 * NH_WARPGROUPS);
            nh_barrier_init(s.v_full + 8 * i, 1);
            nh_barrier_init(s.v_free + 8 * i, 4 * NH_WARPGROUPS);
        }
        nh_barrier_init_done();
    }
    __syncthreads();
    if (warpgroup < 0) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(NH_WARPGROUPS == 2 ? 24 : 32));
        if (threadIdx.x == 0) produce(args, maps, s);
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(NH_WARPGROUPS == 2 ? 240 : 160));
        consume(args, s, warpgroup);
    }
}
