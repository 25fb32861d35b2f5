/* The kernels of one instruction set and one real type. This file is compiled once for each, see src/CMakeLists.txt. */
#include "unfused.h"

#include "reduce.h"
#if defined(NH_ISA_AVX512) || (defined(NH_ISA_AVX2) && NH_REAL == 64)
#define norm_rope_reals NULL
#define norm_rope NULL
#else
#include "rope.h"
#endif

static int64_t scratch_reals(const struct nh_geometry *geometry) {
    struct scratch scratch;
    return scratch_layout(geometry, NULL, &scratch);
}

static void tile_run(const struct nh_tile_run *run, int64_t item, int32_t worker) {
    struct tile tile;
    tile_set(run, item, worker, &tile);
    switch (tile.problem->op) {
    case NHOOD_OP_FWD: forward_tile(&tile); break;
    case NHOOD_OP_BWD: backward_tile(&tile); break;
    default: unfused_tile(&tile);
    }
}

static void begin(const struct nh_tile_run *run) {
    const struct nh_problem *problem = &run->geometry->problem;
    if (!problem->has_bias) return;
    int64_t count = problem->heads * problem->bias_count;
    for (int64_t i = 0; i < count; i++)
        ((real *)run->bias)[i] = (real)nh_load_f64(problem->dtype, run->io->data[NHOOD_BIAS], i);
    if (problem->op == NHOOD_OP_BWD) memset(run->d_bias, 0, (size_t)count * sizeof(real));
}

static void finish(const struct nh_tile_run *run) {
    const struct nh_problem *problem = &run->geometry->problem;
    void *out = run->io->data[NHOOD_D_BIAS];
    if (problem->op != NHOOD_OP_BWD || !problem->has_bias || !out) return;
    for (int64_t i = 0; i < problem->heads * problem->bias_count; i++)
        nh_store_f64(problem->dtype, out, i, (double)((const real *)run->d_bias)[i]);
}

/* Twelve independent sums hide the latency of two multiply-add units. */
static int64_t multiply_add(int64_t rounds) {
    vec sum[12];
    vec a = v_set((real)0.999999), b = v_set((real)1e-6);
#pragma GCC unroll 12
    for (int i = 0; i < 12; i++)
        sum[i] = v_set((real)i);
    for (int64_t round = 0; round < rounds; round++) {
#pragma GCC unroll 12
        for (int i = 0; i < 12; i++) {
            sum[i] = sum[i] * a + b;
            KEEP_IN_REGISTER(sum[i]);
        }
    }
    volatile real keep = v_sum(sum[0] + sum[5] + sum[11]);
    (void)keep;
    return rounds * 12 * VL;
}

#define TABLE_NAME(isa, bits) TABLE_NAME_OF(isa, bits)
#define TABLE_NAME_OF(isa, bits) nh_tile_##isa##_f##bits

const struct nh_tile_kernels TABLE_NAME(NH_ISA_NAME, NH_REAL) = {
    VL,           MOST_ROWS,       BAND_BUDGET, SINGLE_OUTPUTS, false, scratch_reals,
    tile_run,     partial_reals,   reduce_jobs, reduce,         begin, finish,
    multiply_add, norm_rope_reals, norm_rope,
};
