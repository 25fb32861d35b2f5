/* Storage conversions: every half value there and back, and rounding against nearest-even by search. */
#include "dtype.h"
#include "test.h"

#include <math.h>

static float widened(int dtype, uint16_t half) {
    return dtype == NHOOD_DTYPE_F16 ? nh_f32_from_f16(half) : nh_f32_from_bf16(half);
}

static uint16_t narrowed(int dtype, float value) {
    return dtype == NHOOD_DTYPE_F16 ? nh_f16_from_f32(value) : nh_bf16_from_f32(value);
}

static void check_round_trip(int dtype) {
    for (uint32_t half = 0; half < 65536; half++) {
        float value = widened(dtype, (uint16_t)half);
        uint16_t back = narrowed(dtype, value);
        if (isnan(value)) {
            CHECK(isnan(widened(dtype, back)), "NaN %x became %x", half, back);
        } else {
            CHECK(back == half, "dtype %d: %x -> %a -> %x", dtype, half, (double)value, back);
        }
    }
}

/* Between neighbouring halves h and h + 1 (positive, finite), values round to the nearer, ties to even. */
static void check_rounding(int dtype, uint16_t half) {
    double low = (double)widened(dtype, half), high = (double)widened(dtype, (uint16_t)(half + 1));
    if (isinf(high)) high = dtype == NHOOD_DTYPE_F16 ? 65536.0 : 0x1p128;
    float middle = (float)(low + (high - low) / 2);
    uint16_t even = half & 1 ? (uint16_t)(half + 1) : half;
    CHECK(narrowed(dtype, middle) == even, "dtype %d: tie above %x", dtype, half);
    CHECK(narrowed(dtype, nextafterf(middle, 0)) == half, "dtype %d: below the tie above %x", dtype,
          half);
    CHECK(narrowed(dtype, nextafterf(middle, INFINITY)) == half + 1,
          "dtype %d: above the tie of %x", dtype, half);
    CHECK(narrowed(dtype, -middle) == (even | 0x8000), "dtype %d: negative tie of %x", dtype, half);
}

int main(void) {
    check_round_trip(NHOOD_DTYPE_F16);
    check_round_trip(NHOOD_DTYPE_BF16);
    for (uint32_t half = 0; half < 0x7c00; half++)
        check_rounding(NHOOD_DTYPE_F16, (uint16_t)half);
    /* bf16 subnormals have ties that f32 subnormals still resolve */
    for (uint32_t half = 0; half < 0x7f80; half++)
        check_rounding(NHOOD_DTYPE_BF16, (uint16_t)half);
    return test_result();
}
