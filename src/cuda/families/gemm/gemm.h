/* cuda.gemm in three files: gemm.c chooses tiles and describes their work, gemm_part.c does so for attention in parts,
 * gemm_steps.c adds the launches. */
#ifndef NH_CUDA_GEMM_H
#define NH_CUDA_GEMM_H

#include "gemm_part_args.h"
#include "launch.h"
#include "work.h"

/* Indices of config.value[]. GEMM_COLUMNS 0 selects attention in parts; with GEMM_PLANES a part is a plane. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "gemm_knobs.def"
#undef KNOB
};
extern const struct nh_knob nh_gemm_knobs[];

static inline bool nh_gemm_in_parts(const struct nh_config *config) {
    return config->value[GEMM_COLUMNS] == 0;
}

/* Elements of a row in shared memory, rounded up to whole steps of a product, without the padding against bank
 * conflicts. */
static inline int64_t nh_gemm_width(int64_t dim) {
    return nh_ceil_div(dim, 16) * 16;
}

static inline int64_t nh_gemm_rows(const struct nh_config *config) {
    return (int64_t)config->value[GEMM_TILE] * config->value[GEMM_TILE + 1] *
           config->value[GEMM_TILE + 2];
}

/* The number of tiles of one batch entry and head. */
int64_t nh_gemm_tiles(const struct nh_problem *problem, const struct nh_config *config);

/* Bytes of dynamic shared memory of gemm_pn and of gemm_band for rows of `dim` elements. */
int64_t nh_gemm_pn_bytes(const struct nh_problem *problem, const struct nh_config *config,
                         int64_t dim);
int64_t nh_gemm_band_bytes(const struct nh_problem *problem, const struct nh_config *config,
                           int64_t dim);

/* Bytes of attention weights in the workspace for one batch entry and key head; INT64_MAX on overflow. */
int64_t nh_gemm_slab_bytes(const struct nh_problem *problem);

/* ---- attention in parts ---- */

/* The forward pass in two launches, with a row's softmax computed where its scores are (gemm_part.cuh). It is for
 * windows for which the keys of a part of a tile's box fit shared memory. */

/* The number of slots of a query in a part of the box, and of lanes that share them. */
int64_t nh_gemm_part_slots(const struct nh_problem *problem, bool planes);
int64_t nh_gemm_part_lanes(int64_t slots);

/* The two launches. */
enum nh_gemm_part { NH_GEMM_PART_PN, NH_GEMM_PART_NN };

/* The number of warps that share 16 rows. */
int64_t nh_gemm_part_team(const struct nh_problem *problem, const struct nh_config *config,
                          enum nh_gemm_part part);

/* Elements of one query's weights in the workspace; those of each part start at multiples of 16 bytes. */
int64_t nh_gemm_part_row(const struct nh_problem *problem, bool planes);

/* Bytes of dynamic shared memory of the two launches. */
int64_t nh_gemm_part_pn_bytes(const struct nh_problem *problem, const struct nh_config *config);
int64_t nh_gemm_part_nn_bytes(const struct nh_problem *problem, const struct nh_config *config);

/* Whether the part kernels take the problem with this config on this device. */
bool nh_gemm_part_takes(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                        const struct nh_config *config);

/* The number of heads that a block computes one after the other, with the same tables. */
int32_t nh_gemm_part_heads(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                           const struct nh_config *config);

/* Adds the work of both launches, and the bytes of the weights that they move. */
void nh_gemm_part_add_work(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                           const struct nh_config *config, struct nh_work *work);

/* Appends the launches of the problem's operation. */
nhood_status nh_gemm_add_steps(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct nh_config *config);

#endif
