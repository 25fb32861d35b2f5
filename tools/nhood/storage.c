#include "storage.h"

#include "nhood.h"

#include <float.h>
#include <math.h>

/* The layout of a 16-bit type: sign, exponent, fraction. */
struct half_format {
    int fraction_bits, exponent_bias;
};

static struct half_format half_format(int32_t dtype) {
    return dtype == NHOOD_DTYPE_F16 ? (struct half_format){10, 15} : (struct half_format){7, 127};
}

static double half_decode(int32_t dtype, uint16_t bits) {
    struct half_format format = half_format(dtype);
    int fraction = bits & ((1 << format.fraction_bits) - 1);
    int exponent = (bits & 0x7fff) >> format.fraction_bits;
    double value;
    if (exponent == 2 * format.exponent_bias + 1)
        value = fraction ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(fraction, 1 - format.exponent_bias - format.fraction_bits);
    else
        value = ldexp(fraction + (1 << format.fraction_bits),
                      exponent - format.exponent_bias - format.fraction_bits);
    return bits & 0x8000 ? -value : value;
}

static uint16_t half_encode(int32_t dtype, double value) {
    struct half_format format = half_format(dtype);
    int sign = signbit(value) ? 0x8000 : 0;
    int infinity = (2 * format.exponent_bias + 1) << format.fraction_bits;
    double magnitude = fabs(value);
    if (isnan(value)) return (uint16_t)(sign | infinity | 1 << (format.fraction_bits - 1));
    if (isinf(value)) return (uint16_t)(sign | infinity);
    int exponent = 1 - format.exponent_bias; /* of subnormal and of the smallest normal numbers */
    if (magnitude > 0 && ilogb(magnitude) > exponent) exponent = ilogb(magnitude);
    if (exponent > format.exponent_bias) return (uint16_t)(sign | infinity);
    /* In units of the last place. A carry correctly goes into the exponent field. */
    int units = (int)nearbyint(ldexp(magnitude, format.fraction_bits - exponent));
    int field = (exponent + format.exponent_bias - 1) << format.fraction_bits;
    return (uint16_t)(sign | (field + units));
}

size_t storage_bytes(int32_t dtype) {
    return dtype == NHOOD_DTYPE_F64 ? 8 : dtype == NHOOD_DTYPE_F32 ? 4 : 2;
}

double storage_load(int32_t dtype, const void *data, int64_t index) {
    switch (dtype) {
    case NHOOD_DTYPE_F64: return ((const double *)data)[index];
    case NHOOD_DTYPE_F32: return (double)((const float *)data)[index];
    default: return half_decode(dtype, ((const uint16_t *)data)[index]);
    }
}

void storage_store(int32_t dtype, void *data, int64_t index, double value) {
    switch (dtype) {
    case NHOOD_DTYPE_F64: ((double *)data)[index] = value; break;
    case NHOOD_DTYPE_F32: ((float *)data)[index] = (float)value; break;
    default: ((uint16_t *)data)[index] = half_encode(dtype, value);
    }
}

double storage_roundoff(int32_t dtype) {
    switch (dtype) {
    case NHOOD_DTYPE_F64: return 0x1p-53;
    case NHOOD_DTYPE_F32: return 0x1p-24;
    case NHOOD_DTYPE_F16: return 0x1p-11;
    default: return 0x1p-8;
    }
}

double storage_largest(int32_t dtype) {
    switch (dtype) {
    case NHOOD_DTYPE_F64: return DBL_MAX;
    case NHOOD_DTYPE_F32: return FLT_MAX;
    case NHOOD_DTYPE_F16: return 65504;
    default: return 0x1.fep127;
    }
}

double storage_smallest(int32_t dtype) {
    switch (dtype) {
    case NHOOD_DTYPE_F64: return 0x1p-1074;
    case NHOOD_DTYPE_F32: return 0x1p-149;
    case NHOOD_DTYPE_F16: return 0x1p-24;
    default: return 0x1p-133;
    }
}
