/* Functions on vectors of 16 numbers that the matrix kernels need besides those of simd.h: loads by a mask, conversion to bf16,
 * 2^x, and sums of 16 vectors at once. */
#ifndef NH_MATRIX_SIMD_H
#define NH_MATRIX_SIMD_H

#include "pack.h"

typedef uint32_t words __attribute__((vector_size(64)));
typedef uint32_t words_anywhere __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint16_t halves __attribute__((vector_size(64)));
typedef uint16_t halves_anywhere __attribute__((vector_size(64), aligned(2), may_alias));

INLINE void store_words(uint32_t *p, words v) {
    *(words_anywhere *)p = v;
}

/* Loads up to 32 halves; missing ones are 0. */
INLINE halves load_halves(const void *p, int32_t count) {
    if (count >= 32) return *(const halves_anywhere *)p;
    return (halves)_mm512_maskz_loadu_epi16(count > 0 ? (1u << count) - 1 : 0, p);
}

/* Loads the lanes of the mask, and takes the others from v. */
INLINE vec load_lanes_of(vec v, uint32_t mask, const float *p) {
    return (vec)_mm512_mask_loadu_ps((__m512)v, (__mmask16)mask, p);
}

/* Rounds 16 numbers to bf16; NaN stays NaN, subnormal numbers may become 0. */
INLINE void store_bf16(uint16_t *p, vec v) {
    _mm256_storeu_si256((__m256i *)(void *)p, (__m256i)_mm512_cvtneps_pbh((__m512)v));
}

INLINE vec select_lanes(uint32_t mask, vec yes, vec no) {
    return (vec)_mm512_mask_mov_ps((__m512)no, (__mmask16)mask, (__m512)yes);
}

/* 2^y in the lanes of the mask and 0 in the others; 0 below the normal range, infinity above it, and NaN for NaN. The
 * polynomial of the fraction is a minimax fit with an error of at most 1.6e-7, including rounding, and is 1 at 0. */
INLINE vec exp2_of(uint32_t mask, vec y) {
    static const float c[] = {1.0f,           0x1.62e4bap-1f, 0x1.ebdb56p-3f,
                              0x1.c91ce6p-5f, 0x1.277856p-7f, 0x1.e974fap-10f};
    mask = _mm512_mask_cmp_ps_mask((__mmask16)mask, (__m512)y, _mm512_set1_ps(-126), _CMP_NLT_UQ);
    const vec fraction =
        (vec)_mm512_reduce_ps((__m512)y, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    vec sum = v_set(c[5]);
#pragma GCC unroll 5
    for (int i = 4; i >= 0; i--)
        sum = sum * fraction + c[i];
    return (vec)_mm512_maskz_scalef_ps((__mmask16)mask, (__m512)sum, (__m512)y);
}

#define OTHER_LANE_1(l) ((l) ^ 1) + ((l)&1 ? NH_LANES : 0)
#define OTHER_LANE_2(l) ((l) ^ 2) + ((l)&2 ? NH_LANES : 0)
#define OTHER_LANE_4(l) ((l) ^ 4) + ((l)&4 ? NH_LANES : 0)
#define OTHER_LANE_8(l) ((l) ^ 8) + ((l)&8 ? NH_LANES : 0)
#define OWN_LANE_1(l) (l) + ((l)&1 ? NH_LANES : 0)
#define OWN_LANE_2(l) (l) + ((l)&2 ? NH_LANES : 0)
#define OWN_LANE_4(l) (l) + ((l)&4 ? NH_LANES : 0)
#define OWN_LANE_8(l) (l) + ((l)&8 ? NH_LANES : 0)
#define FOLD_VECTORS(v, distance, OF_BOTH)                                                         \
    UNROLL                                                                                         \
    for (int i = 0; i < NH_LANES; i += 2 * (distance)) {                                           \
        vec a = v[i], b = v[i + (distance)];                                                       \
        v[i] = OF_BOTH(__builtin_shufflevector(a, b, EACH_LANE(OWN_LANE_##distance)),              \
                       __builtin_shufflevector(a, b, EACH_LANE(OTHER_LANE_##distance)));           \
    }
#define SUM_OF_BOTH(a, b) ((a) + (b))

/* Lane i: the sum of the lanes of v[i]. */
INLINE vec lane_sums(vec v[NH_LANES]) {
    FOLD_VECTORS(v, 1, SUM_OF_BOTH)
    FOLD_VECTORS(v, 2, SUM_OF_BOTH)
    FOLD_VECTORS(v, 4, SUM_OF_BOTH)
    FOLD_VECTORS(v, 8, SUM_OF_BOTH)
    return v[0];
}

/* Lane i: the largest lane of v[i]. */
INLINE vec lane_maxima(vec v[NH_LANES]) {
    FOLD_VECTORS(v, 1, v_max)
    FOLD_VECTORS(v, 2, v_max)
    FOLD_VECTORS(v, 4, v_max)
    FOLD_VECTORS(v, 8, v_max)
    return v[0];
}

#endif
