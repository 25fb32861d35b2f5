/* Neighborhood attention as a plain loop, f32, two axes, heads last: what is written in an afternoon and left
 * to the compiler (-O3 -march=native -ffast-math). A peer of bench/cpu/cpu_peers.py, and nothing the library uses.
 *
 * Calls take a range of (batch, head) pairs, which are independent, so that threads can share the work. */
#include <math.h>
#include <stdint.h>

struct plain_problem {
    int64_t batch, heads, dim;
    int64_t length[2], window[2], dilation[2];
    float scale;
};

/* First key of token i's window on one axis; the others follow at steps of dilation. */
static int64_t first_key(const struct plain_problem *p, int axis, int64_t i) {
    int64_t dilation = p->dilation[axis], window = p->window[axis], group = i % dilation;
    int64_t group_length = (p->length[axis] - group + dilation - 1) / dilation;
    int64_t start = i / dilation - window / 2;
    if (start > group_length - window) start = group_length - window;
    if (start < 0) start = 0;
    return start * dilation + group;
}

/* Row of (batch, x, y, head), in vectors of dim. */
static int64_t row_of(const struct plain_problem *p, int64_t pair, int64_t x, int64_t y) {
    int64_t batch = pair / p->heads, head = pair % p->heads;
    return ((batch * p->length[0] + x) * p->length[1] + y) * p->heads + head;
}

static float dot(const float *restrict a, const float *restrict b, int64_t count) {
    float sum = 0;
    for (int64_t c = 0; c < count; c++)
        sum += a[c] * b[c];
    return sum;
}

static void add_scaled(float *restrict sum, float factor, const float *restrict a, int64_t count) {
    for (int64_t c = 0; c < count; c++)
        sum[c] += factor * a[c];
}

/* The logits of one query, in `weights`; returns the largest. */
static float score(const struct plain_problem *p, const float *q, const float *k, int64_t pair,
                   int64_t x, int64_t y, float *weights) {
    int64_t x0 = first_key(p, 0, x), y0 = first_key(p, 1, y), n = 0;
    const float *query = q + row_of(p, pair, x, y) * p->dim;
    float largest = -INFINITY;
    for (int64_t i = 0; i < p->window[0]; i++)
        for (int64_t j = 0; j < p->window[1]; j++) {
            int64_t key = row_of(p, pair, x0 + i * p->dilation[0], y0 + j * p->dilation[1]);
            float logit = p->scale * dot(query, k + key * p->dim, p->dim);
            weights[n++] = logit;
            if (logit > largest) largest = logit;
        }
    return largest;
}

/* weights has room for one window. */
void plain_forward(const struct plain_problem *p, const float *q, const float *k, const float *v,
                   float *out, float *lse, float *weights, int64_t pair_begin, int64_t pair_end) {
    for (int64_t pair = pair_begin; pair < pair_end; pair++)
        for (int64_t x = 0; x < p->length[0]; x++)
            for (int64_t y = 0; y < p->length[1]; y++) {
                int64_t x0 = first_key(p, 0, x), y0 = first_key(p, 1, y), n = 0;
                int64_t row = row_of(p, pair, x, y), count = p->window[0] * p->window[1];
                float largest = score(p, q, k, pair, x, y, weights), total = 0;
                for (int64_t i = 0; i < count; i++)
                    total += weights[i] = expf(weights[i] - largest);
                float *sum = out + row * p->dim;
                for (int64_t c = 0; c < p->dim; c++)
                    sum[c] = 0;
                for (int64_t i = 0; i < p->window[0]; i++)
                    for (int64_t j = 0; j < p->window[1]; j++) {
                        int64_t key =
                            row_of(p, pair, x0 + i * p->dilation[0], y0 + j * p->dilation[1]);
                        add_scaled(sum, weights[n++] / total, v + key * p->dim, p->dim);
                    }
                lse[row] = largest + logf(total);
            }
}

/* d_q, d_k and d_v start at zero. */
void plain_backward(const struct plain_problem *p, const float *q, const float *k, const float *v,
                    const float *out, const float *lse, const float *d_out, float *d_q, float *d_k,
                    float *d_v, float *weights, int64_t pair_begin, int64_t pair_end) {
    int64_t dim = p->dim;
    for (int64_t pair = pair_begin; pair < pair_end; pair++)
        for (int64_t x = 0; x < p->length[0]; x++)
            for (int64_t y = 0; y < p->length[1]; y++) {
                int64_t x0 = first_key(p, 0, x), y0 = first_key(p, 1, y), n = 0;
                int64_t row = row_of(p, pair, x, y);
                float delta = dot(d_out + row * dim, out + row * dim, dim);
                score(p, q, k, pair, x, y, weights);
                for (int64_t i = 0; i < p->window[0]; i++)
                    for (int64_t j = 0; j < p->window[1]; j++) {
                        int64_t key =
                            row_of(p, pair, x0 + i * p->dilation[0], y0 + j * p->dilation[1]);
                        float weight = expf(weights[n++] - lse[row]);
                        float d_p = dot(d_out + row * dim, v + key * dim, dim);
                        float d_s = p->scale * weight * (d_p - delta);
                        add_scaled(d_q + row * dim, d_s, k + key * dim, dim);
                        add_scaled(d_k + key * dim, d_s, q + row * dim, dim);
                        add_scaled(d_v + key * dim, weight, d_out + row * dim, dim);
                    }
            }
}
