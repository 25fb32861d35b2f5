/* The arguments of cuda.short's and cuda.short90's kernels. */
#ifndef NH_SHORT_ARGS_H
#define NH_SHORT_ARGS_H

#include "kernel_abi.h"

/* Work tiles hold whole dilation groups; several blocks may share a work tile, each with a part of its queries. */
struct nh_short_tiling {
    int work_tiles;
    /* tokens of the longest group per axis, and in all */
    int tiles[3], tokens;
    /* per work tile: the most groups, rows, and blocks that share it */
    int groups, rows, parts;
    /* groups that are numbered together (of one residue, or all), and the work tiles that they make */
    int total, chunks;
    /* query heads that share a key head */
    int heads;
    /* cuda.short90 only: work tiles that a block holds at a time; lines along the first axis, and queries, in a block's
     * part of a group */
    int stages, lines, queries;
};

NH_FAMILY_ARGS(nh_short_args, struct nh_short_tiling tiling;);

#endif
