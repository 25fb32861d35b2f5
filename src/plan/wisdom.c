/* The table of records has two hash indices: by device and problem, so that all records of a key share a bucket, and by all
 * four names of a record, so that it is found quickly even if its key has many. */
#include "wisdom.h"

#include "hash.h"
#include "wisdom_table.h"

#include <stdio.h>
#include <string.h>

enum { FIRST_BUCKETS = 64 };

/* Continues a hash over the text and its terminating zero, which separates it from the next text. */
static uint64_t hash_more(uint64_t hash, const char *text) {
    return nh_hash(hash, text, strlen(text) + 1);
}

static uint64_t hash_of_key(const char *device, const char *problem) {
    return hash_more(hash_more(NH_HASH_START, device), problem);
}

static uint64_t hash_of(uint64_t key_hash, const char *solver, const char *config) {
    return hash_more(hash_more(key_hash, solver), config);
}

static nhood_status make_buckets(struct nh_wisdom *wisdom) {
    wisdom->bucket = nh_allocate(wisdom->host, wisdom->buckets * sizeof *wisdom->bucket);
    wisdom->alike = nh_allocate(wisdom->host, wisdom->buckets * sizeof *wisdom->alike);
    return wisdom->bucket && wisdom->alike ? NHOOD_OK : NHOOD_ERR_MEMORY;
}

static void release_buckets(struct nh_wisdom *wisdom) {
    nh_release(wisdom->host, wisdom->bucket);
    nh_release(wisdom->host, wisdom->alike);
}

nhood_status nh_wisdom_create(const struct nh_host *host, struct nh_wisdom **wisdom) {
    struct nh_wisdom *created = nh_allocate(host, sizeof *created);
    *wisdom = NULL;
    if (!created) return NHOOD_ERR_MEMORY;
    created->host = host;
    created->buckets = FIRST_BUCKETS;
    pthread_mutex_init(&created->lock, NULL);
    created->guard.lock = &created->lock;
    nhood_status status = make_buckets(created);
    if (!status) status = nh_fork_guard_add(&created->guard);
    if (status) {
        release_buckets(created);
        nh_release(host, created);
        return status;
    }
    *wisdom = created;
    return NHOOD_OK;
}

void nh_wisdom_destroy(struct nh_wisdom *wisdom) {
    if (!wisdom) return;
    nh_wisdom_forget(wisdom, NULL, NULL);
    nh_fork_guard_remove(&wisdom->guard);
    pthread_mutex_destroy(&wisdom->lock);
    release_buckets(wisdom);
    nh_release(wisdom->host, wisdom);
}

void nh_wisdom_key(const struct nh_device *device, const struct nh_problem *problem,
                   struct nh_wisdom_key *key) {
    snprintf(key->device, sizeof key->device, "%s", device->info.description);
    for (char *at = key->device; *at; at++)
        if (*at <= ' ' || *at > '~') *at = '_';
    key->problem[0] = '\0';
    if (problem) nh_problem_text(problem, key->problem, sizeof key->problem);
}

bool nh_wisdom_has_any(struct nh_wisdom *wisdom) {
    pthread_mutex_lock(&wisdom->lock);
    bool any = wisdom->count > 0;
    pthread_mutex_unlock(&wisdom->lock);
    return any;
}

uint64_t nh_wisdom_version(struct nh_wisdom *wisdom) {
    pthread_mutex_lock(&wisdom->lock);
    uint64_t version = wisdom->version;
    pthread_mutex_unlock(&wisdom->lock);
    return version;
}

/* ---- the table; callers hold the lock ---- */

static size_t slot_of(const struct nh_wisdom *wisdom, uint64_t hash) {
    return hash & (wisdom->buckets - 1);
}

static bool about(const struct nh_wisdom_entry *entry, uint64_t key_hash, const char *device,
                  const char *problem) {
    return entry->key_hash == key_hash && !strcmp(entry->record.problem, problem) &&
           !strcmp(entry->record.device, device);
}

static struct nh_wisdom_entry *find(const struct nh_wisdom *wisdom, uint64_t key_hash,
                                    const struct nh_wisdom_record *like) {
    uint64_t hash = hash_of(key_hash, like->solver, like->config);
    struct nh_wisdom_entry *entry = wisdom->alike[slot_of(wisdom, hash)];
    while (entry && !(entry->hash == hash && about(entry, key_hash, like->device, like->problem) &&
                      !strcmp(entry->record.solver, like->solver) &&
                      !strcmp(entry->record.config, like->config)))
        entry = entry->next_alike;
    return entry;
}

static void link_entry(struct nh_wisdom *wisdom, struct nh_wisdom_entry *entry) {
    struct nh_wisdom_entry **head = &wisdom->bucket[slot_of(wisdom, entry->key_hash)];
    entry->next = *head;
    *head = entry;
    head = &wisdom->alike[slot_of(wisdom, entry->hash)];
    entry->next_alike = *head;
    *head = entry;
}

/* Doubles the number of buckets; without memory, only the buckets' lists grow longer. */
static void grow(struct nh_wisdom *wisdom) {
    struct nh_wisdom larger = {.host = wisdom->host, .buckets = 2 * wisdom->buckets};
    if (make_buckets(&larger)) {
        release_buckets(&larger);
        return;
    }
    for (size_t i = 0; i < wisdom->buckets; i++)
        for (struct nh_wisdom_entry *entry = wisdom->bucket[i], *next; entry; entry = next) {
            next = entry->next;
            link_entry(&larger, entry);
        }
    release_buckets(wisdom);
    wisdom->bucket = larger.bucket;
    wisdom->alike = larger.alike;
    wisdom->buckets = larger.buckets;
}

static const char *place(char **end, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *start = memcpy(*end, text, bytes);
    *end += bytes;
    return start;
}

static nhood_status insert(struct nh_wisdom *wisdom, uint64_t key_hash,
                           const struct nh_wisdom_record *record) {
    size_t bytes = sizeof(struct nh_wisdom_entry) + strlen(record->device) +
                   strlen(record->problem) + strlen(record->solver) + strlen(record->config) + 4;
    struct nh_wisdom_entry *entry = nh_allocate(wisdom->host, bytes);
    if (!entry) return NHOOD_ERR_MEMORY;
    char *end = (char *)(entry + 1);
    entry->key_hash = key_hash;
    entry->hash = hash_of(key_hash, record->solver, record->config);
    entry->record = *record;
    entry->record.device = place(&end, record->device);
    entry->record.problem = place(&end, record->problem);
    entry->record.solver = place(&end, record->solver);
    entry->record.config = place(&end, record->config);
    if (wisdom->count >= wisdom->buckets) grow(wisdom);
    link_entry(wisdom, entry);
    wisdom->count++;
    return NHOOD_OK;
}

/* ---- the interface ---- */

nhood_status nh_wisdom_add(struct nh_wisdom *wisdom, const struct nh_wisdom_record *record) {
    uint64_t key_hash = hash_of_key(record->device, record->problem);
    nhood_status status = NHOOD_OK;
    pthread_mutex_lock(&wisdom->lock);
    wisdom->version++;
    struct nh_wisdom_entry *known = find(wisdom, key_hash, record);
    if (!known) {
        status = insert(wisdom, key_hash, record);
    } else if (record->samples > known->record.samples ||
               (record->samples == known->record.samples &&
                record->median_ns < known->record.median_ns)) {
        known->record.samples = record->samples;
        known->record.median_ns = record->median_ns;
    }
    pthread_mutex_unlock(&wisdom->lock);
    return status;
}

nhood_status nh_wisdom_merge(struct nh_wisdom *wisdom, struct nh_wisdom *other) {
    nhood_status status = NHOOD_OK;
    pthread_mutex_lock(&other->lock);
    for (size_t i = 0; i < other->buckets; i++)
        for (struct nh_wisdom_entry *entry = other->bucket[i]; entry && !status;
             entry = entry->next)
            status = nh_wisdom_add(wisdom, &entry->record);
    pthread_mutex_unlock(&other->lock);
    return status;
}

void nh_wisdom_visit(struct nh_wisdom *wisdom, const struct nh_wisdom_key *key,
                     void (*visit)(void *user, const struct nh_wisdom_record *record), void *user) {
    uint64_t key_hash = hash_of_key(key->device, key->problem);
    pthread_mutex_lock(&wisdom->lock);
    for (struct nh_wisdom_entry *entry = wisdom->bucket[slot_of(wisdom, key_hash)]; entry;
         entry = entry->next)
        if (about(entry, key_hash, key->device, key->problem)) visit(user, &entry->record);
    pthread_mutex_unlock(&wisdom->lock);
}

bool nh_wisdom_look_up(struct nh_wisdom *wisdom, const struct nh_wisdom_key *key,
                       const char *solver, const char *config, int64_t *median_ns,
                       int64_t *samples) {
    struct nh_wisdom_record like = {key->device, key->problem, solver, config, 0, 0};
    uint64_t key_hash = hash_of_key(key->device, key->problem);
    pthread_mutex_lock(&wisdom->lock);
    const struct nh_wisdom_entry *entry = find(wisdom, key_hash, &like);
    if (entry) {
        *median_ns = entry->record.median_ns;
        *samples = entry->record.samples;
    }
    pthread_mutex_unlock(&wisdom->lock);
    return entry != NULL;
}

static void unlink_alike(struct nh_wisdom *wisdom, const struct nh_wisdom_entry *entry) {
    struct nh_wisdom_entry **at = &wisdom->alike[slot_of(wisdom, entry->hash)];
    while (*at != entry)
        at = &(*at)->next_alike;
    *at = entry->next_alike;
}

static bool named(const char *wanted, const char *name) {
    return !wanted || !strcmp(wanted, name);
}

int64_t nh_wisdom_forget(struct nh_wisdom *wisdom, const char *device, const char *problem) {
    int64_t forgotten = 0;
    pthread_mutex_lock(&wisdom->lock);
    wisdom->version++;
    for (size_t i = 0; i < wisdom->buckets; i++)
        for (struct nh_wisdom_entry **at = &wisdom->bucket[i]; *at;) {
            struct nh_wisdom_entry *entry = *at;
            if (!named(device, entry->record.device) || !named(problem, entry->record.problem)) {
                at = &entry->next;
                continue;
            }
            *at = entry->next;
            unlink_alike(wisdom, entry);
            nh_release(wisdom->host, entry);
            wisdom->count--;
            forgotten++;
        }
    pthread_mutex_unlock(&wisdom->lock);
    return forgotten;
}
