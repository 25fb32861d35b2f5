/* Packs keys and values of a work tile for tile products. */
#ifndef NH_MATRIX_PACK_H
#define NH_MATRIX_PACK_H

#include "matrix_scratch.h"
#include "partial.h"

struct matrix {
    struct tile tile;
    struct matrix_scratch s;
    int32_t
        shift; /* column of the tile's first key: the one at which most vectors' columns begin a line */
    bool is_short;   /* forward: windows of at most SHORT_WINDOW keys along the lane axis */
    bool not_finite; /* some result is, or in the backward some input */
    int32_t offset
        [16]; /* from a unit's first column to those of the queries whose weights were last written, of short windows */
};

/* ---- rows of halves ---- */

/* out[pair][x] = channels 2 pair and 2 pair + 1 of row[x], of so many channels; those beyond are zeros. */
static void transpose_pairs(const struct rows *rows, const char *const row[16], int64_t width,
                            uint32_t *out, int64_t pitch) {
    for (int32_t c = 0; c < width; c += 32, out += 16 * pitch) {
        vec v[16];
        UNROLL
        for (int i = 0; i < 16; i++) {
            const char *at = row[i] + (int64_t)c * 2;
            ask_ahead(rows, at);
            v[i] = (vec)load_halves(at, rows->dim - c);
        }
        transpose(v);
        UNROLL
        for (int i = 0; i < 16; i++)
            store_words(out + i * pitch, (words)v[i]);
    }
}

#define LOW_HALVES(i) (i) / 2 + ((i) % 2 ? 32 : 0)
#define HIGH_HALVES(i) LOW_HALVES(i) + 16
#define EACH_HALF(F)                                                                               \
    F(0), F(1), F(2), F(3), F(4), F(5), F(6), F(7), F(8), F(9), F(10), F(11), F(12), F(13), F(14), \
        F(15), F(16), F(17), F(18), F(19), F(20), F(21), F(22), F(23), F(24), F(25), F(26), F(27), \
        F(28), F(29), F(30), F(31)

/* out[channel] = the channel of `even` and that of `odd`, in one word. NULL: a row of zeros. */
INLINE void zip_rows(const struct rows *rows, const char *even, const char *odd, int64_t width,
                     uint32_t *out) {
    for (int32_t c = 0; c < width; c += 32, out += 32) {
        halves a = {0}, b = {0};
        if (even) {
            ask_ahead(rows, even + (int64_t)c * 2);
            a = load_halves(even + (int64_t)c * 2, rows->dim - c);
        }
        if (odd) {
            ask_ahead(rows, odd + (int64_t)c * 2);
            b = load_halves(odd + (int64_t)c * 2, rows->dim - c);
        }
        store_words(out, (words)__builtin_shufflevector(a, b, EACH_HALF(LOW_HALVES)));
        store_words(out + 16, (words)__builtin_shufflevector(a, b, EACH_HALF(HIGH_HALVES)));
    }
}

/* Whether any of the numbers is infinite or NaN. */
INLINE bool any_not_finite(halves v) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    return _mm512_cmpeq_epi16_mask(_mm512_and_si512((__m512i)v, exponent), exponent) != 0;
}

/* Copies a row; channels beyond the tensor's are zeros. Returns whether any of its numbers is infinite or NaN. */
INLINE bool copy_row(const struct rows *rows, const char *row, int64_t width, uint16_t *out) {
    bool not_finite = false;
    for (int32_t c = 0; c < width; c += 32) {
        ask_ahead(rows, row + (int64_t)c * 2);
        const halves v = load_halves(row + (int64_t)c * 2, rows->dim - c);
        not_finite |= any_not_finite(v);
        *(halves_anywhere *)(out + c) = v;
    }
    return not_finite;
}

/* Packs `count` rows from place `first` on by channel, in columns from `shift` on. Columns without a row repeat some row. */
static void pack_channels(const struct rows *rows, int32_t first, int32_t count, int32_t shift,
                          int64_t width, uint32_t *out, int64_t pitch) {
    for (int32_t x = 0; x < shift + count; x += 16) {
        const char *row[16];
        for (int32_t i = 0; i < 16; i++) {
            const int32_t key = x + i - shift;
            row[i] = row_at(rows, first + (key < 0 ? 0 : key < count ? key : count - 1));
        }
        transpose_pairs(rows, row, width, out + x, pitch);
    }
}

/* Packs the same rows by pairs of columns. Columns without a row are zeros. */
static void pack_pairs(const struct rows *rows, int32_t first, int32_t count, int32_t shift,
                       int64_t width, uint32_t *out, int64_t pitch) {
    for (int32_t x = 0; x < pitch; x += 2, out += width) {
        const int32_t key = x - shift;
        const bool even = key >= 0 && key < count, odd = key >= -1 && key + 1 < count;
        if (!even && !odd) {
            memset(out, 0, (size_t)width * sizeof *out);
            continue;
        }
        zip_rows(rows, even ? row_at(rows, first + key) : NULL,
                 odd ? row_at(rows, first + key + 1) : NULL, width, out);
    }
}

/* ---- keys ---- */

/* The index of a key row's packed forms. */
static int64_t ring_row(const struct matrix *m, int32_t slow, int32_t middle) {
    return (int64_t)(slow - m->tile.box.key[0]) * m->s.ring +
           (middle - m->tile.box.key[1]) % m->s.ring;
}

/* ---- keys, for the backward ---- */

/* out[channel][x] = in[x][channel] for x in [0, count), and zeros from there up to the pitch. */
static void transpose_halves(const uint16_t *in, int32_t count, int64_t width, uint16_t *out,
                             int64_t pitch) {
    for (int32_t x = 0; x < pitch; x += 16) {
        for (int32_t c = 0; c < width; c += 32) {
            vec v[16];
            UNROLL
            for (int i = 0; i < 16; i++)
                v[i] = x + i < count ? (vec)load_halves(in + (x + i) * width + c, 32) : (vec){0};
            if (x < count) transpose(v);
            UNROLL
            for (int i = 0; i < 16; i++) {
                uint16_t *even = out + (c + 2 * i) * pitch + x;
                const __m512i pair = (__m512i)v[i];
                _mm256_storeu_si256((__m256i *)(void *)even, _mm512_cvtepi32_epi16(pair));
                _mm256_storeu_si256((__m256i *)(void *)(even + pitch),
                                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(pair, 16)));
            }
        }
    }
}

/* Packs a key row for the backward, and begins its partial gradients. */
static void pack_backward_row(struct matrix *m, int32_t slow, int32_t middle, const struct rows *k,
                              const struct rows *v) {
    const struct matrix_scratch *s = &m->s;
    const int64_t row = ring_row(m, slow, middle);
    const int32_t first = m->tile.box.key[2], count = m->tile.box.keys[2];
    uint16_t *k_rows = s->k_rows + row * s->row_columns * s->width_k;
    uint16_t *v_rows = s->v_rows + row * s->row_columns * s->width_v;
    bool not_finite = false;
    for (int32_t x = 0; x < count; x++)
        not_finite |= copy_row(k, row_at(k, first + x), s->width_k, k_rows + x * s->width_k);
    for (int32_t x = 0; x < count; x++)
        not_finite |= copy_row(v, row_at(v, first + x), s->width_v, v_rows + x * s->width_v);
    m->not_finite |= not_finite;
    transpose_halves(k_rows, count, s->width_k,
                     s->k_transposed + row * s->width_k * s->channel_pitch, s->channel_pitch);
    empty_partial_row(&m->tile, partial_row(&m->tile, slow, middle));
}

/* ---- keys of both passes ---- */

static void matrix_pack_row(struct matrix *m, int32_t slow, int32_t middle) {
    const struct matrix_scratch *s = &m->s;
    const struct tile *tile = &m->tile;
    const int64_t row = ring_row(m, slow, middle);
    const int32_t first = tile->box.key[2], count = tile->box.keys[2];
    struct rows k = tensor_rows(tile, NHOOD_K, tile->box.kv_head, slow, middle, tile->problem->dim);
    struct rows v =
        tensor_rows(tile, NHOOD_V, tile->box.kv_head, slow, middle, tile->problem->dim_v);
    k.ahead = key_bytes_ahead(tile, NHOOD_K, slow, middle);
    v.ahead = key_bytes_ahead(tile, NHOOD_V, slow, middle);
    if (tile->problem->op == NHOOD_OP_BWD) {
        pack_backward_row(m, slow, middle, &k, &v);
        return;
    }
    pack_channels(&k, first, count, m->shift, s->width_k,
                  s->k_channels + row * s->width_k / 2 * s->pitch, s->pitch);
    pack_pairs(&v, first, count, m->shift, s->width_v, s->v_keys + row * s->width_v / 2 * s->pitch,
               s->pitch);
}

/* Packs the key rows before place `end` of the middle axis that are not packed yet, from `begin` on. */
static void matrix_pack_keys(struct matrix *m, int32_t begin, int32_t end) {
    const struct tile_box *box = &m->tile.box;
    if (begin < m->tile.packed_end) begin = m->tile.packed_end;
    for (int32_t slow = box->key[0]; slow < box->key[0] + box->keys[0]; slow++)
        for (int32_t middle = begin; middle < end; middle++)
            matrix_pack_row(m, slow, middle);
    if (end > m->tile.packed_end) m->tile.packed_end = end;
}

/* Packs the extra tokens, which are one more key row of places 0 .. M-1, 16 at a time. */
static void matrix_pack_extra(const struct matrix *m) {
    static const int32_t places[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    const struct matrix_scratch *s = &m->s;
    const struct nh_problem *problem = m->tile.problem;
    for (int64_t x = 0; problem->extra_tokens && x < s->extra_pitch; x += 16) {
        const int32_t count = (int32_t)nh_min(16, nh_max(0, problem->extra_tokens - x));
        for (int32_t tensor = NHOOD_EXTRA_K; tensor <= NHOOD_EXTRA_V; tensor++) {
            const nhood_strides *strides = &problem->strides[tensor];
            const int64_t element = m->tile.box.batch * strides->batch +
                                    m->tile.box.kv_head * strides->head + x * strides->axis[0];
            struct rows rows = {.base = (const char *)m->tile.run->io->data[tensor] + element * 2,
                                .step = strides->axis[0],
                                .token = places,
                                .dtype = NHOOD_DTYPE_BF16};
            rows.dim = (int32_t)(tensor == NHOOD_EXTRA_K ? problem->dim : problem->dim_v);
            if (tensor == NHOOD_EXTRA_V) {
                pack_pairs(&rows, 0, count, 0, s->width_v, s->extra_v_keys + x / 2 * s->width_v,
                           16);
            } else if (count) {
                pack_channels(&rows, 0, count, 0, s->width_k, s->extra_k_channels + x,
                              s->extra_pitch);
            }
        }
    }
}

#endif
