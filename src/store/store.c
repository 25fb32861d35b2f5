/* Entries: a header, the key, the payload. The file's name is the hash of the key; the key inside the entry
 * tells apart two keys of one hash. */
#include "store.h"

#include "file_io.h"
#include "store_prune.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* Change it with the meaning of any field: older entries are then ignored and overwritten. */
#define SCHEMA 1

struct header {
    char magic[8];
    uint32_t schema;
    uint32_t key_bytes;
    uint64_t payload_bytes;
    /* Of the key and then the payload. */
    uint64_t hash;
};

static const char magic[8] = "nhoodent";

/* FNV-1a: guards against damage, not against forgery, which the folder's owner and mode rule out. */
static uint64_t hash_more(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return hash;
}

static uint64_t hash_of(const void *data, size_t bytes) {
    return hash_more(0xcbf29ce484222325u, data, bytes);
}

struct name {
    char text[80];
};

static struct name entry_name(const char *key) {
    struct name name;
    snprintf(name.text, sizeof name.text, "%016llx" NH_STORE_ENTRY,
             (unsigned long long)hash_of(key, strlen(key)));
    return name;
}

/* Unique also among hosts that share the folder: process, time and a count. */
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
    int opened = nh_folder_make(folder) ? open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    struct stat facts;
    if (opened < 0 || fstat(opened, &facts)) {
        nh_log(host, NHOOD_LOG_WARNING, "cache folder '%s' is not used: %s", folder,
               strerror(errno));
        if (opened >= 0) close(opened);
        return;
    }
    if (facts.st_uid != geteuid() || (facts.st_mode & (S_IWGRP | S_IWOTH))) {
        nh_log(host, NHOOD_LOG_WARNING,
               "cache folder '%s' is not used: owner %ld, mode %03o; it must be of user %ld and "
               "writable by no one else",
               folder, (long)facts.st_uid, (unsigned)facts.st_mode & 0777u, (long)geteuid());
        close(opened);
        return;
    }
    store->folder = opened;
    atomic_store(&store->writable, true);
}

void nh_store_close(struct nh_store *store) {
    if (store->folder >= 0) close(store->folder);
    store->folder = -1;
}

static bool read_all(int file, void *data, size_t bytes) {
    for (char *at = data; bytes;) {
        ssize_t count = read(file, at, bytes);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        at += count;
        bytes -= (size_t)count;
    }
    return true;
}

/* The entry's body (key, then payload), or NULL if it is not whole or of another key. */
static char *read_body(const struct nh_store *store, int file, const char *key,
                       struct header *header) {
    struct stat facts;
    size_t key_bytes = strlen(key);
    if (fstat(file, &facts) || !read_all(file, header, sizeof *header) ||
        memcmp(header->magic, magic, sizeof magic) != 0 || header->schema != SCHEMA ||
        header->key_bytes != key_bytes)
        return NULL;
    uint64_t body_bytes = (uint64_t)facts.st_size - sizeof *header;
    if (body_bytes < key_bytes || body_bytes - key_bytes != header->payload_bytes) return NULL;
    char *body = nh_allocate(store->host, (size_t)body_bytes + 1);
    if (!body) return NULL;
    if (read_all(file, body, (size_t)body_bytes) && memcmp(body, key, key_bytes) == 0 &&
        hash_of(body, (size_t)body_bytes) == header->hash)
        return body;
    nh_release(store->host, body);
    return NULL;
}

bool nh_store_read(struct nh_store *store, const char *key, void **payload, size_t *bytes) {
    if (store->folder < 0) return false;
    struct name name = entry_name(key);
    /* Does not wait for a pipe, should something have put one there. */
    int file = openat(store->folder, name.text, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (file < 0) return false;
    struct header header;
    char *body = read_body(store, file, key, &header);
    /* The time of modification is that of the last use; failing to set it only ages the entry. */
    if (body) (void)futimens(file, NULL);
    close(file);
    if (!body) return false;
    memmove(body, body + header.key_bytes, (size_t)header.payload_bytes);
    *payload = body;
    *bytes = (size_t)header.payload_bytes;
    return true;
}

static bool write_entry(struct nh_store *store, const char *unfinished, const char *key,
                        const void *payload, size_t bytes) {
    size_t key_bytes = strlen(key);
    struct header header = {.schema = SCHEMA,
                            .key_bytes = (uint32_t)key_bytes,
                            .payload_bytes = bytes,
                            .hash = hash_more(hash_of(key, key_bytes), payload, bytes)};
    memcpy(header.magic, magic, sizeof magic);
    int file = openat(store->folder, unfinished,
                      O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (file < 0) return false;
    return nh_file_close(file, nh_file_write(file, &header, sizeof header) &&
                                   nh_file_write(file, key, key_bytes) &&
                                   nh_file_write(file, payload, bytes));
}

void nh_store_write(struct nh_store *store, const char *key, const void *payload, size_t bytes) {
    if (store->folder < 0 || !atomic_load(&store->writable)) return;
    struct name unfinished = unfinished_name(store), name = entry_name(key);
    if (write_entry(store, unfinished.text, key, payload, bytes) &&
        renameat(store->folder, unfinished.text, store->folder, name.text) == 0) {
        nh_store_prune(store->folder, store->most_bytes);
        return;
    }
    int reason = errno;
    unlinkat(store->folder, unfinished.text, 0);
    if (atomic_exchange(&store->writable, false))
        nh_log(store->host, NHOOD_LOG_WARNING, "cache is not written from here on: %s",
               strerror(reason));
}
