#include "system.h"

#include <stdlib.h>

#if defined(_WIN32)

#include <malloc.h>
#include <string.h>
#include <windows.h>

void *system_allocate(size_t alignment, size_t bytes) {
    return _aligned_malloc(bytes, alignment);
}

void system_free(void *memory) {
    _aligned_free(memory);
}

int64_t system_cpus(void) {
    return (int64_t)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
}

const char system_cuda_driver[] = "nvcuda.dll";

void *system_library(const char *name) {
    return LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
}

void *system_symbol(void *library, const char *name) {
    FARPROC found = GetProcAddress(library, name);
    void *address;
    memcpy(&address, &found, sizeof address);
    return address;
}

#else

#include <dlfcn.h>
#include <unistd.h>

void *system_allocate(size_t alignment, size_t bytes) {
    return aligned_alloc(alignment, bytes);
}

void system_free(void *memory) {
    free(memory);
}

int64_t system_cpus(void) {
    return sysconf(_SC_NPROCESSORS_ONLN);
}

const char system_cuda_driver[] = "libcuda.so.1";

void *system_library(const char *name) {
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

void *system_symbol(void *library, const char *name) {
    return dlsym(library, name);
}

#endif
