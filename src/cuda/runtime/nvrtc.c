/* Finds libnvrtc and compiles with it. */
#include "nvrtc.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const char *const sonames[] = {"libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"};
static const char *const folders[] = {"/usr/local/cuda/lib64",
                                      "/usr/local/cuda/targets/x86_64-linux/lib",
                                      "/usr/local/cuda/targets/sbsa-linux/lib"};
/* Where pip puts NVRTC, seen from a folder of site-packages (this library's own, when it came as a wheel). */
static const char *const packages[] = {"../nvidia/cu13/lib", "../nvidia/cuda_nvrtc/lib"};

static bool find_functions(struct nh_nvrtc *nvrtc) {
    const struct {
        const char *symbol;
        void *member;
    } row[] = {
        {"nvrtcVersion", &nvrtc->version},          {"nvrtcCreateProgram", &nvrtc->create},
        {"nvrtcCompileProgram", &nvrtc->compile},   {"nvrtcGetProgramLogSize", &nvrtc->log_size},
        {"nvrtcGetProgramLog", &nvrtc->log},        {"nvrtcGetCUBINSize", &nvrtc->cubin_size},
        {"nvrtcGetCUBIN", &nvrtc->cubin},           {"nvrtcDestroyProgram", &nvrtc->destroy},
        {"nvrtcGetErrorString", &nvrtc->error_text}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        void *address = dlsym(nvrtc->library, row[i].symbol);
        if (!address) return false;
        memcpy(row[i].member, &address, sizeof address);
    }
    return nvrtc->version(&nvrtc->version_major, &nvrtc->version_minor) == 0;
}

/* The file behind a soname, where the loader tells. */
static void loaded_from(struct nh_nvrtc *nvrtc, const char *path) {
    Dl_info info;
    void *address;
    memcpy(&address, &nvrtc->version, sizeof address);
    if (dladdr(address, &info) && info.dli_fname) path = info.dli_fname;
    snprintf(nvrtc->path, sizeof nvrtc->path, "%s", path);
}

static bool try_open(struct nh_nvrtc *nvrtc, const char *path, int mode) {
    nvrtc->library = dlopen(path, RTLD_NOW | RTLD_LOCAL | mode);
    if (!nvrtc->library) return false;
    if (find_functions(nvrtc)) {
        loaded_from(nvrtc, path);
        return true;
    }
    dlclose(nvrtc->library);
    memset(nvrtc, 0, sizeof *nvrtc);
    return false;
}

static bool try_folder(struct nh_nvrtc *nvrtc, const char *parent, const char *folder) {
    char path[1024];
    for (size_t i = 0; i < sizeof sonames / sizeof *sonames; i++) {
        int length = snprintf(path, sizeof path, "%s%s%s/%s", parent, *parent ? "/" : "", folder,
                              sonames[i]);
        if (length < (int)sizeof path && try_open(nvrtc, path, 0)) return true;
    }
    return false;
}

/* The folder this library was loaded from, "" if that cannot be told. */
static void own_folder(char *folder, size_t capacity) {
    Dl_info info;
    *folder = '\0';
    if (!dladdr(sonames, &info) || !info.dli_fname) return;
    const char *slash = strrchr(info.dli_fname, '/');
    if (slash) snprintf(folder, capacity, "%.*s", (int)(slash - info.dli_fname), info.dli_fname);
}

nhood_status nh_nvrtc_open(struct nh_nvrtc *nvrtc, const char *path) {
    memset(nvrtc, 0, sizeof *nvrtc);
    if (path) {
        if (try_open(nvrtc, path, 0)) return NHOOD_OK;
        const char *reason = dlerror();
        return nh_error(NHOOD_ERR_COMPILE, "options.nvrtc = '%s' cannot be used: %s", path,
                        reason ? reason : "it is not NVRTC");
    }
    size_t count = sizeof sonames / sizeof *sonames;
    for (size_t i = 0; i < count; i++)
        if (try_open(nvrtc, sonames[i], RTLD_NOLOAD)) return NHOOD_OK;
    for (size_t i = 0; i < count; i++)
        if (try_open(nvrtc, sonames[i], 0)) return NHOOD_OK;
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++)
        if (try_folder(nvrtc, "", folders[i])) return NHOOD_OK;
    char own[512];
    own_folder(own, sizeof own);
    for (size_t i = 0; *own && i < sizeof packages / sizeof *packages; i++)
        if (try_folder(nvrtc, own, packages[i])) return NHOOD_OK;
    return nh_error(NHOOD_ERR_COMPILE,
                    "NVRTC was not found: tried libnvrtc.so.13, .12 and .so in the process, in the "
                    "loader's path, under /usr/local/cuda and in the pip packages beside this "
                    "library (%s); pip install nvidia-cuda-nvrtc, and give its path in "
                    "options.nvrtc or $NHOOD_NVRTC",
                    *own ? own : "folder unknown");
}

void nh_nvrtc_close(struct nh_nvrtc *nvrtc) {
    if (nvrtc->library) dlclose(nvrtc->library);
    memset(nvrtc, 0, sizeof *nvrtc);
}

/* The compiler succeeds with these notes, and the code is slow or deadlocks: treat them as errors. */
static const char *forbidden_note(const char *log) {
    static const char *const notes[] = {"C7508", "C7515", "C7520"};
    for (size_t i = 0; i < sizeof notes / sizeof *notes; i++)
        if (strstr(log, notes[i])) return notes[i];
    return NULL;
}

static nhood_status read_log(const struct nh_nvrtc *nvrtc, const struct nh_host *host,
                             void *program, char **log) {
    size_t bytes = 0;
    if (nvrtc->log_size(program, &bytes)) bytes = 0;
    *log = nh_allocate(host, bytes + 1);
    if (!*log) return NHOOD_ERR_MEMORY;
    if (bytes && nvrtc->log(program, *log)) **log = '\0';
    return NHOOD_OK;
}

static nhood_status read_code(const struct nh_nvrtc *nvrtc, const struct nh_host *host,
                              void *program, void **code, size_t *bytes) {
    if (nvrtc->cubin_size(program, bytes) || !*bytes)
        return nh_error(NHOOD_ERR_COMPILE, "NVRTC gave no machine code");
    *code = nh_allocate(host, *bytes);
    if (!*code) return NHOOD_ERR_MEMORY;
    int result = nvrtc->cubin(program, *code);
    if (!result) return NHOOD_OK;
    nh_release(host, *code);
    *code = NULL;
    return nh_error(NHOOD_ERR_COMPILE, "NVRTC: %s", nvrtc->error_text(result));
}

nhood_status nh_nvrtc_compile(const struct nh_nvrtc *nvrtc, const struct nh_host *host,
                              const struct nh_source *source, int sources,
                              const char *const *options, void **code, size_t *bytes) {
    const char *text[NH_MOST_SOURCES], *name[NH_MOST_SOURCES];
    int option_count = 0;
    *code = NULL;
    if (sources > NH_MOST_SOURCES)
        return nh_error(NHOOD_ERR_INTERNAL, "%d kernel sources, at most %d", sources,
                        NH_MOST_SOURCES);
    for (int i = 1; i < sources; i++) {
        text[i - 1] = source[i].text;
        name[i - 1] = source[i].name;
    }
    while (options[option_count])
        option_count++;
    void *program = NULL;
    int result = nvrtc->create(&program, source[0].text, source[0].name, sources - 1, text, name);
    if (result)
        return nh_error(NHOOD_ERR_COMPILE, "NVRTC, %s: %s", source[0].name,
                        nvrtc->error_text(result));
    result = nvrtc->compile(program, option_count, options);
    char *log = NULL;
    nhood_status status = read_log(nvrtc, host, program, &log);
    const char *note = status ? NULL : forbidden_note(log);
    if (!status && (result || note))
        status = nh_error(NHOOD_ERR_COMPILE, "NVRTC, %s: %s: %.600s", source[0].name,
                          note ? note : nvrtc->error_text(result), log);
    nh_release(host, log);
    if (!status) status = read_code(nvrtc, host, program, code, bytes);
    nvrtc->destroy(&program);
    return status;
}
