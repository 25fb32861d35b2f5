/* The NVRTC of $REAL_NVRTC, told to compile quickly, in a third to a half of the time: compile_test asks whether compilers take a
 * kernel, not how fast it is. Kernels with wgmma are compiled as ever, since notes of ptxas about those are errors (compiler.c) and
 * depend on how it optimises. Opened in place of NVRTC, as options.nvrtc. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_OPTIONS = 32, ERROR = 1 };

static void *symbol(const char *name) {
    static void *library; /* set by nvrtcVersion, which one thread calls first */
    if (!library) library = dlopen(getenv("REAL_NVRTC"), RTLD_NOW);
    void *address = library ? dlsym(library, name) : NULL;
    if (!address) {
        fprintf(stderr, "quick_nvrtc: %s\n", dlerror());
        abort();
    }
    return address;
}

/* FORWARD(result, name, (parameters), (arguments)): the function of that name is NVRTC's. */
#define FORWARD(result, name, parameters, arguments)                                               \
    result name parameters;                                                                        \
    result name parameters {                                                                       \
        result(*function) parameters;                                                              \
        void *address = symbol(#name);                                                             \
        memcpy(&function, &address, sizeof function);                                              \
        return function arguments;                                                                 \
    }

FORWARD(int, nvrtcVersion, (int *major, int *minor), (major, minor))
FORWARD(int, nvrtcCreateProgram,
        (void **program, const char *text, const char *name, int headers,
         const char *const *header_text, const char *const *header_name),
        (program, text, name, headers, header_text, header_name))
FORWARD(int, nvrtcGetProgramLogSize, (void *program, size_t *bytes), (program, bytes))
FORWARD(int, nvrtcGetProgramLog, (void *program, char *text), (program, text))
FORWARD(int, nvrtcGetCUBINSize, (void *program, size_t *bytes), (program, bytes))
FORWARD(int, nvrtcGetCUBIN, (void *program, char *code), (program, code))
FORWARD(int, nvrtcDestroyProgram, (void **program), (program))
FORWARD(const char *, nvrtcGetErrorString, (int result), (result))

int nvrtcCompileProgram(void *program, int options, const char *const *option);

int nvrtcCompileProgram(void *program, int options, const char *const *option) {
    int (*compile)(void *, int, const char *const *);
    void *address = symbol("nvrtcCompileProgram");
    memcpy(&compile, &address, sizeof compile);
    int major = 0, minor;
    const char *all[MOST_OPTIONS];
    bool as_ever = nvrtcVersion(&major, &minor) || major < 13; /* which need not know the option */
    if (options >= MOST_OPTIONS) return ERROR;
    for (int i = 0; i < options; i++) {
        all[i] = option[i];
        as_ever |= strstr(option[i], "WGMMA90") != NULL;
    }
    all[options] = "--Ofast-compile=max";
    return compile(program, options + !as_ever, all);
}
