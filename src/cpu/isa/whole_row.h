/* Band products of whole rows: vectors whose lanes all hold a query with a whole window, away from borders or right at one
 * (enum nh_row_kind). For short windows all bands of a key row are one function, in which everything but the number of parts is
 * a constant. With separate bands, a third of the instructions of such products would select, begin and end a band.
 *
 * Only for AVX2 and f32, with three outputs of four vectors as in band.h, and the same order of additions. */
#ifndef NH_WHOLE_ROW_H
#define NH_WHOLE_ROW_H

#include "band.h"

typedef void row_fn(const struct band_product *product, int32_t vectors);

#if defined(NH_ISA_AVX2) && NH_REAL == 32
enum { ROW_OUTPUTS = 3, ROW_VECTORS = 4, ROW_MOST_WINDOW = 7 };

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
#pragma GCC unroll 3
    for (int g = 0; g < count; g++) {
        const int slot = row_slot(kind, window, scatter, first + g, source);
        if (slot < 0) continue;
        w[g] = v_set(weight[slot * VL + (scatter ? source : first + g)]);
        KEEP_IN_REGISTER(w[g]);
        outputs++;
    }
#pragma GCC unroll 4
    for (int v = 0; v < ROW_VECTORS; v++) {
        vec value = v_load(row + v * VL);
        if (outputs > 1) KEEP_IN_REGISTER(value);
#pragma GCC unroll 3
        for (int g = 0; g < count; g++)
            if (row_slot(kind, window, scatter, first + g, source) >= 0) sum[g][v] += w[g] * value;
    }
}

/* Sums up all parts for `count` outputs from `first` on, ROW_VECTORS vectors of a row from `channel` on. */
INLINE void row_outputs(const int kind, const int window, const bool scatter, const int first,
                        const int count, const struct band_product *product, int64_t channel) {
    const int sources = scatter ? VL : row_start(kind, window, VL - 1) + window;
    const int64_t source_pitch = product->source_pitch, out_pitch = product->out_pitch;
    vec sum[ROW_OUTPUTS][ROW_VECTORS] = {{{0}}};
    for (int32_t part = 0; part < product->parts; part++) {
        const real *source = product->source[part] + channel;
#pragma GCC unroll 16
        for (int s = 0; s < sources; s++, source += source_pitch)
            row_source(kind, window, scatter, first, count, s, sum, product->weight[part], source);
    }
    real *out = product->out + first * out_pitch + channel;
    const bool fresh = product->fresh;
#pragma GCC unroll 3
    for (int g = 0; g < count; g++) {
#pragma GCC unroll 4
        for (int v = 0; v < ROW_VECTORS; v++) {
            real *at = out + g * out_pitch + v * VL;
            if (!fresh) sum[g][v] += v_load(at);
            v_store(at, sum[g][v]);
        }
    }
}

INLINE void whole_row(const int kind, const int window, const bool scatter,
                      const struct band_product *product, int32_t vectors) {
    const int outputs = scatter ? row_start(kind, window, VL - 1) + window : VL;
#pragma GCC unroll 8
    for (int first = 0; first < outputs; first += ROW_OUTPUTS) {
        const int count = outputs - first < ROW_OUTPUTS ? outputs - first : ROW_OUTPUTS;
        for (int32_t v = 0; v < vectors; v += ROW_VECTORS)
            row_outputs(kind, window, scatter, first, count, product, v * VL);
    }
}

#define ROW_NAME(K, W, S) whole_row_##K##_##W##_##S
#define ROW(K, W, S)                                                                               \
    static void ROW_NAME(K, W, S)(const struct band_product *product, int32_t vectors) {           \
        whole_row(K, W, S, product, vectors);                                                      \
    }
#define ROW_KINDS(W) ROW(1, W, 0) ROW(1, W, 1) ROW(2, W, 0) ROW(2, W, 1) ROW(3, W, 0) ROW(3, W, 1)
#define ROW_ENTRY(W)                                                                               \
    {{ROW_NAME(1, W, 0), ROW_NAME(1, W, 1)},                                                       \
     {ROW_NAME(2, W, 0), ROW_NAME(2, W, 1)},                                                       \
     {ROW_NAME(3, W, 0), ROW_NAME(3, W, 1)}},

/* The functions, [window / 2 - 1][kind - 1][scatter], for odd windows. At borders, even windows are shifted in another way. */
/* clang-format off */
ROW_KINDS(3) ROW_KINDS(5) ROW_KINDS(7)
static row_fn *const row_table[ROW_MOST_WINDOW / 2][NH_ROW_KINDS - 1][2] = {
    ROW_ENTRY(3) ROW_ENTRY(5) ROW_ENTRY(7)};
/* clang-format on */

/* The function that computes all bands of a list, or NULL if there is none. `scatter`: outputs are keys. */
static row_fn *find_row(const struct nh_band_list *list, int32_t window, bool scatter,
                        int32_t vectors) {
    const bool some = list->row != NH_ROW_NONE && window >= 3 && window <= ROW_MOST_WINDOW &&
                      window % 2 == 1 && vectors % ROW_VECTORS == 0;
    return some ? row_table[window / 2 - 1][list->row - 1][scatter] : NULL;
}
#else
static row_fn *find_row(const struct nh_band_list *list, int32_t window, bool scatter,
                        int32_t vectors) {
    (void)list, (void)window, (void)scatter, (void)vectors;
    return NULL;
}
#endif

#endif
