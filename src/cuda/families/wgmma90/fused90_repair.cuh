/* Repair of rows that are not finite because something outside their windows is not: products include masked pairs with
 * a weight of zero, and zero times NaN or infinity is NaN. A warp that has stored a sum which is not finite goes over
 * the rows of all its work tiles once more after the last one, where it does not disturb the products, and computes
 * those that are not finite again as cuda.naive does: from exactly their windows. */
#pragma once
#include "wgmma90.cuh"
#include "naive.cuh"

namespace nh_wgmma90 {

/* Whether a row that this warp has stored needs repair; false if the tensor is not asked for. */
template <int DIM> NH_DEVICE bool needs_repair(const nh_cuda_args &args, int slot, const nh_query &at) {
    const nh_cuda_tensor &t = args.tensor[slot];
    float part[ROW_ELEMENTS];
    if (!t.data) return false;
    nh_load_row(nh_row(t, at.batch, at.at, at.head), 0, DIM, part);
    return __any_sync(~0u, doubt<ROW_ELEMENTS>(part) != 0);
}

/* Repairs `rows` rows of each tile from first_row on. Called by a whole warp. */
template <bool (*needs)(const nh_cuda_args &, const nh_query &), void (*make)(const nh_cuda_args &, const nh_query &)>
NH_DEVICE void repair_rows(const nh_tiled_args &args, int first_row, int rows = 16) {
    /* The shuffle tells the compiler that the value is the same for all lanes: otherwise ptxas keeps addresses of the
     * loop over tiles out of uniform registers, too. */
    first_row = __shfl_sync(~0u, first_row, 0);
    __syncwarp(); /* lanes read rows that others have stored */
    nh_work_tile work_tile;
    for (int round = 0, index; (index = nh_work_tile_index<T>(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at<T>(args, index, work_tile);
        for (int row = first_row; row < first_row + rows; row++) {
            nh_query at;
            at.batch = work_tile.batch;
            at.head = work_tile.head + row % C.own_heads;
            if (row_token(args, work_tile, row, at.at) && needs(args, at)) make(args, at);
        }
    }
}

} // namespace nh_wgmma90
