/* The CUDA driver for test programs, loaded at run time, with one device, and helpers that end the program on errors. */
#ifndef CUDA_API_H
#define CUDA_API_H

#include "nhood.h"

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SKIPPED = 77, CUDA_DEVICE = 1, CAPTURE_GLOBAL = 0, STREAM_NON_BLOCKING = 1 };

typedef unsigned long long device_address;

/* X(member, symbol, parameters); all return 0 or an error. */
#define CUDA_FUNCTIONS                                                                             \
    X(init, cuInit, (unsigned))                                                                    \
    X(error_text, cuGetErrorString, (int, const char **))                                          \
    X(device_get, cuDeviceGet, (int *, int))                                                       \
    X(retain, cuDevicePrimaryCtxRetain, (void **, int))                                            \
    X(set_current, cuCtxSetCurrent, (void *))                                                      \
    X(synchronize, cuCtxSynchronize, (void))                                                       \
    X(room, cuMemGetInfo_v2, (size_t *, size_t *))                                                 \
    X(allocate, cuMemAlloc_v2, (device_address *, size_t))                                         \
    X(release, cuMemFree_v2, (device_address))                                                     \
    X(write, cuMemcpyHtoD_v2, (device_address, const void *, size_t))                              \
    X(read, cuMemcpyDtoH_v2, (void *, device_address, size_t))                                     \
    X(copy, cuMemcpyDtoD_v2, (device_address, device_address, size_t))                             \
    X(fill, cuMemsetD8_v2, (device_address, unsigned char, size_t))                                \
    X(stream_create, cuStreamCreate, (void **, unsigned))                                          \
    X(stream_destroy, cuStreamDestroy_v2, (void *))                                                \
    X(stream_synchronize, cuStreamSynchronize, (void *))                                           \
    X(capture_begin, cuStreamBeginCapture_v2, (void *, int))                                       \
    X(capture_end, cuStreamEndCapture, (void *, void **))                                          \
    X(graph_nodes, cuGraphGetNodes, (void *, void **, size_t *))                                   \
    X(graph_instantiate, cuGraphInstantiateWithFlags, (void **, void *, unsigned long long))       \
    X(graph_launch, cuGraphLaunch, (void *, void *))                                               \
    X(graph_exec_destroy, cuGraphExecDestroy, (void *))                                            \
    X(graph_destroy, cuGraphDestroy, (void *))

static struct {
    void *context;
#define X(member, symbol, parameters) int(*member) parameters;
    CUDA_FUNCTIONS
#undef X
} cuda;

/* Ends the program unless the call succeeded. */
static inline void must(int result, const char *what) {
    const char *text = NULL;
    if (!result) return;
    cuda.error_text(result, &text);
    printf("%s: %s\n", what, text ? text : "unknown error");
    exit(EXIT_FAILURE);
}

#define MUST(call) must(cuda.call, #call)

/* Opens device 0 and makes its primary context current. False if there is no driver or no device. */
static inline int cuda_api_open(void) {
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), *found;
    int device;
    if (!library) return 0;
#define X(member, symbol, parameters)                                                              \
    found = dlsym(library, #symbol);                                                               \
    if (!found) return 0;                                                                          \
    memcpy(&cuda.member, &found, sizeof found);
    CUDA_FUNCTIONS
#undef X
    if (cuda.init(0) || cuda.device_get(&device, 0)) return 0;
    MUST(retain(&cuda.context, device));
    MUST(set_current(cuda.context));
    return 1;
}

/* A context with the device as CUDA_DEVICE. Ends the program as a skipped test if there is no device. */
static inline nhood_context *open_context(void) {
    nhood_context *context;
    if (!cuda_api_open()) {
        printf("skipped: no CUDA device\n");
        exit(SKIPPED);
    }
    nhood_status status = nhood_context_create(NULL, &context);
    if (status || nhood_device_count(context) <= CUDA_DEVICE) {
        printf("%s\n", status ? nhood_last_error() : nhood_context_notes(context));
        exit(EXIT_FAILURE);
    }
    return context;
}

static inline void *device_allocate(size_t bytes) {
    device_address address = 0;
    MUST(allocate(&address, bytes ? bytes : 1));
    return (void *)(uintptr_t)address;
}

static inline device_address address_in(const void *memory) {
    return (device_address)(uintptr_t)memory;
}

static inline void device_free(void *memory) {
    if (memory) MUST(release(address_in(memory)));
}

#endif
