/* The table behind struct nh_wisdom, for wisdom.c and wisdom_text.c. */
#ifndef NH_WISDOM_TABLE_H
#define NH_WISDOM_TABLE_H

#include "wisdom.h"

#include "thread.h"

struct nh_wisdom_entry {
    struct nh_wisdom_entry *next;   /* of the same bucket */
    uint64_t key_hash, hash;        /* of device and problem; of all four names */
    struct nh_wisdom_record record; /* its texts follow the struct */
};

struct nh_wisdom {
    const struct nh_host *host;
    pthread_mutex_t lock;
    struct nh_fork_guard guard;
    struct nh_wisdom_entry **bucket; /* by device and problem: all records of a key share one */
    size_t buckets, count;           /* buckets: a power of two */
    uint64_t version;
};

#endif
