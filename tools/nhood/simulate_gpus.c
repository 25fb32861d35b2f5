#include "simulate_gpus.h"

#include "candidates.h"
#include "output.h"
#include "storage.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- what is sent ---- */

static int64_t kv_heads_of(const nhood_problem *problem) {
    return problem->kv_heads ? problem->kv_heads : problem->heads;
}

/* The bytes of keys and values, or of their gradients, of one token. */
static double key_bytes(const nhood_problem *problem) {
    const int64_t dim_v = problem->dim_v ? problem->dim_v : problem->dim;
    return (double)(problem->batch * kv_heads_of(problem) * (problem->dim + dim_v)) *
           (double)storage_bytes(problem->dtype);
}

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* The keys of other GPUs on one side of a shard, and how many of the shard's queries, next to them, attend some of them. */
struct side {
    int64_t queries, keys;
};

/* The shard of one GPU on one axis, with the keys before and behind it. It is the one with most work: one in the middle or, on a
 * causal axis, the last. */
struct shard {
    int64_t begin, end;
    struct side side[2];
};

static int64_t first_key(const nhood_axis *axis, int64_t query) {
    int64_t first = 0, count = 0;
    (void)nhood_window(axis, query, &first, &count);
    return first;
}

static int64_t last_key(const nhood_axis *axis, int64_t query) {
    int64_t first = 0, count = 0;
    (void)nhood_window(axis, query, &first, &count);
    return first + (count - 1) * axis->dilation;
}

/* The number of queries of a dilation group at one end of a shard that attend keys beyond that end. */
static int64_t border_queries(const nhood_axis *axis, const struct shard *shard, bool behind) {
    int64_t low = 0, high = (shard->end - shard->begin + axis->dilation - 1) / axis->dilation;
    while (low < high) {
        const int64_t middle = (low + high) / 2, step = middle * axis->dilation;
        const bool inside = behind ? last_key(axis, shard->end - 1 - step) < shard->end
                                   : first_key(axis, shard->begin + step) >= shard->begin;
        if (inside)
            high = middle;
        else
            low = middle + 1;
    }
    return least(low * axis->dilation, shard->end - shard->begin);
}

static double key_count(const nhood_axis *axis, int64_t query) {
    return (double)((last_key(axis, query) - first_key(axis, query)) / axis->dilation + 1);
}

/* The last shard of a causal axis. Queries at the start of the axis attend few keys, so shards are cut where their queries
 * attend about equally many keys in total, which are counted on a sample of queries. */
static struct shard last_balanced_shard(const nhood_axis *axis, int64_t shards) {
    enum { MOST_QUERIES = 4096 };
    const int64_t step = (axis->length + MOST_QUERIES - 1) / MOST_QUERIES;
    double all = 0, mine = 0;
    for (int64_t query = 0; query < axis->length; query += step)
        all += key_count(axis, query);
    int64_t begin = axis->length;
    while (begin > step && mine < all / (double)shards) {
        begin -= step;
        mine += key_count(axis, begin);
    }
    return (struct shard){begin, axis->length, {{0, 0}, {0, 0}}};
}

static struct shard shard_of(const nhood_axis *axis, int64_t shards) {
    const int64_t length = (axis->length + shards - 1) / shards, begin = shards / 2 * length;
    struct shard shard = {begin, least(begin + length, axis->length), {{0, 0}, {0, 0}}};
    if (shards == 1) return shard;
    if (axis->causal) shard = last_balanced_shard(axis, shards);
    if (axis->periodic) {
        const int64_t around = (axis->window - 1 + axis->stride - 1) * axis->dilation;
        const int64_t keys = least(around, axis->length - (shard.end - begin));
        for (int i = 0; i < 2; i++) {
            shard.side[i].keys = (keys + i) / 2;
            shard.side[i].queries = least(shard.side[i].keys, shard.end - begin);
        }
        return shard;
    }
    for (int64_t i = 0; i < least(axis->dilation, shard.end - begin); i++) {
        const int64_t before = begin - first_key(axis, begin + i);
        const int64_t behind = last_key(axis, shard.end - 1 - i) + 1 - shard.end;
        if (before > shard.side[0].keys) shard.side[0].keys = before;
        if (behind > shard.side[1].keys) shard.side[1].keys = behind;
    }
    for (int i = 0; i < 2; i++)
        if (shard.side[i].keys > 0) shard.side[i].queries = border_queries(axis, &shard, i);
    return shard;
}

/* ---- what is computed ---- */

/* What one launch computes on each axis: the shard's queries with its own keys, or those at its start or end with the keys
 * beyond. */
enum place { OWN, BEFORE, BEHIND, PLACES };

static bool part_of(const nhood_problem *problem, const struct shard shard[3],
                    const enum place place[3], nhood_problem *part) {
    *part = *problem;
    for (int32_t a = 0; a < 3; a++) {
        const int64_t length = problem->axis[a].length, begin = shard[a].begin, end = shard[a].end;
        nhood_region *region = &part->region[a];
        if (a >= problem->rank || end - begin == length) {
            if (place[a] != OWN) return false;
            continue;
        }
        *region = (nhood_region){begin, end - begin, begin, end - begin};
        if (place[a] == OWN) continue;
        const struct side side = shard[a].side[place[a] == BEHIND];
        if (side.keys < 1 || side.queries < 1) return false;
        const int64_t first = place[a] == BEHIND ? end - side.queries : begin;
        const int64_t key = place[a] == BEHIND ? end : begin - side.keys + length;
        *region = (nhood_region){first, side.queries, key % length, side.keys};
    }
    return true;
}

/* own_ns is the time of the launch that needs no keys of other GPUs, halo_ns that of all other launches. They are NaN if a
 * launch cannot be computed. */
static void compute_of(const struct target *target, const nhood_problem *problem,
                       const struct shard shard[3], double *own_ns, double *halo_ns) {
    *own_ns = *halo_ns = 0;
    for (int i = 0; i < PLACES * PLACES * PLACES; i++) {
        const enum place place[3] = {(enum place)(i % PLACES), (enum place)(i / PLACES % PLACES),
                                     (enum place)(i / PLACES / PLACES)};
        nhood_problem part;
        if (part_of(problem, shard, place, &part))
            *(i ? halo_ns : own_ns) += candidates_least_ns(target, &part, NULL);
    }
}

static void finish(const struct gpus *gpus, double alone_ns, struct sharding *s) {
    s->total_ns = fmax(s->travel_ns, s->compute_ns * s->hidden) + s->compute_ns * (1 - s->hidden);
    s->efficiency = alone_ns / ((double)gpus->count * s->total_ns);
}

/* Keys are exchanged axis by axis: those received along one axis are sent on along the next. */
static struct sharding by_keys(const struct gpus *gpus, const nhood_problem *problem,
                               const int64_t shards[3], const struct shard shard[3],
                               bool everything) {
    struct sharding s = {.strategy = everything ? "gather" : "halo", .shards = {1, 1, 1}};
    double extent[3], tokens = 1;
    int collectives = 0;
    for (int32_t a = 0; a < problem->rank; a++) {
        s.shards[a] = shards[a];
        extent[a] = (double)(shard[a].end - shard[a].begin);
        tokens *= extent[a];
    }
    for (int32_t a = 0; a < problem->rank; a++) {
        const double needs = everything ? (double)problem->axis[a].length - extent[a]
                                        : (double)(shard[a].side[0].keys + shard[a].side[1].keys);
        s.sent_bytes += tokens / extent[a] * needs * key_bytes(problem);
        collectives += needs > 0;
        tokens *= (extent[a] + needs) / extent[a];
    }
    s.travel_ns = s.sent_bytes / gpus->link_gb_per_s + collectives * gpus->latency_us * 1e3;
    return s;
}

/* Each GPU computes some of the heads for the whole grid. All tensors are exchanged before or after that. */
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

/* Whether every GPU has tokens, and only axes of the problem are cut. */
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
            struct shard shard[3] = {{0}};
            double own_ns, halo_ns;
            for (int32_t a = 0; a < problem->rank; a++)
                shard[a] = shard_of(&problem->axis[a], shards[a]);
            compute_of(target, problem, shard, &own_ns, &halo_ns);
            for (int everything = 0; everything < 2; everything++) {
                struct sharding *s = &sharding[count];
                *s = by_keys(gpus, problem, shards, shard, everything);
                s->compute_ns = own_ns + halo_ns;
                s->hidden = own_ns / s->compute_ns;
                finish(gpus, alone_ns, s);
                if (!isnan(s->compute_ns)) count++;
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
