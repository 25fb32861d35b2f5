/* Builds the geometry of a plan. */
#include "geometry.h"

#include "hash.h"

#include <stddef.h>
#include <string.h>

void nh_geometry_permute(const struct nh_problem *problem, int32_t lane_axis,
                         struct nh_problem *permuted, int64_t slot_step[NH_AXES],
                         int64_t bias_step[NH_AXES]) {
    int from[NH_AXES] = {0, 1, 2};
    from[lane_axis] = 2;
    from[2] = lane_axis;
    int64_t slot[NH_AXES] = {1, 1, 1}, bias[NH_AXES] = {1, 1, 1};
    for (int a = NH_AXES - 2; a >= 0; a--) {
        slot[a] = slot[a + 1] * problem->axis[a + 1].window;
        bias[a] = bias[a + 1] * (2 * problem->axis[a + 1].window - 1);
    }
    *permuted = *problem;
    for (int a = 0; a < NH_AXES; a++) {
        permuted->axis[a] = problem->axis[from[a]];
        slot_step[a] = slot[from[a]];
        bias_step[a] = bias[from[a]];
        for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
            bool extra = tensor == NHOOD_EXTRA_K || tensor == NHOOD_EXTRA_V ||
                         tensor == NHOOD_D_EXTRA_K || tensor == NHOOD_D_EXTRA_V;
            if (!extra) permuted->strides[tensor].axis[a] = problem->strides[tensor].axis[from[a]];
        }
    }
    /* The token stride of extra tokens goes to axis 0. Where the caller has it depends on the rank. */
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        if (tensor == NHOOD_EXTRA_K || tensor == NHOOD_EXTRA_V || tensor == NHOOD_D_EXTRA_K ||
            tensor == NHOOD_D_EXTRA_V)
            permuted->strides[tensor].axis[0] =
                problem->strides[tensor].axis[NH_AXES - problem->rank];
}

struct nh_range nh_group_attended(const struct nh_axis *axis, int64_t group) {
    const struct nh_range queries = nh_axis_covered(axis, &axis->query, group);
    const struct nh_group_keys keys = nh_group_keys(axis, group);
    if (queries.begin >= queries.end) return (struct nh_range){0, 0};
    const int64_t first = queries.begin * axis->dilation + group;
    const int64_t last = (queries.end - 1) * axis->dilation + group;
    return (struct nh_range){nh_key_at(&keys, nh_axis_window(axis, first).begin),
                             nh_key_at(&keys, nh_axis_window(axis, last).end)};
}

double nh_boxed_keys(const struct nh_axis *axis) {
    if (axis->windows.kind) return (double)axis->key.length;
    const double groups = (double)nh_min(axis->dilation, axis->query.length);
    const double keys = (double)axis->query.length + groups * (double)(axis->window + axis->stride);
    return axis->periodic || keys < (double)axis->key.length ? keys : (double)axis->key.length;
}

/* Whether some window of the group begins no later than the box's last key of some lap and ends after its first key of the
 * next lap. */
static bool group_meets_box_twice(const struct nh_axis *axis, int64_t group) {
    const struct nh_group_keys keys = nh_group_keys(axis, group);
    const struct nh_range queries = nh_axis_covered(axis, &axis->query, group);
    if (keys.count == 0 || keys.count == keys.turn || queries.begin >= queries.end) return false;
    const int64_t block = queries.begin / axis->stride;
    const int64_t last_block = (queries.end - 1) / axis->stride;
    const int64_t before = axis->window / 2 - axis->stride / 2;
    for (int64_t turn = -2; turn <= 2; turn++) {
        const int64_t last = keys.first + keys.count - 1 + turn * keys.turn;
        const int64_t next = keys.first + (turn + 1) * keys.turn;
        const int64_t earliest = next + 1 - axis->window; /* first start of a window with `next` */
        const int64_t from = nh_max(block, -nh_floor_div(-(earliest + before), axis->stride));
        if (from <= last_block && from * axis->stride - before <= last) return true;
    }
    return false;
}

bool nh_meets_box_twice(const struct nh_axis *axis) {
    if (!axis->periodic || nh_has_all_keys(axis)) return false;
    /* Groups differ only in whether they have one more query or key at either end of the boxes. The groups at the boxes' ends
     * stand for all. */
    const struct nh_box *box[] = {&axis->query, &axis->key};
    bool twice = group_meets_box_twice(axis, 0);
    for (int i = 0; i < 2; i++) {
        twice |= group_meets_box_twice(axis, box[i]->offset % axis->dilation);
        twice |= group_meets_box_twice(axis, (box[i]->offset + box[i]->length) % axis->dilation);
    }
    return twice;
}

/* Appends the places of a dilation group with tables like those of a group of `length` tokens. */
static void add_group(const struct nh_axis *axis, int64_t group, int64_t length,
                      struct nh_order *order) {
    const int32_t base = order->length;
    for (int64_t position = 0; position < length; position++) {
        const int32_t place = order->length++;
        struct nh_range range =
            nh_window_range(length, axis->window, axis->stride, axis->causal, position);
        order->token[place] = (int32_t)(position * axis->dilation + group);
        order->begin[place] = base + (int32_t)range.begin;
        order->end[place] = base + (int32_t)range.end;
        order->slot[place] = 0;
        order->distance[place] = (int32_t)(range.begin - position);
        order->fewer |= range.end - range.begin < axis->window;
    }
}

/* Whether the lanes up to some lane start at the same key and those after it at consecutive keys, or the other way round. */
static bool find_turn(struct nh_lanes *keys, int32_t lanes) {
    int32_t still = 1, moving = 1;
    while (still < lanes && keys->index[still] == 0)
        still++;
    while (moving < lanes && keys->index[moving] == moving)
        moving++;
    keys->still_first = still > 1;
    keys->turn = keys->still_first ? still - 1 : moving - 1;
    const int32_t turn = keys->turn;
    for (int32_t lane = 0; lane < lanes; lane++) {
        const int64_t at = keys->still_first ? nh_max(lane - turn, 0) : nh_min(lane, turn);
        if (keys->index[lane] != at) return false;
    }
    return true;
}

/* Sets what follows from the first and last keys of all lanes. */
static void finish_lanes(struct nh_lanes *keys, int32_t lanes) {
    bool shift = keys->even && keys->count == lanes, same = true;
    keys->fewest_keys = keys->most_keys = keys->keys[0];
    for (int32_t lane = 0; lane < lanes; lane++) {
        if (keys->keys[lane] < keys->fewest_keys) keys->fewest_keys = keys->keys[lane];
        if (keys->keys[lane] > keys->most_keys) keys->most_keys = keys->keys[lane];
        if (lane >= keys->count) continue;
        shift &= keys->index[lane] == lane;
        same &= keys->index[lane] == 0;
    }
    keys->mode = same                     ? NH_LANES_SAME
                 : shift                  ? NH_LANES_SHIFT
                 : find_turn(keys, lanes) ? NH_LANES_SPLIT
                                          : NH_LANES_PERMUTE;
}

/* How many queries from `first` on fit a vector: their first keys must lie within `lanes` keys. */
static int32_t count_queries(const struct nh_order *order, int32_t first, int32_t limit,
                             int32_t lanes) {
    const int32_t most = (int32_t)nh_min(lanes, limit - first), start = order->begin[first];
    int32_t count = 1;
    if (order->begin[first + most - 1] - start < lanes) return most;
    while (count < most && order->begin[first + count] - start < lanes)
        count++;
    return count;
}

/* The first and last keys of `count` queries from `first` on. The lanes hold these queries 2^fold_log times, for as many places
 * of the middle axis. */
static void set_lanes(const struct nh_order *order, int32_t first, int32_t count, int32_t lanes,
                      int32_t fold_log, struct nh_lanes *keys) {
    const int32_t *begin = order->begin + first, *end = order->end + first, start = *begin;
    keys->count = count;
    keys->even = 1;
    for (int32_t query = 0; query < count; query++) {
        keys->index[query] = begin[query] - start;
        keys->keys[query] = end[query] - begin[query];
    }
    for (int32_t lane = count; lane < lanes; lane++) {
        const int32_t like = lane < count << fold_log ? lane - count : count - 1;
        keys->index[lane] = keys->index[like];
        keys->keys[lane] = keys->keys[like];
    }
    if (!order->distance) return;
    for (int32_t query = 1; query < count; query++)
        keys->even &= order->distance[first + query] == order->distance[first];
}

/* The different lanes of vectors, found by a hash of their first and last keys. */
struct lane_set {
    struct nh_lanes *lane;
    int32_t count, room; /* a power of two */
    int32_t *found;      /* numbers of lanes, counted from 1, at 2 * room places */
};

enum { LANE_KEY_BYTES = offsetof(struct nh_lanes, mode), LEAST_LANES = 64 };

static uint32_t lane_place(const struct lane_set *set, const struct nh_lanes *keys) {
    uint64_t hash = 0, word;
    for (size_t at = 0; at < LANE_KEY_BYTES;
         at += sizeof word) { /* products that wait for no other */
        memcpy(&word, (const char *)keys + at, sizeof word);
        hash += (word + at) * (NH_HASH_START + 2 * at);
    }
    return (uint32_t)((hash ^ hash >> 29) * NH_HASH_START >> 32) & (uint32_t)(2 * set->room - 1);
}

static bool same_lanes(const struct nh_lanes *one, const struct nh_lanes *other) {
    return !memcmp(one, other, LANE_KEY_BYTES);
}

static nhood_status grow(const struct nh_host *host, struct lane_set *set) {
    const int32_t room = set->room ? 2 * set->room : LEAST_LANES;
    struct nh_lanes *lane = nh_allocate(host, (size_t)room * sizeof *lane);
    int32_t *found = nh_allocate(host, 2 * (size_t)room * sizeof *found);
    if (!lane || !found) {
        nh_release(host, lane);
        nh_release(host, found);
        return NHOOD_ERR_MEMORY;
    }
    if (set->count) memcpy(lane, set->lane, (size_t)set->count * sizeof *lane);
    nh_release(host, set->lane);
    nh_release(host, set->found);
    *set = (struct lane_set){lane, set->count, room, found};
    for (int32_t i = 0; i < set->count; i++) {
        uint32_t place = lane_place(set, &lane[i]);
        while (found[place])
            place = (place + 1) & (uint32_t)(2 * room - 1);
        found[place] = i + 1;
    }
    return NHOOD_OK;
}

/* Finds the number of equal lanes, or adds them. */
static nhood_status find_lanes(const struct nh_host *host, const struct nh_lanes *keys,
                               int32_t lanes, struct lane_set *set, int32_t *number) {
    if (set->count == set->room) {
        const nhood_status status = grow(host, set);
        if (status) return status;
    }
    uint32_t place = lane_place(set, keys);
    while (set->found[place] && !same_lanes(&set->lane[set->found[place] - 1], keys))
        place = (place + 1) & (uint32_t)(2 * set->room - 1);
    if (!set->found[place]) {
        set->lane[set->count] = *keys;
        finish_lanes(&set->lane[set->count], lanes);
        set->found[place] = ++set->count;
    }
    *number = set->found[place] - 1;
    return NHOOD_OK;
}

static int32_t count_vectors(struct nh_geometry *geometry) {
    int32_t count = 0;
    for (int32_t t = 0; t < geometry->tile[2].kept; t++) {
        const int32_t end = nh_tile_end(geometry, 2, t);
        geometry->tile_vector[t] = count;
        for (int32_t first = nh_tile_first(geometry, 2, t); first < end; count++)
            first += count_queries(&geometry->order[2], first, end, geometry->lanes);
    }
    geometry->tile_vector[geometry->tile[2].kept] = count;
    return count;
}

/* Fills the vectors, of which `number` says which lanes they have. */
static nhood_status fill_vectors(const struct nh_host *host, struct nh_geometry *geometry,
                                 int32_t *number, struct lane_set *set) {
    const struct nh_order *order = &geometry->order[2];
    struct nh_lanes keys = {0};
    for (int32_t t = 0; t < geometry->tile[2].kept; t++) {
        int32_t first = nh_tile_first(geometry, 2, t);
        for (int32_t v = geometry->tile_vector[t]; v < geometry->tile_vector[t + 1]; v++) {
            const int32_t count =
                count_queries(order, first, nh_tile_end(geometry, 2, t), geometry->lanes);
            geometry->vector[v] =
                (struct nh_vector){.first = first, .count = count, .start = order->begin[first]};
            set_lanes(order, first, count, geometry->lanes, geometry->fold_log, &keys);
            if (v > 0 && same_lanes(&set->lane[number[v - 1]], &keys)) {
                number[v] = number[v - 1];
            } else {
                const nhood_status status =
                    find_lanes(host, &keys, geometry->lanes, set, &number[v]);
                if (status) return status;
            }
            first += count;
        }
    }
    return NHOOD_OK;
}

static nhood_status make_vectors(const struct nh_host *host, struct nh_geometry *geometry) {
    geometry->tile_vector =
        nh_allocate(host, ((size_t)geometry->tile[2].kept + 1) * sizeof(int32_t));
    if (!geometry->tile_vector) return NHOOD_ERR_MEMORY;
    const int32_t count = count_vectors(geometry);
    struct lane_set set = {0};
    int32_t *number = nh_allocate(host, (size_t)count * sizeof *number);
    geometry->vector = nh_allocate(host, (size_t)count * sizeof *geometry->vector);
    nhood_status status =
        number && geometry->vector ? fill_vectors(host, geometry, number, &set) : NHOOD_ERR_MEMORY;
    for (int32_t v = 0; !status && v < count; v++)
        geometry->vector[v].lanes = &set.lane[number[v]];
    geometry->lane = set.lane;
    geometry->lane_count = set.count;
    nh_release(host, set.found);
    nh_release(host, number);
    return status;
}

static enum nh_row_kind row_kind(const struct nh_lanes *keys, int32_t window, int32_t lanes) {
    if (keys->count < lanes || keys->fewest_keys < window) return NH_ROW_NONE;
    if (keys->mode == NH_LANES_SHIFT) return NH_ROW_INNER;
    if (keys->mode != NH_LANES_SPLIT) return NH_ROW_NONE;
    if (keys->still_first) return keys->turn == window / 2 ? NH_ROW_FIRST : NH_ROW_NONE;
    return keys->turn == lanes - 1 - window / 2 ? NH_ROW_LAST : NH_ROW_NONE;
}

/* Makes the band lists of all lanes for the whole window. They stay empty if the window is processed in chunks. */
static nhood_status make_bands(const struct nh_host *host, struct nh_geometry *geometry) {
    const int32_t window = geometry->order[2].window, lanes = geometry->lanes;
    if (geometry->chunk < window) return NHOOD_OK;
    for (int pass = 0; pass < 2; pass++) {
        struct nh_band *next = geometry->bands;
        size_t total = 0;
        for (int32_t i = 0; i < geometry->lane_count; i++) {
            struct nh_lanes *keys = &geometry->lane[i];
            const enum nh_row_kind row = row_kind(keys, window, lanes);
            keys->gather = (struct nh_band_list){next, 0, row};
            nh_band_gather(keys, lanes, 0, window, geometry->band_outputs, &keys->gather);
            if (next) next += keys->gather.count;
            keys->scatter = (struct nh_band_list){next, 0, row};
            nh_band_scatter(keys, lanes, 0, window, geometry->band_outputs, &keys->scatter);
            if (next) next += keys->scatter.count;
            total += (size_t)keys->gather.count + (size_t)keys->scatter.count;
        }
        if (pass == 0) {
            geometry->bands = nh_allocate(host, (total + 1) * sizeof *geometry->bands);
            if (!geometry->bands) return NHOOD_ERR_MEMORY;
        }
    }
    return NHOOD_OK;
}

/* Whether no key is attended both by queries before place `first` and by queries from it on. That is so between dilation
 * groups, and between blocks of queries if the window is as wide as the stride. */
static bool parts_keys(const struct nh_order *order, int32_t first) {
    return first == order->length || order->begin[first] >= order->end[first - 1];
}

/* Returns the end of the tile that begins at `first`: the last cut that parts the keys within `size` queries or, if there is
 * none, `size` queries on. It is at most `last`. */
static int32_t cut_tile(const struct nh_order *order, int32_t first, int32_t size, int32_t last) {
    const int32_t limit = (int32_t)nh_min((int64_t)first + size, last);
    int32_t end = limit;
    if (order->whole && limit < order->length) return limit;
    while (end > first && !parts_keys(order, end))
        end--;
    return end > first ? end : limit;
}

/* Cuts the part's places up to `last` into tiles. If tile->first is NULL, the tiles are only counted. */
static void cut_part(const struct nh_order *order, int32_t size, const struct nh_axis_part *part,
                     int32_t last, struct nh_tile_axis *tile) {
    for (int32_t first = part->place; first < last; tile->kept++) {
        if (tile->first) tile->first[tile->kept] = first;
        first = cut_tile(order, first, size, last);
    }
}

/* The size of the tiles if an axis is cut into as many as tiles of `most` queries would be, but as evenly as whole units
 * allow, so that threads get equal work. */
static int32_t even_size(int32_t length, int32_t most, int32_t unit) {
    if (most >= length) return length;
    const int64_t tiles = nh_ceil_div(length, nh_max(1, most)), units = nh_ceil_div(length, unit);
    return (int32_t)nh_max(1, nh_min(most, nh_ceil_div(units, tiles) * unit));
}

/* Cuts the kept unit of each part into tiles. */
static nhood_status cut_tiles(const struct nh_host *host, const struct nh_order *order,
                              int32_t size, struct nh_tile_axis *tile) {
    for (int pass = 0; pass < 2; pass++) {
        tile->kept = 0;
        tile->count = 0;
        for (int32_t p = 0; p < tile->parts; p++) {
            struct nh_axis_part *part = &tile->part[p];
            const int32_t last = p + 1 < tile->parts ? part[1].place : order->length;
            part->tile = tile->kept;
            cut_part(order, size, part, last, tile);
            part->tiles = tile->kept - part->tile + part->skipped * part->period;
            tile->count += part->units * part->tiles;
        }
        if (pass == 0)
            tile->first = nh_allocate(host, ((size_t)tile->kept + 1) * sizeof *tile->first);
        if (!tile->first) return NHOOD_ERR_MEMORY;
    }
    tile->first[tile->kept] = order->length;
    tile->apart = order->once;
    for (int32_t t = 0; t < tile->kept; t++) {
        const int32_t first = tile->first[t], end = tile->first[t + 1];
        const int32_t keys = order->end[end - 1] - order->begin[first];
        if (end - first > tile->size) tile->size = end - first;
        if (keys > tile->most_keys) tile->most_keys = keys;
        tile->apart &= parts_keys(order, end);
    }
    return NHOOD_OK;
}

/* Finds the periods of a dilation group of `length` tokens. A period consists of whole tiles and whole blocks of the stride,
 * and lies where windows are not shifted at a border. Returns the number of tokens of the group that are kept. */
static int64_t set_periods(const struct nh_axis *axis, int64_t length, int32_t size,
                           struct nh_axis_part *part) {
    const int64_t stride = axis->stride, border = axis->window + stride;
    int64_t period = size / nh_common_divisor(size, stride) * stride, tile = size;
    if (stride == axis->window) { /* cut_tile cuts between blocks */
        period = stride <= size ? size - size % stride : stride;
        tile = nh_min(size, period);
    }
    const int64_t head = nh_ceil_div(border, period) * period;
    part->head = part->period = 1;
    part->head_places = part->period_places = 1;
    if (head + 2 * period + border >= length) return length;
    part->period = (int32_t)nh_ceil_div(period, tile);
    part->head = (int32_t)(head / period) * part->period;
    part->head_places = (int32_t)head;
    part->period_places = (int32_t)period;
    part->period_tokens = period * axis->dilation;
    part->skipped = (length - head - period - border) / period;
    return length - part->skipped * period;
}

/* Appends `groups` dilation groups of `length` tokens, the first of which is `group`, in units of as many whole groups as fit
 * a tile, or one by one. */
static void add_part(const struct nh_axis *axis, int64_t group, int64_t groups, int64_t length,
                     int32_t size, struct nh_order *order, struct nh_tile_axis *tile) {
    if (groups == 0) return;
    const int64_t most = nh_max(1, axis->dilation > 1 ? size / length : 1);
    const int64_t of_unit = nh_min(most, groups), units = groups / of_unit;
    struct nh_axis_part *part = &tile->part[tile->parts++];
    *part = (struct nh_axis_part){
        .units = units, .places = of_unit * length, .unit_tokens = of_unit, .place = order->length};
    const int64_t kept = set_periods(axis, length, size, part);
    if (order->token)
        for (int64_t g = 0; g < of_unit; g++)
            add_group(axis, group + g, kept, order);
    else
        order->length += (int32_t)(of_unit * kept);
    add_part(axis, group + units * of_unit, groups - units * of_unit, length, size, order, tile);
}

/* Appends the places of the queries of a boxed axis's dilation group, and of the keys that they attend. */
static void add_boxed_group(const struct nh_axis *axis, int64_t group, struct nh_order *order) {
    const struct nh_range queries = nh_axis_covered(axis, &axis->query, group);
    const struct nh_group_keys keys = nh_group_keys(axis, group);
    const struct nh_range attended = nh_group_attended(axis, group);
    const int64_t base = order->keys - attended.begin;
    order->group_key[group] = order->keys;
    order->once &= attended.end - attended.begin <= keys.count;
    order->every &= attended.end - attended.begin >= keys.count;
    for (int64_t key = attended.begin; key < attended.end; key++) {
        const int64_t position = keys.first + key - nh_floor_div(key, keys.count) * keys.count;
        order->key_token[order->keys++] =
            (int32_t)(position * axis->dilation + group - axis->key.offset);
    }
    for (int64_t position = queries.begin; position < queries.end; position++) {
        const int32_t place = order->length++;
        const int64_t token = position * axis->dilation + group;
        const struct nh_range range = nh_axis_window(axis, token);
        const int64_t begin = nh_key_at(&keys, range.begin), end = nh_key_at(&keys, range.end);
        int64_t slot = 0;
        if (begin < end) {
            const int64_t turns = nh_floor_div(begin, keys.count);
            slot = keys.first + begin + turns * (keys.turn - keys.count) - range.begin;
        }
        order->token[place] = (int32_t)(token - axis->query.offset);
        order->begin[place] = (int32_t)(base + begin);
        order->end[place] = (int32_t)(base + end);
        order->slot[place] = (int32_t)slot;
        order->distance[place] = (int32_t)(range.begin + slot - position);
        order->fewer |= end - begin < axis->window;
        order->none |= begin == end;
        order->missing[place] = end - begin < range.end - range.begin;
        order->cut |= end - begin < range.end - range.begin;
    }
}

/* The same of an axis with a window table, whose tokens are one group: places are rows of the tensors, but for a first key that is
 * not the tensors' first one, so that queries and keys share one table of them. */
static void add_table(const struct nh_axis *axis, struct nh_order *order) {
    const struct nh_windows *windows = &axis->windows;
    const nhood_range *table = windows->valid == windows->keys ? windows->range : NULL;
    const struct nh_range attended = nh_group_attended(axis, 0);
    const int64_t length = axis->query.length, rows = nh_max(length, attended.end);
    const int64_t before = axis->key.offset + attended.begin;
    const int64_t keys = attended.end - attended.begin;
    int64_t fewest = axis->window;
    bool whole = true;
    for (int64_t row = 0; row < rows; row++)
        order->token[row] = (int32_t)row;
    for (int64_t place = 0; place < length; place++) {
        const int64_t token = axis->query.offset + place;
        struct nh_range range = {0, 0};
        if (table)
            range = (struct nh_range){table[token].first,
                                      table[token].first + (int64_t)table[token].count};
        else
            range = nh_axis_window(axis, token);
        const int64_t first = nh_max(0, nh_min(range.begin - before, keys));
        const int64_t last = nh_max(first, nh_min(range.end - before, keys));
        order->begin[place] = (int32_t)first;
        order->end[place] = (int32_t)last;
        fewest = nh_min(fewest, last - first);
        whole &= place == 0 || first < order->end[place - 1];
        if (!order->missing) continue;
        order->slot[place] = first < last ? (int32_t)(first + before - range.begin) : 0;
        order->missing[place] = last - first < range.end - range.begin;
        order->cut |= last - first < range.end - range.begin;
    }
    order->length = (int32_t)length;
    order->keys = (int32_t)keys;
    order->key_token = order->token + attended.begin;
    order->group_key[0] = 0;
    order->every = keys >= axis->key.length;
    order->fewer |= fewest < axis->window;
    order->none |= fewest == 0;
    order->whole = whole;
}

static int32_t attended_keys(const struct nh_axis *axis, int64_t group) {
    const struct nh_range attended = nh_group_attended(axis, group);
    return (int32_t)(attended.end - attended.begin);
}

/* Adds the places of all dilation groups as one unit or, on a long axis, only of those that are kept. If order->token is
 * NULL, the places are only counted. */
static void add_places(const struct nh_axis *axis, bool is_long, int32_t size,
                       struct nh_order *order, struct nh_tile_axis *tile) {
    const int64_t longer = axis->length % axis->dilation, shorter = axis->length / axis->dilation;
    order->length = order->keys = 0;
    order->once = order->every = true;
    tile->parts = 0;
    if (is_long && !nh_is_boxed(axis)) {
        add_part(axis, 0, longer, shorter + 1, size, order, tile);
        add_part(axis, longer, axis->dilation - longer, shorter, size, order, tile);
        return;
    }
    tile->part[tile->parts++] =
        (struct nh_axis_part){.units = 1, .places = axis->query.length, .head = 1, .period = 1};
    for (int64_t group = 0; group < axis->dilation; group++) {
        if (order->token && axis->windows.kind) {
            add_table(axis, order);
        } else if (!order->token) {
            if (nh_is_boxed(axis)) order->keys += attended_keys(axis, group);
        } else if (nh_is_boxed(axis)) {
            add_boxed_group(axis, group, order);
        } else {
            add_group(axis, group, nh_axis_group_length(axis->length, axis->dilation, group),
                      order);
        }
    }
    if (!order->token) order->length = (int32_t)axis->query.length;
    if (order->group_key) order->group_key[axis->dilation] = order->keys;
}

static nhood_status allocate_places(const struct nh_host *host, const struct nh_axis *axis,
                                    struct nh_order *order) {
    const bool boxed = nh_is_boxed(axis);
    const size_t length = (size_t)order->length;
    size_t places = 5 * length;
    if (boxed) places += length + (size_t)order->keys + (size_t)axis->dilation + 1;
    order->token = nh_allocate(host, places * sizeof *order->token);
    if (!order->token) return NHOOD_ERR_MEMORY;
    order->begin = order->token + length;
    order->end = order->begin + length;
    order->slot = order->end + length;
    order->distance = order->slot + length;
    order->missing = boxed ? order->distance + length : NULL;
    order->key_token = boxed ? order->missing + length : order->token;
    order->group_key = boxed ? order->key_token + order->keys : NULL;
    return NHOOD_OK;
}

/* Tables may be long, so nothing is kept that is the same for all queries. */
static nhood_status allocate_table(const struct nh_host *host, const struct nh_axis *axis,
                                   struct nh_order *order) {
    const size_t length = (size_t)order->length;
    const size_t rows = (size_t)nh_max(order->length, nh_group_attended(axis, 0).end);
    const bool whole = nh_has_all_keys(axis);
    order->token = nh_allocate(host, (rows + (whole ? 2 : 4) * length + 2) * sizeof *order->token);
    if (!order->token) return NHOOD_ERR_MEMORY;
    order->begin = order->token + rows;
    order->end = order->begin + length;
    order->group_key = order->end + length;
    if (whole) return NHOOD_OK;
    order->slot = order->group_key + 2;
    order->missing = order->slot + length;
    return NHOOD_OK;
}

static nhood_status make_axis(const struct nh_host *host, const struct nh_axis *axis, bool is_long,
                              int32_t size, struct nh_order *order, struct nh_tile_axis *tile) {
    const bool boxed = nh_is_boxed(axis);
    order->window = (int32_t)axis->window;
    add_places(axis, is_long, size, order, tile); /* only counts the places */
    const nhood_status status =
        axis->windows.kind ? allocate_table(host, axis, order) : allocate_places(host, axis, order);
    if (status) return status;
    add_places(axis, is_long, size, order, tile);
    if (!boxed) order->keys = order->length;
    return cut_tiles(host, order, size, tile);
}

/* Query vectors per block: as many as the kernels allow, but more than LEAST_ROWS only if they leave half of an L1 of 32 KiB
 * to keys. Vectors of a cache line are loaded two lines at a time, and machines that have them a larger L1: there blocks larger
 * than LEAST_ROWS pay only with three axes, whose key rows come from L2 and beyond, but pay for queries of 32 KiB, too. */
static int32_t choose_rows(const struct nh_problem *problem,
                           const struct nh_geometry_options *options) {
    enum { LEAST_ROWS = 4, LINE_BYTES = 64, QUERY_BYTES = 16384 };
    const int64_t real_bytes = problem->dtype == NHOOD_DTYPE_F64 ? 8 : 4;
    const int64_t dim = nh_max(problem->dim, problem->dim_v);
    const int64_t vector_bytes = options->lanes * real_bytes;
    int64_t rows = QUERY_BYTES / (dim * vector_bytes);
    if (vector_bytes >= LINE_BYTES) rows = problem->axis[0].query.length > 1 ? 2 * rows : 0;
    return (int32_t)nh_min(options->most_rows, nh_max(rows, LEAST_ROWS));
}

static nhood_status make_axes(const struct nh_host *host, const struct nh_geometry_options *options,
                              struct nh_geometry *geometry) {
    const int32_t unit[NH_AXES] = {1, choose_rows(&geometry->problem, options), options->lanes};
    const int64_t most = options->long_axis ? options->long_axis : NH_LONG_AXIS;
    geometry->tiles = 1;
    geometry->tiles_apart = geometry->every_key = true;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &geometry->problem.axis[a];
        struct nh_tile_axis *tile = &geometry->tile[a];
        const int32_t size = even_size((int32_t)axis->query.length, options->size[a], unit[a]);
        nhood_status status =
            make_axis(host, axis, axis->length > most, size, &geometry->order[a], tile);
        if (status) return status;
        geometry->tiles *= tile->count;
        geometry->tiles_apart &= tile->apart;
        geometry->every_key &= geometry->order[a].every;
        geometry->fewer |= geometry->order[a].fewer;
        geometry->cut |= geometry->order[a].cut;
        geometry->none |= geometry->order[a].none && geometry->problem.extra_tokens == 0;
    }
    return NHOOD_OK;
}

/* If each key row of a tile is needed in a single sweep along the middle axis (one token on the slow axis, one query head
 * per key head), a ring of the rows that a block needs suffices, and no row is packed twice within a tile. */
static void choose_packed_rows(struct nh_geometry *geometry) {
    const struct nh_order *order = &geometry->order[1];
    geometry->rolling = geometry->problem.axis[0].query.length == 1 &&
                        geometry->problem.heads == geometry->problem.kv_heads;
    geometry->packed_rows = geometry->tile[1].most_keys;
    if (!geometry->rolling) return;
    geometry->packed_rows = 1;
    for (int32_t t = 0; t < geometry->tile[1].kept; t++) {
        int32_t end = nh_tile_end(geometry, 1, t);
        for (int32_t first = nh_tile_first(geometry, 1, t), places; first < end; first += places) {
            places = nh_block_places(geometry, end - first);
            int32_t rows = order->end[first + places - 1] - order->begin[first];
            if (rows > geometry->packed_rows) geometry->packed_rows = rows;
        }
    }
}

/* The number of slots of one query vector whose scores are kept at a time. For four f32 AVX-512 vectors, 192 slots are
 * 48 KiB, which stay in L1 or just beyond, and a 13x13 window needs no online rescaling. */
enum { MOST_SLOTS = 192, MOST_CHUNK = 256 };

static void choose_blocking(struct nh_geometry *geometry,
                            const struct nh_geometry_options *options) {
    const struct nh_problem *problem = &geometry->problem;
    int32_t window = geometry->order[2].window, chunks = (int32_t)nh_ceil_div(window, MOST_CHUNK);
    geometry->lanes = options->lanes;
    geometry->rows = choose_rows(problem, options);
    geometry->chunk = (int32_t)nh_ceil_div(window, chunks);
    geometry->slots = (int32_t)nh_max(MOST_SLOTS, geometry->chunk);
    geometry->vectors_k = (int32_t)nh_ceil_div(problem->dim, options->lanes);
    geometry->vectors_v = (int32_t)nh_ceil_div(problem->dim_v, options->lanes);
    int32_t most =
        geometry->vectors_k > geometry->vectors_v ? geometry->vectors_k : geometry->vectors_v;
    geometry->band_vectors = most >= 4 ? 4 : most >= 2 ? 2 : 1;
    geometry->band_outputs = options->band_budget / geometry->band_vectors;
    if (geometry->band_outputs > NH_MOST_BAND) geometry->band_outputs = NH_MOST_BAND;
    /* If a row has an odd number of vectors, its last one is processed alone. */
    const bool single = geometry->vectors_k % 2 != 0 || geometry->vectors_v % 2 != 0;
    if (single && geometry->band_outputs > options->single_outputs)
        geometry->band_outputs = options->single_outputs;
}

/* The same along the slow axis, if every tile has only one vector of the lane axis, so that each plane of key rows of a tile is
 * needed in a single sweep: a ring of the planes that a place of the slow axis needs. */
static void choose_packed_planes(struct nh_geometry *geometry) {
    const struct nh_order *order = &geometry->order[0];
    const struct nh_tile_axis *lane_tiles = &geometry->tile[2];
    geometry->rolling_planes = geometry->problem.axis[0].query.length > 1 &&
                               geometry->problem.heads == geometry->problem.kv_heads;
    for (int32_t t = 0; t < lane_tiles->kept; t++)
        geometry->rolling_planes &= geometry->tile_vector[t + 1] - geometry->tile_vector[t] == 1;
    geometry->packed_planes = geometry->tile[0].most_keys;
    if (!geometry->rolling_planes) return;
    geometry->packed_planes = 1;
    for (int32_t place = 0; place < order->length; place++)
        geometry->packed_planes =
            (int32_t)nh_max(geometry->packed_planes, order->end[place] - order->begin[place]);
}

nhood_status nh_geometry_create(const struct nh_problem *problem, const struct nh_host *host,
                                const struct nh_geometry_options *options,
                                struct nh_geometry *geometry) {
    memset(geometry, 0, sizeof *geometry);
    nh_geometry_permute(problem, options->lane_axis, &geometry->problem, geometry->slot_step,
                        geometry->bias_step);
    nhood_status status = make_axes(host, options, geometry);
    if (!status) {
        choose_blocking(geometry, options);
        if (!options->one_place)
            geometry->fold_log = nh_fold_log(geometry->order[2].length, geometry->tile[2].size,
                                             geometry->tile[1].size, geometry->lanes);
        choose_packed_rows(geometry);
        status = make_vectors(host, geometry);
    }
    if (!status) choose_packed_planes(geometry);
    if (!status) status = make_bands(host, geometry);
    if (status) nh_geometry_destroy(host, geometry);
    return status;
}

void nh_geometry_destroy(const struct nh_host *host, struct nh_geometry *geometry) {
    for (int a = 0; a < NH_AXES; a++) {
        nh_release(host, geometry->order[a].token);
        nh_release(host, geometry->tile[a].first);
    }
    nh_release(host, geometry->tile_vector);
    nh_release(host, geometry->vector);
    nh_release(host, geometry->lane);
    nh_release(host, geometry->bands);
    memset(geometry, 0, sizeof *geometry);
}
