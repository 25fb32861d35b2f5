/* Which boxes of rows and columns, their extents powers of two, make a tiled kernel fastest. There are thousands of
 * pairs: variants, their row boxes, and pairs are tried in the order of what they cost at least, until that is more than
 * what the best cost. */
#ifndef NH_BOX_SEARCH_H
#define NH_BOX_SEARCH_H

#include "tiling.h"

/* Positions of a row box and of a column box, and what goes with them. */
struct nh_box_variant {
    int32_t rows, columns, warps, stages;
};

/* What no boxes of a variant stay below. Clocks are those of a multiprocessor. */
struct nh_box_bound {
    /* of the whole: no less than `least`, and `fixed` beside what clocks take, in units of cost */
    double least, fixed, per_clock;
    /* for a tile that needs no masks, and what masks add; for a block that has its multiprocessor to itself, per tile,
     * beside `alone` times these; for a block; blocks that share a multiprocessor, at most */
    double tile, masks, latency, alone, block, residents;
    /* clocks for a tile of the longest walk, which the whole waits for; 0: it does not. How much of a block alone is
     * added to what a full device takes. */
    double longest, ending;
    /* whole numbers: blocks, and walks over tiles, of a row box at each of its places */
    double blocks, walks, multiprocessors;
};

struct nh_box_choice {
    int32_t row[NH_AXES], column[NH_AXES];
    const struct nh_box_variant *variant;
    /* row tiles beyond a dilation group's last row left out */
    struct nh_tiling_count count;
    double cost;
};

enum { NH_MOST_BOX_VARIANTS = 12, NH_MOST_BOX_CHOICES = 8 };

struct nh_box_search {
    const struct nh_problem *problem;
    bool inverse; /* rows are keys, as for nh_tile_count */
    const struct nh_box_variant *variant;
    int variants;
    struct nh_box_bound (*bound)(const struct nh_box_search *search,
                                 const struct nh_box_variant *variant);
    /* of a choice but for its own; INFINITY: the boxes do not fit */
    double (*cost)(const struct nh_box_search *search, const struct nh_box_choice *choice);
    const struct nh_device *device; /* for the two of them */
    /* those that cost so many times the least are left out, and those that cost as much as `below`; INFINITY: none */
    double behind, below;
    /* what throughput alone must stay below, where others that run at the same time need some of it, too; INFINITY: any */
    double spare;
};

/* The cheapest, cheapest first; at most two of a variant: more would leave no place to others, whose estimates err in
 * another way. Returns how many. */
int nh_box_search(const struct nh_box_search *search, struct nh_box_choice *best, int capacity);

/* The box of so many positions with the least sum of extents. */
void nh_box_balanced(int32_t size, int32_t box[NH_AXES]);

#endif
