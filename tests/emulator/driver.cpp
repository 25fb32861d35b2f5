// libcuda.so.1 of a pretended GPU: memory is the host's, streams and events do nothing, since a launch returns when it
// is done. EMULATED_ARCH (90) and EMULATED_MULTIPROCESSORS (3) choose the device.
#include "emulator.h"

#define _Alignas alignas
#include "driver_abi.h"

#include <cstdio>
#include <cstdlib>
#include <dlfcn.h>
#include <map>
#include <mutex>

extern "C" {
#define X(member, symbol, parameters) nh_cu_result symbol parameters;
#include "driver.def"
#undef X
// What the tool and the Python package call beside.
nh_cu_result cuCtxSetCurrent(nh_cu_context context);
nh_cu_result cuCtxSynchronize();
nh_cu_result cuMemGetInfo_v2(size_t *available, size_t *total);
nh_cu_result cuMemcpyDtoH_v2(void *to, nh_cu_pointer from, size_t bytes);
nh_cu_result cuMemsetD8_v2(nh_cu_pointer address, unsigned char value, size_t bytes);
nh_cu_result cuMemAllocAsync(nh_cu_pointer *address, size_t bytes, nh_cu_stream);
nh_cu_result cuMemFreeAsync(nh_cu_pointer address, nh_cu_stream);
nh_cu_result cuPointerGetAttribute(void *value, int attribute, nh_cu_pointer);
nh_cu_result cuStreamWaitEvent(nh_cu_stream, nh_cu_event, unsigned);
}

namespace {

constexpr nh_cu_result FAILED = 1;
constexpr int POINTER_DEVICE_ORDINAL = 9, UNASKED_SHARED_BYTES = 48 << 10;
constexpr unsigned MOST_CLUSTER = 8;
std::mutex one_launch;
int memory_for_handles;
thread_local int contexts;
std::map<void *, int> shared_bytes_allowed; // where it was asked for

int allowed_for(void *kernel) {
    auto asked = shared_bytes_allowed.find(kernel);
    return asked == shared_bytes_allowed.end() ? UNASKED_SHARED_BYTES : asked->second;
}

int number_of(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text && *text ? atoi(text) : otherwise;
}

// Blocks of a cluster along x.
unsigned cluster_of(const nh_cu_launch &config) {
    for (unsigned i = 0; i < config.attributes; i++)
        if (config.attribute[i].id == NH_CU_LAUNCH_CLUSTER)
            return (unsigned)config.attribute[i].value[0];
    return 1;
}

template <class Handle> nh_cu_result give(Handle *handle) {
    *handle = (Handle)&memory_for_handles;
    return NH_CU_SUCCESS;
}

} // namespace

nh_cu_result cuInit(unsigned) {
    return NH_CU_SUCCESS;
}
nh_cu_result cuDriverGetVersion(int *version) {
    *version = 13000;
    return NH_CU_SUCCESS;
}
nh_cu_result cuGetErrorName(nh_cu_result, const char **name) {
    *name = "EMULATOR_ERROR";
    return NH_CU_SUCCESS;
}
nh_cu_result cuGetErrorString(nh_cu_result, const char **text) {
    *text = "refused by the emulator";
    return NH_CU_SUCCESS;
}

// ---- the device ----

nh_cu_result cuDeviceGetCount(int *count) {
    *count = 1;
    return NH_CU_SUCCESS;
}
nh_cu_result cuDeviceGet(nh_cu_device *device, int ordinal) {
    *device = ordinal;
    return NH_CU_SUCCESS;
}
nh_cu_result cuDeviceGetName(char *name, int capacity, nh_cu_device) {
    snprintf(name, (size_t)capacity, "emulated");
    return NH_CU_SUCCESS;
}
nh_cu_result cuDeviceGetAttribute(int *value, int attribute, nh_cu_device) {
    int arch = number_of("EMULATED_ARCH", 90);
    switch (attribute) {
    case NH_CU_ATTRIBUTE_MAJOR: *value = arch / 10; break;
    case NH_CU_ATTRIBUTE_MINOR: *value = arch % 10; break;
    case NH_CU_ATTRIBUTE_MULTIPROCESSORS: *value = number_of("EMULATED_MULTIPROCESSORS", 3); break;
    case NH_CU_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
    case NH_CU_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 3201000; break;
    case NH_CU_ATTRIBUTE_MEMORY_BUS_BITS: *value = 6144; break;
    case NH_CU_ATTRIBUTE_L2_BYTES: *value = 60 << 20; break;
    case NH_CU_ATTRIBUTE_SHARED_BYTES_PER_BLOCK:
        *value = arch == 80 ? 166912 : emulator::MOST_SHARED_BYTES;
        break;
    case NH_CU_ATTRIBUTE_SHARED_BYTES_PER_MULTIPROCESSOR:
        *value = arch == 80 ? 167936 : 233472;
        break;
    default: return FAILED;
    }
    return NH_CU_SUCCESS;
}
nh_cu_result cuMemGetInfo_v2(size_t *available, size_t *total) {
    *available = (size_t)2 << 30;
    *total = (size_t)4 << 30;
    return NH_CU_SUCCESS;
}

// ---- contexts: one, current on the threads that pushed it ----

nh_cu_result cuDevicePrimaryCtxRetain(nh_cu_context *context, nh_cu_device) {
    return give(context);
}
nh_cu_result cuDevicePrimaryCtxRelease_v2(nh_cu_device) {
    return NH_CU_SUCCESS;
}
nh_cu_result cuDevicePrimaryCtxGetState(nh_cu_device, unsigned *flags, int *active) {
    *flags = 0;
    *active = 1;
    return NH_CU_SUCCESS;
}
nh_cu_result cuCtxGetCurrent(nh_cu_context *context) {
    give(context);
    if (!contexts) *context = nullptr;
    return NH_CU_SUCCESS;
}
nh_cu_result cuCtxGetDevice(nh_cu_device *device) {
    *device = 0;
    return contexts ? NH_CU_SUCCESS : NH_CU_ERROR_INVALID_CONTEXT;
}
nh_cu_result cuCtxPushCurrent_v2(nh_cu_context) {
    contexts++;
    return NH_CU_SUCCESS;
}
nh_cu_result cuCtxPopCurrent_v2(nh_cu_context *context) {
    contexts--;
    return give(context);
}
nh_cu_result cuCtxSetCurrent(nh_cu_context context) {
    contexts = context ? 1 : 0;
    return NH_CU_SUCCESS;
}
nh_cu_result cuCtxSynchronize() {
    return NH_CU_SUCCESS;
}
nh_cu_result cuThreadExchangeStreamCaptureMode(int *) {
    return NH_CU_SUCCESS;
}

// ---- kernels: the machine code is the path of a shared library, made by compiler.cpp ----

nh_cu_result cuLibraryLoadData(nh_cu_library *library, const void *code, int *, void **, unsigned,
                               int *, void **, unsigned) {
    *library = (nh_cu_library)dlopen((const char *)code, RTLD_NOW | RTLD_LOCAL);
    if (!*library) fprintf(stderr, "emulator: %s\n", dlerror());
    return *library ? NH_CU_SUCCESS : FAILED;
}
nh_cu_result cuLibraryUnload(nh_cu_library library) {
    return dlclose(library) ? FAILED : NH_CU_SUCCESS;
}
nh_cu_result cuLibraryGetKernel(nh_cu_kernel *kernel, nh_cu_library library, const char *) {
    *kernel = (nh_cu_kernel)dlsym(library, "emulator_kernel");
    return *kernel ? NH_CU_SUCCESS : FAILED;
}
nh_cu_result cuKernelGetFunction(nh_cu_function *function, nh_cu_kernel kernel) {
    *function = (nh_cu_function)kernel;
    return NH_CU_SUCCESS;
}
nh_cu_result cuKernelGetAttribute(int *value, int attribute, nh_cu_kernel kernel, nh_cu_device) {
    std::lock_guard<std::mutex> lock(one_launch);
    *value = attribute == NH_CU_FUNCTION_SHARED_BYTES ? allowed_for(kernel) : 0;
    return NH_CU_SUCCESS;
}
nh_cu_result cuKernelSetAttribute(int, int value, nh_cu_kernel kernel, nh_cu_device) {
    if (value > (int)emulator::MOST_SHARED_BYTES) return FAILED;
    std::lock_guard<std::mutex> lock(one_launch);
    shared_bytes_allowed[kernel] = value;
    return NH_CU_SUCCESS;
}
nh_cu_result cuLaunchKernelEx(const nh_cu_launch *config, nh_cu_function function,
                              void **parameters, void **) {
    const unsigned *grid = config->grid, *block = config->block;
    bool grid_fits = grid[0] && grid[0] <= INT32_MAX && grid[1] && grid[1] <= 65535 && grid[2] &&
                     grid[2] <= 65535;
    bool block_fits =
        block[0] && block[0] <= emulator::MOST_THREADS && block[1] == 1 && block[2] == 1;
    if (!grid_fits || !block_fits) return FAILED;
    unsigned cluster = cluster_of(*config);
    if (!cluster || cluster > MOST_CLUSTER || grid[0] % cluster) return FAILED;
    std::lock_guard<std::mutex> lock(one_launch);
    if ((int)config->shared_bytes > allowed_for(function)) return FAILED;
    emulator::run_grid({grid[0], grid[1], grid[2]}, cluster, block[0], config->shared_bytes,
                       (void (*)(void **))(void *)function, parameters);
    return NH_CU_SUCCESS;
}

// What both kinds of maps have; refuses what the driver refuses, as it does without a current context.
static bool start_map(emulator::TensorMap *map, int type, uint32_t rank, void *address,
                      const uint64_t *extent, const uint64_t *stride_bytes,
                      const uint32_t *element_stride, int interleave, int swizzle, int fill) {
    *map = {};
    if (!contexts) return false;
    if (!address || (uintptr_t)address % 16 || rank < 3 || rank > 5 || interleave || fill) return false;
    map->address = (const char *)address;
    map->rank = (uint8_t)rank;
    map->element_bytes = type == NH_CU_TENSOR_FLOAT32 ? 4 : 2;
    map->swizzle = (uint8_t)swizzle;
    for (uint32_t i = 0; i < rank; i++) {
        if (!extent[i] || extent[i] > (uint64_t)1 << 32) return false;
        if (!element_stride[i] || element_stride[i] > 8) return false;
        if (i + 1 < rank && (stride_bytes[i] % 16 || stride_bytes[i] >> 40)) return false;
        map->extent[i] = extent[i];
        map->element_stride[i] = (uint8_t)element_stride[i];
        if (i + 1 < rank) map->stride_bytes[i] = stride_bytes[i];
    }
    return element_stride[0] == 1;
}

static bool row_fits(uint32_t row_bytes, int swizzle) {
    return row_bytes && row_bytes % 16 == 0 && (!swizzle || row_bytes <= 16u << swizzle);
}

nh_cu_result cuTensorMapEncodeTiled(nh_cu_tensor_map *to, int type, uint32_t rank, void *address,
                                    const uint64_t *extent, const uint64_t *stride_bytes,
                                    const uint32_t *box, const uint32_t *element_stride,
                                    int interleave, int swizzle, int, int fill) {
    emulator::TensorMap map;
    if (!start_map(&map, type, rank, address, extent, stride_bytes, element_stride, interleave,
                   swizzle, fill))
        return FAILED;
    for (uint32_t i = 0; i < rank; i++) {
        if (!box[i] || box[i] > 256) return FAILED;
        map.box[i] = (uint16_t)box[i];
    }
    if (!row_fits(box[0] * map.element_bytes, swizzle)) return FAILED;
    memcpy(to, &map, sizeof map);
    return NH_CU_SUCCESS;
}

nh_cu_result cuTensorMapEncodeIm2col(nh_cu_tensor_map *to, int type, uint32_t rank, void *address,
                                     const uint64_t *extent, const uint64_t *stride_bytes,
                                     const int *lower_corner, const int *upper_corner,
                                     uint32_t channels, uint32_t pixels,
                                     const uint32_t *element_stride, int interleave, int swizzle,
                                     int, int fill) {
    emulator::TensorMap map;
    if (!start_map(&map, type, rank, address, extent, stride_bytes, element_stride, interleave,
                   swizzle, fill))
        return FAILED;
    for (uint32_t i = 0; i + 2 < rank; i++)
        if (lower_corner[i] || upper_corner[i] || element_stride[i + 1] != 1) return FAILED;
    if (!channels || channels > 256 || !pixels || pixels > 1024) return FAILED;
    if (!row_fits(channels * map.element_bytes, swizzle)) return FAILED;
    map.box[0] = (uint16_t)channels;
    map.pixels = (uint16_t)pixels;
    memcpy(to, &map, sizeof map);
    return NH_CU_SUCCESS;
}

// ---- memory, streams, events ----

nh_cu_result cuMemAlloc_v2(nh_cu_pointer *address, size_t bytes) {
    *address = (nh_cu_pointer)aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *address ? NH_CU_SUCCESS : FAILED;
}
nh_cu_result cuMemFree_v2(nh_cu_pointer address) {
    free((void *)address);
    return NH_CU_SUCCESS;
}
nh_cu_result cuMemAllocAsync(nh_cu_pointer *address, size_t bytes, nh_cu_stream) {
    return cuMemAlloc_v2(address, bytes);
}
nh_cu_result cuMemFreeAsync(nh_cu_pointer address, nh_cu_stream) {
    return cuMemFree_v2(address);
}
nh_cu_result cuPointerGetAttribute(void *value, int attribute, nh_cu_pointer) {
    if (attribute != POINTER_DEVICE_ORDINAL) return FAILED;
    *(int *)value = 0;
    return NH_CU_SUCCESS;
}
nh_cu_result cuMemsetD8Async(nh_cu_pointer address, unsigned char value, size_t bytes,
                             nh_cu_stream) {
    memset((void *)address, value, bytes);
    return NH_CU_SUCCESS;
}
nh_cu_result cuMemsetD8_v2(nh_cu_pointer address, unsigned char value, size_t bytes) {
    return cuMemsetD8Async(address, value, bytes, nullptr);
}
nh_cu_result cuMemcpyDtoDAsync_v2(nh_cu_pointer to, nh_cu_pointer from, size_t bytes,
                                  nh_cu_stream) {
    memcpy((void *)to, (const void *)from, bytes);
    return NH_CU_SUCCESS;
}
nh_cu_result cuMemcpyHtoD_v2(nh_cu_pointer to, const void *from, size_t bytes) {
    memcpy((void *)to, from, bytes);
    return NH_CU_SUCCESS;
}
nh_cu_result cuMemcpyHtoDAsync_v2(nh_cu_pointer to, const void *from, size_t bytes, nh_cu_stream) {
    return cuMemcpyHtoD_v2(to, from, bytes);
}
nh_cu_result cuMemcpyDtoH_v2(void *to, nh_cu_pointer from, size_t bytes) {
    memcpy(to, (const void *)from, bytes);
    return NH_CU_SUCCESS;
}
nh_cu_result cuStreamCreate(nh_cu_stream *stream, unsigned) {
    return give(stream);
}
nh_cu_result cuStreamDestroy_v2(nh_cu_stream) {
    return NH_CU_SUCCESS;
}
nh_cu_result cuStreamSynchronize(nh_cu_stream) {
    return NH_CU_SUCCESS;
}
nh_cu_result cuStreamIsCapturing(nh_cu_stream, int *status) {
    *status = 0;
    return NH_CU_SUCCESS;
}
nh_cu_result cuEventCreate(nh_cu_event *event, unsigned) {
    return give(event);
}
nh_cu_result cuEventDestroy_v2(nh_cu_event) {
    return NH_CU_SUCCESS;
}
nh_cu_result cuEventRecord(nh_cu_event, nh_cu_stream) {
    return NH_CU_SUCCESS;
}
nh_cu_result cuStreamWaitEvent(nh_cu_stream, nh_cu_event, unsigned) {
    return NH_CU_SUCCESS;
}
nh_cu_result cuEventSynchronize(nh_cu_event) {
    return NH_CU_SUCCESS;
}
nh_cu_result cuEventElapsedTime(float *milliseconds, nh_cu_event, nh_cu_event) {
    *milliseconds = 1;
    return NH_CU_SUCCESS;
}
