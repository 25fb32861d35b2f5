/* Features, queries, keys and values; moments; patches back to samples. */
#include "moments.h"

#include <nhood.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

void settings_defaults(const struct grid *grid, struct settings *settings) {
    static const int64_t patch[4] = {0, 21, 5, 3},
                         window[4][3] = {{0}, {1, 1, 2001}, {1, 21, 21}, {5, 7, 7}};
    static const int components[4] = {0, 8, 32, 27}, features[4] = {0, 8, 7, 8};
    memset(settings, 0, sizeof *settings);
    settings->patches.length = grid->channels;
    for (int a = 0; a < 3; a++) {
        settings->patches.size[a] = a >= 3 - grid->rank ? patch[grid->rank] : 1;
        settings->patches.length *= (int)settings->patches.size[a];
        settings->window[a] = window[grid->rank][a];
        if (settings->window[a] > grid->extent[a]) settings->window[a] = grid->extent[a];
    }
    settings->components = components[grid->rank];
    if (settings->components > settings->patches.length)
        settings->components = settings->patches.length;
    settings->features = features[grid->rank];
    settings->softness = grid->rank == 2 ? 45 : 24;
    settings->dtype = NHOOD_DTYPE_F32;
    settings->moments = true;
}

/* The norm's place in q for half types: q.k = f_i.f_j - |f_j|^2 / 2 with every entry of moderate size. */
static const float norm_share = 64;
/* Squares of coefficients overflow f16; values of half types are kept small. */
static const float half_gain = 1.0f / 512;

struct work {
    int64_t tokens;
    float *coefficient, *q, *k, *v, *out;
};

static bool work_create(const struct settings *settings, const struct attention *attention,
                        int64_t tokens, struct work *work) {
    size_t n = (size_t)tokens, count = (size_t)settings->components;
    *work = (struct work){tokens,
                          malloc(n * count * sizeof(float)),
                          malloc(n * (size_t)attention->dim * sizeof(float)),
                          malloc(n * (size_t)attention->dim * sizeof(float)),
                          malloc(n * (size_t)attention->dim_v * sizeof(float)),
                          malloc(n * (size_t)attention->dim_v * sizeof(float))};
    if (work->coefficient && work->q && work->k && work->v && work->out) return true;
    return fail("out of memory for %lld tokens", (long long)tokens);
}

static void work_destroy(struct work *work) {
    free(work->coefficient);
    free(work->q);
    free(work->k);
    free(work->v);
    free(work->out);
}

/* q = [f, 1], k = [f, -|f|^2 / 2], so that scale q.k differs from -|f_i - f_j|^2 / h^2 by a constant per
 * query, which softmax removes. Values are the coefficients and, for moments, their squares. */
static void make_tensors(const struct settings *settings, struct attention *attention,
                         struct work *work) {
    int features = settings->features, count = settings->components, dim = attention->dim;
    bool half = settings->dtype != NHOOD_DTYPE_F32;
    float gain = half ? (float)sqrt(attention->scale) : 1, share = half ? norm_share : 1;
    float value_gain = half ? half_gain : 1;
    for (int64_t i = 0; i < work->tokens; i++) {
        const float *a = work->coefficient + i * count;
        float norm = 0, *q = work->q + i * dim, *k = work->k + i * dim,
              *v = work->v + i * attention->dim_v;
        for (int c = 0; c < features; c++) {
            q[c] = k[c] = gain * a[c];
            norm += q[c] * q[c];
        }
        q[features] = share;
        k[features] = -norm / (2 * share);
        for (int c = 0; c < count; c++) {
            v[c] = value_gain * a[c];
            if (settings->moments) v[count + c] = value_gain * a[c] * a[c];
        }
    }
    if (half) attention->scale = 1;
}

/* Coefficients from attended moments: mean + (variance - noise) / variance * (coefficient - mean), with 1.2
 * times the noise's variance, because the attended tokens were chosen for looking alike. */
static void shrink(const struct settings *settings, struct work *work) {
    int count = settings->components, dim_v = settings->moments ? 2 * count : count;
    float value_gain = settings->dtype == NHOOD_DTYPE_F32 ? 1 : half_gain;
    float noise = (float)(1.2 * settings->sigma * settings->sigma);
    float least = 1e-6f * (noise < 1 ? noise : 1);
    for (int64_t i = 0; i < work->tokens; i++)
        for (int c = 0; c < count; c++) {
            const float *out = work->out + i * dim_v;
            float *a = work->coefficient + i * count + c, mean = out[c] / value_gain;
            if (!settings->moments) {
                *a = mean;
                continue;
            }
            float variance = out[count + c] / value_gain - mean * mean;
            float signal = variance > noise ? variance - noise : 0;
            *a = mean + signal / (variance > least ? variance : least) * (*a - mean);
        }
}

static void set_attention(const struct grid *noisy, const struct settings *settings,
                          struct attention *attention) {
    *attention = (struct attention){.rank = noisy->rank,
                                    .causal = settings->causal,
                                    .dim = settings->features + 1,
                                    .dim_v = settings->components * (settings->moments ? 2 : 1),
                                    .dtype = settings->dtype,
                                    .threads = settings->threads};
    memcpy(attention->extent, noisy->extent, sizeof attention->extent);
    memcpy(attention->window, settings->window, sizeof attention->window);
    attention->scale = 2 / (settings->softness * settings->sigma * settings->sigma);
    /* A token matches its own noise: lower its logit by what the noise adds to other distances. */
    attention->self_bias = -2 * settings->features / settings->softness;
}

bool denoise(const struct grid *noisy, const struct settings *settings, struct grid *clean,
             struct timing *timing) {
    double start = seconds_now();
    struct components components;
    struct attention attention;
    struct work work = {0};
    set_attention(noisy, settings, &attention);
    timing->dim = attention.dim;
    timing->dim_v = attention.dim_v;
    timing->plain_tokens = 0;
    if (!components_create(noisy, &settings->patches, settings->components, &components))
        return false;
    bool ok = work_create(settings, &attention, grid_tokens(noisy), &work);
    if (ok) {
        components_project(noisy, &settings->patches, &components, work.coefficient);
        make_tensors(settings, &attention, &work);
        if (settings->causal)
            attention.self_bias = 0; /* the library's bias needs axes without causality */
        ok = attention_run(&attention, work.q, work.k, work.v, work.out, &timing->attention);
    }
    double pause = seconds_now();
    if (ok && settings->plain_tokens) {
        timing->plain_tokens =
            settings->plain_tokens < work.tokens ? settings->plain_tokens : work.tokens;
        timing->plain_seconds =
            attention_plain_loop(&attention, work.q, work.k, work.v, work.out, timing->plain_tokens,
                                 &timing->plain_difference);
    }
    start += seconds_now() - pause; /* the comparison is not part of the job */
    if (ok) {
        shrink(settings, &work);
        ok = grid_copy(noisy, clean) &&
             components_assemble(&settings->patches, &components, work.coefficient, clean);
    }
    timing->total_seconds = seconds_now() - start;
    work_destroy(&work);
    components_destroy(&components);
    return ok;
}
