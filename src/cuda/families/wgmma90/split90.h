/* cuda.split90's launches: what they make, and what bias and extra tokens need. */
#ifndef NH_SPLIT90_H
#define NH_SPLIT90_H

#include "backward90.h"

/* What a launch makes: blocks own queries for dQ and keys for all else. */
enum nh_split90_pass {
    NH_SPLIT90_D_Q,
    NH_SPLIT90_D_K_AND_V,
    NH_SPLIT90_D_K,
    NH_SPLIT90_D_V,
    NH_SPLIT90_PASSES
};

/* Whether the gradients of this problem are made by this launch: registers hold both sums of keys up to some width. */
bool nh_split90_used(const struct nh_problem *problem, enum nh_split90_pass pass);

/* Whether a pair of tiles fits registers and, that of `walk` twice, shared memory. */
bool nh_split90_fits(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                     const int32_t own[3], const int32_t walk[3], enum nh_split90_pass pass);

/* As nh_backward90_step, with the knobs and the shared memory of the launch. */
nhood_status nh_split90_step(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                             size_t stats, const int32_t own[3], const int32_t walk[3],
                             enum nh_split90_pass pass, struct nh_cuda_step *step,
                             struct nh_kernel_spec *spec);

/* Of shared memory: boxes of the bias and, beside dQ, sums of its gradient; 0 without a bias. */
int64_t nh_split90_bias_bytes(const struct nh_problem *problem, const int32_t own[3],
                              const int32_t walk[3], bool keys);

/* Lets the launch that makes dQ add the bias's gradient to tables in the workspace, one per head and block, and has it
 * keep to as few blocks and heads per block as they are meant for. */
void nh_split90_add_tables(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step, struct nh_kernel_spec *spec);

/* NULL, or why the queries cannot be walked as one grid, without dilation. */
const char *nh_split90_refuse_extra(const struct nh_problem *problem,
                                    const struct nh_device *device);

/* The tile of queries that blocks which own extra tokens walk, and how many such tiles all of them meet, per batch entry
 * and head. */
const int32_t *nh_split90_extra_walk(const struct nh_problem *problem,
                                     const struct nh_cuda_device *cuda, double *tiles);

/* Appends the launches that make the gradients of the extra tokens. */
nhood_status nh_split90_add_extra(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, size_t stats);

#endif
