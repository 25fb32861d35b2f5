/* The context behind the public handle: host services, devices, and a reference count that plans share. */
#ifndef NH_CONTEXT_H
#define NH_CONTEXT_H

#include "registry.h"

#include <stdatomic.h>

struct nhood_context {
    struct nh_host host;
    struct nh_devices devices;
    atomic_int references;
};

void nh_context_retain(nhood_context *context);
void nh_context_drop(nhood_context *context);
nhood_status nh_context_device(const nhood_context *context, int32_t index,
                               const struct nh_device **device);

#endif
