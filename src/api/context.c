/* Contexts and their devices. */
#include "context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEXT(x) #x
#define VERSION(major, minor, patch) TEXT(major) "." TEXT(minor) "." TEXT(patch)

const char *nhood_version(void) {
    return VERSION(NHOOD_VERSION_MAJOR, NHOOD_VERSION_MINOR, NHOOD_VERSION_PATCH);
}

/* from_environment is set if the text is the variable's. */
static const char *text_or_environment(const char *text, const char *variable,
                                       char room[NH_PATH_BYTES], bool *from_environment) {
    if (text) return text;
    const char *value = nh_os_environment(variable, room);
    *from_environment = value && *value;
    return *from_environment ? value : NULL;
}

/* Where the number comes from is written in words. */
static nhood_status read_threads(int32_t *threads, char origin[NH_ORIGIN_BYTES]) {
    snprintf(origin, NH_ORIGIN_BYTES, "options.threads");
    char room[NH_PATH_BYTES];
    const char *text = nh_os_environment("NHOOD_THREADS", room);
    if (*threads == 0 && text && *text) {
        char *end;
        long value = strtol(text, &end, 10);
        if (*end || value < 1 || value > 1024)
            return nh_error(NHOOD_ERR_ARGUMENT, "NHOOD_THREADS = '%s' is not in [1, 1024]", text);
        *threads = (int32_t)value;
        snprintf(origin, NH_ORIGIN_BYTES, "NHOOD_THREADS");
    }
    if (*threads < 0 || *threads > 1024)
        return nh_error(NHOOD_ERR_ARGUMENT, "options.threads = %d is not in [0, 1024]",
                        (int)*threads);
    if (*threads == 0) *threads = nh_default_threads(origin);
    return NHOOD_OK;
}

/* The least urgent level that is printed, from NHOOD_LOG. The environment is the process', and so is this. */
static atomic_int printed_level;

static const char *const level_names[] = {"error", "warning", "info"};

static void print_line(void *user, int32_t level, const char *line) {
    (void)user;
    if (level <= atomic_load(&printed_level))
        fprintf(stderr, "nhood: %s: %s\n", level_names[level], line);
}

/* The log goes to the application's function or, if there is none and NHOOD_LOG asks for it, to stderr. */
static nhood_status read_log(struct nh_host *host) {
    char room[NH_PATH_BYTES];
    const char *text = nh_os_environment("NHOOD_LOG", room);
    if (!text || !*text) return NHOOD_OK;
    for (int level = NHOOD_LOG_ERROR; level <= NHOOD_LOG_INFO; level++) {
        if (strcmp(text, level_names[level]) != 0) continue;
        atomic_store(&printed_level, level);
        if (!host->log) host->log = print_line;
        return NHOOD_OK;
    }
    return nh_error(NHOOD_ERR_ARGUMENT, "NHOOD_LOG = '%s' is not one of error, warning, info",
                    text);
}

static nhood_status read_line_info(int32_t *line_info) {
    char room[NH_PATH_BYTES];
    const char *text = nh_os_environment("NHOOD_LINE_INFO", room);
    if (*line_info < 0 || *line_info > 1)
        return nh_error(NHOOD_ERR_ARGUMENT, "options.line_info = %d is not 0 or 1",
                        (int)*line_info);
    if (text && *text && strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
        return nh_error(NHOOD_ERR_ARGUMENT, "NHOOD_LINE_INFO = '%s' is not 0 or 1", text);
    if (text && *text == '1') *line_info = 1;
    return NHOOD_OK;
}

nhood_status nh_context_cache(const nhood_context *context) {
    if (*context->cache) return NHOOD_OK;
    return nh_error(NHOOD_ERR_CACHE_MISS, "the context has no cache folder: %s", context->no_cache);
}

nhood_status nh_context_wisdom_path(const nhood_context *context, const char *given,
                                    char path[NH_PATH_BYTES]) {
    const nhood_status status = given ? NHOOD_OK : nh_context_cache(context);
    if (status) return status;
    int length = given ? snprintf(path, NH_PATH_BYTES, "%s", given)
                       : snprintf(path, NH_PATH_BYTES, "%s/wisdom", context->cache);
    if (length >= NH_PATH_BYTES)
        return nh_error(NHOOD_ERR_ARGUMENT, "path has %d bytes, at most %d are legal", length,
                        NH_PATH_BYTES - 1);
    return NHOOD_OK;
}

/* A file that cannot be read or is not wisdom does not fail the context. Only MEMORY is returned. */
static nhood_status load_wisdom(nhood_context *context) {
    nhood_status status = nh_wisdom_create(&context->host, &context->wisdom);
    if (status || !*context->cache) return status;
    status = nhood_wisdom_load(context, NULL, NULL);
    if (status == NHOOD_ERR_ARGUMENT)
        nh_log(&context->host, NHOOD_LOG_WARNING, "wisdom is not used: %s", nhood_last_error());
    return status == NHOOD_ERR_MEMORY ? status : NHOOD_OK;
}

/* Forks do not wait for measurements. In the child none is running, so its lock is made anew. */
static void stop_measuring(void *owner) {
    nhood_context *context = owner;
    pthread_mutex_init(&context->measuring, NULL);
}

nhood_status nhood_context_create(const nhood_context_options *options, nhood_context **context) {
    NH_NOT_CANCELLED;
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    *context = NULL;
    nhood_context_options effective = {.struct_size = sizeof effective};
    if (options) {
        if (options->struct_size != sizeof effective)
            return nh_error(NHOOD_ERR_ARGUMENT, "options.struct_size = %zu, this library knows %zu",
                            options->struct_size, sizeof effective);
        effective = *options;
    }
    if (!effective.allocate != !effective.release)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "options.allocate and options.release: give both or neither");
    char threads_origin[NH_ORIGIN_BYTES];
    nhood_status status = read_threads(&effective.threads, threads_origin);
    if (!status) status = read_line_info(&effective.line_info);
    if (status) return status;
    char cache[NH_PATH_BYTES], isa[NH_PATH_BYTES], nvrtc[NH_PATH_BYTES], bundle[NH_PATH_BYTES];
    struct nh_host host = {
        .user = effective.user,
        .allocate = effective.allocate,
        .release = effective.release,
        .log = effective.log,
        .parallel_for = effective.parallel_for,
        .interrupted = effective.interrupted,
    };
    effective.isa =
        text_or_environment(effective.isa, "NHOOD_ISA", isa, &host.from_environment.isa);
    effective.nvrtc =
        text_or_environment(effective.nvrtc, "NHOOD_NVRTC", nvrtc, &host.from_environment.nvrtc);
    effective.bundle = text_or_environment(effective.bundle, "NHOOD_BUNDLE", bundle,
                                           &host.from_environment.bundle);
    status = read_log(&host);
    if (status) return status;
    char no_cache[NH_NO_CACHE_BYTES];
    status = nh_cache_folder_find(effective.cache, &host, cache, no_cache);
    if (status) return status;
    effective.cache = cache;
    nhood_context *created = nh_allocate(&host, sizeof *created);
    if (!created) return NHOOD_ERR_MEMORY;
    created->host = host;
    atomic_init(&created->references, 1);
    pthread_mutex_init(&created->measuring, NULL);
    created->measuring_guard = (struct nh_fork_guard){.child = stop_measuring, .owner = created};
    status = nh_fork_guard_add(&created->measuring_guard);
    created->line_info = effective.line_info;
    memcpy(created->threads_origin, threads_origin, sizeof threads_origin);
    created->cache = nh_copy_text(&created->host, cache);
    memcpy(created->no_cache, no_cache, sizeof no_cache);
    if (effective.nvrtc) created->nvrtc = nh_copy_text(&created->host, effective.nvrtc);
    bool copied = created->cache && (created->nvrtc || !effective.nvrtc);
    if (!status) status = copied ? load_wisdom(created) : NHOOD_ERR_MEMORY;
    if (!status) status = nh_choice_cache_create(&created->host, &created->choices);
    if (!status) status = nh_group_choices_create(&created->host, &created->group_choices);
    if (!status) status = nh_registry_open(&effective, &created->host, &created->devices);
    if (status) {
        nh_context_drop(created);
        return status;
    }
    *context = created;
    return NHOOD_OK;
}

void nh_context_retain(nhood_context *context) {
    atomic_fetch_add(&context->references, 1);
}

void nh_context_drop(nhood_context *context) {
    if (atomic_fetch_sub(&context->references, 1) != 1) return;
    nh_registry_close(&context->devices);
    nh_choice_cache_destroy(context->choices);
    nh_group_choices_destroy(context->group_choices);
    nh_arena_destroy(atomic_load(&context->spare.arena));
    nh_wisdom_destroy(context->wisdom);
    nh_fork_guard_remove(&context->measuring_guard);
    pthread_mutex_destroy(&context->measuring);
    struct nh_host host = context->host;
    nh_release(&host, context->cache);
    nh_release(&host, context->nvrtc);
    nh_release(&host, context);
}

void nhood_context_destroy(nhood_context *context) {
    NH_NOT_CANCELLED;
    if (context) nh_context_drop(context);
}

const char *nhood_context_threads(const nhood_context *context) {
    return context ? context->threads_origin : "";
}

nhood_status nhood_context_limit_threads(nhood_context *context, int32_t threads) {
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    if (threads < 0 || threads > 1024)
        return nh_error(NHOOD_ERR_ARGUMENT, "threads = %d is not in [0, 1024]", (int)threads);
    nh_registry_limit_threads(&context->devices.device[0], threads);
    return NHOOD_OK;
}

int32_t nhood_device_count(const nhood_context *context) {
    return context ? context->devices.count : 0;
}

nhood_status nh_context_device(const nhood_context *context, int32_t index,
                               const struct nh_device **device) {
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    if (index < 0 || index >= context->devices.count)
        return nh_error(NHOOD_ERR_ARGUMENT, "device = %d, the context has %d", (int)index,
                        (int)context->devices.count);
    *device = &context->devices.device[index];
    return NHOOD_OK;
}

nhood_status nh_context_present(const struct nh_device *device) {
    if (!device->spec_only) return NHOOD_OK;
    return nh_error(NHOOD_ERR_DEVICE, "%s is only described, not there: nothing can run on it",
                    device->info.name);
}

nhood_status nhood_device_query(const nhood_context *context, int32_t device,
                                nhood_device_info *info) {
    const struct nh_device *found = NULL;
    nhood_status status = nh_context_device(context, device, &found);
    if (status) return status;
    if (!info) return nh_error(NHOOD_ERR_ARGUMENT, "info is NULL");
    if (info->struct_size != sizeof *info)
        return nh_error(NHOOD_ERR_ARGUMENT, "info.struct_size = %zu, this library knows %zu",
                        info->struct_size, sizeof *info);
    *info = found->info;
    return NHOOD_OK;
}

const char *nhood_context_notes(const nhood_context *context) {
    NH_NOT_CANCELLED;
    return context ? nh_registry_notes(&context->devices) : "";
}

nhood_status nh_context_counts(const nhood_kernel_counts *whole, nhood_kernel_counts *counts) {
    if (counts->struct_size != sizeof *whole)
        return nh_error(NHOOD_ERR_ARGUMENT, "counts.struct_size = %zu, this library knows %zu",
                        counts->struct_size, sizeof *whole);
    *counts = *whole;
    return NHOOD_OK;
}

nhood_status nhood_context_kernels(const nhood_context *context, nhood_kernel_counts *counts) {
    NH_NOT_CANCELLED;
    if (!context) return nh_error(NHOOD_ERR_ARGUMENT, "context is NULL");
    if (!counts) return nh_error(NHOOD_ERR_ARGUMENT, "counts is NULL");
    nhood_kernel_counts whole = {.struct_size = sizeof whole};
    nh_registry_count_kernels(context->devices.cuda, &whole);
    return nh_context_counts(&whole, counts);
}

nhood_status nhood_device_measure(nhood_context *context, int32_t device, int32_t dtype,
                                  nhood_ceilings *ceilings) {
    NH_NOT_CANCELLED;
    const struct nh_device *found = NULL;
    nhood_status status = nh_context_device(context, device, &found);
    if (!status) status = nh_context_present(found);
    if (status) return status;
    if (!ceilings) return nh_error(NHOOD_ERR_ARGUMENT, "ceilings is NULL");
    if (ceilings->struct_size != sizeof *ceilings)
        return nh_error(NHOOD_ERR_ARGUMENT, "ceilings.struct_size = %zu, this library knows %zu",
                        ceilings->struct_size, sizeof *ceilings);
    if (dtype < NHOOD_DTYPE_F64 || dtype > NHOOD_DTYPE_BF16)
        return nh_error(NHOOD_ERR_ARGUMENT, "dtype = %d is not in [1, 4]", (int)dtype);
    return nh_registry_measure(found, dtype, ceilings);
}
