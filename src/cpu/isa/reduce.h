/* Adds up the tiles' partial gradients, always in the order of the tiles (and batch entries, for the bias),
 * whichever thread does it: results do not depend on the number of threads. */
#ifndef NH_REDUCE_H
#define NH_REDUCE_H

#include "backward.h"

/* The keys of an axis that are summed up at once, all of one unit, and the tiles whose halos may hold some of them. */
struct span {
    const struct nh_axis_part *part;
    int64_t unit;
    int64_t begin, end;         /* places of the unit */
    int64_t first, last;        /* tiles of the unit */
    int64_t axis_first;         /* the unit's first tile among those of the axis */
    int32_t token[REDUCE_SPAN]; /* of each place */
};

static int64_t part_spans(const struct nh_axis_part *part, int64_t most) {
    return part->units * ((part->places + most - 1) / most);
}

/* The number of spans of at most `most` keys on an axis. */
static int64_t axis_spans(const struct nh_geometry *geometry, int axis, int64_t most) {
    const struct nh_tile_axis *tile = &geometry->tile[axis];
    int64_t spans = 0;
    for (int32_t p = 0; p < tile->parts; p++)
        spans += part_spans(&tile->part[p], most);
    return spans;
}

/* The places of the unit whose keys tile t of it takes. */
static void unit_halo(const struct nh_geometry *geometry, int axis, const struct nh_axis_part *part,
                      int64_t t, int64_t *begin, int64_t *end) {
    const struct nh_order *order = &geometry->order[axis];
    const int64_t skipped = nh_skipped_before(part, t - part->head, part->period);
    const int64_t kept = part->tile + t - skipped * part->period;
    const int64_t beyond = skipped * part->period_places - part->place;
    *begin = order->begin[nh_tile_first(geometry, axis, kept)] + beyond;
    *end = order->end[nh_tile_end(geometry, axis, kept) - 1] + beyond;
}

/* The first tile of the unit whose halo ends (`ends`) or begins after the place: halos never decrease. */
static int64_t first_tile(const struct nh_geometry *geometry, int axis,
                          const struct nh_axis_part *part, int64_t place, bool ends) {
    int64_t low = 0, high = part->tiles, halo[2];
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        unit_halo(geometry, axis, part, middle, &halo[0], &halo[1]);
        if (halo[ends] > place) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

/* Fills in span `number` of the axis. */
static void set_span(const struct nh_geometry *geometry, int axis, int64_t number, int64_t most,
                     struct span *span) {
    const struct nh_axis_part *part = geometry->tile[axis].part;
    span->axis_first = 0;
    for (; number >= part_spans(part, most); part++) {
        number -= part_spans(part, most);
        span->axis_first += part->units * part->tiles;
    }
    const int64_t spans = part_spans(part, most) / part->units;
    span->part = part;
    span->unit = number / spans;
    span->axis_first += span->unit * part->tiles;
    span->begin = number % spans * most;
    span->end = nh_min(span->begin + most, part->places);
    span->first = first_tile(geometry, axis, part, span->begin, true);
    span->last = first_tile(geometry, axis, part, span->end - 1, false);
    for (int64_t place = span->begin; place < span->end; place++) {
        const int64_t skipped =
            nh_skipped_before(part, place - part->head_places, part->period_places);
        const int64_t kept = part->place + place - skipped * part->period_places;
        span->token[place - span->begin] =
            (int32_t)(geometry->order[axis].token[kept] + skipped * part->period_tokens +
                      span->unit * part->unit_tokens);
    }
}

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
    jobs.spans = axis_spans(geometry, 2, REDUCE_SPAN);
    if (!geometry->tiles_apart)
        jobs.keys = run->units * problem->axis[0].length * problem->axis[1].length * jobs.spans;
    if (problem->extra_tokens) jobs.extra = run->units;
    if (problem->op == NHOOD_OP_BWD && problem->has_bias) jobs.bias = problem->kv_heads;
    return jobs;
}

static int64_t reduce_jobs(const struct nh_tile_run *run) {
    struct reduce_jobs jobs = count_jobs(run);
    return jobs.keys + jobs.extra + jobs.bias;
}

/* The tiles whose halo meets the box of spans, always in the same order. */
static void sum_spans(const struct nh_tile_run *run, const struct scratch *s, int64_t unit,
                      const struct span span[NH_AXES], int64_t offset, int64_t width) {
    const struct nh_geometry *geometry = run->geometry;
    const struct nh_tile_axis *axis = geometry->tile;
    int64_t t[NH_AXES], begin[NH_AXES], end[NH_AXES];
    const int64_t reals = (span[2].end - span[2].begin) * width;
    int64_t tiles = 0;
    memset(s->line, 0, (size_t)reals * sizeof(real));
    for (t[0] = span[0].first; t[0] < span[0].last; t[0]++)
        for (t[1] = span[1].first; t[1] < span[1].last; t[1]++)
            for (t[2] = span[2].first; t[2] < span[2].last; t[2]++) {
                int64_t number = 0;
                for (int a = 0; a < NH_AXES; a++) {
                    unit_halo(geometry, a, span[a].part, t[a], &begin[a], &end[a]);
                    number = number * axis[a].count + span[a].axis_first + t[a];
                }
                const int64_t keys = end[2] - begin[2];
                const int64_t from = nh_max(span[2].begin, begin[2]);
                const int64_t to = nh_min(span[2].end, end[2]);
                if (from >= to) continue;
                const int64_t row =
                    (span[0].begin - begin[0]) * (end[1] - begin[1]) + span[1].begin - begin[1];
                const real *part = (const real *)run->partial +
                                   nh_round_item(run, unit, number) * run->partial_reals + offset +
                                   (row * keys + from - begin[2]) * width;
                add_rows(s->line + (from - span[2].begin) * width, part, (to - from) * width,
                         keys * width); /* the next key row's */
                end_chain(s->line, s->total, reals, ++tiles);
            }
    add_chains(s->line, s->total, reals, tiles);
}

static void reduce_keys(const struct nh_tile_run *run, struct tile *tile, int64_t job,
                        int64_t spans) {
    const struct nh_geometry *geometry = run->geometry;
    const struct nh_problem *problem = tile->problem;
    struct span span[NH_AXES];
    set_span(geometry, 2, job % spans, REDUCE_SPAN, &span[2]);
    job /= spans;
    set_span(geometry, 1, job % problem->axis[1].length, 1, &span[1]);
    job /= problem->axis[1].length;
    set_span(geometry, 0, job % problem->axis[0].length, 1, &span[0]);
    const int64_t unit = job / problem->axis[0].length;
    const int64_t batch = (run->first_unit + unit) / problem->kv_heads;
    const int64_t kv_head = (run->first_unit + unit) % problem->kv_heads;
    struct key_gradient gradient[2];
    const int count = key_gradients(run, gradient);
    for (const struct key_gradient *g = gradient; g < gradient + count; g++) {
        const nhood_strides *strides = &problem->strides[g->tensor];
        const int32_t dtype = nh_tensor_dtype(problem, g->tensor);
        const int64_t element = batch * strides->batch + kv_head * strides->head +
                                span[0].token[0] * strides->axis[0] +
                                span[1].token[0] * strides->axis[1];
        const char *data = run->io->data[g->tensor];
        struct rows rows = {.base = data + element * (int64_t)nh_dtype_bytes(dtype),
                            .step = strides->axis[2],
                            .token = span[2].token,
                            .dtype = dtype,
                            .dim = (int32_t)g->dim};
        sum_spans(run, &tile->scratch, unit, span, g->offset, g->width);
        if (span[1].end < span[1].part->places) /* most likely the next job's row */
            rows.ahead =
                problem->axis[1].dilation * strides->axis[1] * (int64_t)nh_dtype_bytes(dtype);
        rows_to(&rows, 0, (int32_t)(span[2].end - span[2].begin), NULL, tile->scratch.line,
                g->width);
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
                end_chain(tile->scratch.line, tile->scratch.total, width, t + 1);
            }
            add_chains(tile->scratch.line, tile->scratch.total, width, geometry->tiles);
            struct rows rows =
                extra_rows(tile, tensor, token, i ? tile->problem->dim_v : tile->problem->dim);
            rows_to(&rows, 0, 1, NULL, tile->scratch.line, width);
        }
    }
}

/* Adds to the running sums of the tables of one kv head's query heads. */
static void reduce_bias(const struct nh_tile_run *run, int64_t kv_head) {
    const struct nh_geometry *geometry = run->geometry;
    const struct nh_problem *problem = &geometry->problem;
    int64_t count = problem->heads / problem->kv_heads * problem->bias_count;
    real *sum = (real *)run->d_bias + kv_head * count;
    for (int64_t unit = 0; unit < run->units; unit++) {
        if ((run->first_unit + unit) % problem->kv_heads != kv_head) continue;
        for (int64_t first = 0; first < geometry->tiles; first += CHAIN_TERMS) {
            const int64_t end = nh_min(first + CHAIN_TERMS, geometry->tiles);
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
