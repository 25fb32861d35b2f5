/* Random numbers that are the same on every machine: splitmix64. */
#ifndef RANDOM_H
#define RANDOM_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

struct random {
    uint64_t state;
};

static inline uint64_t random_bits(struct random *random) {
    uint64_t z = random->state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* Uniform in [low, high]. */
static inline int64_t random_integer(struct random *random, int64_t low, int64_t high) {
    return low + (int64_t)(random_bits(random) % (uint64_t)(high - low + 1));
}

/* True with probability 1 / of. */
static inline bool random_once_in(struct random *random, int64_t of) {
    return random_integer(random, 1, of) == 1;
}

/* Mean 0, variance 1, close to normal, but bounded by 3.47: the scaled sum of four uniform 16-bit numbers. */
static inline double random_normal(struct random *random) {
    uint64_t bits = random_bits(random);
    int64_t sum = (int64_t)(bits & 0xffff) + (int64_t)(bits >> 16 & 0xffff) +
                  (int64_t)(bits >> 32 & 0xffff) + (int64_t)(bits >> 48);
    return (double)(2 * sum - 4 * 0xffff) * (sqrt(0.75) / 0x1p16);
}

#endif
