/* Shared by all test programs: checks, which are counted and print where they failed, and random numbers. */
#ifndef TEST_H
#define TEST_H

#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

/* Atomic, because threads make checks, too. */
static atomic_int test_passed, test_failed;

#define CHECK(condition, ...)                                                                      \
    do {                                                                                           \
        if (condition) {                                                                           \
            test_passed++;                                                                         \
        } else if (test_failed++ < 20) {                                                           \
            printf("%s:%d: %s: ", __FILE__, __LINE__, #condition);                                 \
            printf(__VA_ARGS__);                                                                   \
            printf("\n");                                                                          \
        }                                                                                          \
    } while (0)

/* Memory aligned to 64 bytes. Windows lacks the function of C11. */
static inline void *test_allocate(size_t bytes) {
#if defined(_WIN32)
    return _aligned_malloc(bytes, 64);
#else
    return aligned_alloc(64, (bytes + 63) / 64 * 64);
#endif
}

static inline void test_free(void *memory) {
#if defined(_WIN32)
    _aligned_free(memory);
#else
    free(memory);
#endif
}

static inline int test_result(void) {
    printf("%d passed, %d failed\n", test_passed, test_failed);
    return test_failed || !test_passed ? EXIT_FAILURE : EXIT_SUCCESS;
}

/* xorshift64: the same numbers everywhere. */
static inline uint64_t test_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    return *state ^= *state << 17;
}

static inline int64_t test_between(uint64_t *state, int64_t low, int64_t high) {
    return low + (int64_t)(test_random(state) % (uint64_t)(high - low + 1));
}

static inline double test_uniform(uint64_t *state) { /* [-1, 1) */
    return (double)(test_random(state) >> 11) * 0x1p-52 - 1;
}

#endif
