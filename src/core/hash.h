/* FNV-1a, for hash tables and to detect damaged files. It does not protect against forgery. */
#ifndef NH_HASH_H
#define NH_HASH_H

#include <stddef.h>
#include <stdint.h>

#define NH_HASH_START 0xcbf29ce484222325u
#define NH_HASH_PRIME 0x100000001b3u

/* Continues a hash, which begins as NH_HASH_START, with these bytes. */
static inline uint64_t nh_hash(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * NH_HASH_PRIME;
    return hash;
}

#endif
