/* The boxes of rows that cuda.small tries. */
#ifndef NH_SMALL_BOX_H
#define NH_SMALL_BOX_H

#include "problem.h"

/* Extents of a work tile and a warp tile, and the number of warps where threads copy. By keys each warp tile has a
 * warp, which keeps its sums. */
struct nh_small_box {
    int32_t work_tile[NH_AXES], warp_tile[NH_AXES], warps;
};

enum { NH_SMALL_MOST_BOXES = 32 };
struct nh_small_boxes {
    struct nh_small_box box[NH_SMALL_MOST_BOXES];
    int count;
};

/* Lists the boxes of the problem's rank for kernels that own keys, or queries. In 3-D this includes boxes that hold all
 * rows of a dilation group and nothing else, as the halos of short groups overlap little, and for the forward pass
 * planes. (In 1-D such boxes lose to longer ones, whose warps without a warp tile help with copies.) */
void nh_small_list_boxes(const struct nh_problem *problem, bool keys, struct nh_small_boxes *boxes);

/* Whether a work tile of the box is one plane of a volume; these are for halos that roll only. */
bool nh_small_is_plane(const struct nh_problem *problem, const struct nh_small_box *box);

/* Whether some of the box's warp tiles exist in no dilation group, so that shared memory is filled for nothing. */
bool nh_small_sticks_out(const struct nh_problem *problem, bool keys,
                         const struct nh_small_box *box);

#endif
