/* Wisdom as text. Nothing is measured yet, so a context stores none: export writes the header line, import
 * checks the header and names every line it cannot use. */
#include "context.h"

#include <string.h>

static const char header[] = "nhood-wisdom 1\n";

nhood_status nhood_wisdom_export(const nhood_context *context, char *text, size_t capacity,
                                 size_t *length) {
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    if (!text && capacity)
        return nh_error(NHOOD_ERR_ARGUMENT, "text is NULL, capacity is %zu", capacity);
    if (length) *length = sizeof header - 1;
    if (capacity < sizeof header)
        return nh_error(NHOOD_ERR_ARGUMENT, "capacity = %zu, the text needs %zu", capacity,
                        sizeof header);
    memcpy(text, header, sizeof header);
    return NHOOD_OK;
}

nhood_status nhood_wisdom_import(nhood_context *context, const char *text, int64_t *accepted) {
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    if (!text) return nh_error(NHOOD_ERR_ARGUMENT, "text is NULL");
    if (accepted) *accepted = 0;
    if (strncmp(text, header, sizeof header - 1) != 0)
        return nh_error(NHOOD_ERR_ARGUMENT, "text does not start with the line 'nhood-wisdom 1'");
    int line = 2;
    for (const char *at = text + sizeof header - 1; *at; line++) {
        size_t size = strcspn(at, "\n");
        if (size)
            nh_log(&context->host, NHOOD_LOG_WARNING,
                   "wisdom line %d left out: this version uses none: '%.*s'", line,
                   (int)(size < 200 ? size : 200), at);
        at += size + (at[size] == '\n');
    }
    return NHOOD_OK;
}
