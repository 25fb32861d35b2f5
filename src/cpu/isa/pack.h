/* Moves rows of tokens between the caller's tensors and the scratch of a tile, converting storage types. */
#ifndef NH_PACK_H
#define NH_PACK_H

#include "simd.h"

/* Rows of one head: row of place x is at base + token[x] * step elements. */
struct rows {
    const char *base;
    int64_t step;
    const int32_t *token;
    int32_t dtype, dim;
};

INLINE const char *row_at(const struct rows *rows, int32_t place) {
    int64_t element = rows->token[place] * rows->step;
    return rows->base + element * (int64_t)nh_dtype_bytes(rows->dtype);
}

INLINE vec load_row(const struct rows *rows, const char *row, int32_t c) {
    const char *at = row + (size_t)c * nh_dtype_bytes(rows->dtype);
    if (rows->dim - c >= VL) return v_load_as(rows->dtype, at);
    return v_load_part(rows->dtype, at, rows->dim - c);
}

/* Exchanges the lanes with bit h between vectors i and i + h, for every bit: a transposition. */
#define KEEP_LOW(l, h) (((l) & (h)) ? NH_LANES + (l) - (h) : (l))
#define KEEP_HIGH(l, h) (((l) & (h)) ? NH_LANES + (l) : (l) + (h))
#if NH_VECTOR_BYTES == 64 && NH_REAL == 32
#define NH_LANES 16
#define EACH_LANE(F, h)                                                                            \
    F(0, h), F(1, h), F(2, h), F(3, h), F(4, h), F(5, h), F(6, h), F(7, h), F(8, h), F(9, h),      \
        F(10, h), F(11, h), F(12, h), F(13, h), F(14, h), F(15, h)
#elif NH_VECTOR_BYTES / NH_REAL == 1
#define NH_LANES 8
#define EACH_LANE(F, h) F(0, h), F(1, h), F(2, h), F(3, h), F(4, h), F(5, h), F(6, h), F(7, h)
#elif NH_VECTOR_BYTES * 8 / NH_REAL == 4
#define NH_LANES 4
#define EACH_LANE(F, h) F(0, h), F(1, h), F(2, h), F(3, h)
#else
#define NH_LANES 2
#define EACH_LANE(F, h) F(0, h), F(1, h)
#endif
#define UNROLL _Pragma("GCC unroll 16")
#define EXCHANGE(v, h)                                                                             \
    UNROLL                                                                                         \
    for (int i = 0; i < NH_LANES; i++) {                                                           \
        if (i & (h)) continue;                                                                     \
        vec low = v[i], high = v[i + (h)];                                                         \
        v[i] = __builtin_shufflevector(low, high, EACH_LANE(KEEP_LOW, h));                         \
        v[i + (h)] = __builtin_shufflevector(low, high, EACH_LANE(KEEP_HIGH, h));                  \
    }

INLINE void transpose(vec v[NH_LANES]) {
#if NH_LANES >= 16
    EXCHANGE(v, 8)
#endif
#if NH_LANES >= 8
    EXCHANGE(v, 4)
#endif
#if NH_LANES >= 4
    EXCHANGE(v, 2)
#endif
    EXCHANGE(v, 1)
}

/* out[c * pitch + x] = factor * row(first + x)[c] for x in [0, count); zeros up to x = pitch. */
INLINE void pack_columns(const struct rows *rows, int32_t first, int32_t count, real factor,
                         real *out, int64_t pitch) {
    for (int32_t x = 0; x < pitch; x += VL) {
        for (int32_t c = 0; c < rows->dim; c += VL) {
            vec v[NH_LANES];
            UNROLL
            for (int i = 0; i < NH_LANES; i++) {
                v[i] = (vec){0};
                if (x + i < count) v[i] = load_row(rows, row_at(rows, first + x + i), c) * factor;
            }
            if (x < count) transpose(v);
            UNROLL
            for (int i = 0; i < NH_LANES; i++)
                if (c + i < rows->dim) v_store(out + (c + i) * pitch + x, v[i]);
        }
    }
}

/* out[x * width + c] = factor * row(first + x)[c], zero beyond the row's end; width is whole vectors. */
INLINE void pack_rows(const struct rows *rows, int32_t first, int32_t count, real factor, real *out,
                      int64_t width) {
    for (int32_t x = 0; x < count; x++) {
        const char *row = row_at(rows, first + x);
        /* Tokens of one head lie far apart, and the hardware does not see them coming. In pack_columns, which
         * has more loads under way by itself, the same brought nothing. */
        if (x + 16 < count)
            for (int32_t c = 0; c < rows->dim; c += 64 / (int32_t)nh_dtype_bytes(rows->dtype))
                __builtin_prefetch(row_at(rows, first + x + 16) +
                                   (size_t)c * nh_dtype_bytes(rows->dtype));
        for (int32_t c = 0; c < width; c += VL)
            v_store(out + x * width + c, load_row(rows, row, c) * factor);
    }
}

/* row(place)[c] = factor * in[c] */
INLINE void unpack_row(const struct rows *rows, int32_t place, real factor, const real *in) {
    char *row = (char *)(uintptr_t)row_at(rows, place);
    for (int32_t c = 0; c < rows->dim; c += VL) {
        vec v = v_load(in + c) * factor;
        char *at = row + (size_t)c * nh_dtype_bytes(rows->dtype);
        if (rows->dim - c >= VL) {
            v_store_as(rows->dtype, at, v);
        } else {
            v_store_part(rows->dtype, at, v, rows->dim - c);
        }
    }
}

/* The dtype is constant in each call, so that loads and stores compile without a branch. */
#if NH_REAL == 64
#define WITH_DTYPE(rows, call)                                                                     \
    do {                                                                                           \
        (rows).dtype = NHOOD_DTYPE_F64;                                                            \
        call;                                                                                      \
    } while (0)
#else
#define WITH_DTYPE(rows, call)                                                                     \
    do {                                                                                           \
        if ((rows).dtype == NHOOD_DTYPE_F32) {                                                     \
            (rows).dtype = NHOOD_DTYPE_F32;                                                        \
            call;                                                                                  \
        } else if ((rows).dtype == NHOOD_DTYPE_F16) {                                              \
            (rows).dtype = NHOOD_DTYPE_F16;                                                        \
            call;                                                                                  \
        } else {                                                                                   \
            (rows).dtype = NHOOD_DTYPE_BF16;                                                       \
            call;                                                                                  \
        }                                                                                          \
    } while (0)
#endif

/* Out of line once per dtype: the callers are many. */
static void columns_from(struct rows rows, int32_t first, int32_t count, real factor, real *out,
                         int64_t pitch) {
    WITH_DTYPE(rows, pack_columns(&rows, first, count, factor, out, pitch));
}

static void rows_from(struct rows rows, int32_t first, int32_t count, real factor, real *out,
                      int64_t width) {
    WITH_DTYPE(rows, pack_rows(&rows, first, count, factor, out, width));
}

static void row_to(struct rows rows, int32_t place, real factor, const real *in) {
    WITH_DTYPE(rows, unpack_row(&rows, place, factor, in));
}

#endif
