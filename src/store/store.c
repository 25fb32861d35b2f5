/* Each entry is a file, named by the hash of its key. The key in the entry tells keys with equal hashes apart. */
#include "store.h"

#include "entry.h"
#include "file_io.h"
#include "os.h"
#include "store_prune.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

struct name {
    char text[80];
};

static struct name entry_name(const char *key) {
    struct name name;
    snprintf(name.text, sizeof name.text, "%016llx" NH_STORE_ENTRY,
             (unsigned long long)nh_entry_hash(key, strlen(key)));
    return name;
}

/* A name from the process, the time and a count, so that it is unique even if several hosts share the folder. */
static struct name unfinished_name(struct nh_store *store) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    struct name name;
    snprintf(name.text, sizeof name.text, "%lx-%llx-%lx-%x" NH_STORE_UNFINISHED, (long)getpid(),
             (long long)now.tv_sec, now.tv_nsec, atomic_fetch_add(&store->serial, 1));
    return name;
}

void nh_store_open(struct nh_store *store, const struct nh_host *host, const char *folder,
                   int64_t most_bytes) {
    store->host = host;
    store->folder = -1;
    store->most_bytes = most_bytes;
    atomic_init(&store->writable, false);
    atomic_init(&store->serial, 0);
    if (!folder || !*folder) return;
    int opened = nh_folder_make(folder) ? nh_os_open_folder(folder) : -1;
    char reason[160];
    if (opened < 0) snprintf(reason, sizeof reason, "%s", strerror(errno));
    if (opened < 0 || !nh_os_folder_is_own(opened, reason, sizeof reason)) {
        nh_log(host, NHOOD_LOG_WARNING, "cache folder '%s' is not used: %s", folder, reason);
        if (opened >= 0) close(opened);
        return;
    }
    store->folder = opened;
    atomic_store(&store->writable, true);
}

void nh_store_close(struct nh_store *store) {
    if (store->folder >= 0) close(store->folder);
    store->folder = -1;
}

bool nh_store_read(struct nh_store *store, const char *key, void **payload, size_t *bytes) {
    if (store->folder < 0) return false;
    struct name name = entry_name(key);
    int file = nh_os_open(store->folder, name.text, NH_OPEN_READ_OWN);
    if (file < 0) return false;
    struct nh_entry_header header;
    struct stat facts;
    uint64_t file_bytes = fstat(file, &facts) ? 0 : (uint64_t)facts.st_size;
    bool found = nh_entry_read_header(file, 0, file_bytes, &header) &&
                 file_bytes == sizeof header + header.key_bytes + header.payload_bytes &&
                 nh_entry_read(store->host, file, 0, &header, key, payload, bytes);
    /* The time of modification stands for the last use. If it cannot be set, the entry only seems older. */
    if (found) (void)nh_os_touch(file);
    close(file);
    return found;
}

static bool write_entry(struct nh_store *store, const char *unfinished, const char *key,
                        const void *payload, size_t bytes) {
    int file = nh_os_open(store->folder, unfinished, NH_OPEN_NEW_OWN);
    if (file < 0) return false;
    return nh_file_close(file, nh_entry_write(file, key, payload, bytes));
}

void nh_store_write(struct nh_store *store, const char *key, const void *payload, size_t bytes) {
    if (store->folder < 0 || !atomic_load(&store->writable)) return;
    struct name unfinished = unfinished_name(store), name = entry_name(key);
    if (write_entry(store, unfinished.text, key, payload, bytes) &&
        nh_os_rename(store->folder, unfinished.text, name.text)) {
        nh_store_prune(store->folder, store->most_bytes);
        return;
    }
    int reason = errno;
    nh_os_remove(store->folder, unfinished.text);
    if (atomic_exchange(&store->writable, false))
        nh_log(store->host, NHOOD_LOG_WARNING, "cache is not written from here on: %s",
               strerror(reason));
}
