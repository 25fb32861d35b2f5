/* What launches of cuda.short and cuda.short90 hand to their kernels. */
#ifndef NH_SHORT_ARGS_H
#define NH_SHORT_ARGS_H

#include "kernel_abi.h"

/* Work tiles hold whole dilation groups; blocks may share a work tile, each a part of its queries. */
struct nh_short_tiling {
    int work_tiles;
    /* tokens of the longest group per axis, and in all */
    int tiles[3], tokens;
    /* of a work tile: groups at most, rows, and blocks that share it */
    int groups, rows, parts;
    /* groups of each residue or in all, and the work tiles that these make */
    int total, chunks;
    /* query heads that share a key head */
    int heads;
    /* of cuda.short90: work tiles that a block holds at a time; of a block's part of a group, lines along the first
     * axis, and queries */
    int stages, lines, queries;
};

NH_FAMILY_ARGS(nh_short_args, struct nh_short_tiling tiling;);

#endif
