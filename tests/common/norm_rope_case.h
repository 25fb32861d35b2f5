/* A problem of RMS norm and rotary positions with its tensors, all in one block of memory, and the expected results, which are
 * computed in f64 from the definition in nhood_norm_rope.h, pair by pair. */
#ifndef NORM_ROPE_CASE_H
#define NORM_ROPE_CASE_H

#include "dtype.h"
#include "nhood_norm_rope.h"
#include "test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum {
    CASE_X,
    CASE_WEIGHT,
    CASE_TABLE,
    CASE_Y = CASE_TABLE + 3,
    CASE_D_Y,
    CASE_D_X,
    CASE_D_WEIGHT,
    CASE_TENSORS
};

struct norm_rope_case {
    nhood_norm_rope_problem problem;
    bool in_place; /* Y is X */
    /* offset of each tensor's element 0 in the memory, and size of the memory, both in bytes */
    size_t offset[CASE_TENSORS], bytes;
    char *memory, *expected_memory;
    bool *written; /* by byte: outputs */
};

static inline bool case_has(const nhood_norm_rope_problem *p, int tensor) {
    const bool forward = p->op == NHOOD_OP_FWD;
    switch (tensor) {
    case CASE_X: return true;
    case CASE_WEIGHT: return p->has_weight;
    case CASE_Y: return forward;
    case CASE_D_Y:
    case CASE_D_X: return !forward;
    case CASE_D_WEIGHT: return !forward && p->has_weight;
    default: return tensor - CASE_TABLE < p->rank && p->rotated[tensor - CASE_TABLE] > 0;
    }
}

static inline int32_t case_dtype(const nhood_norm_rope_problem *p, int tensor) {
    if (tensor == CASE_WEIGHT || tensor == CASE_D_WEIGHT)
        return p->weight_dtype ? p->weight_dtype : p->dtype;
    if (tensor >= CASE_TABLE && tensor < CASE_Y)
        return p->dtype == NHOOD_DTYPE_F64 ? NHOOD_DTYPE_F64 : NHOOD_DTYPE_F32;
    return p->dtype;
}

static inline int64_t case_channels(const nhood_norm_rope_problem *p) {
    return p->norm == NHOOD_NORM_TOKEN ? p->heads * p->dim : p->dim;
}

static inline nhood_strides case_strides(const nhood_norm_rope_problem *p, int tensor) {
    nhood_strides s = tensor == CASE_X     ? p->x
                      : tensor == CASE_Y   ? p->y
                      : tensor == CASE_D_Y ? p->d_y
                                           : p->d_x;
    if (s.batch || s.head || s.axis[0] || s.axis[1] || s.axis[2]) return s;
    int64_t step = p->dim;
    s.head = step;
    step *= p->heads;
    for (int a = p->rank - 1; a >= 0; a--) {
        s.axis[a] = step;
        step *= p->length[a];
    }
    s.batch = step;
    return s;
}

/* The index of a head's first element. Tokens are counted through batch and axes. */
static inline int64_t case_element(const nhood_norm_rope_problem *p, int tensor, int64_t token,
                                   int64_t head) {
    const nhood_strides s = case_strides(p, tensor);
    int64_t element = head * s.head;
    for (int a = p->rank - 1; a >= 0; a--) {
        element += token % p->length[a] * s.axis[a];
        token /= p->length[a];
    }
    return element + token * s.batch;
}

static inline int64_t case_tokens(const nhood_norm_rope_problem *p) {
    int64_t tokens = p->batch;
    for (int a = 0; a < p->rank; a++)
        tokens *= p->length[a];
    return tokens;
}

/* The lowest and the highest index of an element. */
static inline void case_range(const nhood_norm_rope_problem *p, int tensor, int64_t range[2]) {
    range[0] = 0;
    if (tensor == CASE_WEIGHT || tensor == CASE_D_WEIGHT) {
        range[1] = case_channels(p);
    } else if (tensor >= CASE_TABLE && tensor < CASE_Y) {
        const int a = tensor - CASE_TABLE;
        range[1] = (p->offset[a] + p->length[a]) * p->rotated[a];
    } else {
        range[1] = p->dim;
        for (int64_t t = 0; t < case_tokens(p); t++)
            for (int64_t h = 0; h < p->heads; h++) {
                const int64_t element = case_element(p, tensor, t, h);
                if (element < range[0]) range[0] = element;
                if (element + p->dim > range[1]) range[1] = element + p->dim;
            }
    }
}

static inline double case_get(const struct norm_rope_case *c, const char *memory, int tensor,
                              int64_t element) {
    return nh_load_f64(case_dtype(&c->problem, tensor), memory + c->offset[tensor], element);
}

static inline void case_expect(struct norm_rope_case *c, int tensor, int64_t element,
                               double value) {
    const int32_t dtype = case_dtype(&c->problem, tensor);
    const size_t bytes = nh_dtype_bytes(dtype);
    nh_store_f64(dtype, c->expected_memory + c->offset[tensor], element, value);
    memset(c->written + c->offset[tensor] + element * (int64_t)bytes, 1, bytes);
}

/* The channels of a pair, the axis that rotates it (-1: none) and its index in the axis's table. */
static inline void case_pair(const nhood_norm_rope_problem *p, int64_t pair, int64_t channel[2],
                             int *axis, int64_t *place) {
    int64_t rotated = 0, first = 0;
    for (int a = 0; a < p->rank; a++)
        rotated += p->rotated[a];
    const bool halves = p->pairs == NHOOD_PAIRS_HALVES && pair < rotated / 2;
    channel[0] = halves ? pair : 2 * pair;
    channel[1] = halves ? pair + rotated / 2 : 2 * pair + 1;
    *axis = -1;
    for (int a = 0; a < p->rank; a++) {
        if (pair >= first && pair < first + p->rotated[a] / 2) {
            *axis = a;
            *place = pair - first;
        }
        first += p->rotated[a] / 2;
    }
}

/* The cosine and the sine of a pair at a token. */
static inline void case_angle(const struct norm_rope_case *c, int64_t token, int axis,
                              int64_t place, double angle[2]) {
    const nhood_norm_rope_problem *p = &c->problem;
    angle[0] = 1;
    angle[1] = 0;
    if (axis < 0) return;
    for (int a = p->rank - 1; a > axis; a--)
        token /= p->length[a];
    const int64_t at = p->offset[axis] + token % p->length[axis];
    for (int i = 0; i < 2; i++)
        angle[i] = case_get(c, c->memory, CASE_TABLE + axis, at * p->rotated[axis] + 2 * place + i);
}

static inline double case_weight(const struct norm_rope_case *c, int64_t channel) {
    return c->problem.has_weight ? case_get(c, c->memory, CASE_WEIGHT, channel) : 1;
}

/* Computes the expected values of heads first .. first + count - 1 of a token, which share a norm. */
static inline void case_expect_row(struct norm_rope_case *c, int64_t token, int64_t first,
                                   int64_t count, double *d_weight) {
    const nhood_norm_rope_problem *p = &c->problem;
    const int64_t channels = count * p->dim;
    const bool forward = p->op == NHOOD_OP_FWD;
    double *x = malloc((size_t)channels * sizeof *x), *z = malloc((size_t)channels * sizeof *z);
    double squares = 0, product = 0;
    for (int64_t i = 0; i < channels; i++) {
        x[i] = case_get(c, c->memory, CASE_X,
                        case_element(p, CASE_X, token, first + i / p->dim) + i % p->dim);
        squares += x[i] * x[i];
    }
    const double norm = p->norm ? 1 / sqrt(squares / (double)channels + p->eps) : 1;
    for (int64_t h = 0; h < count; h++)
        for (int64_t pair = 0; pair < p->dim / 2; pair++) {
            int64_t channel[2], place = 0;
            int axis;
            double angle[2], in[2], out[2];
            case_pair(p, pair, channel, &axis, &place);
            case_angle(c, token, axis, place, angle);
            for (int i = 0; i < 2; i++) {
                const int64_t at = h * p->dim + channel[i];
                in[i] = forward
                            ? x[at] * norm * case_weight(c, at) * p->scale
                            : case_get(c, c->memory, CASE_D_Y,
                                       case_element(p, CASE_D_Y, token, first + h) + channel[i]);
            }
            const double sine = forward ? angle[1] : -angle[1];
            out[0] = in[0] * angle[0] - in[1] * sine;
            out[1] = in[0] * sine + in[1] * angle[0];
            for (int i = 0; i < 2; i++) {
                if (forward)
                    case_expect(c, CASE_Y, case_element(p, CASE_Y, token, first + h) + channel[i],
                                out[i]);
                else
                    z[h * p->dim + channel[i]] = out[i];
            }
        }
    for (int64_t i = 0; !forward && i < channels; i++) {
        product += z[i] * case_weight(c, i) * p->scale * x[i];
        d_weight[i] += z[i] * x[i] * norm * p->scale;
    }
    for (int64_t i = 0; !forward && i < channels; i++) {
        double value = z[i] * case_weight(c, i) * p->scale * norm;
        if (p->norm) value -= x[i] * norm * norm * norm * product / (double)channels;
        case_expect(c, CASE_D_X, case_element(p, CASE_D_X, token, first + i / p->dim) + i % p->dim,
                    value);
    }
    free(x);
    free(z);
}

static inline void case_expect_all(struct norm_rope_case *c) {
    const nhood_norm_rope_problem *p = &c->problem;
    const int64_t group = p->norm == NHOOD_NORM_TOKEN ? p->heads : 1;
    double *d_weight = calloc((size_t)case_channels(p), sizeof *d_weight);
    for (int64_t token = 0; token < case_tokens(p); token++)
        for (int64_t head = 0; head < p->heads; head += group)
            case_expect_row(c, token, head, group, d_weight);
    for (int64_t i = 0; case_has(p, CASE_D_WEIGHT) && i < case_channels(p); i++)
        case_expect(c, CASE_D_WEIGHT, i, d_weight[i]);
    free(d_weight);
}

/* Lays out and fills the tensors. The memory between their elements is filled with NaN. */
static inline void case_create(struct norm_rope_case *c, uint64_t *random) {
    enum { GUARD = 64 };
    const nhood_norm_rope_problem *p = &c->problem;
    const bool unaligned = p->flags & NHOOD_FLAG_UNALIGNED;
    c->bytes = 0;
    int64_t range[CASE_TENSORS][2];
    for (int t = 0; t < CASE_TENSORS; t++) {
        if (!case_has(p, t)) continue;
        case_range(p, t, range[t]);
        const size_t element = nh_dtype_bytes(case_dtype(p, t));
        c->offset[t] = c->bytes + GUARD + ((size_t)-range[t][0] * element + 63) / 64 * 64 +
                       (unaligned ? element : 0);
        c->bytes = (c->offset[t] + (size_t)range[t][1] * element + GUARD + 63) / 64 * 64;
        if (t == CASE_Y && c->in_place) c->offset[t] = c->offset[CASE_X];
    }
    c->memory = test_allocate(c->bytes);
    c->expected_memory = test_allocate(c->bytes);
    c->written = calloc(c->bytes, 1);
    memset(c->memory, 0xff, c->bytes);
    for (int t = 0; t < CASE_Y + 2; t++) {
        if (!case_has(p, t) || t == CASE_Y) continue;
        const bool table = t >= CASE_TABLE && t < CASE_Y;
        for (int64_t i = 0; (table || t == CASE_WEIGHT) && i < range[t][1]; i++)
            nh_store_f64(case_dtype(p, t), c->memory + c->offset[t], i, test_uniform(random));
        for (int64_t token = 0; (t == CASE_X || t == CASE_D_Y) && token < case_tokens(p); token++)
            for (int64_t i = 0; i < p->heads * p->dim; i++)
                nh_store_f64(p->dtype, c->memory + c->offset[t],
                             case_element(p, t, token, i / p->dim) + i % p->dim,
                             2 * test_uniform(random));
    }
    memcpy(c->expected_memory, c->memory, c->bytes);
    case_expect_all(c);
}

static inline void case_destroy(struct norm_rope_case *c) {
    test_free(c->memory);
    test_free(c->expected_memory);
    free(c->written);
}

/* The io of an execute whose tensors are in a copy of the case's memory. */
static inline nhood_norm_rope_io case_io(const struct norm_rope_case *c, char *memory) {
    void *at[CASE_TENSORS];
    for (int t = 0; t < CASE_TENSORS; t++)
        at[t] = case_has(&c->problem, t) ? memory + c->offset[t] : NULL;
    return (nhood_norm_rope_io){.struct_size = sizeof(nhood_norm_rope_io),
                                .x = at[CASE_X],
                                .weight = at[CASE_WEIGHT],
                                .table = {at[CASE_TABLE], at[CASE_TABLE + 1], at[CASE_TABLE + 2]},
                                .y = at[CASE_Y],
                                .d_y = at[CASE_D_Y],
                                .d_x = at[CASE_D_X],
                                .d_weight = at[CASE_D_WEIGHT]};
}

/* The largest difference of an output from its expected value, over the largest of these; infinity if anything else was
 * written. */
static inline double case_error(const struct norm_rope_case *c, const char *memory, int tensor) {
    const int32_t dtype = case_dtype(&c->problem, tensor);
    const size_t bytes = nh_dtype_bytes(dtype);
    double largest = 1e-30, worst = 0;
    int64_t range[2];
    case_range(&c->problem, tensor, range);
    for (int64_t i = range[0]; i < range[1]; i++) {
        if (!c->written[c->offset[tensor] + (size_t)(i * (int64_t)bytes)]) continue;
        const double expected = case_get(c, c->expected_memory, tensor, i),
                     found = case_get(c, memory, tensor, i);
        largest = fmax(largest, fabs(expected));
        worst = found == found ? fmax(worst, fabs(found - expected)) : INFINITY;
        if (worst == INFINITY) return worst;
    }
    for (size_t i = 0; i < c->bytes; i++)
        if (!c->written[i] && memory[i] != c->memory[i]) return INFINITY;
    return worst / largest;
}

/* Draws a problem of any dtype, rank, norm, kind of pairs and kind of strides, with usual and unusual head dims. */
static inline void case_random(struct norm_rope_case *c, uint64_t *random) {
    static const int64_t usual[] = {16, 32, 64, 80, 96, 128, 256};
    nhood_norm_rope_problem *p = &c->problem;
    memset(c, 0, sizeof *c);
    nhood_norm_rope_problem_init(p, (int32_t)test_between(random, NHOOD_OP_FWD, NHOOD_OP_BWD),
                                 (int32_t)test_between(random, NHOOD_DTYPE_F64, NHOOD_DTYPE_BF16),
                                 (int32_t)test_between(random, 1, 3));
    p->norm = (int32_t)test_between(random, NHOOD_NORM_NONE, NHOOD_NORM_TOKEN);
    p->pairs = (int32_t)test_between(random, 0, 1);
    p->has_weight = p->norm && test_between(random, 0, 3);
    const bool half = p->dtype == NHOOD_DTYPE_F16 || p->dtype == NHOOD_DTYPE_BF16;
    if (half && test_between(random, 0, 1)) p->weight_dtype = NHOOD_DTYPE_F32;
    if (test_between(random, 0, 7) == 0) p->flags = NHOOD_FLAG_UNALIGNED;
    p->batch = test_between(random, 1, 3);
    p->heads = test_between(random, 1, 9);
    p->dim = test_between(random, 0, 2) ? usual[test_between(random, 0, 6)]
                                        : 2 * test_between(random, 1, 60);
    if (test_between(random, 0, 15) == 0) p->dim = 2 * test_between(random, 200, 512);
    if (p->norm == NHOOD_NORM_TOKEN && test_between(random, 0, 3) == 0)
        p->heads = test_between(random, 1, 6000 / p->dim + 1);
    if (p->heads * p->dim > NHOOD_NORM_ROPE_MOST_CHANNELS) p->heads = 1;
    int64_t left = p->dim, most = p->rank == 1 ? 60 : p->rank == 2 ? 9 : 5;
    while (most > 2 && p->batch * p->heads * p->dim * most > 20000)
        most /= 2;
    for (int a = 0; a < p->rank; a++) {
        const int64_t even = test_between(random, 0, 1) ? 8 : 2;
        p->length[a] = test_between(random, 1, most);
        p->offset[a] = test_between(random, 0, 1) ? test_between(random, 0, 5) : 0;
        p->rotated[a] = test_between(random, 0, left / even) * even;
        left -= p->rotated[a];
    }
    if (test_between(random, 0, 1) && p->rank > 1) p->rotated[p->rank - 1] += left;
    p->scale = test_between(random, 0, 1) ? 1 : 0.125;
    if (test_between(random, 0, 3) == 0) p->eps = 0.1;
    c->in_place = p->op == NHOOD_OP_FWD && test_between(random, 0, 3) == 0;
    nhood_strides *const strides[] = {&p->x, &p->y, &p->d_y, &p->d_x};
    for (int t = 0; t < 4; t++) {
        const bool input = t == 0 || t == 2;
        const int64_t kind = test_between(random, 0, 4),
                      pad = 2 * test_between(random, 0, 1) * test_between(random, 1, 4);
        int64_t step = p->dim + (kind == 3 ? pad : 0);
        if (kind < 2) continue; /* packed */
        strides[t]->head = step;
        step *= p->heads * (kind == 2 ? 3 : 1); /* as in a joint projection of q, k and v */
        for (int a = p->rank - 1; a >= 0; a--) {
            strides[t]->axis[a] = input && kind == 4 && a == 0 ? -step : step;
            step *= p->length[a];
        }
        strides[t]->batch = input && kind == 4 && !c->in_place ? 0 : step;
    }
    if (c->in_place) p->y = p->x;
}

#endif
