/* What a kernel of cuda.gemm is compiled for, and the layout of its dynamic shared memory, for host and kernels. */
#ifndef NH_GEMM_CONFIG_H
#define NH_GEMM_CONFIG_H

#include "kernel_config.h"

/* The operators. GEMM_IN is by keys: tiles are of keys, and columns are the queries that attend them. */
enum gemm_pass { GEMM_PN, GEMM_NN, GEMM_IN };

#define GEMM_CONFIG(ONE, MANY)                                                                     \
    ONE(pass)          /* enum gemm_pass */                                                        \
    ONE(rank)          /* of the problem */                                                        \
    ONE(element_bytes) /* of the problem */                                                        \
    MANY(tile, 3)      /* its tokens by axis, 1 on unit axes */                                    \
    ONE(columns)       /* of a chunk */                                                            \
    ONE(width)         /* elements of a row in shared memory */                                    \
    ONE(vector)        /* elements of an aligned load */                                           \
    ONE(causal)        /* 1: some axis is causal */                                                \
    ONE(strided)       /* 1: some stride is above 1 */                                             \
    ONE(biased)        /* 1: there is a relative bias */
NH_KERNEL_CONFIG(gemm_config, GEMM_CONFIG);

NH_CONFIG_FN int gemm_rows(const struct gemm_config *c) {
    return c->tile[0] * c->tile[1] * c->tile[2];
}
/* Elements of a row in shared memory: whole steps of a product. */
NH_CONFIG_FN int gemm_width(int dim) {
    return (dim + 15) / 16 * 16;
}

/* Elements from one row to the next, which start in different banks: of rows that are read along them, of width elements
 * (queries and keys, weights), and of rows that are read down columns. */
NH_CONFIG_FN int gemm_stride_along(const struct gemm_config *c, int width) {
    return width + 16 / c->element_bytes;
}
NH_CONFIG_FN int gemm_stride_down(const struct gemm_config *c) {
    return c->width + 8;
}
/* Floats from one row of a warp's scores to the next. */
NH_CONFIG_FN int gemm_score_stride(const struct gemm_config *c) {
    return c->columns + 8;
}

/* pn: queries, two chunks of keys, and scores. */
NH_CONFIG_FN int gemm_pn_bytes(const struct gemm_config *c) {
    return (gemm_rows(c) + 2 * c->columns) * gemm_stride_along(c, c->width) * c->element_bytes +
           gemm_rows(c) * gemm_score_stride(c) * 4;
}
/* nn and in: two chunks of rows, and weights; at the end sums lie in their place. */
NH_CONFIG_FN int gemm_band_bytes(const struct gemm_config *c) {
    const int row = gemm_stride_down(c) * c->element_bytes;
    const int chunks =
        2 * c->columns * row + gemm_rows(c) * gemm_stride_along(c, c->columns) * c->element_bytes;
    return chunks > gemm_rows(c) * row ? chunks : gemm_rows(c) * row;
}

#endif
