/* Names of statuses, and each thread's last error text. */
#include "base.h"

#include <stdarg.h>
#include <stdio.h>

/* Long enough for a refusal of every solver and the first lines of a compile log. */
static _Thread_local char last_error[4096];

nhood_status nh_error(nhood_status status, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(last_error, sizeof last_error, format, arguments);
    va_end(arguments);
    return status;
}

const char *nhood_last_error(void) {
    return last_error;
}

const char *nhood_status_name(nhood_status status) {
    switch (status) {
    case NHOOD_OK: return "NHOOD_OK";
    case NHOOD_ERR_ARGUMENT: return "NHOOD_ERR_ARGUMENT";
    case NHOOD_ERR_UNSUPPORTED: return "NHOOD_ERR_UNSUPPORTED";
    case NHOOD_ERR_MEMORY: return "NHOOD_ERR_MEMORY";
    case NHOOD_ERR_DEVICE: return "NHOOD_ERR_DEVICE";
    case NHOOD_ERR_COMPILE: return "NHOOD_ERR_COMPILE";
    case NHOOD_ERR_CACHE_MISS: return "NHOOD_ERR_CACHE_MISS";
    case NHOOD_ERR_INTERNAL: return "NHOOD_ERR_INTERNAL";
    case NHOOD_ERR_INTERRUPTED: return "NHOOD_ERR_INTERRUPTED";
    default: return "unknown status";
    }
}

nhood_status nh_check_field(const char *what, const char *field, int64_t value, int64_t low,
                            int64_t high) {
    if (value >= low && value <= high) return NHOOD_OK;
    return nh_error(NHOOD_ERR_ARGUMENT, "%s.%s = %lld is not in [%lld, %lld]", what, field,
                    (long long)value, (long long)low, (long long)high);
}
