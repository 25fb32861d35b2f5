/* What a kernel of cuda.small is compiled for, and every number of its layout that follows from that. The host chooses a
 * configuration (small_choice.c) and asks these functions how much shared memory it takes; the kernel lays shared
 * memory out by the same functions, and is compiled with `constexpr small_config C = NH_CONFIG`. */
#ifndef NH_SMALL_CONFIG_H
#define NH_SMALL_CONFIG_H

#include "kernel_abi.h"
#include "kernel_config.h"

/* The kernel: of the forward, or one of the two of the backward. By keys, rows are keys and columns the queries that
 * attend them; else rows are queries and columns their keys. */
enum small_pass { SMALL_FORWARD, SMALL_BY_QUERY, SMALL_BY_KEY };

/* How columns get to shared memory. */
enum small_pipeline {
    SMALL_COPIES, /* all threads copy the halo of one work tile after the other, from any strides */
    SMALL_TURNS,  /* likewise, but the two tensors of columns are in one place in turns; f32 */
    SMALL_BOXES, /* the copy engine fetches the halo of a work tile as one box, for several stages ahead */
    SMALL_LINES, /* the same, but halos of work tiles that follow each other roll: only lines that are new are fetched */
    SMALL_PLANES /* the same with work tiles of one plane of a volume, whose halos roll by planes */
};

/* How scores of columns that a row does not see are masked: see small_masks.cuh. */
enum small_mask {
    SMALL_NO_MASK, /* every row sees all columns of its warp tile's box */
    SMALL_BITS,    /* a bit per score */
    SMALL_STARTS,  /* a product, with a place for each column at which a row's window may start */
    SMALL_COORDINATES, /* a product, with a place for each coordinate of a column */
    SMALL_KINDS /* a product, with a place for each coordinate of a row, and tables for kinds of warp tiles */
};

enum {
    SMALL_MASK_BLOCKS = 16, /* of 8 columns in a chunk, where masks are bits: a thread's are 32 */
    SMALL_GROUP_BLOCKS =
        20, /* in one chunk by keys, in kernels for groups: boxes that serve all lengths have more lines */
    SMALL_STATISTICS_BYTES = 16, /* of a head and query: -LSE and delta, see small_statistics.cuh */
    SMALL_BOX_ALIGNMENT = 1024   /* where a period of the copy engine's swizzle begins */
};

#define SMALL_CONFIG(ONE, MANY)                                                                    \
    ONE(pass)          /* enum small_pass */                                                       \
    ONE(pipeline)      /* enum small_pipeline */                                                   \
    ONE(mask)          /* enum small_mask */                                                       \
    ONE(rank)          /* of the problem */                                                        \
    ONE(element_bytes) /* of the problem */                                                        \
    ONE(dim)           /* head dim */                                                              \
    ONE(dim_v)         /* value dim */                                                             \
    MANY(window, 3)    /* by axis */                                                               \
    ONE(bias_count)    /* entries of a head's bias table; 0: no bias */                            \
    ONE(strided)       /* 1: some stride is above 1 */                                             \
    ONE(dilated)       /* 1: some dilation is above 1 */                                           \
    ONE(regions)       /* 1: tensors do not cover the grid, or an axis is periodic */              \
    ONE(periodic)      /* bits of axes that are periodic */                                        \
    ONE(whole)         /* 1: work tiles have no rows beyond their dilation group */                \
    ONE(grouped)       /* 1: serves grids of any lengths, those of a group's members */            \
    ONE(warps)         /* those that compute */                                                    \
    ONE(fetchers)      /* producer warps, behind these */                                          \
    ONE(min_blocks)    /* blocks that a multiprocessor is to hold */                               \
    MANY(rows, 3)      /* extents of a work tile */                                                \
    MANY(warp_tile, 3) /* extents of its part of 16 rows */                                        \
    MANY(columns, 3)   /* extents of a warp tile's box of columns */                               \
    MANY(halo, 3)  /* extents of a work tile's; where it rolls, along the first axis of a slot */  \
    MANY(shift, 3) /* rows by which work tiles begin before the first row */                       \
    MANY(ends,                                                                                     \
         3) /* rows that the last work tile along an axis has at least; 0: as many as are left */  \
    ONE(stages)       /* work tiles that the copy engine fetches ahead; 0: threads copy */         \
    ONE(slots)        /* of a rolling halo's ring (small_roll.cuh); 0: halos do not roll */        \
    ONE(held)         /* work tiles whose columns are there at a time: stages, or more */          \
    ONE(lines_before) /* positions from the first slot to the first row (small_roll.cuh) */        \
    ONE(slots_around) /* slots of a sweep less its work tiles */                                   \
    ONE(near_heads)   /* heads that adjacent blocks compute at the same time */                    \
    ONE(seam_lines)   /* 1: halos with a seam are fetched line by line (small_seam.cuh) */         \
    ONE(plane_chunks) /* 1: a chunk of columns is a plane of the box; else it has */               \
    ONE(chunk_blocks) /* at most so many blocks of 8 columns */                                    \
    ONE(least_pairs)  /* pairs of blocks that every warp tile multiplies */                        \
    ONE(q_map)        /* layouts of tensor maps (enum nh_map_layout) */                            \
    ONE(k_map)                                                                                     \
    ONE(v_map)                                                                                     \
    ONE(o_map)                                                                                     \
    ONE(d_o_map)                                                                                   \
    ONE(d_q_map)                                                                                   \
    ONE(d_k_map)                                                                                   \
    ONE(d_v_map)
NH_KERNEL_CONFIG(small_config, SMALL_CONFIG);

NH_CONFIG_FN int small_larger(int a, int b) {
    return a > b ? a : b;
}
NH_CONFIG_FN int small_ceil_div(int a, int b) {
    return (a + b - 1) / b;
}
/* The least number of rows from `rows` on that is congruent to `residue` modulo 8. */
NH_CONFIG_FN long long small_congruent(long long rows, long long residue) {
    return rows + ((residue - rows) % 8 + 8) % 8;
}

NH_CONFIG_FN long long small_round_up(long long number, int step) {
    return (number + step - 1) / step * step;
}

/* Whether the product that masks is there: all masks but bits. */
NH_CONFIG_FN int small_adds_mask(const struct small_config *c) {
    return c->mask >= SMALL_STARTS;
}
/* Axes before this one have length 1 and are left out. */
NH_CONFIG_FN int small_first_axis(const struct small_config *c) {
    return 3 - c->rank;
}
/* The first axis on which masks depend. */
NH_CONFIG_FN int small_masked_axis(const struct small_config *c) {
    return c->plane_chunks ? 1 : small_first_axis(c);
}

/* Where the last of `tiles` work tiles along an axis begins. With `ends` it has so many rows, of which the work tile before it
 * then lacks some: so those near the end are in warp tiles that lie the same in grids of all lengths. On a short axis it begins
 * behind those near the front, whole warp tiles later. */
NH_CONFIG_FN int small_last_work_tile(const struct small_config *c, int axis, int length,
                                      int tiles) {
    int begin = (tiles - 1) * c->rows[axis], own = length - c->ends[axis],
        tile = c->warp_tile[axis];
    if (own < c->window[axis]) own += (c->window[axis] - own + tile - 1) / tile * tile;
    return c->ends[axis] && tiles > 1 && own < begin ? own : begin;
}
/* Whether the last work tile along some axis begins where its end decides. */
NH_CONFIG_FN int small_has_ends(const struct small_config *c) {
    return c->ends[0] + c->ends[1] + c->ends[2] > 0;
}

/* ---- rows of tensors: units of 16 bytes, two of which are a step of a product ---- */

NH_CONFIG_FN int small_units(int width, int element_bytes) {
    return small_ceil_div(width * element_bytes, 32) * 2;
}
/* If the number of units, which is even, is no power of two, rows get one more: then no swizzle is needed. */
NH_CONFIG_FN int small_is_swizzled(int units) {
    return (units & (units - 1)) == 0;
}
NH_CONFIG_FN int small_row_bytes(int width, int element_bytes) {
    int units = small_units(width, element_bytes);
    return 16 * (units + !small_is_swizzled(units));
}

/* ---- boxes ---- */

NH_CONFIG_FN int small_work_tile_rows(const struct small_config *c) {
    return c->rows[0] * c->rows[1] * c->rows[2];
}
NH_CONFIG_FN int small_warp_tiles(const struct small_config *c) {
    return small_work_tile_rows(c) / 16;
}
NH_CONFIG_FN long long small_box_columns(const struct small_config *c) {
    return (long long)c->columns[0] * c->columns[1] * c->columns[2];
}
/* A product has 8 columns, a matrix load 16, and a thread's masks of a chunk are 32 bits. */
NH_CONFIG_FN long long small_box_blocks(const struct small_config *c) {
    return (small_box_columns(c) + 7) / 8;
}
NH_CONFIG_FN int small_chunks(const struct small_config *c) {
    return c->plane_chunks ? c->columns[0]
                           : (int)((small_box_blocks(c) + c->chunk_blocks - 1) / c->chunk_blocks);
}
/* Pairs of blocks in a chunk, 16 columns each. */
NH_CONFIG_FN int small_pairs(const struct small_config *c) {
    if (c->plane_chunks) return small_ceil_div(c->columns[1] * c->columns[2], 16);
    return ((int)((small_box_blocks(c) + small_chunks(c) - 1) / small_chunks(c)) + 1) / 2;
}
/* Columns of all chunks, with those that fill up matrix loads. */
NH_CONFIG_FN int small_chunk_columns(const struct small_config *c) {
    return 16 * small_chunks(c) * small_pairs(c);
}
/* Chunks of which there are tables, and their columns: all, or those of one plane. */
NH_CONFIG_FN int small_table_chunks(const struct small_config *c) {
    return c->plane_chunks ? 1 : small_chunks(c);
}
NH_CONFIG_FN int small_table_columns(const struct small_config *c) {
    return 16 * small_table_chunks(c) * small_pairs(c);
}

/* ---- the halo in shared memory ---- */

/* Rows from one position to the next along the second axis, and along the first: consecutive columns of a warp tile's
 * box are consecutive rows modulo 8, also across line ends. */
NH_CONFIG_FN long long small_line(const struct small_config *c) {
    return c->halo[0] * c->halo[1] == 1 ? c->halo[2] : small_congruent(c->halo[2], c->columns[2]);
}
NH_CONFIG_FN long long small_plane(const struct small_config *c) {
    long long plane = c->halo[1] * small_line(c);
    if (c->plane_chunks) return small_congruent(plane, 0);
    return c->halo[0] == 1 ? plane
                           : small_congruent(plane, (long long)c->columns[1] * c->columns[2]);
}
/* Rows of what is fetched at a time: the halo, or one slot of it. */
NH_CONFIG_FN long long small_fetched_rows(const struct small_config *c) {
    if (c->plane_chunks) return c->halo[1] * small_line(c);
    if (c->slots) return c->halo[0] * small_plane(c);
    return (c->halo[0] - 1) * small_plane(c) + (c->halo[1] - 1) * small_line(c) + c->halo[2];
}
NH_CONFIG_FN long long small_slot_rows(const struct small_config *c) {
    return c->plane_chunks ? small_plane(c) : small_fetched_rows(c);
}
NH_CONFIG_FN long long small_halo_rows(const struct small_config *c) {
    return small_larger(c->slots, 1) * small_slot_rows(c);
}
/* Halos at a time: one where threads copy, and where it rolls. */
NH_CONFIG_FN int small_halos(const struct small_config *c) {
    return c->stages == 0 || c->slots ? 1 : c->stages;
}

/* Statistics of columns: boxes start at multiples of 128 bytes, so a slot of lines, or a plane, has a multiple of 8. */
NH_CONFIG_FN long long small_statistics_line(const struct small_config *c) {
    return c->slots && c->rank == 2 ? (small_line(c) + 1) / 2 * 2 : small_line(c);
}
NH_CONFIG_FN long long small_fetched_statistics(const struct small_config *c) {
    return c->slots && c->rank == 2 ? c->halo[1] * small_statistics_line(c) : small_fetched_rows(c);
}
NH_CONFIG_FN long long small_slot_statistics(const struct small_config *c) {
    return c->pipeline == SMALL_PLANES ? small_congruent(small_fetched_statistics(c), 0)
                                       : small_fetched_statistics(c);
}
NH_CONFIG_FN long long small_statistics(const struct small_config *c) {
    return small_larger(c->slots, 1) * small_slot_statistics(c);
}

/* The lines of its box, of so many columns each, that a warp tile multiplies in the backward if its rows see `seen` of
 * them: columns come in pairs of blocks. */
NH_CONFIG_FN int small_touched_lines(int seen, int columns, int lines, int least_pairs) {
    int pairs = small_larger(small_ceil_div(seen * columns, 16), least_pairs);
    int touched = small_ceil_div(16 * pairs, columns);
    return touched < lines ? touched : lines;
}

/* Ways in which the end of a rolling halo may split a box's lines, each with tables: none if it is between chunks. */
NH_CONFIG_FN int small_wraps(const struct small_config *c) {
    return c->slots ? c->columns[small_first_axis(c)] : 1;
}
NH_CONFIG_FN int small_table_wraps(const struct small_config *c) {
    return c->plane_chunks ? 1 : small_wraps(c);
}
/* Rows in the halo are loaded for four pairs at a time; 8 columns fall into different banks if their number is odd. */
NH_CONFIG_FN int small_gathers(const struct small_config *c) {
    return small_ceil_div(small_pairs(c), 4) | 1;
}

/* ---- masks ---- */

/* Places of an axis in the product that masks; 0: all rows see the same columns along it. */
NH_CONFIG_FN int small_axis_places(const struct small_config *c, int axis) {
    int spread = c->columns[axis] - c->window[axis];
    if (axis < small_masked_axis(c) || !small_adds_mask(c)) return 0;
    return c->mask == SMALL_KINDS         ? c->warp_tile[axis]
           : c->mask == SMALL_COORDINATES ? c->columns[axis]
           : spread > 0                   ? spread + 1
                                          : 0;
}
NH_CONFIG_FN int small_places(const struct small_config *c) {
    return small_axis_places(c, 0) + small_axis_places(c, 1) + small_axis_places(c, 2);
}
/* Products of depth 16 for the places, or one of depth 8, and words of the columns' operand per lane and product. */
NH_CONFIG_FN int small_place_steps(const struct small_config *c) {
    return c->mask == SMALL_COORDINATES ? small_places(c) / 16 + 1 : 1;
}
NH_CONFIG_FN int small_mask_words(const struct small_config *c) {
    return c->mask == SMALL_COORDINATES ? 4 : 2;
}
/* Pairs of columns in tables of masks by coordinates or starts. */
NH_CONFIG_FN int small_mask_pairs(const struct small_config *c) {
    return small_adds_mask(c) && c->mask != SMALL_KINDS ? small_table_columns(c) / 16 : 1;
}
/* struct nh_additive_masks */
NH_CONFIG_FN int small_additive_masks_bytes(const struct small_config *c) {
    return small_mask_pairs(c) * small_place_steps(c) * 32 * 4 * small_mask_words(c);
}

/* Kinds of warp tiles along an axis: in front, of rows nearer to the border than a window; behind, perhaps one more. */
NH_CONFIG_FN int small_front_kinds(const struct small_config *c, int axis) {
    return small_ceil_div(c->window[axis] + c->shift[axis], c->warp_tile[axis]);
}
NH_CONFIG_FN int small_axis_kinds(const struct small_config *c, int axis) {
    return axis < small_masked_axis(c) ? 0 : 2 * small_front_kinds(c, axis) + 2;
}
NH_CONFIG_FN int small_kinds(const struct small_config *c) {
    return small_axis_kinds(c, 0) + small_axis_kinds(c, 1) + small_axis_kinds(c, 2);
}
/* struct nh_kinds: rows, and for each kind columns and what rows see. */
NH_CONFIG_FN long long small_kinds_bytes(const struct small_config *c) {
    enum { ROWS = 32 * 8, PAIR = 16 * 8, SEEN = 8 };
    if (c->mask != SMALL_KINDS) return ROWS + PAIR + SEEN;
    return ROWS + (long long)small_kinds(c) * (PAIR * (small_table_columns(c) / 16) + 4 * SEEN);
}

/* ---- bias ---- */

/* Entries of the bias table per step along an axis. */
NH_CONFIG_FN int small_bias_step(const struct small_config *c, int axis) {
    return axis == 2 ? 1 : small_bias_step(c, axis + 1) * (2 * c->window[axis + 1] - 1);
}
/* Zeros on both sides of a head's table: entries are read for columns that a row does not see, too. */
NH_CONFIG_FN int small_bias_margin(const struct small_config *c) {
    int margin = 0;
    for (int a = small_first_axis(c); a < 3 && c->bias_count; a++)
        margin += (c->columns[a] + c->warp_tile[a]) * small_bias_step(c, a);
    return margin;
}
/* Score gradients of a row, padded so that the eight rows to which a warp writes at once fall into different banks. */
NH_CONFIG_FN int small_laid_columns(const struct small_config *c) {
    return c->bias_count ? small_chunk_columns(c) + 8 : 2;
}
/* struct nh_bias_sums */
NH_CONFIG_FN long long small_bias_sums_bytes(const struct small_config *c) {
    long long warps = c->bias_count ? c->warps : 1;
    long long row = small_laid_columns(c) * c->element_bytes;
    return small_round_up(warps * (16 * row + 4 * small_larger(c->bias_count, 1)), 16);
}

/* ---- shared memory: sizes of the kernels' structs, asserted where these are defined ---- */

/* struct nh_work_tile */
NH_CONFIG_FN int small_work_tile_bytes(const struct small_config *c) {
    enum { PLACE = 64, LINE_ROLL = 16, PLANE_ROLL = 20, REGIONS = 85, ENDS = 12, TENSOR = 32 };
    int place = PLACE + (c->pipeline == SMALL_PLANES ? PLANE_ROLL : LINE_ROLL);
    if (c->regions) place += REGIONS;
    if (small_has_ends(c)) place += ENDS;
    return (int)small_round_up(place, 8) + TENSOR * NH_CUDA_TENSORS;
}
/* struct nh_places, what a row sees on an axis, which is aligned to its size */
NH_CONFIG_FN int small_places_bytes(const struct small_config *c) {
    return c->mask == SMALL_STARTS ? 16 : 4;
}
/* struct nh_visibility */
NH_CONFIG_FN int small_visibility_bytes(const struct small_config *c) {
    int rows = c->rows[0] + c->rows[1] + c->rows[2], places = small_places_bytes(c);
    int bytes = (int)small_round_up(4 * rows, places) + places * rows + 4 * rows;
    bytes += 8 * (c->slots ? c->rows[small_first_axis(c)] : 1) + 4 * (c->regions ? rows : 1);
    bytes += 16 * (c->mask == SMALL_BITS ? rows : 1) * small_chunks(c);
    return (int)small_round_up(bytes, places);
}
/* struct nh_tile_info */
NH_CONFIG_FN int small_info_bytes(const struct small_config *c) {
    int places = small_places_bytes(c), bias = c->bias_count + 2 * small_bias_margin(c);
    int lse = c->pass == SMALL_BY_QUERY ? small_work_tile_rows(c) : 1;
    int bytes = (int)small_round_up(small_work_tile_bytes(c), places) + small_visibility_bytes(c);
    bytes += 4 * small_larger(bias, 1) + 4 + 8 * lse;
    return (int)small_round_up(bytes, small_larger(places, 8));
}
/* Tile infos of a block: of the work tile at hand and the next one, or those held and those that producers prepare. */
NH_CONFIG_FN int small_infos(const struct small_config *c) {
    return c->stages ? c->held + c->fetchers : 2;
}
/* struct nh_tables */
NH_CONFIG_FN long long small_tables_bytes(const struct small_config *c) {
    enum { DIGITS = 108, SCALES = 8 };
    long long coordinates = c->columns[0] + c->columns[1] + c->columns[2] + 3;
    long long prefixes = 16 * (c->mask == SMALL_BITS ? coordinates : 1) * small_chunks(c);
    long long wraps = small_table_wraps(c), bias = c->bias_count ? small_chunk_columns(c) : 1;
    long long statistics = c->pass == SMALL_BY_KEY ? wraps * small_table_columns(c) : 1;
    long long columns = wraps * small_table_chunks(c) * 16 * 16 * small_gathers(c);
    columns = small_round_up(columns + 4 * (bias + statistics), 16);
    return small_round_up(small_round_up(DIGITS + prefixes, 16) + columns + SCALES, 16);
}
/* struct nh_ring */
NH_CONFIG_FN long long small_ring_bytes(const struct small_config *c) {
    enum { BARRIER = 8, COUNTS = 16, PLACE = 16 };
    long long barriers = 2 * c->stages + small_infos(c) + c->held;
    barriers += (c->pipeline == SMALL_PLANES ? c->held : 1) + (c->periodic ? c->fetchers : 1);
    return small_round_up(
               (long long)small_infos(c) * small_info_bytes(c) + BARRIER * barriers + COUNTS, 16) +
           (long long)PLACE * c->warps;
}

/* Rows of two tensors of columns, and statistics by keys: one halo, or where tensors take turns the place of both. */
NH_CONFIG_FN long long small_halo_bytes(const struct small_config *c) {
    long long rows = small_halo_rows(c), first = rows * small_row_bytes(c->dim, c->element_bytes),
              second = rows * small_row_bytes(c->dim_v, c->element_bytes);
    int align = c->stages ? SMALL_BOX_ALIGNMENT : 128;
    if (c->pipeline == SMALL_TURNS) return small_round_up(first > second ? first : second, 16);
    long long statistics =
        c->pass == SMALL_BY_KEY ? SMALL_STATISTICS_BYTES * small_statistics(c) : 0;
    return small_round_up(first, align) + small_round_up(second, align) +
           small_round_up(statistics, align);
}
/* Rows of a work tile, of each tensor that the pass reads: struct nh_rows. */
NH_CONFIG_FN long long small_rows_bytes(const struct small_config *c) {
    int rows = small_work_tile_rows(c), align = c->stages ? SMALL_BOX_ALIGNMENT : 128;
    int first = rows * small_row_bytes(c->dim, c->element_bytes),
        second = rows * small_row_bytes(c->dim_v, c->element_bytes);
    if (c->pipeline == SMALL_TURNS) return 0;
    if (c->pass == SMALL_FORWARD) return small_round_up(small_larger(first, second), align);
    return small_round_up(first, align) +
           (c->pass == SMALL_BY_KEY ? 1 : 2) * small_round_up(second, align);
}
/* A warp's results on their way to the copy engine. */
NH_CONFIG_FN int small_results_bytes(const struct small_config *c) {
    int bytes = 16 * small_row_bytes(small_larger(c->dim, c->dim_v), c->element_bytes);
    return (c->pass == SMALL_BY_KEY ? 2 : 1) * (int)small_round_up(bytes, SMALL_BOX_ALIGNMENT);
}

/* struct nh_shared, all that a block has. */
NH_CONFIG_FN long long small_shared_bytes(const struct small_config *c) {
    long long bytes =
        small_halos(c) * small_halo_bytes(c) + small_larger(c->stages, 1) * small_rows_bytes(c);
    bytes += c->stages ? c->warps * small_results_bytes(c) + small_ring_bytes(c)
                       : small_round_up(2LL * small_info_bytes(c), 16);
    bytes += small_tables_bytes(c) + small_additive_masks_bytes(c);
    if (c->pipeline == SMALL_TURNS)
        bytes += small_round_up(small_kinds_bytes(c), 16) +
                 SMALL_STATISTICS_BYTES * (c->pass == SMALL_BY_KEY ? small_statistics(c) : 1);
    else
        bytes += c->pass == SMALL_FORWARD    ? 8
                 : c->pass == SMALL_BY_QUERY ? small_bias_sums_bytes(c)
                                             : small_kinds_bytes(c);
    return small_round_up(bytes, c->stages ? SMALL_BOX_ALIGNMENT : 128);
}

#endif
