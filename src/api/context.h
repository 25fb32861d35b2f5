/* The context behind the public handle: host services, devices, and a reference count that plans share. */
#ifndef NH_CONTEXT_H
#define NH_CONTEXT_H

#include "arena.h"
#include "cache_folder.h"
#include "cpu_share.h"
#include "interruption.h"
#include "os.h"
#include "planner.h"
#include "registry.h"
#include "thread.h"
#include "wisdom.h"

#include <stdatomic.h>

struct nhood_context {
    struct nh_host host;
    struct nh_devices devices;
    struct nh_wisdom *wisdom;
    struct nh_choice_cache *choices;
    struct nh_group_choices *group_choices;
    struct nh_spare_arena spare;          /* of plans of groups */
    char *cache;                          /* a folder; "" for none */
    char no_cache[NH_NO_CACHE_BYTES];     /* why there is none */
    char *nvrtc;                          /* path of the library; NULL: it is searched for */
    int32_t line_info;                    /* as in nhood_context_options */
    char threads_origin[NH_ORIGIN_BYTES]; /* the text of nhood_context_threads */
    pthread_mutex_t measuring;            /* simultaneous measurements would disturb each other */
    struct nh_fork_guard measuring_guard;
    atomic_int references;
};

void nh_context_retain(nhood_context *context);
void nh_context_drop(nhood_context *context);
/* CACHE_MISS, with the reason, if the context has no cache folder. */
nhood_status nh_context_cache(const nhood_context *context);
/* Writes the path of the wisdom file: the given one or, for NULL, that in the cache folder. CACHE_MISS (no cache folder),
 * ARGUMENT (too long). */
nhood_status nh_context_wisdom_path(const nhood_context *context, const char *given,
                                    char path[NH_PATH_BYTES]);
nhood_status nh_context_device(const nhood_context *context, int32_t index,
                               const struct nh_device **device);
/* Checks the arguments of functions that choose a solver, makes the problem canonical and fills in the request. ARGUMENT. */
nhood_status nh_context_request(nhood_context *context, int32_t device, const nhood_problem *given,
                                const nhood_plan_options *options, struct nh_problem *problem,
                                struct nh_request *request);
/* Chooses by wisdom and estimates. Measures first if the options ask for it and wisdom does not know the problem. */
nhood_status nh_context_choose(nhood_context *context, const struct nh_request *request,
                               const nhood_plan_options *options, struct nh_choice *choice);
/* Copies the counts. ARGUMENT (counts->struct_size). */
nhood_status nh_context_counts(const nhood_kernel_counts *whole, nhood_kernel_counts *counts);
/* Returns DEVICE if the device is only described, so that nothing can run on it. */
nhood_status nh_context_present(const struct nh_device *device);

#endif
