#include "gemm_shape.h"

#include "dtype.h"

const struct nh_knob nh_gemm_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "gemm_knobs.def"
#undef KNOB
    {NULL, NULL}};

int64_t nh_gemm_tiles(const struct nh_problem *problem, const struct nh_config *config) {
    int64_t tiles = 1;
    for (int a = 0; a < NH_AXES; a++)
        tiles *= nh_ceil_div(nh_longest_group(&problem->axis[a]), config->value[GEMM_TILE + a]) *
                 nh_min(problem->axis[a].dilation, problem->axis[a].length);
    return tiles;
}

/* The layouts of gemm_pn.cu and gemm_band.cu; what pads rows is in gemm_fragment.cuh. */
int64_t nh_gemm_pn_bytes(const struct nh_problem *problem, const struct nh_config *config,
                         int64_t dim) {
    int64_t size = (int64_t)nh_dtype_bytes(problem->dtype), rows = nh_gemm_rows(config);
    int64_t columns = config->value[GEMM_COLUMNS];
    return (rows + 2 * columns) * (nh_gemm_width(dim) * size + 16) + rows * (columns + 8) * 4;
}

int64_t nh_gemm_band_bytes(const struct nh_problem *problem, const struct nh_config *config,
                           int64_t dim) {
    int64_t size = (int64_t)nh_dtype_bytes(problem->dtype), rows = nh_gemm_rows(config);
    int64_t columns = config->value[GEMM_COLUMNS], row = (nh_gemm_width(dim) + 8) * size;
    return nh_max(2 * columns * row + rows * (columns * size + 16), rows * row);
}

int64_t nh_gemm_slab_bytes(const struct nh_problem *problem) {
    bool forward = problem->op == NHOOD_OP_FWD; /* keeps scores in f32 */
    int64_t bytes = forward ? 4 : (int64_t)nh_dtype_bytes(problem->dtype);
    if (!nh_multiply(bytes, problem->window_count, &bytes) ||
        !nh_multiply(bytes, problem->heads / problem->kv_heads, &bytes) ||
        !nh_multiply(bytes, problem->query_tokens, &bytes))
        return INT64_MAX;
    return bytes;
}
