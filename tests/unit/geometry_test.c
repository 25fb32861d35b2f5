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
                                          .most_rows = (int32_t)test_between(state, 3, 4),
                                          .band_budget = 24,
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
                const int32_t slot = key - vector->index[lane];
                const int32_t weight = band->weight + g * band->out_step + s * band->source_step;
                wrong += lane >= vector->count || slot < 0 || slot >= vector->keys[lane] ||
                         weight != slot * geometry->lanes + lane;
                met[key][lane]++;
            }
    }
    return wrong;
}

static void check_bands(const struct nh_geometry *geometry, const struct nh_vector *vector) {
    for (int gather = 0; gather < 2; gather++) {
        uint8_t met[2 * MOST_LENGTH][NH_MOST_LANES] = {{0}};
        int wrong = wrong_products(geometry, vector, gather ? &vector->gather : &vector->scatter,
                                   gather, met);
        for (int32_t lane = 0; lane < vector->count; lane++)
            for (int32_t key = 0; key < 2 * MOST_LENGTH; key++) {
                const int32_t slot = key - vector->index[lane];
                wrong += met[key][lane] != (slot >= 0 && slot < vector->keys[lane]);
            }
        CHECK(!wrong, "%s: %d products of %d queries from %d on", gather ? "gather" : "scatter",
              wrong, vector->count, vector->first);
    }
}

/* Every query is in one vector, and each lane knows the keys of its query. */
static void check_vectors(const struct nh_geometry *geometry) {
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
            wrong += vector->start + vector->index[lane] != order->begin[query];
            wrong += vector->keys[lane] != order->end[query] - order->begin[query];
            wrong += vector->index[lane] < 0 || vector->index[lane] >= geometry->lanes;
            wrong += vector->mode == NH_LANES_SAME && vector->index[lane] != 0;
            wrong += vector->mode == NH_LANES_SHIFT && vector->index[lane] != lane;
        }
        CHECK(!wrong, "vector %d has %d wrong lanes", v, wrong);
        check_bands(geometry, vector);
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
                wrong += order->token[order->begin[query] + key - range.begin] + tokens !=
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

int main(void) {
    const struct nh_host host = {0};
    uint64_t state = 20240307;
    int folded = 0, apart = 0;
    for (int i = 0; i < PROBLEMS; i++) {
        const struct nh_problem problem = random_problem(&state);
        const struct nh_geometry_options options = random_options(&state);
        struct nh_geometry geometry;
        CHECK(!nh_geometry_create(&problem, &host, &options, &geometry), "no memory");
        for (int a = 0; a < NH_AXES; a++)
            check_axis(&geometry, a, options.size[a]);
        check_vectors(&geometry);
        folded += geometry.fold_log > 0;
        apart += geometry.tiles > 1 && geometry.tiles_apart;
        nh_geometry_destroy(&host, &geometry);
    }
    long_axes(&state);
    CHECK(folded > 0 && apart > 0, "%d folded, %d with tiles apart", folded, apart);
    return test_result();
}
