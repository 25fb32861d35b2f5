/* Small windows in f32 with keys and values (or queries and dO) in one place of shared memory, one after the other, so
 * that several blocks share a multiprocessor. A warp has one warp tile, whose rows it loads from memory into registers.
 * The scores of all columns stay in registers; everything else is done in parts, 32 elements of rows at a time, by
 * loops that are not unrolled: unrolled, boxes of a hundred columns would not fit the instruction cache. */
#pragma once

#include "small_masks.cuh"
#include "small_visibility.cuh"

namespace nh_small {

static_assert(C.pipeline == SMALL_TURNS && NH_DTYPE == NH_F32 && NH_CHUNKS == 1, "threads copy, scores fit registers");
static_assert(NH_WARP_TILES == C.warps, "one warp tile of a work tile per warp");

struct nh_shared {
    alignas(NH_STAGE_ALIGNMENT) char halo[NH_HALO_ROWS * nh_row_bytes(NH_WIDEST)];
    nh_tile_info info[2];
    nh_tables tables;
    nh_additive_masks additive_masks;
    nh_kinds kinds; /* by keys, like statistics of queries */
    uint4 statistics[NH_INVERSE ? NH_STATISTICS : 1];
};
static_assert(sizeof(nh_shared) == small_shared_bytes(&C), "the host's count of shared memory");

/* Locates the block's first work tile, and starts to copy its first tensor. Called by all, after the tables. */
template <int WIDTH> NH_DEVICE void nh_start(const nh_tiled_args &args, nh_shared &shared, int tensor, int warp) {
    __syncthreads();
    if (warp == 0) nh_work_tile_locate(args, shared.tables.digits, (int)NH_OWN_BLOCK, false, shared.info[0].work_tile);
    __syncthreads();
    nh_copy_halo<WIDTH>(args, shared.info[0].work_tile, tensor, 0, shared.halo);
}

/* Scores per block of 8 columns, rounded up to pairs. */
typedef float nh_scores[2 * NH_PAIRS][4];

/* Blocks of 8 columns whose score gradients are computed at a time: all would take as many registers as scores. */
enum { NH_PART = 4 };

/* Rows g and g + 8 in memory, from the lane's first unit; null for padding rows. */
struct nh_own_rows {
    const elem *row[2];
};

NH_DEVICE nh_own_rows nh_own_rows_of(const nh_tiled_args &args, const nh_work_tile &work_tile, int tensor,
                                     int warp_tile) {
    const int lane = (int)(nh_thread_again() % 32);
    nh_own_rows own;
    NH_UNROLL for (int half = 0; half < 2; half++) {
        const int row = lane / 4 + 8 * half;
        const elem *from = (const elem *)args.tensor[tensor].data + nh_row_offset(work_tile, tensor, warp_tile, row);
        own.row[half] = nh_row_exists(work_tile, warp_tile, row) ? from + 8 * (lane % 4) : nullptr;
    }
    return own;
}

/* Unit 2t + u % 2 of the row's (u / 2)-th eight units; zeros for a padding row. */
NH_DEVICE uint4 nh_own_unit(const nh_own_rows &own, int half, int u) {
    return own.row[half] ? *(const uint4 *)(own.row[half] + 32 * (u / 2) + 4 * (u % 2)) : make_uint4(0, 0, 0, 0);
}

/* scores += rows times `blocks` blocks of columns from block `first` on, which lie in shared memory. A lane reads the
 * same units of its column, g, as of its own rows: 2t and 2t + 1 of each 8, as products may run over elements in any
 * order. Loads of neighboring columns, whose rows differ in parity, then fall into different banks. */
template <int WIDTH>
NH_DEVICE void nh_multiply_own(float (*scores)[4], int first, int blocks, const nh_own_rows &own,
                               const nh_tile_info &info, const nh_tables &tables, const char *columns, int warp_tile) {
    const int g = (int)(nh_thread_again() % 32) / 4, t = (int)(nh_thread_again() % 4);
    const int box = nh_box_row(info.visibility, warp_tile), swizzle = nh_swizzle(WIDTH, box + g);
    unsigned start[2];
    int row[2][4 * NH_GATHERS];
    NH_UNROLL for (int i = 0; i < 2; i++) {
        nh_gather_rows(row[i], tables.columns, 0, 0, g + 8 * i);
        start[i] = nh_shared_address(columns) + box * nh_row_bytes(WIDTH) + (((2 * t + i) ^ swizzle) << 4);
    }
    NH_UNROLL_1 for (int d = 0; d < WIDTH / 32; d++)
        NH_UNROLL for (int i = 0; i < 2; i++) {
            const uint4 upper = nh_own_unit(own, 0, 2 * d + i), lower = nh_own_unit(own, 1, 2 * d + i);
            const unsigned step[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
            nh_left rows[2];
            NH_UNROLL for (int s = 0; s < 2; s++)
                nh_left_set(&rows[s], step[s]);
            NH_UNROLL for (int b = first; b < first + blocks && b < NH_BLOCKS; b++) {
                unsigned word[4];
                nh_right both;
                nh_load_words_at(word, start[i] + row[b % 2][b / 2] * nh_row_bytes(WIDTH) + 128 * d);
                nh_right_set(&both, word);
                NH_UNROLL for (int s = 0; s < 2; s++)
                    nh_multiply_half(scores[b - first], &rows[s], &both, s);
            }
        }
}

/* Masks the scores of blocks from `first` on. */
template <int COUNT>
NH_DEVICE void nh_add_mask_part(float (&scores)[COUNT][4], const unsigned (&places)[NH_STEPS_PLACES][4],
                                const nh_additive_masks &additive_masks, int first) {
    NH_UNROLL for (int b = first; b < first + COUNT && b < NH_BLOCKS; b += 2)
        nh_add_mask(scores + (b - first), places, additive_masks, b / 2, b + 1 < NH_BLOCKS);
}
NH_DEVICE void nh_add_mask_all(nh_scores &scores, const nh_tile_info &info, const nh_additive_masks &additive_masks,
                               int warp_tile) {
    unsigned places[NH_STEPS_PLACES][4];
    nh_visibility_additive_mask_rows(places, info.visibility, warp_tile);
    nh_add_mask_part(scores, places, additive_masks, 0);
}

/* The unit, of each 8, that lane g reads of columns for products that run over them. Lane t then has sums of units t
 * and 4 + (t ^ 1): the four lanes of a row store 64 contiguous bytes at a time, and loads fall into different banks. */
NH_DEVICE int nh_unit_of(int g) {
    return g % 2 ? 4 + (g / 2 ^ 1) : g / 2;
}

/* Multiplies weights with the columns in shared memory and with the factors of rows g and g + 8, and stores the
 * results, if they are asked for, 32 elements at a time. Sets which of the two rows need repair. */
template <int WIDTH>
NH_DEVICE void nh_sum_and_store(const nh_tiled_args &args, const nh_shared &shared, const nh_tile_info &info,
                                int tensor, int warp_tile, const nh_scores &weights, float2 factors,
                                bool (&repair)[2]) {
    const int lane = (int)(nh_thread_again() % 32);
    nh_across<32, WIDTH> start;
    nh_across_start(start, shared.halo, nh_box_row(info.visibility, warp_tile), nh_unit_of(lane / 4));
    elem *to[2];
    NH_UNROLL for (int half = 0; half < 2; half++) {
        const int row = lane / 4 + 8 * half;
        const bool stored = args.tensor[tensor].data && nh_row_exists(info.work_tile, warp_tile, row);
        to[half] = (elem *)args.tensor[tensor].data + nh_row_offset(info.work_tile, tensor, warp_tile, row);
        if (!stored) to[half] = nullptr;
    }
    NH_UNROLL_1 for (int d = 0; d < WIDTH / 32; d++) {
        float sums[4][4];
        nh_across_rows rows;
        nh_clear(sums);
        NH_UNROLL for (int p = 0; p < NH_PAIRS; p++) {
            const bool both = 2 * p + 1 < NH_BLOCKS;
            nh_weights operand;
            nh_gather_across(rows, shared.tables.columns, 0, 0, p);
            nh_pack_weights(operand, weights + 2 * p, both);
            nh_add_columns(sums, operand, start, nh_rows_of_pair(rows, p), both);
        }
        repair[0] |= nh_needs_repair(sums, 0);
        repair[1] |= nh_needs_repair(sums, 1);
        NH_UNROLL for (int i = 0; i < 4; i++) {
            const float factor = i / 2 ? factors.y : factors.x;
            if (to[i / 2])
                *(float4 *)(to[i / 2] + 32 * d + 4 * nh_unit_of(lane % 4 * 2 + i % 2)) =
                    make_float4(sums[0][i] * factor, sums[1][i] * factor, sums[2][i] * factor, sums[3][i] * factor);
        }
        start.start[0] += 128;
        start.start[1] += 128;
    }
}

} // namespace nh_small
