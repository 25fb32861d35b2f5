/* The halo of a block's work tiles as one that rolls along the first axis: work tiles follow each other there, their
 * halos overlap, and each position is fetched once.
 *
 * A slot is as many positions on the first axis as a work tile has rows there. The slots of a chain (the work tiles of
 * one head and dilation group that differ on the first axis alone) are numbered like its work tiles, those of the next
 * chain go on: number n is in place n % NH_SLOTS. No place is asked for again as long as a work tile uses it that is
 * not done: there are enough for NH_HELD - 1 work tiles anywhere, the host sees to it, and away from the ends of chains
 * for NH_HELD. A warp tile's box may begin before the end of that circle and go on at its start: the tables of its
 * columns' rows are there for every line at which this may happen.
 *
 * Where work tiles are planes of a volume (NH_PLANES) there are slots for NH_HELD work tiles of one chain; chains are
 * dealt out to blocks in turn, and fetches for a new one wait until enough of the one before is done.
 *
 * The axis is one that tensors cover whole and that is not periodic: others may be anything.
 *
 * NH_NEAR_HEADS heads side by side in memory are worked for at the same time, by blocks next to each
 * other, as their rows share lines of the L2. */
#pragma once

#include "small_layout.cuh"

#include "region.cuh"

NH_DEVICE int nh_least(int a, int b) {
    return a < b ? a : b;
}

/* Whether the axis is periodic. */
NH_DEVICE bool nh_axis_wraps(int axis) {
    return NH_PERIODIC >> axis & 1;
}

/* Columns of the row at a position of a dilation group, in the whole grid. */
NH_DEVICE nh_range nh_columns_of(const nh_cuda_axis &axis, int length, int position, bool wraps) {
    const int stride = NH_STRIDED ? (int)axis.stride : 1;
#if NH_PERIODIC
    if (wraps) return nh_seen_range(length, (int)axis.window, stride, 0, 1, NH_INVERSE, position);
#endif
    if (NH_INVERSE)
        return nh_inverse_range(length, (int)axis.window, stride, axis.causal, position);
    return nh_window_range(length, (int)axis.window, stride, axis.causal, position);
}

enum {
    NH_SLOT_LINES = NH_FIRST_AXIS == 0 ? NH_Q0 : NH_FIRST_AXIS == 1 ? NH_Q1 : NH_Q2,
    NH_ROLL_LINES = NH_SLOTS * NH_SLOT_LINES,
    /* lines of a box: how many of them come before the circle's end */
    NH_WRAPS = NH_SLOTS == 0 ? 1 : NH_FIRST_AXIS == 0 ? NH_K0 : NH_FIRST_AXIS == 1 ? NH_K1 : NH_K2
};

struct nh_roll {
    int place;      /* of the chain's slot 0 */
    nh_range fresh; /* slots that the work tile before did not need */
#if NH_PLANES
    /* a bit for each of the NH_HELD - 1 work tiles before, the oldest first, that must be done first, or past its
     * first plane */
    unsigned late, passing;
#else
    bool room;      /* for them, while none of the NH_HELD - 1 work tiles before is done; else while one less is not */
#endif
};

/* Lines of its box that a warp tile multiplies, of which it sees `seen`: columns come in pairs of 8. */
NH_DEVICE int nh_roll_touched(int seen) {
    const int lines = nh_axis_columns(NH_FIRST_AXIS), columns = NH_BOX / lines;
    const int pairs = (seen * columns + 15) / 16;
    return NH_STOPS ? nh_least((16 * (pairs > NH_LEAST_PAIRS ? pairs : NH_LEAST_PAIRS) + columns - 1) / columns, lines)
                    : lines;
}

/* Lines of the box of the warp tile at a position that are multiplied: they do not stick out of a chain's slots. */
NH_DEVICE nh_range nh_roll_box(const nh_tiled_args &args, int length, int position) {
    const nh_cuda_axis &axis = args.axis[NH_FIRST_AXIS];
    const int slots_end = args.tiling.tiles[NH_FIRST_AXIS] * NH_SLOT_LINES;
    const bool wraps = nh_axis_wraps(NH_FIRST_AXIS);
    int begin = nh_columns_of(axis, length, nh_least(position, length - 1), wraps).begin;
    int end =
        nh_columns_of(axis, length, nh_least(position + nh_axis_warp_tile(NH_FIRST_AXIS), length) - 1, wraps).end;
    if (NH_STOPS) {
        while (begin + nh_roll_touched(end - begin) > slots_end)
            begin--;
    } else {
        begin = nh_least(begin, slots_end - nh_roll_touched(0));
    }
    return {begin, begin + nh_roll_touched(end - begin)};
}

#if NH_PLANES

/* As below, where the halo's slots are planes. By one warp: lane 1 works out what the work tile before needs, lanes
 * from 2 on the NH_HELD - 1 work tiles before from the oldest, perhaps of the chain before, which is as long. */
NH_DEVICE nh_roll nh_roll_of(const nh_tiled_args &args, int length, int row, int number, bool first, int &begin) {
    const int lane = (int)(threadIdx.x % 32);
    const bool older = lane > 1 && lane <= NH_HELD;
    int own = older ? row + lane - 1 - NH_HELD : lane == 1 && row ? row - 1 : row, chain = 0;
    for (; own < 0; own += args.tiling.tiles[NH_FIRST_AXIS])
        chain -= args.tiling.tiles[NH_FIRST_AXIS];
    const nh_range box = nh_roll_box(args, length, own);
    begin = __shfl_sync(~0u, box.begin, 0);
    nh_roll roll;
    roll.place = (number - row) % NH_SLOTS;
    roll.fresh.end = __shfl_sync(~0u, box.end, 0);
    roll.fresh.begin = first || row == 0 ? begin : __shfl_sync(~0u, box.end, 1);
    const int lacking = roll.fresh.end - NH_SLOTS - (chain + box.begin);
    roll.late = __ballot_sync(~0u, older && (first || lacking > NH_PASSES)) >> 2;
    roll.passing = __ballot_sync(~0u, older && lacking == 1) >> 2;
    return roll;
}

#else

/* The roll of the work tile that begins at `row`, the number-th of all chains of a block's head; begin: of its halo. By
 * one warp: lane 0 works out what the work tile needs, lane 1 the one before, lane 2 the oldest that may not be done,
 * perhaps of the chain before. */
NH_DEVICE nh_roll nh_roll_of(const nh_tiled_args &args, int length, int row, int number, bool first, int &begin) {
    int oldest = row / NH_SLOT_LINES - (NH_HELD - 1), chain = 0;
    for (; oldest < 0; oldest += args.tiling.tiles[NH_FIRST_AXIS])
        chain -= args.tiling.tiles[NH_FIRST_AXIS];
    const int last = NH_SLOT_LINES - nh_axis_warp_tile(NH_FIRST_AXIS), lane = (int)(threadIdx.x % 32);
    const int own = lane == 2 ? oldest * NH_SLOT_LINES : lane == 1 && row ? row - NH_SLOT_LINES : row;
    const nh_range box = nh_roll_box(args, length, own);
    const int end = (nh_roll_box(args, length, own + last).end - 1) / NH_SLOT_LINES + 1;
    begin = __shfl_sync(~0u, box.begin, 0);
    nh_roll roll;
    roll.place = (number - row / NH_SLOT_LINES) % (NH_SLOTS + !NH_SLOTS);
    roll.fresh.end = __shfl_sync(~0u, end, 0);
    roll.fresh.begin = first || row == 0 ? begin / NH_SLOT_LINES : __shfl_sync(~0u, end, 1);
    const bool same_length = !NH_DILATED || args.axis[NH_FIRST_AXIS].length % args.axis[NH_FIRST_AXIS].dilation == 0;
    roll.room = same_length && chain + __shfl_sync(~0u, box.begin, 2) / NH_SLOT_LINES + NH_SLOTS >= roll.fresh.end;
    return roll;
}

#endif

/* The line of the circle that has a position on the first axis. */
NH_DEVICE int nh_roll_line(const nh_roll &roll, int position) {
    return (roll.place * NH_SLOT_LINES + position) % (NH_ROLL_LINES + !NH_SLOTS);
}
