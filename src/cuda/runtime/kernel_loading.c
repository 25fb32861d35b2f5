/* The kernels of a plan, made side by side: NVRTC compiles on as many threads as call it, and a backward pass has two
 * or three large kernels. */
#include "kernel_loading.h"

#include "os.h"
#include "thread.h"

#include <stdatomic.h>
#include <stdio.h>

/* Threads that compile for all plans together, which may be built side by side themselves: a compiler at work takes some hundred megabytes. */
enum { MOST_THREADS = 8 };
static atomic_int threads;

struct part {
    struct nh_cuda_operation *operation;
    int32_t index;
    bool own_thread;
    pthread_t thread;
    nhood_status status;
    char error[1024];
};

static void *load(void *argument) {
    struct part *part = argument;
    struct nh_cuda_step *step = &part->operation->step[part->index];
    part->status = nh_kernel_get(part->operation->device, &part->operation->spec[part->index],
                                 step->shared_bytes, &step->kernel);
    /* The error text is the thread's own. */
    if (part->status) snprintf(part->error, sizeof part->error, "%s", nhood_last_error());
    return NULL;
}

static bool start(struct part *part) {
    int64_t most = nh_min(nh_os_cpus(), MOST_THREADS);
    if (atomic_fetch_add(&threads, 1) + 1 < most && !nh_thread_create(&part->thread, load, part))
        return true;
    atomic_fetch_sub(&threads, 1);
    return false;
}

static void finish(struct part *part) {
    pthread_join(part->thread, NULL);
    atomic_fetch_sub(&threads, 1);
}

nhood_status nh_cuda_load_kernels(struct nh_cuda_operation *operation) {
    struct part part[NH_CUDA_STEPS];
    int32_t missing = 0;
    for (int32_t i = 0; i < operation->count; i++) {
        part[i] = (struct part){.operation = operation, .index = i};
        if (nh_kernel_in_memory(operation->device, &operation->spec[i])) continue;
        /* The first is left to this thread. */
        if (missing++) part[i].own_thread = start(&part[i]);
    }
    for (int32_t i = 0; i < operation->count; i++)
        if (!part[i].own_thread) load(&part[i]);
    nhood_status status = NHOOD_OK;
    for (int32_t i = 0; i < operation->count; i++) {
        if (part[i].own_thread) finish(&part[i]);
        if (!status && part[i].status) status = nh_error(part[i].status, "%s", part[i].error);
    }
    return status;
}
