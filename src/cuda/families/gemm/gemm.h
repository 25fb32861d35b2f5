/* cuda.gemm in three files: gemm.c chooses tiles and says what they ask of a device, gemm_part.c does so for attention in
 * parts, gemm_steps.c adds the launches. */
#ifndef NH_CUDA_GEMM_H
#define NH_CUDA_GEMM_H

#include "gemm_part_args.h"
#include "launch.h"
#include "work.h"

/* config.value[]. GEMM_COLUMNS of 0: the part kernels; with GEMM_PLANES a part is a plane. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "gemm_knobs.def"
#undef KNOB
};
extern const struct nh_knob nh_gemm_knobs[];

static inline bool nh_gemm_in_parts(const struct nh_config *config) {
    return config->value[GEMM_COLUMNS] == 0;
}

/* Elements of a row in shared memory, before the padding against bank conflicts: whole product steps. */
static inline int64_t nh_gemm_width(int64_t dim) {
    return nh_ceil_div(dim, 16) * 16;
}

static inline int64_t nh_gemm_rows(const struct nh_config *config) {
    return (int64_t)config->value[GEMM_TILE] * config->value[GEMM_TILE + 1] *
           config->value[GEMM_TILE + 2];
}

/* Tiles of one batch entry and head. */
int64_t nh_gemm_tiles(const struct nh_problem *problem, const struct nh_config *config);

/* Dynamic shared memory of gemm_pn and of gemm_band for rows of `dim` elements. */
int64_t nh_gemm_pn_bytes(const struct nh_problem *problem, const struct nh_config *config,
                         int64_t dim);
int64_t nh_gemm_band_bytes(const struct nh_problem *problem, const struct nh_config *config,
                           int64_t dim);

/* Attention weights in the workspace of one batch entry and key head, INT64_MAX if too many to count. */
int64_t nh_gemm_slab_bytes(const struct nh_problem *problem);

/* ---- attention in parts ---- */

/* Attention forward in two launches, with a row's softmax where its scores are made (gemm_part.cuh). For windows whose
 * keys of a part of a tile's box fit shared memory. */

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

/* Appends the launches of the problem's operation. */
nhood_status nh_gemm_add_steps(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct nh_config *config);

#endif
