/* What happens to the scores of a tile in registers: masks, and an online softmax that asks for no tile's largest score
 * but the first's. OUTS, which the kernel defines: sums that a thread holds. */
#pragma once
#include "fused90_walk.cuh"
#include "lanes.cuh"

/* Of a thread's two rows: what is added to scores, in powers of two, the sum of weights, and what both sums shrank by
 * in the last tile, if some row of the warp moved. */
struct rows {
    float shift[2], sum[2], shrink[2];
    bool set, moved; /* set: all rows of the warp have seen keys */
};

/* ---- masks ---- */

/* Where lines are short, masks along z cost four additions and no selection for every score: columns 8 apart share
 * their place in a line, and what the softmax subtracts is infinite for places that a row does not see. */
#define SHORT_LINES (NH_RUNS <= 4)
#define PLACES (SHORT_LINES ? NH_RUNS : 1)

/* Of a thread's two rows and the even and odd columns: bit i is set if run i of every line is seen. */
struct sighted {
    unsigned run[2][2];
};

/* Masks what rows do not see of a tile, but for what is left to the softmax. */
__device__ __forceinline__ void mask_lines(const nh_cuda_args &args, const walk &w, float *score, sighted &seen) {
    int c = 2 * (threadIdx.x & 3), start[3];
    seen.run[0][0] = seen.run[0][1] = seen.run[1][0] = seen.run[1][1] = ~0u;
    if (!SHORT_LINES || (NH_EXTRA && w.t >= w.window_tiles)) {
        mask_tile(args, w, score);
        return;
    }
    note_tile(args, w);
    start_of_tile(w, start);
    if (!seen_whole(w, 2)) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            seen.run[half][0] = nh_run_bits(w.sight[half], start, c);
            seen.run[half][1] = nh_run_bits(w.sight[half], start, c + 1);
        }
    }
    if (NH_WALK_ROWS == NH_WALK_Z || seen_whole(w, NH_FIRST_AXIS, 2)) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        unsigned lines = nh_line_bits(w.sight[half], start, nh_ones(NH_RUNS));
#pragma unroll
        for (int j = 0; j < NH_WALK_ROWS / 8; j++)
#pragma unroll
            for (int i = 4 * j + 2 * half; i < 4 * j + 2 * half + 2; i++)
                score[i] = lines & 1u << j ? score[i] : NH_MINUS_INFINITY;
    }
}

/* ---- softmax ---- */

/* Weights are 2^(scale score + shift). A row's shift makes the largest score of the first tile in which it sees a key
 * weigh 1; only when a tile's weights sum to more than MOST, in one lane, is the row shifted again, by a whole number,
 * so that no tile but the first asks for the largest score. Results differ by rounding only, and what a row's are
 * depends on no other row. A row whose scores grow by more than f32 holds, 2^120 or so in weight, is not finite. */
#define MOST 256.0f
/* The shift of a row that has seen no key: the weights of what it does not see are zero even so. */
#define UNSET 3e38f

/* Sets the shifts of rows that see their first keys in this tile. */
__device__ __forceinline__ void set_rows(const float *score, const sighted &seen, rows &r, float scale) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float most = NH_MINUS_INFINITY;
#pragma unroll
        for (int j = 0; j < NH_WALK_ROWS / 8; j++)
#pragma unroll
            for (int odd = 0; odd < 2; odd++)
                if (seen.run[half][odd] & 1u << j % PLACES) most = fmaxf(most, score[4 * j + 2 * half + odd]);
        most = nh_quad_max(most);
        if (r.shift[half] == UNSET && most > NH_MINUS_INFINITY) r.shift[half] = -scale * most;
    }
    r.set = !__any_sync(~0u, r.shift[0] == UNSET || r.shift[1] == UNSET);
}

/* Shifts rows whose weights of a tile, summed by some lane, exceed MOST: weights, sums, and by `shrink` what the row
 * has gathered. The tile's sum is made again, since weights may be finite where their sum is not. */
__device__ __forceinline__ void shift_rows(float *weight, float sum[2], rows &r) {
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float largest = nh_quad_max(sum[half]);
        int power = largest > MOST ? nh_min((__float_as_int(largest) >> 23) - 127, 126) : 0;
        float factor = __int_as_float((127 - power) << 23);
        r.shrink[half] = factor;
        r.shift[half] -= (float)power;
        r.sum[half] *= factor;
        sum[half] = 0;
#pragma unroll
        for (int j = 0; j < NH_WALK_ROWS / 8; j++) {
            float *w = weight + 4 * j + 2 * half;
            w[0] *= factor;
            w[1] *= factor;
            sum[half] += w[0] + w[1];
        }
    }
}

/* Online softmax: scores become weights, the rows' sums advance. */
__device__ __forceinline__ void soften(float *score, const sighted &seen, rows &r, float scale) {
    float shift[2][2][PLACES], sum[2] = {0, 0};
    if (!r.set) set_rows(score, seen, r, scale);
#pragma unroll
    for (int i = 0; i < 4 * PLACES; i++) {
        int half = i / 2 % 2, odd = i % 2, place = i / 4;
        shift[half][odd][place] = seen.run[half][odd] & 1u << place ? r.shift[half] : NH_MINUS_INFINITY;
    }
#pragma unroll
    for (int j = 0; j < NH_WALK_ROWS / 8; j++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float *s = score + 4 * j + 2 * half;
            s[0] = exp2_of(fmaf(s[0], scale, shift[half][0][j % PLACES]));
            s[1] = exp2_of(fmaf(s[1], scale, shift[half][1][j % PLACES]));
            sum[half] += s[0] + s[1];
        }
    r.moved = __any_sync(~0u, !(sum[0] <= MOST && sum[1] <= MOST));
    if (r.moved) shift_rows(score, sum, r);
    r.sum[0] += sum[0];
    r.sum[1] += sum[1];
}

/* The sums of the rows that moved. */
__device__ __forceinline__ void shrink(float *out, const rows &r) {
    if (!r.moved) return;
#pragma unroll
    for (int j = 0; j < OUTS / 4; j++) {
        out[4 * j + 0] *= r.shrink[0];
        out[4 * j + 1] *= r.shrink[0];
        out[4 * j + 2] *= r.shrink[1];
        out[4 * j + 3] *= r.shrink[1];
    }
}
