/* Opens the CPU device: which instruction set, how many threads. */
#include "cpu.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>

static int32_t usable_cpus(void) {
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set)) return 1;
    int count = CPU_COUNT(&set);
    return count < 1 ? 1 : count > 1024 ? 1024 : count;
}

nhood_status nh_cpu_open(const nhood_context_options *options, const struct nh_host *host,
                         struct nh_device *device) {
    struct nh_cpu *cpu = nh_allocate(host, sizeof *cpu);
    if (!cpu) return NHOOD_ERR_MEMORY;
    cpu->host = host;
    cpu->threads = options->threads ? options->threads : usable_cpus();
    device->backend = cpu;
    device->host = host;
    device->info = (nhood_device_info){.struct_size = sizeof device->info,
                                       .kind = NHOOD_DEVICE_CPU,
                                       .workers = cpu->threads,
                                       .name = "cpu"};
    snprintf(device->info.description, sizeof device->info.description, "%d threads",
             (int)cpu->threads);
    return NHOOD_OK;
}

void nh_cpu_close(struct nh_device *device) {
    struct nh_cpu *cpu = device->backend;
    if (!cpu) return;
    nh_pool_destroy(cpu->pool);
    nh_release(cpu->host, cpu);
    device->backend = NULL;
}

nhood_status nh_cpu_measure(const struct nh_device *device, int32_t dtype,
                            nhood_ceilings *ceilings) {
    (void)device;
    (void)ceilings;
    (void)dtype;
    return nh_error(NHOOD_ERR_UNSUPPORTED, "not yet");
}
