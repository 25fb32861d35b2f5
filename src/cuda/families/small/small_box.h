/* Which boxes of rows cuda.small is worth trying with. */
#ifndef NH_SMALL_BOX_H
#define NH_SMALL_BOX_H

#include "problem.h"

/* Extents of a work tile and a warp tile, and warps where threads copy: by keys one per warp tile, which keeps its
 * sums. */
struct nh_small_box {
    int32_t work_tile[NH_AXES], warp_tile[NH_AXES], warps;
};

enum { NH_SMALL_MOST_BOXES = 32 };
struct nh_small_boxes {
    struct nh_small_box box[NH_SMALL_MOST_BOXES];
    int count;
};

/* The boxes of the problem's rank for kernels that own keys, or queries: in 3-D also those that hold all rows of a dilation
 * group and no warp tile beyond it, as halos of short groups are mostly their own, and for the forward pass planes. (In 1-D
 * they lose to longer boxes, whose warps without a warp tile help with copies.) */
void nh_small_list_boxes(const struct nh_problem *problem, bool keys, struct nh_small_boxes *boxes);

/* Whether the box is one plane of a volume, for halos that must roll. */
bool nh_small_is_plane(const struct nh_problem *problem, const struct nh_small_box *box);

/* Whether some of the box's warp tiles exist in no dilation group: their room would be fetched to for nothing. */
bool nh_small_sticks_out(const struct nh_problem *problem, bool keys,
                         const struct nh_small_box *box);

#endif
