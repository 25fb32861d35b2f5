/* Keeps a store's folder under its size. */
#ifndef NH_STORE_PRUNE_H
#define NH_STORE_PRUNE_H

#include <stdint.h>

#define NH_STORE_ENTRY ".entry"
#define NH_STORE_UNFINISHED ".unfinished"

/* Removes the least recently used entries until the rest fit into most_bytes, and unfinished entries that
 * their writers left behind more than an hour ago. Files of other names are left alone. */
void nh_store_prune(int folder, int64_t most_bytes);

#endif
