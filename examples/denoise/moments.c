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
    settings->memory_bytes = INT64_C(1) << 30;
}

/* The norm's place in q for half types: q.k = f_i.f_j - |f_j|^2 / 2 with every entry of moderate size. */
static const float norm_share = 64;
/* Squares of coefficients overflow f16; values of half types are kept small. */
static const float half_gain = 1.0f / 512;

/* At most `most` slices from `first` on, and those that their windows hold. */
static struct band band_from(const struct attention *whole, int64_t first, int64_t most) {
    int slowest = 3 - whole->rank;
    const nhood_axis axis = {.length = whole->extent[slowest],
                             .window = whole->window[slowest],
                             .stride = 1,
                             .dilation = 1,
                             .causal = whole->causal};
    struct band band = {.first = first, .count = most};
    if (band.count > axis.length - first) band.count = axis.length - first;
    int64_t last = 0, keys = 0;
    nhood_window(&axis, first, &band.from, &keys);
    nhood_window(&axis, first + band.count - 1, &last, &keys);
    band.slices = last + keys - band.from;
    return band;
}

/* As many slices as fit the memory, with keys and values of a window more; but no fewer than a window has, so that keys are
 * made no more than twice. */
static int64_t slices_of_bands(const struct settings *settings, const struct attention *whole) {
    int64_t slice_bytes = attention_slice(whole) * (whole->dim + whole->dim_v) *
                          (settings->dtype == NHOOD_DTYPE_F32 ? 4 : 6);
    int64_t window = whole->window[3 - whole->rank],
            fitting = (settings->memory_bytes / slice_bytes - (window - 1)) / 2;
    return fitting > window ? fitting : window;
}

/* The tensors of a band: of its queries, and of its keys. */
struct work {
    int64_t queries, keys;
    float *q, *k, *v, *out;
};

static float *rows(int64_t tokens, int dim) {
    return malloc((size_t)tokens * (size_t)dim * sizeof(float));
}

static bool work_create(const struct attention *attention, struct work *work) {
    int64_t slice = attention_slice(attention);
    work->queries = attention->band.count * slice;
    work->keys = attention->band.slices * slice;
    work->q = rows(work->queries, attention->dim);
    work->k = rows(work->keys, attention->dim);
    work->v = rows(work->keys, attention->dim_v);
    work->out = rows(work->queries, attention->dim_v);
    if (work->q && work->k && work->v && work->out) return true;
    return fail("out of memory for %lld tokens at a time", (long long)work->keys);
}

static void work_destroy(struct work *work) {
    free(work->q);
    free(work->k);
    free(work->v);
    free(work->out);
}

/* q = [f, 1], k = [f, -|f|^2 / 2], so that scale q.k differs from -|f_i - f_j|^2 / h^2 by a constant per
 * query, which softmax removes. Values are the coefficients and, for moments, their squares. The coefficients are those of
 * the band's keys, of which queries are a part. */
static void make_tensors(const struct settings *settings, const float *coefficient,
                         struct attention *attention, struct work *work) {
    int features = settings->features, count = settings->components, dim = attention->dim;
    bool half = settings->dtype != NHOOD_DTYPE_F32;
    float gain = half ? (float)sqrt(attention->scale) : 1, share = half ? norm_share : 1;
    float value_gain = half ? half_gain : 1;
    int64_t before = (attention->band.first - attention->band.from) * attention_slice(attention);
    for (int64_t i = 0; i < work->keys; i++) {
        const float *a = coefficient + i * count;
        float norm = 0, *k = work->k + i * dim, *v = work->v + i * attention->dim_v;
        for (int c = 0; c < features; c++) {
            k[c] = gain * a[c];
            norm += k[c] * k[c];
        }
        k[features] = -norm / (2 * share);
        if (i >= before && i < before + work->queries) {
            float *q = work->q + (i - before) * dim;
            memcpy(q, k, (size_t)features * sizeof *q);
            q[features] = share;
        }
        for (int c = 0; c < count; c++) {
            v[c] = value_gain * a[c];
            if (settings->moments) v[count + c] = value_gain * a[c] * a[c];
        }
    }
    if (half) attention->scale = 1;
}

/* Coefficients from attended moments: mean + (variance - noise) / variance * (coefficient - mean), with 1.2
 * times the noise's variance, because the attended tokens were chosen for looking alike. */
static void shrink(const struct settings *settings, const float *coefficient, const float *out,
                   int64_t tokens, float *shrunk) {
    int count = settings->components, dim_v = settings->moments ? 2 * count : count;
    float value_gain = settings->dtype == NHOOD_DTYPE_F32 ? 1 : half_gain;
    float noise = (float)(1.2 * settings->sigma * settings->sigma);
    float least = 1e-6f * (noise < 1 ? noise : 1);
    for (int64_t i = 0; i < tokens; i++, out += dim_v)
        for (int c = 0; c < count; c++) {
            float a = coefficient[i * count + c], mean = out[c] / value_gain;
            shrunk[i * count + c] = mean;
            if (!settings->moments) continue;
            float variance = out[count + c] / value_gain - mean * mean;
            float signal = variance > noise ? variance - noise : 0;
            shrunk[i * count + c] += signal / (variance > least ? variance : least) * (a - mean);
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
    /* A token matches its own noise: lower its logit by what the noise adds to other distances. The library's bias
     * needs axes without causality. */
    if (!settings->causal) attention->self_bias = -2 * settings->features / settings->softness;
}

static void time_plain_loop(const struct settings *settings, const struct attention *part,
                            const struct work *work, struct timing *timing) {
    double share = (double)part->band.count / (double)part->extent[3 - part->rank];
    timing->plain_tokens =
        settings->plain_tokens < work->queries ? settings->plain_tokens : work->queries;
    timing->plain_seconds = attention_plain_loop(part, work->q, work->k, work->v, work->out,
                                                 timing->plain_tokens, &timing->plain_difference) /
                            share;
}

/* The band's slices of `shrunk`, from the whole grid's coefficients. */
static bool attend_band(const struct settings *settings, const struct attention *whole,
                        const struct band *band, const float *coefficient, float *shrunk,
                        struct timing *timing) {
    struct attention part = *whole;
    struct attention_report report;
    struct work work;
    int64_t length = attention_slice(whole) * settings->components;
    part.band = *band;
    bool ok = work_create(&part, &work);
    if (ok) {
        make_tensors(settings, coefficient + band->from * length, &part, &work);
        ok = attention_run(&part, work.q, work.k, work.v, work.out, &report);
    }
    if (ok) {
        attention_report_add(&timing->attention, &report);
        shrink(settings, coefficient + band->first * length, work.out, work.queries,
               shrunk + band->first * length);
        double start = seconds_now();
        if (settings->plain_tokens && band->first == 0)
            time_plain_loop(settings, &part, &work, timing);
        timing->comparing_seconds += seconds_now() - start;
    }
    work_destroy(&work);
    return ok;
}

static bool attend(const struct settings *settings, const struct attention *whole,
                   const float *coefficient, float *shrunk, struct timing *timing) {
    int64_t length = whole->extent[3 - whole->rank], most = slices_of_bands(settings, whole);
    bool ok = true;
    for (int64_t first = 0; ok && first < length; first += most) {
        const struct band band = band_from(whole, first, most);
        ok = attend_band(settings, whole, &band, coefficient, shrunk, timing);
    }
    return ok;
}

bool denoise(const struct grid *noisy, const struct settings *settings, struct grid *clean,
             struct timing *timing) {
    double start = seconds_now();
    struct components components;
    struct attention attention;
    set_attention(noisy, settings, &attention);
    *timing = (struct timing){.dim = attention.dim, .dim_v = attention.dim_v};
    if (!components_create(noisy, &settings->patches, settings->components, &components))
        return false;
    size_t bytes = (size_t)grid_tokens(noisy) * (size_t)settings->components * sizeof(float);
    float *coefficient = malloc(bytes), *shrunk = malloc(bytes);
    bool ok = (coefficient && shrunk) ||
              fail("out of memory for %lld tokens", (long long)grid_tokens(noisy));
    if (ok) {
        components_project(noisy, &settings->patches, &components, coefficient);
        ok = attend(settings, &attention, coefficient, shrunk, timing) && grid_copy(noisy, clean) &&
             components_assemble(&settings->patches, &components, shrunk, clean);
    }
    timing->total_seconds = seconds_now() - start - timing->comparing_seconds;
    free(coefficient);
    free(shrunk);
    components_destroy(&components);
    return ok;
}
