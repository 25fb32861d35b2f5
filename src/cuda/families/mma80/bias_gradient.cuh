/* Gradient of the relative bias beside dQ, without atomics. A block keeps to one head, takes every n-th of its query
 * tiles, and adds up a table of its own in memory. For each key tile the warps write dS to shared memory; then each
 * thread owns some of the distances from query to key that occur in the tile, and adds up the pairs at those.
 * bias_sum.cu adds up the tables. All orders are fixed: results are bit-equal in every run. */
#pragma once

#include "tile_scores.cuh"

namespace nh_mma80 {

enum {
    NH_BIAS_GRADIENT = mma80_sums_bias(&C),
    NH_BIAS_PITCH = mma80_bias_pitch(&C),
    NH_DISTANCES0 = C.rows[0] + C.columns[0] - 1,
    NH_DISTANCES1 = C.rows[1] + C.columns[1] - 1,
    NH_DISTANCES2 = C.rows[2] + C.columns[2] - 1
};

/* Without a bias, this takes nearly no memory. */
struct nh_bias_tile {
    float d_s[mma80_bias_tile_floats(&C)];
};

NH_DEVICE bool nh_bias_gradient_wanted(const nh_tiled_args &args) {
    return NH_BIAS_GRADIENT && args.tensor[NH_D_BIAS].data;
}

/* ---- which tiles ---- */

/* The number of blocks per head, and the number of this one among them. */
NH_DEVICE unsigned nh_bias_shares(const nh_tiled_args &args) {
    return NH_OWN_BLOCKS / (unsigned)args.heads;
}
NH_DEVICE unsigned nh_bias_share(const nh_tiled_args &args) {
    return NH_OWN_BLOCK / (unsigned)args.heads;
}
NH_DEVICE unsigned nh_bias_head(const nh_tiled_args &args) {
    return NH_OWN_BLOCK % (unsigned)args.heads;
}

/* The number of query tiles of one head over the whole batch. */
NH_DEVICE unsigned nh_bias_rounds(const nh_tiled_args &args) {
    return (unsigned)args.tiling.work_tiles;
}

/* The number of a head's tile among those of all heads, as nh_block_locate needs it. */
NH_DEVICE unsigned nh_bias_work_tile(const nh_tiled_args &args, unsigned round) {
    unsigned per_entry = nh_bias_rounds(args) / (unsigned)args.batch;
    unsigned entry_head = round / per_entry * (unsigned)args.heads + nh_bias_head(args);
    return entry_head * per_entry + round % per_entry;
}

/* ---- sums ---- */

NH_DEVICE float *nh_bias_table(const nh_tiled_args &args) {
    const nh_cuda_tensor &tables = args.tensor[NH_D_S];
    return (float *)tables.data + nh_bias_head(args) * tables.head + nh_bias_share(args) * nh_bias_entries(args);
}

NH_DEVICE void nh_bias_table_clear(const nh_tiled_args &args) {
    if (!nh_bias_gradient_wanted(args)) return;
    float *table = nh_bias_table(args);
    for (long long i = threadIdx.x; i < nh_bias_entries(args); i += NH_THREADS)
        table[i] = 0.f;
}

NH_DEVICE void nh_bias_tile_store(const nh_scores &d_s, int first_row, nh_bias_tile &tile) {
    int lane = (int)threadIdx.x % 32;
    float *to = tile.d_s + (first_row + lane / 4) * NH_BIAS_PITCH + 2 * (lane % 4);
    NH_UNROLL for (int r = 0; r < 2 * NH_BLOCKS; r++)
        NH_UNROLL for (int n = 0; n < NH_COLUMNS / 8; n++)
            *(float2 *)(to + 8 * r * NH_BIAS_PITCH + 8 * n) =
                make_float2(d_s[r / 2][n][r % 2 * 2], d_s[r / 2][n][r % 2 * 2 + 1]);
}

/* The rows along one axis whose column at a distance lies in the tile; padding rows are left out. */
NH_DEVICE nh_range nh_rows_at(const nh_block &block, int axis, int distance) {
    int rows = block.length[axis] - block.origin[axis], last = nh_tile_k(axis) - distance;
    rows = rows < nh_tile_q(axis) ? rows : nh_tile_q(axis);
    return {distance < 0 ? -distance : 0, last < rows ? last : rows};
}

NH_DEVICE float nh_bias_sum(const nh_block &block, const int distance[3], const nh_bias_tile &tile) {
    nh_range x = nh_rows_at(block, 0, distance[0]), y = nh_rows_at(block, 1, distance[1]),
             z = nh_rows_at(block, 2, distance[2]);
    int shift = (distance[0] * C.columns[1] + distance[1]) * C.columns[2] + distance[2];
    float sum = 0.f;
    for (int i = x.begin; i < x.end; i++)
        for (int j = y.begin; j < y.end; j++)
            for (int k = z.begin; k < z.end; k++) {
                int row = (i * C.rows[1] + j) * C.rows[2] + k;
                int column = (i * C.columns[1] + j) * C.columns[2] + k + shift;
                sum += tile.d_s[row * NH_BIAS_PITCH + column];
            }
    return sum;
}

/* Called by the whole block. Another barrier must come before the next store. */
NH_DEVICE void nh_bias_tile_add(const nh_tiled_args &args, const nh_block &block, const nh_cursor &cursor,
                                const nh_bias_tile &tile) {
    float *table = nh_bias_table(args);
    __syncthreads();
    for (int i = (int)threadIdx.x; i < NH_DISTANCES0 * NH_DISTANCES1 * NH_DISTANCES2; i += NH_THREADS) {
        const int distance[3] = {i / (NH_DISTANCES2 * NH_DISTANCES1) - C.rows[0] + 1,
                                 i / NH_DISTANCES2 % NH_DISTANCES1 - C.rows[1] + 1, i % NH_DISTANCES2 - C.rows[2] + 1};
        long long entry = 0;
        bool inside = true;
        NH_UNROLL for (int a = 0; a < 3; a++) {
            long long extent = 2 * args.axis[a].window - 1;
            long long at = cursor.at[a] - block.origin[a] + distance[a] + args.axis[a].window - 1;
            inside = inside && at >= 0 && at < extent;
            entry = entry * extent + at;
        }
        if (inside) table[entry] += nh_bias_sum(block, distance, tile);
    }
}

} // namespace nh_mma80
