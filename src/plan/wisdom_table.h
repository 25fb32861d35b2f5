/* The table behind struct nh_wisdom, for wisdom.c and wisdom_text.c. */
#ifndef NH_WISDOM_TABLE_H
#define NH_WISDOM_TABLE_H

#include "wisdom.h"

#include "thread.h"

struct nh_wisdom_entry {
    struct nh_wisdom_entry *next;       /* of the same bucket by key */
    struct nh_wisdom_entry *next_alike; /* of the same bucket by all four names */
    uint64_t key_hash, hash;
    struct nh_wisdom_record record; /* its texts follow the struct */
};

struct nh_wisdom {
    const struct nh_host *host;
    pthread_mutex_t lock;
    struct nh_fork_guard guard;
    struct nh_wisdom_entry **bucket; /* by device and problem: all records of a key share one */
    struct nh_wisdom_entry *
        *alike;     /* buckets by device, problem, solver and config, each with few records */
    size_t buckets; /* of each; a power of two */
    size_t count;
    uint64_t version;
};

#endif
