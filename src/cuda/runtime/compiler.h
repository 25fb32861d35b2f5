/* From a kernel's source and its macros to machine code: the compiler of a context, looked for when first needed, and the
 * texts by which code is known in memory, in the store and in bundles. */
#ifndef NH_COMPILER_H
#define NH_COMPILER_H

#include "nvrtc.h"
#include "solver.h"

/* The kernels' source texts, embedded at build time by cmake/embed.cmake; and of those the headers, as NVRTC takes them. */
struct nh_source {
    const char *name, *text;
};
extern const struct nh_source nh_kernel_sources[];
extern const char *const nh_kernel_header_name[], *const nh_kernel_header_text[];
extern const int nh_kernel_source_count, nh_kernel_header_count;

enum { NH_KERNEL_DEFINES = 64 };

/* One specialisation: a kernel source and the macros it is compiled with. Its key is all of this and nothing of
 * a problem's extents, so that a new image size compiles nothing. */
struct nh_kernel_spec {
    /* file name of a kernel source, "naive_forward.cu"; its one kernel has the file's stem for its name */
    const char *source;
    int32_t count;
    struct {
        const char *name;
        int64_t value;
    } define[NH_KERNEL_DEFINES];
};

/* A spec that is full stays as it is; nh_cuda_step_add refuses it. */
void nh_kernel_define(struct nh_kernel_spec *spec, const char *name, int64_t value);

/* The macros of a table of knobs, or of its first `count`, with these values. */
void nh_kernel_define_knobs(struct nh_kernel_spec *spec, const struct nh_knob *knob, int count,
                            const int32_t *value);

/* The spec and the architecture (80, 90, ..) as text: source and options. */
enum { NH_KERNEL_TEXT_BYTES = 4096 };
void nh_kernel_text(const struct nh_kernel_spec *spec, int32_t arch,
                    char text[NH_KERNEL_TEXT_BYTES]);

/* What a key of the store begins with, before the text above: all sources and their compiler's version. Origins that begin
 * alike are of the same sources. */
enum { NH_ORIGIN_BYTES = 128, NH_KEY_BYTES = NH_ORIGIN_BYTES + NH_KERNEL_TEXT_BYTES };
void nh_sources_text(char text[NH_ORIGIN_BYTES]);

struct nh_compiler {
    const struct nh_host *host;
    struct nh_nvrtc nvrtc;
    bool searched;
    nhood_status status;
    char error[1024], origin[NH_ORIGIN_BYTES], *path;
};

/* path: of libnvrtc; NULL: it is searched for. */
nhood_status nh_compiler_open(struct nh_compiler *compiler, const struct nh_host *host,
                              const char *path);
void nh_compiler_close(struct nh_compiler *compiler);

/* Whether there is a compiler; the first call looks for it. What it found holds for good. One thread at a time. COMPILE. */
nhood_status nh_compiler_find(struct nh_compiler *compiler);

/* Once it was found; *code is released by the caller. A COMPILE error carries the log's first lines; so do the notes by
 * which ptxas says that it dropped register reallocation or serialised asynchronous products (C7508, C7515, C7520): such
 * code is never used. COMPILE, MEMORY. */
nhood_status nh_compiler_make(const struct nh_compiler *compiler, const struct nh_kernel_spec *spec,
                              int32_t arch, void **code, size_t *bytes);

#endif
