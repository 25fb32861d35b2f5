/* Boxes of a grid that tensors cover, periodic axes (NH_REGIONS; NH_PERIODIC: bits of axes that are), and window tables
 * (NH_TABLES: bits of axes that have one). Without NH_REGIONS tensors cover the whole grid, and nothing here is needed.
 *
 * Rows are what blocks own, columns what rows are paired with: queries and keys, or the other way round. Positions are
 * inside a dilation group, as in window.h. A window is that of the whole grid; of its columns, those count that tensors
 * have. On a periodic axis rows have positions from 0 to less than twice the group's length, as their box says. The
 * positions of what they see go on from there, from less than 0 to beyond the group's end: the columns repeat with each
 * lap of the group's length. An axis with a table has queries and keys on grids of their own; `length` is then that of
 * the queries, which windows do not depend on, and the dilation is 1. */
#pragma once
#include "prelude.cuh"

#ifndef NH_PERIODIC
#define NH_PERIODIC 0
#endif

/* What the host knows of a problem, so that kernels need not test it: bits of the axes on which tensors cover less than
 * the grid, or which are periodic or have tables; and whether any axis has a stride or a dilation above 1, or is
 * causal. Where none has, a position's window needs no divisions. */
#ifndef NH_REGION_AXES
#define NH_REGION_AXES 7
#endif
#ifndef NH_STRIDED
#define NH_STRIDED 1
#endif
#ifndef NH_DILATED
#define NH_DILATED 1
#endif
#ifndef NH_CAUSAL
#define NH_CAUSAL 1
#endif
#define NH_STRIDE(axis) (NH_STRIDED ? (axis).stride : 1)
#define NH_DILATION(axis) (NH_DILATED ? (axis).dilation : 1)
#define NH_IS_CAUSAL(axis) (NH_CAUSAL && (axis).causal)

NH_DEVICE bool nh_wraps(int axis) {
    return NH_PERIODIC >> axis & 1;
}

/* Whether tensors may cover less than the axis, or it is periodic, or has a table. */
NH_DEVICE bool nh_is_cut(int axis) {
    return NH_REGIONS && NH_REGION_AXES >> axis & 1;
}

/* The positions of a dilation group that a box covers; the same as nh_axis_covered of core/problem.h. */
NH_DEVICE nh_range nh_covered(const nh_cuda_box &box, NH_POSITION dilation, NH_POSITION group) {
    const NH_POSITION first = (NH_POSITION)box.offset - group + dilation - 1;
    if (dilation == 1) return {first, first + (NH_POSITION)box.length}; /* common: saves two divisions */
    return {first / dilation, (first + (NH_POSITION)box.length) / dilation};
}

#if NH_TABLES
/* What the row at a position sees by the axis' table. A load of 8 bytes from memory that no kernel writes, which the
 * compiler moves ahead of barriers: those of a work tile are then under way at the same time. */
NH_DEVICE nh_range nh_seen_of_table(const nh_cuda_axis &axis, bool inverse, NH_POSITION position) {
    const long long seen = __ldg((const long long *)axis.seen[inverse] + position);
    const int first = (int)seen, count = (int)(seen >> 32);
    return {first, first + count};
}
#endif

/* What the row at a position sees in the whole grid. On an axis with a table the position must be one of the grid. If
 * axes are cut by tables alone, whether this one has a table is known. */
NH_DEVICE nh_range nh_seen_of_grid(const nh_cuda_axis &axis, bool wraps, bool inverse, NH_POSITION length,
                                   NH_POSITION position) {
#if NH_TABLES
    if (NH_TABLES == NH_REGION_AXES || axis.seen[inverse]) return nh_seen_of_table(axis, inverse, position);
#endif
    return nh_seen_range(length, (NH_POSITION)axis.window, (NH_POSITION)NH_STRIDE(axis), NH_IS_CAUSAL(axis), wraps,
                         inverse, position);
}

/* Moves a position to where tensors have it; false if they do not have it. */
NH_DEVICE bool nh_find_column(nh_range covered, bool wraps, NH_POSITION length, NH_POSITION &position) {
    if (wraps) position -= nh_laps(position, covered.begin, length) * length;
    return position >= covered.begin && position < covered.end;
}
