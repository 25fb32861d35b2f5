/* The statistics of a query that launches by keys need, in 16 bytes: -LSE / scale and -delta, each as a sum of three
 * bf16. The tensor cores add them to the products that they shift, without registers or additions of their own: a
 * column's summands are a column of the second operand of a product of depth 8; the first operand has ones at those of
 * one of the two. They alternate, as packed conversions make them from a query's pair of numbers. */
#pragma once

#include "small.cuh"

namespace nh_small {

/* The two numbers of which a row of 16 bytes has the parts. */
struct nh_statistics {
    float shift, delta; /* -LSE / scale, -delta */
};

/* A query that sees no column has LSE = -infinity; with 0 instead, its masked scores have weights of 0. */
NH_DEVICE float nh_seen_lse(float lse) {
    return NH_REGIONS && lse == NH_MINUS_INFINITY ? 0.f : lse;
}

NH_DEVICE unsigned nh_bf16_pair(float low, float high) {
    unsigned both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
    return both;
}
NH_DEVICE nh_statistics nh_statistics_part(unsigned both) {
    return {__uint_as_float(both << 16), __uint_as_float(both & 0xffff0000u)};
}

/* Each part is the rest so far, rounded to bf16: three parts have all bits of a float. */
NH_DEVICE uint4 nh_statistics_split(nh_statistics rest) {
    unsigned part[3];
    NH_UNROLL for (int i = 0; i < 3; i++) {
        part[i] = nh_bf16_pair(rest.shift, rest.delta);
        const nh_statistics taken = nh_statistics_part(part[i]);
        rest = {rest.shift - taken.shift, rest.delta - taken.delta};
    }
    return make_uint4(part[0], part[1], part[2], 0u);
}

NH_DEVICE nh_statistics nh_statistics_sum(uint4 row) {
    const nh_statistics high = nh_statistics_part(row.x), middle = nh_statistics_part(row.y),
                        low = nh_statistics_part(row.z);
    return {high.shift + (middle.shift + low.shift), high.delta + (middle.delta + low.delta)};
}

/* Loads the statistics of two blocks of 8 columns as second operands. at: shared memory address of the lane's column of
 * the 16; lanes from 16 on give those of lanes 0 to 15. */
NH_DEVICE void nh_statistics_load(unsigned (&columns)[2], unsigned at) {
    nh_load_two_matrices_at(columns, at);
}

/* Starts an accumulator with -delta of rows g and g + 8, so that no addition is needed later. */
NH_DEVICE void nh_start_at_deltas(float (&d_weights)[4], const uint4 (&rows)[2]) {
    const unsigned ones = 0x3f800000; /* a bf16 one in odd places */
    const int t = (int)(threadIdx.x % 4);
    unsigned part[2];
    NH_UNROLL for (int half = 0; half < 2; half++)
        part[half] = t == 0 ? rows[half].x : t == 1 ? rows[half].y : t == 2 ? rows[half].z : 0u;
    nh_mma_bf16_shallow(d_weights, part, ones);
}

/* Adds -LSE / scale of a block's columns to its scores; with SMALL_KINDS that product adds masks of up to 8 places. */
NH_DEVICE void nh_add_shifts(float (&scores)[4], unsigned columns, uint2 places, unsigned additive_masks) {
    if (C.mask == SMALL_KINDS) {
        const unsigned rows[4] = {places.x, places.y, 0x3f80, 0x3f80}, both[2] = {additive_masks, columns};
        nh_mma_bf16(scores, rows, both);
    } else {
        const unsigned ones[2] = {0x3f80, 0x3f80}; /* a bf16 one in even places */
        nh_mma_bf16_shallow(scores, ones, columns);
    }
}
/* Adds -delta of a block's columns to the gradients of its weights. */
NH_DEVICE void nh_add_deltas(float (&d_weights)[4], unsigned columns) {
    const unsigned ones[2] = {0x3f800000, 0x3f800000};
    nh_mma_bf16_shallow(d_weights, ones, columns);
}

} // namespace nh_small
