/* Moves rows of tokens between the caller's tensors and the scratch of a tile, and converts storage types. */
#ifndef NH_PACK_H
#define NH_PACK_H

#include "simd.h"

/* The rows of one head: the row of place x is at base + token[x] * step elements. */
struct rows {
    const char *base;
    int64_t step;
    const int32_t *token;
    int32_t dtype, dim;
    int64_t
        ahead; /* bytes from a row to the one that is prefetched into L2 while it is read or written; 0: none */
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

/* Transposition. NH_QUAD lanes are 128 bits. Lanes are interleaved within these quads, then the quads are rearranged, both by
 * shuffles that every instruction set has. */
#define NH_QUAD (128 / NH_REAL)
#define NH_LANES (NH_VECTOR_BYTES * 8 / NH_REAL)
#define ZIP_LOW(l) (((l) % 2 ? NH_LANES : 0) + (l) / NH_QUAD * NH_QUAD + (l) % NH_QUAD / 2)
#define ZIP_HIGH(l) (ZIP_LOW(l) + NH_QUAD / 2)
#define DEAL_EVEN(l)                                                                               \
    (((l) < NH_LANES / 2 ? 0 : NH_LANES) + (l) / NH_QUAD * 2 * NH_QUAD % NH_LANES + (l) % NH_QUAD)
#define DEAL_ODD(l) (DEAL_EVEN(l) + NH_QUAD)
#if NH_LANES == 16
#define EACH_LANE(F)                                                                               \
    F(0), F(1), F(2), F(3), F(4), F(5), F(6), F(7), F(8), F(9), F(10), F(11), F(12), F(13), F(14), \
        F(15)
#elif NH_LANES == 8
#define EACH_LANE(F) F(0), F(1), F(2), F(3), F(4), F(5), F(6), F(7)
#elif NH_LANES == 4
#define EACH_LANE(F) F(0), F(1), F(2), F(3)
#else
#define EACH_LANE(F) F(0), F(1)
#endif
#define UNROLL _Pragma("GCC unroll 16")
#define SHUFFLE_PAIRS(v, distance, FIRST, SECOND)                                                  \
    UNROLL                                                                                         \
    for (int i = 0; i < NH_LANES; i++) {                                                           \
        if (i & (distance)) continue;                                                              \
        vec a = v[i], b = v[i + (distance)];                                                       \
        v[i] = __builtin_shufflevector(a, b, EACH_LANE(FIRST));                                    \
        v[i + (distance)] = __builtin_shufflevector(a, b, EACH_LANE(SECOND));                      \
    }

INLINE void transpose(vec v[NH_LANES]) {
#if NH_QUAD == 4
    SHUFFLE_PAIRS(v, 2, ZIP_LOW, ZIP_HIGH)
#endif
    SHUFFLE_PAIRS(v, 1, ZIP_LOW, ZIP_HIGH)
#if NH_LANES >= 2 * NH_QUAD
    SHUFFLE_PAIRS(v, NH_QUAD, DEAL_EVEN, DEAL_ODD)
#endif
#if NH_LANES >= 4 * NH_QUAD
    SHUFFLE_PAIRS(v, 2 * NH_QUAD, DEAL_EVEN, DEAL_ODD)
#endif
}

/* Prefetches into L2 what corresponds to `at` in the row ahead, which may be beyond the tensor. */
INLINE void ask_ahead(const struct rows *rows, const char *at) {
    if (rows->ahead)
        __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)rows->ahead), 0, 2);
}

/* Packs VL channels from c on of `used` rows. These are VL rows, or half as many, which are then repeated (the compiler does
 * not compute them twice). */
INLINE void pack_square(const struct rows *rows, const char *const *row, const int used, int32_t c,
                        vec factor, real *out, int64_t pitch) {
    vec v[NH_LANES];
    UNROLL
    for (int i = 0; i < NH_LANES; i++) {
        if (i >= used) {
            v[i] = v[i - used];
            continue;
        }
        const char *at = row[i] + (size_t)c * nh_dtype_bytes(rows->dtype);
        ask_ahead(rows, at);
        v[i] = factor * v_load_as(rows->dtype, at);
    }
    transpose(v);
    UNROLL
    for (int i = 0; i < NH_LANES; i++)
        v_store(out + (c + i) * pitch, v[i]);
}

/* Packs all channels of `used` rows except the last few that do not fill a vector. */
INLINE void pack_squares(const struct rows *rows, const char *const *row, const int used,
                         vec factor, real *out, int64_t pitch) {
    for (int32_t c = 0; c + VL <= rows->dim; c += VL)
        pack_square(rows, row, used, c, factor, out, pitch);
}

/* Packs the last few channels of VL rows. */
INLINE void pack_last(const struct rows *rows, const char *const *row, vec factor, real *out,
                      int64_t pitch) {
    const int32_t c = rows->dim / VL * VL;
    vec v[NH_LANES];
    UNROLL
    for (int i = 0; i < NH_LANES; i++) {
        const char *at = row[i] + (size_t)c * nh_dtype_bytes(rows->dtype);
        ask_ahead(rows, at);
        v[i] = factor * v_load_part(rows->dtype, at, rows->dim - c);
    }
    transpose(v);
    UNROLL
    for (int i = 0; i < NH_LANES; i++)
        if (c + i < rows->dim) v_store(out + (c + i) * pitch, v[i]);
}

/* Packs the rows from place `first` on. The last of `count` is repeated. */
INLINE void pack_strip(const struct rows *rows, int32_t first, int32_t count, const int used,
                       vec factor, real *out, int64_t pitch) {
    const char *row[NH_LANES];
    UNROLL
    for (int i = 0; i < used; i++)
        row[i] = row_at(rows, first + (i < count ? i : count - 1));
    pack_squares(rows, row, used, factor, out, pitch);
}

/* out[c * pitch + x] = factor * row(first + x)[c] for x in [0, count). Up to whole vectors of x, the last rows are repeated. */
INLINE void pack_columns(const struct rows *rows, int32_t first, int32_t count, real factor,
                         real *out, int64_t pitch) {
    int32_t x = 0;
    for (; count - x > VL / 2; x += VL)
        pack_strip(rows, first + x, count - x, VL, v_set(factor), out + x, pitch);
    if (x < count) pack_strip(rows, first + x, count - x, VL / 2, v_set(factor), out + x, pitch);
}

/* out[x * width + c] = factor * row(first + x)[c], and zero beyond the row's end. `width` is a multiple of VL. */
INLINE void pack_rows(const struct rows *rows, int32_t first, int32_t count, real factor, real *out,
                      int64_t width) {
    for (int32_t x = 0; x < count; x++, out += width) {
        const char *row = row_at(rows, first + x);
        int32_t c = 0;
        for (; c + VL <= rows->dim; c += VL) {
            const char *at = row + (size_t)c * nh_dtype_bytes(rows->dtype);
            ask_ahead(rows, at);
            v_store(out + c, v_load_as(rows->dtype, at) * factor);
        }
        if (c < width) {
            ask_ahead(rows, row + (size_t)c * nh_dtype_bytes(rows->dtype));
            v_store(out + c, load_row(rows, row, c) * factor);
        }
    }
}

/* Prefetches what pack_rows would prefetch, but packs nothing. */
INLINE void ask_rows(const struct rows *rows, int32_t first, int32_t count) {
    enum { LINE = 64 };
    const int64_t bytes = rows->dim * (int64_t)nh_dtype_bytes(rows->dtype);
    for (int32_t x = 0; x < count; x++)
        for (int64_t at = 0; at < bytes; at += LINE)
            ask_ahead(rows, row_at(rows, first + x) + at);
}

/* Lane x becomes row(first + x) . in[x * width ..], where rows of `in` are zero beyond their ends; lanes >= count become 0.
 * *size is the same of absolute values. */
INLINE vec dot_rows(const struct rows *rows, int32_t first, int32_t count, const real *in,
                    int64_t width, vec *size) {
    vec product[NH_LANES], absolute[NH_LANES], sum = {0}, sizes = {0};
    for (int32_t x = count; x < VL; x++)
        product[x] = absolute[x] = (vec){0};
    for (int32_t x = 0; x < count; x++) {
        const char *row = row_at(rows, first + x);
        vec channels = {0}, channel_sizes = {0};
        for (int32_t c = 0; c < rows->dim; c += VL) {
            ask_ahead(rows, row + (size_t)c * nh_dtype_bytes(rows->dtype));
            const vec term = load_row(rows, row, c) * v_load(in + x * width + c);
            channels += term;
            channel_sizes += v_max(term, -term);
        }
        product[x] = channels;
        absolute[x] = channel_sizes;
    }
    transpose(product);
    transpose(absolute);
    for (int i = 0; i < NH_LANES; i++) {
        sum += product[i];
        sizes += absolute[i];
    }
    *size = sizes;
    return sum;
}

/* row(first + x)[c] = factor[x] * in[x * width + c]. If `factor` is NULL, all factors are 1. */
INLINE void unpack_rows(const struct rows *rows, int32_t first, int32_t count, const real *factor,
                        const real *in, int64_t width) {
    for (int32_t x = 0; x < count; x++, in += width) {
        char *at = (char *)(uintptr_t)row_at(rows, first + x);
        const vec scale = v_set(factor ? factor[x] : 1);
        int32_t c = 0;
        for (; c + VL <= rows->dim; c += VL, at += VL * nh_dtype_bytes(rows->dtype)) {
            ask_ahead(rows, at);
            v_store_as(rows->dtype, at, v_load(in + c) * scale);
        }
        if (c < rows->dim) {
            ask_ahead(rows, at);
            v_store_part(rows->dtype, at, v_load(in + c) * scale, rows->dim - c);
        }
    }
}

/* Makes `call` with a copy of the rows, called `typed`, whose dtype is a constant, so that loads and stores have no branches. */
#if NH_REAL == 64
#define WITH_DTYPE(rows, call)                                                                     \
    do {                                                                                           \
        struct rows typed = *(rows);                                                               \
        typed.dtype = NHOOD_DTYPE_F64;                                                             \
        call;                                                                                      \
    } while (0)
#else
#define WITH_DTYPE(rows, call)                                                                     \
    do {                                                                                           \
        struct rows typed = *(rows);                                                               \
        if (typed.dtype == NHOOD_DTYPE_F32) {                                                      \
            typed.dtype = NHOOD_DTYPE_F32;                                                         \
            call;                                                                                  \
        } else if (typed.dtype == NHOOD_DTYPE_F16) {                                               \
            typed.dtype = NHOOD_DTYPE_F16;                                                         \
            call;                                                                                  \
        } else {                                                                                   \
            typed.dtype = NHOOD_DTYPE_BF16;                                                        \
            call;                                                                                  \
        }                                                                                          \
    } while (0)
#endif

/* It is not inlined: few head dims have such channels, and a copy beside each use of pack_squares made the library 33 KB
 * larger. */
static __attribute__((noinline)) void last_from(const struct rows *rows, const char *const *row,
                                                real factor, real *out, int64_t pitch) {
    WITH_DTYPE(rows, pack_last(&typed, row, v_set(factor), out, pitch));
}

/* It is compiled once per dtype, as there are many callers. Rows are passed by address: a copy on the stack would be written
 * field by field and read back as vectors, which stalls. */
static void strips_from(const struct rows *rows, int32_t first, int32_t count, real factor,
                        real *out, int64_t pitch) {
    WITH_DTYPE(rows, pack_columns(&typed, first, count, factor, out, pitch));
    for (int32_t x = 0; rows->dim % VL != 0 && x < count; x += VL) {
        const char *row[NH_LANES];
        for (int32_t i = 0; i < VL; i++)
            row[i] = row_at(rows, first + (x + i < count ? x + i : count - 1));
        last_from(rows, row, factor, out + x, pitch);
    }
}

/* As strips_from. If a channel's places are no whole vectors (between one and two), vectors of the second strip end in the next
 * channel, whose places there the first strip then writes. */
static void columns_from(const struct rows *rows, int32_t first, int32_t count, real factor,
                         real *out, int64_t pitch) {
    const int32_t head = pitch % VL != 0 && count > VL ? VL : 0;
    strips_from(rows, first + head, count - head, factor, out + head, pitch);
    if (head > 0) strips_from(rows, first, head, factor, out, pitch);
}

/* The same for one vector of rows at any addresses. */
static void columns_from_each(const struct rows *rows, const char *const row[NH_LANES], real factor,
                              real *out, int64_t pitch) {
    WITH_DTYPE(rows, pack_squares(&typed, row, VL, v_set(factor), out, pitch));
    if (rows->dim % VL != 0) last_from(rows, row, factor, out, pitch);
}

static void rows_from(const struct rows *rows, int32_t first, int32_t count, real factor, real *out,
                      int64_t width) {
    WITH_DTYPE(rows, pack_rows(&typed, first, count, factor, out, width));
}

static vec dots_with(const struct rows *rows, int32_t first, int32_t count, const real *in,
                     int64_t width, vec *size) {
    vec sum;
    WITH_DTYPE(rows, sum = dot_rows(&typed, first, count, in, width, size));
    return sum;
}

static void rows_to(const struct rows *rows, int32_t first, int32_t count, const real *factor,
                    const real *in, int64_t width) {
    WITH_DTYPE(rows, unpack_rows(&typed, first, count, factor, in, width));
}

#endif
