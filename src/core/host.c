/* Memory and log lines through the services that the application gave; the steady clock. */
#include "os.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

void *nh_allocate_unset(const struct nh_host *host, size_t bytes) {
    size_t rounded = nh_align_up(bytes ? bytes : 1);
    void *memory = NULL;
    if (rounded >= bytes) {
        memory = host->allocate ? host->allocate(host->user, rounded, NH_ALIGNMENT)
                                : nh_os_allocate(rounded);
    }
    if (!memory) {
        nh_error(NHOOD_ERR_MEMORY, "allocation of %zu bytes failed", bytes);
        return NULL;
    }
    return memory;
}

void *nh_allocate(const struct nh_host *host, size_t bytes) {
    void *memory = nh_allocate_unset(host, bytes);
    if (memory) memset(memory, 0, nh_align_up(bytes ? bytes : 1));
    return memory;
}

void nh_release(const struct nh_host *host, void *memory) {
    if (!memory) return;
    if (host->release) {
        host->release(host->user, memory);
    } else {
        nh_os_release(memory);
    }
}

char *nh_copy_text(const struct nh_host *host, const char *text) {
    size_t bytes = strlen(text) + 1;
    char *copy = nh_allocate(host, bytes);
    if (copy) memcpy(copy, text, bytes);
    return copy;
}

void nh_log(const struct nh_host *host, int32_t level, const char *format, ...) {
    if (!host->log) return;
    char line[512];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(line, sizeof line, format, arguments);
    va_end(arguments);
    host->log(host->user, level, line);
}

static double read_clock(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

double nh_steady_s(void) {
    return read_clock(CLOCK_MONOTONIC);
}

double nh_coarse_s(void) {
#if defined(CLOCK_MONOTONIC_COARSE)
    return read_clock(CLOCK_MONOTONIC_COARSE);
#else
    return read_clock(CLOCK_MONOTONIC);
#endif
}
