/* How cuda.small masks the scores of columns that rows do not see: see small_masks.cuh. */
#include "small_launch.h"

static struct nh_range queries_of(const struct nh_axis *axis, int64_t key) {
    return nh_seen_range(axis->length, axis->window, axis->stride, axis->causal, 0, true, key);
}

enum { KIND_PLACES = 8 };

/* Whether all warp tiles between those that are nearer to the front or the back than a window see the same of their
 * boxes. The last of these boxes may not stick out, else it would begin earlier. */
static bool kinds_suffice(const struct nh_axis *axis, int64_t warp_tile, int64_t columns) {
    if (axis->query.length == axis->length && axis->key.length == axis->length)
        return axis->length % axis->dilation == 0;
    if (axis->dilation > 1 || axis->periodic) return false;
    int64_t front = nh_ceil_div(axis->window, warp_tile);
    int64_t back = nh_ceil_div(axis->key.length, warp_tile) - front - 1;
    if (back <= front) return true; /* each warp tile is of its own kind */
    int64_t queries_end = axis->query.offset + axis->query.length;
    int64_t first = axis->key.offset + front * warp_tile, end = axis->key.offset + back * warp_tile;
    return queries_of(axis, first).begin >= axis->query.offset &&
           queries_of(axis, end - 1).end <= queries_end &&
           queries_of(axis, end - warp_tile).begin + columns <= queries_end;
}

/* Whether kinds suffice where the last work tile begins where its end decides: warp tiles that are neither near the front nor among
 * those that are counted from the end see windows (nh_kind_with_end in small_masks.cuh). On a long axis they do. */
static bool ends_suffice(const struct nh_small_launch *launch, int a) {
    const struct nh_axis *axis = &launch->problem->axis[a];
    const int64_t length = axis->length, window = axis->window, rows = launch->config.rows[a],
                  tile = launch->config.warp_tile[a], front = nh_ceil_div(window, tile);
    const int64_t tiles = nh_ceil_div(length, rows);
    if (!launch->config.ends[a] || tiles == 1 || length >= 2 * (window + rows)) return true;
    const int64_t last = small_last_work_tile(&launch->config, a, (int)length, (int)tiles);
    for (int64_t row = 0; row < length; row = row < last && row + tile > last ? last : row + tile) {
        const bool counted =
            row < last ? row / tile < front : nh_ceil_div(length - row, tile) <= front + 1;
        const int64_t end = nh_min(row + tile, row < last ? last : length);
        if (!counted && (row < window || nh_max(end, front * tile + end - row) > length - window))
            return false;
    }
    return true;
}

/* The same with a table: boxes and what rows see of them are as nh_kind_box and nh_kind_ranges of small_masks.cuh have them. The
 * end of the slots, which a box that rolls must not meet, is not before that of the queries that the last key sees. */
static bool table_kinds_suffice(const struct nh_small_launch *launch, int a, bool rolls) {
    const struct nh_axis *axis = &launch->problem->axis[a];
    const struct small_config *config = &launch->config;
    const int64_t keys = nh_axis_keys(axis), warp_tile = config->warp_tile[a];
    const int64_t front = nh_ceil_div(axis->window, warp_tile);
    const int64_t back = nh_ceil_div(keys, warp_tile) - front - 1;
    if (axis->query.length != axis->length || !nh_has_all_keys(axis)) return false;
    if (back <= front) return true; /* each warp tile is of its own kind */
    if (nh_small_slides(axis)) return axis->windows.valid == keys && !rolls;
    if (!nh_listed_exactly(axis)) return false;
    const int64_t queries_end = nh_axis_seen(axis, axis->length, true, keys - 1).end;
    struct nh_range kind[KIND_PLACES] = {{0, 0}}, own = {0, 0};
    int64_t work_begin = 0, box = 0, until = 0;
    for (int64_t key = 0; key < back * warp_tile; key++) {
        /* queries before own.begin end before the key, those before `until` begin at or before it */
        while (own.begin < axis->length &&
               nh_axis_seen(axis, axis->length, false, own.begin).end <= key)
            own.begin++;
        while (until < axis->length && nh_axis_seen(axis, axis->length, false, until).begin <= key)
            until++;
        own.end = nh_max(own.begin, until);
        if (key % config->rows[a] == 0) work_begin = own.begin;
        if (key % warp_tile == 0)
            box = rolls ? own.begin
                        : nh_min(own.begin, work_begin + config->halo[a] - config->columns[a]);
        const struct nh_range seen = {own.begin - box, own.end - box};
        struct nh_range *same = &kind[key % warp_tile];
        if (key < front * warp_tile) continue;
        if (key < (front + 1) * warp_tile) *same = seen;
        if (seen.begin != same->begin || seen.end != same->end ||
            (rolls && box + config->columns[a] > queries_end))
            return false;
    }
    return true;
}

/* Whether the tables of small_masks.cuh can mask. They need kinds that suffice, no strides, and, away from the borders,
 * boxes of warp tiles that begin with the first column that their rows see. */
static bool kinds_mask(const struct nh_small_launch *launch) {
    const int first = NH_AXES - launch->problem->rank;
    enum { MOST_BYTES = 16384, MOST_BYTES_OF_GROUP = 20480 };
    int64_t places = 0;
    if (!nh_small_by_keys(launch)) return false;
    for (int a = small_masked_axis(&launch->config); a < NH_AXES; a++) {
        const struct nh_axis *axis = &launch->problem->axis[a];
        int32_t warp_tile = launch->config.warp_tile[a], columns = launch->config.columns[a];
        bool rolls = launch->config.slots && a == first;
        places += warp_tile;
        /* Boxes that serve all lengths have columns for rows near an end, too. A work tile must then not begin near the front
         * and have warp tiles that do not: their boxes would begin further from its first column than elsewhere. */
        const bool even =
            launch->config.rows[a] == warp_tile || launch->config.rows[a] >= axis->window;
        const int64_t more = nh_small_is_grouped(launch) && even ? axis->window / 2 : 0;
        if (axis->stride > 1 || warp_tile % 2 || places > KIND_PLACES ||
            columns > warp_tile + axis->window + more ||
            (launch->serves == NH_SMALL_ANY_LENGTH && axis->dilation > 1) ||
            (!rolls && launch->config.rows[a] - warp_tile + columns > launch->config.halo[a]) ||
            !(axis->windows.kind ? table_kinds_suffice(launch, a, rolls)
                                 : kinds_suffice(axis, warp_tile, columns)) ||
            !ends_suffice(launch, a))
            return false;
    }
    return small_kinds_bytes(&launch->config) <=
           (nh_small_is_grouped(launch) ? MOST_BYTES_OF_GROUP : MOST_BYTES);
}

/* Whether a place for each column at which a row's window may start is enough. */
static bool starts_mask(const struct nh_small_launch *launch) {
    enum { PLACES = 8 };
    const struct small_config *config = &launch->config;
    int places = 0;
    for (int a = small_masked_axis(config); a < NH_AXES; a++) {
        int spread = config->columns[a] - config->window[a];
        places += spread > 0 ? spread + 1 : 0;
    }
    if (places > PLACES || nh_small_by_keys(launch)) return false;
    for (int a = small_masked_axis(config); a < NH_AXES; a++)
        if (!nh_small_sees_windows(&launch->problem->axis[a])) return false;
    return true;
}

/* Whether a place for each coordinate of a column can mask. Gradients of a bias are also gathered from scores of columns
 * that rows do not see: only masks by bits make these 0. */
static bool coordinates_mask(const struct nh_small_launch *launch) {
    enum { PLACES = 31 };
    const struct nh_problem *problem = launch->problem;
    const bool gathers = problem->has_bias && launch->config.pass == SMALL_BY_QUERY;
    int places = 0;
    for (int a = small_masked_axis(&launch->config); a < NH_AXES; a++)
        places += launch->config.columns[a];
    return places <= PLACES && !(gathers && nh_small_has_region(problem));
}

enum small_mask nh_small_mask_of(const struct nh_small_launch *launch) {
    if (!(launch->problem->scale >= NH_SMALL_LEAST_SCALE)) return SMALL_BITS;
    if (starts_mask(launch)) return SMALL_STARTS;
    if (kinds_mask(launch)) return SMALL_KINDS;
    return coordinates_mask(launch) ? SMALL_COORDINATES : SMALL_BITS;
}
