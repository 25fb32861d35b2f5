/* What a kernel of cuda.small is compiled for, and every number of its layout that follows from that. The host chooses a
 * configuration (small_choice.c) and asks these functions how much shared memory it takes; the kernel lays shared
 * memory out by the same functions, and is compiled with `constexpr small_config C = NH_CONFIG`. */
#ifndef NH_SMALL_CONFIG_H
#define NH_SMALL_CONFIG_H

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

/* How scores of columns that a row does not see are masked: see small_additive_mask.cuh and small_kinds.cuh. */
enum small_mask {
    SMALL_NO_MASK, /* every row sees all columns of its warp tile's box */
    SMALL_BITS,    /* a bit per score */
    SMALL_STARTS,  /* a product, with a place for each column at which a row's window may start */
    SMALL_COORDINATES, /* a product, with a place for each coordinate of a column */
    SMALL_KINDS /* a product, with a place for each coordinate of a row, and tables for kinds of warp tiles */
};

/* Blocks of 8 columns in a chunk where masks are bits: a thread's share of them is 32 bits. */
enum { SMALL_MASK_BLOCKS = 16 };

/* The statistics of a head and query: -LSE in base 2 and delta, see small_statistics.cuh. */
enum { SMALL_STATISTICS_BYTES = 16 };

/* Tensors: rank, element_bytes, dim, dim_v (multiples of 8 up to 128, in f32 of 32), window by axis, bias_count (entries
 * of a head's bias table, 0: no bias), and the layouts of tensor maps (enum nh_map_layout).
 * What the problem lets the kernel assume: strided (some stride is not 1), dilated, whole (work tiles have no rows
 * beyond their group).
 * The block: warps that compute, fetchers (producer warps after them), min_blocks per multiprocessor.
 * Boxes, by axis: rows of a work tile and of a warp tile, columns of a warp tile and of a work tile (halo); shift: rows
 * by which work tiles begin before the first one.
 * The pipeline: stages of the copy engine, slots of a rolling halo, held work tiles that may use it, lines_before and
 * slots_around (see small_roll.cuh), near_heads, seam_lines (see small_seam.cuh).
 * The loop over columns: plane_chunks (each chunk is a plane of the box), else chunk_blocks (the most blocks of 8 columns
 * in a chunk); least_pairs of blocks that every warp tile multiplies. */
#define SMALL_CONFIG(ONE, MANY)                                                                    \
    ONE(pass)                                                                                      \
    ONE(pipeline)                                                                                  \
    ONE(mask)                                                                                      \
    ONE(rank)                                                                                      \
    ONE(element_bytes)                                                                             \
    ONE(dim)                                                                                       \
    ONE(dim_v)                                                                                     \
    MANY(window, 3)                                                                                \
    ONE(bias_count)                                                                                \
    ONE(strided)                                                                                   \
    ONE(dilated)                                                                                   \
    ONE(whole)                                                                                     \
    ONE(warps)                                                                                     \
    ONE(fetchers)                                                                                  \
    ONE(min_blocks)                                                                                \
    MANY(rows, 3)                                                                                  \
    MANY(warp_tile, 3)                                                                             \
    MANY(columns, 3)                                                                               \
    MANY(halo, 3)                                                                                  \
    MANY(shift, 3)                                                                                 \
    ONE(stages)                                                                                    \
    ONE(slots)                                                                                     \
    ONE(held)                                                                                      \
    ONE(lines_before)                                                                              \
    ONE(slots_around)                                                                              \
    ONE(near_heads)                                                                                \
    ONE(seam_lines)                                                                                \
    ONE(plane_chunks)                                                                              \
    ONE(chunk_blocks)                                                                              \
    ONE(least_pairs)                                                                               \
    ONE(shared_bytes)                                                                              \
    ONE(q_map) ONE(k_map) ONE(v_map) ONE(o_map) ONE(d_o_map) ONE(d_q_map) ONE(d_k_map) ONE(d_v_map)
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

/* Statistics of columns: boxes of the copy engine start at multiples of 128 bytes, so a slot of lines, or a plane, has a
 * multiple of 8 of them. */
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

/* Ways in which the end of a rolling halo may split the lines of a box, for each of which there are tables: none if
 * that is between chunks. */
NH_CONFIG_FN int small_wraps(const struct small_config *c) {
    return c->slots ? c->columns[small_first_axis(c)] : 1;
}
NH_CONFIG_FN int small_table_wraps(const struct small_config *c) {
    return c->plane_chunks ? 1 : small_wraps(c);
}
/* Rows in the halo are loaded for four pairs at a time; their number is odd, so that 8 columns fall into different
 * banks. */
NH_CONFIG_FN int small_gathers(const struct small_config *c) {
    return small_ceil_div(small_pairs(c), 4) | 1;
}

#endif
