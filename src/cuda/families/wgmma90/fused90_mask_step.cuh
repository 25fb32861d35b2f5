/* Masks that one more step of the scores' product makes (WGMMA90_MASK_PRODUCT). Key tiles are then whole lines of a
 * halo: in 3-D planes of them, or halves of planes, in 2-D two or four lines. Lines may have any length, where masks by
 * bits need multiples of 8 keys: 4 rows with a window of 11 have lines of 14, 8 rows with a window of 13 lines of 20.
 *
 *     S = Q K^T + A B^T        64 x 64 x columns + 64 x 16 x columns, if the head dim is 64
 *
 * A and B are bf16, also in kernels of f16. A row of A says what masks this query, and B which keys that hides: B is 0
 * for a key that stays and else LEAST, which is below every score that is finite. Along an axis the windows of N
 * adjacent rows begin at up to N places. A has a one in the row's place, where B hides the keys outside the window from
 * there.
 *     3-D, warpgroup tiles of 4 x 4 x 4 rows: places along y, and places along z.
 *     2-D, warpgroup tiles of 8 x 8 rows: places along z. Along y, the axis of the loop, A has a one for each line of
 *     the tile that the row does not see, and there B hides the keys of this line.
 * B depends on extents alone, so a block makes it once. A warp skips a plane, or a tile of lines, of which its rows see
 * nothing (SKIPS_PLANES). Scores that are not finite stay so, even of keys that a row does not see: such rows are
 * repaired. */
#pragma once
#include "fused90_skipping.cuh"

namespace nh_wgmma90 {

constexpr bool MASK_STEP = C.mask == WGMMA90_MASK_PRODUCT;
constexpr int PLACES_ALONG = C.rank == 3 ? 4 : 8;
static_assert(!MASK_STEP || (WARPGROUP_Y == PLACES_ALONG && WARPGROUP_Z == PLACES_ALONG && C.loop[0] == 1 &&
                             C.loop_boxes == 1 && SKIPS_PLANES),
              "warpgroup tiles have 4 x 4 or, in 2-D, 8 x 8 rows in y and z, and key tiles are lines of one plane");
static_assert(!MASK_STEP || C.rank == 3 || C.loop[1] <= 8, "there are elements for 8 lines");

/* In kernels without such masks these are unused, and the functions below do nothing. */
struct mask_step {
    unsigned start[4];         /* A: the thread's elements of its two rows, first elements 0 to 7, then 8 to 15 */
    unsigned long long column; /* B for the first tile of a plane */
};

constexpr unsigned BF16_ONE = 0x3f80, BF16_LEAST = 0xff7f; /* 1 and -3.39e38 */

/* B for a column of the n-th tile of a plane: one of its 16 elements. */
NH_DEVICE unsigned mask_element(int column, int n, int element) {
    const bool along_z = element >= PLACES_ALONG;
    const int begin = element % PLACES_ALONG, line = column / C.loop[2];
    if (element >= 2 * PLACES_ALONG || (C.rank == 2 && n > 0)) return 0;
    if (C.rank == 2 && !along_z) return line == element ? BF16_LEAST : 0;
    const int end = begin + (along_z ? C.window_z : C.window_y);
    const int key = along_z ? column % C.loop[2] : n * C.loop[1] + line;
    return column < LOOP_ROWS && key >= begin && key < end ? 0 : BF16_LEAST;
}

/* All threads of a block lay B into shared memory, swizzled. */
NH_DEVICE void lay_masks(unsigned masks) {
    const int words = WGMMA90_MASK_ROW_BYTES / 4;
    for (int i = (int)threadIdx.x; i < LOOP_COLUMNS * words; i += THREADS) {
        const int column = i / words, word = i % words, element = word % 8 * 2;
        const unsigned pair =
            mask_element(column, word / 8, element) | mask_element(column, word / 8, element + 1) << 16;
        const unsigned at = column * WGMMA90_MASK_ROW_BYTES + ((word / 4 ^ (column >> 1 & 3)) << 4) + word % 4 * 4;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(masks + at), "r"(pair) : "memory");
    }
}

/* Clears the rows behind the keys of a tile, in all stages. */
NH_DEVICE void clear_rest(unsigned tiles, int rows, int dim) {
    clear_last_rows(tiles, C.stages * chunks(dim), rows, rows - LOOP_ROWS, chunk_bytes(dim));
}

NH_DEVICE void mask_step_begin(mask_step &masks, unsigned columns) {
    if (MASK_STEP) masks.column = nh_descriptor(columns, WGMMA90_MASK_ROW_BYTES, 16);
}

/* Two elements of A, ones where told. */
NH_DEVICE unsigned mask_ones(bool low, bool high) {
    return (low ? BF16_ONE : 0) | (high ? BF16_ONE << 16 : 0);
}

/* Sets A for a work tile; in 2-D all but what set_lines() sets. */
NH_DEVICE void set_starts(mask_step &masks, const kv_loop &loop) {
    const int element = 2 * (threadIdx.x & 3);
    NH_UNROLL for (int half = 0; MASK_STEP && half < 2; half++) {
        const int y = loop.visible[half].begin[1], z = loop.visible[half].begin[2];
        if (C.rank == 3) {
            const int in_z = z + PLACES_ALONG;
            masks.start[half] = mask_ones(y == element || in_z == element, y == element + 1 || in_z == element + 1);
            masks.start[2 + half] = 0;
        } else {
            masks.start[2 + half] = mask_ones(z == element, z == element + 1);
        }
    }
}

/* Sets the part of A that changes from tile to tile: in 2-D the lines of the loop's tile that rows do not see. */
NH_DEVICE void set_lines(mask_step &masks, const kv_loop &loop) {
    const int line = loop.tile[1] * C.loop[1] + 2 * (threadIdx.x & 3);
    NH_UNROLL for (int half = 0; MASK_STEP && C.rank == 2 && half < 2; half++) {
        const int begin = loop.visible[half].begin[1], end = loop.visible[half].end[1];
        masks.start[half] = mask_ones(line < begin || line >= end, line + 1 < begin || line + 1 >= end);
    }
}

/* S = A B^T for the loop's tile. The product of queries and keys that follows adds to it. */
NH_DEVICE void issue_masks(float *score, mask_step &masks, const kv_loop &loop) {
    const int tile_of_plane = C.rank == 3 ? loop.tile[1] : 0;
    if (MASK_STEP) nh_wgmma_held_bf16<LOOP_COLUMNS>(score, masks.start, masks.column + 2 * tile_of_plane);
}

} // namespace nh_wgmma90
