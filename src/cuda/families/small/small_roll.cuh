/* The halo of a block's work tiles as a ring that rolls along the first axis: work tiles follow each other there, their
 * halos overlap, and each position is fetched once.
 *
 * A slot has as many positions on the first axis as a work tile has rows there. A chain is the work tiles of one head
 * and dilation group that differ on the first axis alone. Its slots are numbered like its work tiles, and the numbers
 * go on with the next chain: slot n is at place n % NH_SLOTS. A place is not overwritten while an unfinished work tile
 * uses it. The host provides enough slots for NH_HELD - 1 work tiles anywhere and, away from the ends of chains, for
 * NH_HELD. A warp tile's box may go on at the start of the ring: there is a table of its columns' rows for each line at
 * which this may happen.
 *
 * Where work tiles are planes of a volume (NH_PLANES) there are slots for NH_HELD work tiles of one chain; chains are
 * dealt out to blocks in turn, and fetches for a new one wait until enough of the one before is done.
 *
 * With NH_REGIONS a chain's slots begin NH_LINES_BEFORE positions before the first row that tensors have, and there are
 * NH_SLOTS_AROUND more of them than work tiles (either may be negative): boxes never reach beyond them. Slots beyond
 * what tensors have are zeros; on a periodic axis, which work tiles divide, they are those at the other end.
 *
 * Adjacent blocks compute NH_NEAR_HEADS heads at the same time that are adjacent in memory, as their rows share lines
 * of the L2. */
#pragma once

#include "small_region.cuh"

enum {
    NH_SLOT_LINES = NH_FIRST_AXIS == 0 ? NH_Q0 : NH_FIRST_AXIS == 1 ? NH_Q1 : NH_Q2,
    NH_ROLL_LINES = NH_SLOTS * NH_SLOT_LINES,
#if !NH_REGIONS
    NH_LINES_BEFORE = 0,
    NH_SLOTS_AROUND = 0,
#endif
    /* the number of ways in which the lines of a box may be split by the ring's end */
    NH_WRAPS = NH_SLOTS == 0 ? 1 : NH_FIRST_AXIS == 0 ? NH_K0 : NH_FIRST_AXIS == 1 ? NH_K1 : NH_K2,
    /* ways for each of which there are tables: with NH_PLANE_CHUNKS the ring's end is between chunks */
    NH_TABLE_WRAPS = NH_PLANE_CHUNKS ? 1 : NH_WRAPS
};

struct nh_roll {
    int place;      /* place of the chain's slot 0 */
    nh_range fresh; /* slots that the work tile before did not need, and that are fetched */
#if NH_PLANES
    /* a bit for each of the NH_HELD - 1 work tiles before, the oldest first: whether it must be done, or past its first
     * plane, before the fetch */
    unsigned late, passing;
#else
    bool room;      /* for `fresh` while NH_HELD - 1 work tiles before are unfinished; else one must be done */
#endif
};

/* The lines of its box that a warp tile multiplies if its rows see `seen` lines: columns come in pairs of 8. At least
 * one. */
NH_DEVICE int nh_roll_touched(int seen) {
    if (NH_REGIONS && seen < 1) seen = 1;
    if (NH_PLANE_CHUNKS) return seen;
    const int lines = nh_axis_columns(NH_FIRST_AXIS), columns = NH_BOX / lines;
    const int pairs = (seen * columns + 15) / 16;
    return NH_STOPS ? nh_least((16 * (pairs > NH_LEAST_PAIRS ? pairs : NH_LEAST_PAIRS) + columns - 1) / columns, lines)
                    : lines;
}

/* The position at which a chain's slots begin. */
NH_DEVICE int nh_roll_base(const nh_group &group) {
    return nh_group_first(group) - NH_LINES_BEFORE;
}

/* The lines of the box of the warp tile at a position that are multiplied. They never reach beyond a chain's slots.
 * length: the position after the group's last row. */
NH_DEVICE nh_range nh_roll_box(const nh_tiled_args &args, const nh_group &group, int length, int position) {
    const nh_cuda_axis &axis = args.axis[NH_FIRST_AXIS];
    const bool wraps = nh_axis_wraps(NH_FIRST_AXIS);
    const int slots_end = (NH_REGIONS ? nh_roll_base(group) : 0) +
                          (args.tiling.tiles[NH_FIRST_AXIS] + NH_SLOTS_AROUND) * NH_SLOT_LINES;
    int begin = nh_columns_of(axis, group, nh_least(position, length - 1), wraps).begin;
    int end =
        nh_columns_of(axis, group, nh_least(position + nh_axis_warp_tile(NH_FIRST_AXIS), length) - 1, wraps).end;
    if (wraps) return {begin, begin + nh_roll_touched(end - begin)};
    if (NH_REGIONS || NH_STOPS) {
        while (begin + nh_roll_touched(end - begin) > slots_end)
            begin--;
    } else {
        begin = nh_least(begin, slots_end - nh_roll_touched(0));
    }
    return {begin, begin + nh_roll_touched(end - begin)};
}

/* The place of slot 0 in the chain whose tile-th work tile is the block's number-th. */
NH_DEVICE int nh_roll_place(const nh_tiled_args &args, int number, int tile) {
    const int tiles = args.tiling.tiles[NH_FIRST_AXIS], slots = NH_SLOTS + !NH_SLOTS;
    if (!NH_REGIONS) return (number - tile) % slots;
    return (number - tile) / tiles % slots * ((tiles + NH_SLOTS_AROUND) % slots) % slots;
}

#if NH_PLANES

/* The same as below if slots are planes. Called by one warp: lane 1 computes what the work tile before needs, and lanes
 * from 2 on what the NH_HELD - 1 work tiles before need, from the oldest, which may be in the chain before, which is as
 * long. */
NH_DEVICE nh_roll nh_roll_of(const nh_tiled_args &args, const nh_group &group, int length, int row, int number,
                             bool first, int &begin) {
    const int lane = (int)(threadIdx.x % 32), tile = row - nh_group_first(group);
    const bool older = lane > 1 && lane <= NH_HELD;
    int own = older ? tile + lane - 1 - NH_HELD : lane == 1 && tile ? tile - 1 : tile, chain = 0;
    for (; own < 0; own += args.tiling.tiles[NH_FIRST_AXIS])
        chain -= args.tiling.tiles[NH_FIRST_AXIS] + NH_SLOTS_AROUND;
    nh_range box = nh_roll_box(args, group, length, own + nh_group_first(group));
    begin = __shfl_sync(~0u, box.begin, 0);
    box = {box.begin - nh_roll_base(group), box.end - nh_roll_base(group)};
    nh_roll roll;
    roll.place = nh_roll_place(args, number, tile);
    roll.fresh.end = __shfl_sync(~0u, box.end, 0);
    roll.fresh.begin = first || tile == 0 ? begin - nh_roll_base(group) : __shfl_sync(~0u, box.end, 1);
    const int lacking = roll.fresh.end - NH_SLOTS - (chain + box.begin);
    roll.late = __ballot_sync(~0u, older && (first || lacking > NH_PASSES)) >> 2;
    roll.passing = __ballot_sync(~0u, older && lacking == 1) >> 2;
    return roll;
}

#else

/* The roll of the work tile that begins at `row`, the number-th of all chains of a block's head. Sets `begin`, the
 * start of its halo. Called by one warp: lane 0 computes what the work tile needs, lane 1 what the one before needs,
 * and lane 2 what the oldest one needs that may be unfinished, perhaps one of the chain before. */
NH_DEVICE nh_roll nh_roll_of(const nh_tiled_args &args, const nh_group &group, int length, int row, int number,
                             bool first, int &begin) {
    const int before = row - nh_group_first(group), base = nh_roll_base(group);
    int oldest = before / NH_SLOT_LINES - (NH_HELD - 1), chain = 0;
    for (; oldest < 0; oldest += args.tiling.tiles[NH_FIRST_AXIS])
        chain -= args.tiling.tiles[NH_FIRST_AXIS] + NH_SLOTS_AROUND;
    const int last = NH_SLOT_LINES - nh_axis_warp_tile(NH_FIRST_AXIS), lane = (int)(threadIdx.x % 32);
    const int own = lane == 2             ? oldest * NH_SLOT_LINES + nh_group_first(group)
                    : lane == 1 && before ? row - NH_SLOT_LINES
                                          : row;
    const nh_range box = nh_roll_box(args, group, length, own);
    const int end = (nh_roll_box(args, group, length, own + last).end - base - 1) / NH_SLOT_LINES + 1;
    begin = __shfl_sync(~0u, box.begin, 0);
    nh_roll roll;
    roll.place = nh_roll_place(args, number, before / NH_SLOT_LINES);
    roll.fresh.end = __shfl_sync(~0u, end, 0);
    roll.fresh.begin = first || before == 0 ? (begin - base) / NH_SLOT_LINES : __shfl_sync(~0u, end, 1);
    const bool same_length = !NH_DILATED || args.axis[NH_FIRST_AXIS].length % args.axis[NH_FIRST_AXIS].dilation == 0;
    const int oldest_begin = (__shfl_sync(~0u, box.begin, 2) - base) / NH_SLOT_LINES;
    roll.room = same_length && chain + oldest_begin + NH_SLOTS >= roll.fresh.end;
    return roll;
}

#endif

/* The line of the ring at which a position, less nh_roll_base, of the first axis is. */
NH_DEVICE int nh_roll_line(const nh_roll &roll, int position) {
    return (roll.place * NH_SLOT_LINES + position) % (NH_ROLL_LINES + !NH_SLOTS);
}
