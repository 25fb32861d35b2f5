/* Adds up the tiles' partial gradients, always in the order of the tiles (and batch entries, for the bias),
 * whichever thread does it: results do not depend on the number of threads. */
#ifndef NH_REDUCE_H
#define NH_REDUCE_H

#include "backward.h"

/* Jobs of a round, in this order: spans of keys of each unit; extra tokens of each unit; bias tables of each
 * kv head. */
struct reduce_jobs {
    int64_t spans, keys, extra, bias;
};

static struct reduce_jobs count_jobs(const struct nh_tile_run *run) {
    const struct nh_geometry *geometry = run->geometry;
    const struct nh_problem *problem = &geometry->problem;
    struct reduce_jobs jobs = {0};
    if (problem->op != NHOOD_OP_BWD && problem->op != NHOOD_OP_IN) return jobs;
    jobs.spans = (geometry->order[2].length + REDUCE_SPAN - 1) / REDUCE_SPAN;
    if (!geometry->tiles_apart)
        jobs.keys = run->units * geometry->order[0].length * geometry->order[1].length * jobs.spans;
    if (problem->extra_tokens) jobs.extra = run->units;
    if (problem->op == NHOOD_OP_BWD && problem->has_bias) jobs.bias = problem->kv_heads;
    return jobs;
}

static int64_t reduce_jobs(const struct nh_tile_run *run) {
    struct reduce_jobs jobs = count_jobs(run);
    return jobs.keys + jobs.extra + jobs.bias;
}

/* Meanwhile asks for what lies `ahead` reals on. */
static void add_rows(real *sum, const real *part, int64_t reals, int64_t ahead) {
    enum { LINE = 64 / sizeof(real) };
    const struct rows rows = {.ahead = ahead * (int64_t)sizeof(real)};
    for (int64_t i = 0; i < reals; i += VL) {
        if (i % LINE == 0) ask_ahead(&rows, (const char *)(part + i));
        v_store(sum + i, v_load(sum + i) + v_load(part + i));
    }
}

/* Tiles that are added up in one chain, before their sum is added to the total. */
enum { CHAIN_TILES = 32 };

/* Ends a chain after its last tile: `line`, the sums of tiles, goes to `total` and begins anew. */
static void end_chain(const struct scratch *s, int64_t reals, int64_t tiles) {
    if (tiles % CHAIN_TILES != 0) return;
    if (tiles == CHAIN_TILES) memset(s->total, 0, (size_t)reals * sizeof(real));
    add_rows(s->total, s->line, reals, 0);
    memset(s->line, 0, (size_t)reals * sizeof(real));
}

/* Adds the earlier chains to the last. */
static void add_chains(const struct scratch *s, int64_t reals, int64_t tiles) {
    if (tiles >= CHAIN_TILES) add_rows(s->line, s->total, reals, 0);
}

/* Tiles [*first, *last) of an axis whose halo may hold some place of [begin, end): halos never decrease. */
static void tiles_with(const struct nh_geometry *geometry, int axis, int32_t begin, int32_t end,
                       int32_t *first, int32_t *last) {
    const struct nh_order *order = &geometry->order[axis];
    int32_t count = geometry->tile[axis].count, t = 0;
    while (t < count && order->end[nh_tile_end(geometry, axis, t) - 1] <= begin)
        t++;
    *first = t;
    while (t < count && order->begin[nh_tile_first(geometry, axis, t)] < end)
        t++;
    *last = t;
}

/* The tiles whose halo meets the span at (slow, middle, [begin, end)), each with its worker-free geometry. */
static void sum_span(const struct nh_tile_run *run, struct tile *tile, int64_t unit, int32_t slow,
                     int32_t middle, int32_t begin, int32_t end, int64_t offset, int64_t width) {
    const struct nh_geometry *geometry = run->geometry;
    int32_t first[NH_AXES], last[NH_AXES];
    real *line = tile->scratch.line;
    const int64_t reals = (end - begin) * width;
    int64_t tiles = 0;
    tiles_with(geometry, 0, slow, slow + 1, &first[0], &last[0]);
    tiles_with(geometry, 1, middle, middle + 1, &first[1], &last[1]);
    tiles_with(geometry, 2, begin, end, &first[2], &last[2]);
    memset(line, 0, (size_t)reals * sizeof(real));
    for (int32_t t0 = first[0]; t0 < last[0]; t0++)
        for (int32_t t1 = first[1]; t1 < last[1]; t1++)
            for (int32_t t2 = first[2]; t2 < last[2]; t2++) {
                const int32_t index[NH_AXES] = {t0, t1, t2};
                for (int a = 0; a < NH_AXES; a++) {
                    const struct nh_order *order = &geometry->order[a];
                    tile->box.key[a] = order->begin[nh_tile_first(geometry, a, index[a])];
                    tile->box.keys[a] =
                        order->end[nh_tile_end(geometry, a, index[a]) - 1] - tile->box.key[a];
                }
                int64_t item = nh_round_item(
                    run, unit, (t0 * geometry->tile[1].count + t1) * geometry->tile[2].count + t2);
                int32_t from = begin > tile->box.key[2] ? begin : tile->box.key[2];
                int32_t to = tile->box.key[2] + tile->box.keys[2];
                if (to > end) to = end;
                if (from >= to) continue;
                const real *part =
                    (const real *)run->partial + item * run->partial_reals + offset +
                    (halo_row(tile, slow, middle) * tile->box.keys[2] + from - tile->box.key[2]) *
                        width;
                add_rows(line + (from - begin) * width, part, (to - from) * width,
                         tile->box.keys[2] * width); /* the next key row's */
                end_chain(&tile->scratch, reals, ++tiles);
            }
    add_chains(&tile->scratch, reals, tiles);
}

static void reduce_keys(const struct nh_tile_run *run, struct tile *tile, int64_t job,
                        int64_t spans) {
    const struct nh_geometry *geometry = run->geometry;
    int32_t begin = (int32_t)(job % spans) * REDUCE_SPAN;
    int32_t end = (int32_t)nh_min(begin + REDUCE_SPAN, geometry->order[2].length);
    job /= spans;
    int32_t middle = (int32_t)(job % geometry->order[1].length);
    job /= geometry->order[1].length;
    int32_t slow = (int32_t)(job % geometry->order[0].length);
    int64_t unit = job / geometry->order[0].length;
    tile->box.batch = (run->first_unit + unit) / tile->problem->kv_heads;
    tile->box.kv_head = (run->first_unit + unit) % tile->problem->kv_heads;
    struct key_gradient gradient[2];
    const int count = key_gradients(run, gradient);
    for (const struct key_gradient *g = gradient; g < gradient + count; g++) {
        sum_span(run, tile, unit, slow, middle, begin, end, g->offset, g->width);
        struct rows rows = tensor_rows(tile, g->tensor, tile->box.kv_head, slow, middle, g->dim);
        if (middle + 1 < geometry->order[1].length) /* most likely the next job's row */
            rows.ahead = axis_distance(tile, g->tensor, 1, middle, middle + 1) *
                         (int64_t)nh_dtype_bytes(rows.dtype);
        rows_to(&rows, begin, end - begin, NULL, tile->scratch.line, g->width);
    }
}

static void reduce_extra(const struct nh_tile_run *run, struct tile *tile, int64_t unit) {
    const struct nh_geometry *geometry = run->geometry;
    const struct partial at = partial_layout(geometry);
    tile->box.batch = (run->first_unit + unit) / tile->problem->kv_heads;
    tile->box.kv_head = (run->first_unit + unit) % tile->problem->kv_heads;
    for (int i = 0; i < 2; i++) {
        int32_t tensor = i ? NHOOD_D_EXTRA_V : NHOOD_D_EXTRA_K;
        int64_t width = i ? tile->scratch.width_v : tile->scratch.width_k;
        int64_t offset = i ? at.d_extra_v : at.d_extra_k;
        if (!run->io->data[tensor]) continue;
        for (int32_t token = 0; token < tile->problem->extra_tokens; token++) {
            memset(tile->scratch.line, 0, (size_t)width * sizeof(real));
            for (int64_t t = 0; t < geometry->tiles; t++) {
                add_rows(tile->scratch.line,
                         (const real *)run->partial +
                             nh_round_item(run, unit, t) * run->partial_reals + offset +
                             token * width,
                         width, 0);
                end_chain(&tile->scratch, width, t + 1);
            }
            add_chains(&tile->scratch, width, geometry->tiles);
            struct rows rows =
                extra_rows(tile, tensor, token, i ? tile->problem->dim_v : tile->problem->dim);
            rows_to(&rows, 0, 1, NULL, tile->scratch.line, width);
        }
    }
}

/* Onto the running sums of the tables of one kv head's query heads. */
static void reduce_bias(const struct nh_tile_run *run, int64_t kv_head) {
    const struct nh_geometry *geometry = run->geometry;
    const struct nh_problem *problem = &geometry->problem;
    int64_t count = problem->heads / problem->kv_heads * problem->bias_count;
    real *sum = (real *)run->d_bias + kv_head * count;
    for (int64_t unit = 0; unit < run->units; unit++) {
        if ((run->first_unit + unit) % problem->kv_heads != kv_head) continue;
        for (int64_t first = 0; first < geometry->tiles; first += CHAIN_TILES) {
            const int64_t end = nh_min(first + CHAIN_TILES, geometry->tiles);
            const real *part = (const real *)run->partial + partial_layout(geometry).d_bias;
            for (int64_t i = 0; i < count; i++) {
                real chain = 0;
                for (int64_t t = first; t < end; t++)
                    chain += part[nh_round_item(run, unit, t) * run->partial_reals + i];
                sum[i] += chain;
            }
        }
    }
}

static void reduce(const struct nh_tile_run *run, int64_t job, int32_t worker) {
    struct tile tile = {.run = run, .geometry = run->geometry, .problem = &run->geometry->problem};
    struct reduce_jobs jobs = count_jobs(run);
    tile.scratch.line = (real *)run->scratch + worker * run->scratch_reals;
    tile.scratch.width_k = (int64_t)run->geometry->vectors_k * VL;
    tile.scratch.width_v = (int64_t)run->geometry->vectors_v * VL;
    tile.scratch.total =
        tile.scratch.line + REDUCE_SPAN * nh_max(tile.scratch.width_k, tile.scratch.width_v);
    if (job < jobs.keys) {
        reduce_keys(run, &tile, job, jobs.spans);
    } else if (job < jobs.keys + jobs.extra) {
        reduce_extra(run, &tile, job - jobs.keys);
    } else {
        reduce_bias(run, job - jobs.keys - jobs.extra);
    }
}

#endif
