/* Mathematical functions on vectors of reals. */
#ifndef NH_VECTOR_MATH_H
#define NH_VECTOR_MATH_H

#include "simd.h"

#include <math.h>

static const double log2_e = 1.4426950408889634074, ln_2 = 0.69314718055994530942;

#if NH_REAL == 64
enum { MANTISSA_BITS = 52 };
#else
enum { MANTISSA_BITS = 23 };
#endif

/* Computes 2^r for r in [-1/2, 1/2]. f64 uses the Taylor series up to where the remainder is below the rounding error. f32 uses
 * a minimax fit, with an error of 1.9 units in the last place including rounding; the Taylor series of one degree more has
 * 2.6. */
INLINE vec exp2_polynomial(vec r) {
#if NH_REAL == 64
    static const double c[] = {1.0,
                               0x1.62e42fefa39efp-1,
                               0x1.ebfbdff82c58fp-3,
                               0x1.c6b08d704a0c0p-5,
                               0x1.3b2ab6fba4e77p-7,
                               0x1.5d87fe78a6731p-10,
                               0x1.430912f86c787p-13,
                               0x1.ffcbfc588b0c7p-17,
                               0x1.62c0223a5c824p-20,
                               0x1.b5253d395e7c4p-24,
                               0x1.e4cf5158b8ecap-28,
                               0x1.e8cac7351bb25p-32,
                               0x1.c3bd650fc2986p-36};
#else
    static const float c[] = {1.0f,           0x1.62e428p-1f, 0x1.ebf9b2p-3f,
                              0x1.c6b76ap-5f, 0x1.3ceba4p-7f, 0x1.5bba1cp-10f};
#endif
    enum { DEGREE = sizeof c / sizeof c[0] - 1 };
    vec sum = v_set(c[DEGREE]);
    for (int i = DEGREE - 1; i >= 0; i--)
        sum = sum * r + c[i];
    return sum;
}

/* Computes e^x as 2^n times the polynomial at y - n, where y = x log2(e) and n is the integer nearest to y. The error is 2 units
 * in the last place for x near 0. Elsewhere the rounding of log2(e) (with AVX-512, of the product) adds a relative error of at
 * most |x| * 2^-24 (f64: 2^-53). 0 below the normal range, infinity above it, NaN for NaN. `limited`: x is at most 0. */
INLINE vec exp_of(vec x, const bool limited) {
    const real base = (real)log2_e;
#if defined(NH_ISA_AVX512) && NH_REAL == 32
    (void)limited;
    x *= base;
    __m512 whole = _mm512_roundscale_ps((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    return (vec)_mm512_maskz_scalef_ps(normal, (__m512)exp2_polynomial(x - (vec)whole), whole);
#elif defined(NH_ISA_AVX512)
    (void)limited;
    x *= base;
    __m512d whole = _mm512_roundscale_pd((__m512d)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    __mmask8 normal = _mm512_cmp_pd_mask((__m512d)x, _mm512_set1_pd(-1022), _CMP_NLT_UQ);
    return (vec)_mm512_maskz_scalef_pd(normal, (__m512d)exp2_polynomial(x - (vec)whole), whole);
#else
    /* Adding 1.5 * 2^(mantissa bits) rounds to an integer and leaves integer + bias in the low bits. x is clamped before the product, which
     * then is part of two multiply-adds. */
    const real bias = NH_REAL == 64 ? 1023 : 127;
    const real magic = (real)(INT64_C(3) << (MANTISSA_BITS - 1)) + bias;
    const real low = -bias * (real)ln_2, high = (bias + 1) * (real)ln_2;
    x = limited ? v_max(v_set(low), x) : v_clamp(x, low, high);
    vec shifted = x * base + magic;
    return exp2_polynomial(x * base - (shifted - magic)) * (vec)((vint)shifted << MANTISSA_BITS);
#endif
}

INLINE vec v_exp(vec x) {
    return exp_of(x, false);
}

/* The same for x that is at most 0 or NaN. */
INLINE vec v_exp_limited(vec x) {
    return exp_of(x, true);
}

/* The base-2 logarithm of positive numbers in the normal range; -infinity for 0, NaN for NaN. With x = 2^e * m and m in
 * [1/sqrt(2), sqrt(2)), ln(m) = 2 atanh(s) where s = (m - 1) / (m + 1). TERMS terms of the series suffice, as
 * s * s < 0.0295. */
INLINE vec v_log2(vec x) {
    enum { TERMS = NH_REAL == 64 ? 10 : 5 };
    const vec one = v_set(1), root_half = v_set((real)0.70710678118654752440);
    vint exponent = ((vint)x - (vint)root_half) >> MANTISSA_BITS;
    vec m = (vec)((vint)x - (exponent << MANTISSA_BITS));
    vec s = (m - one) / (m + one), square = s * s, sum = v_set((real)(1.0 / (2 * TERMS - 1)));
    for (int i = TERMS - 2; i >= 0; i--)
        sum = sum * square + (real)(1.0 / (2 * i + 1));
    vec log = __builtin_convertvector(exponent, vec) +
              s * sum * (real)2.88539008177792681472; /* 2 / ln(2) */
    return v_select((vint)(x > (vec){0}), log, x - v_set((real)INFINITY));
}

#endif
