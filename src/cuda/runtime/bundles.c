#include "bundles.h"

#include "compiler.h"
#include "os.h"

#include <stdio.h>
#include <string.h>

static int32_t count_paths(const char *paths) {
    int32_t count = 1;
    for (; *paths; paths++)
        count += *paths == *NH_PATH_LIST_SEPARATOR;
    return count;
}

/* Opens a bundle and keeps it if it was made from the sources of this library; else warns and closes it again. */
static nhood_status open_one(struct nh_bundles *bundles, const char *path) {
    struct nh_bundle *bundle = &bundles->bundle[bundles->count];
    char sources[NH_ORIGIN_BYTES];
    nhood_status status = nh_bundle_open(bundle, bundles->host, path);
    nh_sources_text(sources);
    if (!status && strncmp(bundle->origin, sources, strlen(sources)) == 0) {
        bundles->count++;
        return NHOOD_OK;
    }
    if (!status)
        nh_log(bundles->host, NHOOD_LOG_WARNING,
               "bundle '%s' is not used: it is of another version of the library (%.80s, here %s)",
               path, bundle->origin, sources);
    nh_bundle_close(bundle);
    return status;
}

nhood_status nh_bundles_open(struct nh_bundles *bundles, const struct nh_host *host,
                             const char *paths) {
    *bundles = (struct nh_bundles){.host = host};
    if (!paths || !*paths) return NHOOD_OK;
    char *copy = nh_copy_text(host, paths), *rest = NULL;
    bundles->bundle = nh_allocate(host, (size_t)count_paths(paths) * sizeof *bundles->bundle);
    nhood_status status = copy && bundles->bundle ? NHOOD_OK : NHOOD_ERR_MEMORY;
    for (char *path = copy ? strtok_r(copy, NH_PATH_LIST_SEPARATOR, &rest) : NULL; path && !status;
         path = strtok_r(NULL, NH_PATH_LIST_SEPARATOR, &rest))
        status = open_one(bundles, path);
    nh_release(host, copy);
    return status;
}

void nh_bundles_close(struct nh_bundles *bundles) {
    for (int32_t i = 0; i < bundles->count; i++)
        nh_bundle_close(&bundles->bundle[i]);
    nh_release(bundles->host, bundles->bundle);
    bundles->count = 0;
}

bool nh_bundles_read(const struct nh_bundles *bundles, const char *text, void **code,
                     size_t *bytes) {
    for (int32_t i = 0; i < bundles->count; i++)
        if (nh_bundle_read(&bundles->bundle[i], text, code, bytes)) return true;
    return false;
}

void nh_bundles_note(const struct nh_bundles *bundles, char *note, size_t capacity) {
    for (int32_t i = 0; i < bundles->count; i++) {
        const struct nh_bundle *bundle = &bundles->bundle[i];
        const char *compiler = strstr(bundle->origin, "nvrtc");
        size_t used = strlen(note);
        snprintf(note + used, capacity - used, ", bundle %s (%lld kernels, %.40s)", bundle->path,
                 (long long)bundle->count, compiler ? compiler : "");
    }
}
