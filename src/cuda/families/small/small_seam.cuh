/* Halos that go on in the next lap of a periodic axis, where the copy engine fetches: it has zeros beyond a lap's ends,
 * and once its boxes have landed, the warp that asked for them puts there what the axis has at its other end. Along a
 * first axis that halos roll along there is no seam: slots of lines are whole (small_roll.cuh). */
#pragma once

#include "small.cuh"

/* Columns of a halo with a seam, or of what of it is not there yet, that are beyond a lap's ends in their boxes and
 * that tensors have; by the lanes of a fetching warp: copy(box, place, at, unit) for each unit of each, where `place`
 * is in the box and `at` counts from where tensors have the halo's first. */
template <int UNITS, typename Copy>
NH_DEVICE void nh_for_beyond_boxes(const nh_work_tile &work_tile, int lane, const Copy &copy) {
#if NH_PERIODIC
    const nh_halo_span &across = work_tile.span[2];
    const int grid = work_tile.covered[2].grid, boxes = NH_SLOTS ? work_tile.roll.fresh.end : 1;
    const int columns = nh_wraps(2) ? across.count : NH_H2;
    /* of a line: those before its lap, and the first behind it */
    const int low = nh_wraps(2) && across.boxed < 0 ? nh_least(columns, -across.boxed) : 0;
    const int high = nh_wraps(2) ? nh_least(columns, grid - across.boxed) : columns;
#pragma unroll 1
    for (int box = NH_SLOTS ? work_tile.roll.fresh.begin : 0; box < boxes; box++) {
        const int lines = NH_SLOTS ? nh_roll_base(work_tile.covered[NH_FIRST_AXIS]) + box * NH_SLOT_LINES -
                                         work_tile.column[NH_FIRST_AXIS]
                                   : 0;
#pragma unroll 1
        for (int line = 0; line < NH_H0 * NH_H1; line++) {
            int place[3] = {line / NH_H1, line % NH_H1, 0}, at[3] = {place[0], place[1], 0};
            bool boxed = true, there = true;
#pragma unroll
            for (int a = NH_FIRST_AXIS; a < 2; a++) {
                const nh_halo_span &span = work_tile.span[a];
                if (a == NH_FIRST_AXIS) at[a] += lines;
                if (nh_wraps(a) && !(NH_SLOTS && a == NH_FIRST_AXIS)) {
                    there = there && at[a] < span.count;
                    boxed = boxed && span.boxed + at[a] >= 0 && span.boxed + at[a] < work_tile.covered[a].grid;
                }
                there = nh_halo_position(work_tile, a, at[a]) && there;
            }
            if (!there) continue;
            const int before = boxed ? low : columns, skipped = boxed ? high - low : 0;
            for (int i = lane; i < (columns - skipped) * UNITS; i += 32) {
                place[2] = i / UNITS;
                if (place[2] >= before) place[2] += skipped;
                at[2] = place[2];
                if (nh_halo_position(work_tile, 2, at[2]))
                    copy(NH_SLOTS ? (work_tile.roll.place + box) % (NH_SLOTS + !NH_SLOTS) : 0, place, at, i % UNITS);
            }
        }
    }
#endif
}

template <int WIDTH>
NH_DEVICE void nh_copy_seam_boxes(const nh_tiled_args &args, const nh_work_tile &work_tile, int slot, int member,
                                  char *to, int lane) {
    const nh_cuda_tensor &tensor = args.tensor[slot];
    const elem *from = (const elem *)tensor.data + work_tile.origin[slot] + member * tensor.head;
    nh_for_beyond_boxes<nh_units(WIDTH)>(
        work_tile, lane, [&](int box, const int (&place)[3], const int (&at)[3], int unit) {
            int row = box * NH_FETCHED_ROWS;
            long long offset = NH_PER_UNIT * unit;
#pragma unroll
            for (int a = NH_FIRST_AXIS; a < 3; a++) {
                row += place[a] * nh_axis_pitch(a);
                offset += at[a] * work_tile.step[slot][a];
            }
            nh_copy16(to + nh_unit_offset(WIDTH, row, unit), from + offset, true);
        });
}

NH_DEVICE void nh_copy_key_seam(const nh_tiled_args &args, const nh_work_tile &work_tile, nh_key_halo &halo,
                                int lane) {
    nh_copy_seam_boxes<NH_DIM>(args, work_tile, NH_K, 0, halo.keys, lane);
    nh_copy_seam_boxes<NH_DIM_V>(args, work_tile, NH_V, 0, halo.values, lane);
}
