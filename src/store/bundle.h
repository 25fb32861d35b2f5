/* A bundle is one file with the entries of a store, which is written ahead of time and then only read.
 *
 * The entries follow each other in the format of a store's files. The key of the first is "nhood bundle", and its payload
 * is the origin, a text of the caller. */
#ifndef NH_BUNDLE_H
#define NH_BUNDLE_H

#include "base.h"

struct nh_bundle_row;

/* ---- reading ---- */

struct nh_bundle {
    const struct nh_host *host;
    int file; /* -1: not open */
    char *path, *origin;
    /* where each entry is, sorted by the hash of its key */
    struct nh_bundle_row *row;
    int64_t count;
};

/* Reads which entries there are. Payloads are read and checked later, by nh_bundle_read. If the file ends or is damaged
 * within an entry, those before it are used and a warning is logged. ARGUMENT (cannot be read, is not a bundle), MEMORY;
 * *bundle must be closed even then. */
nhood_status nh_bundle_open(struct nh_bundle *bundle, const struct nh_host *host, const char *path);
void nh_bundle_close(struct nh_bundle *bundle);

/* As nh_store_read. A damaged entry is logged and counts as missing. Any number of threads may read at the same time. */
bool nh_bundle_read(const struct nh_bundle *bundle, const char *key, void **payload, size_t *bytes);

/* ---- writing ---- */

struct nh_bundle_item {
    struct nh_bundle_item *next;
    const char *key; /* borrowed */
    void *payload;
    size_t bytes;
};

/* Writes a bundle of these entries, replacing the file at the path. ARGUMENT (cannot be written). */
nhood_status nh_bundle_write(const char *path, const char *origin,
                             const struct nh_bundle_item *first);

#endif
