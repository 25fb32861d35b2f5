/* The few cheapest of many things that are tried: configs of a solver, or what configs are made of. */
#ifndef NH_TOP_N_H
#define NH_TOP_N_H

#include "solver.h"

enum { NH_TOP_N_MOST = 20 };

struct nh_top_n {
    void *item; /* cheapest first; of equals, the one that was tried first */
    size_t item_bytes;
    double ns[NH_TOP_N_MOST], below_ns;
    int count, capacity;
};

/* An empty list in `item`, which has room for `capacity` things of `item_bytes` each, of which at most NH_TOP_N_MOST are
 * used. None are kept but those below `below_ns`, which may be INFINITY. */
void nh_top_n_start(struct nh_top_n *top, double below_ns, void *item, size_t item_bytes,
                    int capacity);

/* An empty list of configs. */
static inline void nh_top_configs_start(struct nh_top_n *top, double below_ns,
                                        struct nh_config *config, int capacity) {
    nh_top_n_start(top, below_ns, config, sizeof *config, capacity);
}

/* What something must stay below to be kept: searches ask for it thousands of times. */
static inline double nh_top_n_limit(const struct nh_top_n *top) {
    return top->count < top->capacity ? top->below_ns : top->ns[top->count - 1];
}

/* Keeps a copy of something that stays below the limit: INFINITY is no estimate of a config that runs. */
void nh_top_n_add(struct nh_top_n *top, const void *item, double ns);

#endif
