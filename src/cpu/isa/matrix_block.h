/* Blocks of query vectors, the units of keys that they attend, and the tile products.
 *
 * A block is up to FORWARD_VECTORS or BACKWARD_VECTORS query vectors that share keys: one vector of the lane axis at consecutive places of the middle
 * axis or, if that has one place and windows are long, consecutive vectors. A unit is UNIT_KEYS consecutive columns of a key
 * row, or of the extra tokens. The window of a query is a run of columns. */
#ifndef NH_MATRIX_BLOCK_H
#define NH_MATRIX_BLOCK_H

#include "matrix_pack.h"
#include "vector_math.h"

struct block {
    int32_t vectors, slow;
    const struct nh_vector *vector[MOST_VECTORS];
    int32_t middle[MOST_VECTORS];
    int32_t begin, end;         /* key rows of the middle axis that any vector attends */
    int32_t column, end_column; /* columns that any query attends */
    int32_t first[MOST_VECTORS][16],
        last[MOST_VECTORS][16]; /* columns of each query, `last` is one beyond */
};

struct unit {
    const uint32_t *k;      /* channels, at the unit's first column */
    const uint32_t *v_keys; /* pairs of columns, at the first */
    int64_t pitch;
    int32_t slow, middle, column; /* of the key row; column: counted from the first key's */
    bool extra;
    bool wide;    /* more than 16 keys */
    uint32_t met; /* bits of the block's vectors that attend it */
};

typedef void matrix_block_fn(struct matrix *m, const struct block *block);
typedef void matrix_unit_fn(struct matrix *m, const struct block *block, const struct unit *unit,
                            void *state);

/* Sets the columns that the queries of a vector attend. Those beyond its last query repeat it. */
static void set_columns(const struct matrix *m, struct block *block, int32_t v) {
    const struct nh_order *order = &m->tile.geometry->order[2];
    const struct nh_vector *vector = block->vector[v];
    const int32_t from = m->tile.box.key[2] - m->shift;
    for (int32_t lane = 0; lane < 16; lane++) {
        const int32_t query = vector->first + (lane < vector->count ? lane : vector->count - 1);
        block->first[v][lane] = order->begin[query] - from;
        block->last[v][lane] = order->end[query] - from;
    }
    if (v == 0 || block->first[v][0] < block->column) block->column = block->first[v][0] & ~1;
    if (v == 0 || block->last[v][15] > block->end_column) block->end_column = block->last[v][15];
}

/* Zeroes the weights of all columns if the columns of the vectors' windows, which are always written, have moved. */
static void clear_weights(struct matrix *m, const struct block *block) {
    int32_t offset[16];
    for (int32_t lane = 0; lane < 16; lane++)
        offset[lane] = block->first[0][lane] - block->column;
    if (!memcmp(offset, m->offset, sizeof offset)) return;
    memcpy(m->offset, offset, sizeof offset);
    memset(m->s.weights, 0, (size_t)FORWARD_VECTORS * SLOTS * TILE_BYTES);
}

/* Visits one vector of the lane axis at `places` places of the middle axis, or `vectors` consecutive ones at one place. */
static void visit_block(struct matrix *m, int32_t slow, int32_t middle, int32_t places,
                        const struct nh_vector *vector, int32_t vectors, matrix_block_fn *visit) {
    const struct nh_order *order = &m->tile.geometry->order[1];
    struct block block; /* what is unused is not zeroed */
    block.slow = slow;
    block.vectors = places > vectors ? places : vectors;
    block.begin = order->begin[middle];
    block.end = order->end[middle + places - 1];
    for (int32_t v = 0; v < block.vectors; v++) {
        block.vector[v] = vector + (places > 1 ? 0 : v);
        block.middle[v] = middle + (places > 1 ? v : 0);
        if (v == 0 || places == 1) {
            set_columns(m, &block, v);
        } else {
            memcpy(block.first[v], block.first[0], sizeof block.first[0]);
            memcpy(block.last[v], block.last[0], sizeof block.last[0]);
        }
    }
    if (m->is_short) clear_weights(m, &block);
    visit(m, &block);
}

static void visit_vectors(struct matrix *m, int32_t slow, int32_t middle, int32_t places,
                          const struct nh_vector *vector, int32_t count, matrix_block_fn *visit) {
    const bool across = m->tile.box.query_end[1] - m->tile.box.query[1] == 1 && !m->is_short;
    for (int32_t v = 0, vectors; v < count && !nh_interrupted(m->tile.run->call); v += vectors) {
        vectors = across ? next_places(m->tile.geometry, count - v) : 1;
        visit_block(m, slow, middle, places, vector + v, vectors, visit);
    }
}

static void each_matrix_block(struct matrix *m, matrix_block_fn *visit) {
    const struct nh_geometry *geometry = m->tile.geometry;
    const struct nh_order *order = &geometry->order[1];
    const struct tile_box *box = &m->tile.box;
    const int32_t *first = &geometry->tile_vector[box->index[2]];
    const bool all = geometry->rolling || box->query_end[1] - box->query[1] == 1;
    const int32_t at_once = all ? first[1] - first[0] : 1;
    for (int32_t v = first[0]; v < first[1]; v += at_once) {
        for (int32_t slow = box->query[0]; slow < box->query_end[0]; slow++)
            for (int32_t middle = box->query[1], places; middle < box->query_end[1];
                 middle += places) {
                places = next_places(geometry, box->query_end[1] - middle);
                if (geometry->rolling)
                    matrix_pack_keys(m, order->begin[middle], order->end[middle + places - 1]);
                visit_vectors(m, slow, middle, places, geometry->vector + v, at_once, visit);
                if (m->tile.partial && partial_rolls(geometry) &&
                    middle + places < box->query_end[1])
                    store_key_rows(&m->tile, order->begin[middle + places]);
            }
    }
}

/* Visits the extra tokens, then the key rows of the block's window, in units. */
static void each_unit(struct matrix *m, const struct block *block, matrix_unit_fn *visit,
                      void *state) {
    const struct matrix_scratch *s = &m->s;
    const struct nh_order *slow = &m->tile.geometry->order[0];
    const struct nh_order *middle = &m->tile.geometry->order[1];
    const int32_t extra = (int32_t)m->tile.problem->extra_tokens;
    struct unit unit = {.extra = true, .pitch = s->extra_pitch, .met = (1u << block->vectors) - 1};
    for (unit.column = 0; unit.column < extra; unit.column += UNIT_KEYS) {
        unit.wide = extra - unit.column > 16;
        unit.k = s->extra_k_channels + unit.column;
        unit.v_keys = s->extra_v_keys + unit.column / 2 * s->width_v;
        visit(m, block, &unit, state);
    }
    unit.extra = false;
    unit.pitch = s->pitch;
    const int64_t k_words = s->width_k / 2 * s->pitch, v_words = s->width_v / 2 * s->pitch;
    for (unit.slow = slow->begin[block->slow]; unit.slow < slow->end[block->slow]; unit.slow++)
        for (unit.middle = block->begin; unit.middle < block->end; unit.middle++) {
            unit.met = 0;
            for (int32_t v = 0; v < block->vectors; v++)
                if (unit.middle >= middle->begin[block->middle[v]] &&
                    unit.middle < middle->end[block->middle[v]])
                    unit.met |= 1u << v;
            if (!unit.met) continue;
            const int64_t row = ring_row(m, unit.slow, unit.middle);
            for (unit.column = block->column; unit.column < block->end_column;
                 unit.column += UNIT_KEYS) {
                unit.wide = block->end_column - unit.column > 16;
                unit.k = s->k_channels + row * k_words + unit.column;
                unit.v_keys = s->v_keys + row * v_words + unit.column / 2 * s->width_v;
                visit(m, block, &unit, state);
            }
        }
}

/* Columns [low, high) of the unit are those of a query. */
static void unit_columns(const struct matrix *m, const struct block *block, const struct unit *unit,
                         int32_t vector, int32_t lane, int32_t *low, int32_t *high) {
    int32_t first = block->first[vector][lane], last = block->last[vector][lane];
    if (unit->extra) {
        first = 0;
        last = (int32_t)m->tile.problem->extra_tokens;
    }
    first -= unit->column;
    last -= unit->column;
    *low = first < 0 ? 0 : first < UNIT_KEYS ? first : UNIT_KEYS;
    *high = last < *low ? *low : last < UNIT_KEYS ? last : UNIT_KEYS;
}

static uint32_t column_mask(int32_t low, int32_t high) {
    return (uint32_t)((UINT64_C(1) << high) - (UINT64_C(1) << low));
}

/* ---- products ---- */

/* Tiles 0 to 3 sum up products of two tiles of rows with two tiles of columns, [rows][columns]. They begin with `sums`, rows of so
 * many floats, or if `fresh` with zeros. Unless there are two tiles of rows, or of columns (`wide`), the others are not used. */
INLINE void begin_sums(const float *sums, int64_t pitch, bool fresh, bool two, bool wide) {
    const float *low = sums, *high = sums + 16 * pitch;
    if (fresh) {
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_ZERO(2);
        TILE_ZERO(3);
        return;
    }
    TILE_LOAD(0, low, pitch * 4);
    if (wide) TILE_LOAD(1, low + 16, pitch * 4);
    if (two) TILE_LOAD(2, high, pitch * 4);
    if (two && wide) TILE_LOAD(3, high + 16, pitch * 4);
}

INLINE void end_sums(float *sums, int64_t pitch, bool two, bool wide) {
    float *low = sums, *high = sums + 16 * pitch;
    TILE_STORE(0, low, pitch * 4);
    if (wide) TILE_STORE(1, low + 16, pitch * 4);
    if (two) TILE_STORE(2, high, pitch * 4);
    if (two && wide) TILE_STORE(3, high + 16, pitch * 4);
}

/* score[row][column] = rows . columns, for one or two tiles of rows and 16 or 32 columns: queries and keys in the forward, keys and
 * queries in the backward. */
INLINE void score_tiles(const uint16_t *rows, const uint32_t *columns, int64_t pitch, int64_t width,
                        const bool two, const bool wide, float *score) {
    const int64_t row_bytes = width * 2, column_bytes = pitch * 4;
    begin_sums(score, UNIT_KEYS, true, two, wide);
    for (int64_t c = 0; c < width; c += 32) {
        TILE_LOAD(6, columns + c / 2 * pitch, column_bytes);
        TILE_LOAD(4, rows + c, row_bytes);
        TILE_MULTIPLY(0, 4, 6);
        if (two) {
            TILE_LOAD(5, rows + 16 * width + c, row_bytes);
            TILE_MULTIPLY(2, 5, 6);
        }
        if (wide) {
            TILE_LOAD(7, columns + c / 2 * pitch + 16, column_bytes);
            TILE_MULTIPLY(1, 4, 7);
            if (two) TILE_MULTIPLY(3, 5, 7);
        }
    }
    end_sums(score, UNIT_KEYS, two, wide);
}

/* Computes the scores of a pair of tiles of rows. Bits 0 and 1 of `met` tell which of the two are wanted. */
static void unit_scores(const uint16_t *rows, const uint32_t *columns, int64_t pitch, int64_t width,
                        uint32_t met, bool wide, float *score) {
    if (met == 2) {
        rows += 16 * width;
        score += 16 * UNIT_KEYS;
    }
    if (met == 3 && wide) {
        score_tiles(rows, columns, pitch, width, true, true, score);
    } else if (met == 3) {
        score_tiles(rows, columns, pitch, width, true, false, score);
    } else if (wide) {
        score_tiles(rows, columns, pitch, width, false, true, score);
    } else {
        score_tiles(rows, columns, pitch, width, false, false, score);
    }
}

/* What is multiplied by the weights of a pair of query vectors: pairs of columns of units, with bits as in unit_scores. */
struct product {
    int32_t units;
    const uint32_t *source[SLOTS];
    uint32_t met[SLOTS];
};

/* out[vector][query][channel] += sum over units of weight * source; if `fresh`, `out` is overwritten. `weights` are the slots
 * of the pair's first vector; those of the second are `vector_halves` further on. */
static void add_product(const struct product *product, const uint16_t *weights,
                        int64_t vector_halves, int64_t width, bool fresh, bool two, float *out) {
    const int64_t bytes = width * 4;
    for (int64_t c = 0; c < width; c += 32) {
        begin_sums(out + c, width, fresh, two, true);
        for (int32_t u = 0; u < product->units; u++) {
            const uint16_t *weight = weights + u * (TILE_BYTES / 2);
            TILE_LOAD(6, product->source[u] + c, bytes);
            TILE_LOAD(7, product->source[u] + c + 16, bytes);
            if (product->met[u] & 1) {
                TILE_LOAD(4, weight, 64);
                TILE_MULTIPLY(0, 4, 6);
                TILE_MULTIPLY(1, 4, 7);
            }
            if (product->met[u] & 2) {
                TILE_LOAD(5, weight + vector_halves, 64);
                TILE_MULTIPLY(2, 5, 6);
                TILE_MULTIPLY(3, 5, 7);
            }
        }
        end_sums(out + c, width, two, true);
    }
}

/* ---- rows of queries ---- */

static struct rows vector_rows(const struct matrix *m, const struct block *block, int32_t v,
                               int32_t tensor, int64_t dim) {
    struct rows rows =
        tensor_rows(&m->tile, tensor, m->tile.head, block->slow, block->middle[v], dim);
    rows.ahead = query_bytes_ahead(&m->tile, tensor, block->slow, block->middle[v]);
    return rows;
}

/* Copies a vector's queries of a tensor. Lanes without a query repeat the last one; channels beyond the tensor's are zeros. */
static void pack_vector(const struct matrix *m, const struct block *block, int32_t v,
                        int32_t tensor, int64_t dim, int64_t width, uint16_t *out) {
    const struct rows rows = vector_rows(m, block, v, tensor, dim);
    const struct nh_vector *vector = block->vector[v];
    for (int32_t lane = 0; lane < 16; lane++, out += width) {
        const char *row =
            row_at(&rows, vector->first + (lane < vector->count ? lane : vector->count - 1));
        copy_row(&rows, row, width, out);
    }
}

#endif
