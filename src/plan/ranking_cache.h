/* Remembers rankings: asking every solver for its candidates and their estimates takes up to a tenth of a
 * millisecond. */
#ifndef NH_RANKING_CACHE_H
#define NH_RANKING_CACHE_H

#include "planner.h"

/* Locked inside. */
struct nh_ranking_cache;

nhood_status nh_ranking_cache_create(const struct nh_host *host, struct nh_ranking_cache **cache);
void nh_ranking_cache_destroy(struct nh_ranking_cache *cache); /* NULL is fine */

/* As nh_planner_rank, of which it remembers what succeeded until the request's wisdom changes. A cache serves requests
 * of one solver table and one wisdom. */
nhood_status nh_ranking_cache_rank(struct nh_ranking_cache *cache, const struct nh_request *request,
                                   struct nh_ranking *ranking);

#endif
