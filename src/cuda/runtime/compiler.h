/* From a kernel's source and its macros to machine code: the compiler of a context, which is looked for when first
 * needed, and the texts that identify code in memory, in the disk store and in bundles. */
#ifndef NH_COMPILER_H
#define NH_COMPILER_H

#include "kernel_config.h"
#include "solver.h"

/* The kernels' source texts, embedded at build time by cmake/embed.cmake; the headers among them once more in the form
 * that NVRTC takes. */
struct nh_source {
    const char *name, *text;
};
extern const struct nh_source nh_kernel_sources[];
extern const char *const nh_kernel_header_name[], *const nh_kernel_header_text[];
extern const int nh_kernel_source_count, nh_kernel_header_count;

enum { NH_KERNEL_DEFINES = 64, NH_KERNEL_CONFIG_INTS = 64, NH_KERNEL_CONFIG_NAMES = 4 };

struct nh_kernel_field;

/* One specialisation: a kernel source and the macros it is compiled with. Both make up its key. Macros never hold a
 * problem's extents, so that a new image size compiles nothing. */
struct nh_kernel_spec {
    /* file name of a kernel source, such as "naive_forward.cu"; its one kernel has that name without the suffix */
    const char *source;
    int32_t count;
    struct {
        const char *name;
        int64_t value;
    } define[NH_KERNEL_DEFINES];
    /* the configuration as nh_kernel_configure got it: what follows is unused without `field`, and its text, the macro NH_CONFIG,
     * is made when the kernel is looked for, as groups have one for each member. More values than there is room for are only
     * counted. */
    const struct nh_kernel_field *field; /* NULL: the kernel has no such macro */
    int32_t values, names;
    int value[NH_KERNEL_CONFIG_INTS];
    struct {
        const char *member, *enumerator;
    } name[NH_KERNEL_CONFIG_NAMES]; /* the members whose values are named */
};

/* Whether two specs, of the same field tables and names, are of one kernel. */
bool nh_kernel_same(const struct nh_kernel_spec *a, const struct nh_kernel_spec *b);

/* Copies what a spec uses of its room. */
void nh_kernel_copy(struct nh_kernel_spec *to, const struct nh_kernel_spec *from);

/* Adds a macro. A spec that is full is left as it is, and nh_cuda_step_add then refuses it. */
void nh_kernel_define(struct nh_kernel_spec *spec, const char *name, int64_t value);

/* A configuration's members in their order, up to one without a name; a struct of ints alone, it has no gaps. */
struct nh_kernel_field {
    const char *name;
    int32_t count; /* of an array; 0: a single value */
};
#define NH_KERNEL_FIELD_ONE(member) {#member, 0},
#define NH_KERNEL_FIELD_MANY(member, count) {#member, count},
#define NH_KERNEL_FIELDS(MEMBERS)                                                                  \
    {                                                                                              \
        MEMBERS(NH_KERNEL_FIELD_ONE, NH_KERNEL_FIELD_MANY) {                                       \
            NULL, 0                                                                                \
        }                                                                                          \
    }

/* Compiles the kernel with the configuration at `config`, a struct that NH_KERNEL_CONFIG defines: the macro NH_CONFIG is
 * {.warps=4,.rows={1,4,4}}. `field` is kept by address. nh_cuda_step_add refuses a configuration of more than
 * NH_KERNEL_CONFIG_INTS values. */
void nh_kernel_configure(struct nh_kernel_spec *spec, const struct nh_kernel_field *field,
                         const void *config);

/* Has the configuration's text name the enumerator that is the value of a member, which kernels then must know: of up to
 * NH_KERNEL_CONFIG_NAMES members, by static strings. */
void nh_kernel_name_value(struct nh_kernel_spec *spec, const char *member, const char *enumerator);

/* An entry of a table of enumerators' names. */
#define NH_NAMED(enumerator) [enumerator] = #enumerator

/* Writes the spec for an architecture (80, 90, ..) as text: the source's name and the compiler's options. With line_info
 * the code has the lines of its sources. */
enum { NH_KERNEL_TEXT_BYTES = 4096, NH_KERNEL_CONFIG_BYTES = 2048 };
void nh_kernel_text(const struct nh_kernel_spec *spec, int32_t arch, bool line_info,
                    char text[NH_KERNEL_TEXT_BYTES]);

/* Writes the value of the macro NH_CONFIG, "" if there is none. */
void nh_kernel_config_text(const struct nh_kernel_spec *spec, char text[NH_KERNEL_CONFIG_BYTES]);

/* A key of the store is an origin, a hash of all sources and the compiler's version, and the text above.
 * nh_sources_text writes the origin's beginning, which tells whether sources are the same. */
enum { NH_ORIGIN_BYTES = 128, NH_KEY_BYTES = NH_ORIGIN_BYTES + NH_KERNEL_TEXT_BYTES };
void nh_sources_text(char text[NH_ORIGIN_BYTES]);

/* NVRTC, found at run time: it compiles CUDA C++ to machine code for one architecture. */
struct nh_nvrtc {
    void *library, *builtins;
    int version_major, version_minor;
    /* where it was found */
    char path[512];
#define X(member, symbol, result, parameters) result(*member) parameters;
#include "nvrtc.def"
#undef X
};

struct nh_compiler {
    const struct nh_host *host;
    struct nh_nvrtc nvrtc;
    bool searched, line_info;
    nhood_status status;
    char error[1024], origin[NH_ORIGIN_BYTES], *path;
};

/* path: of libnvrtc, which is looked for there and nowhere else; NULL: it is looked for when first needed, among the libraries
 * of the process, by its sonames, in the toolkit, and in the pip packages beside this library.
 * line_info: as in nh_kernel_text. Fails with MEMORY. */
nhood_status nh_compiler_open(struct nh_compiler *compiler, const struct nh_host *host,
                              const char *path, bool line_info);
void nh_compiler_close(struct nh_compiler *compiler);

/* Looks for the compiler when first called; later calls repeat the first result. Not safe on several threads at once.
 * Fails with COMPILE if there is none. */
nhood_status nh_compiler_find(struct nh_compiler *compiler);

/* Compiles a kernel; nh_compiler_find must have succeeded. The caller gives *code back with nh_release. Fails with
 * MEMORY or COMPILE, whose message has the first lines of the log. Code for which ptxas notes that it ignored
 * setmaxnreg or serialised wgmma (C7508, C7515, C7520) is refused in the same way. */
nhood_status nh_compiler_make(const struct nh_compiler *compiler, const struct nh_kernel_spec *spec,
                              int32_t arch, void **code, size_t *bytes);

#endif
