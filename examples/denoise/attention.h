/* The one neighborhood-attention call of the denoiser, through the nhood library; and the same attention as
 * a plain C loop, to compare with. */
#ifndef ATTENTION_H
#define ATTENTION_H

#include "grid.h"

/* Slices along the slowest axis: queries [first, first + count), keys and values [from, from + slices). */
struct band {
    int64_t first, count, from, slices;
};

struct attention {
    int rank;
    int64_t extent[3], window[3]; /* of the whole grid; the last `rank` entries count */
    struct band band;             /* what the tensors hold of it */
    int causal;                   /* 1: the slowest axis is causal */
    int dim;                      /* features and one dimension for the norm */
    int dim_v;
    double scale;     /* of f32 storage; folded into q and k for f16 and bf16 */
    double self_bias; /* bias of a token's own logit, 0 for none */
    int dtype;        /* NHOOD_DTYPE_* */
    int threads;      /* 0: all */
};

struct attention_report {
    double seconds, flops; /* of the call, plan and conversion left out */
    int calls;
    char description[512]; /* of the first call */
};

void attention_report_add(struct attention_report *sum, const struct attention_report *report);

int64_t attention_slice(const struct attention *attention); /* tokens of one */

/* out[token][dim_v] = softmax(scale * q.k + bias) v over each token's window in the whole grid. q, k: [token][dim], out and
 * q of the band's queries, k and v of its keys; q, k and v are only read. */
bool attention_run(const struct attention *attention, float *q, float *k, float *v, float *out,
                   struct attention_report *report);

/* Seconds a plain loop takes for all of the band's queries, extrapolated from `tokens` of them; *difference is the largest
 * difference from out, relative to the largest value. */
double attention_plain_loop(const struct attention *attention, const float *q, const float *k,
                            const float *v, const float *out, int64_t tokens, double *difference);

double seconds_now(void);

#endif
