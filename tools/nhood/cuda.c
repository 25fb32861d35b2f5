#include "cuda.h"

#include "message.h"
#include "system.h"

#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;

/* X(member, symbol, parameters); all return 0 or an error. */
#define FUNCTIONS                                                                                  \
    X(init, cuInit, (unsigned))                                                                    \
    X(error_text, cuGetErrorString, (int, const char **))                                          \
    X(device_get, cuDeviceGet, (int *, int))                                                       \
    X(retain, cuDevicePrimaryCtxRetain, (void **, int))                                            \
    X(set_current, cuCtxSetCurrent, (void *))                                                      \
    X(room, cuMemGetInfo_v2, (size_t *, size_t *))                                                 \
    X(allocate, cuMemAlloc_v2, (address *, size_t))                                                \
    X(release, cuMemFree_v2, (address))                                                            \
    X(write, cuMemcpyHtoD_v2, (address, const void *, size_t))                                     \
    X(read, cuMemcpyDtoH_v2, (void *, address, size_t))                                            \
    X(fill, cuMemsetD8_v2, (address, unsigned char, size_t))                                       \
    X(wait, cuCtxSynchronize, (void))                                                              \
    X(event_create, cuEventCreate, (void **, unsigned))                                            \
    X(event_record, cuEventRecord, (void *, void *))                                               \
    X(event_wait, cuEventSynchronize, (void *))                                                    \
    X(event_elapsed, cuEventElapsedTime, (float *, void *, void *))

static struct {
    void *library, *context, *start, *end;
    address flush;
#define X(member, symbol, parameters) int(*member) parameters;
    FUNCTIONS
#undef X
} cuda;

enum { FLUSH_BYTES = 256 << 20 };

static bool good(int result, const char *what) {
    const char *text = NULL;
    if (!result) return true;
    cuda.error_text(result, &text);
    complain(EXIT_FAILURE, "CUDA, %s: %s", what, text ? text : "unknown error");
    return false;
}

static const char *find_functions(void) {
    void *found;
#define X(member, symbol, parameters)                                                              \
    found = system_symbol(cuda.library, #symbol);                                                  \
    if (!found) return #symbol;                                                                    \
    memcpy(&cuda.member, &found, sizeof found);
    FUNCTIONS
#undef X
    return NULL;
}

bool cuda_open(int32_t ordinal) {
    int device;
    if (cuda.context) return good(cuda.set_current(cuda.context), "context");
    cuda.library = system_library(system_cuda_driver);
    const char *missing = cuda.library ? find_functions() : system_cuda_driver;
    if (missing) {
        complain(EXIT_FAILURE, "CUDA: %s was not found", missing);
        return false;
    }
    return good(cuda.init(0), "init") && good(cuda.device_get(&device, ordinal), "device") &&
           good(cuda.retain(&cuda.context, device), "context") &&
           good(cuda.set_current(cuda.context), "context") &&
           good(cuda.event_create(&cuda.start, 0), "event") &&
           good(cuda.event_create(&cuda.end, 0), "event");
}

double cuda_room(void) {
    size_t room = 0, total = 0;
    return cuda.room(&room, &total) ? 0 : (double)room;
}

void *cuda_allocate(size_t bytes) {
    address data = 0;
    if (cuda.allocate(&data, bytes ? bytes : 1)) return NULL;
    return (void *)(uintptr_t)data;
}

void cuda_free(void *data) {
    if (data) cuda.release((address)(uintptr_t)data);
}

bool cuda_write(void *to, const void *host, size_t bytes) {
    return good(cuda.write((address)(uintptr_t)to, host, bytes), "copy to the device");
}

bool cuda_read(const void *from, void *host, size_t bytes) {
    return good(cuda.read(host, (address)(uintptr_t)from, bytes), "copy from the device");
}

bool cuda_wait(void) {
    return good(cuda.wait(), "run");
}

void cuda_timer_begin(void) {
    cuda.event_record(cuda.start, NULL);
}

bool cuda_timer_end(double *ns) {
    float milliseconds = 0;
    if (!good(cuda.event_record(cuda.end, NULL), "event") ||
        !good(cuda.event_wait(cuda.end), "run") ||
        !good(cuda.event_elapsed(&milliseconds, cuda.start, cuda.end), "event"))
        return false;
    *ns = 1e6 * (double)milliseconds;
    return true;
}

void cuda_flush(void) {
    if (!cuda.flush && cuda.allocate(&cuda.flush, FLUSH_BYTES)) cuda.flush = 0;
    if (cuda.flush) cuda.fill(cuda.flush, 0, FLUSH_BYTES);
}
