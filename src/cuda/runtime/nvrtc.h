/* NVRTC, found at run time: it compiles CUDA C++ to machine code for one architecture. */
#ifndef NH_NVRTC_H
#define NH_NVRTC_H

#include "base.h"

struct nh_nvrtc {
    void *library, *builtins;
    int version_major, version_minor;
    /* where it was found */
    char path[512];
    int (*version)(int *major, int *minor);
    int (*create)(void **program, const char *text, const char *name, int headers,
                  const char *const *header_text, const char *const *header_name);
    int (*compile)(void *program, int options, const char *const *option);
    int (*log_size)(void *program, size_t *bytes);
    int (*log)(void *program, char *text);
    int (*cubin_size)(void *program, size_t *bytes);
    int (*cubin)(void *program, char *code);
    int (*destroy)(void **program);
    const char *(*error_text)(int result);
};

/* Looks for libnvrtc at `path`, if given, and nowhere else; otherwise among the libraries of the process, by its
 * sonames, in the toolkit, and in the pip packages beside this library. Fails with COMPILE and a text that says what
 * was tried. */
nhood_status nh_nvrtc_open(struct nh_nvrtc *nvrtc, const char *path);
void nh_nvrtc_close(struct nh_nvrtc *nvrtc);

#endif
