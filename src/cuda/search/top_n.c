#include "top_n.h"

void nh_cheapest_start(struct nh_cheapest *cheapest, double below_ns, struct nh_config *config,
                       int capacity) {
    cheapest->below_ns = below_ns;
    cheapest->config = config;
    cheapest->count = 0;
    cheapest->capacity = capacity < NH_MOST_CHEAPEST ? capacity : NH_MOST_CHEAPEST;
}

double nh_cheapest_limit(const struct nh_cheapest *cheapest) {
    return cheapest->count < cheapest->capacity ? cheapest->below_ns
                                                : cheapest->ns[cheapest->count - 1];
}

void nh_cheapest_add(struct nh_cheapest *cheapest, const struct nh_config *config, double ns) {
    if (!(ns < nh_cheapest_limit(cheapest))) return;
    int at = cheapest->count < cheapest->capacity ? cheapest->count++ : cheapest->capacity - 1;
    for (; at > 0 && cheapest->ns[at - 1] > ns; at--) {
        cheapest->ns[at] = cheapest->ns[at - 1];
        cheapest->config[at] = cheapest->config[at - 1];
    }
    cheapest->ns[at] = ns;
    cheapest->config[at] = *config;
}
