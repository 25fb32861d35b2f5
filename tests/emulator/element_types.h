// The element types of products: how many one register holds, and the value of each.
#pragma once
#include "cuda_language.h"
#include "dtype.h"

struct F16 {
    static constexpr int IN_WORD = 2;
    // nh_f32_from_f16 without a branch: the bits as an f32's, whose exponents are by 127 - 15 less.
    static float at(uint32_t word, int index) {
        uint32_t bits = word >> 16 * index;
        float magnitude = __uint_as_float((bits & 0x7fff) << 13) * 0x1p112f;
        uint32_t not_finite = magnitude >= 0x1p16f ? 0x7f800000 : 0;
        return __uint_as_float(__float_as_uint(magnitude) | not_finite | (bits & 0x8000) << 16);
    }
};
struct BF16 {
    static constexpr int IN_WORD = 2;
    static float at(uint32_t word, int index) {
        return nh_f32_from_bf16((uint16_t)(word >> 16 * index));
    }
};
struct TF32 {
    static constexpr int IN_WORD = 1;
    static float at(uint32_t word, int) {
        return __uint_as_float(word & ~0x1fffu);
    }
};
