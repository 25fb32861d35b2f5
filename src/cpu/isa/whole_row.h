/* Band products of whole rows: vectors whose lanes all hold a query with a whole window, away from borders or right at one
 * (enum nh_row_kind). For short windows all bands of a key row are one function, in which everything but the number of parts is
 * a constant. With separate bands, a third of the instructions of such products would select, begin and end a band.
 *
 * Only for f32: with AVX2 three outputs of four vectors as in band.h, and the same order of additions, with AVX-512 all outputs
 * of half a row, of two vectors. */
#ifndef NH_WHOLE_ROW_H
#define NH_WHOLE_ROW_H

#include "band.h"

typedef void row_fn(const struct band_product *product, int32_t vectors);

#if (defined(NH_ISA_AVX2) || defined(NH_ISA_AVX512)) && NH_REAL == 32
#if defined(NH_ISA_AVX512)
enum { ROW_OUTPUTS = 11, ROW_VECTORS = 2, ROW_LEAST_WINDOW = 5, ROW_MOST_WINDOW = 7 };
#else
enum { ROW_OUTPUTS = 3, ROW_VECTORS = 4, ROW_LEAST_WINDOW = 3, ROW_MOST_WINDOW = 7 };
#endif

/* Keeps an address in a register. Otherwise the compiler works out all sums of a shift and a constant, and spills them. */
#if defined(NH_ISA_AVX512)
#define KEEP_ADDRESS(p) __asm__("" : "+r"(p))
#else
#define KEEP_ADDRESS(p) (void)(p)
#endif

/* The first key of a lane, counted from that of lane 0. */
INLINE int row_start(const int kind, const int window, const int lane) {
    const int first = kind == NH_ROW_FIRST ? lane - window / 2 : lane;
    const int last = VL - 1 - (kind == NH_ROW_LAST ? window / 2 : 0);
    return first < 0 ? 0 : first < last ? first : last;
}

/* The slot of an output and a source, one of which is a lane and the other a key; -1 if the lane does not attend the key. */
INLINE int row_slot(const int kind, const int window, const bool scatter, const int output,
                    const int source) {
    const int slot = scatter ? output - row_start(kind, window, source)
                             : source - row_start(kind, window, output);
    return slot < window ? slot : -1;
}

/* Adds a source row to those of `count` outputs from `first` on with which it has a slot. */
INLINE void row_source(const int kind, const int window, const bool scatter, const int first,
                       const int count, const int source, vec sum[ROW_OUTPUTS][ROW_VECTORS],
                       const real *weight, const real *row) {
    vec w[ROW_OUTPUTS];
    int outputs = 0;
#pragma GCC unroll 11
    for (int g = 0; g < count; g++) {
        const int slot = row_slot(kind, window, scatter, first + g, source);
        if (slot < 0) continue;
        w[g] = v_set(weight[slot * VL + (scatter ? source : first + g)]);
        KEEP_IN_REGISTER(w[g]);
        outputs++;
    }
#ifndef __OPTIMIZE__
    /* Rows that only the other half's outputs need may be behind the tensor, and a compiler that optimises drops their loads. */
    if (!outputs) return;
#endif
#pragma GCC unroll 4
    for (int v = 0; v < ROW_VECTORS; v++) {
        vec value = v_load(row + v * VL);
        if (outputs > 1) KEEP_IN_REGISTER(value);
#pragma GCC unroll 11
        for (int g = 0; g < count; g++)
            if (row_slot(kind, window, scatter, first + g, source) >= 0) sum[g][v] += w[g] * value;
    }
}

/* Where the outputs, sources and weights of a function's first output and source are, counted from the row's. */
struct row_shift {
    int32_t out, source, weight;
};

/* Sums up all parts for `count` outputs from `first` on, ROW_VECTORS vectors of a row from `channel` on. */
INLINE void row_outputs(const int kind, const int window, const bool scatter, const int first,
                        const int count, const struct band_product *product, struct row_shift shift,
                        int64_t channel) {
    const int sources = scatter ? VL : row_start(kind, window, VL - 1) + window;
    const int64_t source_pitch = product->source_pitch, out_pitch = product->out_pitch;
    vec sum[ROW_OUTPUTS][ROW_VECTORS] = {{{0}}};
    for (int32_t part = 0; part < product->parts; part++) {
        const real *source = product->source[part] + shift.source * source_pitch + channel;
        const real *weight = product->weight[part] + shift.weight;
        KEEP_ADDRESS(weight);
#pragma GCC unroll 22
        for (int s = 0; s < sources; s++, source += source_pitch)
            row_source(kind, window, scatter, first, count, s, sum, weight, source);
    }
    real *out = product->out + (first + shift.out) * out_pitch + channel;
    KEEP_ADDRESS(out);
    const bool fresh = product->fresh;
#pragma GCC unroll 11
    for (int g = 0; g < count; g++) {
#pragma GCC unroll 4
        for (int v = 0; v < ROW_VECTORS; v++) {
            real *at = out + g * out_pitch + v * VL;
            if (!fresh) sum[g][v] += v_load(at);
            v_store(at, sum[g][v]);
        }
    }
}

#if defined(NH_ISA_AVX512)
/* A row is computed in two halves, each output in one chain. A half of a row at a border that is away from the border is one of
 * a row inside the axis, with other keys or outputs, so that three functions gather and four scatter. Windows of 3 keys have
 * none, which keeps the library small. */
#define HALF_NAME(W, S, N) row_half_##W##_##S##_##N
#define HALF(K, W, S, N, FIRST, COUNT)                                                             \
    static __attribute__((noinline)) void HALF_NAME(W, S, N)(                                      \
        const struct band_product *product, int32_t vectors, struct row_shift shift) {             \
        for (int32_t v = 0; v < vectors; v += ROW_VECTORS)                                         \
            row_outputs(K, W, S, FIRST, COUNT, product, shift, VL *v);                             \
    }
enum { HALF_LANES = VL / 2 };
#define HALF_KEYS(W) ((VL - 1 + (W)) / 2)
#define HALVES(W)                                                                                  \
    HALF(NH_ROW_INNER, W, 0, inner, 0, HALF_LANES)                                                 \
    HALF(NH_ROW_FIRST, W, 0, first, 0, HALF_LANES)                                                 \
    HALF(NH_ROW_LAST, W, 0, last, HALF_LANES, HALF_LANES)                                          \
    HALF(NH_ROW_INNER, W, 1, low, 0, HALF_KEYS(W))                                                 \
    HALF(NH_ROW_INNER, W, 1, high, HALF_KEYS(W), HALF_KEYS(W))                                     \
    HALF(NH_ROW_FIRST, W, 1, first, 0, HALF_KEYS(W) - (W) / 2)                                     \
    HALF(NH_ROW_LAST, W, 1, last, HALF_KEYS(W), HALF_KEYS(W) - (W) / 2)

#define ROW_NAME(K, W, S) whole_row_##K##_##W##_##S
#define ROW(K, W, S, LOW, HIGH, ...)                                                               \
    static void ROW_NAME(K, W, S)(const struct band_product *product, int32_t vectors) {           \
        HALF_NAME(W, S, LOW)(product, vectors, (struct row_shift){0});                             \
        HALF_NAME(W, S, HIGH)(product, vectors, (struct row_shift){__VA_ARGS__});                  \
    }
#define ROW_KINDS(W)                                                                               \
    HALVES(W)                                                                                      \
    ROW(1, W, 0, inner, inner, HALF_LANES, HALF_LANES, HALF_LANES)                                 \
    ROW(2, W, 0, first, inner, HALF_LANES, HALF_LANES - (W) / 2, HALF_LANES)                       \
    ROW(3, W, 0, inner, last, 0, 0, 0)                                                             \
    ROW(1, W, 1, low, high, 0, 0, 0)                                                               \
    ROW(2, W, 1, first, high, -((W) / 2), 0, 0)                                                    \
    ROW(3, W, 1, low, last, 0, 0, 0)
#else
INLINE void whole_row(const int kind, const int window, const bool scatter,
                      const struct band_product *product, int32_t vectors) {
    const int outputs = scatter ? row_start(kind, window, VL - 1) + window : VL;
#pragma GCC unroll 8
    for (int first = 0; first < outputs; first += ROW_OUTPUTS) {
        const int count = outputs - first < ROW_OUTPUTS ? outputs - first : ROW_OUTPUTS;
        for (int32_t v = 0; v < vectors; v += ROW_VECTORS)
            row_outputs(kind, window, scatter, first, count, product, (struct row_shift){0},
                        v * VL);
    }
}

#define ROW_NAME(K, W, S) whole_row_##K##_##W##_##S
#define ROW(K, W, S)                                                                               \
    static void ROW_NAME(K, W, S)(const struct band_product *product, int32_t vectors) {           \
        whole_row(K, W, S, product, vectors);                                                      \
    }
#define ROW_KINDS(W) ROW(1, W, 0) ROW(1, W, 1) ROW(2, W, 0) ROW(2, W, 1) ROW(3, W, 0) ROW(3, W, 1)
#endif
#define ROW_ENTRY(W)                                                                               \
    {{ROW_NAME(1, W, 0), ROW_NAME(1, W, 1)},                                                       \
     {ROW_NAME(2, W, 0), ROW_NAME(2, W, 1)},                                                       \
     {ROW_NAME(3, W, 0), ROW_NAME(3, W, 1)}},

/* The functions, [(window - ROW_LEAST_WINDOW) / 2][kind - 1][scatter], for odd windows. At borders, even windows are shifted in another way. */
/* clang-format off */
#if defined(NH_ISA_AVX512)
ROW_KINDS(5) ROW_KINDS(7)
static row_fn *const row_table[][NH_ROW_KINDS - 1][2] = {ROW_ENTRY(5) ROW_ENTRY(7)};
#else
ROW_KINDS(3) ROW_KINDS(5) ROW_KINDS(7)
static row_fn *const row_table[][NH_ROW_KINDS - 1][2] = {ROW_ENTRY(3) ROW_ENTRY(5) ROW_ENTRY(7)};
#endif
/* clang-format on */

/* The function that computes all bands of a list, or NULL if there is none. `scatter`: outputs are keys. */
static row_fn *find_row(const struct nh_band_list *list, int32_t window, bool scatter,
                        int32_t vectors) {
    const bool some = list->row != NH_ROW_NONE && window >= ROW_LEAST_WINDOW &&
                      window <= ROW_MOST_WINDOW && window % 2 == 1 && vectors % ROW_VECTORS == 0;
    return some ? row_table[(window - ROW_LEAST_WINDOW) / 2][list->row - 1][scatter] : NULL;
}
#else
static row_fn *find_row(const struct nh_band_list *list, int32_t window, bool scatter,
                        int32_t vectors) {
    (void)list, (void)window, (void)scatter, (void)vectors;
    return NULL;
}
#endif

#endif
