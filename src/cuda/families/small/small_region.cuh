/* Boxes that tensors cover of a grid, and periodic axes (NH_REGIONS, NH_PERIODIC: region.cuh), in the small windows.
 *
 * A work tile's boxes of rows begin with the first row that tensors have of the dilation group, and what a row sees is
 * cut to the columns that they have; the halo follows from both. On a periodic axis rows and columns stand at positions
 * beyond both ends of the group: with each lap of its length the columns of tensors follow once more. A halo that goes
 * on in the next lap has a seam: its positions are looked up one by one. Without NH_REGIONS there is nothing here. */
#pragma once

#include "small_roll.cuh"

#if NH_REGIONS
/* What tensors have of a dilation group on one axis. */
struct nh_covered_group {
    int grid;         /* positions of the group in the grid */
    int first;        /* row */
    nh_range columns; /* on a periodic axis those of one lap */
};

/* length: of the group in the grid, on return the position behind its last row. A group without a row has no columns.
 */
NH_DEVICE nh_covered_group nh_covered_group_of(const nh_tiled_args &args, int a, int group, int &length) {
    const int dilation = NH_DILATED ? (int)args.axis[a].dilation : 1;
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

/* Columns from the first of its lap to a halo's first, `begin`; sets `seam` if what the work tile's last row sees ends
 * in the next lap. */
NH_DEVICE int nh_halo_ahead(const nh_cuda_axis &axis, const nh_covered_group &covered, int begin, int last_row,
                            bool wraps, bool &seam) {
    int ahead = begin - covered.columns.begin;
    if (!wraps) return ahead;
    ahead -= nh_laps(begin, covered.columns.begin, covered.grid) * covered.grid;
    seam |= ahead + nh_columns_of(axis, covered, last_row, true).end - begin > covered.grid;
    return ahead;
}
#endif
