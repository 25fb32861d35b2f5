/* A store on disk of byte strings under keys, with one file per entry, for any number of processes.
 *
 * No function fails: if the folder cannot be used, the disk is full or an entry is damaged, a read finds nothing or a write
 * does nothing, and the caller makes its bytes anew. No lock is needed: an entry is written under a unique name and then
 * renamed, so a reader sees a whole entry or none. */
#ifndef NH_STORE_H
#define NH_STORE_H

#include "base.h"

#include <stdatomic.h>

struct nh_store {
    const struct nh_host *host;
    /* descriptor of the open folder; -1: there is no store */
    int folder;
    /* If all entries exceed this many bytes, the least recently used are removed. */
    int64_t most_bytes;
    /* cleared by the first write that fails, which is logged; reads go on */
    atomic_bool writable;
    /* makes the names of unfinished entries unique within the process */
    atomic_uint serial;
};

/* Opens a folder, which is created with mode 0700 if needed, as are its parents; for "" or NULL there is no store. A folder
 * that others own or may write to is refused, because whoever writes entries decides what code runs. If it cannot be
 * opened, a warning is logged, and there is no store. */
void nh_store_open(struct nh_store *store, const struct nh_host *host, const char *folder,
                   int64_t most_bytes);
void nh_store_close(struct nh_store *store);

/* True if the key has an entry. *payload then holds its *bytes, which the caller releases with nh_release. */
bool nh_store_read(struct nh_store *store, const char *key, void **payload, size_t *bytes);

/* Writes or replaces the key's entry. */
void nh_store_write(struct nh_store *store, const char *key, const void *payload, size_t bytes);

#endif
