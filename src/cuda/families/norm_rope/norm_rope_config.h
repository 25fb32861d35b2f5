/* What a kernel of norm_rope is compiled for, and what follows from that: see norm_rope.cuh. */
#ifndef NH_NORM_ROPE_CONFIG_H
#define NH_NORM_ROPE_CONFIG_H

#include "kernel_config.h"

/* The channels that share a norm; values of nhood_norm. */
enum norm_rope_norm { NORM_ROPE_NO_NORM, NORM_ROPE_HEAD_NORM, NORM_ROPE_TOKEN_NORM };

/* The type of weights. */
enum norm_rope_weight { NORM_ROPE_NO_WEIGHT, NORM_ROPE_STORED_WEIGHT, NORM_ROPE_REAL_WEIGHT };

enum { NORM_ROPE_WARP = 32 /* lanes */ };

/* The kernel of norm_rope_weight.cu has only `weight`; its other members are 0. */
#define NORM_ROPE_CONFIG(ONE, MANY)                                                                \
    ONE(norm)       /* enum norm_rope_norm */                                                      \
    ONE(weight)     /* enum norm_rope_weight */                                                    \
    ONE(halves)     /* 1: pairs of channels are halves; 0: neighbors */                            \
    ONE(threads)    /* of a block */                                                               \
    ONE(min_blocks) /* blocks that a multiprocessor is to hold */                                  \
    ONE(group)      /* lanes of a row */                                                           \
    ONE(units)      /* of a lane */                                                                \
    ONE(pairs)      /* of a unit */                                                                \
    ONE(vector)     /* elements of a load */                                                       \
    ONE(table)      /* pairs of a load from a table */                                             \
    ONE(rows)       /* heads in flight */                                                          \
    ONE(whole)      /* 1: all units of all lanes exist */                                          \
    ONE(full)       /* 1: items have whole multiples of `rows` heads */                            \
    ONE(index32)    /* 1: there are fewer than 2^31 items */                                       \
    ONE(unaligned)  /* 1: tables may start anywhere */
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
