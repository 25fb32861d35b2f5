/* GPUs by their published numbers (gpus.def). */
#include "device_spec.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { KIB = 1024 };

/* The backends are shared and never written to: whatever would write to one needs a driver. */
static struct {
    const char *name, *model;
    struct nh_cuda_device backend;
} specs[] = {
#define NH_GPU(gpu, driver_name, capability, count, block_kib, kib, hz, bytes_per_s)               \
    {gpu,                                                                                          \
     driver_name,                                                                                  \
     {.arch = capability,                                                                          \
      .multiprocessors = count,                                                                    \
      .overlaps = capability >= 90,                                                                \
      .shared_bytes_per_block = block_kib * KIB,                                                   \
      .shared_bytes_per_multiprocessor = kib * KIB,                                                \
      .clock_hz = hz,                                                                              \
      .memory_bytes_per_s = bytes_per_s}},
#include "gpus.def"
};

enum { MODELS = sizeof specs / sizeof *specs };
static_assert((int)MODELS <= (int)NH_MOST_DESCRIBED, "room for all of one architecture");

nhood_status nh_cuda_describe(const char *name, const struct nh_host *host,
                              struct nh_device *device, int32_t *count) {
    char known[128] = "";
    *count = 0;
    for (size_t i = 0; i < MODELS; i++) {
        struct nh_cuda_device *backend = &specs[i].backend;
        char arch[16];
        snprintf(arch, sizeof arch, "sm_%d", (int)backend->arch);
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s (%s)", used ? ", " : "", specs[i].name,
                 arch);
        if (strcmp(name, specs[i].name) != 0 && strcmp(name, arch) != 0) continue;
        struct nh_device *found = &device[(*count)++];
        *found = (struct nh_device){.host = host, .spec_only = true, .backend = backend};
        found->info = nh_cuda_device_info(backend, -1, specs[i].name, specs[i].model);
    }
    if (*count) return NHOOD_OK;
    return nh_error(NHOOD_ERR_ARGUMENT, "options.describe = '%s' is not one of %s", name, known);
}
