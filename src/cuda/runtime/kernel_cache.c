/* The loaded kernels of a context. A kernel that is not loaded yet comes from a bundle, the disk store or NVRTC. */
#include "kernel_cache.h"

#include "bundles.h"
#include "store.h"
#include "thread.h"

#include <stdio.h>
#include <string.h>

static const int64_t store_most_bytes = (int64_t)256 << 20;

enum state { MAKING, READY, FAILED };

/* One loaded kernel, by key; kept until the context is destroyed. One that failed is forgotten once nobody waits for
 * it. */
struct entry {
    struct entry *next;
    enum state state;
    int waiting;
    nhood_status status;
    char error[1024];
    nh_cu_library library;
    nh_cu_kernel kernel;
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
    struct nh_bundles bundles;
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

nhood_status nh_kernel_cache_create(const struct nh_host *host,
                                    const nhood_context_options *options,
                                    struct nh_kernel_cache **cache) {
    struct nh_kernel_cache *created = nh_allocate(host, sizeof *created);
    *cache = NULL;
    if (!created) return NHOOD_ERR_MEMORY;
    created->host = host;
    nhood_status status = nh_compiler_open(&created->compiler, host, options->nvrtc);
    if (status) {
        nh_release(host, created);
        return status;
    }
    pthread_mutex_init(&created->lock, NULL);
    pthread_cond_init(&created->changed, NULL);
    created->guard =
        (struct nh_fork_guard){.lock = &created->lock, .child = drop_unfinished, .owner = created};
    nh_store_open(&created->store, host, options->cache, store_most_bytes);
    status = nh_fork_guard_add(&created->guard);
    if (!status) status = nh_bundles_open(&created->bundles, host, options->bundle);
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
    nh_bundles_close(&cache->bundles);
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
    size_t used = (size_t)snprintf(cache->note, sizeof cache->note, "%s", before);
    if (nh_compiler_find(&cache->compiler)) {
        snprintf(cache->note + used, sizeof cache->note - used, "%s", nhood_last_error());
    } else {
        snprintf(cache->note + used, sizeof cache->note - used, "NVRTC %d.%d (%s)",
                 nvrtc->version_major, nvrtc->version_minor, nvrtc->path);
    }
    nh_bundles_note(&cache->bundles, cache->note, sizeof cache->note);
}

const char *nh_kernel_cache_note(struct nh_kernel_cache *cache, const char *before) {
    pthread_mutex_lock(&cache->lock);
    if (!*cache->note) write_note(cache, before);
    pthread_mutex_unlock(&cache->lock);
    return cache->note;
}

void nh_kernel_cache_count(struct nh_kernel_cache *cache, nhood_kernel_counts *counts) {
    size_t struct_size = counts->struct_size;
    pthread_mutex_lock(&cache->lock);
    *counts = cache->counts;
    pthread_mutex_unlock(&cache->lock);
    counts->struct_size = struct_size;
}

/* The driver does not load libraries on a thread that captures a graph in the default mode, so the mode is relaxed. */
static nhood_status load(const struct nh_driver *driver, const char *source, const void *code,
                         struct entry *entry) {
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
static nhood_status use(struct nh_kernel_cache *cache, const struct nh_driver *driver,
                        const char *source, const char *new_key, void *code, size_t bytes,
                        struct entry *entry) {
    nhood_status status = cache->collects ? NHOOD_OK : load(driver, source, code, entry);
    if (!status && new_key) nh_store_write(&cache->store, new_key, code, bytes);
    if (cache->collects) {
        entry->code = (struct nh_bundle_item){.key = entry->text, .payload = code, .bytes = bytes};
    } else {
        nh_release(cache->host, code);
    }
    return status;
}

/* Makes the entry ready from a bundle (key NULL) or the store; false if neither has code that loads. */
static bool recall(struct nh_kernel_cache *cache, const struct nh_driver *driver,
                   const char *source, const char *key, struct entry *entry) {
    void *code;
    size_t bytes;
    bool found = key ? nh_store_read(&cache->store, key, &code, &bytes)
                     : nh_bundles_read(&cache->bundles, entry->text, &code, &bytes);
    if (!found) return false;
    nhood_status status = use(cache, driver, source, NULL, code, bytes, entry);
    if (status)
        nh_log(cache->host, NHOOD_LOG_WARNING, "a %s kernel does not load (%s): making it anew",
               key ? "stored" : "bundled", nhood_last_error());
    return !status;
}

/* Counts a kernel that this thread began to get at `start_s`; returns how long that took. */
static double count_one(struct nh_kernel_cache *cache, double start_s, int64_t *kernels,
                        double *ns) {
    double taken_ns = 1e9 * (nh_steady_s() - start_s);
    pthread_mutex_lock(&cache->lock);
    *kernels += 1;
    *ns += taken_ns;
    pthread_mutex_unlock(&cache->lock);
    return taken_ns;
}

/* Runs without the lock: nobody else touches the entry while it is MAKING. */
static nhood_status make(struct nh_kernel_cache *cache, const struct nh_cuda_device *device,
                         const struct nh_kernel_spec *spec, struct entry *entry) {
    nhood_kernel_counts *counts = &cache->counts;
    const struct nh_driver *driver = &device->cuda->driver;
    char key[NH_KEY_BYTES];
    void *code;
    size_t bytes;
    double start_s = nh_steady_s();
    if (recall(cache, driver, spec->source, NULL, entry)) {
        count_one(cache, start_s, &counts->from_bundle, &counts->bundle_ns);
        return NHOOD_OK;
    }
    nhood_status status = find_compiler(cache);
    if (status && cache->bundles.count)
        return nh_error(status, "no bundle in use has the kernel %.200s; %.700s", entry->text,
                        cache->compiler.error);
    if (status) return status;
    start_s = nh_steady_s();
    snprintf(key, sizeof key, "%s %s", cache->compiler.origin, entry->text);
    if (recall(cache, driver, spec->source, key, entry)) {
        count_one(cache, start_s, &counts->from_store, &counts->store_ns);
        return NHOOD_OK;
    }
    start_s = nh_steady_s();
    status = nh_compiler_make(&cache->compiler, spec, device->arch, &code, &bytes);
    if (status) return status;
    double taken_ns = count_one(cache, start_s, &counts->compiled, &counts->compile_ns);
    nh_log(cache->host, NHOOD_LOG_INFO, "compiled %s in %.0f ms", key, taken_ns * 1e-6);
    return use(cache, driver, spec->source, key, code, bytes, entry);
}

static struct entry *find(struct nh_kernel_cache *cache, const char *text) {
    struct entry *entry = cache->first;
    while (entry && strcmp(entry->text, text) != 0)
        entry = entry->next;
    return entry;
}

static struct entry *add(struct nh_kernel_cache *cache, const char *text) {
    struct entry *entry = nh_allocate(cache->host, sizeof *entry + strlen(text) + 1);
    if (!entry) return NULL;
    strcpy(entry->text, text);
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

/* Called under the lock, which is released while this thread makes the kernel or waits for another thread to make
 * it. */
static nhood_status obtain(struct nh_kernel_cache *cache, const struct nh_cuda_device *device,
                           const struct nh_kernel_spec *spec, const char *text,
                           nh_cu_kernel *kernel) {
    struct entry *entry = find(cache, text);
    if (entry && entry->state == READY) {
        cache->counts.from_memory++;
    } else if (entry) {
        entry->waiting++;
        while (entry->state == MAKING)
            pthread_cond_wait(&cache->changed, &cache->lock);
        entry->waiting--;
        cache->counts.from_memory += entry->state == READY;
    } else {
        if (!(entry = add(cache, text))) return NHOOD_ERR_MEMORY;
        pthread_mutex_unlock(&cache->lock);
        nhood_status status = make(cache, device, spec, entry);
        pthread_mutex_lock(&cache->lock);
        entry->status = status;
        if (status) snprintf(entry->error, sizeof entry->error, "%s", nhood_last_error());
        entry->state = status ? FAILED : READY;
        pthread_cond_broadcast(&cache->changed);
    }
    *kernel = entry->kernel;
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

/* Loads the kernel into the current context, too: a first execute may be inside a graph capture, where loading
 * fails. */
static nhood_status prepare(const struct nh_driver *driver, nh_cu_kernel kernel) {
    nh_cu_function function;
    int mode = NH_CU_CAPTURE_RELAXED;
    driver->capture_mode(&mode);
    nhood_status status = nh_driver_check(driver, driver->kernel_function(&function, kernel),
                                          "loading a kernel into the context");
    driver->capture_mode(&mode);
    return status;
}

/* Gets the kernel without making it ready to launch. */
static nhood_status get(struct nh_cuda_device *device, const struct nh_kernel_spec *spec,
                        nh_cu_kernel *kernel) {
    struct nh_kernel_cache *cache = device->cuda->kernels;
    char text[NH_KERNEL_TEXT_BYTES];
    nh_kernel_text(spec, device->arch, text);
    pthread_mutex_lock(&cache->lock);
    nhood_status status = obtain(cache, device, spec, text, kernel);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

nhood_status nh_kernel_get(struct nh_cuda_device *device, const struct nh_kernel_spec *spec,
                           int64_t shared_bytes, nh_cu_kernel *kernel) {
    struct nh_kernel_cache *cache = device->cuda->kernels;
    struct nh_cuda_scope scope;
    if (cache->collects) return get(device, spec, kernel);
    nhood_status status = nh_cuda_enter(device, true, &scope);
    if (status) return status;
    status = get(device, spec, kernel);
    if (!status) status = allow_shared(cache, device, shared_bytes, *kernel);
    if (!status) status = prepare(&device->cuda->driver, *kernel);
    nh_cuda_leave(device, &scope);
    return status;
}

bool nh_kernel_in_memory(struct nh_cuda_device *device, const struct nh_kernel_spec *spec) {
    struct nh_kernel_cache *cache = device->cuda->kernels;
    char text[NH_KERNEL_TEXT_BYTES];
    nh_kernel_text(spec, device->arch, text);
    pthread_mutex_lock(&cache->lock);
    const struct entry *entry = find(cache, text);
    bool ready = entry && entry->state == READY;
    pthread_mutex_unlock(&cache->lock);
    return ready;
}
