/* What a kernel of cuda.short or cuda.short90 is compiled for, and the layout of its shared memory, which also depends
 * on the launch's extents (struct nh_short_tiling). Host and kernels call the same functions. */
#ifndef NH_SHORT_CONFIG_H
#define NH_SHORT_CONFIG_H

#include "kernel_config.h"
#include "short_args.h"

/* cuda.short's kernels and, with a ring of groups that the copy engine fetches, cuda.short90's. */
enum short_pass { SHORT_FORWARD, SHORT_BACKWARD, SHORT_RING };

/* How groups are numbered: by key head, remainder (residue) and batch entry, where groups may differ in length or do
 * not; with the residue slowest and work tiles of one residue, whose groups are equally long and leave no row empty; or
 * the same with one group per work tile, which has as many rows as the longest group: a box. */
enum short_order { SHORT_UNEVEN, SHORT_EVEN, SHORT_BY_RESIDUE, SHORT_BOXES };

#define SHORT_CONFIG(ONE, MANY)                                                                    \
    ONE(pass)          /* enum short_pass */                                                       \
    ONE(order)         /* enum short_order */                                                      \
    ONE(rank)          /* of the problem */                                                        \
    ONE(element_bytes) /* of the problem */                                                        \
    ONE(dim)           /* head dim, a multiple of 8 */                                             \
    ONE(dim_v)         /* value dim, likewise */                                                   \
    ONE(strided)       /* 1: some stride is above 1 */                                             \
    ONE(dilated)       /* 1: some dilation is above 1 */                                           \
    ONE(contiguous)    /* 1: the keys that a query sees are consecutive rows */                    \
    ONE(dense)         /* 1: queries see their whole group, of which alone a warp tile has rows */ \
    ONE(shared_heads)  /* 1: query heads share key heads, and a warp has at most one warp tile */  \
    ONE(warps)         /* those that compute */                                                    \
    ONE(split)         /* how many of them share 16 rows */                                        \
    ONE(stages)        /* work tiles that a block holds at a time; of a ring an extent */          \
    ONE(min_blocks)    /* blocks that a multiprocessor is to hold */                               \
    ONE(folded)        /* of a ring: 1: a map's axis y counts dilation groups (nh_sm90_folds) */   \
    ONE(q_map)         /* of a ring: layouts of tensor maps (enum nh_map_layout) */                \
    ONE(k_map)                                                                                     \
    ONE(v_map)
NH_KERNEL_CONFIG(short_config, SHORT_CONFIG);

/* Bytes of the kernels' structs, which assert them. */
enum {
    SHORT_WORK_TILE_BYTES = 80,
    SHORT_QUERY_BYTES = 16,
    SHORT_REACH_BYTES = 8,
    SHORT_PLACE_BYTES = 48,
    SHORT_COLUMN_BYTES = 4
};

NH_CONFIG_FN int short_larger(int a, int b) {
    return a > b ? a : b;
}
NH_CONFIG_FN int short_widest(const struct short_config *c) {
    return short_larger(c->dim, c->dim_v);
}

/* ---- rows, groups ---- */

/* Units of 16 bytes per row: for whole steps of products over a row's elements, in f32 also of products over rows. Rows
 * take one unit more, so that the eight rows of a matrix load are in different banks. */
NH_CONFIG_FN int short_units(int width, int element_bytes) {
    const int step = element_bytes == 4 ? 32 : 16;
    return (width + step - 1) / step * step * element_bytes / 16;
}
NH_CONFIG_FN int short_row_bytes(const struct short_config *c, int width) {
    return 16 * (short_units(width, c->element_bytes) + 1);
}
/* Accumulators of 8 elements each for the sums of a row. */
NH_CONFIG_FN int short_sums(const struct short_config *c, int width) {
    return short_units(width, c->element_bytes) * 2 / c->element_bytes;
}

/* The tensors of which a kernel has offsets of groups, as bits, and the last one plus one. Boxes have coordinates. */
NH_CONFIG_FN unsigned short_tensors(const struct short_config *c) {
    const unsigned forward = 1u << NH_Q | 1u << NH_K | 1u << NH_V | 1u << NH_O | 1u << NH_LSE;
    const unsigned more =
        1u << NH_D_O | 1u << NH_D_LSE | 1u << NH_D_Q | 1u << NH_D_K | 1u << NH_D_V;
    return c->pass == SHORT_RING ? 0 : c->pass == SHORT_FORWARD ? forward : forward | more;
}
NH_CONFIG_FN int short_origins(const struct short_config *c) {
    return c->pass == SHORT_RING ? 1 : c->pass == SHORT_FORWARD ? NH_LSE + 1 : NH_D_V + 1;
}
NH_CONFIG_FN int short_group_bytes(const struct short_config *c) {
    return 16 + 8 * short_origins(c);
}

/* ---- warps that share 16 rows ---- */

/* Warp tiles of all warps at a time, and bytes for `sums` accumulators of each warp that is not a warp tile's first. */
NH_CONFIG_FN int short_warp_tiles(const struct short_config *c) {
    return c->warps / c->split;
}
NH_CONFIG_FN int short_share_bytes(const struct short_config *c, int sums) {
    return (c->warps - short_warp_tiles(c)) * 32 * 16 * sums;
}

/* ---- forward ---- */

/* Rows of queries of a block's part. */
NH_CONFIG_FN int short_part_rows(const struct nh_short_tiling *tiling) {
    return (tiling->rows / 16 + tiling->parts - 1) / tiling->parts * 16;
}

/* Places of work tiles and their groups, one more than stages. Sums of warps: of outputs, and one of weights. */
NH_CONFIG_FN int short_places(const struct short_config *c) {
    return c->stages + 1;
}

/* Offsets in shared memory, and in a stage: keys come first there. */
struct short_forward_layout {
    int shares, stages, groups, end;
    int values, queries, columns, stage_bytes;
};

NH_CONFIG_FN struct short_forward_layout
short_forward_layout_of(const struct short_config *c, const struct nh_short_tiling *tiling) {
    struct short_forward_layout at = {0};
    at.values = tiling->rows * short_row_bytes(c, c->dim);
    at.queries = at.values + tiling->rows * short_row_bytes(c, c->dim_v);
    at.columns = at.queries + short_part_rows(tiling) * short_row_bytes(c, short_widest(c));
    at.stage_bytes = at.columns + tiling->rows * SHORT_COLUMN_BYTES;
    at.shares = short_places(c) * SHORT_WORK_TILE_BYTES;
    at.stages = at.shares + short_share_bytes(c, short_sums(c, c->dim_v) + 1);
    at.groups = at.stages + c->stages * at.stage_bytes;
    at.end = at.groups + short_places(c) * tiling->groups * short_group_bytes(c);
    return at;
}

/* ---- backward ---- */

/* Warp tiles of a block, with parts: of one kind, queries or keys. */
NH_CONFIG_FN int short_part_warp_tiles(const struct nh_short_tiling *tiling, int rows) {
    const int half = tiling->parts / 2;
    return half ? (rows / 16 + half - 1) / half : rows / 8;
}

/* Offsets in shared memory, for a work tile of so many rows; queries come first. */
struct short_backward_layout {
    int columns, reach, groups, tensors;
};

NH_CONFIG_FN struct short_backward_layout
short_backward_layout_of(const struct short_config *c, const struct nh_short_tiling *tiling,
                         int rows) {
    struct short_backward_layout at = {0};
    at.columns = rows * SHORT_QUERY_BYTES;
    at.reach = at.columns + rows * SHORT_COLUMN_BYTES;
    at.groups = at.reach + 2 * (rows / 16) * SHORT_REACH_BYTES;
    at.tensors = at.groups + tiling->groups * short_group_bytes(c);
    return at;
}

/* Bytes of Q, dO and O, and of K and V. Warp tiles of queries are multiplied with all keys, warp tiles of keys with all
 * queries. Sums of warps later lie in their place. */
NH_CONFIG_FN int short_tensor_bytes(const struct short_config *c,
                                    const struct nh_short_tiling *tiling) {
    const int of_key = short_row_bytes(c, c->dim) + short_row_bytes(c, c->dim_v);
    const int of_query = of_key + short_row_bytes(c, c->dim_v), rows = tiling->rows;
    const int own = 16 * short_part_warp_tiles(tiling, rows);
    if (tiling->parts == 1) return rows * (of_query + of_key);
    return short_larger(rows * of_key + own * of_query, rows * of_query + own * of_key);
}

/* ---- the ring of cuda.short90 ---- */

/* Rows lie as the copy engine writes them: lines of 64 elements, or of 32 where rows have no more, in planes. */
NH_CONFIG_FN int short_line_bytes(int width) {
    return width == 32 ? 64 : 128;
}
NH_CONFIG_FN int short_planes(int width) {
    return (width + 63) / 64;
}
NH_CONFIG_FN int short_ring_row_bytes(int width) {
    return short_planes(width) * short_line_bytes(width);
}
/* Rows of the queries of a part, rounded up to whole warp tiles. */
NH_CONFIG_FN int short_own_rows(const struct nh_short_tiling *tiling) {
    return (tiling->queries + 15) / 16 * 16;
}

/* Offsets in shared memory: a barrier of full and one of free stages each come first. Stages then begin at a multiple of
 * SHORT_ALIGNMENT, the period of the swizzle; values and queries: inside a stage. */
enum { SHORT_BARRIER_BYTES = 8, SHORT_ALIGNMENT = 1024 };
struct short_ring_layout {
    int free, places, columns, stages;
    int values, queries, stage_bytes;
};

NH_CONFIG_FN struct short_ring_layout short_ring_layout_of(const struct short_config *c,
                                                           const struct nh_short_tiling *tiling) {
    struct short_ring_layout at = {0};
    at.values = tiling->rows * short_ring_row_bytes(c->dim);
    at.queries = at.values + tiling->rows * short_ring_row_bytes(c->dim_v);
    at.stage_bytes = at.queries + short_own_rows(tiling) * short_ring_row_bytes(short_widest(c));
    at.free = tiling->stages * SHORT_BARRIER_BYTES;
    at.places = 2 * at.free;
    at.columns = at.places + tiling->stages * SHORT_PLACE_BYTES;
    at.stages = at.columns + tiling->rows * SHORT_COLUMN_BYTES;
    return at;
}

/* ---- all of shared memory ---- */

/* In bytes. The driver aligns it to less than stages of a ring need. */
NH_CONFIG_FN int short_shared_bytes(const struct short_config *c,
                                    const struct nh_short_tiling *tiling) {
    if (c->pass == SHORT_FORWARD) return short_forward_layout_of(c, tiling).end;
    if (c->pass == SHORT_BACKWARD)
        return short_backward_layout_of(c, tiling, tiling->rows).tensors +
               short_tensor_bytes(c, tiling);
    const struct short_ring_layout at = short_ring_layout_of(c, tiling);
    return at.stages + SHORT_ALIGNMENT + tiling->stages * at.stage_bytes;
}

#endif
