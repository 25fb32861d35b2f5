/* nhood: context, problem, plan, execute. */
#include "attention.h"

#include <nhood.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

double seconds_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- storage types: round to nearest even ---- */

static uint16_t to_half(float value, int dtype) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == NHOOD_DTYPE_BF16) return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
    uint32_t sign = (bits >> 16) & 0x8000, size = bits & 0x7fffffff;
    if (size >= 0x477ff000) return (uint16_t)(sign | 0x7c00);
    if (size < 0x38800000) { /* subnormal: let the addition of 0.5 round at 2^-24 */
        float shifted;
        memcpy(&shifted, &size, sizeof shifted);
        shifted += 0.5f;
        memcpy(&size, &shifted, sizeof size);
        return (uint16_t)(sign | (size - 0x3f000000));
    }
    size += 0xfff + ((size >> 13) & 1);
    return (uint16_t)(sign | ((size - (112u << 23)) >> 13));
}

static float from_half(uint16_t half, int dtype) {
    uint32_t bits = (uint32_t)half << 16;
    if (dtype == NHOOD_DTYPE_F16) {
        uint32_t size = half & 0x7fff;
        if (size < 0x400) return (half & 0x8000 ? -1.0f : 1.0f) * (float)size * 0x1p-24f;
        bits = (uint32_t)(half & 0x8000) << 16 |
               ((size << 13) + (size >= 0x7c00 ? 224u << 23 : 112u << 23));
    }
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Values in storage type: the floats themselves, or a copy; NULL if there is no memory for it. */
static void *stored(float *values, int64_t count, int dtype) {
    if (dtype == NHOOD_DTYPE_F32) return values;
    uint16_t *copy = malloc((size_t)count * sizeof *copy);
    for (int64_t i = 0; copy && i < count; i++)
        copy[i] = to_half(values[i], dtype);
    return copy;
}

/* ---- the call ---- */

int64_t attention_slice(const struct attention *attention) {
    int64_t tokens = 1;
    for (int a = 4 - attention->rank; a < 3; a++)
        tokens *= attention->extent[a];
    return tokens;
}

static void set_problem(const struct attention *attention, nhood_problem *problem) {
    const struct band *band = &attention->band;
    nhood_problem_init(problem, NHOOD_OP_FWD, attention->dtype, attention->rank);
    problem->region[0] = (nhood_region){band->first, band->count, band->from, band->slices};
    for (int a = 0; a < attention->rank; a++) {
        int from = 3 - attention->rank + a;
        problem->axis[a].length = attention->extent[from];
        problem->axis[a].window = attention->window[from];
        problem->axis[a].causal = a == 0 ? attention->causal : 0;
    }
    problem->dim = attention->dim;
    problem->dim_v = attention->dim_v;
    problem->scale = attention->scale;
    problem->has_bias = attention->self_bias != 0;
}

/* A table whose only entry is that of displacement 0: its middle. */
static void *make_bias(const struct attention *attention) {
    int64_t count = 1;
    for (int a = 3 - attention->rank; a < 3; a++)
        count *= 2 * attention->window[a] - 1;
    float *table = calloc((size_t)count, sizeof *table);
    if (!table) return NULL;
    table[count / 2] = (float)attention->self_bias;
    void *bias = stored(table, count, attention->dtype);
    if (bias != table) free(table);
    return bias;
}

struct call {
    nhood_context *context;
    nhood_plan *plan;
    nhood_io io;
};

static void call_destroy(const struct attention *attention, struct call *call) {
    nhood_plan_release(call->plan);
    nhood_context_destroy(call->context);
    free(call->io.workspace);
    free(call->io.data[NHOOD_BIAS]);
    for (int tensor = NHOOD_Q; attention->dtype != NHOOD_DTYPE_F32 && tensor <= NHOOD_O; tensor++)
        free(call->io.data[tensor]);
}

static bool call_create(const struct attention *attention, const nhood_problem *problem, float *q,
                        float *k, float *v, float *out, struct call *call) {
    nhood_context_options options = {.struct_size = sizeof options, .threads = attention->threads};
    if (nhood_context_create(&options, &call->context) ||
        nhood_plan_create(call->context, 0, problem, NULL, &call->plan))
        return fail("nhood: %s", nhood_last_error());
    int64_t slice = attention_slice(attention), tokens = attention->band.count * slice,
            keys = attention->band.slices * slice;
    nhood_io *io = &call->io;
    io->struct_size = sizeof *io;
    io->data[NHOOD_Q] = stored(q, tokens * attention->dim, attention->dtype);
    io->data[NHOOD_K] = stored(k, keys * attention->dim, attention->dtype);
    io->data[NHOOD_V] = stored(v, keys * attention->dim_v, attention->dtype);
    io->data[NHOOD_O] = attention->dtype == NHOOD_DTYPE_F32
                            ? (void *)out
                            : malloc((size_t)(tokens * attention->dim_v) * sizeof(uint16_t));
    if (problem->has_bias) io->data[NHOOD_BIAS] = make_bias(attention);
    io->workspace_bytes = nhood_plan_workspace_bytes(call->plan);
    io->workspace = aligned_alloc(64, io->workspace_bytes ? io->workspace_bytes : 64);
    if (!io->data[NHOOD_Q] || !io->data[NHOOD_K] || !io->data[NHOOD_V] || !io->data[NHOOD_O] ||
        (problem->has_bias && !io->data[NHOOD_BIAS]) || !io->workspace)
        return fail("out of memory for the attention of %lld tokens", (long long)tokens);
    return true;
}

void attention_report_add(struct attention_report *sum, const struct attention_report *report) {
    if (!sum->calls) memcpy(sum->description, report->description, sizeof sum->description);
    sum->calls += report->calls;
    sum->seconds += report->seconds;
    sum->flops += report->flops;
}

bool attention_run(const struct attention *attention, float *q, float *k, float *v, float *out,
                   struct attention_report *report) {
    nhood_problem problem;
    struct call call = {0};
    set_problem(attention, &problem);
    bool ok = call_create(attention, &problem, q, k, v, out, &call);
    double start = seconds_now();
    if (ok && nhood_plan_execute(call.plan, &call.io)) ok = fail("nhood: %s", nhood_last_error());
    if (ok) {
        report->calls = 1;
        report->seconds = seconds_now() - start;
        nhood_problem_cost(&problem, &report->flops, NULL);
        snprintf(report->description, sizeof report->description, "%s",
                 nhood_plan_description(call.plan));
        int64_t count = attention->band.count * attention_slice(attention) * attention->dim_v;
        const uint16_t *half = call.io.data[NHOOD_O];
        for (int64_t i = 0; attention->dtype != NHOOD_DTYPE_F32 && i < count; i++)
            out[i] = from_half(half[i], attention->dtype);
    }
    call_destroy(attention, &call);
    return ok;
}
