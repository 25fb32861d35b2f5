/* Tiles of cuda.gemm's configs, and the shared memory that they take. */
#ifndef NH_CUDA_GEMM_SHAPE_H
#define NH_CUDA_GEMM_SHAPE_H

#include "solver.h"

/* config.value[] */
/* GEMM_COLUMNS of 0: the part kernels, see gemm_part.h; with GEMM_PLANES a part is a plane */
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

#endif
