/* The part kernels of the GEMM family: attention forward in two launches, with a row's softmax where its scores are
 * made (gemm_part.cuh). For windows whose keys of a part of a tile's box fit shared memory. */
#ifndef NH_CUDA_GEMM_PART_H
#define NH_CUDA_GEMM_PART_H

#include "gemm_part_args.h"
#include "gemm_shape.h"
#include "work.h"

/* Slots of a query in a part of the box, and lanes that share them. */
int64_t nh_gemm_part_slots(const struct nh_problem *problem, bool planes);
int64_t nh_gemm_part_lanes(int64_t slots);

/* The two launches. */
enum nh_gemm_part { NH_GEMM_PART_PN, NH_GEMM_PART_NN };

/* Warps that share 16 rows. */
int64_t nh_gemm_part_team(const struct nh_problem *problem, const struct nh_config *config,
                          enum nh_gemm_part part);

/* Elements of one query's weights in the workspace: those of each part start at multiples of 16 bytes. */
int64_t nh_gemm_part_row(const struct nh_problem *problem, bool planes);

/* Dynamic shared memory of the two launches. */
int64_t nh_gemm_part_pn_bytes(const struct nh_problem *problem, const struct nh_config *config);
int64_t nh_gemm_part_nn_bytes(const struct nh_problem *problem, const struct nh_config *config);

/* Whether the problem and the config fit the part kernels, on this device. */
bool nh_gemm_part_takes(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                        const struct nh_config *config);

/* Heads that a block takes one after the other, with the same tables. */
int32_t nh_gemm_part_heads(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                           const struct nh_config *config);

/* Adds both launches, and the weights that they move. */
void nh_gemm_part_add_work(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                           const struct nh_config *config, struct nh_work *work);

#endif
