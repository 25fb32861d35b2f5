#include "memo.h"

#include "hash.h"
#include "thread.h"

#include <string.h>

/* Places that a key may have, the last used first. */
enum { WAYS = 4 };

struct entry {
    size_t key_bytes, value_bytes;
    char bytes[]; /* the key, then the value */
};

struct nh_memo {
    const struct nh_host *host;
    pthread_mutex_t lock;
    struct nh_fork_guard guard;
    int64_t places;
    struct entry *place[]; /* sets of WAYS */
};

nhood_status nh_memo_create(const struct nh_host *host, int64_t places, struct nh_memo **memo) {
    *memo = nh_allocate(host, sizeof **memo + (size_t)places * sizeof(struct entry *));
    if (!*memo) return NHOOD_ERR_MEMORY;
    (*memo)->host = host;
    (*memo)->places = places;
    return nh_guarded_lock_start(&(*memo)->lock, &(*memo)->guard);
}

void nh_memo_destroy(struct nh_memo *memo) {
    if (!memo) return;
    for (int64_t i = 0; i < memo->places; i++)
        nh_release(memo->host, memo->place[i]);
    nh_guarded_lock_end(&memo->lock, &memo->guard);
    nh_release(memo->host, memo);
}

static struct entry **set_of(struct nh_memo *memo, const void *key, size_t bytes) {
    const uint64_t hash = nh_hash_words(key, bytes);
    return &memo->place[hash % (uint64_t)(memo->places / WAYS) * WAYS];
}

/* Puts an entry in front of the first `count` of a set, and returns the last of these, which leaves it. */
static struct entry *push(struct entry **set, int count, struct entry *entry) {
    struct entry *last = set[count - 1];
    memmove(set + 1, set, (size_t)(count - 1) * sizeof *set);
    set[0] = entry;
    return last;
}

bool nh_memo_find(struct nh_memo *memo, const void *key, size_t key_bytes, void *value,
                  size_t value_bytes) {
    struct entry **set = set_of(memo, key, key_bytes), *found = NULL;
    pthread_mutex_lock(&memo->lock);
    for (int i = 0; i < WAYS && set[i] && !found; i++) {
        if (set[i]->key_bytes != key_bytes || set[i]->value_bytes != value_bytes ||
            memcmp(set[i]->bytes, key, key_bytes) != 0)
            continue;
        found = set[i];
        push(set, i + 1, found);
        memcpy(value, found->bytes + key_bytes, value_bytes);
    }
    pthread_mutex_unlock(&memo->lock);
    return found;
}

void nh_memo_keep(struct nh_memo *memo, const void *key, size_t key_bytes, const void *value,
                  size_t value_bytes) {
    struct entry **set = set_of(memo, key, key_bytes), *entry;
    pthread_mutex_lock(&memo->lock);
    entry = push(set, WAYS, NULL);
    if (entry && (entry->key_bytes != key_bytes || entry->value_bytes != value_bytes)) {
        nh_release(memo->host, entry);
        entry = NULL;
    }
    if (!entry) entry = nh_allocate_unset(memo->host, sizeof *entry + key_bytes + value_bytes);
    if (entry) {
        entry->key_bytes = key_bytes;
        entry->value_bytes = value_bytes;
        memcpy(entry->bytes, key, key_bytes);
        memcpy(entry->bytes + key_bytes, value, value_bytes);
    }
    set[0] = entry;
    pthread_mutex_unlock(&memo->lock);
}
