/* Halos that go on in the next lap of a periodic axis, where the copy engine fetches boxes, which cannot go around
 * (nh_fetch_lines in small_boxes.cuh is for where it can). Boxes have zeros beyond a lap's ends; once they have landed,
 * the warp that asked for them replaces these by the columns at the axis' other end, which it reads in the meantime.
 * Along a first axis on which halos roll there is no seam, as work tiles divide it (small_roll.cuh). */
#pragma once

#include "small.cuh"
#include "tma.cuh"

namespace nh_small {

/* The barrier, and its phase, that tell that the boxes of a halo with a seam have landed. */
struct nh_boxes_landed {
    unsigned barrier, parity;
};

/* Whether a halo may have a seam on the axis. */
NH_DEVICE constexpr bool nh_axis_seams(int axis) {
    return (NH_PERIODIC >> axis & 1) && !(C.slots && axis == NH_FIRST_AXIS);
}

/* The columns of a halo, or of its fetched part: `columns` along each axis, of which `inside` ones, from `low` on, are
 * in the lap in which the boxes lie. The others are numbered: first those outside that lap on the first axis, then the
 * remaining ones outside it on the second axis, then on the last. */
struct nh_seam {
    int columns[3], low[3], inside[3];
    int begin[4]; /* first number of those outside on each axis; at the end their count */
};

NH_DEVICE nh_seam nh_seam_of(const auto &work_tile) {
    nh_seam seam = {{1, 1, 1}, {0, 0, 0}, {1, 1, 1}, {0, 0, 0, 0}};
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        const nh_halo_span &span = work_tile.span[a];
        seam.columns[a] = seam.inside[a] = nh_axis_halo(a);
        if (C.slots && a == NH_FIRST_AXIS)
            seam.columns[a] = seam.inside[a] = (work_tile.roll.fresh.end - work_tile.roll.fresh.begin) * NH_SLOT_LINES;
        if (!nh_axis_seams(a)) continue;
        seam.columns[a] = span.count;
        seam.low[a] = span.boxed < 0 ? nh_least(span.count, -span.boxed) : 0;
        seam.inside[a] = nh_least(span.count, work_tile.covered[a].grid - span.boxed) - seam.low[a];
    }
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int count = seam.columns[a] - seam.inside[a];
        NH_UNROLL for (int b = NH_FIRST_AXIS; b < 3; b++)
            if (b != a) count *= b < a ? seam.inside[b] : seam.columns[b];
        seam.begin[a + 1] = seam.begin[a] + (nh_axis_seams(a) ? count : 0);
    }
    return seam;
}

/* A column of the halo: the box of its slot, its position there, and how far tensors have it from the halo's first. */
struct nh_seam_column {
    int box, within[3], at[3];
    bool there; /* tensors have it */
};

/* The column with this number among those that boxes lack. */
NH_DEVICE nh_seam_column nh_seam_column_of(const auto &work_tile, const nh_seam &seam, int number) {
    nh_seam_column column = {0, {0, 0, 0}, {0, 0, 0}, true};
    int outside = NH_FIRST_AXIS;
    NH_UNROLL for (int a = NH_FIRST_AXIS + 1; a < 3; a++)
        if (nh_axis_seams(a) && number >= seam.begin[a]) outside = a;
    unsigned rest = (unsigned)(number - seam.begin[outside]);
    NH_UNROLL for (int a = 2; a >= NH_FIRST_AXIS; a--) {
        const int extent = a > outside   ? seam.columns[a]
                           : a < outside ? seam.inside[a]
                                         : seam.columns[a] - seam.inside[a];
        int place = a == NH_FIRST_AXIS ? (int)rest : (int)(rest % (unsigned)extent);
        if (a > NH_FIRST_AXIS) rest /= (unsigned)extent;
        if (a < outside || (a == outside && place >= seam.low[a])) place += a < outside ? seam.low[a] : seam.inside[a];
        column.within[a] = place;
        const auto &covered = work_tile.covered[a];
        int from_lap = work_tile.span[a].ahead + place;
        if (C.slots && a == NH_FIRST_AXIS) {
            const int slot = work_tile.roll.fresh.begin + place / NH_SLOT_LINES;
            column.box = (work_tile.roll.first + slot) % (C.slots + !C.slots);
            column.within[a] = place % NH_SLOT_LINES;
            from_lap = nh_roll_base(covered) + slot * NH_SLOT_LINES + column.within[a] - covered.columns.begin;
            if (nh_axis_wraps(a) && from_lap < 0) from_lap += covered.grid;
        }
        /* A halo is less than two laps long, and begins in the first. */
        NH_UNROLL for (int laps = 0; laps < 2; laps++)
            if (nh_axis_wraps(a) && from_lap >= covered.grid) from_lap -= covered.grid;
        column.there = column.there && from_lap >= 0 && from_lap < covered.columns.end - covered.columns.begin;
        column.at[a] = from_lap - work_tile.span[a].ahead;
    }
    return column;
}

/* Where a unit of a column is in a tensor, and where it goes in the halo. */
struct nh_seam_unit {
    const void *from;
    char *to;
};

/* A unit of a column of a tensor of rows; member: of the heads that share the work tile's rows. */
template <int WIDTH>
NH_DEVICE nh_seam_unit nh_seam_unit_of(const nh_tiled_args &args, const nh_work_tile &work_tile, int tensor, int member,
                                       char *halo, const nh_seam_column &column, int unit) {
    const nh_cuda_tensor &of = args.tensor[tensor];
    long long offset = work_tile.origin[tensor] + member * of.head + NH_PER_UNIT * unit;
    int row = column.box * NH_SLOT_ROWS;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        row += column.within[a] * nh_axis_pitch(a);
        offset += column.at[a] * work_tile.step[tensor][a];
    }
    return {(const elem *)of.data + offset, halo + nh_unit_offset(WIDTH, row, unit)};
}

/* The lanes of the warp that asked for the boxes copy the columns that these lack: unit(column, part) for each of the
 * PARTS units that a column has in all tensors. */
template <int PARTS, typename Unit>
NH_DEVICE void nh_copy_seam_units(const auto &work_tile, int lane, const Unit &unit, nh_boxes_landed landed) {
    /* The units that a lane reads before the boxes have landed. In one dimension few halos have a seam, and with this
     * code the backward pass took 3 % longer: docs/log/small.md. */
    enum { AHEAD = C.rank == 1 ? 0 : 4 };
    const nh_seam seam = nh_seam_of(work_tile);
    const int count = seam.begin[3] * PARTS;
    uint4 kept[AHEAD + !AHEAD];
    char *to[AHEAD + !AHEAD];
    NH_UNROLL for (int k = 0; k < AHEAD; k++) {
        const int i = 32 * k + lane;
        to[k] = nullptr;
        if (i >= count) continue;
        const nh_seam_column column = nh_seam_column_of(work_tile, seam, i / PARTS);
        const nh_seam_unit at = unit(column, i % PARTS);
        if (!column.there) continue;
        kept[k] = *(const uint4 *)at.from;
        to[k] = at.to;
    }
    nh_barrier_wait(landed.barrier, landed.parity);
    NH_UNROLL_1 for (int i = 32 * AHEAD + lane; i < count; i += 32) {
        const nh_seam_column column = nh_seam_column_of(work_tile, seam, i / PARTS);
        const nh_seam_unit at = unit(column, i % PARTS);
        if (column.there) nh_copy16(at.to, at.from, true);
    }
    NH_UNROLL for (int k = 0; k < AHEAD; k++)
        if (to[k]) *(uint4 *)to[k] = kept[k];
    nh_copy_wait();
    nh_show_shared();
}

/* Copies the columns of keys and values that boxes lack. */
NH_DEVICE void nh_copy_key_seam(const nh_tiled_args &args, const auto &work_tile, nh_key_halo &halo, int lane,
                                nh_boxes_landed landed) {
    const int units = nh_units(C.dim);
    nh_copy_seam_units<2 * units>(
        work_tile, lane,
        [&](const nh_seam_column &column, int part) {
            const bool values = part >= units;
            return nh_seam_unit_of<C.dim>(args, work_tile, values ? NH_V : NH_K, 0, values ? halo.values : halo.keys,
                                           column, part % units);
        },
        landed);
}

} // namespace nh_small
