/* GPUs known by their published numbers, for planning where there is none. A100 80GB SXM, H100 SXM and H200 SXM:
 * multiprocessors, shared memory and bandwidth are those of NVIDIA's data sheets and architecture white papers, clocks
 * the highest that their drivers offer. B200: NVIDIA publishes neither multiprocessors nor clock. 148 multiprocessors
 * and 7680 bits of memory at 3996 MHz are what its driver reports (pull request 4002 of pytorch/ao), shared memory is
 * that of the Blackwell tuning guide, and the clock is the one at which 148 multiprocessors with 4096 multiply-adds
 * each make the 2.25 PFLOPS of the DGX B200's data sheet (72 PFLOPS of sparse FP8 by eight GPUs). No estimate depends
 * on the size of the L2. */
#include "device_spec.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

enum { KIB = 1024 };

/* Models are named as drivers name them, so that a real GPU's wisdom also serves its description. The backends are
 * shared and never written to: whatever would write to one needs a driver. */
static struct {
    const char *name, *model;
    struct nh_cuda_device backend;
} specs[] = {
    {"a100",
     "NVIDIA A100-SXM4-80GB",
     {.arch = 80,
      .multiprocessors = 108,
      .shared_bytes_per_block = 163 * KIB,
      .shared_bytes_per_multiprocessor = 164 * KIB,
      .clock_hz = 1.410e9,
      .memory_bytes_per_s = 2.039e12}},
    {"h100",
     "NVIDIA H100 80GB HBM3",
     {.arch = 90,
      .multiprocessors = 132,
      .overlaps = true,
      .shared_bytes_per_block = 227 * KIB,
      .shared_bytes_per_multiprocessor = 228 * KIB,
      .clock_hz = 1.980e9,
      .memory_bytes_per_s = 3.35e12}},
    {"h200",
     "NVIDIA H200",
     {.arch = 90,
      .multiprocessors = 132,
      .overlaps = true,
      .shared_bytes_per_block = 227 * KIB,
      .shared_bytes_per_multiprocessor = 228 * KIB,
      .clock_hz = 1.980e9,
      .memory_bytes_per_s = 4.8e12}},
    {"b200",
     "NVIDIA B200",
     {.arch = 100,
      .multiprocessors = 148,
      .overlaps = true,
      .shared_bytes_per_block = 227 * KIB,
      .shared_bytes_per_multiprocessor = 228 * KIB,
      .clock_hz = 1.856e9,
      .memory_bytes_per_s = 7.672e12}},
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
