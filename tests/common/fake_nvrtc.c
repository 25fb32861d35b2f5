#include "fake_nvrtc.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct program {
    uint64_t hash;
    char name[64];
    char *options; /* each behind a blank */
};

enum { ERROR = 6, CODE_BYTES = 64 };

struct fake_nvrtc fake_nvrtc;

/* Whether machine code is the source's name and the options, as tests/same_code asks: $FAKE_NVRTC_OPTIONS is set. Otherwise it is
 * the name and a hash of sources and options. */
static int code_is_options(void) {
    return getenv("FAKE_NVRTC_OPTIONS") != NULL;
}

/* The functions that nhood looks up, with the types of nvrtc.def. */
int nvrtcVersion(int *major, int *minor);
int nvrtcCreateProgram(void **program, const char *text, const char *name, int headers,
                       const char *const *header_text, const char *const *header_name);
int nvrtcCompileProgram(void *program, int options, const char *const *option);
int nvrtcGetProgramLogSize(void *program, size_t *bytes);
int nvrtcGetProgramLog(void *program, char *text);
int nvrtcGetCUBINSize(void *program, size_t *bytes);
int nvrtcGetCUBIN(void *program, char *code);
int nvrtcDestroyProgram(void **program);
const char *nvrtcGetErrorString(int result);

static uint64_t hash_more(uint64_t hash, const char *text) {
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 1099511628211u;
    return hash;
}

int nvrtcVersion(int *major, int *minor) {
    *major = 13;
    *minor = 9;
    return 0;
}

int nvrtcCreateProgram(void **program, const char *text, const char *name, int headers,
                       const char *const *header_text, const char *const *header_name) {
    if (fake_nvrtc.fault == FAKE_NVRTC_CREATE_FAILS) return ERROR;
    struct program *created = calloc(1, sizeof *created);
    if (!created) return ERROR;
    created->hash = hash_more(14695981039346656037u, text);
    for (int i = 0; i < headers; i++)
        created->hash = hash_more(hash_more(created->hash, header_name[i]), header_text[i]);
    snprintf(created->name, sizeof created->name, "%s", name);
    atomic_fetch_add(&fake_nvrtc.programs_open, 1);
    *program = created;
    return 0;
}

int nvrtcCompileProgram(void *program, int options, const char *const *option) {
    struct program *compiled = program;
    if (fake_nvrtc.compile_us) usleep((useconds_t)fake_nvrtc.compile_us);
    atomic_fetch_add(&fake_nvrtc.compiled, 1);
    size_t bytes = 1;
    for (int i = 0; i < options; i++) {
        compiled->hash = hash_more(compiled->hash, option[i]);
        bytes += strlen(option[i]) + 1;
    }
    char *end = compiled->options = calloc(1, bytes);
    if (!end) return ERROR;
    for (int i = 0; i < options; i++)
        end += sprintf(end, " %s", option[i]);
    return fake_nvrtc.fault == FAKE_NVRTC_COMPILE_FAILS ? ERROR : 0;
}

static const char *log_text(void) {
    if (fake_nvrtc.fault == FAKE_NVRTC_COMPILE_FAILS) return "kernel.cu(7): error: made to fail";
    return fake_nvrtc.fault == FAKE_NVRTC_NOTE ? "ptxas info: (C7508) made to be noted" : "";
}

int nvrtcGetProgramLogSize(void *program, size_t *bytes) {
    (void)program;
    *bytes = strlen(log_text()) + 1;
    return 0;
}

int nvrtcGetProgramLog(void *program, char *text) {
    (void)program;
    memcpy(text, log_text(), strlen(log_text()) + 1);
    return 0;
}

int nvrtcGetCUBINSize(void *program, size_t *bytes) {
    const struct program *compiled = program;
    *bytes =
        code_is_options() ? strlen(compiled->name) + strlen(compiled->options) + 1 : CODE_BYTES;
    if (fake_nvrtc.fault == FAKE_NVRTC_NO_CODE) *bytes = 0;
    return 0;
}

int nvrtcGetCUBIN(void *program, char *code) {
    const struct program *compiled = program;
    if (fake_nvrtc.fault == FAKE_NVRTC_CODE_FAILS) return ERROR;
    if (code_is_options()) {
        strcpy(code, compiled->name);
        strcat(code, compiled->options);
        return 0;
    }
    memset(code, 0, CODE_BYTES);
    snprintf(code, CODE_BYTES, "%.32s %016llx", compiled->name, (unsigned long long)compiled->hash);
    return 0;
}

int nvrtcDestroyProgram(void **program) {
    struct program *destroyed = *program;
    free(destroyed->options);
    free(destroyed);
    *program = NULL;
    atomic_fetch_sub(&fake_nvrtc.programs_open, 1);
    return 0;
}

const char *nvrtcGetErrorString(int result) {
    return result == ERROR ? "NVRTC_ERROR_MADE_TO_FAIL" : "NVRTC_SUCCESS";
}
