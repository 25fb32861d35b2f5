/* Vocabulary of every layer: errors, the host services a context was given, small integer helpers. */
#ifndef NH_BASE_H
#define NH_BASE_H

#include "nhood.h"

#include <stdbool.h>

#if defined(_WIN32) && defined(__GNUC__) /* printf is mingw-w64's own, not Microsoft's */
#define NH_PRINTF(text, first) __attribute__((format(gnu_printf, text, first)))
#elif defined(__GNUC__)
#define NH_PRINTF(text, first) __attribute__((format(printf, text, first)))
#else
#define NH_PRINTF(text, first)
#endif

/* Alignment of workspaces and of everything nh_allocate returns: one cache line, one AVX-512 vector. */
#define NH_ALIGNMENT 64

/* Records the thread's error text and returns status, so that callers can `return nh_error(...)`. */
nhood_status nh_error(nhood_status status, const char *format, ...) NH_PRINTF(2, 3);

/* ARGUMENT, naming the field of `what`, unless low <= value <= high. */
nhood_status nh_check_field(const char *what, const char *field, int64_t value, int64_t low,
                            int64_t high);

/* The services that the application gave to its context, which keeps a copy of them. */
struct nh_host {
    void *user;
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *memory);
    void (*log)(void *user, int32_t level, const char *line);
    void (*parallel_for)(void *user, int64_t count, nhood_parallel_body body, void *arg);
    int32_t (*interrupted)(void *user);
    /* Which options come from the environment: errors name what was given. */
    struct {
        bool isa, nvrtc, bundle;
    } from_environment;
};

/* Zeroed memory aligned to NH_ALIGNMENT, or NULL with the error text set. */
void *nh_allocate(const struct nh_host *host, size_t bytes);
/* The same, but what it holds is not set: for what is large and written at once. */
void *nh_allocate_unset(const struct nh_host *host, size_t bytes);
void nh_release(const struct nh_host *host, void *memory); /* does nothing for NULL */
char *nh_copy_text(const struct nh_host *host, const char *text);
void nh_log(const struct nh_host *host, int32_t level, const char *format, ...) NH_PRINTF(3, 4);

/* Seconds of a steady clock. Deadlines are given by it, too. */
double nh_steady_s(void);
/* The same to some milliseconds, in a quarter of the time: 5 ns. */
double nh_coarse_s(void);

/* Checked int64 arithmetic for extents. Returns false on overflow. */
static inline bool nh_multiply(int64_t a, int64_t b, int64_t *product) {
    return !__builtin_mul_overflow(a, b, product);
}

static inline bool nh_add(int64_t a, int64_t b, int64_t *sum) {
    return !__builtin_add_overflow(a, b, sum);
}

static inline int64_t nh_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static inline int64_t nh_max(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static inline int64_t nh_ceil_div(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static inline int64_t nh_floor_div(int64_t a, int64_t b) {
    return a / b - (a % b < 0);
}

/* The greatest common divisor. */
static inline int64_t nh_common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static inline size_t nh_align_up(size_t bytes) {
    return (bytes + NH_ALIGNMENT - 1) / NH_ALIGNMENT * NH_ALIGNMENT;
}

#endif
