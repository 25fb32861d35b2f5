/* Operands of cuda.short's products, by where they lie in shared memory, and storing sums. */
#pragma once

#include "short.cuh"

namespace nh_short {

/* Sets, for each step, the address of a lane's elements of row 0. */
template <nh_order ORDER, int WIDTH, int STEPS>
NH_DEVICE void nh_columns_start(unsigned (&start)[STEPS], const char *rows) {
    const unsigned first =
        nh_shared_address(rows) + nh_unit_offset(WIDTH, nh_lane_column<ORDER>(), nh_lane_half<ORDER>());
    NH_UNROLL for (int s = 0; s < STEPS; s++)
        start[s] = first + 32 * s;
}

/* Loads 16 rows as the first operand. If registers do not hold them, they must stay in shared memory. */
template <int ROOM, int WIDTH>
NH_DEVICE void nh_load_rows(nh_row_operand<WIDTH, true> &operand, const char *rows, int first) {
    const int lane = (int)(threadIdx.x % 32);
    const char *row = rows + nh_unit_offset(ROOM, first + lane % 16, lane / 16);
    NH_UNROLL for (int s = 0; s < nh_units(WIDTH) / 2; s++) {
        unsigned word[4];
        nh_load_matrices(word, row + 32 * s);
        nh_keep_step(operand, s, word);
    }
}
template <int ROOM, int WIDTH>
NH_DEVICE void nh_load_rows(nh_row_operand<WIDTH, false> &operand, const char *rows, int first) {
    operand = {nh_shared_address(rows) + nh_unit_offset(ROOM, first + (int)(threadIdx.x % 16), 0), 0};
}

#if NH_DTYPE == NH_F32

template <int WIDTH> NH_DEVICE void nh_across_start(nh_across<WIDTH> &across, const char *rows) {
    const int lane = (int)(threadIdx.x % 32);
    NH_UNROLL for (int i = 0; i < 2; i++)
        across.start[i] = nh_shared_address(rows) + nh_unit_offset(WIDTH, lane % 4 * 2 + i, lane / 4);
}

NH_DEVICE nh_pair_rows nh_rows_of_pair(int row) {
    return {{row, row, row + 8, row + 8}};
}

/* The first element of a row of which the lane holds sums. */
NH_DEVICE int nh_lane_elements(void) {
    return (int)(threadIdx.x % 4) * 8;
}

/* Stores the lane's sums of row g or, with half 1, g + 8, if it exists. to: the first of the lane's 8 of 32. */
template <int WIDTH, int SUMS>
NH_DEVICE void nh_store_row(elem *to, bool exists, const float (&sums)[SUMS][4], int half, float factor) {
    NH_UNROLL for (int u = 0; u < SUMS; u += 4)
        NH_UNROLL for (int i = 0; i < 2; i++) {
            const int c = 2 * half + i;
            if (exists && 8 * u + nh_lane_elements() + 4 * i < WIDTH)
                *(float4 *)(to + 8 * u + 4 * i) = make_float4(sums[u][c] * factor, sums[u + 1][c] * factor,
                                                              sums[u + 2][c] * factor, sums[u + 3][c] * factor);
        }
}

/* The same to a row in shared memory. */
template <int SUMS> NH_DEVICE void nh_lay_row(char *row, const float (&sums)[SUMS][4], int half, float factor) {
    nh_store_row<8 * SUMS>((elem *)row + nh_lane_elements(), true, sums, half, factor);
}

#else

template <int WIDTH> NH_DEVICE void nh_across_start(nh_across<WIDTH> &across, const char *rows) {
    nh_columns_start<NH_TRANSPOSED, WIDTH>(across.start, rows);
}

NH_DEVICE nh_pair_rows nh_rows_of_pair(int row) {
    return {{row}};
}

/* Writes the lane's sums of row g or, with half 1, g + 8 to a row in shared memory. */
template <int SUMS> NH_DEVICE void nh_lay_row(char *row, const float (&sums)[SUMS][4], int half, float factor) {
    row += threadIdx.x % 4 * 4;
    NH_UNROLL for (int u = 0; u < SUMS; u++)
        *(unsigned *)(row + 16 * u) = nh_pack(sums[u][2 * half] * factor, sums[u][2 * half + 1] * factor);
}

/* The first element that the lane stores. Four lanes hold two neighboring elements each of every unit of 16 bytes.
 * Before they store, neighbors swap, so that each stores 8 bytes and the four of them 32. */
NH_DEVICE int nh_lane_elements(void) {
    return (int)(threadIdx.x % 2 * 8 + threadIdx.x % 4 / 2 * 4);
}

/* Stores the lane's sums of row g or, with half 1, g + 8, if it exists. to: the lane's first elements. */
template <int WIDTH, int SUMS>
NH_DEVICE void nh_store_row(elem *to, bool exists, const float (&sums)[SUMS][4], int half, float factor) {
    const bool odd = threadIdx.x % 2;
    NH_UNROLL for (int u = 0; u < SUMS; u += 2) {
        const unsigned first = nh_pack(sums[u][2 * half] * factor, sums[u][2 * half + 1] * factor);
        const unsigned second = nh_pack(sums[u + 1][2 * half] * factor, sums[u + 1][2 * half + 1] * factor);
        const unsigned other = __shfl_xor_sync(~0u, odd ? first : second, 1);
        if (exists && 8 * (u + odd) < WIDTH) *(uint2 *)(to + 8 * u) = odd ? uint2{other, second} : uint2{first, other};
    }
}

#endif

} // namespace nh_short
