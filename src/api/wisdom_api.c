/* Public functions on wisdom. */
#include "context.h"
#include "file_io.h"

#include <string.h>

nhood_status nhood_wisdom_export(const nhood_context *context, char *text, size_t capacity,
                                 size_t *length) {
    NH_NOT_CANCELLED;
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    if (!text && capacity)
        return nh_error(NHOOD_ERR_ARGUMENT, "text is NULL, capacity is %zu", capacity);
    char *whole = NULL;
    size_t bytes = 0;
    nhood_status status = nh_wisdom_text(context->wisdom, &whole, &bytes);
    if (status) return status;
    if (length) *length = bytes;
    if (capacity > bytes) {
        memcpy(text, whole, bytes + 1);
    } else {
        status =
            nh_error(NHOOD_ERR_ARGUMENT, "capacity = %zu, the text needs %zu", capacity, bytes + 1);
    }
    nh_release(&context->host, whole);
    return status;
}

nhood_status nhood_wisdom_import(nhood_context *context, const char *text, int64_t *accepted) {
    NH_NOT_CANCELLED;
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    if (!text) return nh_error(NHOOD_ERR_ARGUMENT, "text is NULL");
    int64_t lines = 0;
    nhood_status status = nh_wisdom_read(context->wisdom, text, "wisdom", &lines);
    if (accepted) *accepted = lines;
    return status;
}

nhood_status nhood_wisdom_load(nhood_context *context, const char *given, int64_t *accepted) {
    NH_NOT_CANCELLED;
    char path[NH_PATH_BYTES];
    int64_t lines = 0;
    if (accepted) *accepted = 0;
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    nhood_status status = nh_context_wisdom_path(context, given, path);
    if (!status) status = nh_wisdom_load(context->wisdom, path, &lines);
    if (accepted) *accepted = lines;
    return status;
}

nhood_status nhood_wisdom_save(nhood_context *context, const char *given, int32_t replace) {
    NH_NOT_CANCELLED;
    char path[NH_PATH_BYTES];
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    nhood_status status = nh_context_wisdom_path(context, given, path);
    if (status) return status;
    if (!given) nh_folder_make(context->cache); /* if this fails, so does writing the file */
    return nh_wisdom_save(context->wisdom, path, replace != 0);
}

nhood_status nhood_wisdom_forget(nhood_context *context, int32_t device,
                                 const nhood_problem *problem, int64_t *forgotten) {
    NH_NOT_CANCELLED;
    const struct nh_device *found = NULL;
    struct nh_problem canonical;
    struct nh_wisdom_key key;
    nhood_status status = NHOOD_OK;
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    if (device != NHOOD_ANY_DEVICE) status = nh_context_device(context, device, &found);
    if (!status && problem) status = nh_problem_canonical(problem, &canonical);
    if (status) return status;
    if (found) nh_wisdom_key(found, NULL, &key);
    if (problem) nh_problem_text(&canonical, key.problem, sizeof key.problem);
    int64_t lines =
        nh_wisdom_forget(context->wisdom, found ? key.device : NULL, problem ? key.problem : NULL);
    if (forgotten) *forgotten = lines;
    return NHOOD_OK;
}
