/* The loaded kernels of a context. A kernel that is not loaded yet comes from a bundle, the disk store or NVRTC. */
#include "kernel_cache.h"

#include "bundle.h"
#include "os.h"
#include "store.h"
#include "thread.h"

#include <stdio.h>
#include <string.h>

static const int64_t store_most_bytes = (int64_t)256 << 20;

enum state { MAKING, READY, FAILED };

/* One loaded kernel, by architecture and spec; kept until the context is destroyed. One that failed is forgotten when nobody waits. */
struct entry {
    struct entry *next;
    int32_t arch;
    struct nh_kernel_spec spec;
    enum state state;
    int waiting;
    nhood_status status;
    char error[1024];
    nh_cu_library library;
    nh_cu_kernel kernel;
    /* a device in whose primary context it is loaded, and the dynamic shared memory that it may have there; NULL: none yet */
    const struct nh_cuda_device *ready_on;
    int64_t ready_bytes;
    /* if the cache collects: machine code, instead of library and kernel */
    struct nh_bundle_item code;
    char text[]; /* nh_kernel_text */
};

struct nh_kernel_cache {
    const struct nh_host *host;
    pthread_mutex_t lock;
    struct nh_fork_guard guard;
    pthread_cond_t changed;
    struct entry *first;
    struct nh_store store;
    struct nh_bundle *
        bundle; /* those made from other sources than this library's are left out, with a warning */
    int32_t bundles;
    struct nh_compiler compiler;
    bool collects;
    char note[2048]; /* "" until it is asked for */
    nhood_kernel_counts counts;
};

/* In a forked child, the threads that were making kernels are gone: drops the entries of these kernels. */
static void drop_unfinished(void *owner) {
    struct nh_kernel_cache *cache = owner;
    pthread_cond_init(&cache->changed, NULL);
    for (struct entry **link = &cache->first; *link;) {
        struct entry *entry = *link;
        if (entry->state == MAKING) {
            *link = entry->next;
            nh_release(cache->host, entry);
        } else {
            entry->waiting = 0;
            link = &entry->next;
        }
    }
}

/* ---- bundles ---- */

/* Opens a bundle and keeps it if it was made from the sources of this library; else warns and closes it again. */
static nhood_status open_bundle(struct nh_kernel_cache *cache, const char *path) {
    struct nh_bundle *bundle = &cache->bundle[cache->bundles];
    char sources[NH_ORIGIN_BYTES];
    nhood_status status = nh_bundle_open(bundle, cache->host, path);
    nh_sources_text(sources);
    if (!status && strncmp(bundle->origin, sources, strlen(sources)) == 0) {
        cache->bundles++;
        return NHOOD_OK;
    }
    if (!status)
        nh_log(cache->host, NHOOD_LOG_WARNING,
               "bundle '%s' is not used: it is of another version of the library (%.80s, here %s)",
               path, bundle->origin, sources);
    nh_bundle_close(bundle);
    return status;
}

/* paths: bundle files, separated by NH_PATH_LIST_SEPARATOR; NULL or "": none. */
static nhood_status open_bundles(struct nh_kernel_cache *cache, const char *paths) {
    const struct nh_host *host = cache->host;
    size_t count = 1;
    if (!paths || !*paths) return NHOOD_OK;
    for (const char *at = paths; *at; at++)
        count += *at == *NH_PATH_LIST_SEPARATOR;
    char *copy = nh_copy_text(host, paths), *rest = NULL;
    cache->bundle = nh_allocate(host, count * sizeof *cache->bundle);
    nhood_status status = copy && cache->bundle ? NHOOD_OK : NHOOD_ERR_MEMORY;
    for (char *path = copy ? strtok_r(copy, NH_PATH_LIST_SEPARATOR, &rest) : NULL; path && !status;
         path = strtok_r(NULL, NH_PATH_LIST_SEPARATOR, &rest))
        status = open_bundle(cache, path);
    nh_release(host, copy);
    return status;
}

static bool read_bundles(const struct nh_kernel_cache *cache, const char *text, void **code,
                         size_t *bytes) {
    for (int32_t i = 0; i < cache->bundles; i++)
        if (nh_bundle_read(&cache->bundle[i], text, code, bytes)) return true;
    return false;
}

/* ---- the cache ---- */

nhood_status nh_kernel_cache_create(const struct nh_host *host,
                                    const nhood_context_options *options,
                                    struct nh_kernel_cache **cache) {
    struct nh_kernel_cache *created = nh_allocate(host, sizeof *created);
    *cache = NULL;
    if (!created) return NHOOD_ERR_MEMORY;
    created->host = host;
    pthread_mutex_init(&created->lock, NULL);
    pthread_cond_init(&created->changed, NULL);
    nh_store_open(&created->store, host, options->cache, store_most_bytes);
    nhood_status status =
        nh_compiler_open(&created->compiler, host, options->nvrtc, options->line_info);
    if (!status) status = open_bundles(created, options->bundle);
    created->guard =
        (struct nh_fork_guard){.lock = &created->lock, .child = drop_unfinished, .owner = created};
    if (!status) status = nh_fork_guard_add(&created->guard);
    if (status) {
        nh_kernel_cache_destroy(created, NULL);
        return status;
    }
    *cache = created;
    return NHOOD_OK;
}

void nh_kernel_cache_destroy(struct nh_kernel_cache *cache, const struct nh_driver *driver) {
    if (!cache) return;
    while (cache->first) {
        struct entry *entry = cache->first;
        cache->first = entry->next;
        if (entry->library) driver->library_unload(entry->library);
        nh_release(cache->host, entry->code.payload);
        nh_release(cache->host, entry);
    }
    nh_store_close(&cache->store);
    for (int32_t i = 0; i < cache->bundles; i++)
        nh_bundle_close(&cache->bundle[i]);
    nh_release(cache->host, cache->bundle);
    nh_compiler_close(&cache->compiler);
    nh_fork_guard_remove(&cache->guard);
    pthread_cond_destroy(&cache->changed);
    pthread_mutex_destroy(&cache->lock);
    nh_release(cache->host, cache);
}

/* Searches under the lock, for which a fork waits, so that a child never inherits half a search. */
static nhood_status find_compiler(struct nh_kernel_cache *cache) {
    pthread_mutex_lock(&cache->lock);
    nhood_status status = nh_compiler_find(&cache->compiler);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

nhood_status nh_kernel_cache_collect(struct nh_kernel_cache *cache) {
    cache->collects = true;
    return find_compiler(cache);
}

bool nh_kernel_cache_collects(const struct nh_kernel_cache *cache) {
    return cache->collects;
}

nhood_status nh_kernel_cache_write(struct nh_kernel_cache *cache, const char *path) {
    struct nh_bundle_item *first = NULL;
    pthread_mutex_lock(&cache->lock);
    for (struct entry *entry = cache->first; entry; entry = entry->next) {
        if (entry->state != READY) continue;
        entry->code.next = first;
        first = &entry->code;
    }
    nhood_status status = nh_bundle_write(path, cache->compiler.origin, first);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

static void write_note(struct nh_kernel_cache *cache, const char *before) {
    const struct nh_nvrtc *nvrtc = &cache->compiler.nvrtc;
    size_t used;
    if (nh_compiler_find(&cache->compiler)) {
        snprintf(cache->note, sizeof cache->note, "%s%s", before, nhood_last_error());
    } else {
        snprintf(cache->note, sizeof cache->note, "%sNVRTC %d.%d (%s)", before,
                 nvrtc->version_major, nvrtc->version_minor, nvrtc->path);
    }
    for (int32_t i = 0; i < cache->bundles; i++) {
        const struct nh_bundle *bundle = &cache->bundle[i];
        const char *compiler = strstr(bundle->origin, "nvrtc");
        used = strlen(cache->note);
        snprintf(cache->note + used, sizeof cache->note - used, ", bundle %s (%lld kernels, %.40s)",
                 bundle->path, (long long)bundle->count, compiler ? compiler : "");
    }
}

const char *nh_kernel_cache_note(struct nh_kernel_cache *cache, const char *before) {
    pthread_mutex_lock(&cache->lock);
    if (!*cache->note) write_note(cache, before);
    pthread_mutex_unlock(&cache->lock);
    return cache->note;
}

void nh_kernel_cache_count(struct nh_kernel_cache *cache, nhood_kernel_counts *counts) {
    pthread_mutex_lock(&cache->lock);
    cache->counts.struct_size = counts->struct_size;
    *counts = cache->counts;
    pthread_mutex_unlock(&cache->lock);
}

/* A kernel that is being made. Nobody else touches its entry, so this needs no lock. */
struct making {
    struct nh_kernel_cache *cache;
    const struct nh_cuda_device *device;
    const struct nh_kernel_spec *spec;
    struct entry *entry;
    double start_s; /* when this thread began to read or compile it */
};

/* The driver does not load libraries on a thread that captures a graph in the default mode, so the mode is relaxed. */
static nhood_status load(const struct making *making, const void *code) {
    const struct nh_driver *driver = &making->device->cuda->driver;
    struct entry *entry = making->entry;
    const char *source = making->spec->source;
    char name[128];
    snprintf(name, sizeof name, "%.*s", (int)strcspn(source, "."), source);
    int mode = NH_CU_CAPTURE_RELAXED;
    driver->capture_mode(&mode);
    nhood_status status = nh_driver_check(
        driver, driver->library_load(&entry->library, code, NULL, NULL, 0, NULL, NULL, 0),
        "loading a kernel");
    if (!status)
        status = nh_driver_check(
            driver, driver->library_kernel(&entry->kernel, entry->library, name), name);
    if (status && entry->library) {
        driver->library_unload(entry->library);
        entry->library = NULL;
    }
    driver->capture_mode(&mode);
    return status;
}

/* Makes the entry ready from machine code, whose memory it takes over: an entry of a cache that collects keeps it.
 * new_key: the key under which code that loads is stored, or NULL. */
static nhood_status use(const struct making *making, const char *new_key, void *code,
                        size_t bytes) {
    struct nh_kernel_cache *cache = making->cache;
    struct entry *entry = making->entry;
    nhood_status status = cache->collects ? NHOOD_OK : load(making, code);
    if (!status && new_key) nh_store_write(&cache->store, new_key, code, bytes);
    if (cache->collects) {
        entry->code = (struct nh_bundle_item){.key = entry->text, .payload = code, .bytes = bytes};
    } else {
        nh_release(cache->host, code);
    }
    return status;
}

/* Adds the kernel to these counts, and returns how long it took. */
static double count_one(const struct making *making, int64_t *kernels, double *ns) {
    double taken_ns = 1e9 * (nh_steady_s() - making->start_s);
    pthread_mutex_lock(&making->cache->lock);
    *kernels += 1;
    *ns += taken_ns;
    pthread_mutex_unlock(&making->cache->lock);
    return taken_ns;
}

/* Makes the entry ready from a bundle (key NULL) or the store; false if neither has code that loads. */
static bool recall(struct making *making, const char *key) {
    struct nh_kernel_cache *cache = making->cache;
    nhood_kernel_counts *counts = &cache->counts;
    void *code;
    size_t bytes;
    making->start_s = nh_steady_s();
    bool found = key ? nh_store_read(&cache->store, key, &code, &bytes)
                     : read_bundles(cache, making->entry->text, &code, &bytes);
    if (!found) return false;
    if (use(making, NULL, code, bytes)) {
        nh_log(cache->host, NHOOD_LOG_WARNING, "a %s kernel does not load (%s): making it anew",
               key ? "stored" : "bundled", nhood_last_error());
        return false;
    }
    count_one(making, key ? &counts->from_store : &counts->from_bundle,
              key ? &counts->store_ns : &counts->bundle_ns);
    return true;
}

static nhood_status make(struct making *making) {
    struct nh_kernel_cache *cache = making->cache;
    char key[NH_KEY_BYTES];
    void *code;
    size_t bytes;
    if (recall(making, NULL)) return NHOOD_OK;
    nhood_status status = find_compiler(cache);
    if (status && cache->bundles)
        return nh_error(status, "no bundle in use has the kernel %.200s; %.700s",
                        making->entry->text, cache->compiler.error);
    if (status) return status;
    snprintf(key, sizeof key, "%s %s", cache->compiler.origin, making->entry->text);
    if (recall(making, key)) return NHOOD_OK;
    making->start_s = nh_steady_s();
    status = nh_compiler_make(&cache->compiler, making->spec, making->device->arch, &code, &bytes);
    if (status) return status;
    double taken_ns = count_one(making, &cache->counts.compiled, &cache->counts.compile_ns);
    nh_log(cache->host, NHOOD_LOG_INFO, "compiled %s in %.0f ms", key, taken_ns * 1e-6);
    return use(making, key, code, bytes);
}

static struct entry *find(struct nh_kernel_cache *cache, int32_t arch,
                          const struct nh_kernel_spec *spec) {
    struct entry *entry = cache->first;
    while (entry && (entry->arch != arch || !nh_kernel_same(&entry->spec, spec)))
        entry = entry->next;
    return entry;
}

static struct entry *add(struct nh_kernel_cache *cache, int32_t arch,
                         const struct nh_kernel_spec *spec) {
    char text[NH_KERNEL_TEXT_BYTES];
    nh_kernel_text(spec, arch, cache->compiler.line_info, text);
    struct entry *entry = nh_allocate(cache->host, sizeof *entry + strlen(text) + 1);
    if (!entry) return NULL;
    strcpy(entry->text, text);
    entry->arch = arch;
    nh_kernel_copy(&entry->spec, spec);
    entry->next = cache->first;
    cache->first = entry;
    return entry;
}

static void forget(struct nh_kernel_cache *cache, struct entry *entry) {
    struct entry **link = &cache->first;
    while (*link != entry)
        link = &(*link)->next;
    *link = entry->next;
    nh_release(cache->host, entry);
}

/* Called under the lock, which is released while the kernel is made, here or by another thread. found: an entry that remains, if this
 * does not fail. */
static nhood_status obtain(struct nh_kernel_cache *cache, const struct nh_cuda_device *device,
                           const struct nh_kernel_spec *spec, struct entry **found) {
    struct entry *entry = find(cache, device->arch, spec);
    if (entry) {
        entry->waiting++;
        while (entry->state == MAKING)
            pthread_cond_wait(&cache->changed, &cache->lock);
        entry->waiting--;
        cache->counts.from_memory += entry->state == READY;
    } else {
        if (!(entry = add(cache, device->arch, spec))) return NHOOD_ERR_MEMORY;
        struct making making = {cache, device, spec, entry, 0};
        pthread_mutex_unlock(&cache->lock);
        nhood_status status = make(&making);
        pthread_mutex_lock(&cache->lock);
        entry->status = status;
        if (status) snprintf(entry->error, sizeof entry->error, "%s", nhood_last_error());
        entry->state = status ? FAILED : READY;
        pthread_cond_broadcast(&cache->changed);
    }
    *found = entry;
    nhood_status status = entry->status;
    if (status) {
        nh_error(status, "%s", entry->error);
        if (!entry->waiting) forget(cache, entry);
    }
    return status;
}

/* Plans that share a kernel may need different amounts: the limit only grows. */
static nhood_status allow_shared(struct nh_kernel_cache *cache, const struct nh_cuda_device *device,
                                 int64_t shared_bytes, nh_cu_kernel kernel) {
    const struct nh_driver *driver = &device->cuda->driver;
    int allowed = 0;
    if (shared_bytes == 0) return NHOOD_OK; /* static tables, up to 48 KiB, need no permission */
    pthread_mutex_lock(&cache->lock);
    driver->kernel_get(&allowed, NH_CU_FUNCTION_SHARED_BYTES, kernel, device->handle);
    nhood_status status = nh_driver_check(driver,
                                          driver->kernel_set(NH_CU_FUNCTION_SHARED_BYTES,
                                                             (int)nh_max(allowed, shared_bytes),
                                                             kernel, device->handle),
                                          "dynamic shared memory");
    pthread_mutex_unlock(&cache->lock);
    return status;
}

/* Loads the kernel into the current context, too: in a graph capture, where a first execute may be, loading fails. */
static nhood_status prepare(const struct nh_driver *driver, nh_cu_kernel kernel) {
    nh_cu_function function;
    int mode = NH_CU_CAPTURE_RELAXED;
    driver->capture_mode(&mode);
    nhood_status status = nh_driver_check(driver, driver->kernel_function(&function, kernel),
                                          "loading a kernel into the context");
    driver->capture_mode(&mode);
    return status;
}

/* Makes the kernel ready in the current context. primary: that is the device's own, where it is ready from then on. */
static nhood_status make_ready(struct entry *entry, const struct nh_cuda_device *device,
                               int64_t shared_bytes, bool primary) {
    struct nh_kernel_cache *cache = device->cuda->kernels;
    nhood_status status = allow_shared(cache, device, shared_bytes, entry->kernel);
    if (!status) status = prepare(&device->cuda->driver, entry->kernel);
    if (status || !primary) return status;
    pthread_mutex_lock(&cache->lock);
    const int64_t before = entry->ready_on == device ? entry->ready_bytes : 0;
    entry->ready_bytes = nh_max(before, shared_bytes);
    entry->ready_on = device;
    pthread_mutex_unlock(&cache->lock);
    return NHOOD_OK;
}

nhood_status nh_kernel_get(struct nh_cuda_device *device, const struct nh_kernel_spec *spec,
                           int64_t shared_bytes, nh_cu_kernel *kernel) {
    struct nh_kernel_cache *cache = device->cuda->kernels;
    struct nh_cuda_scope scope = {.pushed = false};
    struct entry *entry;
    nhood_status status = cache->collects ? NHOOD_OK : nh_cuda_enter(device, true, &scope);
    if (status) return status;
    pthread_mutex_lock(&cache->lock);
    status = obtain(cache, device, spec, &entry);
    const bool ready =
        !status && scope.primary && entry->ready_on == device && entry->ready_bytes >= shared_bytes;
    pthread_mutex_unlock(&cache->lock);
    *kernel = status ? NULL : entry->kernel;
    if (cache->collects) return status;
    if (!status && !ready) status = make_ready(entry, device, shared_bytes, scope.primary);
    nh_cuda_leave(device, &scope);
    return status;
}

/* The kernel's entry if it is ready, or NULL. */
static const struct entry *find_ready(const struct nh_cuda_device *device,
                                      const struct nh_kernel_spec *spec) {
    struct nh_kernel_cache *cache = device->cuda->kernels;
    pthread_mutex_lock(&cache->lock);
    const struct entry *entry = find(cache, device->arch, spec);
    if (entry && entry->state != READY) entry = NULL;
    pthread_mutex_unlock(&cache->lock);
    return entry;
}

bool nh_kernel_in_memory(const struct nh_cuda_device *device, const struct nh_kernel_spec *spec) {
    return find_ready(device, spec);
}

const struct nh_bundle_item *nh_kernel_code(const struct nh_cuda_device *device,
                                            const struct nh_kernel_spec *spec) {
    const struct entry *entry = find_ready(device, spec);
    return entry ? &entry->code : NULL;
}
