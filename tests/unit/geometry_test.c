/* The CPU's geometry, against the windows themselves: tiles, vectors and band products of random problems. */
#include "geometry.h"
#include "test.h"

#include <string.h>

enum { PROBLEMS = 400, MOST_LENGTH = 90 };

static struct nh_problem random_problem(uint64_t *state) {
    static const int64_t dims[] = {8, 40, 64};
    struct nh_problem problem = {
        .op = NHOOD_OP_BWD, .rank = NH_AXES, .batch = 1, .heads = 2, .kv_heads = 1};
    problem.dim = problem.dim_v = dims[test_between(state, 0, 2)];
    for (int a = 0; a < NH_AXES; a++) {
        const int64_t length = test_between(state, 1, a == 0 ? 6 : MOST_LENGTH);
        const int64_t dilation = test_between(state, 0, 1) ? 1 : test_between(state, 1, length);
        const int64_t window = test_between(state, 1, length / dilation);
        const int64_t strides[] = {1, window, test_between(state, 1, window)};
        problem.axis[a] = nh_whole_axis(length, window, strides[test_between(state, 0, 2)],
                                        dilation, test_between(state, 0, 3) == 0);
    }
    return problem;
}

static struct nh_geometry_options random_options(uint64_t *state) {
    struct nh_geometry_options options = {.lanes = 4 << test_between(state, 0, 2),
                                          .most_rows = (int32_t)test_between(state, 3, 12),
                                          .band_budget = 24,
                                          .single_outputs = NH_MOST_BAND,
                                          .lane_axis = (int32_t)test_between(state, 0, 2)};
    for (int a = 0; a < NH_AXES; a++)
        options.size[a] = (int32_t)test_between(state, 1, MOST_LENGTH);
    return options;
}

/* Tiles are in order, of at most the size asked for; `apart` says whether some key is attended from two of them. */
static void check_axis(const struct nh_geometry *geometry, int a, int32_t most) {
    const struct nh_tile_axis *tile = &geometry->tile[a];
    const struct nh_order *order = &geometry->order[a];
    int32_t from[MOST_LENGTH], shared = 0, too_long = 0, most_keys = 0;
    memset(from, 0xff, sizeof from);
    for (int32_t t = 0; t < tile->kept; t++) {
        const int32_t first = nh_tile_first(geometry, a, t), end = nh_tile_end(geometry, a, t);
        too_long += end <= first || end - first > most;
        for (int32_t query = first; query < end; query++)
            for (int32_t key = order->begin[query]; key < order->end[query]; key++) {
                shared += from[key] >= 0 && from[key] != t;
                from[key] = t;
            }
        if (order->end[end - 1] - order->begin[first] > most_keys)
            most_keys = order->end[end - 1] - order->begin[first];
    }
    CHECK(tile->first[0] == 0 && tile->first[tile->kept] == order->length && !too_long &&
              tile->count == tile->kept,
          "%d tiles of axis %d", tile->kept, a);
    CHECK(tile->apart == !shared && tile->most_keys == most_keys, "axis %d, %d shared keys", a,
          shared);
    const struct nh_axis *axis = &geometry->problem.axis[a];
    CHECK(tile->apart || nh_ceil_div(axis->length, axis->dilation) > most,
          "a dilation group of %lld fits tiles of %d",
          (long long)nh_ceil_div(axis->length, axis->dilation), most);
}

/* Adds 1 to met[key][lane] for every product of the list, if its weight is that of the pair. `gather`: outputs are lanes. */
static int wrong_products(const struct nh_geometry *geometry, const struct nh_vector *vector,
                          const struct nh_band_list *list, bool gather,
                          uint8_t met[2 * MOST_LENGTH][NH_MOST_LANES]) {
    int wrong = 0;
    for (int32_t i = 0; i < list->count; i++) {
        const struct nh_band *band = &list->band[i];
        const int32_t ends = band->outputs - 1;
        const int32_t sources = band->full + (band->lead + band->trail) * ends;
        wrong += band->full < 0;
        wrong += band->outputs > geometry->band_outputs;
        for (int32_t s = 0; s < sources; s++)
            for (int32_t g = 0; g < band->outputs; g++) {
                const int32_t past = s - band->full - band->lead * ends; /* of the common sources */
                if ((band->lead && g > s) || (band->trail && past >= 0 && g <= past)) continue;
                const int32_t out = band->out + g, source = band->source + s;
                const int32_t lane = gather ? out : source, key = gather ? source : out;
                const int32_t slot = key - vector->lanes->index[lane];
                const int32_t weight = band->weight + g * band->out_step + s * band->source_step;
                wrong += lane >= vector->count || slot < 0 || slot >= vector->lanes->keys[lane] ||
                         weight != slot * geometry->lanes + lane;
                met[key][lane]++;
            }
    }
    return wrong;
}

/* Band lists of whole rows say how the keys lie, of which there are all kinds. */
static void check_row(const struct nh_geometry *geometry, const struct nh_vector *vector,
                      int rows[NH_ROW_KINDS]) {
    const int32_t lanes = geometry->lanes, window = geometry->order[2].window, half = window / 2;
    const enum nh_row_kind row = vector->lanes->gather.row;
    bool lies[NH_ROW_KINDS] = {false, true, true, true};
    for (int32_t lane = 0; lane < lanes; lane++) {
        lies[NH_ROW_INNER] &= vector->lanes->index[lane] == lane;
        lies[NH_ROW_FIRST] &= vector->lanes->index[lane] == nh_max(lane - half, 0);
        lies[NH_ROW_LAST] &= vector->lanes->index[lane] == nh_min(lane, lanes - 1 - half);
    }
    const bool whole = vector->count == lanes && vector->lanes->fewest_keys == window;
    CHECK(row == vector->lanes->scatter.row, "rows of kinds %d and %d", row,
          vector->lanes->scatter.row);
    CHECK(row == NH_ROW_NONE || (whole && lies[row]), "not a row of kind %d", row);
    rows[row]++;
}

static void check_bands(const struct nh_geometry *geometry, const struct nh_vector *vector) {
    for (int gather = 0; gather < 2; gather++) {
        uint8_t met[2 * MOST_LENGTH][NH_MOST_LANES] = {{0}};
        int wrong =
            wrong_products(geometry, vector,
                           gather ? &vector->lanes->gather : &vector->lanes->scatter, gather, met);
        for (int32_t lane = 0; lane < vector->count; lane++)
            for (int32_t key = 0; key < 2 * MOST_LENGTH; key++) {
                const int32_t slot = key - vector->lanes->index[lane];
                wrong += met[key][lane] != (slot >= 0 && slot < vector->lanes->keys[lane]);
            }
        CHECK(!wrong, "%s: %d products of %d queries from %d on", gather ? "gather" : "scatter",
              wrong, vector->count, vector->first);
    }
}

/* Every query is in one vector, and each lane knows the keys of its query. */
static void check_vectors(const struct nh_geometry *geometry, int modes[NH_LANE_MODES],
                          int rows[NH_ROW_KINDS]) {
    const struct nh_order *order = &geometry->order[2];
    int32_t next = 0;
    for (int32_t v = 0; v < geometry->tile_vector[geometry->tile[2].kept]; v++) {
        const struct nh_vector *vector = &geometry->vector[v];
        const int32_t used = vector->count << geometry->fold_log;
        int wrong = vector->first != next || vector->count < 1 || used > geometry->lanes;
        next += vector->count;
        for (int32_t lane = 0; lane < geometry->lanes; lane++) {
            const int32_t of_place = lane < used ? lane % vector->count : vector->count - 1;
            const int32_t query = vector->first + of_place;
            wrong += vector->start + vector->lanes->index[lane] != order->begin[query];
            wrong += vector->lanes->keys[lane] != order->end[query] - order->begin[query];
            wrong +=
                vector->lanes->index[lane] < 0 || vector->lanes->index[lane] >= geometry->lanes;
            wrong += vector->lanes->mode == NH_LANES_SAME && vector->lanes->index[lane] != 0;
            wrong += vector->lanes->mode == NH_LANES_SHIFT && vector->lanes->index[lane] != lane;
            const bool stands = (lane < vector->lanes->turn) == vector->lanes->still_first;
            const int32_t moved = vector->lanes->still_first ? lane - vector->lanes->turn : lane;
            const int32_t still = vector->lanes->still_first ? 0 : vector->lanes->turn;
            wrong += vector->lanes->mode == NH_LANES_SPLIT &&
                     vector->lanes->index[lane] != (stands ? still : moved);
            modes[vector->lanes->mode]++;
        }
        CHECK(!wrong, "vector %d has %d wrong lanes", v, wrong);
        check_bands(geometry, vector);
        check_row(geometry, vector, rows);
    }
    CHECK(next == order->length, "%d of %d queries", next, order->length);
}

/* Wrong queries of an axis of which only so much is kept as differs: each one is in one tile, and its keys are those of its window. */
static int wrong_queries(const struct nh_geometry *geometry, int a, uint8_t *met) {
    const struct nh_axis *axis = &geometry->problem.axis[a];
    const struct nh_tile_axis *tile = &geometry->tile[a];
    const struct nh_order *order = &geometry->order[a];
    int wrong = 0;
    memset(met, 0, (size_t)axis->length);
    for (int64_t t = 0; t < tile->count; t++) {
        int64_t tokens;
        const int32_t kept = nh_axis_tile(tile, t, &tokens);
        const int32_t first = nh_tile_first(geometry, a, kept),
                      end = nh_tile_end(geometry, a, kept);
        wrong += kept < 0 || kept >= tile->kept || end - first > tile->size ||
                 order->end[end - 1] - order->begin[first] > tile->most_keys;
        for (int32_t query = first; query < end; query++) {
            const int64_t token = order->token[query] + tokens;
            if (token < 0 || token >= axis->length || met[token]++) return wrong + 1;
            const struct nh_range range = nh_axis_window(axis, token);
            for (int64_t key = range.begin; key < range.end; key++)
                wrong += order->key_token[order->begin[query] + key - range.begin] + tokens !=
                         key * axis->dilation + token % axis->dilation;
            wrong += order->end[query] - order->begin[query] != range.end - range.begin;
        }
    }
    for (int64_t token = 0; token < axis->length; token++)
        wrong += met[token] != 1;
    return wrong;
}

static void long_axes(uint64_t *state) {
    enum { LONGEST = 6000 };
    static uint8_t met[LONGEST];
    const struct nh_host host = {0};
    int skipping = 0, grouped = 0;
    for (int i = 0; i < PROBLEMS; i++) {
        struct nh_problem problem = random_problem(state);
        struct nh_geometry_options options = random_options(state);
        const int a = (int)test_between(state, 0, 2);
        const int64_t length = test_between(state, 2000, LONGEST);
        const int64_t dilation = test_between(state, 0, 1) ? 1 : test_between(state, 2, 900);
        const int64_t window = test_between(state, 1, nh_min(30, length / dilation));
        const int64_t strides[] = {1, window, test_between(state, 1, window)};
        problem.axis[a] = nh_whole_axis(length, window, strides[test_between(state, 0, 2)],
                                        dilation, test_between(state, 0, 3) == 0);
        options.lane_axis = NH_AXES - 1;
        options.long_axis = 1000;
        struct nh_geometry geometry;
        CHECK(!nh_geometry_create(&problem, &host, &options, &geometry), "no memory");
        const struct nh_tile_axis *tile = &geometry.tile[a];
        const int wrong = wrong_queries(&geometry, a, met);
        CHECK(!wrong,
              "%d wrong: length %lld, window %lld, stride %lld, dilation %lld, causal %d, size %d",
              wrong, (long long)length, (long long)window, (long long)problem.axis[a].stride,
              (long long)dilation, problem.axis[a].causal, options.size[a]);
        for (int32_t p = 0; p < tile->parts; p++) {
            skipping += tile->part[p].skipped > 0;
            grouped += tile->part[p].unit_tokens > 1;
        }
        nh_geometry_destroy(&host, &geometry);
    }
    CHECK(skipping > PROBLEMS / 4 && grouped > PROBLEMS / 8, "%d skip periods, %d join groups",
          skipping, grouped);
}

/* Makes an axis periodic, and boxes of it. */
static void box_axis(uint64_t *state, struct nh_axis *axis) {
    struct nh_box *box[] = {&axis->query, &axis->key};
    if (test_between(state, 0, 1)) {
        const int64_t unit = axis->dilation * axis->stride;
        axis->length = nh_ceil_div(axis->length, unit) * unit;
        axis->causal = 0;
        axis->periodic = 1;
    }
    for (int i = 0; i < 2; i++) {
        box[i]->offset = 0;
        box[i]->length = axis->length;
        if (test_between(state, 0, 2) == 0) continue;
        box[i]->length = test_between(state, 1, axis->length);
        box[i]->offset = test_between(
            state, 0, axis->periodic ? axis->length - 1 : axis->length - box[i]->length);
    }
}

/* The rows of keys of a query that the box has, in the order of its window, with slot and distance of the first; returns how many,
 * and in *pieces, how many runs of slots they are. */
static int expected_keys(const struct nh_axis *axis, int64_t token, int64_t *row, int64_t *slot,
                         int64_t *distance, int *pieces) {
    const struct nh_range window = nh_axis_window(axis, token);
    int count = 0;
    bool before = false;
    *pieces = 0;
    for (int64_t position = window.begin; position < window.end; position++) {
        int64_t key = position * axis->dilation + token % axis->dilation - axis->key.offset;
        if (axis->periodic) key = (key % axis->length + axis->length) % axis->length;
        const bool has = key >= 0 && key < axis->key.length;
        *pieces += has && !before;
        before = has;
        if (!has) continue;
        if (count == 0) {
            *slot = position - window.begin;
            *distance = position - token / axis->dilation;
        }
        row[count++] = key;
    }
    return count;
}

/* Every query of the box is there once, with the keys of its window that the key box has. */
static int wrong_boxed(const struct nh_axis *axis, const struct nh_order *order,
                       const struct nh_tile_axis *tile, bool *twice) {
    enum { LONGEST = 4 * MOST_LENGTH };
    uint8_t met[LONGEST] = {0};
    int64_t row[LONGEST], of_tile[LONGEST];
    int wrong = order->length != axis->query.length, shared = 0;
    memset(of_tile, 0xff, sizeof of_tile);
    for (int32_t t = 0; t < tile->kept; t++)
        for (int32_t q = tile->first[t]; q < tile->first[t + 1]; q++) {
            int64_t slot = 0, distance = 0;
            int pieces;
            const int64_t token = (axis->query.offset + order->token[q]) % axis->length;
            const int keys = expected_keys(axis, token, row, &slot, &distance, &pieces);
            wrong += met[order->token[q]]++ || order->end[q] - order->begin[q] != keys;
            wrong += keys > 0 && (nh_slot(order, (int32_t)q) != slot ||
                                  (order->distance && order->distance[q] != distance));
            const struct nh_range window = nh_axis_window(axis, token);
            const bool cut = keys < window.end - window.begin;
            wrong += order->missing ? order->missing[q] != cut || cut > order->cut : cut;
            *twice |= pieces > 1;
            for (int k = 0; k < keys; k++)
                wrong += order->key_token[order->begin[q] + k] != row[k];
        }
    for (int32_t t = 0; t < tile->kept; t++) { /* halos, of which each key is in one at most */
        const int32_t end = order->end[tile->first[t + 1] - 1];
        for (int32_t key = order->begin[tile->first[t]]; key < end; key++)
            shared += of_tile[order->key_token[key]]++ >= 0;
    }
    wrong += tile->apart != (shared == 0);
    if (!order->group_key) return wrong; /* keys are at the places of queries */
    bool every = true;
    for (int64_t key = 0; key < axis->key.length; key++)
        every &= of_tile[key] >= 0;
    return wrong + (shared == 0 && order->every != every);
}

static void boxed_axes(uint64_t *state) {
    const struct nh_host host = {0};
    int none = 0, twice = 0, apart = 0, modes[NH_LANE_MODES] = {0}, rows[NH_ROW_KINDS] = {0};
    for (int i = 0; i < 4 * PROBLEMS; i++) {
        struct nh_problem problem = random_problem(state);
        struct nh_geometry_options options = random_options(state);
        options.lane_axis = NH_AXES - 1;
        for (int a = 0; a < NH_AXES; a++)
            box_axis(state, &problem.axis[a]);
        struct nh_geometry geometry;
        CHECK(!nh_geometry_create(&problem, &host, &options, &geometry), "no memory");
        for (int a = 0; a < NH_AXES; a++) {
            const struct nh_axis *axis = &problem.axis[a];
            bool in_pieces = false;
            const int wrong = wrong_boxed(axis, &geometry.order[a], &geometry.tile[a], &in_pieces);
            CHECK(!wrong && in_pieces == nh_meets_box_twice(axis),
                  "%d wrong, in pieces %d: length %lld, window %lld, stride %lld, dilation %lld, "
                  "causal %d, "
                  "periodic %d, queries %lld+%lld, keys %lld+%lld",
                  wrong, in_pieces, (long long)axis->length, (long long)axis->window,
                  (long long)axis->stride, (long long)axis->dilation, axis->causal, axis->periodic,
                  (long long)axis->query.offset, (long long)axis->query.length,
                  (long long)axis->key.offset, (long long)axis->key.length);
            twice += in_pieces;
            CHECK(geometry.order[a].keys <= nh_boxed_keys(axis) || !nh_is_boxed(axis), "%d keys",
                  geometry.order[a].keys);
        }
        check_vectors(&geometry, modes, rows);
        none += geometry.none;
        apart += geometry.tiles_apart && !geometry.every_key;
        nh_geometry_destroy(&host, &geometry);
    }
    CHECK(none > 0 && twice > 0 && apart > 0, "%d without keys, %d in pieces, %d with keys not met",
          none, twice, apart);
}

int main(void) {
    const struct nh_host host = {0};
    uint64_t state = 20240307;
    int folded = 0, apart = 0, modes[NH_LANE_MODES] = {0}, rows[NH_ROW_KINDS] = {0};
    for (int i = 0; i < PROBLEMS; i++) {
        const struct nh_problem problem = random_problem(&state);
        const struct nh_geometry_options options = random_options(&state);
        struct nh_geometry geometry;
        CHECK(!nh_geometry_create(&problem, &host, &options, &geometry), "no memory");
        for (int a = 0; a < NH_AXES; a++)
            check_axis(&geometry, a, options.size[a]);
        check_vectors(&geometry, modes, rows);
        folded += geometry.fold_log > 0;
        apart += geometry.tiles > 1 && geometry.tiles_apart;
        nh_geometry_destroy(&host, &geometry);
    }
    long_axes(&state);
    boxed_axes(&state);
    CHECK(folded > 0 && apart > 0, "%d folded, %d with tiles apart", folded, apart);
    for (int mode = 0; mode < NH_LANE_MODES; mode++)
        CHECK(modes[mode] > 0, "no lanes of mode %d", mode);
    for (int kind = 0; kind < NH_ROW_KINDS; kind++)
        CHECK(rows[kind] > 0, "no rows of kind %d", kind);
    return test_result();
}
