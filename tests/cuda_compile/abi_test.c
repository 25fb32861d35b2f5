/* core/window.h, cuda/runtime/kernel_abi.h and what families add to its arguments, and a kernel's configuration mean the same
 * to the host's compiler and to NVRTC: sizes and values are asserted inside the compiled source, for every architecture this
 * NVRTC knows. Needs no GPU. */
#include "compiler.h"
#include "example_config.h"
#include "launch.h"
#include "nhood.h"
#include "short_args.h"
#include "test.h"

#include <assert.h>
#include <dlfcn.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>

enum { SKIPPED = 77, HEADERS = 5, SIZES = 6 };
static const char *const header_name[HEADERS] = {"window.h", "kernel_abi.h", "short_args.h",
                                                 "kernel_config.h", "example_config.h"};

static_assert((int)NH_DELTA == (int)NHOOD_TENSOR_COUNT, "the public tensors come first");

static const char source[] =
    "#include \"window.h\"\n"
    "#include \"short_args.h\"\n"
    "static_assert(sizeof(nh_cuda_axis) == AXIS_BYTES, \"axis\");\n"
    "static_assert(sizeof(nh_cuda_tensor) == TENSOR_BYTES, \"tensor\");\n"
    "static_assert(sizeof(nh_cuda_args) == ARGS_BYTES, \"args\");\n"
    "static_assert(sizeof(nh_tiled_args) == TILED_BYTES, \"tiled\");\n"
    "static_assert(sizeof(nh_short_args) == SHORT_BYTES, \"short\");\n"
    "#include \"example_config.h\"\n"
    "constexpr example_config C = NH_CONFIG;\n"
    "static_assert(sizeof C == CONFIG_BYTES && example_row_count(&C) == 32 && C.warps == -4, "
    "\"config\");\n"
    "extern \"C\" __global__ void probe(const __grid_constant__ nh_cuda_args args) {\n"
    "    const nh_cuda_axis &axis = args.axis[0];\n"
    "    long long length = nh_axis_group_length(axis.length, axis.dilation, 0);\n"
    "    nh_range keys = nh_window_range(length, axis.window, axis.stride, axis.causal, "
    "threadIdx.x);\n"
    "    nh_range queries =\n"
    "        nh_inverse_range(length, axis.window, axis.stride, axis.causal, threadIdx.x);\n"
    "    ((long long *)args.tensor[0].data)[threadIdx.x] = keys.begin + queries.end;\n"
    "}\n";

struct nvrtc {
    int (*create)(void **, const char *, const char *, int, const char *const *,
                  const char *const *);
    int (*compile)(void *, int, const char *const *);
    int (*log_size)(void *, size_t *);
    int (*log)(void *, char *);
    int (*cubin_size)(void *, size_t *);
    int (*destroy)(void **);
    int (*arch_count)(int *);
    int (*archs)(int *);
};

/* dlsym gives an object pointer where POSIX means a function's; copying avoids the cast ISO C forbids. */
static bool find(void *library, const char *name, void *function) {
    void *address = dlsym(library, name);
    memcpy(function, &address, sizeof address);
    return address;
}

static bool open_nvrtc(struct nvrtc *nvrtc) {
    static const char *const names[] = {"libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12",
                                        "/usr/local/cuda/lib64/libnvrtc.so"};
    void *library = NULL;
    for (size_t i = 0; !library && i < sizeof names / sizeof *names; i++)
        library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
    return library && find(library, "nvrtcCreateProgram", &nvrtc->create) &&
           find(library, "nvrtcCompileProgram", &nvrtc->compile) &&
           find(library, "nvrtcGetProgramLogSize", &nvrtc->log_size) &&
           find(library, "nvrtcGetProgramLog", &nvrtc->log) &&
           find(library, "nvrtcGetCUBINSize", &nvrtc->cubin_size) &&
           find(library, "nvrtcDestroyProgram", &nvrtc->destroy) &&
           find(library, "nvrtcGetNumSupportedArchs", &nvrtc->arch_count) &&
           find(library, "nvrtcGetSupportedArchs", &nvrtc->archs);
}

static char *read_text(const char *path) {
    static char text[HEADERS][65536];
    static int used;
    FILE *file = fopen(path, "r");
    if (!file || used == HEADERS) return NULL;
    size_t bytes = fread(text[used], 1, sizeof text[0] - 1, file);
    fclose(file);
    text[used][bytes] = '\0';
    return text[used++];
}

/* regions: as kernels are compiled that are told those, behind what all share; tables: with addresses of them in axes. */
static void check_arch(const struct nvrtc *nvrtc, const char *const header[HEADERS], int arch,
                       bool regions, bool tables) {
    enum { OPTIONS = SIZES + 5 };
    char option[SIZES + 3][48], config_option[NH_KERNEL_CONFIG_BYTES + 16];
    const char *options[OPTIONS];
    static const struct nh_kernel_field fields[] = NH_KERNEL_FIELDS(EXAMPLE_CONFIG);
    const struct example_config config = {.pipeline = 1, .rows = {1, 4, 8}, .warps = -4};
    struct nh_kernel_spec spec = {.source = "abi.cu"};
    char config_text[NH_KERNEL_CONFIG_BYTES];
    nh_kernel_configure(&spec, fields, &config);
    nh_kernel_config_text(&spec, config_text);
    const size_t addresses =
        tables ? sizeof(struct nh_cuda_table_axis) - sizeof(struct nh_cuda_axis) : 0;
    const size_t more = 3 * ((regions ? sizeof(struct nh_cuda_region) : 0) + addresses);
    const size_t value[] = {
        sizeof(struct nh_cuda_axis) + addresses, sizeof(struct nh_cuda_tensor),
        sizeof(struct nh_cuda_args) + more,      sizeof(struct nh_tiled_args) + more,
        sizeof(struct nh_short_args) + more,     sizeof config};
    static const char *const macro[] = {"AXIS_BYTES",  "TENSOR_BYTES", "ARGS_BYTES",
                                        "TILED_BYTES", "SHORT_BYTES",  "CONFIG_BYTES"};
    for (int i = 0; i < SIZES; i++)
        snprintf(option[i], sizeof option[i], "-D%s=%zu", macro[i], value[i]);
    snprintf(option[SIZES], sizeof option[SIZES], "--gpu-architecture=sm_%d", arch);
    snprintf(option[SIZES + 1], sizeof option[0], "-DNH_REGIONS=%d", regions);
    snprintf(config_option, sizeof config_option, "-DNH_CONFIG=%s", config_text);
    snprintf(option[SIZES + 2], sizeof option[0], "-DNH_TABLES=%d", tables);
    for (int i = 0; i < SIZES + 3; i++)
        options[i] = option[i];
    options[SIZES + 3] = config_option;
    options[SIZES + 4] = "--std=c++20";
    void *program = NULL;
    CHECK(nvrtc->create(&program, source, "probe.cu", HEADERS, header, header_name) == 0, "create");
    int result = nvrtc->compile(program, OPTIONS, options);
    static char log[65536];
    size_t log_bytes = 0, cubin_bytes = 0;
    if (nvrtc->log_size(program, &log_bytes) == 0 && log_bytes <= sizeof log)
        nvrtc->log(program, log);
    CHECK(result == 0, "sm_%d: %s", arch, log);
    CHECK(nvrtc->cubin_size(program, &cubin_bytes) == 0 && cubin_bytes > 0, "sm_%d: no cubin",
          arch);
    nvrtc->destroy(&program);
}

int main(void) {
    struct nvrtc nvrtc;
    if (!open_nvrtc(&nvrtc)) {
        printf("skipped: no libnvrtc (pip install nvidia-cuda-nvrtc, and its folder in "
               "LD_LIBRARY_PATH)\n");
        return SKIPPED;
    }
    const char *const header[HEADERS] = {read_text(SOURCES "/core/window.h"),
                                         read_text(SOURCES "/cuda/runtime/kernel_abi.h"),
                                         read_text(SOURCES "/cuda/families/short/short_args.h"),
                                         read_text(SOURCES "/cuda/runtime/kernel_config.h"),
                                         read_text(SOURCES "/../tests/common/example_config.h")};
    int count = 0, archs[64];
    for (int i = 0; i < HEADERS; i++)
        CHECK(header[i], "%s under %s", header_name[i], SOURCES);
    CHECK(nvrtc.arch_count(&count) == 0 && count > 0 && count <= 64, "%d archs", count);
    if (test_failed || nvrtc.archs(archs)) return EXIT_FAILURE;
    for (int i = 0; i < count; i++)
        for (int more = 0; archs[i] >= 80 && more < 3; more++)
            check_arch(&nvrtc, header, archs[i], more > 0, more > 1);
    return test_result();
}
