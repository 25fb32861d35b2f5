#include "planner.h"

#include "hash.h"
#include "thread.h"

#include <stdio.h>
#include <string.h>

enum { SLOTS = 256 }; /* a power of two; problems that share a slot evict each other */

/* Everything that a choice depends on. Padding is zero; a problem with other padding would merely not be found. */
struct key {
    const struct nh_device *device;
    char only[NH_WISDOM_SOLVER_BYTES]; /* "" for any solver; longer than any solver's name */
    uint64_t wisdom_version;
    struct nh_problem problem;
};

struct entry {
    struct key key;
    struct nh_choice choice;
};

struct nh_choice_cache {
    const struct nh_host *host;
    pthread_mutex_t lock;
    struct nh_fork_guard guard;
    struct entry *slot[SLOTS];
};

nhood_status nh_choice_cache_create(const struct nh_host *host, struct nh_choice_cache **cache) {
    *cache = nh_allocate(host, sizeof **cache);
    if (!*cache) return NHOOD_ERR_MEMORY;
    (*cache)->host = host;
    return nh_guarded_lock_start(&(*cache)->lock, &(*cache)->guard);
}

void nh_choice_cache_destroy(struct nh_choice_cache *cache) {
    if (!cache) return;
    for (int i = 0; i < SLOTS; i++)
        nh_release(cache->host, cache->slot[i]);
    nh_guarded_lock_end(&cache->lock, &cache->guard);
    nh_release(cache->host, cache);
}

/* FNV-1a by words. */
static struct entry **slot_of(struct nh_choice_cache *cache, const struct key *key) {
    uint64_t hash = NH_HASH_START, word;
    for (size_t i = 0; i + sizeof word <= sizeof *key; i += sizeof word) {
        memcpy(&word, (const char *)key + i, sizeof word);
        hash = (hash ^ word) * NH_HASH_PRIME;
    }
    return &cache->slot[(hash >> 32 ^ hash) & (SLOTS - 1)];
}

nhood_status nh_choice_cache_choose(struct nh_choice_cache *cache, const struct nh_request *request,
                                    struct nh_choice *choice) {
    struct key key;
    memset(&key, 0, sizeof key);
    key.device = request->device;
    snprintf(key.only, sizeof key.only, "%s", request->only ? request->only : "");
    memcpy(&key.problem, request->problem, sizeof key.problem);
    for (int a = 0; a < NH_AXES; a++) /* their hashes stand for tables, wherever these are */
        key.problem.axis[a].windows.range = NULL;
    /* Read before choosing, so that a change of wisdom meanwhile makes the entry outdated, not wrong. */
    key.wisdom_version = nh_wisdom_version(request->wisdom);
    struct entry **slot = slot_of(cache, &key);
    pthread_mutex_lock(&cache->lock);
    bool found = *slot && !memcmp(&(*slot)->key, &key, sizeof key);
    if (found) *choice = (*slot)->choice;
    pthread_mutex_unlock(&cache->lock);
    if (found) return NHOOD_OK;
    nhood_status status = nh_planner_choose(request, choice);
    struct entry *made = status ? NULL : nh_allocate(cache->host, sizeof *made);
    if (!made) return status; /* without memory, the choice is not remembered */
    memcpy(&made->key, &key, sizeof key);
    made->choice = *choice;
    pthread_mutex_lock(&cache->lock);
    struct entry *old = *slot;
    *slot = made;
    pthread_mutex_unlock(&cache->lock);
    nh_release(cache->host, old);
    return NHOOD_OK;
}
