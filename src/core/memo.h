/* Results that are computed again and again from the same few bytes, remembered by these. A memo has room for a fixed number of
 * results, of which new ones replace those that were not asked for longest. Threads may share it. */
#ifndef NH_MEMO_H
#define NH_MEMO_H

#include "base.h"

struct nh_memo;

/* places: a multiple of 4; results take memory when they are kept. MEMORY. */
nhood_status nh_memo_create(const struct nh_host *host, int64_t places, struct nh_memo **memo);
void nh_memo_destroy(struct nh_memo *memo);

/* Whether there is a result of the key, which is copied to *value then. Keys are compared byte by byte, and whoever uses a memo for
 * several kinds of results sees to it that their keys differ. */
bool nh_memo_find(struct nh_memo *memo, const void *key, size_t key_bytes, void *value,
                  size_t value_bytes);

/* Remembers a result. Without memory it is not remembered. */
void nh_memo_keep(struct nh_memo *memo, const void *key, size_t key_bytes, const void *value,
                  size_t value_bytes);

#endif
