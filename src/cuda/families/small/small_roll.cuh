/* The halo of a block's work tiles as a ring that rolls along the first axis: work tiles follow each other there, their
 * halos overlap, and each position is fetched once.
 *
 * A slot has as many positions on the first axis as a work tile has rows there. A sweep is the work tiles of one head
 * and dilation group that differ on the first axis alone. Its slots are numbered like its work tiles, and the numbers
 * go on with the next sweep: slot n is the ring's n % C.slots. It is not overwritten while an unfinished work tile uses
 * it. The host provides enough slots for C.held - 1 work tiles anywhere and, away from the ends of sweeps, for C.held.
 * A warp tile's box may go on at the start of the ring: there is a table of its columns' rows for each line at which
 * this may happen. Where work tiles are planes of a volume (NH_PLANES) there are slots for C.held work tiles of one
 * sweep; sweeps are dealt out to blocks in turn, and fetches for a new one wait until enough of the one before is done.
 * In kernels for groups, which serve sweeps of any length, slots are enough for any one work tile and, away from the
 * ends of sweeps, for those in flight; elsewhere fetches wait for earlier work tiles.
 *
 * With NH_REGIONS a sweep's slots begin C.lines_before positions before the first row that tensors have, and there are
 * C.slots_around more of them than work tiles (either may be negative): boxes never reach beyond them. Slots beyond
 * what tensors have are zeros; on a periodic axis, which work tiles divide, they are those at the other end. Adjacent
 * blocks compute C.near_heads heads, adjacent in memory, at the same time, as their rows share lines of the L2. */
#pragma once

#include "small_layout.cuh"

namespace nh_small {

enum {
    NH_SLOT_LINES = nh_axis_rows(NH_FIRST_AXIS),
    NH_ROLL_LINES = C.slots * NH_SLOT_LINES,
    NH_WRAPS = small_wraps(&C),
    NH_TABLE_WRAPS = small_table_wraps(&C)
};

/* How a work tile's halo rolls on. */
struct nh_line_roll {
    int first;      /* index in the ring of the sweep's slot 0 */
    nh_range fresh; /* slots that the work tile before did not need, and that are fetched */
    bool room;      /* for `fresh` while C.held - 1 work tiles before are unfinished; else one must be done */
};
struct nh_plane_roll {
    int first;
    nh_range fresh;
    /* a bit for each of the C.held - 1 work tiles before, the oldest first: must it be done, or past its first plane */
    unsigned late, passing;
};
/* In a kernel for groups (C.grouped), whose slots are enough for any one work tile. */
struct nh_group_roll {
    int first;
    nh_range fresh;
    unsigned late; /* a bit for each of the C.held - 1 work tiles before, the oldest first: must it be done */
};
enum { NH_GROUP_ROLLS = C.grouped && C.slots > 0 };
typedef nh_choose<NH_PLANES, nh_plane_roll, nh_choose<NH_GROUP_ROLLS, nh_group_roll, nh_line_roll>::type>::type nh_roll;

/* The lines of its box, at least one, that a warp tile multiplies if its rows see `seen`: columns come in 16s. */
NH_DEVICE int nh_roll_touched(int seen) {
    if (NH_REGIONS && seen < 1) seen = 1;
    if (C.plane_chunks) return seen;
    const int lines = nh_axis_columns(NH_FIRST_AXIS);
    return NH_STOPS ? small_touched_lines(seen, NH_BOX / lines, lines, C.least_pairs) : lines;
}

/* The position at which a sweep's slots begin. */
NH_DEVICE int nh_roll_base(const nh_group &group) {
    return nh_group_first(group) - C.lines_before;
}

/* The lines of the box of the warp tile at a position that are multiplied. They never reach beyond a sweep's slots.
 * length: the position after the group's last row. */
NH_DEVICE nh_range nh_roll_box(const nh_tiled_args &args, const nh_group &group, int length, int position) {
    const nh_cuda_axis &axis = args.axis[NH_FIRST_AXIS];
    const bool wraps = nh_axis_wraps(NH_FIRST_AXIS);
    const int slots_end = (NH_REGIONS ? nh_roll_base(group) : 0) +
                          (args.tiling.tiles[NH_FIRST_AXIS] + C.slots_around) * NH_SLOT_LINES;
    int begin = nh_columns_of(axis, group, nh_least(position, length - 1), wraps).begin;
    int end = nh_columns_of(axis, group, nh_least(position + nh_axis_warp_tile(NH_FIRST_AXIS), length) - 1, wraps).end;
    if (wraps) return {begin, begin + nh_roll_touched(end - begin)};
    if (NH_REGIONS || NH_STOPS) {
        while (begin + nh_roll_touched(end - begin) > slots_end)
            begin--;
    } else {
        begin = nh_least(begin, slots_end - nh_roll_touched(0));
    }
    return {begin, begin + nh_roll_touched(end - begin)};
}

/* The index in the ring of slot 0 of the sweep whose tile-th work tile is the block's number-th. */
NH_DEVICE int nh_roll_first(const nh_tiled_args &args, int number, int tile) {
    const int tiles = args.tiling.tiles[NH_FIRST_AXIS], slots = C.slots + !C.slots;
    if (!NH_REGIONS) return (number - tile) % slots;
    return (number - tile) / tiles % slots * ((tiles + C.slots_around) % slots) % slots;
}

/* The roll of the work tile that begins at `row`, the number-th of all sweeps of a block's head. Sets `begin`, the
 * start of its halo. Called by one warp: lane 0 computes what the work tile needs, lane 1 what the one before needs,
 * and lane 2 what the oldest one needs that may be unfinished, perhaps one of the sweep before. */
NH_DEVICE nh_line_roll nh_roll_of_lines(const nh_tiled_args &args, const nh_group &group, int length, int row,
                                        int number, bool first, int &begin) {
    const int before = row - nh_group_first(group), base = nh_roll_base(group);
    int oldest = before / NH_SLOT_LINES - (C.held - 1), sweep = 0;
    for (; oldest < 0; oldest += args.tiling.tiles[NH_FIRST_AXIS])
        sweep -= args.tiling.tiles[NH_FIRST_AXIS] + C.slots_around;
    const int last = NH_SLOT_LINES - nh_axis_warp_tile(NH_FIRST_AXIS), lane = (int)(threadIdx.x % 32);
    const int own = lane == 2             ? oldest * NH_SLOT_LINES + nh_group_first(group)
                    : lane == 1 && before ? row - NH_SLOT_LINES
                                          : row;
    const nh_range box = nh_roll_box(args, group, length, own);
    const int end = (nh_roll_box(args, group, length, own + last).end - base - 1) / NH_SLOT_LINES + 1;
    begin = __shfl_sync(~0u, box.begin, 0);
    nh_line_roll roll;
    roll.first = nh_roll_first(args, number, before / NH_SLOT_LINES);
    roll.fresh.end = __shfl_sync(~0u, end, 0);
    roll.fresh.begin = first || before == 0 ? (begin - base) / NH_SLOT_LINES : __shfl_sync(~0u, end, 1);
    const bool same_length = !C.dilated || args.axis[NH_FIRST_AXIS].length % args.axis[NH_FIRST_AXIS].dilation == 0;
    const int oldest_begin = (__shfl_sync(~0u, box.begin, 2) - base) / NH_SLOT_LINES;
    roll.room = same_length && sweep + oldest_begin + C.slots >= roll.fresh.end;
    return roll;
}

/* The same if slots are planes: lane 1 computes what the work tile before needs, and lanes from 2 on what the C.held -
 * 1 before need, from the oldest, which may be in the sweep before, which is as long. */
NH_DEVICE nh_plane_roll nh_roll_of_planes(const nh_tiled_args &args, const nh_group &group, int length, int row,
                                          int number, bool first, int &begin) {
    const int lane = (int)(threadIdx.x % 32), tile = row - nh_group_first(group);
    const bool older = lane > 1 && lane <= C.held;
    int own = older ? tile + lane - 1 - C.held : lane == 1 && tile ? tile - 1 : tile, sweep = 0;
    for (; own < 0; own += args.tiling.tiles[NH_FIRST_AXIS])
        sweep -= args.tiling.tiles[NH_FIRST_AXIS] + C.slots_around;
    nh_range box = nh_roll_box(args, group, length, own + nh_group_first(group));
    begin = __shfl_sync(~0u, box.begin, 0);
    box = {box.begin - nh_roll_base(group), box.end - nh_roll_base(group)};
    nh_plane_roll roll;
    roll.first = nh_roll_first(args, number, tile);
    roll.fresh.end = __shfl_sync(~0u, box.end, 0);
    roll.fresh.begin = first || tile == 0 ? begin - nh_roll_base(group) : __shfl_sync(~0u, box.end, 1);
    const int lacking = roll.fresh.end - C.slots - (sweep + box.begin);
    roll.late = __ballot_sync(~0u, older && (first || lacking > NH_PASSES)) >> 2;
    roll.passing = __ballot_sync(~0u, older && lacking == 1) >> 2;
    return roll;
}

/* The same in a kernel for groups. Lane 1 computes what the work tile before needs, and lanes from 2 on what the C.held
 * - 1 before need, from the oldest, which may be in the sweep before, which is as long. */
NH_DEVICE nh_group_roll nh_roll_of_group(const nh_tiled_args &args, const nh_group &group, int length, int row,
                                         int number, bool first, int &begin) {
    const int lane = (int)(threadIdx.x % 32), tile = row / NH_SLOT_LINES;
    const int last = NH_SLOT_LINES - nh_axis_warp_tile(NH_FIRST_AXIS);
    const bool older = lane > 1 && lane <= C.held;
    int own = older ? tile + lane - 1 - C.held : lane == 1 && tile ? tile - 1 : tile, sweep = 0;
    for (; own < 0; own += args.tiling.tiles[NH_FIRST_AXIS])
        sweep -= args.tiling.tiles[NH_FIRST_AXIS];
    const nh_range box = nh_roll_box(args, group, length, own * NH_SLOT_LINES);
    const int end = (nh_roll_box(args, group, length, own * NH_SLOT_LINES + last).end - 1) / NH_SLOT_LINES + 1;
    begin = __shfl_sync(~0u, box.begin, 0);
    nh_group_roll roll;
    roll.first = nh_roll_first(args, number, tile);
    const int before = __shfl_sync(~0u, end, 1);
    roll.fresh.begin = first || tile == 0 ? begin / NH_SLOT_LINES : before;
    roll.fresh.end = __shfl_sync(~0u, end, 0);
    if (roll.fresh.end < roll.fresh.begin) roll.fresh.end = roll.fresh.begin;
    roll.late = __ballot_sync(~0u, older && sweep + box.begin / NH_SLOT_LINES + C.slots < roll.fresh.end) >> 2;
    return roll;
}

NH_DEVICE auto nh_roll_of(const nh_tiled_args &args, const nh_group &group, int length, int row, int number, bool first,
                          int &begin) {
    if constexpr (NH_PLANES)
        return nh_roll_of_planes(args, group, length, row, number, first, begin);
    else if constexpr (NH_GROUP_ROLLS)
        return nh_roll_of_group(args, group, length, row, number, first, begin);
    else
        return nh_roll_of_lines(args, group, length, row, number, first, begin);
}

/* The line of the ring at which a position, less nh_roll_base, of the first axis is. */
NH_DEVICE int nh_roll_line(const nh_roll &roll, int position) {
    return (roll.first * NH_SLOT_LINES + position) % (NH_ROLL_LINES + !C.slots);
}

} // namespace nh_small
