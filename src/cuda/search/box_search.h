/* Searches the boxes of rows and columns, with powers of two as extents, that make a tiled kernel fastest. For each
 * variant the pairs of boxes are ranked by their work on a full device, which is linear in the tile counts, and those
 * with the least work are predicted. */
#ifndef NH_BOX_SEARCH_H
#define NH_BOX_SEARCH_H

#include "tiling.h"
#include "work.h"

/* The number of positions in a row box and in a column box, and the knobs that go with these. */
struct nh_box_variant {
    int32_t rows, columns, warps, stages;
};

struct nh_box_choice {
    int32_t row[NH_AXES], column[NH_AXES];
    const struct nh_box_variant *variant;
    /* counts of a kernel that skips row tiles beyond a dilation group's last row */
    struct nh_tiling_count count;
};

struct nh_box_search {
    const struct nh_problem *problem;
    bool inverse; /* rows are keys, as for nh_tile_count */
    const struct nh_box_variant *variant;
    int variants;
    const struct nh_device *device;
    /* Sets the work of a launch with these boxes; false: they do not fit. */
    bool (*work)(const struct nh_box_search *search, const struct nh_box_choice *choice,
                 struct nh_work *work);
};

/* Writes the choices with the fewest predicted clocks to `best`, fewest first, at most `capacity`. Returns how many. */
int nh_box_search(const struct nh_box_search *search, struct nh_box_choice *best, int capacity);

#endif
