/* How groups of lanes share rows: constexpr row_config ROW of kernels that include kernels/common/naive.cuh. */
#ifndef NH_ROW_CONFIG_H
#define NH_ROW_CONFIG_H

#include "kernel_config.h"

#define ROW_CONFIG(ONE, MANY)                                                                      \
    ONE(threads)    /* of a block */                                                               \
    ONE(min_blocks) /* blocks that a multiprocessor is to hold; 0: any number */                   \
    ONE(group)      /* lanes that share a row */                                                   \
    ONE(vector)     /* elements of a load */                                                       \
    ONE(vectors)    /* of a lane */                                                                \
    ONE(resident)   /* 1: rows fit the registers of their lanes */                                 \
    ONE(whole)      /* 1: rows have what their lanes have: no column needs a test */               \
    ONE(keys)       /* that a query takes at a time in the forward */                              \
    ONE(delta_at)   /* place of delta among a query's statistics */                                \
    ONE(extra)      /* 1: there may be extra tokens */                                             \
    ONE(biased)     /* 1: there is a relative bias */                                              \
    ONE(tiled)      /* 1: a block has a tile of rows, with a thread each */                        \
    ONE(rank)       /* of the grid, where tiled */                                                 \
    ONE(by_keys)    /* 1: these rows are keys */                                                   \
    MANY(tile, 3)   /* its extents */
NH_KERNEL_CONFIG(row_config, ROW_CONFIG);

enum { ROW_THREADS = 128, ROW_KEYS = 4 /* enough independent products to hide their latency */ };

/* Elements of a lane, and of all lanes of a row. */
NH_CONFIG_FN int row_lane_elements(const struct row_config *c) {
    return c->vectors * c->vector;
}
NH_CONFIG_FN int row_chunk(const struct row_config *c) {
    return c->group * row_lane_elements(c);
}
/* Elements from one row in shared memory to the next: an odd number of vectors, so that the rows of neighboring threads
 * fall into different banks. */
NH_CONFIG_FN int row_staged(const struct row_config *c) {
    return (c->vectors | 1) * c->vector;
}

#endif
