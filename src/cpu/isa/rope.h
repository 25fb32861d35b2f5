/* RMS norm and rotary positions of a part of the tokens.
 *
 * The rows that share a norm are converted to reals side by side, processed in whole vectors, and converted back. For each
 * token, the cosines and sines of its position are spread over the channels of a head, so that a head is rotated by whole
 * vectors: y[c] = z[c] * cosine[c] + z[partner of c] * sine[c], with negative sines at the first channel of a pair. Rotating
 * gradients back is the same with all sines negated. Vectors reach beyond the last channel of a row. Every array has room for
 * that, and rows and tables are 0 there, so that sums are not affected. */
#ifndef NH_ROPE_H
#define NH_ROPE_H

#include "kernels.h"
#include "simd.h"

#include <math.h>

/* Functions that run once per part are compiled for size. */
#define ROPE_ONCE static __attribute__((noinline, cold))

/* The number of rows of weight gradients that are added up before their sum goes to that of the part, which is f64. */
enum { ROPE_CHAIN = 64 };

struct rope {
    const struct nh_norm_rope *problem;
    const nhood_norm_rope_io *io;
    int64_t dim, half; /* half: pairs that are rotated */
    int64_t group;     /* heads that share a norm */
    int64_t channels;  /* theirs */
    int64_t at[NH_AXES], batch;
    real *cosine, *sine; /* [dim] */
    /* [channels]: weight times scale, the input, what is read or written beside it, the gradient rotated back, the sum of weight
     * gradients over a chain of rows; the last two backward alone */
    real *factor, *row, *other, *gradient, *chain;
    int64_t chained;
    double *sums; /* of the part, or NULL */
};

static int64_t rope_padded(int64_t reals) {
    return nh_ceil_div(reals, NH_ALIGNMENT) * NH_ALIGNMENT + NH_ALIGNMENT;
}

ROPE_ONCE int64_t norm_rope_reals(const struct nh_norm_rope *problem) {
    const int64_t arrays = problem->op == NHOOD_OP_BWD ? 5 : 3;
    return 2 * rope_padded(problem->dim) + arrays * rope_padded(problem->channels);
}

ROPE_ONCE void rope_layout(const struct nh_norm_rope *problem, real *scratch, struct rope *rope) {
    const int64_t dim = rope_padded(problem->dim), channels = rope_padded(problem->channels);
    memset(scratch, 0, (size_t)norm_rope_reals(problem) * sizeof *scratch);
    rope->cosine = scratch;
    rope->sine = scratch + dim;
    rope->factor = scratch + 2 * dim;
    rope->row = rope->factor + channels;
    rope->other = rope->row + channels;
    if (problem->op == NHOOD_OP_FWD) return;
    rope->gradient = rope->other + channels;
    rope->chain = rope->gradient + channels;
}

/* Spreads an axis' cosines and sines at its position; `sign` is -1 to rotate back. */
static void rope_set_axis(const struct rope *rope, int axis, real sign) {
    const struct nh_norm_rope *problem = rope->problem;
    const int64_t pairs = nh_norm_rope_pairs(problem, axis), first = problem->first_pair[axis];
    if (!pairs) return;
    const bool halves = problem->pairs == NHOOD_PAIRS_HALVES;
    const real *table = rope->io->table[axis - (NH_AXES - problem->rank)];
    table += 2 * pairs * (problem->offset[axis] + rope->at[axis]);
    for (int64_t q = 0; q < pairs; q++) {
        const int64_t p = first + q, a = halves ? p : 2 * p, b = halves ? p + rope->half : a + 1;
        rope->cosine[a] = rope->cosine[b] = table[2 * q];
        rope->sine[b] = sign * table[2 * q + 1];
        rope->sine[a] = -rope->sine[b];
    }
}

/* Advances to the next token. */
static void rope_step(struct rope *rope, real sign) {
    for (int a = NH_AXES - 1; a >= 0; a--) {
        rope->at[a]++;
        const bool carry = rope->at[a] == rope->problem->length[a];
        if (carry) rope->at[a] = 0;
        rope_set_axis(rope, a, sign);
        if (!carry) return;
    }
    rope->batch++;
}

ROPE_ONCE void rope_begin(struct rope *rope, int64_t token, real sign) {
    const struct nh_norm_rope *problem = rope->problem;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        rope->at[a] = token % problem->length[a];
        token /= problem->length[a];
        rope_set_axis(rope, a, sign);
    }
    rope->batch = token;
    for (int64_t c = 0; c < rope->channels; c++) {
        const double weight =
            problem->weight_dtype ? nh_load_f64(problem->weight_dtype, rope->io->weight, c) : 1;
        rope->factor[c] = (real)(problem->scale * weight);
    }
}

/* The address of a head of the token in a tensor. */
static char *rope_head(const struct rope *rope, enum nh_norm_rope_tensor tensor, const void *data,
                       int64_t head) {
    const nhood_strides *s = &rope->problem->strides[tensor];
    const int64_t element = rope->batch * s->batch + rope->at[0] * s->axis[0] +
                            rope->at[1] * s->axis[1] + rope->at[2] * s->axis[2] + head * s->head;
    return (char *)(uintptr_t)data + element * (int64_t)nh_dtype_bytes(rope->problem->dtype);
}

/* Read the heads from `first` on that share a norm, with zeros after the last one, and write them. */
static void rope_read(const struct rope *rope, enum nh_norm_rope_tensor tensor, const void *data,
                      int64_t first, real *to) {
    const int32_t dtype = rope->problem->dtype;
    const int64_t bytes = (int64_t)nh_dtype_bytes(dtype), whole = rope->dim / VL * VL;
    for (int64_t h = 0; h < rope->group; h++, to += rope->dim) {
        const char *from = rope_head(rope, tensor, data, first + h);
        for (int64_t c = 0; c < whole; c += VL)
            v_store(to + c, v_load_as(dtype, from + c * bytes));
        if (whole < rope->dim)
            v_store(to + whole, v_load_part(dtype, from + whole * bytes, (int)(rope->dim - whole)));
    }
}

static void rope_write(const struct rope *rope, enum nh_norm_rope_tensor tensor, const void *data,
                       int64_t first, const real *from) {
    const int32_t dtype = rope->problem->dtype;
    const int64_t bytes = (int64_t)nh_dtype_bytes(dtype), whole = rope->dim / VL * VL;
    for (int64_t h = 0; h < rope->group; h++, from += rope->dim) {
        char *to = rope_head(rope, tensor, data, first + h);
        for (int64_t c = 0; c < whole; c += VL)
            v_store_as(dtype, to + c * bytes, v_load(from + c));
        if (whole < rope->dim)
            v_store_part(dtype, to + whole * bytes, v_load(from + whole), (int)(rope->dim - whole));
    }
}

/* Rotates channels c .. end - 1 of a head. Partners are `apart` channels apart or, if it is 0, neighbors. */
INLINE void rope_turn(const struct rope *rope, const real *from, real *to, int64_t c, int64_t end,
                      int64_t apart) {
    vint neighbor;
    for (int i = 0; i < VL; i++)
        neighbor[i] = i ^ 1;
    for (; c < end; c += VL) {
        const vec z = v_load(from + c);
        const vec partner = apart ? v_load(from + c + apart) : v_permute(z, neighbor);
        v_store(to + c, z * v_load(rope->cosine + c) + partner * v_load(rope->sine + c));
    }
}

/* Rotates the heads. Each stretch of channels overwrites what the one before has written beyond its end. */
static void rope_rotate(const struct rope *rope, const real *from, real *to) {
    const int64_t half = rope->half;
    for (int64_t h = 0; h < rope->group; h++, from += rope->dim, to += rope->dim) {
        if (rope->problem->pairs == NHOOD_PAIRS_HALVES) {
            rope_turn(rope, from, to, 0, half, half);
            rope_turn(rope, from, to, half, 2 * half, -half);
        } else {
            rope_turn(rope, from, to, 0, 2 * half, 0);
        }
        for (int64_t c = 2 * half; c < rope->dim; c += VL)
            v_store(to + c, v_load(from + c));
    }
}

/* 1 / root mean square; 1 without a norm. */
static real rope_norm(const struct rope *rope, vec squares) {
    const real mean = v_sum(squares) / (real)rope->channels + (real)rope->problem->eps;
    if (rope->problem->norm == NHOOD_NORM_NONE) return 1;
    return 1 / (NH_REAL == 64 ? (real)sqrt((double)mean) : (real)sqrtf((float)mean));
}

static void rope_forward(const struct rope *rope, int64_t head) {
    vec squares = {0};
    rope_read(rope, NH_ROPE_X, rope->io->x, head, rope->row);
    for (int64_t c = 0; c < rope->channels; c += VL)
        squares += v_load(rope->row + c) * v_load(rope->row + c);
    const real norm = rope_norm(rope, squares);
    for (int64_t c = 0; c < rope->channels; c += VL)
        v_store(rope->row + c, v_load(rope->row + c) * norm * v_load(rope->factor + c));
    rope_rotate(rope, rope->row, rope->other);
    rope_write(rope, NH_ROPE_Y, rope->io->y, head, rope->other);
}

ROPE_ONCE void rope_end_chain(struct rope *rope) {
    for (int64_t c = 0; c < rope->channels; c++) {
        rope->sums[c] += (double)rope->chain[c];
        rope->chain[c] = 0;
    }
    rope->chained = 0;
}

/* With g = gradient * factor and n = 1 / root mean square: dx = n (g - x n^2 mean(g x)), d_weight = sum of
 * gradient * x n scale. */
static void rope_backward(struct rope *rope, int64_t head) {
    vec squares = {0}, product = {0};
    rope_read(rope, NH_ROPE_X, rope->io->x, head, rope->row);
    rope_read(rope, NH_ROPE_D_Y, rope->io->d_y, head, rope->other);
    rope_rotate(rope, rope->other, rope->gradient);
    for (int64_t c = 0; c < rope->channels; c += VL) {
        const vec x = v_load(rope->row + c);
        squares += x * x;
        product += v_load(rope->gradient + c) * v_load(rope->factor + c) * x;
    }
    const real norm = rope_norm(rope, squares);
    const bool normed = rope->problem->norm != NHOOD_NORM_NONE;
    const real pull = normed ? norm * norm * v_sum(product) / (real)rope->channels : (real)0;
    const real of_weight = norm * (real)rope->problem->scale;
    for (int64_t c = 0; c < rope->channels; c += VL) {
        const vec x = v_load(rope->row + c), g = v_load(rope->gradient + c);
        v_store(rope->other + c, norm * (g * v_load(rope->factor + c) - x * pull));
        v_store(rope->chain + c, v_load(rope->chain + c) + g * x * of_weight);
    }
    if (rope->io->d_x) rope_write(rope, NH_ROPE_D_X, rope->io->d_x, head, rope->other);
    if (rope->sums && ++rope->chained == ROPE_CHAIN) rope_end_chain(rope);
}

static void norm_rope(const struct nh_norm_rope_run *run, int64_t part, int32_t worker) {
    const struct nh_norm_rope *problem = run->problem;
    const bool forward = problem->op == NHOOD_OP_FWD;
    const real sign = forward ? 1 : -1;
    int64_t token = part * run->part_tokens;
    const int64_t end = nh_min(token + run->part_tokens, problem->tokens);
    struct rope rope = {.problem = problem,
                        .io = run->io,
                        .dim = problem->dim,
                        .half = problem->first_pair[NH_AXES],
                        .group = problem->norm == NHOOD_NORM_TOKEN ? problem->heads : 1,
                        .channels = problem->channels};
    rope_layout(problem, (real *)run->scratch + worker * run->scratch_reals, &rope);
    if (run->sums) {
        rope.sums = run->sums + part * problem->channels;
        memset(rope.sums, 0, (size_t)problem->channels * sizeof *rope.sums);
    }
    rope_begin(&rope, token, sign);
    while (token < end) {
        for (int64_t head = 0; head < problem->heads; head += rope.group) {
            if (forward) {
                rope_forward(&rope, head);
            } else {
                rope_backward(&rope, head);
            }
        }
        if (++token < end) rope_step(&rope, sign);
    }
    if (rope.chained) rope_end_chain(&rope);
}

#endif
