/* FNV-1a, for hash tables and to detect damaged files. It does not protect against forgery. */
#ifndef NH_HASH_H
#define NH_HASH_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define NH_HASH_START 0xcbf29ce484222325u
#define NH_HASH_PRIME 0x100000001b3u

/* Continues a hash, which begins as NH_HASH_START, with these bytes. */
static inline uint64_t nh_hash(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *at = data;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * NH_HASH_PRIME;
    return hash;
}

static inline uint64_t nh_hash_word(const char *bytes) {
    uint64_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

/* A hash of its own by words, four at a time, whose products a processor computes side by side: for keys of hundreds of bytes. Its
 * low bits are as good as its high ones. */
static inline uint64_t nh_hash_words(const void *data, size_t bytes) {
    enum { WORD = sizeof(uint64_t), LANES = 4 };
    uint64_t a = NH_HASH_START, b = a + 1, c = a + 2, d = a + 3;
    const char *at = data, *const end = at + bytes;
    for (size_t left = bytes / (LANES * WORD); left; left--, at += LANES * WORD) {
        a = (a ^ nh_hash_word(at)) * NH_HASH_PRIME;
        b = (b ^ nh_hash_word(at + WORD)) * NH_HASH_PRIME;
        c = (c ^ nh_hash_word(at + 2 * WORD)) * NH_HASH_PRIME;
        d = (d ^ nh_hash_word(at + 3 * WORD)) * NH_HASH_PRIME;
    }
    uint64_t hash =
        (((a * NH_HASH_PRIME ^ b) * NH_HASH_PRIME ^ c) * NH_HASH_PRIME ^ d) * NH_HASH_PRIME;
    hash = nh_hash(hash, at, (size_t)(end - at));
    hash = (hash ^ hash >> 32) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 32;
}

#endif
