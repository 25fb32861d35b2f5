/* The solver table and the backends: registry.c is the one place that names them. */
#ifndef NH_REGISTRY_H
#define NH_REGISTRY_H

#include "solver.h"

/* NULL-terminated, best first, reference last. */
extern const struct nh_solver *const nh_registry_solvers[];

enum { NH_MOST_CUDA_DEVICES = 16, NH_MOST_DEVICES = 1 + NH_MOST_CUDA_DEVICES + 1 };

/* The devices of one context: the CPU, those of CUDA, then the one that is only described. */
struct nh_devices {
    struct nh_device device[NH_MOST_DEVICES];
    int32_t count, cuda_count;
    /* behind the CUDA devices; NULL if there are none */
    struct nh_cuda *cuda;
    char notes[2048];
};

nhood_status nh_registry_open(const nhood_context_options *options, const struct nh_host *host,
                              struct nh_devices *devices);
void nh_registry_close(struct nh_devices *devices);
/* Fills in all but struct_size. */
void nh_registry_count_kernels(const struct nh_devices *devices, nhood_kernel_counts *counts);
nhood_status nh_registry_measure(const struct nh_device *device, int32_t dtype,
                                 nhood_ceilings *ceilings);

#endif
