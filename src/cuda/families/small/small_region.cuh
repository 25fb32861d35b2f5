/* The boxes of a grid that tensors cover, and periodic axes (NH_REGIONS, NH_PERIODIC: region.cuh), in the small
 * windows.
 *
 * A work tile's boxes of rows begin with the first row that tensors have of the dilation group, and what a row sees is
 * cut to the columns that they have; the halo follows from both. On a periodic axis, positions of rows and columns may
 * be before or after the group: the columns of tensors repeat with each lap of its length. A halo that goes on in the
 * next lap has a seam, beyond which positions are looked up one by one. */
#pragma once

#include "small_layout.cuh"

namespace nh_small {

NH_DEVICE int nh_least(int a, int b) {
    return a < b ? a : b;
}

/* The row, or the first one if the row is one of those by which work tiles begin before it. */
NH_DEVICE int nh_shifted_row(int axis, int row) {
    return nh_axis_shift(axis) && row < 0 ? 0 : row;
}

/* Whether the axis is periodic. */
NH_DEVICE bool nh_axis_wraps(int axis) {
    return NH_PERIODIC >> axis & 1;
}

/* Columns that the row at a position of a dilation group sees in the whole grid. */
NH_DEVICE nh_range nh_columns_of(const nh_cuda_axis &axis, int length, int position, bool wraps) {
#if NH_TABLES
    /* If all axes have tables there is no branch. */
    if (NH_TABLES >> NH_FIRST_AXIS == 7 >> NH_FIRST_AXIS || axis.seen[NH_INVERSE])
        return nh_seen_of_table(axis, NH_INVERSE, position);
#endif
    const int stride = C.strided ? (int)axis.stride : 1;
    if (NH_PERIODIC && wraps) return nh_seen_range(length, (int)axis.window, stride, 0, 1, NH_INVERSE, position);
    if (NH_INVERSE)
        return nh_inverse_range(length, (int)axis.window, stride, axis.causal, position);
    return nh_window_range(length, (int)axis.window, stride, axis.causal, position);
}

/* What tensors have of a dilation group on one axis. */
struct nh_covered_group {
    int grid;         /* positions of the group in the grid */
    int first;        /* position of the first row */
    nh_range columns; /* on a periodic axis, those of one lap */
};

/* length: positions of the group in the grid; set to the position after its last row. A group without rows gets no
 * columns. */
NH_DEVICE nh_covered_group nh_covered_group_of(const auto &args, int a, int group, int &length) {
    const int dilation = C.dilated ? (int)args.axis[a].dilation : 1;
    const nh_cuda_region &region = args.region[a];
    const nh_range rows = nh_covered(NH_INVERSE ? region.key : region.query, dilation, group);
    nh_covered_group covered = {length, rows.begin,
                                nh_covered(NH_INVERSE ? region.query : region.key, dilation, group)};
    if (rows.begin == rows.end) covered.columns.end = covered.columns.begin;
    length = rows.end;
    return covered;
}

/* Columns of tensors that the row at a position sees. */
NH_DEVICE nh_range nh_columns_of(const nh_cuda_axis &axis, const nh_covered_group &covered, int position,
                                 bool wraps) {
    return nh_covered_part(nh_columns_of(axis, covered.grid, position, wraps), covered.columns, covered.grid, wraps);
}

/* Where a halo lies on an axis, counted from the first column of the lap in which it begins. If it goes on in the next
 * lap, it has a seam: the copy engine fetches a box that begins at `boxed`, which is before the lap if most of the halo
 * is in the next one, and the columns of the box beyond either end of a lap are copied one by one. */
struct nh_halo_span {
    int ahead, boxed;
    int count; /* columns that the work tile's rows see; 0 if the axis is not periodic */
};

NH_DEVICE nh_halo_span nh_halo_span_of(const nh_cuda_axis &axis, const nh_covered_group &covered, int begin,
                                       int last_row, bool wraps) {
    int ahead = begin - covered.columns.begin;
    if (!wraps) return {ahead, ahead, 0};
    ahead -= nh_laps(begin, covered.columns.begin, covered.grid) * covered.grid;
    const int count = nh_columns_of(axis, covered, last_row, true).end - begin, rest = ahead + count - covered.grid;
    return {ahead, C.dilated || rest <= covered.grid - ahead ? ahead : ahead - covered.grid, count};
}

NH_DEVICE bool nh_span_has_seam(const nh_covered_group &covered, const nh_halo_span &span) {
    return span.ahead + span.count > covered.grid;
}

/* A dilation group on one axis: its length, or what tensors have of it. */
typedef nh_choose<NH_REGIONS, nh_covered_group, int>::type nh_group;

/* The first group on an axis, of so many positions; sets `length` to the position after its last row. */
NH_DEVICE auto nh_first_group(const auto &args, int a, int &length) {
    if constexpr (NH_REGIONS)
        return nh_covered_group_of(args, a, 0, length);
    else
        return length;
}

/* The first row that tensors have of a group. */
NH_DEVICE int nh_group_first(int) {
    return 0;
}
NH_DEVICE int nh_group_first(const nh_covered_group &group) {
    return group.first;
}

} // namespace nh_small
