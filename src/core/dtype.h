/* The four storage types: sizes, names, and exact conversions to and from f32 / f64. */
#ifndef NH_DTYPE_H
#define NH_DTYPE_H

#include "base.h"

#include <string.h>

static inline size_t nh_dtype_bytes(int32_t dtype) {
    return dtype == NHOOD_DTYPE_F64 ? 8 : dtype == NHOOD_DTYPE_F32 ? 4 : 2;
}

static inline const char *nh_dtype_name(int32_t dtype) {
    static const char *const names[] = {"?", "f64", "f32", "f16", "bf16"};
    return names[dtype >= NHOOD_DTYPE_F64 && dtype <= NHOOD_DTYPE_BF16 ? dtype : 0];
}

static inline float nh_f32_from_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t nh_bits_from_f32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline float nh_f32_from_bf16(uint16_t half) {
    return nh_f32_from_bits((uint32_t)half << 16);
}

/* Round to nearest even; NaN stays a (quiet) NaN. */
static inline uint16_t nh_bf16_from_f32(float value) {
    uint32_t bits = nh_bits_from_f32(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static inline float nh_f32_from_f16(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t rest = (uint32_t)(half & 0x7fffu);
    if (rest >= 0x7c00u) return nh_f32_from_bits(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    if (rest < 0x400u) { /* subnormal: rest * 2^-24, exact in f32 */
        float magnitude = (float)rest * 0x1p-24f;
        return sign ? -magnitude : magnitude;
    }
    return nh_f32_from_bits(sign | ((rest << 13) + ((127u - 15u) << 23)));
}

/* Round to nearest even, overflow to infinity, gradual underflow. */
static inline uint16_t nh_f16_from_f32(float value) {
    uint32_t bits = nh_bits_from_f32(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u); /* >= 65520 rounds to infinity */
    if (magnitude < 0x38800000u) { /* below 2^-14: let the FPU round at 2^-24, the subnormal step */
        float shifted = nh_f32_from_bits(magnitude) + 0.5f; /* 0.5 has ulp 2^-24 */
        return (uint16_t)(sign | (nh_bits_from_f32(shifted) - 0x3f000000u));
    }
    uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1u);
    return (uint16_t)(sign | ((rounded - ((127u - 15u) << 23)) >> 13));
}

static inline double nh_load_f64(int32_t dtype, const void *data, int64_t index) {
    switch (dtype) {
    case NHOOD_DTYPE_F64: return ((const double *)data)[index];
    case NHOOD_DTYPE_F32: return (double)((const float *)data)[index];
    case NHOOD_DTYPE_F16: return (double)nh_f32_from_f16(((const uint16_t *)data)[index]);
    default: return (double)nh_f32_from_bf16(((const uint16_t *)data)[index]);
    }
}

static inline void nh_store_f64(int32_t dtype, void *data, int64_t index, double value) {
    switch (dtype) {
    case NHOOD_DTYPE_F64: ((double *)data)[index] = value; break;
    case NHOOD_DTYPE_F32: ((float *)data)[index] = (float)value; break;
    case NHOOD_DTYPE_F16: ((uint16_t *)data)[index] = nh_f16_from_f32((float)value); break;
    default: ((uint16_t *)data)[index] = nh_bf16_from_f32((float)value); break;
    }
}

#endif
