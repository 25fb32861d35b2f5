/* A bundle: entries of a store in one file that is only read, made ahead of time and carried to where it is used.
 *
 * The file holds one entry after the other as a store's files hold them. The first says what kind of bundle it is and
 * whose: its key is "nhood bundle", its payload a text of the caller's, the origin, which all keys have in common. */
#ifndef NH_BUNDLE_H
#define NH_BUNDLE_H

#include "base.h"

struct nh_bundle_row;

/* ---- reading ---- */

struct nh_bundle {
    const struct nh_host *host;
    int file; /* -1: not open */
    char *path, *origin;
    /* where each entry is, by key */
    struct nh_bundle_row *row;
    int64_t count;
};

/* Reads what entries there are, but not their payloads: those are read and checked when they are asked for. A file that
 * ends or is damaged within an entry keeps those before it, and a warning is logged.
 * ARGUMENT (cannot be read, is not a bundle), MEMORY. To be closed in any case. */
nhood_status nh_bundle_open(struct nh_bundle *bundle, const struct nh_host *host, const char *path);
void nh_bundle_close(struct nh_bundle *bundle);

/* As nh_store_read. A damaged entry is logged and not there. Any number of threads. */
bool nh_bundle_read(const struct nh_bundle *bundle, const char *key, void **payload, size_t *bytes);

/* ---- writing ---- */

struct nh_bundle_item {
    struct nh_bundle_item *next;
    const char *key; /* borrowed */
    void *payload;
    size_t bytes;
};

/* Writes a bundle of these entries in place of what is at the path. ARGUMENT (cannot be written). */
nhood_status nh_bundle_write(const char *path, const char *origin,
                             const struct nh_bundle_item *first);

#endif
