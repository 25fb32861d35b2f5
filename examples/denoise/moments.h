/* Denoising by attention moments: each token attends to the tokens of its window whose patches look alike;
 * the attended mean and variance of every patch coefficient give its Wiener estimate. It is a relative of
 * NL-Bayes (Lebrun, Buades, Morel 2013) with a diagonal covariance; no training, no weights. */
#ifndef MOMENTS_H
#define MOMENTS_H

#include "attention.h"
#include "patches.h"

struct settings {
    struct patches patches;
    int64_t window[3];
    int features;    /* d: leading components that decide what looks alike */
    int components;  /* D: components that are denoised */
    double softness; /* c: bandwidth h^2 = c sigma^2 */
    double sigma;
    int causal, dtype, threads;
    bool moments;         /* false: plain non-local means of whole patches (c = 12 suits) */
    int64_t plain_tokens; /* tokens to time the plain loop on; 0: none */
    int64_t memory_bytes; /* of attention tensors at a time: a larger grid is attended in bands */
};

struct timing {
    struct attention_report attention;
    double plain_seconds, plain_difference;
    double total_seconds, comparing_seconds; /* the latter is not part of the former */
    int64_t plain_tokens;
    int dim, dim_v;
};

/* Settings that suit the rank: pictures 5x5 patches and 21x21 windows, volumes 3x3x3 and 5x7x7, signals 21
 * and 2001; windows no larger than the grid. */
void settings_defaults(const struct grid *grid, struct settings *settings);

bool denoise(const struct grid *noisy, const struct settings *settings, struct grid *clean,
             struct timing *timing);

#endif
