/* cuda.gemm in two files: gemm.c chooses tiles and describes their work, gemm_steps.c adds the launches. */
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

/* A config with what it is for. */
struct nh_gemm {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    const struct nh_config *config;
};

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

/* The fewest lanes, from 8 to 32, whose registers hold a row of so many slots, NH_GEMM_HELD each. */
enum { NH_GEMM_HELD = 16, NH_GEMM_LANES = 32 };
static inline int64_t nh_gemm_lanes(int64_t slots) {
    int64_t lanes = 8;
    while (lanes < NH_GEMM_LANES && lanes * NH_GEMM_HELD < slots)
        lanes *= 2;
    return lanes;
}

/* The number of tiles of one batch entry and head. */
int64_t nh_gemm_tiles(const struct nh_gemm *of);

/* Bytes of dynamic shared memory of gemm_pn and of gemm_band for rows of `dim` elements. */
int64_t nh_gemm_pn_bytes(const struct nh_gemm *of, int64_t dim);
int64_t nh_gemm_band_bytes(const struct nh_gemm *of, int64_t dim);

/* Bytes of attention weights in the workspace for one batch entry and key head; INT64_MAX on overflow. */
int64_t nh_gemm_slab_bytes(const struct nh_problem *problem);

/* What a config for attention in parts needs, in its two launches. */
enum { NH_GEMM_PART_PN, NH_GEMM_PART_NN, NH_GEMM_PART_LAUNCHES };
struct nh_gemm_part {
    int64_t slots; /* of a query in a part of the box */
    int64_t lanes; /* that share these slots in the softmax */
    /* elements of one query's weights in the workspace; those of each part start at multiples of 16 bytes */
    int64_t row;
    /* columns of the box of a part; those that a warp multiplies, and those that a block holds, both with padding */
    int64_t box, columns, held;
    int64_t team[NH_GEMM_PART_LAUNCHES];         /* warps that share 16 rows */
    int64_t shared_bytes[NH_GEMM_PART_LAUNCHES]; /* dynamic ones */
    int64_t heads; /* that a block computes one after the other, with the same tables */
};
struct nh_gemm_part nh_gemm_part_of(const struct nh_gemm *of);

/* Appends the launches of the problem's operation. */
nhood_status nh_gemm_add_steps(struct nh_cuda_operation *operation,
                               const struct nh_problem *problem, const struct nh_config *config);

#endif
