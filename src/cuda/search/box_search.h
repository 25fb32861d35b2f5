/* Which boxes of rows and columns, their extents powers of two, make a tiled kernel fastest. Of each variant the pairs of
 * boxes are ranked by their work on a full device, which is linear in what is counted; those that have least of it are
 * predicted. */
#ifndef NH_BOX_SEARCH_H
#define NH_BOX_SEARCH_H

#include "tiling.h"
#include "work.h"

/* Positions of a row box and of a column box, and what goes with them. */
struct nh_box_variant {
    int32_t rows, columns, warps, stages;
};

struct nh_box_choice {
    int32_t row[NH_AXES], column[NH_AXES];
    const struct nh_box_variant *variant;
    /* row tiles beyond a dilation group's last row left out */
    struct nh_tiling_count count;
};

struct nh_box_search {
    const struct nh_problem *problem;
    bool inverse; /* rows are keys, as for nh_tile_count */
    const struct nh_box_variant *variant;
    int variants;
    const struct nh_device *device;
    double below_ns; /* boxes that would take as long may be left out; INFINITY: none */
    /* The launch with these boxes; false: they do not fit. */
    bool (*work)(const struct nh_box_search *search, const struct nh_box_choice *choice,
                 struct nh_work *work);
};

/* Those of the fewest clocks, fewest first; at most two of a variant: more would leave no place to others, whose
 * predictions err in another way. Returns how many. */
int nh_box_search(const struct nh_box_search *search, struct nh_box_choice *best, int capacity);

#endif
