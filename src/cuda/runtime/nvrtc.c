/* Finds libnvrtc. */
#include "nvrtc.h"

#include "library_names.h"
#include "os.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {NH_NVRTC_NAMES, NULL};
static const char *const folders[] = {NH_NVRTC_FOLDERS, NULL};
static const char *const packages[] = {NH_NVRTC_PACKAGES, NULL};

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
        void *address = nh_os_library_symbol(nvrtc->library, row[i].symbol);
        if (!address) return false;
        memcpy(row[i].member, &address, sizeof address);
    }
    return nvrtc->version(&nvrtc->version_major, &nvrtc->version_minor) == 0;
}

/* Loads the builtins library from NVRTC's own folder. NVRTC loads it by its bare name when it first compiles, and then
 * finds it in the process. */
static void open_builtins(struct nh_nvrtc *nvrtc) {
#if defined(NH_NVRTC_BUILTINS)
    char path[sizeof nvrtc->path + 32];
    const char *slash = strrchr(nvrtc->path, '/');
    int folder_bytes = slash ? (int)(slash + 1 - nvrtc->path) : 0;
    snprintf(path, sizeof path, "%.*s" NH_NVRTC_BUILTINS, folder_bytes, nvrtc->path,
             nvrtc->version_major, nvrtc->version_minor);
    nvrtc->builtins = nh_os_library_open(path);
#else
    (void)nvrtc;
#endif
}

/* Takes the library if it is NVRTC. path: the name by which it was opened, in case the loader cannot tell its path. */
static bool use(struct nh_nvrtc *nvrtc, void *library, const char *path) {
    if (!library) return false;
    nvrtc->library = library;
    if (!find_functions(nvrtc)) {
        nh_os_library_close(library);
        memset(nvrtc, 0, sizeof *nvrtc);
        return false;
    }
    void *address;
    memcpy(&address, &nvrtc->version, sizeof address);
    if (!nh_os_library_path(address, nvrtc->path, sizeof nvrtc->path))
        snprintf(nvrtc->path, sizeof nvrtc->path, "%s", path);
    open_builtins(nvrtc);
    return true;
}

static bool try_open(struct nh_nvrtc *nvrtc, const char *path) {
    return use(nvrtc, nh_os_library_open(path), path);
}

static bool try_folder(struct nh_nvrtc *nvrtc, const char *parent, const char *folder) {
    char path[1024];
    for (const char *const *name = names; *name; name++) {
        int length =
            snprintf(path, sizeof path, "%s%s%s/%s", parent, *parent ? "/" : "", folder, *name);
        if (length < (int)sizeof path && try_open(nvrtc, path)) return true;
    }
    return false;
}

/* The folder from which this library was loaded; "" if the loader cannot tell. */
static void own_folder(char *folder, size_t capacity) {
    bool known = nh_os_library_path(names, folder, capacity);
    char *slash = known ? strrchr(folder, '/') : NULL;
    *(slash ? slash : folder) = '\0';
}

nhood_status nh_nvrtc_open(struct nh_nvrtc *nvrtc, const char *path) {
    memset(nvrtc, 0, sizeof *nvrtc);
    if (path) {
        if (try_open(nvrtc, path)) return NHOOD_OK;
        const char *reason = nh_os_library_error();
        return nh_error(NHOOD_ERR_COMPILE, "options.nvrtc = '%s' cannot be used: %s", path,
                        reason ? reason : "it is not NVRTC");
    }
    for (const char *const *name = names; *name; name++)
        if (use(nvrtc, nh_os_library_loaded(*name), *name)) return NHOOD_OK;
    for (const char *const *name = names; *name; name++)
        if (try_open(nvrtc, *name)) return NHOOD_OK;
    for (const char *const *folder = folders; *folder; folder++)
        if (try_folder(nvrtc, "", *folder)) return NHOOD_OK;
    char own[512];
    own_folder(own, sizeof own);
    for (const char *const *folder = packages; *own && *folder; folder++)
        if (try_folder(nvrtc, own, *folder)) return NHOOD_OK;
    return nh_error(NHOOD_ERR_COMPILE,
                    "NVRTC was not found: tried " NH_NVRTC_TRIED
                    " and in the pip packages beside this library (%s); pip install "
                    "nvidia-cuda-nvrtc, and give its path in options.nvrtc or $NHOOD_NVRTC",
                    *own ? own : "folder unknown");
}

void nh_nvrtc_close(struct nh_nvrtc *nvrtc) {
    if (nvrtc->builtins) nh_os_library_close(nvrtc->builtins);
    if (nvrtc->library) nh_os_library_close(nvrtc->library);
    memset(nvrtc, 0, sizeof *nvrtc);
}
