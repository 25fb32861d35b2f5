/* Vectors of reals. The template is compiled once per instruction set and real type:
 *     NH_ISA_AVX512, NH_ISA_AVX2, NH_ISA_NEON, NH_ISA_SVE or none of them (portable), NH_REAL = 32 or 64.
 * Arithmetic uses the compiler's vector extension. Only what that cannot express is written per instruction set: maximum,
 * permutation by a run-time index, and conversion from and to the storage types. SVE is compiled for one vector length, by
 * -msve-vector-bits, because the template needs it at compile time, and only for f32. */
#ifndef NH_SIMD_H
#define NH_SIMD_H

#include "dtype.h"

#include <string.h>
#if defined(NH_ISA_AVX512) || defined(NH_ISA_AVX2)
#include <immintrin.h>
#elif defined(NH_ISA_NEON)
#include <arm_neon.h>
#elif defined(NH_ISA_SVE)
#include <arm_sve.h>
#endif

#if defined(NH_ISA_AVX512)
#define NH_VECTOR_BYTES 64
#elif defined(NH_ISA_AVX2)
#define NH_VECTOR_BYTES 32
#elif defined(NH_ISA_SVE)
#define NH_VECTOR_BYTES (__ARM_FEATURE_SVE_BITS / 8)
#else
#define NH_VECTOR_BYTES 16
#endif

/* The number of vector registers, by which products choose how many sums they keep. */
#if defined(NH_ISA_AVX512) || defined(NH_ISA_NEON) || defined(NH_ISA_SVE)
#define NH_VECTOR_REGISTERS 32
#else
#define NH_VECTOR_REGISTERS 16
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

/* Keeps v in a register. Otherwise the compiler folds the load into every instruction that uses v, which repeats it. */
#if defined(NH_ISA_AVX512)
#define KEEP_IN_REGISTER(v) __asm__ volatile("" : "+v"(v))
#elif defined(__x86_64__)
#define KEEP_IN_REGISTER(v) __asm__ volatile("" : "+x"(v))
#elif defined(__aarch64__)
#define KEEP_IN_REGISTER(v) __asm__ volatile("" : "+w"(v))
#else
#define KEEP_IN_REGISTER(v) __asm__ volatile("" : "+m"(v))
#endif

#if defined(NH_ISA_SVE)
typedef svfloat32_t sve_vec __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
typedef svint32_t sve_vint __attribute__((arm_sve_vector_bits(__ARM_FEATURE_SVE_BITS)));
#define SVE_ALL svptrue_b32()
#endif

INLINE vec v_load(const real *p) {
    return *(const vec_anywhere *)p;
}

#if defined(NH_ISA_AVX2) && NH_REAL == 32
/* Loads the lanes of a mask without reading the others, which become 0. */
INLINE vec v_load_masked(const real *p, vint mask) {
    return (vec)_mm256_maskload_ps(p, (__m256i)mask);
}
#endif

INLINE void v_store(real *p, vec v) {
    *(vec_anywhere *)p = v;
}

INLINE vec v_set(real x) {
    return x - (vec){0};
}

/* Returns a if a > b, else b: a NaN in b is kept, a NaN in a is dropped. */
INLINE vec v_max(vec a, vec b) {
#if defined(NH_ISA_AVX512) && NH_REAL == 32
    return (vec)_mm512_max_ps((__m512)a, (__m512)b);
#elif defined(NH_ISA_AVX512)
    return (vec)_mm512_max_pd((__m512d)a, (__m512d)b);
#elif defined(NH_ISA_AVX2) && NH_REAL == 32
    return (vec)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(NH_ISA_AVX2)
    return (vec)_mm256_max_pd((__m256d)a, (__m256d)b);
#elif defined(NH_ISA_SVE)
    return (vec)(sve_vec)svsel(svcmpgt(SVE_ALL, (sve_vec)a, (sve_vec)b), (sve_vec)a, (sve_vec)b);
#else
    vint greater = (vint)(a > b);
    return (vec)(((vint)a & greater) | ((vint)b & ~greater));
#endif
}

/* Returns a if a < b, else b; NaN as in v_max. */
INLINE vec v_min(vec a, vec b) {
#if defined(NH_ISA_AVX2) && NH_REAL == 32
    return (vec)_mm256_min_ps((__m256)a, (__m256)b);
#elif defined(NH_ISA_AVX2)
    return (vec)_mm256_min_pd((__m256d)a, (__m256d)b);
#else
    return -v_max(-a, -b);
#endif
}

/* Returns x, but at least `low` and at most `high`; NaN is kept. */
INLINE vec v_clamp(vec x, real low, real high) {
#if defined(NH_ISA_NEON) && NH_REAL == 32
    return (vec)vminq_f32(vmaxq_f32((float32x4_t)x, vdupq_n_f32(low)), vdupq_n_f32(high));
#elif defined(NH_ISA_NEON)
    return (vec)vminq_f64(vmaxq_f64((float64x2_t)x, vdupq_n_f64(low)), vdupq_n_f64(high));
#elif defined(NH_ISA_SVE)
    return (vec)(sve_vec)svmin_x(SVE_ALL, svmax_x(SVE_ALL, (sve_vec)x, low), high);
#else
    return v_min(v_set(high), v_max(v_set(low), x));
#endif
}

/* Whether any lane of a comparison's result is true. */
INLINE bool v_any(vint mask) {
#if defined(NH_ISA_AVX512)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(NH_ISA_AVX2)
    return _mm256_movemask_epi8((__m256i)mask) != 0;
#elif defined(NH_ISA_NEON)
    return vmaxvq_u32((uint32x4_t)mask) != 0;
#elif defined(NH_ISA_SVE)
    return svptest_any(SVE_ALL, svcmpne(SVE_ALL, (sve_vint)mask, 0));
#else
    real_bits any = 0;
    for (int i = 0; i < VL; i++)
        any |= mask[i];
    return any != 0;
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
#elif defined(NH_ISA_NEON)
    /* by bytes: 4i to 4i + 3, f64: 8i to 8i + 7 */
    const real_bits each = NH_REAL == 64 ? (real_bits)0x0808080808080808 : 0x04040404;
    const real_bits first = NH_REAL == 64 ? (real_bits)0x0706050403020100 : 0x03020100;
    return (vec)vqtbl1q_u8((uint8x16_t)v, (uint8x16_t)(index * each + first));
#elif defined(NH_ISA_SVE)
    return (vec)(sve_vec)svtbl((sve_vec)v, svreinterpret_u32((sve_vint)index));
#else
    vec result = {0};
    for (int i = 0; i < VL; i++)
        result[i] = v[index[i]];
    return result;
#endif
}

#if defined(NH_ISA_AVX512) && NH_REAL == 32
#define ALIGN_PAIR(low, high, n) (vec) _mm512_alignr_epi32((__m512i)(high), (__m512i)(low), n)
#elif defined(NH_ISA_AVX512)
#define ALIGN_PAIR(low, high, n) (vec) _mm512_alignr_epi64((__m512i)(high), (__m512i)(low), n)
#endif

/* Lane i of the result is lane i + n of the 2 VL lanes of low and high; n < 8 is a constant once inlined. */
INLINE vec v_shift_pair(vec low, vec high, int n) {
#if defined(NH_ISA_AVX512)
    switch (n) {
    case 1: return ALIGN_PAIR(low, high, 1);
    case 2: return ALIGN_PAIR(low, high, 2);
    case 3: return ALIGN_PAIR(low, high, 3);
    case 4: return ALIGN_PAIR(low, high, 4);
    case 5: return ALIGN_PAIR(low, high, 5);
    case 6: return ALIGN_PAIR(low, high, 6);
    case 7: return ALIGN_PAIR(low, high, 7);
    default: return low;
    }
#else
    real lanes[2 * NH_VECTOR_BYTES / sizeof(real)];
    v_store(lanes, low);
    v_store(lanes + VL, high);
    return v_load(lanes + n);
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

/* Loads VL consecutive elements of a storage type. */
INLINE vec v_load_as(int32_t dtype, const void *p) {
#if NH_REAL == 32 && defined(NH_ISA_AVX512)
    if (dtype == NHOOD_DTYPE_F16) return (vec)_mm512_cvtph_ps(_mm256_loadu_si256(p));
    if (dtype == NHOOD_DTYPE_BF16)
        return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16);
#elif NH_REAL == 32 && defined(NH_ISA_AVX2)
    if (dtype == NHOOD_DTYPE_F16) return (vec)_mm256_cvtph_ps(_mm_loadu_si128(p));
    if (dtype == NHOOD_DTYPE_BF16)
        return (vec)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16);
#elif NH_REAL == 32 && defined(NH_ISA_NEON)
    if (dtype == NHOOD_DTYPE_F16) return (vec)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
    if (dtype == NHOOD_DTYPE_BF16) return (vec)vshll_n_u16(vld1_u16(p), 16);
#elif NH_REAL == 32 && defined(NH_ISA_SVE)
    if (dtype != NHOOD_DTYPE_F32) {
        const svuint32_t bits = svld1uh_u32(SVE_ALL, p);
        if (dtype == NHOOD_DTYPE_F16)
            return (vec)(sve_vec)svcvt_f32_x(SVE_ALL, svreinterpret_f16(bits));
        return (vec)(sve_vec)svreinterpret_f32(svlsl_x(SVE_ALL, bits, 16));
    }
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

#if NH_REAL == 32
/* Rounds f32 to bf16 bits in the low half of each lane: to nearest even, NaN stays NaN. */
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
#elif NH_REAL == 32 && defined(NH_ISA_NEON)
    if (dtype == NHOOD_DTYPE_F16) {
        vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)v)));
        return;
    }
    if (dtype == NHOOD_DTYPE_BF16) {
        vst1_u16(p, vmovn_u32((uint32x4_t)bf16_bits(v)));
        return;
    }
#elif NH_REAL == 32 && defined(NH_ISA_SVE)
    if (dtype == NHOOD_DTYPE_F16) {
        svst1h(SVE_ALL, (uint16_t *)p, svreinterpret_u32(svcvt_f16_x(SVE_ALL, (sve_vec)v)));
        return;
    }
    if (dtype == NHOOD_DTYPE_BF16) {
        svst1h(SVE_ALL, (int16_t *)p, (sve_vint)bf16_bits(v));
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

/* The same for fewer than VL elements: nothing beyond them is read or written, and missing lanes are 0. */
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

#endif
