/* cuda.gemm in two files: gemm.c chooses tiles and describes their work, gemm_steps.c adds the launches. */
#ifndef NH_CUDA_GEMM_H
#define NH_CUDA_GEMM_H

#include "gemm_config.h"
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

struct gemm_config nh_gemm_config(const struct nh_gemm *of);

/* The number of tiles of one batch entry and head. */
int64_t nh_gemm_tiles(const struct nh_gemm *of);

nhood_status nh_gemm_add_steps(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct nh_config *config);

#endif
