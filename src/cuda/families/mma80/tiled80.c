#include "tiled80.h"

#include "dtype.h"
#include "rates.h"
#include "tile_count.h"

enum { MOST_DIM = 256, MOST_LENGTH = 1 << 29 };

static const char *refuse_axis(const struct nh_problem *problem, const struct nh_axis *axis) {
    if (axis->length > (axis->periodic ? MOST_LENGTH / 2 : MOST_LENGTH))
        return "an axis is longer than 2^29 tokens, or 2^28 where it is periodic";
    return nh_refuse_pieces(axis, problem->op == NHOOD_OP_BWD);
}

const char *nh_tiled80_refuse(const struct nh_problem *problem) {
    if (problem->dtype == NHOOD_DTYPE_F64) return "f64 has no tensor core products";
    if (problem->dim > MOST_DIM || problem->dim_v > MOST_DIM)
        return "a head dim or value dim is larger than 256";
    for (int a = 0; a < NH_AXES; a++) {
        const char *reason = refuse_axis(problem, &problem->axis[a]);
        if (reason) return reason;
    }
    if (problem->extra_tokens > MOST_LENGTH) return "more than 2^29 extra tokens";
    return NULL;
}

struct nh_tiled80_widths nh_tiled80_widths(const struct nh_problem *problem) {
    int64_t bytes = (int64_t)nh_dtype_bytes(problem->dtype), step = 32 / bytes;
    return (struct nh_tiled80_widths){bytes, nh_ceil_div(problem->dim, step) * step,
                                      nh_ceil_div(problem->dim_v, step) * step};
}

int64_t nh_tiled80_mask_bytes(const int32_t row[NH_AXES], const int32_t column[NH_AXES]) {
    return ((int64_t)column[0] + column[1] + column[2] + 3) * 16 +
           ((int64_t)row[0] + row[1] + row[2]) * 8;
}

int64_t nh_tiled80_residents(const struct nh_cuda_device *device, int64_t shared_bytes,
                             int64_t warps, int64_t registers) {
    enum {
        GRANTED = 8,
        MOST_GRANTED = 256
    }; /* registers are granted in units of 8, at most 256 per thread */
    int64_t by_shared = nh_cuda_residents_by_shared(device, shared_bytes);
    if (!by_shared) return 0;
    int64_t granted = nh_ceil_div(nh_min(registers, MOST_GRANTED), GRANTED) * GRANTED;
    return nh_max(1, nh_min(by_shared, NH_CUDA_REGISTERS / (32 * warps * granted)));
}

double nh_tiled80_code(const struct nh_problem *problem, double products, double warps) {
    double depth = problem->dtype == NHOOD_DTYPE_F32
                       ? 8 / 3.0
                       : 16; /* inner dimension of a product instruction */
    return products / (16 * 8 * depth * warps);
}
