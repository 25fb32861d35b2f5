/* Loaded kernels of a context, behind them the disk store, behind that NVRTC. */
#include "kernel_cache.h"

#include "kernel_sources.h"
#include "nvrtc.h"
#include "store.h"
#include "thread.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

/* A key holds all options, and what comes before them. */
enum { TEXT_BYTES = 4096, KEY_BYTES = TEXT_BYTES + 256, SCHEMA = 1 };
enum { MOST_OPTIONS = NH_KERNEL_DEFINES + 3 }; /* standard, architecture, NULL */
static const int64_t store_most_bytes = (int64_t)256 << 20;

enum state { MAKING, READY, FAILED };

/* One loaded kernel, by key; kept until the context goes. A failed one is forgotten once nobody waits for it. */
struct entry {
    struct entry *next;
    enum state state;
    int waiting;
    nhood_status status;
    char error[1024];
    nh_cu_library library;
    nh_cu_kernel kernel;
    char key[];
};

struct nh_kernel_cache {
    const struct nh_host *host;
    pthread_mutex_t lock;
    struct nh_fork_guard guard;
    pthread_cond_t changed;
    struct entry *first;
    struct nh_store store;
    struct nh_nvrtc nvrtc;
    bool searched;
    nhood_status nvrtc_status;
    char nvrtc_error[1024], *nvrtc_path;
    uint64_t sources_hash;
    nhood_kernel_counts counts;
};

static double now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e9 + (double)now.tv_nsec;
}

/* ---- specialisation ---- */

void nh_kernel_define(struct nh_kernel_spec *spec, const char *name, int64_t value) {
    if (spec->count == NH_KERNEL_DEFINES) return;
    spec->define[spec->count].name = name;
    spec->define[spec->count++].value = value;
}

/* sm_90 and later have instructions that only their exact architecture may use. */
static void arch_text(int32_t arch, char *text, size_t capacity) {
    snprintf(text, capacity, "sm_%d%s", (int)arch, arch >= 90 ? "a" : "");
}

/* NVRTC's options for a specialisation, NULL after the last. arch: 80, 90, .. The texts live in `text`. */
static void set_options(const struct nh_kernel_spec *spec, int32_t arch, char text[TEXT_BYTES],
                        const char *option[MOST_OPTIONS]) {
    size_t used = 0;
    int count = 0;
    char name[16];
    arch_text(arch, name, sizeof name);
    option[count++] = "--std=c++17";
    option[count] = text;
    used += (size_t)snprintf(text, TEXT_BYTES, "--gpu-architecture=%s", name) + 1;
    count++;
    for (int32_t i = 0; i < spec->count && used < TEXT_BYTES; i++) {
        option[count++] = text + used;
        used += (size_t)snprintf(text + used, TEXT_BYTES - used, "-D%s=%lld", spec->define[i].name,
                                 (long long)spec->define[i].value) +
                1;
    }
    option[count] = NULL;
}

/* FNV-1a over every source: a change in any of them makes all stored kernels strangers. */
static uint64_t hash_sources(void) {
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < nh_kernel_source_count; i++)
        for (const char *c = nh_kernel_sources[i].text; *c; c++)
            hash = (hash ^ (unsigned char)*c) * 1099511628211u;
    return hash;
}

static void kernel_key(const struct nh_kernel_cache *cache, const struct nh_kernel_spec *spec,
                       int32_t arch, char key[KEY_BYTES]) {
    char text[TEXT_BYTES];
    const char *option[MOST_OPTIONS];
    set_options(spec, arch, text, option);
    size_t used =
        (size_t)snprintf(key, KEY_BYTES, "schema %d sources %016llx nvrtc %d.%d %s", SCHEMA,
                         (unsigned long long)cache->sources_hash, cache->nvrtc.version_major,
                         cache->nvrtc.version_minor, spec->source);
    for (int i = 0; option[i] && used < KEY_BYTES; i++)
        used += (size_t)snprintf(key + used, KEY_BYTES - used, " %s", option[i]);
}

static nhood_status compile(const struct nh_kernel_cache *cache, const struct nh_kernel_spec *spec,
                            int32_t arch, void **code, size_t *bytes) {
    struct nh_source source[NH_MOST_SOURCES];
    char text[TEXT_BYTES];
    const char *option[MOST_OPTIONS];
    int count = 1;
    source[0] = (struct nh_source){NULL, NULL};
    for (int i = 0; i < nh_kernel_source_count; i++) {
        if (strcmp(nh_kernel_sources[i].name, spec->source) == 0) {
            source[0] = nh_kernel_sources[i];
        } else if (!strstr(nh_kernel_sources[i].name, ".cu") ||
                   strstr(nh_kernel_sources[i].name, ".cuh")) {
            if (count == NH_MOST_SOURCES)
                return nh_error(NHOOD_ERR_INTERNAL, "more than %d kernel headers",
                                NH_MOST_SOURCES - 1);
            source[count++] = nh_kernel_sources[i];
        }
    }
    if (!source[0].text)
        return nh_error(NHOOD_ERR_INTERNAL, "no kernel source is called %s", spec->source);
    set_options(spec, arch, text, option);
    return nh_nvrtc_compile(&cache->nvrtc, cache->host, source, count, option, code, bytes);
}

/* ---- the cache itself ---- */

/* In a forked child nobody goes on making the kernels that were being made. */
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
    if (options->nvrtc && !(created->nvrtc_path = nh_copy_text(host, options->nvrtc))) {
        nh_release(host, created);
        return NHOOD_ERR_MEMORY;
    }
    pthread_mutex_init(&created->lock, NULL);
    pthread_cond_init(&created->changed, NULL);
    created->guard =
        (struct nh_fork_guard){.lock = &created->lock, .child = drop_unfinished, .owner = created};
    nhood_status status = nh_fork_guard_add(&created->guard);
    if (status) {
        nh_release(host, created->nvrtc_path);
        nh_release(host, created);
        return status;
    }
    nh_store_open(&created->store, host, options->cache, store_most_bytes);
    *cache = created;
    return NHOOD_OK;
}

void nh_kernel_cache_destroy(struct nh_kernel_cache *cache, const struct nh_driver *driver) {
    if (!cache) return;
    while (cache->first) {
        struct entry *entry = cache->first;
        cache->first = entry->next;
        if (entry->library) driver->library_unload(entry->library);
        nh_release(cache->host, entry);
    }
    nh_store_close(&cache->store);
    nh_nvrtc_close(&cache->nvrtc);
    nh_fork_guard_remove(&cache->guard);
    pthread_cond_destroy(&cache->changed);
    pthread_mutex_destroy(&cache->lock);
    nh_release(cache->host, cache->nvrtc_path);
    nh_release(cache->host, cache);
}

/* Under the lock. Looked for once: what was found, or not, holds for the context's life. */
static nhood_status find_nvrtc(struct nh_kernel_cache *cache) {
    if (!cache->searched) {
        cache->searched = true;
        cache->sources_hash = hash_sources();
        cache->nvrtc_status = nh_nvrtc_open(&cache->nvrtc, cache->nvrtc_path);
        if (cache->nvrtc_status)
            snprintf(cache->nvrtc_error, sizeof cache->nvrtc_error, "%s", nhood_last_error());
    }
    if (cache->nvrtc_status) return nh_error(cache->nvrtc_status, "%s", cache->nvrtc_error);
    return NHOOD_OK;
}

void nh_kernel_cache_note(struct nh_kernel_cache *cache, char *note, size_t capacity) {
    pthread_mutex_lock(&cache->lock);
    if (find_nvrtc(cache)) {
        snprintf(note, capacity, "%s", cache->nvrtc_error);
    } else {
        snprintf(note, capacity, "NVRTC %d.%d (%s)", cache->nvrtc.version_major,
                 cache->nvrtc.version_minor, cache->nvrtc.path);
    }
    pthread_mutex_unlock(&cache->lock);
}

void nh_kernel_cache_count(struct nh_kernel_cache *cache, nhood_kernel_counts *counts) {
    size_t struct_size = counts->struct_size;
    pthread_mutex_lock(&cache->lock);
    *counts = cache->counts;
    pthread_mutex_unlock(&cache->lock);
    counts->struct_size = struct_size;
}

/* Library loading is not allowed on a thread that captures a graph in the default mode. */
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

/* Outside the lock: the entry is this thread's alone while it is MAKING. */
static nhood_status make(struct nh_kernel_cache *cache, const struct nh_cuda_device *device,
                         const struct nh_kernel_spec *spec, struct entry *entry,
                         nhood_kernel_counts *gain) {
    const struct nh_driver *driver = &device->cuda->driver;
    void *code = NULL;
    size_t bytes = 0;
    double start = now_ns();
    if (nh_store_read(&cache->store, entry->key, &code, &bytes)) {
        nhood_status status = load(driver, spec->source, code, entry);
        nh_release(cache->host, code);
        if (!status) {
            gain->from_store = 1;
            gain->store_ns = now_ns() - start;
            return NHOOD_OK;
        }
        nh_log(cache->host, NHOOD_LOG_WARNING, "a stored kernel does not load (%s): making it anew",
               nhood_last_error());
    }
    start = now_ns();
    nhood_status status = compile(cache, spec, device->arch, &code, &bytes);
    if (status) return status;
    gain->compiled = 1;
    gain->compile_ns = now_ns() - start;
    nh_log(cache->host, NHOOD_LOG_INFO, "compiled %s in %.0f ms", entry->key,
           gain->compile_ns * 1e-6);
    status = load(driver, spec->source, code, entry);
    if (!status) nh_store_write(&cache->store, entry->key, code, bytes);
    nh_release(cache->host, code);
    return status;
}

static struct entry *find(struct nh_kernel_cache *cache, const char *key) {
    struct entry *entry = cache->first;
    while (entry && strcmp(entry->key, key) != 0)
        entry = entry->next;
    return entry;
}

static struct entry *add(struct nh_kernel_cache *cache, const char *key) {
    struct entry *entry = nh_allocate(cache->host, sizeof *entry + strlen(key) + 1);
    if (!entry) return NULL;
    strcpy(entry->key, key);
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

/* Under the lock, which is given up while this thread makes the kernel or waits for another to. */
static nhood_status obtain(struct nh_kernel_cache *cache, const struct nh_cuda_device *device,
                           const struct nh_kernel_spec *spec, const char *key,
                           nh_cu_kernel *kernel) {
    struct entry *entry = find(cache, key);
    if (entry && entry->state == READY) {
        cache->counts.from_memory++;
    } else if (entry) {
        entry->waiting++;
        while (entry->state == MAKING)
            pthread_cond_wait(&cache->changed, &cache->lock);
        entry->waiting--;
        cache->counts.from_memory += entry->state == READY;
    } else {
        if (!(entry = add(cache, key))) return NHOOD_ERR_MEMORY;
        nhood_kernel_counts gain = {0};
        pthread_mutex_unlock(&cache->lock);
        nhood_status status = make(cache, device, spec, entry, &gain);
        pthread_mutex_lock(&cache->lock);
        cache->counts.from_store += gain.from_store;
        cache->counts.compiled += gain.compiled;
        cache->counts.compile_ns += gain.compile_ns;
        cache->counts.store_ns += gain.store_ns;
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

/* Plans whose blocks need different amounts share kernels: the most that any of them asked for stays allowed. Under the
 * lock. */
static nhood_status allow_shared(const struct nh_cuda_device *device, int64_t shared_bytes,
                                 nh_cu_kernel kernel) {
    const struct nh_driver *driver = &device->cuda->driver;
    int allowed = 0;
    if (shared_bytes == 0) return NHOOD_OK; /* static tables, up to 48 KiB, need no asking */
    driver->kernel_get(&allowed, NH_CU_FUNCTION_SHARED_BYTES, kernel, device->handle);
    return nh_driver_check(driver,
                           driver->kernel_set(NH_CU_FUNCTION_SHARED_BYTES,
                                              (int)nh_max(allowed, shared_bytes), kernel,
                                              device->handle),
                           "dynamic shared memory");
}

/* Loads the kernel into the current context too, so that a first execute during a graph capture need not. */
static nhood_status prepare(const struct nh_cuda_device *device, struct nh_kernel *kernel) {
    const struct nh_driver *driver = &device->cuda->driver;
    nh_cu_function function;
    int mode = NH_CU_CAPTURE_RELAXED, registers = 0, local_bytes = 0;
    driver->capture_mode(&mode);
    nhood_status status =
        nh_driver_check(driver, driver->kernel_function(&function, kernel->handle),
                        "loading a kernel into the context");
    if (!status) {
        driver->kernel_get(&registers, NH_CU_FUNCTION_REGISTERS, kernel->handle, device->handle);
        driver->kernel_get(&local_bytes, NH_CU_FUNCTION_LOCAL_BYTES, kernel->handle,
                           device->handle);
        kernel->registers = registers;
        kernel->local_bytes = local_bytes;
    }
    driver->capture_mode(&mode);
    return status;
}

nhood_status nh_kernel_get(struct nh_cuda_device *device, const struct nh_kernel_spec *spec,
                           int64_t shared_bytes, struct nh_kernel *kernel) {
    struct nh_kernel_cache *cache = device->cuda->kernels;
    struct nh_cuda_scope scope;
    char key[KEY_BYTES];
    nhood_status status = nh_cuda_enter(device, true, &scope);
    if (status) return status;
    pthread_mutex_lock(&cache->lock);
    status = find_nvrtc(cache);
    if (!status) {
        kernel_key(cache, spec, device->arch, key);
        status = obtain(cache, device, spec, key, &kernel->handle);
    }
    if (!status) status = allow_shared(device, shared_bytes, kernel->handle);
    pthread_mutex_unlock(&cache->lock);
    if (!status) status = prepare(device, kernel);
    nh_cuda_leave(device, &scope);
    return status;
}

bool nh_kernel_in_memory(struct nh_cuda_device *device, const struct nh_kernel_spec *spec) {
    struct nh_kernel_cache *cache = device->cuda->kernels;
    const struct entry *entry = NULL;
    char key[KEY_BYTES];
    pthread_mutex_lock(&cache->lock);
    if (cache->first) { /* then the compiler, a part of the key, is known */
        kernel_key(cache, spec, device->arch, key);
        entry = find(cache, key);
    }
    bool ready = entry && entry->state == READY;
    pthread_mutex_unlock(&cache->lock);
    return ready;
}
