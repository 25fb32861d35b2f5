/* The table behind struct nh_wisdom, for wisdom.c and wisdom_text.c. */
#ifndef NH_WISDOM_TABLE_H
#define NH_WISDOM_TABLE_H

#include "wisdom.h"

#include <pthread.h>

struct nh_wisdom_entry {
    struct nh_wisdom_entry *next;
    uint64_t hash;                  /* of device and problem */
    struct nh_wisdom_record record; /* its texts follow the struct */
};

struct nh_wisdom {
    const struct nh_host *host;
    pthread_mutex_t lock;
    struct nh_wisdom_entry **bucket;
    size_t buckets; /* a power of two */
    size_t count;
    uint64_t version;
};

#endif
