/* Masks and online softmax of scores in registers. Only a row's first tile with a key is searched for the largest. */
#pragma once
#include "fused90_mask_step.cuh"
#include "lanes.cuh"

namespace nh_wgmma90 {

/* Output sums of a thread. */
constexpr int OUTS = C.dim_v / 2;

/* The state of a thread's two rows: what is added to scores in base 2, the sum of weights, and the factor by which
 * earlier sums shrank in the last tile, which only counts if some row of the warp moved. */
struct rows {
    float shift[2], sum[2], shrink[2];
    bool set, moved; /* set: all rows of the warp have seen keys */
};

/* ---- masks ---- */

/* With WGMMA90_MASK_PLACES, masks along z cost four additions per place and no selection per score: columns 8 apart
 * have the same place in a line, each box has its own, and the softmax subtracts infinity where a row sees nothing. */
constexpr bool BY_PLACES = C.mask == WGMMA90_MASK_PLACES;
constexpr int PLACES = BY_PLACES ? C.loop_boxes * RUNS : 1;
__device__ constexpr int place_of(int group) {
    return BY_PLACES ? group / (BOX_ROWS / 8) * RUNS + group % RUNS : 0;
}
/* Whether a box is one line: places then mask lines, too. */
constexpr bool ONE_LINE = BOX_ROWS == 8 * RUNS;
/* Whether consecutive tiles have the same places, so that what rows see of them is computed once for a line of tiles.
 * For this, loops of blocks must be over whole lines. */
constexpr bool SAME_PLACES = LOOP_FIRST < T.run_axis && C.cluster == 1;

/* Where warps skip planes, what rows see of the lines of a plane is computed with the places. Lines that every row of
 * the work tile sees need no test: the halo begins where the window of the first row does, each further row's window
 * begins at most one line later, and none ends before the first row's. */
constexpr int WHOLE_BEGIN = C.own[1] - 1, WHOLE_END = C.window_y;
__device__ constexpr bool line_is_whole(int group) {
    return SKIPS_PLANES && !MASK_STEP && group / RUNS >= WHOLE_BEGIN && group / RUNS < WHOLE_END;
}
/* In 2-D key tiles are lines, and a warp has rows of two: a thread's are at different places of the stacking axis. */
constexpr bool ROWS_APART = C.rank == 2;

/* What a thread's two rows see of the even and odd columns at each place, as bits: of the tile, and of its line; and,
 * where warps skip planes, what each row sees of the lines of a plane. */
struct seen_bits {
    unsigned bits, line, plane[2];
};

NH_DEVICE bool sees(const seen_bits &seen, int half, int odd, int place) {
    return MASK_STEP || (seen.bits >> (2 * half + odd) * PLACES + place & 1u);
}

NH_DEVICE unsigned place_bits(const kv_loop &loop, const tile_boxes &start) {
    unsigned bits = 0;
    NH_UNROLL for (int half = 0; half < 2; half++)
        NH_UNROLL for (int odd = 0; odd < 2; odd++)
            NH_UNROLL for (int box = 0; box < C.loop_boxes; box++)
                bits |= nh_run_bits<T>(loop.visible[half], start.box[box], 2 * (threadIdx.x & 3) + odd)
                        << (2 * half + odd) * PLACES + box * RUNS;
    return bits;
}

NH_DEVICE unsigned line_bits(const kv_loop &loop, const tile_boxes &start, const seen_bits &seen, int half, int box) {
    return SKIPS_PLANES ? seen.plane[half] : nh_line_bits<T>(loop.visible[half], start.box[box], nh_ones(RUNS));
}

/* Sets what rows see of the places of a tile; first: whether it is the first of a line of tiles. */
NH_DEVICE void see_places(const kv_loop &loop, bool first, seen_bits &seen) {
    const tile_boxes start = starts_of(loop);
    if (first || !SAME_PLACES) seen.line = seen_whole(loop, T.run_axis) ? ~0u : place_bits(loop, start);
    NH_UNROLL for (int half = 0; SKIPS_PLANES && first && half < 2; half++) {
        nh_range y = nh_seen_of_tile<T>(loop.visible[half], 1, start.box[0][1]);
        seen.plane[half] = nh_ones(RUNS * y.end) & ~nh_ones(RUNS * y.begin);
    }
    seen.bits = seen.line;
}

/* Notes what rows see of a tile of short lines; first: whether it is the first of a line of tiles. False: the warp sees
 * nothing of it and computes no weights. */
NH_DEVICE bool see_tile(const nh_tiled_args &args, const kv_loop &loop, bool first, seen_bits &seen) {
    note_tile(args, loop);
    if (!MASK_STEP) see_places(loop, first, seen);
    const int extent[3] = {C.loop[0], C.loop[1], C.loop[2]}, a = C.stack, begin = loop.tile[a] * extent[a];
    return !SKIPS_PLANES || (begin + extent[a] > loop.visible[0].begin[a] && begin < loop.visible[ROWS_APART].end[a]);
}

/* Masks what rows do not see of a tile of short lines, except what the softmax masks. */
NH_DEVICE void mask_lines(const kv_loop &loop, float *score, seen_bits &seen) {
    if (MASK_STEP || LOOP_ROWS == C.loop[2]) return;
    if (!SKIPS_PLANES && seen_whole(loop, FIRST_AXIS, T.run_axis)) return;
    const tile_boxes start = starts_of(loop);
    NH_UNROLL for (int half = 0; half < 2; half++)
        NH_UNROLL for (int box = 0; box < C.loop_boxes; box++) {
            unsigned lines = line_bits(loop, start, seen, half, box);
            if (ONE_LINE) {
                unsigned unseen = ~lines & nh_ones(RUNS);
                seen.bits &= ~((unseen | unseen << PLACES) << 2 * half * PLACES + box * RUNS);
                continue;
            }
            NH_UNROLL for (int j = 0; j < BOX_ROWS / 8; j++)
                NH_UNROLL for (int odd = 0; odd < 2; odd++) {
                    if (line_is_whole(j)) continue;
                    float &s = score[4 * (box * (BOX_ROWS / 8) + j) + 2 * half + odd];
                    s = lines & 1u << j ? s : NH_MINUS_INFINITY;
                }
        }
}

/* Masks what rows do not see of any tile, except what the softmax masks. */
NH_DEVICE void mask_scores(const nh_tiled_args &args, const kv_loop &loop, bool first, float *score, seen_bits &seen) {
    if (!BY_PLACES || (C.extra && loop.t >= loop.window_tiles)) {
        seen.bits = ~0u;
        mask_tile(args, loop, score);
        return;
    }
    see_tile(args, loop, first, seen);
    mask_lines(loop, score, seen);
}

/* ---- softmax ---- */

/* Weights are 2^(scale score + shift). A row's shift makes the largest score of the first tile in which it sees a key
 * weigh 1. It changes only when a tile's weights in one lane sum up to more than MOST, and then by a whole number, so
 * that later tiles are not searched for their largest score. Results differ by rounding only, and do not depend on
 * other rows. If a row's scores grow by more than f32 can represent, about 2^120 in weight, it is not finite. */
constexpr float MOST = 256;
/* The shift of a row that has seen no key: the weights of keys that it does not see are zero even then. In 2-D a tile
 * may be masked by a step of the product: times a scale of at least 2^-64 (fused90.c), scores are below -1.8e19. */
constexpr float UNSET = MASK_STEP && C.rank == 2 ? 1e19f : 3e38f;
/* Groups of 8 columns of a tile. */
constexpr int GROUPS = LOOP_COLUMNS / 8;

/* Sets the shifts of rows that see their first keys in this tile. */
NH_DEVICE void set_rows(const float *score, const seen_bits &seen, rows &r, float scale) {
    NH_UNROLL for (int half = 0; half < 2; half++) {
        float most = NH_MINUS_INFINITY;
        NH_UNROLL for (int j = 0; j < GROUPS; j++)
            NH_UNROLL for (int odd = 0; odd < 2; odd++)
                if (sees(seen, half, odd, place_of(j))) most = fmaxf(most, score[4 * j + 2 * half + odd]);
        most = nh_quad_max(most);
        /* A row whose largest score is no more than this sees nothing of the tile. */
        const float unseen = MASK_STEP ? -1e38f : NH_MINUS_INFINITY;
        if (r.shift[half] == UNSET && most > unseen) r.shift[half] = -scale * most;
    }
    r.set = !__any_sync(~0u, r.shift[0] == UNSET || r.shift[1] == UNSET);
}

/* Shifts rows whose weights of a tile, summed by some lane, exceed MOST: rescales weights and sums, and sets `shrink`
 * for the outputs so far. The tile's sum is computed again, since weights may be finite where their sum is not. */
NH_DEVICE void shift_rows(float *weight, float sum[2], rows &r) {
    NH_UNROLL for (int half = 0; half < 2; half++) {
        float largest = nh_quad_max(sum[half]);
        int power = largest > MOST ? nh_min((__float_as_int(largest) >> 23) - 127, 126) : 0;
        float factor = __int_as_float((127 - power) << 23);
        r.shrink[half] = factor;
        r.shift[half] -= (float)power;
        r.sum[half] *= factor;
        sum[half] = 0;
        NH_UNROLL for (int j = 0; j < GROUPS; j++) {
            float *w = weight + 4 * j + 2 * half;
            w[0] *= factor;
            w[1] *= factor;
            sum[half] += w[0] + w[1];
        }
    }
}

/* The n-th group of 8 columns whose scores become weights: lines that are not masked first, while others are masked. */
__device__ constexpr int group_of(int n) {
    return SKIPS_PLANES && !MASK_STEP ? (n + WHOLE_BEGIN * RUNS) % GROUPS : n;
}

/* Turns the scores of groups [begin, end) into weights. ALL: every row of the warp sees all places. */
template <bool ALL>
NH_DEVICE void weigh(float *score, const seen_bits &seen, const rows &r, float scale, float sum[2], int begin = 0,
                     int end = GROUPS) {
    float shift[2][2][PLACES];
    NH_UNROLL for (int i = 0; i < 4 * PLACES; i++) {
        int half = i / 2 % 2, odd = i % 2, place = i / 4;
        shift[half][odd][place] = ALL || sees(seen, half, odd, place) ? r.shift[half] : NH_MINUS_INFINITY;
    }
    NH_UNROLL for (int n = begin; n < end; n++)
        NH_UNROLL for (int half = 0; half < 2; half++) {
            const int j = group_of(n);
            float *s = score + 4 * j + 2 * half;
            s[0] = exp2_of(fmaf(s[0], scale, shift[half][0][place_of(j)]));
            s[1] = exp2_of(fmaf(s[1], scale, shift[half][1][place_of(j)]));
            sum[half] += s[0] + s[1];
        }
}

/* Online softmax: turns scores into weights, and updates the rows' sums. */
NH_DEVICE void soften(float *score, const seen_bits &seen, rows &r, float scale) {
    float sum[2] = {0, 0};
    if (!r.set) set_rows(score, seen, r, scale);
    if (__all_sync(~0u, seen.bits == ~0u)) {
        weigh<true>(score, seen, r, scale, sum);
    } else {
        weigh<false>(score, seen, r, scale, sum);
    }
    r.moved = __any_sync(~0u, !(sum[0] <= MOST && sum[1] <= MOST));
    if (r.moved) shift_rows(score, sum, r);
    r.sum[0] += sum[0];
    r.sum[1] += sum[1];
}

/* Rescales the outputs of rows that moved. */
NH_DEVICE void shrink(float *out, const rows &r) {
    if (!r.moved) return;
    NH_UNROLL for (int j = 0; j < OUTS / 4; j++) {
        out[4 * j + 0] *= r.shrink[0];
        out[4 * j + 1] *= r.shrink[0];
        out[4 * j + 2] *= r.shrink[1];
        out[4 * j + 3] *= r.shrink[1];
    }
}

/* In kernels that skip planes the online softmax has two steps, soften_first() and soften_last(). Between them the
 * kernel waits for the values of the tile before, whose weights are in the registers that the second packs weights
 * into. Selections and packing then stand between exponentials, of which a scheduler issues one in 8 clocks, and take
 * hardly any time. The first is a third: less would wait for those values, more leave weights to pack. */
constexpr int GROUPS_FIRST = (GROUPS + 2) / 3;

NH_DEVICE void soften_first(const kv_loop &loop, float *score, seen_bits &seen, rows &r, float scale, float sum[2]) {
    if (!r.set) { /* masks apart, for the first tile alone: those below are to stand between exponentials */
        mask_lines(loop, score, seen);
        set_rows(score, seen, r, scale);
    }
    mask_lines(loop, score, seen);
    weigh<false>(score, seen, r, scale, sum, 0, GROUPS_FIRST);
}

NH_DEVICE void soften_last(float *score, float *out, unsigned *weight, const seen_bits &seen, rows &r, float scale,
                           float sum[2]) {
    weigh<false>(score, seen, r, scale, sum, GROUPS_FIRST);
    pack_weights(weight, score);
    r.moved = __any_sync(~0u, !(sum[0] <= MOST && sum[1] <= MOST));
    if (r.moved) {
        shift_rows(score, sum, r);
        shrink(out, r);
        pack_weights(weight, score);
    }
    r.sum[0] += sum[0];
    r.sum[1] += sum[1];
}

/* Weights of zero, by additions hidden from the compiler: it would make the zeros early, and for all warps. */
NH_DEVICE void clear_weights(unsigned *weight) {
    NH_UNROLL for (int i = 0; i < LOOP_COLUMNS / 4; i++)
        asm volatile("add.u32 %0, %1, %2;" : "=r"(weight[i]) : "r"(0), "r"(0));
}

} // namespace nh_wgmma90
