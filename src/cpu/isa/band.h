/* Band products: consecutive output rows accumulate weighted source rows, each from its own contiguous range of them. P V,
 * dQ = dS K, dK = dS^T Q and dV = P^T dO are band products. nh_band (geometry.h) tells how the ranges of neighboring outputs
 * are shifted, so that no multiply-add is spent outside the band. */
#ifndef NH_BAND_H
#define NH_BAND_H

#include "geometry.h"
#include "simd.h"

/* Most accumulators, which are outputs times vectors of a row. With AVX2, 12 of them, 3 weights and a source vector take all
 * 16 registers; without fused multiply-add, products need registers, too. The most outputs for rows of 2 and 4 vectors follow.
 * f64, which is for checks, has as many as AVX2 even with 32 registers: 8 keep two multiply-add units busy, and the library is
 * 37 KB smaller. */
#if NH_VECTOR_REGISTERS == 32 && NH_REAL == 32
#define BAND_BUDGET 24
#define BAND_MOST_2 BAND_8
#define BAND_MOST_4 BAND_6
#elif defined(NH_ISA_AVX2) || NH_VECTOR_REGISTERS == 32
#define BAND_BUDGET 12
#define BAND_MOST_2 BAND_6
#define BAND_MOST_4 BAND_3
#else
#define BAND_BUDGET 8
#define BAND_MOST_2 BAND_4
#define BAND_MOST_4 BAND_2
#endif

/* Only very small head dims have rows of one vector. f64 and machines without AVX2 compute them with fewer outputs, as the
 * other kernels would make the library 70 KB larger. */
#if NH_REAL == 64 || !(defined(NH_ISA_AVX512) || defined(NH_ISA_AVX2) || NH_VECTOR_REGISTERS == 32)
enum { SINGLE_OUTPUTS = 4 };
#define BAND_MOST_1 BAND_4
#else
enum { SINGLE_OUTPUTS = 8 };
#define BAND_MOST_1 BAND_8
#endif

/* The arguments that all steps of a band list share. Each part has its own weights and source rows: a key row of the window,
 * or a query vector that attends the key row. Sums run over all parts. */
struct band_product {
    const real *const *weight;
    const real *const *source;
    int32_t parts;
    bool fresh;           /* out holds nothing yet */
    int64_t source_pitch; /* reals from one source row to the next */
    real *out;            /* a step adds its sums to it last: chains stay short */
    int64_t out_pitch;
};

/* Adds a source row to outputs [first, last]. Of the weights and the vectors of the row, the fewer are kept in registers, the
 * others are loaded one by one. */
INLINE void band_row(const int G, const int V, const int first, const int last, vec sum[8][4],
                     const real *weight, int64_t out_step, const real *source) {
    vec w[8], value[4];
    const bool hold_weights = G < V;
#pragma GCC unroll 8
    for (int g = first; hold_weights && g <= last; g++) {
        w[g] = v_set(weight[g * out_step]);
        KEEP_IN_REGISTER(w[g]);
    }
#pragma GCC unroll 4
    for (int v = 0; v < V; v++) {
        value[v] = v_load(source + v * VL);
        if (first < last) KEEP_IN_REGISTER(value[v]);
#pragma GCC unroll 8
        for (int g = first; hold_weights && g <= last; g++)
            sum[g][v] += w[g] * value[v];
    }
#pragma GCC unroll 8
    for (int g = first; !hold_weights && g <= last; g++) {
        w[g] = v_set(weight[g * out_step]);
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            sum[g][v] += w[g] * value[v];
    }
}

INLINE void band_kernel(const int G, const int V, const int lead, const int trail,
                        const struct band_product *product, const struct nh_band *band,
                        int64_t channel) {
    vec sum[8][4];
    const int64_t out_step = band->out_step, source_step = band->source_step;
    const int64_t source_pitch = product->source_pitch, out_pitch = product->out_pitch;
    real *out = product->out + band->out * out_pitch + channel;
    const int32_t full = band->full;
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) {
#pragma GCC unroll 4
        for (int v = 0; v < V; v++)
            sum[g][v] = (vec){0};
    }
    for (int32_t part = 0; part < product->parts; part++) {
        const real *weight = product->weight[part] + band->weight;
        const real *source = product->source[part] + band->source * source_pitch + channel;
        if (lead) {
#pragma GCC unroll 8
            for (int t = 0; t < G - 1; t++) {
                band_row(G, V, 0, t, sum, weight, out_step, source);
                weight += source_step;
                source += source_pitch;
            }
        }
        for (int32_t i = 0; i < full; i++) {
            band_row(G, V, 0, G - 1, sum, weight, out_step, source);
            weight += source_step;
            source += source_pitch;
        }
        if (trail) {
#pragma GCC unroll 8
            for (int t = 0; t < G - 1; t++) {
                band_row(G, V, t + 1, G - 1, sum, weight, out_step, source);
                weight += source_step;
                source += source_pitch;
            }
        }
    }
    if (product->fresh) {
#pragma GCC unroll 8
        for (int g = 0; g < G; g++) {
#pragma GCC unroll 4
            for (int v = 0; v < V; v++)
                v_store(out + g * out_pitch + v * VL, sum[g][v]);
        }
        return;
    }
#pragma GCC unroll 8
    for (int g = 0; g < G; g++) {
#pragma GCC unroll 4
        for (int v = 0; v < V; v++) {
            real *at = out + g * out_pitch + v * VL;
            v_store(at, v_load(at) + sum[g][v]);
        }
    }
}

typedef void band_fn(const struct band_product *product, const struct nh_band *band,
                     int64_t channel);

#define BAND_NAME(G, V, L, T) band_##G##_##V##_##L##T
#define BAND(G, V, L, T)                                                                           \
    static void BAND_NAME(G, V, L, T)(const struct band_product *product,                          \
                                      const struct nh_band *band, int64_t channel) {               \
        band_kernel(G, V, L, T, product, band, channel);                                           \
    }
#define BAND_EDGES(G, V) BAND(G, V, 0, 0) BAND(G, V, 0, 1) BAND(G, V, 1, 0) BAND(G, V, 1, 1)

/* The kernels, [log2 vectors][outputs - 1][lead][trail]. A single output has neither lead nor trail. */
/* clang-format off */
#define BAND_ENTRY(G, V)                                                                           \
    {{BAND_NAME(G, V, 0, 0), BAND_NAME(G, V, 0, 1)}, {BAND_NAME(G, V, 1, 0), BAND_NAME(G, V, 1, 1)}},
#define BAND_SINGLE(V) {{BAND_NAME(1, V, 0, 0), NULL}, {NULL, NULL}},
#define BAND_2(F, V) F(2, V)
#define BAND_3(F, V) BAND_2(F, V) F(3, V)
#define BAND_4(F, V) BAND_3(F, V) F(4, V)
#define BAND_6(F, V) BAND_4(F, V) F(5, V) F(6, V)
#define BAND_8(F, V) BAND_6(F, V) F(7, V) F(8, V)

BAND(1, 1, 0, 0) BAND(1, 2, 0, 0) BAND(1, 4, 0, 0)
BAND_MOST_1(BAND_EDGES, 1) BAND_MOST_2(BAND_EDGES, 2) BAND_MOST_4(BAND_EDGES, 4)
static band_fn *const band_table[3][8][2][2] = {
    {BAND_SINGLE(1) BAND_MOST_1(BAND_ENTRY, 1)},
    {BAND_SINGLE(2) BAND_MOST_2(BAND_ENTRY, 2)},
    {BAND_SINGLE(4) BAND_MOST_4(BAND_ENTRY, 4)}};
/* clang-format on */

/* The most whole rows of a band that are summed up in one chain, in registers. */
enum { CHAIN_ROWS = 128 };

/* Runs one step for rows of `vectors` vectors, at most `most` (1, 2 or 4) of them at a time. */
static void band_vectors(const struct band_product *product, const struct nh_band *band,
                         int32_t vectors, int32_t most) {
    for (int32_t v = 0; v < vectors;) {
        int vectors_log = most >= 4 && vectors - v >= 4 ? 2 : most >= 2 && vectors - v >= 2;
        band_table[vectors_log][band->outputs - 1][band->lead][band->trail](product, band, v * VL);
        v += 1 << vectors_log;
    }
}

/* Runs a step of more than one chain in pieces. The first piece has the lead, the last one the trail. */
static void band_chains(const struct band_product *product, const struct nh_band *band,
                        int32_t vectors, int32_t most) {
    struct band_product sum = *product;
    struct nh_band piece = *band;
    for (int32_t left = band->full; left > 0; left -= piece.full) {
        piece.full = left < CHAIN_ROWS ? left : CHAIN_ROWS;
        piece.trail = left == piece.full && band->trail;
        band_vectors(&sum, &piece, vectors, most);
        const int32_t rows = piece.full + (piece.lead ? band->outputs - 1 : 0);
        piece.source += rows;
        piece.weight += rows * band->source_step;
        piece.lead = false;
        sum.fresh = false;
    }
}

static void band_run(const struct band_product *product, const struct nh_band_list *list,
                     int32_t vectors, int32_t most) {
    for (int32_t i = 0; i < list->count; i++) {
        const struct nh_band *band = &list->band[i];
        if (band->full > CHAIN_ROWS) {
            band_chains(product, band, vectors, most);
        } else {
            band_vectors(product, band, vectors, most);
        }
    }
}

#endif
