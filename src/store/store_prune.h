/* Keeps a store's folder within its size limit. */
#ifndef NH_STORE_PRUNE_H
#define NH_STORE_PRUNE_H

#include <stdint.h>

#define NH_STORE_ENTRY ".entry"
#define NH_STORE_UNFINISHED ".unfinished"

/* Removes the least recently used entries until the others fit into most_bytes, and unfinished entries that were abandoned
 * more than an hour ago. Leaves files of other names alone. */
void nh_store_prune(int folder, int64_t most_bytes);

#endif
