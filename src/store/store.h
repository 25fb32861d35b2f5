/* A content-addressed store on disk: bytes under a key, one file per entry, shared by any number of processes.
 *
 * Nothing here can fail a caller: a folder that cannot be used, a full disk or a damaged entry make a read miss
 * or a write do nothing, and the caller makes its bytes anew. No lock is needed for correctness: an entry is
 * written under a unique name and renamed into place, so a reader sees a whole entry or none. */
#ifndef NH_STORE_H
#define NH_STORE_H

#include "base.h"

#include <stdatomic.h>

struct nh_store {
    const struct nh_host *host;
    /* The open folder; -1: no store. */
    int folder;
    /* Entries beyond this many bytes in all are removed, least recently read first. */
    int64_t most_bytes;
    /* Cleared by the first failing write, which is logged; reads go on. */
    atomic_bool writable;
    /* Makes the names of unfinished entries unique within the process. */
    atomic_uint serial;
};

/* Opens a folder and creates it (mode 0700) with its parents where needed; "" or NULL: no store. A folder
 * that others own or may write to is refused, since whoever writes entries decides what code runs. A store
 * that cannot be opened is logged once and stays off. */
void nh_store_open(struct nh_store *store, const struct nh_host *host, const char *folder,
                   int64_t most_bytes);
void nh_store_close(struct nh_store *store);

/* True if the key has an entry: *payload (the caller releases with nh_release) holds its *bytes. */
bool nh_store_read(struct nh_store *store, const char *key, void **payload, size_t *bytes);

/* Writes or replaces the key's entry. */
void nh_store_write(struct nh_store *store, const char *key, const void *payload, size_t bytes);

#endif
