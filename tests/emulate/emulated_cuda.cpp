/* A libcuda.so.1 whose one device is the CPU: memory is the process's own, a launch runs the kernel that
 * emulated_nvrtc.cpp compiled and returns when it is done, so streams and events have nothing to wait for. */
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <string>
#include <unistd.h>

namespace {

enum { SUCCESS = 0, INVALID_VALUE = 1, INVALID_IMAGE = 200, NOT_SUPPORTED = 801 };

struct library {
    void *handle;
    void (*entry)(void **parameters, const unsigned grid[3], unsigned threads);
};

int context_memory;
void *current;

/* Attributes that nhood asks for, of a device like the first that its kernels are for. */
int attribute(int name) {
    switch (name) {
    case 13: return 1000000; /* clock, kHz */
    case 16: return 4;       /* multiprocessors */
    case 36: return 1000000; /* memory clock, kHz */
    case 37: return 256;     /* memory bus, bits */
    case 38: return 1 << 20; /* L2 */
    case 75: return 8;       /* compute capability 8.0 */
    case 76: return 0;
    case 81: return 164 << 10; /* shared memory per multiprocessor */
    case 97: return 163 << 10; /* and per block */
    default: return 0;
    }
}

} // namespace

extern "C" {

int cuInit(unsigned) {
    return SUCCESS;
}
int cuDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}
int cuGetErrorName(int, const char **name) {
    *name = "CUDA_ERROR_EMULATED";
    return SUCCESS;
}
int cuGetErrorString(int, const char **text) {
    *text = "the emulated device does not do this";
    return SUCCESS;
}
int cuDeviceGetCount(int *count) {
    *count = 1;
    return SUCCESS;
}
int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return SUCCESS;
}
int cuDeviceGetName(char *name, int capacity, int) {
    snprintf(name, (size_t)capacity, "emulated");
    return SUCCESS;
}
int cuDeviceGetAttribute(int *value, int name, int) {
    *value = attribute(name);
    return SUCCESS;
}
int cuDevicePrimaryCtxRetain(void **context, int) {
    *context = &context_memory;
    return SUCCESS;
}
int cuDevicePrimaryCtxRelease_v2(int) {
    return SUCCESS;
}
int cuCtxGetCurrent(void **context) {
    *context = current;
    return SUCCESS;
}
int cuCtxSetCurrent(void *context) {
    current = context;
    return SUCCESS;
}
int cuCtxGetDevice(int *device) {
    *device = 0;
    return SUCCESS;
}
int cuCtxPushCurrent_v2(void *context) {
    current = context;
    return SUCCESS;
}
int cuCtxPopCurrent_v2(void **context) {
    *context = current;
    current = nullptr;
    return SUCCESS;
}
int cuCtxSynchronize() {
    return SUCCESS;
}
int cuThreadExchangeStreamCaptureMode(int *) {
    return SUCCESS;
}

int cuLibraryLoadData(void **loaded, const void *code, int *, void **, unsigned, int *, void **,
                      unsigned) {
    char path[] = "/tmp/nhood-emulated-XXXXXX";
    uint64_t bytes;
    memcpy(&bytes, code, sizeof bytes);
    int file = mkstemp(path);
    if (file < 0) return INVALID_IMAGE;
    bool written = write(file, (const char *)code + sizeof bytes, bytes) == (ssize_t)bytes;
    close(file);
    library *made = new library{written ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : nullptr, nullptr};
    unlink(path);
    if (!made->handle) {
        fprintf(stderr, "emulated driver: %s\n", dlerror());
        delete made;
        return INVALID_IMAGE;
    }
    made->entry = (decltype(made->entry))dlsym(made->handle, "emulated_entry");
    *loaded = made;
    return SUCCESS;
}
int cuLibraryUnload(void *given) {
    dlclose(((library *)given)->handle);
    delete (library *)given;
    return SUCCESS;
}
int cuLibraryGetKernel(void **kernel, void *given, const char *name) {
    const char *own = (const char *)dlsym(((library *)given)->handle, "emulated_name");
    *kernel = given;
    return own && strcmp(own, name) == 0 ? SUCCESS : INVALID_VALUE;
}
int cuKernelGetFunction(void **function, void *kernel) {
    *function = kernel;
    return SUCCESS;
}
int cuKernelGetAttribute(int *value, int, void *, int) {
    *value = 0;
    return SUCCESS;
}
int cuKernelSetAttribute(int, int value, void *, int) {
    return value <= attribute(97) ? SUCCESS : INVALID_VALUE;
}
int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned threads, unsigned,
                   unsigned, unsigned shared_bytes, void *, void **parameters, void **) {
    const unsigned grid[3] = {x, y, z};
    if (threads % 32 || threads > 1024 || (int)shared_bytes > attribute(97)) return INVALID_VALUE;
    ((library *)function)->entry(parameters, grid, threads);
    return SUCCESS;
}
int cuTensorMapEncodeTiled() {
    return NOT_SUPPORTED;
}

int cuMemGetInfo_v2(size_t *room, size_t *total) {
    *room = *total = (size_t)1 << 32;
    return SUCCESS;
}
int cuMemAlloc_v2(unsigned long long *address, size_t bytes) {
    *address = (unsigned long long)(uintptr_t)aligned_alloc(256, (bytes + 255) / 256 * 256);
    return *address ? SUCCESS : INVALID_VALUE;
}
int cuMemFree_v2(unsigned long long address) {
    free((void *)(uintptr_t)address);
    return SUCCESS;
}
int cuMemcpyHtoD_v2(unsigned long long to, const void *from, size_t bytes) {
    memcpy((void *)(uintptr_t)to, from, bytes);
    return SUCCESS;
}
int cuMemcpyDtoH_v2(void *to, unsigned long long from, size_t bytes) {
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return SUCCESS;
}
int cuMemcpyDtoDAsync_v2(unsigned long long to, unsigned long long from, size_t bytes, void *) {
    memcpy((void *)(uintptr_t)to, (const void *)(uintptr_t)from, bytes);
    return SUCCESS;
}
int cuMemsetD8_v2(unsigned long long to, unsigned char value, size_t bytes) {
    memset((void *)(uintptr_t)to, value, bytes);
    return SUCCESS;
}
int cuMemsetD8Async(unsigned long long to, unsigned char value, size_t bytes, void *) {
    return cuMemsetD8_v2(to, value, bytes);
}

int cuStreamCreate(void **stream, unsigned) {
    *stream = &context_memory;
    return SUCCESS;
}
int cuStreamDestroy_v2(void *) {
    return SUCCESS;
}
int cuStreamSynchronize(void *) {
    return SUCCESS;
}

typedef std::chrono::steady_clock::time_point event;

int cuEventCreate(void **created, unsigned) {
    *created = new event;
    return SUCCESS;
}
int cuEventDestroy_v2(void *given) {
    delete (event *)given;
    return SUCCESS;
}
int cuEventRecord(void *given, void *) {
    *(event *)given = std::chrono::steady_clock::now();
    return SUCCESS;
}
int cuEventSynchronize(void *) {
    return SUCCESS;
}
int cuEventElapsedTime(float *milliseconds, void *start, void *end) {
    *milliseconds =
        std::chrono::duration<float, std::milli>(*(event *)end - *(event *)start).count();
    return SUCCESS;
}
}
