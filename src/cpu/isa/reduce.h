/* Adds up the tiles' partial gradients, always in the order of the tiles (and batch entries, for the bias), whichever thread
 * does it, so that results do not depend on the number of threads. */
#ifndef NH_REDUCE_H
#define NH_REDUCE_H

#include "backward.h"

/* Places in a unit of some of a span's keys, and the tiles whose halos may hold them. */
struct span_run {
    int64_t first;      /* place of the span's first key, which may lie before `begin` */
    int64_t begin, end; /* places of the unit */
    int64_t tile, tiles;
};

/* The keys of an axis whose gradients are summed up together, all of one unit. On a periodic axis a key may have several
 * places. */
enum { MOST_RUNS = 4 };
struct span {
    const struct nh_axis_part *part;
    int64_t keys;
    int64_t axis_first; /* the unit's first tile among those of the axis */
    int64_t ahead;      /* tokens to the span after this one; 0: unknown */
    int64_t tiles;      /* of all runs */
    int32_t runs;
    struct span_run run[MOST_RUNS];
    int32_t token[REDUCE_SPAN]; /* of each key */
};

static int64_t part_spans(const struct nh_axis_part *part, int64_t most) {
    return part->units * ((part->places + most - 1) / most);
}

/* The number of spans of at most `most` keys that each dilation group of a boxed axis has. */
static int64_t group_spans(const struct nh_axis *axis, int64_t most) {
    return nh_ceil_div(nh_ceil_div(axis->key.length, axis->dilation), most);
}

/* The number of spans of at most `most` keys on an axis; some may have none. */
static int64_t axis_spans(const struct nh_geometry *geometry, int a, int64_t most) {
    const struct nh_tile_axis *tile = &geometry->tile[a];
    const struct nh_axis *axis = &geometry->problem.axis[a];
    if (geometry->order[a].group_key)
        return most == 1 ? axis->key.length : axis->dilation * group_spans(axis, most);
    int64_t spans = 0;
    for (int32_t p = 0; p < tile->parts; p++)
        spans += part_spans(&tile->part[p], most);
    return spans;
}

/* The places of the unit's keys that lie in the halo of its tile t. */
static void unit_halo(const struct nh_geometry *geometry, int axis, const struct nh_axis_part *part,
                      int64_t t, int64_t *begin, int64_t *end) {
    const struct nh_order *order = &geometry->order[axis];
    const int64_t skipped = nh_skipped_before(part, t - part->head, part->period);
    const int64_t kept = part->tile + t - skipped * part->period;
    const int64_t beyond = skipped * part->period_places - part->place;
    *begin = order->begin[nh_tile_first(geometry, axis, kept)] + beyond;
    *end = order->end[nh_tile_end(geometry, axis, kept) - 1] + beyond;
}

/* The first tile of the unit whose halo ends (`ends`) or begins after the place, as neither ever decreases. */
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

/* Adds places [begin, end) to the span, whose first key is, or would be, at place `first`. */
static void add_run(const struct nh_geometry *geometry, int axis, int64_t first, int64_t begin,
                    int64_t end, struct span *span) {
    if (begin >= end) return;
    const int64_t tile = first_tile(geometry, axis, span->part, begin, true);
    const int64_t tiles = first_tile(geometry, axis, span->part, end - 1, false) - tile;
    span->run[span->runs++] = (struct span_run){first, begin, end, tile, tiles};
    span->tiles += tiles;
}

/* Fills in span `number` of a boxed axis: single keys come in the order of the tensors, longer spans group by group. */
static void set_boxed_span(const struct nh_geometry *geometry, int a, int64_t number, int64_t most,
                           struct span *span) {
    const struct nh_axis *axis = &geometry->problem.axis[a];
    const struct nh_order *order = &geometry->order[a];
    const int64_t token = axis->key.offset + number;
    const int64_t group = most == 1 ? token % axis->dilation : number / group_spans(axis, most);
    const struct nh_group_keys keys = nh_group_keys(axis, group);
    const struct nh_range attended = nh_group_attended(axis, group);
    const int64_t from =
        most == 1 ? token / axis->dilation - keys.first : number % group_spans(axis, most) * most;
    const int64_t begin = order->group_key[group], end = order->group_key[group + 1];
    span->part = geometry->tile[a].part;
    span->keys = nh_max(0, nh_min(most, keys.count - from));
    span->ahead = most == 1;
    for (int64_t i = 0; i < span->keys; i++)
        span->token[i] =
            (int32_t)((keys.first + from + i) * axis->dilation + group - axis->key.offset);
    if (begin == end || span->keys == 0) return;
    const int64_t last_turn = nh_floor_div(attended.end - 1, keys.count);
    for (int64_t turn = nh_floor_div(attended.begin, keys.count); turn <= last_turn; turn++) {
        const int64_t first = begin + turn * keys.count + from - attended.begin;
        add_run(geometry, a, first, nh_max(first, begin), nh_min(first + span->keys, end), span);
    }
}

/* Fills in span `number` of the axis. */
static void set_span(const struct nh_geometry *geometry, int axis, int64_t number, int64_t most,
                     struct span *span) {
    const struct nh_axis_part *part = geometry->tile[axis].part;
    span->axis_first = span->tiles = 0;
    span->runs = 0;
    if (geometry->order[axis].group_key) {
        set_boxed_span(geometry, axis, number, most, span);
        return;
    }
    for (; number >= part_spans(part, most); part++) {
        number -= part_spans(part, most);
        span->axis_first += part->units * part->tiles;
    }
    const int64_t spans = part_spans(part, most) / part->units;
    const int64_t unit = number / spans, begin = number % spans * most;
    const int64_t end = nh_min(begin + most, part->places);
    span->part = part;
    span->axis_first += unit * part->tiles;
    span->keys = end - begin;
    span->ahead = end < part->places ? geometry->problem.axis[axis].dilation : 0;
    add_run(geometry, axis, begin, begin, end, span);
    for (int64_t place = begin; place < end; place++) {
        const int64_t skipped =
            nh_skipped_before(part, place - part->head_places, part->period_places);
        const int64_t kept = part->place + place - skipped * part->period_places;
        span->token[place - begin] =
            (int32_t)(geometry->order[axis].token[kept] + skipped * part->period_tokens +
                      unit * part->unit_tokens);
    }
}

/* The numbers of jobs of a round, which come in this order: spans of keys of each unit, extra tokens of each unit, bias tables
 * of each kv head. */
struct reduce_jobs {
    int64_t spans, keys, extra, bias;
};

static struct reduce_jobs count_jobs(const struct nh_tile_run *run) {
    const struct nh_geometry *geometry = run->geometry;
    const struct nh_problem *problem = &geometry->problem;
    struct reduce_jobs jobs = {0};
    if (problem->op != NHOOD_OP_BWD && problem->op != NHOOD_OP_IN) return jobs;
    jobs.spans = axis_spans(geometry, 2, REDUCE_SPAN);
    if (!geometry->tiles_apart || !geometry->every_key)
        jobs.keys =
            run->units * problem->axis[0].key.length * problem->axis[1].key.length * jobs.spans;
    if (problem->extra_tokens) jobs.extra = run->units;
    if (problem->op == NHOOD_OP_BWD && problem->has_bias) jobs.bias = problem->kv_heads;
    return jobs;
}

static int64_t reduce_jobs(const struct nh_tile_run *run) {
    struct reduce_jobs jobs = count_jobs(run);
    return jobs.keys + jobs.extra + jobs.bias;
}

/* The run that contains tile *tile, counted through all runs of the span. *tile becomes its number in the unit. */
static const struct span_run *run_of(const struct span *span, int64_t *tile) {
    const struct span_run *run = span->run;
    for (; *tile >= run->tiles; run++)
        *tile -= run->tiles;
    *tile += run->tile;
    return run;
}

/* Adds a tile's partial gradients of the keys of the spans to s->line. For each axis, `meet` is the tile's number among those
 * of the span. Returns whether the tile has any of the keys. */
static bool add_part_of_tile(const struct nh_tile_run *run, const struct scratch *s, int64_t unit,
                             const struct span span[NH_AXES], const int64_t meet[NH_AXES],
                             int64_t offset, int64_t width) {
    const struct span_run *at[NH_AXES];
    int64_t begin[NH_AXES], end[NH_AXES], number = 0;
    for (int a = 0; a < NH_AXES; a++) {
        int64_t tile = meet[a];
        at[a] = run_of(&span[a], &tile);
        unit_halo(run->geometry, a, span[a].part, tile, &begin[a], &end[a]);
        number = number * run->geometry->tile[a].count + span[a].axis_first + tile;
    }
    const int64_t keys = end[2] - begin[2];
    const int64_t from = nh_max(at[2]->begin, begin[2]), to = nh_min(at[2]->end, end[2]);
    if (from >= to) return false;
    const int64_t row = (at[0]->first - begin[0]) * (end[1] - begin[1]) + at[1]->first - begin[1];
    const real *part = (const real *)run->partial +
                       nh_round_item(run, unit, number) * run->partial_reals + offset +
                       (row * keys + from - begin[2]) * width;
    add_rows(s->line + (from - at[2]->first) * width, part, (to - from) * width,
             keys * width); /* the next key row's */
    return true;
}

/* Sums up the tiles whose halos meet the box of spans, always in the same order. */
static void sum_spans(const struct nh_tile_run *run, const struct scratch *s, int64_t unit,
                      const struct span span[NH_AXES], int64_t offset, int64_t width) {
    int64_t meet[NH_AXES];
    const int64_t reals = span[2].keys * width;
    int64_t tiles = 0;
    memset(s->line, 0, (size_t)reals * sizeof(real));
    for (meet[0] = 0; meet[0] < span[0].tiles; meet[0]++)
        for (meet[1] = 0; meet[1] < span[1].tiles; meet[1]++)
            for (meet[2] = 0; meet[2] < span[2].tiles; meet[2]++)
                if (add_part_of_tile(run, s, unit, span, meet, offset, width))
                    end_chain(s->line, s->total, reals, ++tiles);
    add_chains(s->line, s->total, reals, tiles);
}

static bool is_met(const struct span *span, int64_t key) {
    for (int32_t r = 0; r < span->runs; r++) {
        const int64_t place = span->run[r].first + key;
        if (place >= span->run[r].begin && place < span->run[r].end) return true;
    }
    return false;
}

/* Stores zeros to the keys of the spans that are in no halo. */
static void clear_unmet(const struct scratch *s, const struct span span[NH_AXES],
                        const struct rows *rows, int64_t width) {
    const bool rows_met = span[0].runs > 0 && span[1].runs > 0;
    memset(s->line, 0, (size_t)(span[2].keys * width) * sizeof(real));
    for (int64_t key = 0, end; key < span[2].keys; key = end + 1) {
        end = key;
        while (end < span[2].keys && !(rows_met && is_met(&span[2], end)))
            end++;
        if (key < end) rows_to(rows, (int32_t)key, (int32_t)(end - key), NULL, s->line, width);
    }
}

static void reduce_keys(const struct nh_tile_run *run, struct tile *tile, int64_t job,
                        int64_t spans) {
    const struct nh_geometry *geometry = run->geometry;
    const struct nh_problem *problem = tile->problem;
    struct span span[NH_AXES];
    set_span(geometry, 2, job % spans, REDUCE_SPAN, &span[2]);
    job /= spans;
    set_span(geometry, 1, job % problem->axis[1].key.length, 1, &span[1]);
    job /= problem->axis[1].key.length;
    set_span(geometry, 0, job % problem->axis[0].key.length, 1, &span[0]);
    const int64_t unit = job / problem->axis[0].key.length;
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
        if (geometry->tiles_apart) {
            clear_unmet(&tile->scratch, span, &rows, g->width);
            continue;
        }
        sum_spans(run, &tile->scratch, unit, span, g->offset, g->width);
        /* most likely the next job's row */
        rows.ahead = span[1].ahead * strides->axis[1] * (int64_t)nh_dtype_bytes(dtype);
        rows_to(&rows, 0, (int32_t)span[2].keys, NULL, tile->scratch.line, g->width);
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

/* Adds the round's gradients to the running sums of the bias tables of a kv head's query heads. */
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
