#include "fake_driver.h"

#include <glob.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct fake_state fake;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* Handles are pointers: of a kernel to its name, of a library to a number; those of contexts and streams are only addresses.
 * There is one context per device, the primary one, and another one of device 0, the application's. */
enum { NAMES = 256, UNASKED_SHARED_BYTES = 48 << 10, MOST_SHARED_BYTES = 232448 };
static char names[NAMES][64];
static int shared_bytes_allowed[NAMES]; /* dynamic shared memory, by kernel name */
static int name_count, context_memory[FAKE_DEVICES + 1], stream_memory;

static bool fails(const char *name) {
    bool failed = false;
    pthread_mutex_lock(&lock);
    if (fake.failing && strcmp(fake.failing, name) == 0) {
        int past = ++fake.calls_of_failing - fake.fail_from;
        failed = past >= 0 && (!fake.fail_times || past < fake.fail_times);
    }
    pthread_mutex_unlock(&lock);
    return failed;
}

static void add_to(int *counter, int change) {
    pthread_mutex_lock(&lock);
    *counter += change;
    pthread_mutex_unlock(&lock);
}

#define MAY_FAIL(name)                                                                             \
    if (fails(name)) return FAKE_ERROR

static int number_of(const char *variable, int otherwise) {
    const char *text = getenv(variable);
    return text && *text ? atoi(text) : otherwise;
}

static nh_cu_result fake_init(unsigned flags) {
    (void)flags;
    fake_driver_reset(number_of("FAKE_ARCH", 90));
    fake.devices = number_of("FAKE_DEVICES", 1);
    return number_of("FAKE_INIT", 0);
}

static nh_cu_result fake_driver_version(int *version) {
    *version = number_of("FAKE_VERSION", 13000);
    return 0;
}

static nh_cu_result fake_error_name(nh_cu_result error, const char **name) {
    (void)error;
    *name = "CUDA_ERROR_FAKE";
    return 0;
}

static nh_cu_result fake_error_text(nh_cu_result error, const char **text) {
    (void)error;
    *text = "made to fail";
    return 0;
}

static nh_cu_result fake_device_count(int *count) {
    MAY_FAIL("device_count");
    *count = fake.devices;
    return 0;
}

static nh_cu_result fake_device_get(nh_cu_device *device, int ordinal) {
    MAY_FAIL("device_get");
    *device = ordinal;
    return 0;
}

static nh_cu_result fake_device_name(char *name, int capacity, nh_cu_device device) {
    MAY_FAIL("device_name");
    snprintf(name, (size_t)capacity, "Fake %d", device);
    return 0;
}

static nh_cu_result fake_device_attribute(int *value, int attribute, nh_cu_device device) {
    MAY_FAIL("device_attribute");
    switch (attribute) {
    case NH_CU_ATTRIBUTE_MAJOR: *value = device < fake.old_devices ? 7 : fake.arch / 10; break;
    case NH_CU_ATTRIBUTE_MINOR: *value = device < fake.old_devices ? 5 : fake.arch % 10; break;
    case NH_CU_ATTRIBUTE_MULTIPROCESSORS: *value = 132; break;
    case NH_CU_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
    case NH_CU_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 3201000; break;
    case NH_CU_ATTRIBUTE_MEMORY_BUS_BITS: *value = 6144; break;
    case NH_CU_ATTRIBUTE_L2_BYTES: *value = 60 << 20; break;
    case NH_CU_ATTRIBUTE_SHARED_BYTES_PER_BLOCK:
        *value = fake.arch == 86 || fake.arch == 89 || fake.arch >= 120 ? 101376
                 : fake.arch == 80                                      ? 166912
                                                                        : 232448;
        break;
    case NH_CU_ATTRIBUTE_SHARED_BYTES_PER_MULTIPROCESSOR:
        *value = fake.arch == 86 || fake.arch == 89 || fake.arch >= 120 ? 102400
                 : fake.arch == 80                                      ? 167936
                                                                        : 233472;
        break;
    default: *value = 0;
    }
    return 0;
}

static nh_cu_result fake_primary_retain(nh_cu_context *context, nh_cu_device device) {
    MAY_FAIL("primary_retain");
    *context = (nh_cu_context)(void *)&context_memory[device];
    add_to(&fake.primary_references, 1);
    usleep(200); /* loading takes time, in which other threads may come */
    return 0;
}

static nh_cu_result fake_primary_release(nh_cu_device device) {
    (void)device;
    add_to(&fake.primary_references, -1);
    return 0;
}

static nh_cu_result fake_primary_state(nh_cu_device device, unsigned *flags, int *active) {
    MAY_FAIL("primary_state");
    *flags = 0;
    *active = (!device && fake.primary_current) || fake.primary_references > 0;
    return 0;
}

static _Thread_local nh_cu_context pushed[8];
static _Thread_local int depth, capture_mode;

/* The context that is current on this thread. The caller's own one belongs to device 0. */
static nh_cu_context current_context(void) {
    if (depth) return pushed[depth - 1];
    int *own = &context_memory[fake.primary_current ? 0 : FAKE_DEVICES];
    return fake.context_current ? (nh_cu_context)(void *)own : NULL;
}

static int current_device(void) {
    nh_cu_context current = current_context();
    return current ? (int)((int *)(void *)current - context_memory) % FAKE_DEVICES : -1;
}

/* For what the real driver does only in a thread with a current context. */
#define NEEDS_CONTEXT()                                                                            \
    do {                                                                                           \
        if (!current_context()) return NH_CU_ERROR_INVALID_CONTEXT;                                \
    } while (0)

int fake_context_depth(void) {
    return depth;
}

int fake_capture_mode_now(void) {
    return capture_mode;
}

static nh_cu_result fake_context_current(nh_cu_context *context) {
    MAY_FAIL("context_current");
    *context = current_context();
    return 0;
}

static nh_cu_result fake_context_device(nh_cu_device *device) {
    MAY_FAIL("context_device");
    *device = current_device();
    return 0;
}

static nh_cu_result fake_context_push(nh_cu_context context) {
    MAY_FAIL("context_push");
    pushed[depth++] = context;
    return 0;
}

static nh_cu_result fake_context_pop(nh_cu_context *context) {
    *context = pushed[--depth];
    return 0;
}

static nh_cu_result fake_capture_mode(int *mode) {
    int before = capture_mode;
    capture_mode = *mode;
    *mode = before;
    return 0;
}

static nh_cu_result fake_library_load(nh_cu_library *library, const void *code, int *jit_options,
                                      void **jit_values, unsigned jit_count, int *options,
                                      void **values, unsigned count) {
    (void)jit_options, (void)jit_values, (void)jit_count;
    (void)options, (void)values, (void)count;
    MAY_FAIL("library_load");
    if (fake.capturing && capture_mode != NH_CU_CAPTURE_RELAXED) return FAKE_ERROR;
    pthread_mutex_lock(&lock);
    snprintf(fake.code, sizeof fake.code, "%s", (const char *)code);
    fake.libraries_loaded++;
    fake.libraries_open++;
    pthread_mutex_unlock(&lock);
    *library = (nh_cu_library)(void *)&fake;
    return 0;
}

static nh_cu_result fake_library_unload(nh_cu_library library) {
    (void)library;
    add_to(&fake.libraries_open, -1);
    return 0;
}

static nh_cu_result fake_library_kernel(nh_cu_kernel *kernel, nh_cu_library library,
                                        const char *name) {
    (void)library;
    MAY_FAIL("library_kernel");
    pthread_mutex_lock(&lock);
    int slot = 0;
    while (slot < name_count && strcmp(names[slot], name) != 0)
        slot++;
    if (slot == name_count && name_count < NAMES - 1) {
        snprintf(names[slot], sizeof names[slot], "%s", name);
        name_count++;
    }
    pthread_mutex_unlock(&lock);
    *kernel = (nh_cu_kernel)(void *)names[slot];
    return 0;
}

static nh_cu_result fake_kernel_function(nh_cu_function *function, nh_cu_kernel kernel) {
    NEEDS_CONTEXT();
    MAY_FAIL("kernel_function");
    *function = (nh_cu_function)(void *)kernel;
    return 0;
}

static int *allowed_for(void *kernel) {
    return &shared_bytes_allowed[((char *)kernel - names[0]) / (ptrdiff_t)sizeof names[0]];
}

static nh_cu_result fake_kernel_get(int *value, int attribute, nh_cu_kernel kernel,
                                    nh_cu_device device) {
    (void)device;
    MAY_FAIL("kernel_get");
    pthread_mutex_lock(&lock);
    *value = attribute == NH_CU_FUNCTION_SHARED_BYTES ? *allowed_for(kernel) : 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

static nh_cu_result fake_kernel_set(int attribute, int value, nh_cu_kernel kernel,
                                    nh_cu_device device) {
    (void)device;
    MAY_FAIL("kernel_set");
    if (attribute != NH_CU_FUNCTION_SHARED_BYTES || value > MOST_SHARED_BYTES) return FAKE_ERROR;
    pthread_mutex_lock(&lock);
    *allowed_for(kernel) = value;
    pthread_mutex_unlock(&lock);
    return 0;
}

static nh_cu_result fake_launch(const struct nh_cu_launch *config, nh_cu_function function,
                                void **parameters, void **extra) {
    const unsigned *grid = config->grid, *block = config->block;
    (void)extra;
    NEEDS_CONTEXT();
    MAY_FAIL("launch");
    /* These are the limits of the hardware. */
    if (!grid[0] || grid[0] > INT32_MAX || !grid[1] || grid[1] > 65535 || !grid[2] ||
        grid[2] > 65535 || !block[0] || block[0] > 1024)
        return FAKE_ERROR;
    pthread_mutex_lock(&lock);
    int allowed = *allowed_for(function);
    if ((int)config->shared_bytes >
        (allowed > UNASKED_SHARED_BYTES ? allowed : UNASKED_SHARED_BYTES)) {
        pthread_mutex_unlock(&lock);
        return FAKE_ERROR;
    }
    if (fake.launch_count < FAKE_LAUNCHES) {
        struct fake_launch *launch = &fake.launch[fake.launch_count];
        snprintf(launch->kernel, sizeof launch->kernel, "%s", (const char *)(void *)function);
        memcpy(launch->grid, grid, sizeof launch->grid);
        launch->threads = block[0];
        launch->shared_bytes = config->shared_bytes;
        launch->stream = config->stream;
        launch->overlaps = config->attributes && config->attribute->id == NH_CU_LAUNCH_OVERLAPS;
        launch->sends_open = fake.sends_open;
        launch->device = current_device();
        if (fake.for_members && strncmp(launch->kernel, "member_maps", 11) == 0) {
            launch->maps = *(const struct nh_cuda_member_maps *)parameters[0];
        } else if (fake.for_members && strncmp(launch->kernel, "lengths", 7) == 0) {
            launch->lengths = *(const struct nh_cuda_lengths *)parameters[0];
        } else if (fake.for_members) {
            launch->members = *(const struct nh_cuda_members *)parameters[0];
        } else if (strncmp(launch->kernel, "peak", 4) != 0) { /* these have other parameters */
            launch->args = *(const struct nh_cuda_args *)parameters[0];
            memcpy(launch->region, (const char *)parameters[0] + sizeof launch->args,
                   sizeof launch->region);
            memcpy(launch->table_axis,
                   (const char *)parameters[0] + offsetof(struct nh_cuda_args, axis),
                   sizeof launch->table_axis);
        }
    }
    fake.launch_count++;
    pthread_mutex_unlock(&lock);
    return 0;
}

static nh_cu_result fake_tensor_map(struct nh_cu_tensor_map *map, int type, uint32_t rank,
                                    void *address, const uint64_t *extent,
                                    const uint64_t *stride_bytes, const uint32_t *box,
                                    const uint32_t *element_stride, int interleave, int swizzle,
                                    int promotion, int fill) {
    (void)type, (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    NEEDS_CONTEXT();
    MAY_FAIL("tensor_map");
    memset(map, 0, sizeof *map);
    /* The driver requires this, an address of 0 excepted since CUDA 12.6. */
    if (!address || (uintptr_t)address % 16 || rank < 1 || rank > 5) return FAKE_ERROR;
    for (uint32_t i = 0; i < rank; i++) {
        bool stride_bad = i + 1 < rank && (stride_bytes[i] % 16 || stride_bytes[i] >> 40);
        if (!extent[i] || extent[i] > (uint64_t)1 << 32 || !box[i] || box[i] > 256 ||
            !element_stride[i] || element_stride[i] > 8 || stride_bad)
            return FAKE_ERROR;
    }
    /* as different as what it is made from */
    memcpy(map, extent, rank * sizeof *extent);
    memcpy((char *)map + 40, stride_bytes, (rank - 1) * sizeof *stride_bytes);
    memcpy((char *)map + 72, box, rank * sizeof *box);
    pthread_mutex_lock(&lock);
    fake.map_address[fake.maps_encoded++ % FAKE_MAPS] = address;
    pthread_mutex_unlock(&lock);
    return 0;
}

static nh_cu_result fake_tensor_map_im2col(struct nh_cu_tensor_map *map, int type, uint32_t rank,
                                           void *address, const uint64_t *extent,
                                           const uint64_t *stride_bytes, const int *lower_corner,
                                           const int *upper_corner, uint32_t channels,
                                           uint32_t pixels, const uint32_t *element_stride,
                                           int interleave, int swizzle, int promotion, int fill) {
    const uint32_t box[5] = {channels, 1, 1, 1, 1};
    NEEDS_CONTEXT();
    MAY_FAIL("tensor_map_im2col");
    if (rank < 3 || rank > 5 || !pixels || pixels > 1024) return FAKE_ERROR;
    /* The driver requires that corners fit a signed number of 16, 8 and 5 bits for 3, 4 and 5 axes. */
    const int limit = 1 << (rank == 3 ? 15 : rank == 4 ? 7 : 4);
    for (uint32_t i = 0; i + 2 < rank; i++)
        if (lower_corner[i] < -limit || lower_corner[i] >= limit || upper_corner[i] < -limit ||
            upper_corner[i] >= limit)
            return FAKE_ERROR;
    return fake_tensor_map(map, type, rank, address, extent, stride_bytes, box, element_stride,
                           interleave, swizzle, promotion, fill);
}

static nh_cu_result fake_memory_set(nh_cu_pointer address, unsigned char value, size_t bytes,
                                    nh_cu_stream stream) {
    (void)address, (void)value, (void)bytes, (void)stream;
    NEEDS_CONTEXT();
    MAY_FAIL("memory_set");
    return 0;
}

static nh_cu_result fake_memory_copy(nh_cu_pointer to, nh_cu_pointer from, size_t bytes,
                                     nh_cu_stream stream) {
    (void)to, (void)from, (void)bytes, (void)stream;
    NEEDS_CONTEXT();
    MAY_FAIL("memory_copy");
    return 0;
}

/* What a capture does not allow on any thread whose mode is not relaxed; and the default stream would wait for the
 * capturing one, which no mode allows. */
static bool forbidden(bool default_stream) {
    return fake.capturing && (default_stream || capture_mode != NH_CU_CAPTURE_RELAXED);
}

static nh_cu_result fake_memory_write(nh_cu_pointer to, const void *from, size_t bytes) {
    (void)to, (void)from, (void)bytes;
    NEEDS_CONTEXT();
    MAY_FAIL("memory_write");
    return forbidden(true) ? FAKE_ERROR : 0;
}

static nh_cu_result fake_memory_send(nh_cu_pointer to, const void *from, size_t bytes,
                                     nh_cu_stream stream) {
    NEEDS_CONTEXT();
    MAY_FAIL("memory_send");
    if (to != FAKE_MEMORY || forbidden(!stream)) return FAKE_ERROR;
    pthread_mutex_lock(&lock);
    fake.sends_open++;
    fake.sent_bytes = bytes;
    memcpy(fake.sent, from, bytes < sizeof fake.sent ? bytes : sizeof fake.sent);
    pthread_mutex_unlock(&lock);
    return 0;
}

static nh_cu_result fake_memory_allocate(nh_cu_pointer *address, size_t bytes) {
    (void)bytes;
    NEEDS_CONTEXT();
    MAY_FAIL("memory_allocate");
    if (forbidden(false)) return FAKE_ERROR;
    *address = FAKE_MEMORY;
    add_to(&fake.memory_open, 1);
    return 0;
}

static nh_cu_result fake_memory_free(nh_cu_pointer address) {
    NEEDS_CONTEXT();
    if (address != FAKE_MEMORY || forbidden(false)) return FAKE_ERROR;
    add_to(&fake.memory_open, -1);
    if (fake.sends_open) fake.freed_early = true;
    return 0;
}

static nh_cu_result fake_stream_create(nh_cu_stream *stream, unsigned flags) {
    (void)flags;
    NEEDS_CONTEXT();
    MAY_FAIL("stream_create");
    *stream = (nh_cu_stream)(void *)&stream_memory;
    add_to(&fake.streams_open, 1);
    add_to(&fake.streams_made, 1);
    return 0;
}

static nh_cu_result fake_stream_destroy(nh_cu_stream stream) {
    (void)stream;
    NEEDS_CONTEXT();
    add_to(&fake.streams_open, -1);
    return 0;
}

static nh_cu_result fake_stream_synchronize(nh_cu_stream stream) {
    (void)stream;
    MAY_FAIL("stream_synchronize");
    pthread_mutex_lock(&lock);
    fake.sends_open = 0;
    pthread_mutex_unlock(&lock);
    return 0;
}

static nh_cu_result fake_stream_captures(nh_cu_stream stream, int *status) {
    (void)stream;
    *status = fake.capturing;
    return 0;
}

static nh_cu_result fake_event_create(nh_cu_event *event, unsigned flags) {
    (void)flags;
    NEEDS_CONTEXT();
    MAY_FAIL("event_create");
    *event = (nh_cu_event)(void *)&stream_memory;
    add_to(&fake.events_open, 1);
    return 0;
}

static nh_cu_result fake_event_destroy(nh_cu_event event) {
    (void)event;
    add_to(&fake.events_open, -1);
    return 0;
}

static nh_cu_result fake_event_record(nh_cu_event event, nh_cu_stream stream) {
    (void)event, (void)stream;
    NEEDS_CONTEXT();
    MAY_FAIL("event_record");
    return 0;
}

static nh_cu_result fake_event_synchronize(nh_cu_event event) {
    (void)event;
    MAY_FAIL("event_synchronize");
    return 0;
}

static nh_cu_result fake_event_elapsed(float *milliseconds, nh_cu_event start, nh_cu_event end) {
    (void)start, (void)end;
    MAY_FAIL("event_elapsed");
    *milliseconds = 1;
    return 0;
}

void fake_driver_reset(int arch) {
    fake = (struct fake_state){.arch = arch, .devices = 1};
}

void fake_driver_table(struct nh_driver *driver) {
    memset(driver, 0, sizeof *driver);
#define X(member, symbol, parameters) driver->member = fake_##member;
#include "driver.def"
#undef X
}

#ifdef FAKE_LIBCUDA
#define X(member, symbol, parameters)                                                              \
    nh_cu_result symbol parameters __attribute__((alias("fake_" #member), visibility("default")));
#include "driver.def"
#undef X

/* Further functions that the tool needs of a driver. Device memory has no contents. */
#define PUBLIC(symbol, parameters, ...)                                                            \
    __attribute__((visibility("default"))) nh_cu_result symbol parameters;                         \
    nh_cu_result symbol parameters {                                                               \
        __VA_ARGS__;                                                                               \
        return 0;                                                                                  \
    }
PUBLIC(cuCtxSetCurrent, (nh_cu_context context), fake.context_current = context != NULL)
PUBLIC(cuMemGetInfo_v2, (size_t * room, size_t *total), *room = *total = (size_t)1 << 30)
PUBLIC(cuMemcpyDtoH_v2, (void *to, nh_cu_pointer from, size_t bytes), (void)from,
       memset(to, 0, bytes))
PUBLIC(cuMemsetD8_v2, (nh_cu_pointer to, unsigned char value, size_t bytes), (void)to, (void)value,
       (void)bytes)
PUBLIC(cuCtxSynchronize, (void), (void)0)

/* NVRTC asks for an export table and reads its size. This one is empty. */
static const size_t export_table = sizeof export_table;
PUBLIC(cuGetExportTable, (const void **table, const void *id), (void)id, *table = &export_table)
#endif

const char *fake_driver_nvrtc(void) {
    static char path[512];
    const char *given = getenv("NHOOD_NVRTC");
    if (given && *given) return given;
    glob_t found;
    if (glob(NVRTC_PATTERN, 0, NULL, &found) == 0)
        snprintf(path, sizeof path, "%s", found.gl_pathv[0]);
    globfree(&found);
    return *path ? path : NULL;
}
