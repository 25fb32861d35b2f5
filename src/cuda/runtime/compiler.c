#include "compiler.h"

#include "hash.h"
#include "library_names.h"
#include "os.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum {
    SCHEMA = 1,
    MOST_OPTIONS = NH_KERNEL_DEFINES + 5
}; /* and standard, architecture, NH_CONFIG, NULL */

void nh_kernel_define(struct nh_kernel_spec *spec, const char *name, int64_t value) {
    if (spec->count == NH_KERNEL_DEFINES) return;
    spec->define[spec->count].name = name;
    spec->define[spec->count++].value = value;
}

void nh_kernel_configure(struct nh_kernel_spec *spec, const struct nh_kernel_field *field,
                         const void *config) {
    spec->field = field;
    spec->values = spec->names = 0;
    for (int i = 0; field[i].name; i++)
        spec->values += field[i].count ? field[i].count : 1;
    memcpy(spec->value, config,
           (size_t)nh_min(spec->values, NH_KERNEL_CONFIG_INTS) * sizeof *spec->value);
}

void nh_kernel_name_value(struct nh_kernel_spec *spec, const char *member, const char *enumerator) {
    if (spec->names == NH_KERNEL_CONFIG_NAMES) return;
    spec->name[spec->names].member = member;
    spec->name[spec->names++].enumerator = enumerator;
}

bool nh_kernel_same(const struct nh_kernel_spec *a, const struct nh_kernel_spec *b) {
    if (a->count != b->count || a->field != b->field ||
        (a->source != b->source && strcmp(a->source, b->source) != 0))
        return false;
    for (int32_t i = 0; i < a->count; i++)
        if (a->define[i].value != b->define[i].value ||
            (a->define[i].name != b->define[i].name &&
             strcmp(a->define[i].name, b->define[i].name) != 0))
            return false;
    return !a->field || !memcmp(a->value, b->value, (size_t)a->values * sizeof *a->value);
}

void nh_kernel_copy(struct nh_kernel_spec *to, const struct nh_kernel_spec *from) {
    to->source = from->source;
    to->count = from->count;
    to->field = from->field;
    to->values = from->values;
    to->names = from->names;
    memcpy(to->define, from->define, (size_t)from->count * sizeof *from->define);
    if (!from->field) return;
    memcpy(to->value, from->value,
           (size_t)nh_min(from->values, NH_KERNEL_CONFIG_INTS) * sizeof *from->value);
    memcpy(to->name, from->name, (size_t)from->names * sizeof *from->name);
}

/* A text while it is written; what does not fit is cut off. */
struct writing {
    char *text;
    size_t used, room;
};

static void NH_PRINTF(2, 3) append(struct writing *writing, const char *format, ...) {
    va_list arguments;
    if (writing->used >= writing->room) return;
    va_start(arguments, format);
    writing->used += (size_t)vsnprintf(writing->text + writing->used, writing->room - writing->used,
                                       format, arguments);
    va_end(arguments);
}

/* The name of a member's value, or NULL. */
static const char *enumerator_of(const struct nh_kernel_spec *spec, const char *member) {
    for (int i = 0; i < spec->names; i++)
        if (!strcmp(spec->name[i].member, member)) return spec->name[i].enumerator;
    return NULL;
}

static void write_config(const struct nh_kernel_spec *spec, struct writing *to) {
    const int *value = spec->value, *end = value + nh_min(spec->values, NH_KERNEL_CONFIG_INTS);
    for (int i = 0; spec->field[i].name; i++) {
        const struct nh_kernel_field *field = &spec->field[i];
        const char *enumerator = enumerator_of(spec, field->name);
        append(to, "%s.%s=%s", i ? "," : "{", field->name, field->count ? "{" : "");
        for (int k = 0; k < nh_max(field->count, 1) && value < end; k++, value++)
            if (enumerator)
                append(to, "%s", enumerator);
            else
                append(to, "%s%d", k ? "," : "", *value);
        if (field->count) append(to, "}");
    }
    append(to, "}");
}

void nh_kernel_config_text(const struct nh_kernel_spec *spec, char text[NH_KERNEL_CONFIG_BYTES]) {
    struct writing to = {text, 0, NH_KERNEL_CONFIG_BYTES};
    *text = '\0';
    if (spec->field) write_config(spec, &to);
}

/* From sm_90 on, the "a" variant of an architecture allows instructions such as wgmma that only it has. */
void nh_kernel_text(const struct nh_kernel_spec *spec, int32_t arch, bool line_info,
                    char text[NH_KERNEL_TEXT_BYTES]) {
    struct writing to = {text, 0, NH_KERNEL_TEXT_BYTES};
    append(&to, "%s --std=c++20 --gpu-architecture=sm_%d%s%s", spec->source, (int)arch,
           arch >= 90 ? "a" : "", line_info ? " --generate-line-info" : "");
    for (int32_t i = 0; i < spec->count; i++)
        append(&to, " -D%s=%lld", spec->define[i].name, (long long)spec->define[i].value);
    if (!spec->field) return;
    append(&to, " -DNH_CONFIG=");
    write_config(spec, &to);
}

/* The hash is part of every key, so that a change in any source invalidates all stored kernels. */
void nh_sources_text(char text[NH_ORIGIN_BYTES]) {
    uint64_t hash = NH_HASH_START;
    for (int i = 0; i < nh_kernel_source_count; i++)
        hash = nh_hash(hash, nh_kernel_sources[i].text, strlen(nh_kernel_sources[i].text));
    snprintf(text, NH_ORIGIN_BYTES, "schema %d sources %016llx ", SCHEMA, (unsigned long long)hash);
}

/* ---- finding NVRTC ---- */

static const char *const names[] = {NH_NVRTC_NAMES, NULL};
static const char *const folders[] = {NH_NVRTC_FOLDERS, NULL};
static const char *const packages[] = {NH_NVRTC_PACKAGES, NULL};

static bool find_functions(struct nh_nvrtc *nvrtc) {
    void *address;
#define X(member, symbol, result, parameters)                                                      \
    address = nh_os_library_symbol(nvrtc->library, #symbol);                                       \
    if (!address) return false;                                                                    \
    memcpy(&nvrtc->member, &address, sizeof address);
#include "nvrtc.def"
#undef X
    return nvrtc->version(&nvrtc->version_major, &nvrtc->version_minor) == 0;
}

/* Loads the builtins library from NVRTC's own folder, for NVRTC to find it in the process by its bare name. */
static void open_builtins(struct nh_nvrtc *nvrtc) {
#if defined(NH_NVRTC_BUILTINS)
    char path[sizeof nvrtc->path + 32];
    const char *slash = strrchr(nvrtc->path, '/');
    int folder_bytes = slash ? (int)(slash + 1 - nvrtc->path) : 0;
    snprintf(path, sizeof path, "%.*s" NH_NVRTC_BUILTINS, folder_bytes, nvrtc->path,
             nvrtc->version_major, nvrtc->version_minor);
    nvrtc->builtins = nh_os_library_open(path);
#else
    (void)nvrtc;
#endif
}

/* Takes the library if it is NVRTC. path: the name by which it was opened, in case the loader cannot tell its path. */
static bool use(struct nh_nvrtc *nvrtc, void *library, const char *path) {
    if (!library) return false;
    nvrtc->library = library;
    if (!find_functions(nvrtc)) {
        nh_os_library_close(library);
        memset(nvrtc, 0, sizeof *nvrtc);
        return false;
    }
    void *address;
    memcpy(&address, &nvrtc->version, sizeof address);
    if (!nh_os_library_path(address, nvrtc->path, sizeof nvrtc->path))
        snprintf(nvrtc->path, sizeof nvrtc->path, "%s", path);
    open_builtins(nvrtc);
    return true;
}

static bool try_open(struct nh_nvrtc *nvrtc, const char *path) {
    return use(nvrtc, nh_os_library_open(path), path);
}

static bool try_folders(struct nh_nvrtc *nvrtc, const char *parent, const char *const *folder) {
    char path[1024];
    for (; *folder; folder++)
        for (const char *const *name = names; *name; name++)
            if (snprintf(path, sizeof path, "%s%s/%s", parent, *folder, *name) < (int)sizeof path &&
                try_open(nvrtc, path))
                return true;
    return false;
}

/* Fails with COMPILE and a text that says what was tried. */
static nhood_status open_nvrtc(struct nh_nvrtc *nvrtc, const char *path, bool from_environment) {
    memset(nvrtc, 0, sizeof *nvrtc);
    if (path) {
        if (try_open(nvrtc, path)) return NHOOD_OK;
        const char *reason = nh_os_library_error();
        return nh_error(NHOOD_ERR_COMPILE, "%s = '%s' cannot be used: %s",
                        from_environment ? "NHOOD_NVRTC" : "options.nvrtc", path,
                        reason ? reason : "it is not NVRTC");
    }
    for (const char *const *name = names; *name; name++)
        if (use(nvrtc, nh_os_library_loaded(*name), *name)) return NHOOD_OK;
    for (const char *const *name = names; *name; name++)
        if (try_open(nvrtc, *name)) return NHOOD_OK;
    if (try_folders(nvrtc, "", folders)) return NHOOD_OK;
    char own[512]; /* the folder of this library with a slash; "" if the loader cannot tell */
    char *slash = nh_os_library_path(names, own, sizeof own) ? strrchr(own, '/') : NULL;
    *(slash ? slash + 1 : own) = '\0';
    if (*own && try_folders(nvrtc, own, packages)) return NHOOD_OK;
    if (slash) *slash = '\0';
    return nh_error(NHOOD_ERR_COMPILE,
                    "NVRTC was not found: tried " NH_NVRTC_TRIED
                    " and in the pip packages beside this library (%s); pip install "
                    "nvidia-cuda-nvrtc, and give its path in options.nvrtc or $NHOOD_NVRTC",
                    *own ? own : "folder unknown");
}

nhood_status nh_compiler_open(struct nh_compiler *compiler, const struct nh_host *host,
                              const char *path, bool line_info) {
    *compiler = (struct nh_compiler){.host = host, .line_info = line_info};
    if (path && !(compiler->path = nh_copy_text(host, path))) return NHOOD_ERR_MEMORY;
    return NHOOD_OK;
}

void nh_compiler_close(struct nh_compiler *compiler) {
    if (compiler->nvrtc.builtins) nh_os_library_close(compiler->nvrtc.builtins);
    if (compiler->nvrtc.library) nh_os_library_close(compiler->nvrtc.library);
    nh_release(compiler->host, compiler->path);
}

nhood_status nh_compiler_find(struct nh_compiler *compiler) {
    const struct nh_nvrtc *nvrtc = &compiler->nvrtc;
    if (compiler->searched)
        return compiler->status ? nh_error(compiler->status, "%s", compiler->error) : NHOOD_OK;
    compiler->searched = true;
    compiler->status =
        open_nvrtc(&compiler->nvrtc, compiler->path, compiler->host->from_environment.nvrtc);
    if (compiler->status) {
        snprintf(compiler->error, sizeof compiler->error, "%s", nhood_last_error());
        return compiler->status;
    }
    nh_sources_text(compiler->origin);
    size_t used = strlen(compiler->origin);
    snprintf(compiler->origin + used, NH_ORIGIN_BYTES - used, "nvrtc %d.%d", nvrtc->version_major,
             nvrtc->version_minor);
    return NHOOD_OK;
}

/* ---- compiling ---- */

/* With these notes of ptxas compilation succeeds, but code is slow or deadlocks (nh_compiler_make): they are errors. */
static const char *forbidden_note(const char *log) {
    static const char *const notes[] = {"C7508", "C7515", "C7520"};
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (strstr(log, notes[i])) return notes[i];
    return NULL;
}

static nhood_status read_log(const struct nh_compiler *compiler, void *program, char **log) {
    const struct nh_nvrtc *nvrtc = &compiler->nvrtc;
    size_t bytes = 0;
    if (nvrtc->log_size(program, &bytes)) bytes = 0;
    *log = nh_allocate(compiler->host, bytes + 1);
    if (!*log) return NHOOD_ERR_MEMORY;
    if (bytes && nvrtc->log(program, *log)) **log = '\0';
    return NHOOD_OK;
}

static nhood_status read_code(const struct nh_compiler *compiler, void *program, void **code,
                              size_t *bytes) {
    const struct nh_nvrtc *nvrtc = &compiler->nvrtc;
    if (nvrtc->cubin_size(program, bytes) || !*bytes)
        return nh_error(NHOOD_ERR_COMPILE, "NVRTC gave no machine code");
    *code = nh_allocate(compiler->host, *bytes);
    if (!*code) return NHOOD_ERR_MEMORY;
    int result = nvrtc->cubin(program, *code);
    if (!result) return NHOOD_OK;
    nh_release(compiler->host, *code);
    *code = NULL;
    return nh_error(NHOOD_ERR_COMPILE, "NVRTC: %s", nvrtc->error_text(result));
}

static nhood_status compile(const struct nh_compiler *compiler, const struct nh_source *source,
                            const char *const *option, int options, void **code, size_t *bytes) {
    const struct nh_nvrtc *nvrtc = &compiler->nvrtc;
    void *program = NULL;
    *code = NULL;
    int result = nvrtc->create(&program, source->text, source->name, nh_kernel_header_count,
                               nh_kernel_header_text, nh_kernel_header_name);
    if (result)
        return nh_error(NHOOD_ERR_COMPILE, "NVRTC, %s: %s", source->name,
                        nvrtc->error_text(result));
    result = nvrtc->compile(program, options, option);
    char *log = NULL;
    nhood_status status = read_log(compiler, program, &log);
    const char *note = status ? NULL : forbidden_note(log);
    if (!status && (result || note))
        status = nh_error(NHOOD_ERR_COMPILE, "NVRTC, %s: %s: %.600s", source->name,
                          note ? note : nvrtc->error_text(result), log);
    nh_release(compiler->host, log);
    if (!status) status = read_code(compiler, program, code, bytes);
    nvrtc->destroy(&program);
    return status;
}

nhood_status nh_compiler_make(const struct nh_compiler *compiler, const struct nh_kernel_spec *spec,
                              int32_t arch, void **code, size_t *bytes) {
    char text[NH_KERNEL_TEXT_BYTES];
    const char *option[MOST_OPTIONS];
    const struct nh_source *source = nh_kernel_sources, *end = source + nh_kernel_source_count;
    while (source < end && strcmp(source->name, spec->source) != 0)
        source++;
    if (source == end)
        return nh_error(NHOOD_ERR_INTERNAL, "no kernel source is called %s", spec->source);
    nh_kernel_text(spec, arch, compiler->line_info, text);
    int options = 0;
    char *rest = NULL;
    strtok_r(text, " ", &rest); /* the source's name, which options follow */
    while ((option[options] = strtok_r(NULL, " ", &rest)))
        options++;
    return compile(compiler, source, option, options, code, bytes);
}
