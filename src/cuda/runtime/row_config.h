/* How groups of lanes share rows: constexpr row_config ROW of kernels that include kernels/common/naive.cuh. */
#ifndef NH_ROW_CONFIG_H
#define NH_ROW_CONFIG_H

#include "kernel_config.h"

/* threads of a block, min_blocks per multiprocessor (0: any number). group: lanes that share a row; vector: elements
 * that a load moves; vectors of a lane; resident: rows fit the registers of their lanes; whole: every row is as long as
 * what its lanes have, so that no column needs a test. keys that a query takes at a time in the forward; delta_at:
 * place of delta among a query's statistics; extra: there may be extra tokens; biased. tiled: a block has a tile of
 * rows with a thread each, of keys with by_keys; rank, and extents of the tile. */
#define ROW_CONFIG(ONE, MANY)                                                                      \
    ONE(threads)                                                                                   \
    ONE(min_blocks)                                                                                \
    ONE(group)                                                                                     \
    ONE(vector)                                                                                    \
    ONE(vectors)                                                                                   \
    ONE(resident)                                                                                  \
    ONE(whole)                                                                                     \
    ONE(keys)                                                                                      \
    ONE(delta_at)                                                                                  \
    ONE(extra)                                                                                     \
    ONE(biased)                                                                                    \
    ONE(tiled)                                                                                     \
    ONE(rank)                                                                                      \
    ONE(by_keys)                                                                                   \
    MANY(tile, 3)
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
