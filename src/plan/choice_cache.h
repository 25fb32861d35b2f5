/* Remembers choices, because asking solvers for candidates and their estimates takes tens of microseconds. */
#ifndef NH_CHOICE_CACHE_H
#define NH_CHOICE_CACHE_H

#include "planner.h"

/* Any thread may use it; it has its own lock. */
struct nh_choice_cache;

nhood_status nh_choice_cache_create(const struct nh_host *host, struct nh_choice_cache **cache);
void nh_choice_cache_destroy(struct nh_choice_cache *cache); /* does nothing for NULL */

/* As nh_planner_choose. Remembers a successful choice until the request's wisdom changes. A cache serves requests with one
 * solver table and one wisdom. */
nhood_status nh_choice_cache_choose(struct nh_choice_cache *cache, const struct nh_request *request,
                                    struct nh_choice *choice);

#endif
