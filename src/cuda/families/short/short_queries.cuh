/* Forward pass: 16 consecutive rows as queries, what they see, and the sums of their weights. Fragments are as in
 * mma.cuh: a thread has elements of rows g and g + 8. */
#pragma once

#include "short_products.cuh"

namespace nh_short {

/* What rows g and g + 8 see, the range of rows that the 16 queries see, and the rows that all of them see. */
struct nh_queries {
    nh_visibility visibility[2];
    int begin, end, common_begin, common_end;
};

/* own_row: the row, in the work tile, of query lane % 16. */
NH_DEVICE void nh_queries_locate(nh_queries &queries, const nh_short_args &args, const nh_extents &extents,
                                 const nh_group *groups, int own_row) {
    const int lane = (int)(threadIdx.x % 32);
    const nh_visibility own = nh_visibility_of(args, extents, groups, own_row);
    NH_UNROLL for (int half = 0; half < 2; half++) {
        queries.visibility[half].begin = __shfl_sync(~0u, own.begin, lane / 4 + 8 * half);
        queries.visibility[half].last = __shfl_sync(~0u, own.last, lane / 4 + 8 * half);
    }
    queries.begin = __reduce_min_sync(~0u, own.first_row) / 16 * 16;
    queries.end = __reduce_max_sync(~0u, own.last_row) + 1;
    queries.common_begin = C.contiguous ? __reduce_max_sync(~0u, own.first_row) : 0;
    queries.common_end = C.contiguous ? __reduce_min_sync(~0u, own.last_row) + 1 : 0;
}

/* Turns products with 32 rows from `row` on, or 16 unless `both`, into scores: times the scale, less the reference, and
 * minus infinity for rows that are not seen. */
NH_DEVICE void nh_weigh_scores(const nh_queries &queries, const unsigned *columns, int row, bool both, float scale,
                               const float (&reference)[2], float (&scores)[4][4]) {
    const int blocks = both ? 4 : 2;
    NH_UNROLL for (int i = 0; i < 4 * blocks; i++) {
        float &score = scores[i / 4][i % 4];
        score = fmaf(score, scale, -reference[i / 2 % 2]);
    }
    if (row >= queries.common_begin && row + 8 * blocks <= queries.common_end) return;
    NH_UNROLL for (int block = 0; block < blocks; block++) {
        const uint2 two = *(const uint2 *)(columns + row + 8 * block + threadIdx.x % 4 * 2);
        NH_UNROLL for (int i = 0; i < 4; i++)
            if (!nh_sees(queries.visibility[i / 2], i % 2 ? two.y : two.x)) scores[block][i] = NH_MINUS_INFINITY;
    }
}

/* Turns scores into weights, and adds them to the sums. */
NH_DEVICE void nh_weigh(float (&scores)[4][4], bool both, nh_state &state) {
    NH_UNROLL for (int i = 0; i < (both ? 16 : 8); i++) {
        float &score = scores[i / 4][i % 4];
        score = nh_exp2(score);
        state.sum[i / 2 % 2] += score;
    }
}

NH_DEVICE void nh_raise_tops(float (&top)[2], const float (&scores)[4][4], bool both) {
    NH_UNROLL for (int i = 0; i < (both ? 16 : 8); i++)
        top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i / 4][i % 4]);
}

/* Whether this thread's part of a row needs no repair. */
template <int SUMS> NH_DEVICE bool nh_held(const nh_state &state, const float (&output)[SUMS][4], int half) {
    return nh_row_held(state, nh_largest(output, half), half);
}

/* The LSE of row lane % 16, given those of each thread's rows g and g + 8. */
NH_DEVICE float nh_lse_of_lane(float2 lse) {
    const int lane = (int)(threadIdx.x % 32);
    const float upper = __shfl_sync(~0u, lse.x, lane % 8 * 4), lower = __shfl_sync(~0u, lse.y, lane % 8 * 4);
    return lane % 16 < 8 ? upper : lower;
}

} // namespace nh_short
