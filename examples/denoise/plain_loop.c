/* The same attention as anybody would first write it in C: for every token, a loop over its window. */
#include "attention.h"

#include <math.h>
#include <stdlib.h>

static int64_t clamp(int64_t value, int64_t low, int64_t high) {
    return value < low ? low : value > high ? high : value;
}

static void one_token(const struct attention *attention, const float *q, const float *k,
                      const float *v, const int64_t at[3], float *weight, float *out) {
    const int64_t *extent = attention->extent, *window = attention->window;
    /* Tokens are numbered in the whole grid; the tensors begin at those of the band. */
    int64_t start[3], end[3], token = (at[0] * extent[1] + at[1]) * extent[2] + at[2];
    int64_t slice = attention_slice(attention), first_key = attention->band.from * slice;
    q += (token - attention->band.first * slice) * attention->dim;
    for (int a = 0; a < 3; a++) {
        bool causal = attention->causal && a == 3 - attention->rank;
        start[a] = causal ? clamp(at[a] - window[a] + 1, 0, at[a])
                          : clamp(at[a] - window[a] / 2, 0, extent[a] - window[a]);
        end[a] = causal ? at[a] + 1 : start[a] + window[a];
    }
    float largest = -INFINITY, sum = 0;
    int64_t n = 0;
    for (int64_t z = start[0]; z < end[0]; z++)
        for (int64_t y = start[1]; y < end[1]; y++)
            for (int64_t x = start[2]; x < end[2]; x++, n++) {
                int64_t key = (z * extent[1] + y) * extent[2] + x;
                float score = 0;
                for (int c = 0; c < attention->dim; c++)
                    score += q[c] * k[(key - first_key) * attention->dim + c];
                weight[n] = (float)attention->scale * score +
                            (key == token ? (float)attention->self_bias : 0);
                if (weight[n] > largest) largest = weight[n];
            }
    for (int c = 0; c < attention->dim_v; c++)
        out[c] = 0;
    n = 0;
    for (int64_t z = start[0]; z < end[0]; z++)
        for (int64_t y = start[1]; y < end[1]; y++)
            for (int64_t x = start[2]; x < end[2]; x++, n++) {
                int64_t key = (z * extent[1] + y) * extent[2] + x - first_key;
                float p = expf(weight[n] - largest);
                sum += p;
                for (int c = 0; c < attention->dim_v; c++)
                    out[c] += p * v[key * attention->dim_v + c];
            }
    for (int c = 0; c < attention->dim_v; c++)
        out[c] /= sum;
}

double attention_plain_loop(const struct attention *attention, const float *q, const float *k,
                            const float *v, const float *out, int64_t tokens, double *difference) {
    const int64_t *extent = attention->extent, slice = attention_slice(attention);
    int64_t first = attention->band.first * slice, all = attention->band.count * slice;
    int64_t slots = attention->window[0] * attention->window[1] * attention->window[2];
    float *weight = malloc((size_t)(slots + attention->dim_v) * sizeof *weight);
    *difference = 0;
    if (!weight) return 0;
    float *row = weight + slots, worst = 0, largest = 0;
    if (tokens > all) tokens = all;
    double start = seconds_now();
    for (int64_t i = 0; i < tokens; i++) { /* spread evenly, so that borders get their share */
        int64_t row_of_out = i * all / tokens, token = first + row_of_out;
        const int64_t at[3] = {token / (extent[1] * extent[2]), token / extent[2] % extent[1],
                               token % extent[2]};
        one_token(attention, q, k, v, at, weight, row);
        for (int c = 0; c < attention->dim_v; c++) {
            float error = fabsf(row[c] - out[row_of_out * attention->dim_v + c]);
            if (!(error <= worst)) worst = error;
            if (fabsf(row[c]) > largest) largest = fabsf(row[c]);
        }
    }
    double seconds = (seconds_now() - start) * (double)all / (double)tokens;
    free(weight);
    *difference = (double)worst / ((double)largest + 1e-30);
    return seconds;
}
