/* Small windows in f32 whose tensors of columns take turns in one place of shared memory, so that several blocks share
 * a multiprocessor: products of a warp's one subtile, whose rows come from memory into registers, with what lies there.
 * Scores of all its columns stay in registers from turn to turn. */
#pragma once

#include "small_sight.cuh"

static_assert(NH_DTYPE == NH_F32 && NH_STAGES == 0 && NH_CHUNKS == 1, "threads copy, scores fit registers");
static_assert(NH_SUBTILES == NH_WARPS, "one subtile of an item per warp");

/* By block of 8 columns, rounded up to pairs. */
typedef float nh_scores[2 * NH_PAIRS][4];

/* Rows g and g + 8: lane t has units 2t and 2t + 1 of each 8. */
template <int WIDTH> struct nh_own_rows {
    uint4 unit[2][WIDTH / 16];
};

/* Zeros for rows that do not exist. */
template <int WIDTH>
NH_DEVICE void nh_own_load(nh_own_rows<WIDTH> &own, const nh_cuda_args &args, const nh_item &item, int slot,
                           int subtile) {
    const int lane = (int)(threadIdx.x % 32);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = lane / 4 + 8 * half;
        const bool exists = nh_row_exists(item, subtile, row);
        const elem *from = (const elem *)args.tensor[slot].data + nh_row_offset(item, slot, subtile, row);
#pragma unroll
        for (int u = 0; u < WIDTH / 16; u++) {
            own.unit[half][u] = make_uint4(0, 0, 0, 0);
            if (exists) own.unit[half][u] = *(const uint4 *)(from + 32 * (u / 2) + 4 * (lane % 4 * 2 + u % 2));
        }
    }
}

/* scores += rows times the columns that lie in shared memory. A lane takes the same units of a column, g, as of its own
 * rows: loads of neighboring columns, whose rows differ in parity, then fall into different banks. Which elements of
 * both a step of a product runs over is free. */
template <int WIDTH>
NH_DEVICE void nh_multiply_own(nh_scores &scores, const nh_own_rows<WIDTH> &own, const nh_scene &scene,
                               const nh_tables &tables, const char *columns, int subtile) {
    const int g = (int)(nh_thread_again() % 32) / 4, t = (int)(nh_thread_again() % 4);
    const int first = nh_box_row(scene.sight, subtile), swizzle = nh_swizzle(WIDTH, first + g);
    unsigned start[2];
    int row[2][4 * NH_GATHERS];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        nh_gather_rows(row[i], tables.columns, 0, 0, g + 8 * i);
        start[i] = nh_shared_address(columns) + first * nh_row_bytes(WIDTH) + (((2 * t + i) ^ swizzle) << 4);
    }
#pragma unroll
    for (int u = 0; u < WIDTH / 16; u++) {
        const uint4 upper = own.unit[0][u], lower = own.unit[1][u];
        const unsigned step[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
        nh_left rows[2];
#pragma unroll
        for (int s = 0; s < 2; s++)
            nh_left_set(&rows[s], step[s]);
#pragma unroll
        for (int b = 0; b < NH_BLOCKS; b++) {
            unsigned word[4];
            nh_right both;
            nh_load_words_at(word, start[u % 2] + row[b % 2][b / 2] * nh_row_bytes(WIDTH) + 128 * (u / 2));
            nh_right_set(&both, word);
#pragma unroll
            for (int s = 0; s < 2; s++)
                nh_multiply_half(scores[b], &rows[s], &both, s);
        }
    }
}

/* Adds penalties of columns that are not seen. */
NH_DEVICE void nh_penalize_all(nh_scores &scores, const nh_scene &scene, const nh_penalties &penalties, int subtile) {
    unsigned places[NH_STEPS_PLACES][4];
    nh_sight_penalty_rows(places, scene.sight, subtile);
#pragma unroll
    for (int p = 0; p < NH_PAIRS; p++)
        nh_penalize(scores + 2 * p, places, penalties, p, 2 * p + 1 < NH_BLOCKS);
}

/* Lane g of those that load columns for products that run over them takes this one of each 8 units: lane t then has
 * sums of units t and 4 + (t ^ 1), the four lanes of a row those of 64 bytes in a row at a time, and loads fall into
 * different banks. */
NH_DEVICE int nh_unit_of(int g) {
    return g % 2 ? 4 + (g / 2 ^ 1) : g / 2;
}

/* sums += weights times the columns that lie in shared memory. */
template <int WIDTH, int SUMS>
NH_DEVICE void nh_add_all(float (&sums)[SUMS][4], const nh_scores &weights, const nh_scene &scene,
                          const nh_tables &tables, const char *columns, int subtile) {
    nh_across<WIDTH> start;
    nh_across_rows rows;
    nh_across_start(start, columns, nh_box_row(scene.sight, subtile), nh_unit_of((int)(nh_thread_again() % 32) / 4));
#pragma unroll
    for (int p = 0; p < NH_PAIRS; p++) {
        const bool both = 2 * p + 1 < NH_BLOCKS;
        nh_weights operand;
        nh_gather_across(rows, tables.columns, 0, 0, p);
        nh_pack_weights(operand, weights + 2 * p, both);
        nh_add_columns(sums, operand, start, nh_rows_of_pair(rows, p), both);
    }
}

/* Rows of sums times factors of rows g and g + 8 to memory. */
template <int SUMS>
NH_DEVICE void nh_store_own(const nh_cuda_args &args, const nh_item &item, int slot, int subtile,
                            const float (&sums)[SUMS][4], float2 factors) {
    const int lane = (int)(nh_thread_again() % 32);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int row = lane / 4 + 8 * half;
        const float factor = half ? factors.y : factors.x;
        elem *to = (elem *)args.tensor[slot].data + nh_row_offset(item, slot, subtile, row);
        if (!nh_row_exists(item, subtile, row)) continue;
#pragma unroll
        for (int i = 0; i < 2 * (SUMS / 4); i++) {
            const int d = i / 2, sum = 2 * half + i % 2;
            *(float4 *)(to + 32 * d + 4 * nh_unit_of(lane % 4 * 2 + i % 2)) =
                make_float4(sums[4 * d][sum] * factor, sums[4 * d + 1][sum] * factor, sums[4 * d + 2][sum] * factor,
                            sums[4 * d + 3][sum] * factor);
        }
    }
}
