/* Remembers choices: asking solvers for candidates and their estimates takes tens of microseconds. */
#ifndef NH_CHOICE_CACHE_H
#define NH_CHOICE_CACHE_H

#include "planner.h"

/* Locked inside. */
struct nh_choice_cache;

nhood_status nh_choice_cache_create(const struct nh_host *host, struct nh_choice_cache **cache);
void nh_choice_cache_destroy(struct nh_choice_cache *cache); /* NULL is fine */

/* As nh_planner_choose, of which it remembers what succeeded until the request's wisdom changes. A cache serves requests
 * of one solver table and one wisdom. */
nhood_status nh_choice_cache_choose(struct nh_choice_cache *cache, const struct nh_request *request,
                                    struct nh_choice *choice);

#endif
