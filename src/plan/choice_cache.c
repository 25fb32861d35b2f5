#include "choice_cache.h"

#include "hash.h"
#include "thread.h"

#include <string.h>

enum { SLOTS = 256 }; /* a power of two; problems that share a slot evict each other */

struct entry {
    const struct nh_device *device;
    char only[NH_WISDOM_SOLVER_BYTES]; /* "" for any solver */
    uint64_t wisdom_version;
    struct nh_problem problem;
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
    pthread_mutex_init(&(*cache)->lock, NULL);
    (*cache)->guard.lock = &(*cache)->lock;
    return nh_fork_guard_add(&(*cache)->guard);
}

void nh_choice_cache_destroy(struct nh_choice_cache *cache) {
    if (!cache) return;
    for (int i = 0; i < SLOTS; i++)
        nh_release(cache->host, cache->slot[i]);
    nh_fork_guard_remove(&cache->guard);
    pthread_mutex_destroy(&cache->lock);
    nh_release(cache->host, cache);
}

/* FNV-1a by words. The padding of canonical problems is zero; a problem with other padding would merely not be found. */
static size_t slot_of(const struct nh_request *request) {
    uint64_t hash = NH_HASH_START ^ (uintptr_t)request->device, word;
    const char *at = (const char *)request->problem;
    for (size_t i = 0; i + sizeof word <= sizeof *request->problem; i += sizeof word) {
        memcpy(&word, at + i, sizeof word);
        hash = (hash ^ word) * NH_HASH_PRIME;
    }
    return (size_t)(hash >> 32 ^ hash) & (SLOTS - 1);
}

static bool fits(const struct entry *entry, const struct nh_request *request, const char *only,
                 uint64_t wisdom_version) {
    return entry && entry->device == request->device && entry->wisdom_version == wisdom_version &&
           !strcmp(entry->only, only) &&
           !memcmp(&entry->problem, request->problem, sizeof entry->problem);
}

/* Returns NULL without memory; the choice is then not remembered. */
static struct entry *make_entry(const struct nh_host *host, const struct nh_request *request,
                                const char *only, uint64_t wisdom_version,
                                const struct nh_choice *choice) {
    struct entry *entry = nh_allocate(host, sizeof *entry);
    if (!entry) return NULL;
    entry->device = request->device;
    memcpy(entry->only, only, strlen(only) + 1);
    entry->wisdom_version = wisdom_version;
    memcpy(&entry->problem, request->problem, sizeof entry->problem);
    entry->choice = *choice;
    return entry;
}

nhood_status nh_choice_cache_choose(struct nh_choice_cache *cache, const struct nh_request *request,
                                    struct nh_choice *choice) {
    const char *only = request->only ? request->only : "";
    /* Read before choosing, so that a change of wisdom meanwhile makes the entry outdated, not wrong. */
    uint64_t wisdom_version = nh_wisdom_version(request->wisdom);
    size_t slot = slot_of(request);
    pthread_mutex_lock(&cache->lock);
    const struct entry *known = cache->slot[slot];
    bool found = fits(known, request, only, wisdom_version);
    if (found) *choice = known->choice;
    pthread_mutex_unlock(&cache->lock);
    if (found) return NHOOD_OK;
    nhood_status status = nh_planner_choose(request, choice);
    if (status) return status; /* from here on `only` names a solver, so it fits an entry */
    struct entry *made = make_entry(cache->host, request, only, wisdom_version, choice);
    if (!made) return NHOOD_OK;
    pthread_mutex_lock(&cache->lock);
    struct entry *old = cache->slot[slot];
    cache->slot[slot] = made;
    pthread_mutex_unlock(&cache->lock);
    nh_release(cache->host, old);
    return NHOOD_OK;
}
