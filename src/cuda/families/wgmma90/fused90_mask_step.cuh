/* Masks that one more step of the scores' product makes (NH_MASK_STEP). Key tiles are then planes, or halves of planes,
 * of whole lines of a halo. Lines may have any length, where masks by bits need multiples of 8 keys: a window of 11 has
 * lines of 14, a window of 7 lines of 10.
 *
 *     S = Q K^T + A B^T        64 x 64 x columns + 64 x 16 x columns, if the head dim is 64
 *
 * Along an axis the windows of a warpgroup's 4 x 4 rows begin at up to 4 places. A has ones in a row's place along y
 * and in its place along z. B has, for each column and place, 0 if a window that begins there has the column's key, and
 * else LEAST, which is below every score that is finite. It depends on the windows' extents alone, so a block makes it
 * once. Both are bf16, also in kernels of f16. Along x a warp sees planes as wholes (SKIPS_PLANES).
 *
 * A score that is not finite stays so, though a row may not see its key: such rows are repaired. */
#pragma once
#include "fused90_skipping.cuh"

/* B has 64 bytes for each column: 16 elements, of which places take 8, for each of at most two tiles of a plane. */
#define MASK_ROW_BYTES 64
#define MASK_BYTES (NH_MASK_STEP * LOOP_COLUMNS * MASK_ROW_BYTES)

struct mask_step {
#if NH_MASK_STEP
    unsigned start[4];         /* A: the thread's elements of its two rows */
    unsigned long long column; /* B for the first tile of a plane */
#endif
};

#if NH_MASK_STEP
#define PLACES_ALONG 4
#if WARPGROUP_Y != PLACES_ALONG || WARPGROUP_Z != PLACES_ALONG || NH_LOOP_X != 1 || NH_TILE_BOXES > 1
#error "warpgroup tiles have 4 x 4 rows in y and z, and key tiles are lines of one plane"
#endif
#define BF16_ONE 0x3f80u
#define BF16_LEAST 0xff7fu /* -3.39e38 */

/* B for a column of the n-th tile of a plane: one of its 16 elements. */
__device__ __forceinline__ unsigned mask_element(int column, int n, int element) {
    const bool along_z = element >= PLACES_ALONG;
    const int begin = element % PLACES_ALONG, end = begin + (along_z ? NH_WINDOW_Z : NH_WINDOW_Y);
    const int key = along_z ? column % NH_LOOP_Z : n * NH_LOOP_Y + column / NH_LOOP_Z;
    if (element >= 2 * PLACES_ALONG) return 0;
    return column < NH_LOOP_ROWS && key >= begin && key < end ? 0 : BF16_LEAST;
}

/* All threads of a block lay B into shared memory, swizzled. */
__device__ __forceinline__ void lay_masks(unsigned masks) {
    const int words = MASK_ROW_BYTES / 4;
    for (int i = (int)threadIdx.x; i < LOOP_COLUMNS * words; i += THREADS) {
        const int column = i / words, word = i % words, element = word % 8 * 2;
        const unsigned pair =
            mask_element(column, word / 8, element) | mask_element(column, word / 8, element + 1) << 16;
        const unsigned at = column * MASK_ROW_BYTES + ((word / 4 ^ (column >> 1 & 3)) << 4) + word % 4 * 4;
        asm volatile("st.shared.u32 [%0], %1;" ::"r"(masks + at), "r"(pair) : "memory");
    }
}

/* Clears the rows behind the keys of a tile, in all stages. */
__device__ __forceinline__ void clear_rest(unsigned tiles, int rows, int dim) {
    clear_last_rows(tiles, NH_STAGES * CHUNKS(dim), rows, rows - NH_LOOP_ROWS, ROW_BYTES(dim));
}
#endif

__device__ __forceinline__ void mask_step_begin(mask_step &masks, unsigned columns) {
#if NH_MASK_STEP
    masks.column = nh_descriptor(columns, MASK_ROW_BYTES, 16);
#endif
}

/* Sets A for a work tile. */
__device__ __forceinline__ void set_starts(mask_step &masks, const kv_loop &loop) {
#if NH_MASK_STEP
    const int element = 2 * (threadIdx.x & 3);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const int y = loop.visible[half].begin[1], z = loop.visible[half].begin[2] + PLACES_ALONG;
        masks.start[half] = (y == element || z == element ? BF16_ONE : 0) |
                            (y == element + 1 || z == element + 1 ? BF16_ONE << 16 : 0);
        masks.start[2 + half] = 0;
    }
#endif
}

/* S = A B^T for the loop's tile. The product of queries and keys that follows adds to it. */
__device__ __forceinline__ void issue_masks(float *score, mask_step &masks, const kv_loop &loop) {
#if NH_MASK_STEP
    NH_WGMMA_HELD_OF("f32.bf16.bf16", LOOP_N16, NH_LOOP_N, score, masks.start, masks.column + 2 * loop.tile[1], 0, 0);
#endif
}
