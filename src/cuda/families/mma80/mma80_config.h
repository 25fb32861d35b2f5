/* The configuration of the kernels of cuda.fused80 and cuda.split80, for host and device: what a kernel is compiled
 * for, and what follows from it for its tiles and shared memory. Each number is written once, here. The host fills
 * the struct in (tiled80.c), and mma80.cuh has it as the constant C. */
#ifndef NH_MMA80_CONFIG_H
#define NH_MMA80_CONFIG_H

#include "kernel_config.h"

/* What a kernel computes. Rows are what a block owns, columns what its loop goes over: queries and their keys (O, dQ),
 * keys and the queries that attend them (dK, dV), or extra tokens and all queries (their gradients). */
enum mma80_pass { MMA80_FORWARD, MMA80_BY_QUERY, MMA80_BY_KEY, MMA80_EXTRA };

#define MMA80_CONFIG(ONE, MANY)                                                                    \
    ONE(pass)          /* enum mma80_pass */                                                       \
    ONE(element_bytes) /* of the problem */                                                        \
    ONE(dim)           /* head dim */                                                              \
    ONE(dim_v)         /* value dim */                                                             \
    MANY(rows, 3)      /* extents of the tile of rows */                                           \
    MANY(columns, 3)   /* extents of a tile of columns */                                          \
    ONE(warps)         /* each has the same number of rows, a multiple of 16 */                    \
    ONE(stages)        /* tiles of columns in shared memory at a time */                           \
    ONE(min_blocks)    /* blocks that a multiprocessor is to hold */                               \
    ONE(vector)        /* elements that may be copied at a time */                                 \
    ONE(extra)         /* 1: extra tokens are columns, too */                                      \
    ONE(biased)        /* 1: scores have a relative bias */                                        \
    ONE(prescale)      /* 1: scores are scaled before their maximum: with a bias, or scale <= 0 */ \
    ONE(tf32)          /* 1: products of f32 are one product of TF32; 0: three */                  \
    ONE(long_sums)     /* 1: f32 sums are long, and are added up in parts (softmax.cuh) */         \
    ONE(sum_first)     /* 1: the backward makes dQ or dK */                                        \
    ONE(sum_second)    /* 1: it makes dV; 2 launches if registers do not hold dK and dV */
NH_KERNEL_CONFIG(mma80_config, MMA80_CONFIG);

NH_CONFIG_FN int mma80_row_count(const struct mma80_config *c) {
    return c->rows[0] * c->rows[1] * c->rows[2];
}

NH_CONFIG_FN int mma80_column_count(const struct mma80_config *c) {
    return c->columns[0] * c->columns[1] * c->columns[2];
}

/* Whether blocks own keys or extra tokens, and columns are queries. */
NH_CONFIG_FN int mma80_owns_keys(const struct mma80_config *c) {
    return c->pass >= MMA80_BY_KEY;
}

/* Whether dS is added up for the bias's gradient. */
NH_CONFIG_FN int mma80_sums_bias(const struct mma80_config *c) {
    return c->biased && c->pass == MMA80_BY_QUERY;
}

/* ---- rows in shared memory ---- */

/* Elements of a step of products along the head dim, which has 32 bytes, and a head dim in whole steps. */
NH_CONFIG_FN int mma80_step(const struct mma80_config *c) {
    return 32 / c->element_bytes;
}

NH_CONFIG_FN int mma80_padded(const struct mma80_config *c, int dim) {
    return (dim + mma80_step(c) - 1) / mma80_step(c) * mma80_step(c);
}

/* Elements from a row of a tile to the next one: 16 bytes more, an odd number of 16-byte units, so that the eight
 * rows of one matrix load fall into different banks. */
NH_CONFIG_FN int mma80_pitch(const struct mma80_config *c, int dim) {
    return mma80_padded(c, dim) + 16 / c->element_bytes;
}

/* The same for the block's own rows of its first tensor. In the forward outputs replace queries. */
NH_CONFIG_FN int mma80_own_pitch(const struct mma80_config *c) {
    return mma80_pitch(c, c->pass == MMA80_FORWARD && c->dim_v > c->dim ? c->dim_v : c->dim);
}

/* ---- shared memory ---- */

/* Coordinates of the rows, axis after axis; and of the columns with one more on each axis. */
NH_CONFIG_FN int mma80_axis_rows(const struct mma80_config *c) {
    return c->rows[0] + c->rows[1] + c->rows[2];
}

NH_CONFIG_FN int mma80_axis_prefixes(const struct mma80_config *c) {
    return c->columns[0] + c->columns[1] + c->columns[2] + 3;
}

/* Tensors that the loop reads: two of columns and, if those are queries, their statistics. */
NH_CONFIG_FN int mma80_loop_tensors(const struct mma80_config *c) {
    return mma80_owns_keys(c) ? 3 : 2;
}

/* struct nh_loop_tables: for each tensor an offset per column, and per way to the next tile */
NH_CONFIG_FN int mma80_loop_table_bytes(const struct mma80_config *c) {
    return mma80_loop_tensors(c) * (mma80_column_count(c) + 4) * 8;
}

/* struct nh_score_tables: the columns' places in the bias table, masks, and a box per warp */
NH_CONFIG_FN int mma80_score_table_bytes(const struct mma80_config *c) {
    return mma80_column_count(c) * 8 + mma80_axis_prefixes(c) * 16 + mma80_axis_rows(c) * 8 +
           c->warps * 24;
}

/* Floats of a row of dS, padded so that the lanes of eight rows, which store pairs at once, use different banks. */
NH_CONFIG_FN int mma80_bias_pitch(const struct mma80_config *c) {
    return mma80_column_count(c) + 8;
}

/* struct nh_bias_tile: dS of a tile or, where no bias's gradient is made, nearly nothing */
NH_CONFIG_FN int mma80_bias_tile_floats(const struct mma80_config *c) {
    return mma80_sums_bias(c) ? mma80_row_count(c) * mma80_bias_pitch(c) : 2;
}

/* The block's own rows: queries or, backward, rows of two tensors. */
NH_CONFIG_FN int mma80_own_elements(const struct mma80_config *c) {
    const int second = c->pass == MMA80_FORWARD ? 0 : mma80_pitch(c, c->dim_v);
    return mma80_row_count(c) * (mma80_own_pitch(c) + second);
}

/* struct nh_shared; in the backward nh_backward_shared, with statistics of columns and a tile of dS */
NH_CONFIG_FN int mma80_shared_bytes(const struct mma80_config *c) {
    const int stage = mma80_column_count(c) * (mma80_pitch(c, c->dim) + mma80_pitch(c, c->dim_v));
    const int statistics = c->stages * mma80_column_count(c) * 8;
    return (mma80_own_elements(c) + c->stages * stage) * c->element_bytes +
           mma80_loop_table_bytes(c) + mma80_score_table_bytes(c) +
           (c->pass == MMA80_FORWARD ? 0 : statistics + mma80_bias_tile_floats(c) * 4);
}

#endif
