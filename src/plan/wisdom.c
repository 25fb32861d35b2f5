/* The records are an array that is sorted when something is looked up: wisdom is read as a whole, and what MEASURE adds is some
 * hundred records at a time. */
#include "wisdom.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

nhood_status nh_wisdom_create(const struct nh_host *host, struct nh_wisdom **wisdom) {
    struct nh_wisdom *created = *wisdom = nh_allocate(host, sizeof *created);
    if (!created) return NHOOD_ERR_MEMORY;
    created->host = host;
    nhood_status status = nh_guarded_lock_start(&created->lock, &created->guard);
    if (!status) return NHOOD_OK;
    nh_wisdom_destroy(created);
    *wisdom = NULL;
    return status;
}

void nh_wisdom_destroy(struct nh_wisdom *wisdom) {
    if (!wisdom) return;
    nh_wisdom_forget(wisdom, NULL, NULL);
    nh_guarded_lock_end(&wisdom->lock, &wisdom->guard);
    nh_release(wisdom->host, wisdom->record);
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

/* ---- the array; callers hold the lock ---- */

static int order_of_keys(const struct nh_wisdom_record *a, const struct nh_wisdom_record *b) {
    int order = strcmp(a->device, b->device);
    return order ? order : strcmp(a->problem, b->problem);
}

static int order_of_names(const struct nh_wisdom_record *a, const struct nh_wisdom_record *b) {
    int order = order_of_keys(a, b);
    if (!order) order = strcmp(a->solver, b->solver);
    return order ? order : strcmp(a->config, b->config);
}

/* Orders records by their names. Among those of one candidate, the one that is kept comes first. */
static int by_names(const void *left, const void *right) {
    const struct nh_wisdom_record *a = *(const struct nh_wisdom_record *const *)left;
    const struct nh_wisdom_record *b = *(const struct nh_wisdom_record *const *)right;
    int order = order_of_names(a, b);
    if (!order) order = (a->samples < b->samples) - (a->samples > b->samples);
    return order ? order : (a->median_ns > b->median_ns) - (a->median_ns < b->median_ns);
}

static void sort(struct nh_wisdom *wisdom) {
    struct nh_wisdom_record **record = wisdom->record;
    size_t kept = 0;
    if (wisdom->sorted == wisdom->count) return;
    qsort(record, wisdom->count, sizeof(struct nh_wisdom_record *), by_names);
    for (size_t i = 0; i < wisdom->count; i++) {
        if (kept && !order_of_names(record[kept - 1], record[i])) {
            nh_release(wisdom->host, record[i]);
        } else {
            record[kept++] = record[i];
        }
    }
    wisdom->count = wisdom->sorted = kept;
}

/* The index of the first record that is not before these names. */
static size_t find(struct nh_wisdom *wisdom, const struct nh_wisdom_record *names) {
    size_t low = 0;
    sort(wisdom);
    for (size_t high = wisdom->count; low < high;) {
        size_t middle = (low + high) / 2;
        if (order_of_names(wisdom->record[middle], names) < 0) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

static nhood_status make_room(struct nh_wisdom *wisdom) {
    if (wisdom->count == wisdom->capacity) sort(wisdom); /* may drop some */
    if (wisdom->count < wisdom->capacity) return NHOOD_OK;
    size_t bytes = wisdom->count * sizeof *wisdom->record, capacity = 2 * wisdom->capacity + 64;
    struct nh_wisdom_record **grown = nh_allocate(wisdom->host, capacity * sizeof *grown);
    if (!grown) return NHOOD_ERR_MEMORY;
    if (bytes) memcpy(grown, wisdom->record, bytes);
    nh_release(wisdom->host, wisdom->record);
    wisdom->record = grown;
    wisdom->capacity = capacity;
    return NHOOD_OK;
}

static const char *place(char **end, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *start = memcpy(*end, text, bytes);
    *end += bytes;
    return start;
}

static nhood_status append(struct nh_wisdom *wisdom, const struct nh_wisdom_record *record) {
    size_t bytes = sizeof *record + strlen(record->device) + strlen(record->problem) +
                   strlen(record->solver) + strlen(record->config) + 4;
    nhood_status status = make_room(wisdom);
    struct nh_wisdom_record *copy = status ? NULL : nh_allocate(wisdom->host, bytes);
    if (!copy) return NHOOD_ERR_MEMORY;
    char *end = (char *)(copy + 1);
    *copy = *record;
    copy->device = place(&end, record->device);
    copy->problem = place(&end, record->problem);
    copy->solver = place(&end, record->solver);
    copy->config = place(&end, record->config);
    wisdom->record[wisdom->count++] = copy;
    return NHOOD_OK;
}

/* ---- the interface ---- */

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

nhood_status nh_wisdom_add(struct nh_wisdom *wisdom, const struct nh_wisdom_record *record) {
    pthread_mutex_lock(&wisdom->lock);
    wisdom->version++;
    nhood_status status = append(wisdom, record);
    pthread_mutex_unlock(&wisdom->lock);
    return status;
}

nhood_status nh_wisdom_merge(struct nh_wisdom *wisdom, struct nh_wisdom *other) {
    nhood_status status = NHOOD_OK;
    pthread_mutex_lock(&other->lock);
    for (size_t i = 0; i < other->count && !status; i++)
        status = nh_wisdom_add(wisdom, other->record[i]);
    pthread_mutex_unlock(&other->lock);
    return status;
}

void nh_wisdom_visit(struct nh_wisdom *wisdom, const struct nh_wisdom_key *key,
                     void (*visit)(void *user, const struct nh_wisdom_record *record), void *user) {
    const struct nh_wisdom_record first = {key->device, key->problem, "", "", 0, 0};
    pthread_mutex_lock(&wisdom->lock);
    for (size_t i = find(wisdom, &first);
         i < wisdom->count && !order_of_keys(wisdom->record[i], &first); i++)
        visit(user, wisdom->record[i]);
    pthread_mutex_unlock(&wisdom->lock);
}

bool nh_wisdom_knows(struct nh_wisdom *wisdom, const struct nh_device *device,
                     const struct nh_problem *problem) {
    struct nh_wisdom_key key;
    if (!nh_wisdom_has_any(wisdom)) return false;
    nh_wisdom_key(device, problem, &key);
    const struct nh_wisdom_record first = {key.device, key.problem, "", "", 0, 0};
    pthread_mutex_lock(&wisdom->lock);
    const size_t at = find(wisdom, &first);
    const bool known = at < wisdom->count && !order_of_keys(wisdom->record[at], &first);
    pthread_mutex_unlock(&wisdom->lock);
    return known;
}

bool nh_wisdom_look_up(struct nh_wisdom *wisdom, const struct nh_wisdom_key *key,
                       const char *solver, const char *config, int64_t *median_ns,
                       int64_t *samples) {
    const struct nh_wisdom_record names = {key->device, key->problem, solver, config, 0, 0};
    pthread_mutex_lock(&wisdom->lock);
    size_t at = find(wisdom, &names);
    bool known = at < wisdom->count && !order_of_names(wisdom->record[at], &names);
    if (known) {
        *median_ns = wisdom->record[at]->median_ns;
        *samples = wisdom->record[at]->samples;
    }
    pthread_mutex_unlock(&wisdom->lock);
    return known;
}

static bool named(const char *wanted, const char *name) {
    return !wanted || !strcmp(wanted, name);
}

int64_t nh_wisdom_forget(struct nh_wisdom *wisdom, const char *device, const char *problem) {
    size_t kept = 0;
    pthread_mutex_lock(&wisdom->lock);
    wisdom->version++;
    sort(wisdom);
    for (size_t i = 0; i < wisdom->count; i++) {
        struct nh_wisdom_record *record = wisdom->record[i];
        if (named(device, record->device) && named(problem, record->problem)) {
            nh_release(wisdom->host, record);
        } else {
            wisdom->record[kept++] = record;
        }
    }
    int64_t forgotten = (int64_t)(wisdom->count - kept);
    wisdom->count = wisdom->sorted = kept;
    pthread_mutex_unlock(&wisdom->lock);
    return forgotten;
}

/* ---- writing ---- */

static const char header[] = NH_WISDOM_HEADER;

static int by_time(const void *left, const void *right) {
    const struct nh_wisdom_record *a = *(const struct nh_wisdom_record *const *)left;
    const struct nh_wisdom_record *b = *(const struct nh_wisdom_record *const *)right;
    int order = order_of_keys(a, b);
    if (!order) order = (a->median_ns > b->median_ns) - (a->median_ns < b->median_ns);
    return order ? order : order_of_names(a, b);
}

static size_t print_record(const struct nh_wisdom_record *record, char *text, size_t capacity) {
    return (size_t)snprintf(text, capacity, "%s %s %s %s %lld %lld\n", record->device,
                            record->problem, record->solver, *record->config ? record->config : "-",
                            (long long)record->median_ns, (long long)record->samples);
}

/* The caller holds the lock. */
static nhood_status print_all(struct nh_wisdom *wisdom, char **text, size_t *length) {
    sort(wisdom);
    const size_t count = wisdom->count;
    const struct nh_wisdom_record **list =
        nh_allocate(wisdom->host, count * sizeof(const struct nh_wisdom_record *));
    if (!list) return NHOOD_ERR_MEMORY;
    size_t bytes = sizeof header;
    for (size_t i = 0; i < count; i++) {
        list[i] = wisdom->record[i];
        bytes += print_record(list[i], NULL, 0);
    }
    qsort(list, count, sizeof *list, by_time);
    char *printed = nh_allocate(wisdom->host, bytes);
    if (printed) {
        size_t used = sizeof header - 1;
        memcpy(printed, header, sizeof header);
        for (size_t i = 0; i < count; i++)
            used += print_record(list[i], printed + used, bytes - used);
        *text = printed;
        *length = used;
    }
    nh_release(wisdom->host, list);
    return printed ? NHOOD_OK : NHOOD_ERR_MEMORY;
}

nhood_status nh_wisdom_text(struct nh_wisdom *wisdom, char **text, size_t *length) {
    pthread_mutex_lock(&wisdom->lock);
    nhood_status status = print_all(wisdom, text, length);
    pthread_mutex_unlock(&wisdom->lock);
    return status;
}
