/* Gradient of the relative bias beside dQ: each entry of the table gets the sum of dS over the pairs at its distance,
 * without atomics, whose order could vary. A block adds to a table of its own head by head; bias_sum.cu adds up those
 * of all blocks. Rows and columns of a tile are runs of 8 along z, so dS consists of 8x8 matrices, each for a run of
 * rows and a run of columns. The matrices at the same distance of runs are added up, and then the diagonals of their
 * sum:
 *     consumer warp   has two runs of rows, one step apart along z or y, and so one or two matrices per distance. It
 *                     writes their sums to shared memory, PARTS per warp, each lane's two elements side by side
 *     helpers         add up those of all warps, matrix by matrix, to `lines`: the matrices of a line of runs side
 *                     by side. Then a thread per entry adds up the 8 elements of its diagonal, for the table
 * There are two sets of lines, used alternately, so that the helpers synchronize once per tile. */
#pragma once
#include "fused90_bias.cuh"

namespace nh_wgmma90 {

constexpr int PART_BYTES = WGMMA90_PART_BYTES;

/* Lines have 8 rows. After each row, and before the first, are 8 zeros, where diagonals may start and end. */
constexpr int OWN_RUNS = (C.own[2] + 7) / 8, LINE_RUNS = wgmma90_line_runs(&C), ROW_FLOATS = 8 * LINE_RUNS + 8,
              LINE_BYTES = wgmma90_line_bytes(&C), LINES_BYTES = wgmma90_lines_bytes(&C),
              MATRICES = BIAS_X * BIAS_Y * LINE_RUNS;
static_assert(!C.biased || PARTS == wgmma90_bias_parts(&C), "matrices of dS");

/* Barriers of the layout: parts_full and parts_free: the consumers' parts of a tile are written, or added up; met: all
 * helpers have finished with a tile's lines. */
NH_DEVICE void init_gradient_barriers(const layout &s) {
    nh_barrier_init(s.parts_full, CONSUMER_LANES);
    nh_barrier_init(s.parts_free, BIAS_LANES);
    nh_barrier_init(s.met, BIAS_LANES);
}

NH_DEVICE void store_pair(unsigned to, float x, float y) {
    asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to), "f"(x), "f"(y) : "memory");
}

/* ---- consumers ---- */

/* Sums up a part's pairs of runs. */
NH_DEVICE float2 sum_part(const float *d_s, int part) {
    int first = part_columns(part, 0), second = part_columns(part, 1);
    float2 sum = make_float2(0, 0);
    if (first >= 0) sum = make_float2(d_s[4 * first], d_s[4 * first + 1]);
    if (second < 0) return sum;
    const float *below = d_s + 4 * second + 2;
    return first < 0 ? make_float2(below[0], below[1]) : make_float2(sum.x + below[0], sum.y + below[1]);
}

/* Passes dS of the m-th tile with a bias to the helpers. */
NH_DEVICE void pass_on_d_s(const layout &s, const float *d_s, unsigned m) {
    int warp = (int)threadIdx.x / 32 - 4, lane = threadIdx.x & 31;
    unsigned to = s.parts + warp * PARTS * PART_BYTES + 8 * lane;
    nh_barrier_wait(s.parts_free, m & 1 ^ 1);
    NH_UNROLL for (int part = 0; part < PARTS; part++) {
        float2 sum = sum_part(d_s, part);
        store_pair(to + part * PART_BYTES, sum.x, sum.y);
    }
    nh_barrier_arrive(s.parts_full);
}

/* ---- helpers ---- */

/* The part of a consumer warp at a distance of runs, counted from the least one; negative if it has none. */
NH_DEVICE int part_at(int warp, int x, int y, int z) {
    int first[3];
    nh_row_position<T>(16 * warp, first);
    x += first[0] - (C.own[0] - 1);
    y += first[1] - (C.own[1] - 1) + PAIRED_Y;
    z += first[2] / 8 - (OWN_RUNS - 1) + PAIRED_Z;
    bool inside = x >= 0 && x < C.loop[0] && y >= 0 && y < PART_Y && z >= 0 && z < PART_Z;
    return inside ? (x * PART_Y + y) * PART_Z + z : -1;
}

/* The part of a consumer warp for a matrix; negative if it has none. */
NH_DEVICE int part_of_matrix(int warp, int matrix) {
    if (matrix >= MATRICES) return -1;
    return part_at(warp, matrix / (BIAS_Y * LINE_RUNS), matrix / LINE_RUNS % BIAS_Y, matrix % LINE_RUNS);
}

/* Each helper warp adds up every BIAS_WARPS-th matrix, two at a time to hide the latency of shared memory. */
template <int OWN> NH_DEVICE void add_parts(unsigned from, unsigned to) {
    enum { AT_ONCE = 2, WARPS = 4 * C.warpgroups };
    NH_UNROLL for (int first = OWN; first < MATRICES; first += AT_ONCE * BIAS_WARPS) {
        float2 part[AT_ONCE][WARPS];
        NH_UNROLL for (int i = 0; i < AT_ONCE * WARPS; i++) {
            int w = i % WARPS, number = part_of_matrix(w, first + i / WARPS * BIAS_WARPS);
            if (number >= 0) part[i / WARPS][w] = load_pair(from + (w * PARTS + number) * PART_BYTES);
        }
        NH_UNROLL for (int i = 0; i < AT_ONCE; i++) {
            int matrix = first + i * BIAS_WARPS;
            float2 sum = make_float2(0, 0);
            if (matrix >= MATRICES) continue;
            NH_UNROLL for (int w = 0; w < WARPS; w++) {
                if (part_of_matrix(w, matrix) < 0) continue;
                sum.x += part[i][w].x;
                sum.y += part[i][w].y;
            }
            store_pair(to + matrix / LINE_RUNS * LINE_BYTES + matrix % LINE_RUNS * 32, sum.x, sum.y);
        }
    }
}

NH_DEVICE void add_parts(const layout &s, unsigned lines) {
    int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0) - 1, lane = threadIdx.x & 31;
    unsigned from = s.parts + 8 * lane, to = lines + 32 + (lane / 4 * ROW_FLOATS + 2 * (lane & 3)) * 4;
    if (warp == 0) {
        add_parts<0>(from, to);
    } else if (warp == 1) {
        add_parts<1>(from, to);
    } else {
        add_parts<2>(from, to);
    }
}

/* Sums up a diagonal, numbered by column minus row + 7. */
NH_DEVICE float diagonal_sum(unsigned line, int diagonal) {
    unsigned from = line + 4 * (diagonal + 1);
    float sum = 0;
    NH_UNROLL for (int row = 0; row < 8; row++) {
        float element;
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(element) : "r"(from + row * 4 * (ROW_FLOATS + 1)));
        sum += element;
    }
    return sum;
}

/* This block's table for a head. */
NH_DEVICE float *bias_table(const nh_tiled_args &args, int head) {
    const nh_cuda_tensor &tables = args.tensor[NH_D_S];
    return (float *)tables.data + head * tables.head + NH_OWN_BLOCK / C.head_parts * bias_entries(args);
}

/* Synchronizes all helpers; n: how often this was done before. */
NH_DEVICE void sync_helpers(const layout &s, unsigned n) {
    nh_barrier_arrive(s.met);
    nh_barrier_wait(s.met, n & 1);
}

/* Clears all tables of this block, and the lines, before the first tile. */
NH_DEVICE void clear_sums(const nh_tiled_args &args, const layout &s) {
    int heads = (int)args.heads / C.head_parts, first = NH_OWN_BLOCK % C.head_parts * heads;
    for (int head = first; head < first + heads; head++)
        for (long long i = (int)threadIdx.x - 32; i < bias_entries(args); i += BIAS_LANES)
            bias_table(args, head)[i] = 0;
    for (int i = (int)threadIdx.x - 32; i < LINES_BYTES / 4; i += BIAS_LANES)
        store_pair(s.lines + 8 * i, 0, 0);
    sync_helpers(s, 0);
}

/* Adds the m-th tile to the table. No two threads add to the same entry, and all have synchronized since the last tile,
 * so that the order is always the same. */
NH_DEVICE void add_tile(const nh_tiled_args &args, const layout &s, const bias_box &box, unsigned m) {
    enum { AT_ONCE = bias_batch(3) };
    unsigned lines = s.lines + m % 2 * LINES_BYTES;
    float *table = bias_table(args, box.head);
    nh_barrier_wait(s.parts_full, m & 1);
    add_parts(s, lines);
    nh_barrier_arrive(s.parts_free);
    sync_helpers(s, m + 1);
    NH_UNROLL for (int round = 0; round < BIAS_ROUNDS; round += AT_ONCE) {
        int first = (int)threadIdx.x - 32 + round * BIAS_LANES;
        float sum[AT_ONCE];
        NH_UNROLL for (int i = 0; i < AT_ONCE; i++) {
            int place = nh_min(first + i * BIAS_LANES, BIAS_ENTRIES - 1);
            sum[i] = diagonal_sum(lines + place / BIAS_Z * LINE_BYTES, place % BIAS_Z);
        }
        NH_UNROLL for (int i = 0; i < AT_ONCE; i++) {
            int place = first + i * BIAS_LANES, entry = bias_entry(args, box, place);
            if (entry >= 0 && place < BIAS_ENTRIES) atomicAdd(table + entry, sum[i]);
        }
    }
}

/* The loop of the helpers: they copy bias boxes of coming tiles and, one tile later, add up their gradients. */
NH_DEVICE void lay_biases_and_differentiate(const nh_tiled_args &args, const layout &s) {
    unsigned m = 0;
    bool pending = false;
    bias_box last;
    clear_sums(args, s);
    lay_biases(args, s, [&](const bias_box &box, bool seen) {
        if (pending) add_tile(args, s, last, m++);
        pending = seen;
        last = box;
    });
    if (pending) add_tile(args, s, last, m);
}

} // namespace nh_wgmma90
