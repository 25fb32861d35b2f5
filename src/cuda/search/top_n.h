/* Of the configs that a solver tries, those of the least estimates. */
#ifndef NH_TOP_N_H
#define NH_TOP_N_H

#include "solver.h"

enum { NH_MOST_CHEAPEST = 20 };

struct nh_cheapest {
    struct nh_config *config; /* cheapest first; of equals, the one that was tried first */
    double ns[NH_MOST_CHEAPEST], below_ns;
    int count, capacity;
};

/* With none so far; `config` has room for `capacity`, of which at most NH_MOST_CHEAPEST are used. None are kept but those
 * below `below_ns`, which may be INFINITY. */
void nh_cheapest_start(struct nh_cheapest *cheapest, double below_ns, struct nh_config *config,
                       int capacity);

/* What a config must stay below to be kept. */
double nh_cheapest_limit(const struct nh_cheapest *cheapest);

/* Keeps a config that stays below the limit: INFINITY is no estimate of a config that runs. */
void nh_cheapest_add(struct nh_cheapest *cheapest, const struct nh_config *config, double ns);

#endif
