/* A list of the few fastest of many candidates: configs of a solver, or parts of configs. */
#ifndef NH_TOP_N_H
#define NH_TOP_N_H

#include "solver.h"

#include <math.h>

enum { NH_TOP_N_MOST = 20 };

struct nh_top_n {
    void *item; /* fastest first; of equals, the one added first */
    size_t item_bytes;
    double ns[NH_TOP_N_MOST];
    int count, capacity;
};

/* Starts an empty list in the array `item` of `capacity` items of `item_bytes` each; at most NH_TOP_N_MOST are used. */
void nh_top_n_start(struct nh_top_n *top, void *item, size_t item_bytes, int capacity);

static inline void nh_top_configs_start(struct nh_top_n *top, struct nh_config *config,
                                        int capacity) {
    nh_top_n_start(top, config, sizeof *config, capacity);
}

/* The time below which an item is kept. Inline, as searches ask for it thousands of times. */
static inline double nh_top_n_limit(const struct nh_top_n *top) {
    return top->count < top->capacity ? INFINITY : top->ns[top->count - 1];
}

/* Adds a copy of an item if its time is below the limit. INFINITY, for a config that cannot run, never is. */
void nh_top_n_add(struct nh_top_n *top, const void *item, double ns);

#endif
