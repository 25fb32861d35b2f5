/* One vector of reals. The template is compiled once per instruction set and per real type:
 *     NH_ISA_AVX512, NH_ISA_AVX2 or neither (portable), NH_REAL = 32 or 64.
 * Arithmetic is the compiler's vector extension; only what it cannot express is spelled per ISA here:
 * maximum, permutation by a run-time index, and conversion from and to the storage types. */
#ifndef NH_SIMD_H
#define NH_SIMD_H

#include "dtype.h"

#include <string.h>
#if defined(NH_ISA_AVX512) || defined(NH_ISA_AVX2)
#include <immintrin.h>
#endif

#if defined(NH_ISA_AVX512)
#define NH_VECTOR_BYTES 64
#elif defined(NH_ISA_AVX2)
#define NH_VECTOR_BYTES 32
#else
#define NH_VECTOR_BYTES 16
#endif

#if NH_REAL == 64
typedef double real;
typedef int64_t real_bits;
#else
typedef float real;
typedef int32_t real_bits;
#endif

#define VL ((int)(NH_VECTOR_BYTES / sizeof(real)))
#define INLINE static inline __attribute__((always_inline))

typedef real vec __attribute__((vector_size(NH_VECTOR_BYTES)));
typedef real_bits vint __attribute__((vector_size(NH_VECTOR_BYTES)));
typedef real vec_anywhere
    __attribute__((vector_size(NH_VECTOR_BYTES), aligned(sizeof(real)), may_alias));

typedef uint16_t half_anywhere __attribute__((may_alias));

INLINE vec v_load(const real *p) {
    return *(const vec_anywhere *)p;
}

INLINE void v_store(real *p, vec v) {
    *(vec_anywhere *)p = v;
}

INLINE vec v_set(real x) {
    return x - (vec){0};
}

/* a if a > b, else b: a NaN in b is kept, a NaN in a is dropped. */
INLINE vec v_max(vec a, vec b) {
#if defined(NH_ISA_AVX512) && NH_REAL == 32
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(NH_ISA_AVX512)
    return (vec)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(NH_ISA_AVX2) && NH_REAL == 32
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(NH_ISA_AVX2)
    return (vec)_mm256_max_pd((__m256d)a, (__m256d)b);
#else
    vint greater = (vint)(a > b);
    return (vec)(((vint)a & greater) | ((vint)b & ~greater));
#endif
}

INLINE vec v_select(vint mask, vec yes, vec no) {
    return (vec)(((vint)yes & mask) | ((vint)no & ~mask));
}

/* Lane i of the result is lane index[i] of v; 0 <= index[i] < VL. */
INLINE vec v_permute(vec v, vint index) {
#if defined(NH_ISA_AVX512) && NH_REAL == 32
    return (vec)_mm512_permutexvar_ps((__m512i)index, (__m512)v);
#elif defined(NH_ISA_AVX512)
    return (vec)_mm512_permutexvar_pd((__m512i)index, (__m512d)v);
#elif defined(NH_ISA_AVX2) && NH_REAL == 32
    return (vec)_mm256_permutevar8x32_ps((__m256)v, (__m256i)index);
#elif defined(NH_ISA_AVX2) /* two 32-bit lanes per f64: 2i and 2i + 1 */
    __m256i low = _mm256_slli_epi64((__m256i)index, 1);
    __m256i pair =
        _mm256_or_si256(low, _mm256_slli_epi64(_mm256_add_epi64(low, _mm256_set1_epi64x(1)), 32));
    return (vec)_mm256_permutevar8x32_epi32((__m256i)v, pair);
#else
    vec result = {0};
    for (int i = 0; i < VL; i++)
        result[i] = v[index[i]];
    return result;
#endif
}

INLINE real v_sum(vec v) {
    real part[NH_VECTOR_BYTES / sizeof(real)];
    memcpy(part, &v, sizeof v);
    for (int step = VL / 2; step > 0; step /= 2)
        for (int i = 0; i < step; i++)
            part[i] += part[i + step];
    return part[0];
}

/* VL consecutive elements of a storage type. */
INLINE vec v_load_as(int32_t dtype, const void *p) {
#if NH_REAL == 32 && defined(NH_ISA_AVX512)
    if (dtype == NHOOD_DTYPE_F16) return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(p));
    if (dtype == NHOOD_DTYPE_BF16)
        return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16);
#elif NH_REAL == 32 && defined(NH_ISA_AVX2)
    if (dtype == NHOOD_DTYPE_F16) return (vec)_mm256_cvtph_ps(_mm_loadu_si128(p));
    if (dtype == NHOOD_DTYPE_BF16)
        return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16);
#elif NH_REAL == 32
    if (dtype != NHOOD_DTYPE_F32) {
        vec v = {0};
        for (int i = 0; i < VL; i++) {
            uint16_t half = ((const half_anywhere *)p)[i];
            v[i] = dtype == NHOOD_DTYPE_F16 ? nh_f32_from_f16(half) : nh_f32_from_bf16(half);
        }
        return v;
    }
#endif
    (void)dtype;
    return v_load(p);
}

#if NH_REAL == 32 && (defined(NH_ISA_AVX512) || defined(NH_ISA_AVX2))
/* f32 to bf16 bits in the low half of each lane: nearest even, NaN stays NaN. */
INLINE vint bf16_bits(vec v) {
    vint bits = (vint)v;
    vint rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    vint quiet = (bits >> 16) | 0x40;
    vint number = (vint)(v == v);
    return ((rounded & number) | (quiet & ~number)) & 0xffff;
}
#endif

INLINE void v_store_as(int32_t dtype, void *p, vec v) {
#if NH_REAL == 32 && defined(NH_ISA_AVX512)
    if (dtype == NHOOD_DTYPE_F16) {
        _mm256_storeu_si256(p, _mm512_cvtps_ph((__m512)v, _MM_FROUND_TO_NEAREST_INT));
        return;
    }
    if (dtype == NHOOD_DTYPE_BF16) {
        _mm256_storeu_si256(p, _mm512_cvtepi32_epi16((__m512i)bf16_bits(v)));
        return;
    }
#elif NH_REAL == 32 && defined(NH_ISA_AVX2)
    if (dtype == NHOOD_DTYPE_F16) {
        _mm_storeu_si128(p, _mm256_cvtps_ph((__m256)v, _MM_FROUND_TO_NEAREST_INT));
        return;
    }
    if (dtype == NHOOD_DTYPE_BF16) {
        __m256i bits = (__m256i)bf16_bits(v);
        _mm_storeu_si128(
            p, _mm_packus_epi32(_mm256_castsi256_si128(bits), _mm256_extracti128_si256(bits, 1)));
        return;
    }
#elif NH_REAL == 32
    if (dtype != NHOOD_DTYPE_F32) {
        for (int i = 0; i < VL; i++)
            ((half_anywhere *)p)[i] =
                dtype == NHOOD_DTYPE_F16 ? nh_f16_from_f32(v[i]) : nh_bf16_from_f32(v[i]);
        return;
    }
#endif
    (void)dtype;
    v_store(p, v);
}

/* The same for fewer than VL elements: nothing beyond them is read or written; missing lanes are 0. */
INLINE vec v_load_part(int32_t dtype, const void *p, int count) {
    real buffer[NH_VECTOR_BYTES / sizeof(real)] = {0};
    memcpy(buffer, p, (size_t)count * nh_dtype_bytes(dtype));
    return v_load_as(dtype, buffer);
}

INLINE void v_store_part(int32_t dtype, void *p, vec v, int count) {
    real buffer[NH_VECTOR_BYTES / sizeof(real)];
    v_store_as(dtype, buffer, v);
    memcpy(p, buffer, (size_t)count * nh_dtype_bytes(dtype));
}

/* 2^x for |error| <= 2 units in the last place; 0 below the normal range, infinity above, NaN kept.
 * x = n + r with r in [-1/2, 1/2]: adding 1.5 * 2^(mantissa bits) rounds to the integer n and leaves
 * n + bias in the low bits. The polynomial is the Taylor series of 2^r, cut where its remainder is
 * below the rounding error. */
INLINE vec v_exp2(vec x) {
#if NH_REAL == 64
    static const double magic = 0x1.8p52 + 1023;
    static const double lowest = -1023, highest = 1024;
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
    enum { DEGREE = 12, MANTISSA = 52 };
#else
    static const float magic = 0x1.8p23f + 127;
    static const float lowest = -127, highest = 128;
    static const float c[] = {1.0f,           0x1.62e430p-1f,  0x1.ebfbe0p-3f, 0x1.c6b08ep-5f,
                              0x1.3b2ab6p-7f, 0x1.5d87fep-10f, 0x1.430912p-13f};
    enum { DEGREE = 6, MANTISSA = 23 };
#endif
    x = v_max(v_set(lowest), x);
    x = -v_max(v_set(-highest), -x);
    vec shifted = x + magic;
    vec r = x - (shifted - magic);
    vec sum = v_set(c[DEGREE]);
    for (int i = DEGREE - 1; i >= 0; i--)
        sum = sum * r + c[i];
    return sum * (vec)((vint)shifted << MANTISSA);
}

#endif
