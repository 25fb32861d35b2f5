/* cuda.gemm in two files: gemm.c chooses tiles and describes their work, gemm_steps.c adds the launches. */
#ifndef NH_CUDA_GEMM_H
#define NH_CUDA_GEMM_H

#include "launch.h"
#include "work.h"

/* Indices of config.value[]. */
enum {
#define KNOB NH_KNOB_AS_INDEX
#include "gemm_knobs.def"
#undef KNOB
};
extern const struct nh_knob nh_gemm_knobs[];

/* A config with what it is for. */
struct nh_gemm {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    const struct nh_config *config;
};

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
int64_t nh_gemm_tiles(const struct nh_gemm *of);

/* Bytes of dynamic shared memory of gemm_pn and of gemm_band for rows of `dim` elements. */
int64_t nh_gemm_pn_bytes(const struct nh_gemm *of, int64_t dim);
int64_t nh_gemm_band_bytes(const struct nh_gemm *of, int64_t dim);

/* Appends the launch of the operator. */
nhood_status nh_gemm_add_steps(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct nh_config *config);

#endif
