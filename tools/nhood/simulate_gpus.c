#include "simulate_gpus.h"

#include "candidates.h"
#include "output.h"
#include "storage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what travels ---- */

static int64_t kv_heads_of(const nhood_problem *problem) {
    return problem->kv_heads ? problem->kv_heads : problem->heads;
}

/* The bytes of keys and values, or of their gradients, of one token. */
static double key_bytes(const nhood_problem *problem) {
    const int64_t dim_v = problem->dim_v ? problem->dim_v : problem->dim;
    return (double)(problem->batch * kv_heads_of(problem) * (problem->dim + dim_v)) *
           (double)storage_bytes(problem->dtype);
}

/* Tokens on the other GPUs that the queries of a shard between others attend, on one axis. */
static double halo(const nhood_axis *axis, int64_t length) {
    const double around = (double)((axis->window - 1 + axis->stride - 1) * axis->dilation);
    return fmin(around, (double)(axis->length - length));
}

/* A shard's queries: their share of a grid that has all their keys, so that their windows look as in the whole grid. */
static double compute_of(const struct target *target, const nhood_problem *problem,
                         const int64_t shards[3]) {
    nhood_problem part = *problem;
    double share = 1;
    for (int32_t a = 0; a < part.rank; a++) {
        nhood_axis *axis = &part.axis[a];
        const int64_t length = (axis->length + shards[a] - 1) / shards[a];
        if (shards[a] == 1) continue;
        const int64_t seen = length + (int64_t)halo(axis, length);
        share *= (double)length / (double)seen;
        axis->length = seen;
        axis->periodic = 0; /* a part of a circle */
    }
    return candidates_least_ns(target, &part, NULL) * share;
}

static void finish(const struct gpus *gpus, double alone_ns, struct sharding *s) {
    s->total_ns = fmax(s->travel_ns, s->compute_ns * s->hidden) + s->compute_ns * (1 - s->hidden);
    s->efficiency = alone_ns / ((double)gpus->count * s->total_ns);
}

/* Axes travel one after the other: what came along one goes on along the next. */
static struct sharding by_keys(const struct gpus *gpus, const nhood_problem *problem,
                               const int64_t shards[3], bool everything, double compute_ns) {
    struct sharding s = {everything ? "gather" : "halo", {1, 1, 1}, compute_ns, 0, 0, 0, 1, 0};
    double extent[3], tokens = 1;
    int collectives = 0;
    for (int32_t a = 0; a < problem->rank; a++) {
        s.shards[a] = shards[a];
        extent[a] = ceil((double)problem->axis[a].length / (double)shards[a]);
        tokens *= extent[a];
    }
    for (int32_t a = 0; a < problem->rank; a++) {
        if (shards[a] == 1) continue;
        const double length = (double)problem->axis[a].length;
        const double needs =
            everything ? length - extent[a] : halo(&problem->axis[a], (int64_t)extent[a]);
        s.sent_bytes += tokens / extent[a] * needs * key_bytes(problem);
        s.hidden *= everything ? 0 : fmax(0, 1 - needs / extent[a]);
        collectives += needs > 0;
        tokens *= (extent[a] + needs) / extent[a];
        extent[a] += needs;
    }
    s.travel_ns = s.sent_bytes / gpus->link_gb_per_s + collectives * gpus->latency_us * 1e3;
    return s;
}

/* Each GPU computes some of the heads for the whole grid; all tensors travel before or afterwards. */
static struct sharding by_heads(const struct gpus *gpus, const nhood_problem *problem,
                                double compute_ns) {
    struct sharding s = {"heads", {1, 1, 1}, compute_ns, 0, 0, 0, 0, 0};
    const double count = (double)gpus->count;
    double tokens = 1;
    for (int32_t a = 0; a < problem->rank; a++)
        tokens *= (double)problem->axis[a].length;
    const double per_token =
        key_bytes(problem) * (1 + (double)problem->heads / (double)kv_heads_of(problem));
    s.sent_bytes = tokens / count * per_token * (1 - 1 / count);
    s.travel_ns = s.sent_bytes / gpus->link_gb_per_s + 2 * gpus->latency_us * 1e3;
    return s;
}

/* ---- all ways ---- */

static int compare(const void *one, const void *other) {
    const double a = ((const struct sharding *)one)->total_ns;
    const double b = ((const struct sharding *)other)->total_ns;
    return (a > b) - (a < b);
}

/* Whether every GPU has tokens, and no axis is cut that the problem does not have. */
static bool fits(const nhood_problem *problem, const int64_t shards[3]) {
    for (int32_t a = 0; a < 3; a++)
        if (shards[a] > (a < problem->rank ? problem->axis[a].length : 1)) return false;
    return true;
}

int gpus_shardings(const struct target *target, const struct gpus *gpus,
                   const nhood_problem *problem, double alone_ns,
                   struct sharding sharding[MOST_SHARDINGS]) {
    int count = 0;
    const int64_t n = gpus->count, kv_heads = kv_heads_of(problem);
    for (int64_t first = 1; first <= n; first++)
        for (int64_t second = 1; n % first == 0 && second <= n / first; second++) {
            const int64_t shards[3] = {first, second, n / first / second};
            if (n / first % second || !fits(problem, shards)) continue;
            const double compute_ns = compute_of(target, problem, shards);
            for (int everything = 0; everything < 2; everything++) {
                sharding[count] = by_keys(gpus, problem, shards, everything, compute_ns);
                finish(gpus, alone_ns, &sharding[count]);
                if (!isnan(compute_ns)) count++;
            }
        }
    if (problem->heads % n == 0 && kv_heads % n == 0) {
        nhood_problem part = *problem;
        part.heads /= n;
        part.kv_heads = kv_heads / n;
        sharding[count] = by_heads(gpus, problem, candidates_least_ns(target, &part, NULL));
        finish(gpus, alone_ns, &sharding[count]);
        if (!isnan(sharding[count].compute_ns)) count++;
    }
    qsort(sharding, (size_t)count, sizeof *sharding, compare);
    return count;
}

/* ---- printing ---- */

static const char *shards_text(const struct sharding *s, int32_t rank, char text[64]) {
    int used = 0;
    for (int32_t a = 0; a < rank; a++)
        used += snprintf(text + used, 64 - (size_t)used, "%s%lld", a ? "x" : "",
                         (long long)s->shards[a]);
    return text;
}

void gpus_print(const struct gpus *gpus, const nhood_problem *problem,
                const struct sharding *sharding, int count) {
    enum { SHOWN = 8 };
    printf("on %lld GPUs, %g GB/s each way, %g us per collective:\n", (long long)gpus->count,
           gpus->link_gb_per_s, gpus->latency_us);
    printf("  strategy  shards      time       computing  travelling sent       hidden  "
           "efficiency\n");
    for (int i = 0; i < count && i < SHOWN; i++) {
        const struct sharding *s = &sharding[i];
        char shards[64], total[UNIT_BYTES], compute[UNIT_BYTES], travel[UNIT_BYTES],
            sent[UNIT_BYTES];
        printf("  %-10s%-12s%-11s%-11s%-11s%-11s%3.0f %%   %.2f\n", s->strategy,
               shards_text(s, problem->rank, shards), time_text(s->total_ns, total),
               time_text(s->compute_ns, compute), time_text(s->travel_ns, travel),
               size_text(s->sent_bytes, sent), 100 * s->hidden, s->efficiency);
    }
    if (!count) printf("  no axis is that long, and the heads do not divide\n");
}

void gpus_print_json(const struct sharding *sharding, int count, int32_t rank) {
    json_list_begin("shardings");
    for (int i = 0; i < count; i++) {
        const struct sharding *s = &sharding[i];
        char shards[64];
        json_list_object();
        json_text("strategy", s->strategy);
        json_text("shards", shards_text(s, rank, shards));
        json_number("total_ns", s->total_ns);
        json_number("compute_ns", s->compute_ns);
        json_number("travel_ns", s->travel_ns);
        json_number("sent_bytes", s->sent_bytes);
        json_number("hidden", s->hidden);
        json_number("efficiency", s->efficiency);
        json_object_end();
    }
    json_list_end();
}
