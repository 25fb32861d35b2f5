/* Long sums are added up in chains, because the rounding error of a sum grows with the number of additions in a chain. */
#ifndef NH_CHAIN_H
#define NH_CHAIN_H

#include "pack.h"

/* The number of terms, which come from steps or tiles, that are added up in a chain before it is added to the total. */
enum { CHAIN_TERMS = 32 };

/* Adds `part` to `sum`, and prefetches what lies `ahead` reals further on. */
static void add_rows(real *sum, const real *part, int64_t reals, int64_t ahead) {
    enum { LINE = 64 / sizeof(real) };
    const struct rows rows = {.ahead = ahead * (int64_t)sizeof(real)};
    for (int64_t i = 0; i < reals; i += VL) {
        if (i % LINE == 0) ask_ahead(&rows, (const char *)(part + i));
        v_store(sum + i, v_load(sum + i) + v_load(part + i));
    }
}

/* Ends a chain after its last term: `sum` goes to `total` and begins anew. */
static void end_chain(real *sum, real *total, int64_t reals, int64_t terms) {
    if (terms % CHAIN_TERMS != 0) return;
    if (terms == CHAIN_TERMS) memset(total, 0, (size_t)reals * sizeof(real));
    add_rows(total, sum, reals, 0);
    memset(sum, 0, (size_t)reals * sizeof(real));
}

/* Adds the earlier chains to the last. */
static void add_chains(real *sum, const real *total, int64_t reals, int64_t terms) {
    if (terms >= CHAIN_TERMS) add_rows(sum, total, reals, 0);
}

#endif
