/* What a kernel of norm_rope is compiled for, and what follows from that: see norm_rope.cuh. */
#ifndef NH_NORM_ROPE_CONFIG_H
#define NH_NORM_ROPE_CONFIG_H

#include "kernel_config.h"

/* The channels that share a norm; values of nhood_norm. */
enum norm_rope_norm { NORM_ROPE_NO_NORM, NORM_ROPE_HEAD_NORM, NORM_ROPE_TOKEN_NORM };

/* The type of weights. */
enum norm_rope_weight { NORM_ROPE_NO_WEIGHT, NORM_ROPE_STORED_WEIGHT, NORM_ROPE_REAL_WEIGHT };

enum { NORM_ROPE_WARP = 32 /* lanes */ };

/* norm, weight: as above (norm_rope_weight.cu has no other member); halves: pairs of channels are halves, not
 * neighbors. threads of a block, min_blocks: blocks per multiprocessor, which limits registers. group: lanes of a row;
 * units of a lane; pairs of a unit; vector, table: elements per load of a tensor, and pairs per load of a table; rows:
 * heads in flight. whole: all units of all lanes exist; full: items have whole multiples of `rows` heads; index32:
 * there are fewer than 2^31 items; unaligned: tables may start anywhere. */
#define NORM_ROPE_CONFIG(ONE, MANY)                                                                \
    ONE(norm)                                                                                      \
    ONE(weight)                                                                                    \
    ONE(halves)                                                                                    \
    ONE(threads)                                                                                   \
    ONE(min_blocks)                                                                                \
    ONE(group)                                                                                     \
    ONE(units)                                                                                     \
    ONE(pairs)                                                                                     \
    ONE(vector)                                                                                    \
    ONE(table)                                                                                     \
    ONE(rows)                                                                                      \
    ONE(whole)                                                                                     \
    ONE(full)                                                                                      \
    ONE(index32)                                                                                   \
    ONE(unaligned)
NH_KERNEL_CONFIG(norm_rope_config, NORM_ROPE_CONFIG);

/* A block has one row. */
NH_CONFIG_FN int norm_rope_shared_row(const struct norm_rope_config *c) {
    return c->group > NORM_ROPE_WARP;
}
/* Channels that all lanes of a row have room for. */
NH_CONFIG_FN int norm_rope_room(const struct norm_rope_config *c) {
    return c->group * c->units * c->pairs * 2;
}

#endif
