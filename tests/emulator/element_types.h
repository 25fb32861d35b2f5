// The element types of products: how many one register holds, and the value of each.
#pragma once
#include "cuda_language.h"
#include "dtype.h"

struct F16 {
    static constexpr int IN_WORD = 2;
    static float at(uint32_t word, int index) {
        return nh_f32_from_f16((uint16_t)(word >> 16 * index));
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
