/* The boxes of cuda.small's kernels (small.cuh) on a problem, and halos that roll along the first axis (small_roll.cuh): a
 * block takes work tiles that follow each other there, and fetches only the part of each halo that the halo before did
 * not have. */
#include "small_launch.h"
#include "dtype.h"
#include "tensor_maps.h"
#include "tile_count.h"

#include <string.h>

enum { MOST_HALO_ROWS = 4096 };

/* Whether all windows of a group's queries lie in the keys that tensors have. It is enough to look at the first and the
 * last query, as windows never go back. */
static bool group_sees_windows(const struct nh_axis *axis, int64_t group) {
    const struct nh_range row = nh_axis_covered(axis, &axis->query, group);
    const struct nh_range keys = nh_axis_covered(axis, &axis->key, group);
    const int64_t length = nh_axis_group_length(axis->length, axis->dilation, group);
    if (row.begin == row.end) return true;
    const struct nh_range first = nh_seen_range(length, axis->window, axis->stride, axis->causal,
                                                axis->periodic, false, row.begin);
    const struct nh_range last = nh_seen_range(length, axis->window, axis->stride, axis->causal,
                                               axis->periodic, false, row.end - 1);
    int64_t lap = axis->periodic ? nh_laps(first.begin, keys.begin, length) * length : 0;
    return first.begin >= keys.begin + lap && last.end <= keys.end + lap;
}

/* Whether every query of an axis with a table sees as many keys as the query that sees the most, if that takes no long look. */
static bool table_is_even(const struct nh_axis *axis) {
    if (!nh_listed_exactly(axis)) return false;
    const struct nh_range keys = {axis->key.offset, axis->key.offset + axis->key.length};
    const int64_t end = axis->query.offset + axis->query.length;
    for (int64_t i = axis->query.offset; i < end; i++) {
        const struct nh_range seen = nh_axis_seen(axis, axis->length, false, i);
        if (seen.end - seen.begin != axis->window || seen.begin < keys.begin || seen.end > keys.end)
            return false;
    }
    return true;
}

bool nh_small_sees_windows(const struct nh_axis *axis) {
    if (axis->windows.kind) return table_is_even(axis);
    if (axis->causal) return false;
    if (axis->key.length == axis->length) return true;
    int64_t group = 0;
    while (group < axis->dilation && group_sees_windows(axis, group))
        group += nh_groups_from(axis, group, false).count;
    return group >= axis->dilation;
}

/* Whether the problem lacks the axis, which then has one row and one column. */
static bool is_unit(const struct nh_problem *problem, int a) {
    return a < NH_AXES - problem->rank;
}

/* Whether every row sees this many columns, which is the most that any sees. May return false where it is hard to tell,
 * on axes that are periodic or that tensors do not cover. */
static bool all_see(const struct nh_axis *axis, bool keys, int64_t columns) {
    bool covered = axis->query.length == axis->length && axis->key.length == axis->length;
    if (nh_is_cut(axis))
        return columns == axis->window && (keys ? axis->periodic && covered && axis->stride == 1
                                                : nh_small_sees_windows(axis));
    /* Rows at a border mostly do not, and are tested first. */
    struct nh_range first =
        nh_seen_range(nh_longest_group(axis), axis->window, axis->stride, axis->causal, 0, keys, 0);
    return first.end - first.begin == columns &&
           nh_tile_count(axis, 1, 1, keys).visits == (double)axis->length * (double)columns;
}

static double tiles_of(const struct nh_axis *axis, bool keys, int64_t tile, int64_t shift) {
    const struct nh_box *own = keys ? &axis->key : &axis->query;
    int64_t longest = nh_longest_rows(axis, keys);
    int64_t shorter = longest * axis->dilation - own->length;
    const double longer =
        (double)(axis->dilation - shorter) * (double)nh_ceil_div(longest + shift, tile);
    if (!shorter) return longer;
    return longer + (double)shorter * (double)nh_ceil_div(longest - 1 + shift, tile);
}

/* A shorter length that has the same patterns: away from borders, what rows see repeats, so that a group as long as
 * both borders and two periods is enough. */
static int64_t representative_length(const struct nh_axis *axis, int64_t length, int64_t tile) {
    int64_t period = tile / nh_common_divisor(tile, axis->stride) * axis->stride;
    int64_t enough = 4 * axis->window + 2 * period;
    return length > enough ? length - (length - enough) / period * period : length;
}

/* The most columns that a tile of keys sees if the first tile of a dilation group begins `shift` keys before it. */
static int64_t shifted_columns(const struct nh_axis *axis, int64_t tile, int64_t shift) {
    int64_t most = 0;
    for (int64_t less = 0; less <= (axis->length % axis->dilation != 0); less++) {
        int64_t length = representative_length(axis, nh_longest_group(axis) - less, tile);
        for (int64_t first = -shift; first < length; first += tile) {
            struct nh_range of_first = nh_seen_range(length, axis->window, axis->stride,
                                                     axis->causal, 0, true, nh_max(first, 0));
            struct nh_range of_last =
                nh_seen_range(length, axis->window, axis->stride, axis->causal, 0, true,
                              nh_min(first + tile, length) - 1);
            most = nh_max(most, of_last.end - of_first.begin);
        }
    }
    return most;
}

/* Sets the shift of an axis, and with it the columns of a warp tile and of a work tile, if warp tiles then multiply fewer
 * columns altogether. The queries nearest to a border attend the same keys, so that some of these are attended by many
 * queries: 4 keys with a window of 5 by up to 10, but by 8 if none of their warp tiles has both keys 4 and 7. Only for
 * planes of keys, of which fewer columns let more fit shared memory. */
static void set_shift(struct nh_small_launch *launch, int a) {
    const struct nh_axis *axis = &launch->problem->axis[a];
    int32_t tile = launch->config.warp_tile[a];
    if (!nh_small_by_keys(launch) || a == 0 || nh_small_has_region(launch->problem) ||
        !nh_small_is_plane(launch->problem, launch->config.rows))
        return;
    double least = launch->config.columns[a] * tiles_of(axis, true, tile, 0);
    for (int32_t shift = 1; shift < tile; shift++) {
        int64_t columns = shifted_columns(axis, tile, shift);
        double all = (double)columns * tiles_of(axis, true, tile, shift);
        if (columns >= launch->config.columns[a] || all > least) continue;
        least = all;
        launch->config.shift[a] = shift;
        launch->config.columns[a] = (int32_t)columns;
        launch->config.halo[a] = (int32_t)shifted_columns(axis, launch->config.rows[a], shift);
    }
}

/* Widens the halo to what the copy engine can lay out without gaps. */
static void close_gaps(struct small_config *config) {
    int *h = config->halo;
    const int *k = config->columns;
    if (h[0] * h[1] > 1) h[2] = (int)small_congruent(h[2], k[2]);
    while (h[0] > 1 && (h[1] * h[2] - k[1] * k[2]) % 8)
        h[1]++;
}

/* The number of pairs that all warp tiles multiply without a test: as many as most of them need. Branches between pairs
 * keep the compiler from overlapping them. */
static int least_pairs(const struct nh_small_launch *launch) {
    const struct small_config *config = &launch->config;
    int first = small_first_axis(config);
    int64_t columns =
        nh_min(config->warp_tile[first] + config->window[first] - 1, config->columns[first]);
    for (int a = first + 1; a < NH_AXES; a++)
        columns *= config->columns[a];
    return small_box_blocks(config) > config->chunk_blocks ? 0 : (int)nh_ceil_div(columns, 16);
}

/* Whether axes may be exchanged: what differs, or is close to both ends, would need another kernel. */
static bool is_plain(const struct nh_axis *axis, int64_t window) {
    return axis->window == window && axis->stride == 1 && axis->dilation == 1 && !axis->causal &&
           !axis->windows.kind && !nh_is_cut(axis) && axis->length >= 2 * window;
}

/* The rows of all tiles along an axis. */
static double covered(int64_t length, int32_t tile) {
    return (double)(nh_ceil_div(length, tile) * tile);
}

const struct nh_problem *nh_small_turned(const struct nh_problem *problem,
                                         enum nh_small_serves serves, const int32_t *value,
                                         struct nh_problem *room) {
    const struct nh_axis *axis = problem->axis;
    const double most = 0.98; /* of the rows: less gain is not worth lines that lie further apart */
    double rows = 0, turned_rows = 0;
    if (serves != NH_SMALL_GROUP || problem->rank != 2 || problem->has_bias ||
        16 / value[NH_SMALL_WARP_TILE_1] != value[NH_SMALL_WARP_TILE_1] ||
        !is_plain(&axis[1], axis[2].window) || !is_plain(&axis[2], axis[1].window))
        return problem;
    for (int pass = 0; pass < (problem->op == NHOOD_OP_FWD ? 1 : 2); pass++) {
        const int32_t *tile = value + (pass ? NH_SMALL_KEY_TILE : NH_SMALL_QUERY_TILE);
        rows += covered(axis[1].length, tile[1]) * covered(axis[2].length, tile[2]);
        turned_rows += covered(axis[2].length, tile[1]) * covered(axis[1].length, tile[2]);
    }
    if (!(turned_rows < most * rows)) return problem;
    *room = *problem;
    room->axis[1] = axis[2];
    room->axis[2] = axis[1];
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        if (!nh_tensor_of_grid(tensor)) continue;
        room->strides[tensor].axis[1] = problem->strides[tensor].axis[2];
        room->strides[tensor].axis[2] = problem->strides[tensor].axis[1];
    }
    return room;
}

struct nh_small_launch nh_small_begin(const struct nh_problem *problem,
                                      const struct nh_cuda_device *cuda, enum small_pass pass) {
    struct nh_small_launch launch = {.problem = problem, .cuda = cuda};
    launch.config = (struct small_config){
        .pass = (int)pass,
        .rank = problem->rank,
        .element_bytes = (int)nh_dtype_bytes(problem->dtype),
        .dim = (int)problem->dim,
        .dim_v = (int)problem->dim_v,
        .bias_count = problem->has_bias ? (int)problem->bias_count : 0,
        .strided = nh_problem_strided(problem),
        .dilated = nh_problem_dilated(problem),
        .regions = nh_small_has_region(problem),
        .near_heads = 1,
        .chunk_blocks = SMALL_MASK_BLOCKS,
    };
    for (int a = 0; a < NH_AXES; a++)
        launch.config.window[a] = (int)problem->axis[a].window;
    for (int a = 0; a < NH_AXES; a++)
        launch.config.periodic |= problem->axis[a].periodic << a;
    return launch;
}

/* Whether the work tiles of every dilation group are full. */
static bool is_whole(const struct nh_small_launch *launch) {
    bool all = true;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &launch->problem->axis[a];
        int64_t length = nh_small_by_keys(launch) ? axis->key.length : axis->query.length;
        all = all && length % (axis->dilation * launch->config.rows[a]) == 0 &&
              !launch->config.shift[a];
    }
    return all;
}

/* The columns that a tile of keys may have more than one away from the ends. On an axis of up to two windows all queries see some key
 * of a tile: such axes are served, too, if that takes no more than a line more, beyond which warp tiles elsewhere stop. */
static int64_t more_queries(const struct nh_small_launch *launch, int a, int32_t rows) {
    const int64_t window = launch->problem->axis[a].window, more = window / 2,
                  of_short = (window - 1) / rows * rows;
    return a == NH_AXES - launch->problem->rank && launch->problem->rank > 1 && of_short == more + 1
               ? of_short
               : more;
}

/* The most columns that `rows` rows see along an axis of any legal length up to its own. Dilation groups are axes without dilation
 * that have all lengths from the window on, and what rows see of a long one, they see of a shorter one, too. */
static int64_t columns_of_any_length(const struct nh_axis *axis, int32_t rows, bool keys) {
    const int64_t longest = nh_longest_group(axis);
    int64_t most = 1;
    if (!keys && axis->stride == 1) return rows - 1 + axis->window;
    for (int64_t length = axis->window; length <= longest; length++) {
        struct nh_axis group = *axis;
        if (representative_length(axis, length, rows) < length) break;
        group.dilation = 1;
        group.length = length;
        group.query = group.key = group.key_tensor = (struct nh_box){0, length};
        most = nh_max(most, nh_tile_count(&group, rows, 1, keys).halo);
    }
    return most;
}

/* The columns that `rows` rows see along an axis, at most if windows are cut on a long one; where the kernel is to serve other
 * lengths, too, those of a long axis, unless a short one has more, whose rows are near both ends. Keys near the end have half a
 * window more queries, and how many of them are in one tile depends on the length: the most there may be serve all. */
static int64_t columns_of(const struct nh_small_launch *launch, int a, int32_t rows) {
    const bool keys = nh_small_by_keys(launch);
    const bool grouped = nh_small_is_grouped(launch) && a >= NH_AXES - launch->problem->rank;
    const struct nh_axis *axis = &launch->problem->axis[a];
    if (is_unit(launch->problem, a)) return 1;
    if (launch->serves == NH_SMALL_ANY_LENGTH) return columns_of_any_length(axis, rows, keys);
    const int64_t grouped_keys = rows - 1 + axis->window + more_queries(launch, a, rows);
    /* A plan of a group asks for each member: what serves all lengths needs no count where windows have no steps, and no tile of
     * keys is near both ends. */
    if (grouped && axis->stride == 1 && axis->dilation == 1) {
        if (!keys) return rows - 1 + axis->window;
        if (!axis->causal && axis->length >= 2 * axis->window + rows) return grouped_keys;
    }
    const int64_t columns = nh_small_slides(axis)
                                ? nh_min(axis->length, rows + axis->windows.window - 1)
                                : nh_tile_count(axis, rows, 1, keys).halo;
    if (!grouped) return columns;
    if (keys && axis->stride == 1 && !axis->causal) return nh_max(columns, grouped_keys);
    struct nh_axis longer = *axis;
    longer.length = nh_max(
        axis->length, 4 * (launch->config.rows[a] + axis->window + axis->stride) * axis->dilation);
    longer.query = longer.key = longer.key_tensor = (struct nh_box){0, longer.length};
    return nh_max(columns, nh_tile_count(&longer, rows, 1, keys).halo);
}

/* ---- the last work tile along an axis, in a launch for a group ---- */

/* By keys, those nearer to the end than a window are seen by up to half a window more queries, and how many columns their warp tiles
 * have depends on where these begin, which otherwise the length decides. So the last work tile begins where its end decides
 * (nh_last_work_tile in small_layout.cuh), if that saves columns. Returns how many rows it has at least, a warp tile of which
 * begins with the first of these keys, or 0. */
static int32_t ends_of(const struct nh_small_launch *launch, int a, enum small_pipeline pipeline) {
    const struct nh_axis *axis = &launch->problem->axis[a];
    const int32_t rows = launch->config.rows[a], tile = launch->config.warp_tile[a];
    if (!nh_small_is_grouped(launch) || pipeline != SMALL_BOXES || !nh_small_by_keys(launch) ||
        a <= NH_AXES - launch->problem->rank || nh_problem_dilated(launch->problem) ||
        axis->stride > 1 || axis->causal || axis->windows.kind || rows < axis->window)
        return 0;
    return rows - (rows - (int32_t)axis->window) % tile;
}

/* The most columns that a warp tile has then along an axis that is not short. Its rows are near the front, near the end, or see
 * windows. A work tile of `rows` may begin up to a warp tile before the first key near the end. */
static int64_t columns_with_ends(const struct nh_axis *axis, int32_t rows, int32_t tile,
                                 int32_t ends) {
    const int64_t window = axis->window, half = window / 2;
    const int64_t front = (window - 1) / tile * tile + tile + half,
                  end = window + (rows - ends) + window - 1 - half;
    return nh_max(tile - 1 + window, nh_max(front, end));
}

/* The same, looked up for each warp tile, or for each work tile where `tile` is its rows. */
static int64_t columns_looked_up(const struct nh_small_launch *launch, int a, int32_t tile) {
    const struct nh_axis *axis = &launch->problem->axis[a];
    const struct small_config *config = &launch->config;
    const int64_t length = axis->length, rows = config->rows[a], tiles = nh_ceil_div(length, rows);
    const int64_t last = small_last_work_tile(config, a, (int)length, (int)tiles);
    int64_t most = 0;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t begin = i == tiles - 1 ? last : i * rows,
                      end = i == tiles - 2 ? last : nh_min(begin + rows, length);
        for (int64_t row = begin; row < end; row += tile)
            most = nh_max(most, nh_axis_seen(axis, length, true, nh_min(row + tile, end) - 1).end -
                                    nh_axis_seen(axis, length, true, row).begin);
    }
    return most;
}

/* Sets ends, columns and halo of an axis, if the last work tile begins where its end decides. */
static void set_ends(struct nh_small_launch *launch, int a, enum small_pipeline pipeline) {
    const struct nh_axis *axis = &launch->problem->axis[a];
    struct small_config *config = &launch->config;
    const int32_t ends = ends_of(launch, a, pipeline), rows = config->rows[a],
                  tile = config->warp_tile[a];
    const int64_t window = axis->window;
    if (!ends) return;
    int64_t columns = columns_with_ends(axis, rows, tile, ends);
    if (columns >= tile - 1 + window + window / 2) return;
    int64_t halo = rows - tile + columns;
    config->ends[a] = ends;
    if (axis->length <= rows || axis->length < 2 * window + tile + rows) {
        columns = nh_max(columns, columns_looked_up(launch, a, tile));
        halo = nh_max(rows - tile + columns, columns_looked_up(launch, a, rows));
    }
    config->columns[a] = (int)columns;
    config->halo[a] = (int)halo;
}

/* In a launch for a group that masks by products, a box of up to SMALL_GROUP_BLOCKS is one chunk: one that serves all lengths has
 * more lines than a problem's own. In several chunks every pair would have its branch (least_pairs). */
static void set_chunk_of_group(struct nh_small_launch *launch) {
    struct small_config *config = &launch->config;
    const bool one = nh_small_by_keys(launch) && small_adds_mask(config) &&
                     small_box_blocks(config) <= SMALL_GROUP_BLOCKS;
    config->chunk_blocks = one ? SMALL_GROUP_BLOCKS : SMALL_MASK_BLOCKS;
    config->least_pairs = least_pairs(launch);
}

void nh_small_count_tiles(struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    const struct small_config *config = &launch->config;
    const bool keys = nh_small_by_keys(launch);
    launch->work_tiles = launch->warp_tiles = 1;
    for (int a = NH_AXES - problem->rank; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        launch->work_tiles *= tiles_of(axis, keys, config->rows[a], config->shift[a]);
        launch->warp_tiles *= tiles_of(axis, keys, config->warp_tile[a], config->shift[a]);
    }
}

int64_t nh_small_telling_length(const struct nh_problem *problem, int a, const int32_t *value) {
    const struct nh_axis *axis = &problem->axis[a];
    const int32_t *queries = value + NH_SMALL_QUERY_TILE, *keys = value + NH_SMALL_KEY_TILE;
    const bool backward = problem->op != NHOOD_OP_FWD;
    const int64_t by_queries = axis->window + queries[a], by_keys = 2 * (axis->window + keys[a]);
    const bool bounded = axis->stride == 1 && axis->dilation == 1 && !axis->causal &&
                         !nh_small_is_plane(problem, queries) &&
                         !(backward && nh_small_is_plane(problem, keys));
    return bounded ? nh_min(axis->length, backward ? nh_max(by_queries, by_keys) : by_queries)
                   : axis->length;
}

bool nh_small_with_boxes(const struct nh_small_launch *begun, const struct nh_small_boxes *boxes,
                         enum small_pipeline pipeline, struct nh_small_launch *launch) {
    const bool keys = nh_small_by_keys(begun);
    bool dense = true;
    *launch = *begun;
    struct small_config *config = &launch->config;
    config->pipeline = (int)pipeline;
    memcpy(config->rows, boxes->work_tile, sizeof config->rows);
    memcpy(config->warp_tile, boxes->warp_tile, sizeof config->warp_tile);
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &launch->problem->axis[a];
        if (axis->window > MOST_HALO_ROWS) return false;
        int64_t halo = columns_of(launch, a, config->rows[a]);
        if (halo > MOST_HALO_ROWS) return false;
        config->columns[a] = (int)columns_of(launch, a, config->warp_tile[a]);
        /* the most columns of both need not be of the same length, and masks by kinds ask for boxes within the halo */
        if (launch->serves == NH_SMALL_ANY_LENGTH)
            halo = nh_max(halo, config->rows[a] - config->warp_tile[a] + config->columns[a]);
        config->halo[a] = (int)halo;
        if (pipeline == SMALL_BOXES) set_shift(launch, a);
        set_ends(launch, a, pipeline);
        dense = dense && (is_unit(launch->problem, a) || (launch->serves != NH_SMALL_ANY_LENGTH &&
                                                          all_see(axis, keys, config->columns[a])));
    }
    nh_small_count_tiles(launch);
    if (pipeline == SMALL_BOXES) close_gaps(config);
    config->grouped = nh_small_is_grouped(launch);
    config->whole = !nh_small_is_grouped(launch) && is_whole(launch);
    config->least_pairs = least_pairs(launch);
    config->mask = dense ? SMALL_NO_MASK : (int)nh_small_mask_of(launch);
    if (nh_small_is_grouped(launch) && pipeline == SMALL_BOXES) set_chunk_of_group(launch);
    return small_fetched_rows(config) <= MOST_HALO_ROWS;
}

/* ---- halos that roll ---- */

/* MOST_TILES and, with a table, MOST_TABLE_TILES bound the time in which the host looks at each work tile. */
enum { MOST_TILES = 4096, MOST_TABLE_TILES = 1024 };

/* A sweep is all work tiles that differ only in their position along the first axis, which is as the kernels see it. */
struct sweep {
    const struct nh_small_launch *launch;
    const struct nh_axis *axis;
    /* length and work tiles of the longest dilation group; 1 if others are shorter */
    int64_t length, tiles, shorter;
    /* region: NH_REGIONS of the kernels. whole: tensors have all rows and columns; else own and other are those they
     * have. */
    bool region, whole;
    struct nh_range own, other;
    /* the position from which slots are counted, and the end of the last slot, beyond which no box reaches */
    int64_t base, slots_end;
    /* positions per work tile; lines of a warp tile's box, and columns per line */
    int64_t work_tile, lines, columns;
    /* Where slots are planes, a sweep begins only when enough of the sweep before is done, so that only its own work
     * tiles use slots. */
    bool planes;
    /* With a table on the first axis: what each work tile sees, at most MOST_TABLE_TILES of them. */
    const struct nh_range *seen;
};

static struct nh_range union_of(struct nh_range a, struct nh_range b) {
    return (struct nh_range){nh_min(a.begin, b.begin), nh_max(a.end, b.end)};
}

/* The lines of its box that a warp tile multiplies whose rows see `seen` of them. */
static int64_t touched(const struct sweep *sweep, int64_t seen) {
    const struct small_config *config = &sweep->launch->config;
    if (config->plane_chunks) return nh_max(seen, 1);
    if (config->pass == SMALL_FORWARD) return sweep->lines;
    return small_touched_lines((int)nh_max(seen, 1), (int)sweep->columns, (int)sweep->lines,
                               config->least_pairs);
}

static struct nh_range seen_by_row(const struct sweep *sweep, int64_t length, int64_t position) {
    const struct nh_axis *axis = sweep->axis;
    struct nh_range seen = nh_axis_seen(axis, length, nh_small_by_keys(sweep->launch), position);
    return sweep->whole ? seen : nh_covered_part(seen, sweep->other, length, axis->periodic);
}

static struct nh_range seen_by_rows(const struct sweep *sweep, int64_t length, int64_t work_tile) {
    int64_t first = work_tile * sweep->work_tile + sweep->own.begin;
    int64_t rows_end = sweep->whole ? length : sweep->own.end;
    int64_t last = nh_min(first + sweep->work_tile, rows_end) - 1;
    return (struct nh_range){seen_by_row(sweep, length, nh_min(first, last)).begin,
                             seen_by_row(sweep, length, last).end};
}

/* The columns that the work tile's rows see in a dilation group of this length, of those that tensors have. */
static struct nh_range seen_by(const struct sweep *sweep, int64_t length, int64_t work_tile) {
    return sweep->axis->windows.kind ? sweep->seen[work_tile]
                                     : seen_by_rows(sweep, length, work_tile);
}

/* The slots that the work tile's halo needs in a dilation group of this length, counted from the base and negative
 * before it, as nh_roll_box in small_roll.cuh has them. */
static struct nh_range slots_in_group(const struct sweep *sweep, int64_t length,
                                      int64_t work_tile) {
    struct nh_range seen = seen_by(sweep, length, work_tile);
    int64_t begin = seen.begin;
    while (begin + touched(sweep, seen.end - begin) > sweep->slots_end)
        begin--;
    int64_t lines = touched(sweep, seen.end - begin);
    return (struct nh_range){nh_floor_div(begin - sweep->base, sweep->work_tile),
                             nh_floor_div(begin + lines - 1 - sweep->base, sweep->work_tile) + 1};
}

/* The slots that it needs in any group. */
static struct nh_range slots_of(const struct sweep *sweep, int64_t work_tile) {
    struct nh_range slots = slots_in_group(sweep, sweep->length, work_tile);
    return sweep->shorter ? union_of(slots, slots_in_group(sweep, sweep->length - 1, work_tile))
                          : slots;
}

/* The end of the last slot: after the last column that a row sees, unless a box is longer. A periodic axis has none. */
static int64_t slots_end_of(const struct sweep *sweep) {
    if (!sweep->region) return sweep->tiles * sweep->work_tile;
    if (sweep->axis->periodic) return INT64_MAX;
    struct nh_range seen = seen_by(sweep, sweep->length, 0);
    for (int64_t i = 1; i < sweep->tiles; i++)
        seen = union_of(seen, seen_by(sweep, sweep->length, i));
    int64_t base = sweep->base, rows = sweep->work_tile,
            begin = base + nh_floor_div(seen.begin - base, rows) * rows,
            end = base + nh_ceil_div(seen.end - base, rows) * rows;
    return nh_max(end, begin + nh_ceil_div(sweep->lines, rows) * rows);
}

/* Whether no work tile's slots end before those of the one before it: each slot is fetched only once. Nor may they begin
 * behind these, as only a table lets them: slots between the two would be fetched, too, for which there is no room. */
static bool advances(const struct sweep *sweep) {
    for (int64_t less = 0; less <= sweep->shorter; less++)
        for (int64_t i = 1; i < sweep->tiles; i++) {
            const struct nh_range own = slots_in_group(sweep, sweep->length - less, i),
                                  before = slots_in_group(sweep, sweep->length - less, i - 1);
            if (own.end < before.end || own.begin > before.end) return false;
        }
    return true;
}

/* The most slots that are in use when a work tile's slots are fetched while the last `held` work tiles are unfinished.
 * Planes of keys near a border are attended by more planes of queries than others, and a table may say anything; work
 * tiles there wait for those before them instead, and the one in the middle counts. around: slots that a sweep has
 * beside those of its work tiles. */
static int64_t slots_in_use(const struct sweep *sweep, int32_t held, int64_t around) {
    enum { MOST_HELD = 16 };
    int64_t begin[MOST_HELD], most = 1;
    for (int64_t work_tile = 1 - held; work_tile < sweep->tiles; work_tile++) {
        int64_t own = (work_tile % sweep->tiles + sweep->tiles) % sweep->tiles;
        struct nh_range slots = slots_of(sweep, own);
        int64_t before = (work_tile - own) / sweep->tiles * (sweep->tiles + around);
        begin[(work_tile + held) % held] = before + slots.begin;
        int64_t others = sweep->planes ? nh_min(held, own + 1) : held;
        const bool uneven = nh_small_by_keys(sweep->launch) || sweep->axis->windows.kind;
        if (sweep->planes && uneven && own != sweep->tiles / 2) others = 1;
        for (int64_t i = 0; work_tile >= 0 && i < others; i++)
            most = nh_max(most, slots.end - begin[(work_tile + held - i) % held]);
    }
    return most;
}

/* seen: room for sweep.seen */
static struct sweep sweep_of(const struct nh_small_launch *launch,
                             struct nh_range seen[MOST_TABLE_TILES]) {
    const struct nh_problem *problem = launch->problem;
    int first = NH_AXES - problem->rank;
    const struct nh_axis *axis = &problem->axis[first];
    const struct nh_box *own = nh_small_by_keys(launch) ? &axis->key : &axis->query,
                        *other = nh_small_by_keys(launch) ? &axis->query : &axis->key;
    int64_t work_tile = launch->config.rows[first], group = nh_longest_group(axis);
    bool whole = !axis->windows.kind && nh_is_whole(axis, own) && nh_is_whole(axis, other);
    int64_t length =
        whole && !axis->periodic ? representative_length(axis, group, work_tile) : group;
    struct sweep sweep = {.launch = launch,
                          .axis = axis,
                          .length = length,
                          .tiles = nh_ceil_div(whole ? length : own->length, work_tile),
                          .shorter = axis->length % axis->dilation != 0,
                          .region = nh_small_has_region(problem),
                          .whole = whole,
                          .own = {own->offset, own->offset + own->length},
                          .other = {other->offset, other->offset + other->length},
                          .work_tile = work_tile,
                          .lines = launch->config.columns[first],
                          .columns = launch->config.columns[2] *
                                     (problem->rank == 3 ? launch->config.columns[1] : 1),
                          .planes = nh_small_is_plane(problem, launch->config.rows)};
    for (int64_t i = 0; axis->windows.kind && i < nh_min(sweep.tiles, MOST_TABLE_TILES); i++)
        seen[i] = seen_by_rows(&sweep, length, i);
    sweep.seen = seen;
    return sweep;
}

/* Whether halos roll at all. An axis shorter than a work tile has nothing to roll, and planes must have no gaps between
 * them. The swizzle repeats every 8 rows, so a slot is a multiple of 8 rows, to which planes that are chunks are filled
 * up; 4 suffice where the number of slots is even. An axis that tensors do not cover, or that is periodic, must have one
 * dilation group, and if periodic be covered and divided by work tiles. */
static bool rolls(const struct sweep *sweep) {
    const struct nh_small_launch *launch = sweep->launch;
    const struct nh_problem *problem = launch->problem;
    const struct nh_axis *axis = sweep->axis;
    int first = NH_AXES - problem->rank;
    bool planes = sweep->planes;
    int64_t slot_rows = sweep->work_tile * launch->config.halo[2];
    if (problem->rank == 3) slot_rows *= launch->config.halo[1];
    const int64_t most_tiles = axis->windows.kind ? MOST_TABLE_TILES : MOST_TILES;
    if (nh_is_cut(axis) && (axis->dilation > 1 || sweep->tiles > most_tiles)) return false;
    if (axis->periodic && (!sweep->whole || axis->length % sweep->work_tile)) return false;
    return problem->rank > 1 && sweep->work_tile == launch->config.warp_tile[first] &&
           sweep->work_tile <= launch->config.halo[first] &&
           (planes ? launch->config.halo[first] > 1 && !sweep->shorter &&
                         !(launch->config.pass != SMALL_FORWARD && problem->has_bias)
                   : sweep->work_tile > 1) &&
           (!nh_small_by_keys(launch) || problem->heads == problem->kv_heads) &&
           (launch->config.plane_chunks ||
            slot_rows % (problem->rank == 2 || planes ? 4 : 8) == 0) &&
           (sweep->region || sweep->tiles * sweep->work_tile >= sweep->lines);
}

/* Sets lines_before and slots_around, and returns the number of slots that a sweep needs; 0: its halos do not roll. In a
 * region columns need not begin where rows do, so slots may begin at any position of a work tile: the one that needs
 * the fewest slots is taken. On a periodic axis they begin with the rows. */
static int64_t place_slots(struct sweep *sweep, int32_t held, struct nh_small_launch *launch) {
    int64_t places = sweep->region && !sweep->axis->periodic ? sweep->work_tile : 1, least = 0;
    for (int64_t place = 0; place < places; place++) {
        int64_t before = 0, around = 0;
        sweep->base = sweep->own.begin + place;
        sweep->slots_end = slots_end_of(sweep);
        if (!advances(sweep)) continue;
        if (sweep->region) {
            struct nh_range all = slots_of(sweep, 0);
            for (int64_t i = 1; i < sweep->tiles; i++)
                all = union_of(all, slots_of(sweep, i));
            before = -place - all.begin * sweep->work_tile;
            around = all.end - all.begin - sweep->tiles;
        }
        int64_t slots = slots_in_use(sweep, held, around);
        if (least && slots >= least) continue;
        least = slots;
        launch->config.lines_before = (int32_t)before;
        launch->config.slots_around = (int32_t)around;
    }
    return least;
}

/* The slots that are in use, away from the ends of sweeps, while the last `held` work tiles are unfinished, in a launch for a group:
 * the same for all lengths. Where more are needed, at the ends, its kernel waits for earlier work tiles. A work tile's own slots
 * are never more: those of its longest box, which may begin with the last line of a slot. */
static int64_t slots_of_group(const struct sweep *sweep, int32_t held) {
    const int64_t rows = sweep->work_tile, window = sweep->axis->window;
    const int64_t lines = touched(sweep, rows - 1 + window);
    const int64_t ahead = nh_small_by_keys(sweep->launch) ? window - 1 - window / 2 : window / 2;
    return nh_max(held - 1 + nh_ceil_div(lines - ahead, rows) + nh_ceil_div(ahead, rows),
                  nh_ceil_div(sweep->lines + rows - 1, rows));
}

bool nh_small_group_rolls(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    const struct nh_axis *axis = &problem->axis[NH_AXES - problem->rank];
    const int32_t rows = launch->config.rows[NH_AXES - problem->rank];
    return launch->config.stages && problem->rank > 1 && rows > 1 &&
           rows == launch->config.warp_tile[NH_AXES - problem->rank] &&
           !nh_problem_strided(problem) && !nh_problem_dilated(problem) && !axis->causal &&
           !axis->windows.kind && problem->heads == problem->kv_heads;
}

/* Blocks of 8 columns per chunk where planes roll. One chunk of 40 has all 20 pairs of a window of 5 x 5 x 5, or the 19 of
 * one of 3 x 7 x 7: this much unrolled code suits one warp per scheduler, as the compiler then overlaps products with the
 * softmax. Chunks of 8 suit several warps per scheduler. Timed (docs/log/small.md): at head dim 64, one chunk is faster if
 * there are more columns than two usual chunks have. In f32 a pair has three times the instructions, so chunks stay as
 * they are. */
static int chunk_blocks_of_planes(const struct nh_small_launch *launch) {
    enum {
        ONE_CHUNK_BLOCKS = 40,
        SHORT_CHUNK_BLOCKS = 8,
        LEAST_BLOCKS = 2 * SMALL_MASK_BLOCKS + 1
    };
    enum { LEAST_ROW_BYTES = 64 * 2 }; /* head dim 64 in 16 bits */
    const struct small_config *config = &launch->config;
    int64_t blocks = small_box_blocks(config);
    if (launch->problem->dtype == NHOOD_DTYPE_F32 || blocks <= SMALL_MASK_BLOCKS ||
        config->mask == SMALL_BITS)
        return config->chunk_blocks;
    bool one = blocks >= LEAST_BLOCKS && blocks <= ONE_CHUNK_BLOCKS &&
               small_row_bytes(config->dim, config->element_bytes) >= LEAST_ROW_BYTES;
    return one ? ONE_CHUNK_BLOCKS : SHORT_CHUNK_BLOCKS;
}

/* The launch with chunks that are planes of boxes, in the backward, if that adds few columns to fill up matrix loads and
 * masks are products; else as it is. */
static struct nh_small_launch with_plane_chunks(const struct nh_small_launch *launch) {
    enum { MOST_PAIRS = 12 };
    const double most_more = 1.15;
    struct nh_small_launch chunked = *launch;
    struct small_config *config = &chunked.config;
    int columns = config->columns[1] * config->columns[2], pairs = small_ceil_div(columns, 16);
    if (pairs > MOST_PAIRS || 16 * pairs > most_more * columns) return *launch;
    config->plane_chunks = true;
    config->least_pairs = 0;
    config->chunk_blocks = 2 * pairs;
    if (config->mask != SMALL_NO_MASK) config->mask = (int)nh_small_mask_of(&chunked);
    return config->mask == SMALL_BITS ? *launch : chunked;
}

/* The work tiles that use a rolling halo beside those in stages. Warps load their rows into registers first, which frees
 * a stage. There are fewer by keys, where statistics take room as well, and in pairs, whose slots are large; by keys
 * there are none on a periodic axis, which takes a slot more, and none where planes roll. */
static int32_t held_longer(const struct sweep *sweep) {
    enum { QUERIES = 2, PAIRS = 1, KEYS = 1 };
    if (sweep->planes) return 0;
    if (nh_small_by_keys(sweep->launch)) return sweep->axis->periodic ? 0 : KEYS;
    return nh_small_is_pair(sweep->launch->config.rows) ? PAIRS : QUERIES;
}

/* Makes the halo roll, if it can. Away from the ends of sweeps the slots are enough for one work tile more than those for
 * which they are counted. */
static bool roll(struct nh_small_launch *launch) {
    const bool forward = launch->config.pass == SMALL_FORWARD;
    int first = small_first_axis(&launch->config);
    if (nh_small_is_grouped(launch) && !nh_small_group_rolls(launch)) return false;
    const struct nh_small_launch as_chunked =
        !forward && nh_small_is_plane(launch->problem, launch->config.rows)
            ? with_plane_chunks(launch)
            : *launch;
    struct nh_small_launch rolled = as_chunked;
    struct small_config *config = &rolled.config;
    struct nh_range seen[MOST_TABLE_TILES];
    struct sweep sweep = sweep_of(&as_chunked, seen);
    const int32_t held = config->stages + held_longer(&sweep);
    const int64_t slots = !rolls(&sweep)                ? 0
                          : nh_small_is_grouped(launch) ? slots_of_group(&sweep, held)
                                                        : place_slots(&sweep, held, &rolled);
    if (!slots) return false;
    config->pipeline = sweep.planes ? SMALL_PLANES : SMALL_LINES;
    config->halo[first] = (int)sweep.work_tile;
    config->slots = (int)slots;
    if (small_slot_rows(config) % 8) config->slots += config->slots % 2;
    if (config->mask != SMALL_NO_MASK) config->mask = (int)nh_small_mask_of(&rolled);
    if (nh_small_is_grouped(launch)) set_chunk_of_group(&rolled);
    /* With NH_PASSES a plane is free as soon as the last warp tile that begins with it has passed it: in the backward in
     * all types, as rows that need repair are read from memory. */
    bool passes = !forward || launch->problem->dtype != NHOOD_DTYPE_F16;
    config->held = sweep.planes ? held + passes : held + 1;
    if (sweep.planes && forward) config->chunk_blocks = chunk_blocks_of_planes(&rolled);
    *launch = rolled;
    return true;
}

/* Whether the copy engine goes around periodic axes by fetching halos line by line (small_seam.cuh); otherwise warps copy
 * what is beyond a seam. */
static bool fetches_lines(const struct nh_small_launch *launch) {
    const struct nh_problem *problem = launch->problem;
    enum { LINE_ALIGNMENT = 128 };
    int64_t line_bytes = launch->config.halo[2] *
                         (int64_t)small_row_bytes(launch->config.dim, launch->config.element_bytes);
    return nh_problem_periodic(problem) && line_bytes % LINE_ALIGNMENT == 0 &&
           nh_sm90_lines_fit(problem, nh_small_by_keys(launch) ? NHOOD_Q : NHOOD_K) &&
           nh_sm90_lines_fit(problem, nh_small_by_keys(launch) ? NHOOD_D_O : NHOOD_V);
}

/* The number of adjacent heads that adjacent blocks compute at the same time where halos roll, but not by planes. */
static int32_t near_heads(const struct nh_small_launch *launch) {
    if (launch->config.pipeline != SMALL_LINES || nh_small_is_grouped(launch)) return 1;
    int64_t heads = launch->problem->heads;
    return heads % 4 == 0 ? 4 : heads % 2 == 0 ? 2 : 1;
}

struct nh_small_launch nh_small_with_stages(const struct nh_small_launch *boxed, int32_t stages) {
    struct nh_small_launch launch = *boxed;
    struct small_config *config = &launch.config;
    const bool forward = config->pass == SMALL_FORWARD;
    config->stages = config->held = stages;
    /* enough to prepare a work tile in less time than the others compute one */
    config->fetchers = (int)nh_min(stages, forward ? 3 : 2);
    if (roll(&launch) && forward) config->fetchers = (int)nh_min(stages + 1, 4);
    config->seam_lines = fetches_lines(&launch);
    config->near_heads = near_heads(&launch);
    return launch;
}
