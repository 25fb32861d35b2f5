#include "compiler.h"

#include "kernel_sources.h"

#include <stdio.h>
#include <string.h>

enum { SCHEMA = 1, MOST_OPTIONS = NH_KERNEL_DEFINES + 3 }; /* standard, architecture, NULL */

void nh_kernel_define(struct nh_kernel_spec *spec, const char *name, int64_t value) {
    if (spec->count == NH_KERNEL_DEFINES) return;
    spec->define[spec->count].name = name;
    spec->define[spec->count++].value = value;
}

void nh_kernel_define_knobs(struct nh_kernel_spec *spec, const struct nh_knob *knob, int count,
                            const int32_t *value) {
    for (int i = 0; i < count && knob[i].name; i++)
        if (knob[i].macro) nh_kernel_define(spec, knob[i].macro, value[i]);
}

/* sm_90 and later have instructions that only their exact architecture may use. */
static void arch_text(int32_t arch, char *text, size_t capacity) {
    snprintf(text, capacity, "sm_%d%s", (int)arch, arch >= 90 ? "a" : "");
}

/* NVRTC's options for a specialisation, NULL after the last. arch: 80, 90, .. The texts live in `text`. */
static void set_options(const struct nh_kernel_spec *spec, int32_t arch,
                        char text[NH_KERNEL_TEXT_BYTES], const char *option[MOST_OPTIONS]) {
    size_t used = 0;
    int count = 0;
    char name[16];
    arch_text(arch, name, sizeof name);
    option[count++] = "--std=c++17";
    option[count] = text;
    used += (size_t)snprintf(text, NH_KERNEL_TEXT_BYTES, "--gpu-architecture=%s", name) + 1;
    count++;
    for (int32_t i = 0; i < spec->count && used < NH_KERNEL_TEXT_BYTES; i++) {
        option[count++] = text + used;
        used += (size_t)snprintf(text + used, NH_KERNEL_TEXT_BYTES - used, "-D%s=%lld",
                                 spec->define[i].name, (long long)spec->define[i].value) +
                1;
    }
    option[count] = NULL;
}

void nh_kernel_text(const struct nh_kernel_spec *spec, int32_t arch,
                    char text[NH_KERNEL_TEXT_BYTES]) {
    char options[NH_KERNEL_TEXT_BYTES];
    const char *option[MOST_OPTIONS];
    set_options(spec, arch, options, option);
    size_t used = (size_t)snprintf(text, NH_KERNEL_TEXT_BYTES, "%s", spec->source);
    for (int i = 0; option[i] && used < NH_KERNEL_TEXT_BYTES; i++)
        used += (size_t)snprintf(text + used, NH_KERNEL_TEXT_BYTES - used, " %s", option[i]);
}

/* FNV-1a over every source: a change in any of them makes all stored kernels strangers. */
static uint64_t hash_sources(void) {
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < nh_kernel_source_count; i++)
        for (const char *c = nh_kernel_sources[i].text; *c; c++)
            hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    return hash;
}

void nh_sources_text(char text[NH_ORIGIN_BYTES]) {
    snprintf(text, NH_ORIGIN_BYTES, "schema %d sources %016llx ", SCHEMA,
             (unsigned long long)hash_sources());
}

nhood_status nh_compiler_open(struct nh_compiler *compiler, const struct nh_host *host,
                              const char *path) {
    *compiler = (struct nh_compiler){.host = host};
    if (path && !(compiler->path = nh_copy_text(host, path))) return NHOOD_ERR_MEMORY;
    return NHOOD_OK;
}

void nh_compiler_close(struct nh_compiler *compiler) {
    nh_nvrtc_close(&compiler->nvrtc);
    nh_release(compiler->host, compiler->path);
}

static void search(struct nh_compiler *compiler) {
    compiler->searched = true;
    compiler->status = nh_nvrtc_open(&compiler->nvrtc, compiler->path);
    if (compiler->status) {
        snprintf(compiler->error, sizeof compiler->error, "%s", nhood_last_error());
        return;
    }
    nh_sources_text(compiler->origin);
    size_t used = strlen(compiler->origin);
    snprintf(compiler->origin + used, NH_ORIGIN_BYTES - used, "nvrtc %d.%d",
             compiler->nvrtc.version_major, compiler->nvrtc.version_minor);
}

nhood_status nh_compiler_find(struct nh_compiler *compiler) {
    if (!compiler->searched) search(compiler);
    return compiler->status ? nh_error(compiler->status, "%s", compiler->error) : NHOOD_OK;
}

nhood_status nh_compiler_make(const struct nh_compiler *compiler, const struct nh_kernel_spec *spec,
                              int32_t arch, void **code, size_t *bytes) {
    struct nh_source source[NH_MOST_SOURCES];
    char text[NH_KERNEL_TEXT_BYTES];
    const char *option[MOST_OPTIONS];
    int count = 1;
    source[0] = (struct nh_source){NULL, NULL};
    for (int i = 0; i < nh_kernel_source_count; i++) {
        if (strcmp(nh_kernel_sources[i].name, spec->source) == 0) {
            source[0] = nh_kernel_sources[i];
        } else if (!strstr(nh_kernel_sources[i].name, ".cu") ||
                   strstr(nh_kernel_sources[i].name, ".cuh")) {
            if (count == NH_MOST_SOURCES)
                return nh_error(NHOOD_ERR_INTERNAL, "more than %d kernel headers",
                                NH_MOST_SOURCES - 1);
            source[count++] = nh_kernel_sources[i];
        }
    }
    if (!source[0].text)
        return nh_error(NHOOD_ERR_INTERNAL, "no kernel source is called %s", spec->source);
    set_options(spec, arch, text, option);
    return nh_nvrtc_compile(&compiler->nvrtc, compiler->host, source, count, option, code, bytes);
}
