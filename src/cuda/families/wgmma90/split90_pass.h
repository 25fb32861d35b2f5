/* A launch of cuda.split90: what it computes, what it needs, and its step. */
#ifndef NH_SPLIT90_PASS_H
#define NH_SPLIT90_PASS_H

#include "backward90.h"

/* What a launch computes: blocks own queries for dQ, and keys for everything else. */
enum nh_split90_pass {
    NH_SPLIT90_D_Q,
    NH_SPLIT90_D_K_AND_V,
    NH_SPLIT90_D_K,
    NH_SPLIT90_D_V,
    NH_SPLIT90_PASSES
};

struct nh_split90_facts {
    /* blocks own keys and loop over queries */
    bool keys;
    uint32_t outputs;
    /* products, and sums, with rows of the head dim and of the value dim (`_v`) */
    int products, products_v, sums, sums_v;
    /* registers of a thread per four rows of a loop tile: scores, their gradients, and packed weights */
    int registers;
};
extern const struct nh_split90_facts nh_split90_facts[NH_SPLIT90_PASSES];

/* Whether this launch is used for the problem. One launch makes dK and dV as long as registers hold the sums of
 * both. */
bool nh_split90_used(const struct nh_problem *problem, enum nh_split90_pass pass);

/* Whether registers hold what the tiles need, and shared memory at least two stages. */
bool nh_split90_fits(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass);

/* Bytes of shared memory beyond those that nh_backward90_shared_bytes counts. */
int64_t nh_split90_own_bytes(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass);

/* The number of pipeline stages, that is, loop tiles in shared memory. */
int32_t nh_split90_stages(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass);

/* Like nh_backward90_step, with the knobs and the shared memory of the launch. */
nhood_status nh_split90_step(const struct nh_backward90_kernel *kernel, enum nh_split90_pass pass,
                             size_t stats, struct nh_cuda_step *step, struct nh_kernel_spec *spec);

#endif
