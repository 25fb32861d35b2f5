/* Gradient of the relative bias beside dQ: of every entry of the table, the sum of dS over the pairs at its distance,
 * without atomics that could come in another order. A block adds to a table of its own head by head; small_bias_sum.cu
 * adds up the tables of all blocks.
 *
 * Rows and columns of a tile are runs of 8 along z, and dS is 8x8 matrices, each of a run of rows and a run of columns.
 * Of those at one distance of runs the sum is wanted, and of that the sums along its diagonals.
 *     consumer warp   two runs of rows, one step apart along z or y: matrices of a distance are two, or one. Their sums go
 *                     to shared memory, PARTS per warp, each lane's two elements side by side
 *     helpers         add up the parts of all warps, matrix by matrix: `lines`, the matrices of a line of runs side by
 *                     side; then a thread per entry the 8 elements of its diagonal, and these to the table
 * Lines are two, in turn, so that the helpers meet once per tile. */
#pragma once
#include "fused90_bias.cuh"

#if NH_BIASED && NH_OWN_Z % 8
#error "owned rows are runs of 8 along z"
#endif
#define OWN_RUNS ((NH_OWN_Z + 7) / 8)

/* Along which axis the second run of a warp's rows follows the first. */
#define PAIRED_Z (OWN_RUNS > 1)
#define PAIRED_Y (!PAIRED_Z)

/* A warp's parts: runs of columns, one more along that axis. */
#define PART_Y (NH_WALK_Y + PAIRED_Y)
#define PART_Z (NH_RUNS + PAIRED_Z)
#define PARTS (NH_WALK_X * PART_Y * PART_Z)
#define PART_BYTES 256
#define PARTS_BYTES (4 * NH_WARPGROUPS * PARTS * PART_BYTES)

/* Lines, each of 8 rows of LINE_FLOATS. */
#define LINE_RUNS (OWN_RUNS + NH_RUNS - 1)
#define LINE_FLOATS (8 * LINE_RUNS)
#define LINE_BYTES (8 * 4 * LINE_FLOATS)
#define LINES_BYTES (BIAS_X * BIAS_Y * LINE_BYTES)
#define LINES_AT(s, m) ((s).lines + (m) % 2 * LINES_BYTES)
#define BIAS_GRADIENT_BYTES (PARTS_BYTES + 2 * LINES_BYTES)

/* parts_full, parts_free: the consumers' parts of a tile are there, or added up; met: all helpers are done with a tile's
 * lines. */
struct bias_gradient {
    unsigned parts, lines, parts_full, parts_free, met;
};

/* Returns where its barriers end. */
__device__ __forceinline__ unsigned lay_out(bias_gradient &s, unsigned base, unsigned barriers) {
    s.parts = base;
    s.lines = s.parts + PARTS_BYTES;
    s.parts_full = barriers;
    s.parts_free = s.parts_full + 8;
    s.met = s.parts_free + 8;
    return s.met + 8;
}

__device__ __forceinline__ void init_barriers(const bias_gradient &s) {
    nh_barrier_init(s.parts_full, CONSUMER_LANES);
    nh_barrier_init(s.parts_free, BIAS_LANES);
    nh_barrier_init(s.met, BIAS_LANES);
}

/* ---- consumers ---- */

/* The element of dS that the first (half 0) or second run of rows adds to a part; zero if it has no columns there. */
__device__ __forceinline__ float part_element(const float *d_s, int part, int half, int odd) {
    int x = part / (PART_Y * PART_Z), y = part / PART_Z % PART_Y, z = part % PART_Z;
    if (!half) {
        y -= PAIRED_Y;
        z -= PAIRED_Z;
    }
    bool inside = y >= 0 && y < NH_WALK_Y && z >= 0 && z < NH_RUNS;
    return inside ? d_s[4 * ((x * NH_WALK_Y + y) * NH_RUNS + z) + 2 * half + odd] : 0;
}

/* Hands dS of the m-th tile with a bias to the helpers. */
__device__ __forceinline__ void pass_on_d_s(const bias_gradient &s, const float *d_s, unsigned m) {
    int warp = (int)threadIdx.x / 32 - 4, lane = threadIdx.x & 31;
    unsigned to = s.parts + warp * PARTS * PART_BYTES + 8 * lane;
    nh_barrier_wait(s.parts_free, m & 1 ^ 1);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        float even = part_element(d_s, part, 0, 0) + part_element(d_s, part, 1, 0);
        float odd = part_element(d_s, part, 0, 1) + part_element(d_s, part, 1, 1);
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + part * PART_BYTES), "f"(even), "f"(odd) : "memory");
    }
    nh_barrier_arrive(s.parts_full);
}

/* ---- helpers ---- */

/* A consumer warp's part at a distance of runs, counted from the least; negative if it has none. */
__device__ __forceinline__ constexpr int part_at(int warp, int x, int y, int z) {
    int run = 2 * warp;
    x += run / (NH_OWN_Y * OWN_RUNS) - (NH_OWN_X - 1);
    y += run / OWN_RUNS % NH_OWN_Y - (NH_OWN_Y - 1) + PAIRED_Y;
    z += run % OWN_RUNS - (OWN_RUNS - 1) + PAIRED_Z;
    bool inside = x >= 0 && x < NH_WALK_X && y >= 0 && y < PART_Y && z >= 0 && z < PART_Z;
    return inside ? (x * PART_Y + y) * PART_Z + z : -1;
}

/* Each helper warp adds up every BIAS_WARPS-th matrix. */
__device__ __forceinline__ void add_parts(const bias_gradient &s, unsigned lines) {
    int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0) - 1, lane = threadIdx.x & 31;
    unsigned from = s.parts + 8 * lane, to = lines + (lane / 4 * LINE_FLOATS + 2 * (lane & 3)) * 4;
#pragma unroll
    for (int i = 0; i < BIAS_X * BIAS_Y * LINE_RUNS; i++) {
        if (i % BIAS_WARPS != warp) continue;
        float even = 0, odd = 0;
#pragma unroll
        for (int w = 0; w < 4 * NH_WARPGROUPS; w++) {
            int part = part_at(w, i / (BIAS_Y * LINE_RUNS), i / LINE_RUNS % BIAS_Y, i % LINE_RUNS);
            if (part < 0) continue;
            float x, y;
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(x), "=f"(y) : "r"(from + (w * PARTS + part) * PART_BYTES));
            even += x;
            odd += y;
        }
        asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + i / LINE_RUNS * LINE_BYTES + i % LINE_RUNS * 32),
                     "f"(even), "f"(odd)
                     : "memory");
    }
}

/* Column minus row is the same along a diagonal, from -7 on. */
__device__ __forceinline__ float diagonal_sum(unsigned line, int diagonal) {
    unsigned from = line + 4 * (diagonal - 7);
    float sum = 0;
#pragma unroll
    for (int row = 0; row < 8; row++)
        if ((unsigned)(diagonal - 7 + row) < LINE_FLOATS) sum += bias_at(from + row * 4 * (LINE_FLOATS + 1));
    return sum;
}

/* This block's table for a head. */
__device__ __forceinline__ float *bias_table(const nh_cuda_args &args, int head) {
    const nh_cuda_tensor &tables = args.tensor[NH_D_S];
    return (float *)tables.data + head * tables.head + blockIdx.x / NH_HEAD_PARTS * bias_entries(args);
}

__device__ __forceinline__ void meet(const bias_gradient &s, unsigned m) {
    nh_barrier_arrive(s.met);
    nh_barrier_wait(s.met, m & 1);
}

/* All tables of this block, before the first tile. */
__device__ __forceinline__ void clear_tables(const nh_cuda_args &args) {
    int heads = (int)args.heads / NH_HEAD_PARTS, first = blockIdx.x % NH_HEAD_PARTS * heads;
    for (int head = first; head < first + heads; head++)
        for (long long i = (int)threadIdx.x - 32; i < bias_entries(args); i += BIAS_LANES)
            bias_table(args, head)[i] = 0;
}

/* Adds the m-th tile to the table. No two threads add to one entry, and all have met since the last tile: so the order
 * is always the same. */
__device__ __forceinline__ void add_tile(const nh_cuda_args &args, const bias_gradient &s, const bias_box &box,
                                         unsigned m) {
    unsigned lines = LINES_AT(s, m);
    float *table = bias_table(args, box.head);
    nh_barrier_wait(s.parts_full, m & 1);
    add_parts(s, lines);
    nh_barrier_arrive(s.parts_free);
    meet(s, m);
    for (int i = (int)threadIdx.x - 32; i < BIAS_ENTRIES; i += BIAS_LANES) {
        int entry = bias_entry(args, box, i);
        if (entry >= 0) atomicAdd(table + entry, diagonal_sum(lines + i / BIAS_Z * LINE_BYTES, i % BIAS_Z));
    }
}

/* What the helpers do all along: bias boxes of the tiles to come and, one tile later, their gradients. */
__device__ __forceinline__ void lay_biases_and_differentiate(const nh_cuda_args &args, unsigned ring, unsigned full,
                                                             unsigned free, const bias_gradient &s) {
    unsigned m = 0;
    bool pending = false;
    bias_box last;
    clear_tables(args);
    lay_biases(args, ring, full, free, [&](const bias_box &box, bool seen) {
        if (pending) add_tile(args, s, last, m++);
        pending = seen;
        last = box;
    });
    if (pending) add_tile(args, s, last, m);
}
