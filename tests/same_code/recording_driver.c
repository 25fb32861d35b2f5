/* A libcuda.so.1 that writes down what it is asked to do, for scripts/same-code, which compiles it with the headers of either
 * tree. It has no memory and runs nothing. RECORDED_ARCH (90, or 80) chooses the device.
 *
 * Machine code is what tests/common/fake_nvrtc.c makes of a kernel: its source's name and the compiler's options. Lines on stdout:
 *
 *     launch<TAB>KERNEL<TAB>grid, block, shared memory, stream, attributes<TAB>ARGUMENTS<TAB>MAP..
 *     set<TAB>address, value, bytes, stream        (also copy, write)
 *
 * ARGUMENTS are the bytes of a kernel's struct in hexadecimal, by 8-byte words as they lie in memory; MAP is the place of a
 * tensor map in the array that follows and what it was encoded from. */
#include "launch.h"
#include "norm_rope_args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define X(member, symbol, parameters)                                                              \
    __attribute__((visibility("default"))) nh_cu_result symbol parameters;
#include "driver.def"
#undef X

enum { REFUSED = 1, VERSION = 13000, MAP_WORD = 15, MOST_MAPS = 64, MAP_BYTES = 512 };

static int recorded_arch(void) {
    const char *text = getenv("RECORDED_ARCH");
    return text && *text ? atoi(text) : 90;
}

/* A handle that is never followed. */
static void *some_handle(void) {
    static int memory;
    return &memory;
}

/* ---- the device: an H200 or an A100 ---- */

nh_cu_result cuInit(unsigned flags) {
    (void)flags;
    return NH_CU_SUCCESS;
}

nh_cu_result cuDriverGetVersion(int *version) {
    *version = VERSION;
    return NH_CU_SUCCESS;
}

nh_cu_result cuGetErrorName(nh_cu_result error, const char **name) {
    (void)error;
    *name = "REFUSED";
    return NH_CU_SUCCESS;
}

nh_cu_result cuGetErrorString(nh_cu_result error, const char **text) {
    (void)error;
    *text = "refused by the recording driver";
    return NH_CU_SUCCESS;
}

nh_cu_result cuDeviceGetCount(int *count) {
    *count = 1;
    return NH_CU_SUCCESS;
}

nh_cu_result cuDeviceGet(nh_cu_device *device, int ordinal) {
    *device = ordinal;
    return NH_CU_SUCCESS;
}

nh_cu_result cuDeviceGetName(char *name, int capacity, nh_cu_device device) {
    (void)device;
    const char *model = recorded_arch() == 80 ? "NVIDIA A100-SXM4-80GB" : "NVIDIA H200";
    snprintf(name, (size_t)capacity, "%s", model);
    return NH_CU_SUCCESS;
}

nh_cu_result cuDeviceGetAttribute(int *value, int attribute, nh_cu_device device) {
    const int arch = recorded_arch();
    const bool a100 = arch == 80;
    (void)device;
    switch (attribute) {
    case NH_CU_ATTRIBUTE_MAJOR: *value = arch / 10; break;
    case NH_CU_ATTRIBUTE_MINOR: *value = arch % 10; break;
    case NH_CU_ATTRIBUTE_MULTIPROCESSORS: *value = a100 ? 108 : 132; break;
    case NH_CU_ATTRIBUTE_CLOCK_RATE: *value = a100 ? 1410000 : 1980000; break;
    case NH_CU_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = a100 ? 1593000 : 3201000; break;
    case NH_CU_ATTRIBUTE_MEMORY_BUS_BITS: *value = a100 ? 5120 : 6144; break;
    case NH_CU_ATTRIBUTE_L2_BYTES: *value = (a100 ? 40 : 60) << 20; break;
    case NH_CU_ATTRIBUTE_SHARED_BYTES_PER_BLOCK: *value = a100 ? 166912 : 232448; break;
    case NH_CU_ATTRIBUTE_SHARED_BYTES_PER_MULTIPROCESSOR: *value = a100 ? 167936 : 233472; break;
    default: return REFUSED;
    }
    return NH_CU_SUCCESS;
}

/* ---- contexts: one, which is always current ---- */

nh_cu_result cuDevicePrimaryCtxRetain(nh_cu_context *context, nh_cu_device device) {
    (void)device;
    *context = some_handle();
    return NH_CU_SUCCESS;
}

nh_cu_result cuDevicePrimaryCtxGetState(nh_cu_device device, unsigned *flags, int *active) {
    (void)device;
    *flags = 0;
    *active = 0;
    return NH_CU_SUCCESS;
}

nh_cu_result cuDevicePrimaryCtxRelease_v2(nh_cu_device device) {
    (void)device;
    return NH_CU_SUCCESS;
}

nh_cu_result cuCtxGetCurrent(nh_cu_context *context) {
    *context = some_handle();
    return NH_CU_SUCCESS;
}

nh_cu_result cuCtxGetDevice(nh_cu_device *device) {
    *device = 0;
    return NH_CU_SUCCESS;
}

nh_cu_result cuCtxPushCurrent_v2(nh_cu_context context) {
    (void)context;
    return NH_CU_SUCCESS;
}

nh_cu_result cuCtxPopCurrent_v2(nh_cu_context *context) {
    *context = some_handle();
    return NH_CU_SUCCESS;
}

nh_cu_result cuThreadExchangeStreamCaptureMode(int *mode) {
    (void)mode;
    return NH_CU_SUCCESS;
}

/* ---- kernels: a library and its kernel are one object ---- */

struct kernel {
    int shared_bytes_allowed;
    char text[];
};

nh_cu_result cuLibraryLoadData(nh_cu_library *library, const void *code, int *jit_options,
                               void **jit_values, unsigned jit_count, int *options, void **values,
                               unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count;
    (void)options, (void)values, (void)count;
    size_t bytes = strlen(code) + 1;
    struct kernel *kernel = calloc(1, sizeof *kernel + bytes);
    if (!kernel) return REFUSED;
    memcpy(kernel->text, code, bytes);
    *library = (nh_cu_library)(void *)kernel;
    return NH_CU_SUCCESS;
}

nh_cu_result cuLibraryUnload(nh_cu_library library) {
    free(library);
    return NH_CU_SUCCESS;
}

nh_cu_result cuLibraryGetKernel(nh_cu_kernel *kernel, nh_cu_library library, const char *name) {
    (void)name;
    *kernel = (nh_cu_kernel)(void *)library;
    return NH_CU_SUCCESS;
}

nh_cu_result cuKernelGetFunction(nh_cu_function *function, nh_cu_kernel kernel) {
    *function = (nh_cu_function)(void *)kernel;
    return NH_CU_SUCCESS;
}

nh_cu_result cuKernelGetAttribute(int *value, int attribute, nh_cu_kernel kernel,
                                  nh_cu_device device) {
    (void)device;
    *value = attribute == NH_CU_FUNCTION_SHARED_BYTES
                 ? ((struct kernel *)(void *)kernel)->shared_bytes_allowed
                 : 0;
    return NH_CU_SUCCESS;
}

nh_cu_result cuKernelSetAttribute(int attribute, int value, nh_cu_kernel kernel,
                                  nh_cu_device device) {
    (void)device;
    if (attribute != NH_CU_FUNCTION_SHARED_BYTES) return REFUSED;
    ((struct kernel *)(void *)kernel)->shared_bytes_allowed = value;
    return NH_CU_SUCCESS;
}

/* ---- tensor maps: the last word of one is the number of its description, from 1 on ---- */

static char description[MOST_MAPS][MAP_BYTES];
static uint64_t described;

static nh_cu_result describe(struct nh_cu_tensor_map *map, const char *text) {
    if (described == MOST_MAPS) return REFUSED; /* more than a launch can have */
    snprintf(description[described++], MAP_BYTES, "%s", text);
    memset(map, 0, sizeof *map);
    map->word[MAP_WORD] = described;
    return NH_CU_SUCCESS;
}

/* Appends so many numbers and a blank. */
#define NUMBERS(text, list, count)                                                                 \
    do {                                                                                           \
        for (uint32_t i = 0; i < (count); i++) {                                                   \
            size_t used = strlen(text);                                                            \
            snprintf((text) + used, MAP_BYTES - used, i ? ",%lld" : " %lld",                       \
                     (long long)(list)[i]);                                                        \
        }                                                                                          \
    } while (0)

nh_cu_result cuTensorMapEncodeTiled(struct nh_cu_tensor_map *map, int type, uint32_t rank,
                                    void *address, const uint64_t *extent,
                                    const uint64_t *stride_bytes, const uint32_t *box,
                                    const uint32_t *element_stride, int interleave, int swizzle,
                                    int promotion, int fill) {
    char text[MAP_BYTES];
    snprintf(text, sizeof text, "boxes type %d at %p modes %d,%d,%d,%d", type, address, interleave,
             swizzle, promotion, fill);
    NUMBERS(text, extent, rank);
    NUMBERS(text, stride_bytes, rank - 1);
    NUMBERS(text, box, rank);
    NUMBERS(text, element_stride, rank);
    return describe(map, text);
}

nh_cu_result cuTensorMapEncodeIm2col(struct nh_cu_tensor_map *map, int type, uint32_t rank,
                                     void *address, const uint64_t *extent,
                                     const uint64_t *stride_bytes, const int *lower_corner,
                                     const int *upper_corner, uint32_t channels, uint32_t pixels,
                                     const uint32_t *element_stride, int interleave, int swizzle,
                                     int promotion, int fill) {
    char text[MAP_BYTES];
    snprintf(text, sizeof text, "lines type %d at %p modes %d,%d,%d,%d box %u,%u", type, address,
             interleave, swizzle, promotion, fill, channels, pixels);
    NUMBERS(text, extent, rank);
    NUMBERS(text, stride_bytes, rank - 1);
    NUMBERS(text, lower_corner, rank - 2);
    NUMBERS(text, upper_corner, rank - 2);
    NUMBERS(text, element_stride, rank);
    return describe(map, text);
}

/* ---- what is written down ---- */

static void print_bytes(const void *bytes, size_t count) {
    for (size_t i = 0; i < count; i++)
        printf(i && i % 8 == 0 ? " %02x" : "%02x", ((const unsigned char *)bytes)[i]);
}

static void print_maps(const struct nh_cu_tensor_map *map) {
    for (int i = 0; i < NH_CUDA_MAPS; i++)
        if (map[i].word[MAP_WORD]) printf("\t%d: %s", i, description[map[i].word[MAP_WORD] - 1]);
    described = 0;
}

nh_cu_result cuLaunchKernelEx(const struct nh_cu_launch *config, nh_cu_function function,
                              void **parameters, void **extra) {
    const struct kernel *kernel = (const struct kernel *)(void *)function;
    const bool norm_rope = !strncmp(kernel->text, "norm_rope", strlen("norm_rope"));
    (void)extra;
    printf("launch\t%s\tgrid %u,%u,%u block %u,%u,%u shared memory %u of %d stream %p",
           kernel->text, config->grid[0], config->grid[1], config->grid[2], config->block[0],
           config->block[1], config->block[2], config->shared_bytes, kernel->shared_bytes_allowed,
           (void *)config->stream);
    for (unsigned i = 0; i < config->attributes; i++)
        printf(" attribute %d %d,%d,%d", config->attribute[i].id, config->attribute[i].value[0],
               config->attribute[i].value[1], config->attribute[i].value[2]);
    printf("\t");
    if (norm_rope) {
        print_bytes(parameters[0], sizeof(struct nh_norm_rope_args));
    } else {
        const size_t regions = strstr(kernel->text, "-DNH_REGIONS=1") ? NH_AXES : 0;
        const size_t tables = strstr(kernel->text, "-DNH_TABLES=") ? NH_AXES : 0;
        print_bytes(parameters[0], sizeof(struct nh_cuda_args) + tables * 2 * sizeof(uint64_t) +
                                       regions * sizeof(struct nh_cuda_region) +
                                       NH_OWN_ARGS_WORDS * sizeof(long long));
        print_maps(parameters[1]);
    }
    printf("\n");
    return NH_CU_SUCCESS;
}

nh_cu_result cuMemsetD8Async(nh_cu_pointer address, unsigned char value, size_t bytes,
                             nh_cu_stream stream) {
    printf("set\t%llx %d %zu stream %p\n", address, value, bytes, (void *)stream);
    return NH_CU_SUCCESS;
}

nh_cu_result cuMemcpyDtoDAsync_v2(nh_cu_pointer to, nh_cu_pointer from, size_t bytes,
                                  nh_cu_stream stream) {
    printf("copy\t%llx %llx %zu stream %p\n", to, from, bytes, (void *)stream);
    return NH_CU_SUCCESS;
}

nh_cu_result cuMemcpyHtoD_v2(nh_cu_pointer to, const void *from, size_t bytes) {
    printf("write\t%llx\t", to);
    print_bytes(from, bytes);
    printf("\n");
    return NH_CU_SUCCESS;
}

/* ---- memory of plans: all at one address ---- */

nh_cu_result cuMemAlloc_v2(nh_cu_pointer *address, size_t bytes) {
    (void)bytes;
    *address = 1 << 12;
    return NH_CU_SUCCESS;
}

nh_cu_result cuMemFree_v2(nh_cu_pointer address) {
    (void)address;
    return NH_CU_SUCCESS;
}

/* Trees before it had no such function, nor cuStreamIsCapturing. */
__attribute__((visibility("default"))) nh_cu_result
cuMemcpyHtoDAsync_v2(nh_cu_pointer to, const void *from, size_t bytes, nh_cu_stream stream);
nh_cu_result cuMemcpyHtoDAsync_v2(nh_cu_pointer to, const void *from, size_t bytes,
                                  nh_cu_stream stream) {
    (void)stream;
    return cuMemcpyHtoD_v2(to, from, bytes);
}

__attribute__((visibility("default"))) nh_cu_result cuStreamIsCapturing(nh_cu_stream stream,
                                                                        int *status);
nh_cu_result cuStreamIsCapturing(nh_cu_stream stream, int *status) {
    (void)stream;
    *status = 0;
    return NH_CU_SUCCESS;
}

nh_cu_result cuStreamCreate(nh_cu_stream *stream, unsigned flags) {
    (void)flags;
    *stream = some_handle();
    return NH_CU_SUCCESS;
}

nh_cu_result cuStreamDestroy_v2(nh_cu_stream stream) {
    (void)stream;
    return NH_CU_SUCCESS;
}

nh_cu_result cuStreamSynchronize(nh_cu_stream stream) {
    (void)stream;
    return NH_CU_SUCCESS;
}

/* ---- what plans do not call to compute, only to measure ---- */

nh_cu_result cuEventCreate(nh_cu_event *event, unsigned flags) {
    (void)event, (void)flags;
    return REFUSED;
}

nh_cu_result cuEventDestroy_v2(nh_cu_event event) {
    (void)event;
    return REFUSED;
}

nh_cu_result cuEventRecord(nh_cu_event event, nh_cu_stream stream) {
    (void)event, (void)stream;
    return REFUSED;
}

nh_cu_result cuEventSynchronize(nh_cu_event event) {
    (void)event;
    return REFUSED;
}

nh_cu_result cuEventElapsedTime(float *milliseconds, nh_cu_event start, nh_cu_event end) {
    (void)milliseconds, (void)start, (void)end;
    return REFUSED;
}
