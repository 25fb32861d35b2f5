#include "small_shape.h"

#include "dtype.h"
#include "kernel_abi.h"
#include "tile_count.h"

enum { MOST_HALO_ROWS = 4096 };

struct nh_range nh_small_columns_of(const struct nh_axis *axis, bool keys, int64_t length,
                                    int64_t position) {
    return nh_seen_range(length, axis->window, axis->stride, axis->causal, 0, keys, position);
}

int64_t nh_small_representative_length(const struct nh_axis *axis, int64_t length, int64_t tile) {
    int64_t period = tile / nh_common_divisor(tile, axis->stride) * axis->stride;
    int64_t enough = 4 * axis->window + 2 * period;
    return length > enough ? length - (length - enough) / period * period : length;
}

/* The most columns that `tile` consecutive rows see together. */
static int64_t extent_of(const struct nh_axis *axis, bool keys, int32_t tile) {
    return nh_tile_count(axis, tile, 1, keys).halo;
}

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

bool nh_small_sees_windows(const struct nh_axis *axis) {
    if (axis->causal) return false;
    if (axis->key.length == axis->length) return true;
    int64_t group = 0;
    while (group < axis->dilation && group_sees_windows(axis, group))
        group += nh_groups_from(axis, group, false).count;
    return group >= axis->dilation;
}

/* The same if tensors do not cover the grid, or the axis is periodic. May return false where it is hard to tell. */
static bool all_see_covered(const struct nh_axis *axis, bool keys, int64_t columns) {
    bool covered = axis->query.length == axis->length && axis->key.length == axis->length;
    if (columns != axis->window) return false;
    return keys ? axis->periodic && covered && axis->stride == 1 : nh_small_sees_windows(axis);
}

/* Whether every row sees this many columns, which is the most that any sees. Rows at a border mostly do not, and are
 * tested first. */
static bool all_see(const struct nh_axis *axis, bool keys, int64_t columns) {
    int64_t length = nh_longest_group(axis);
    if (nh_is_cut(axis)) return all_see_covered(axis, keys, columns);
    struct nh_range first = nh_small_columns_of(axis, keys, length, 0);
    return first.end - first.begin == columns &&
           nh_tile_count(axis, 1, 1, keys).visits == (double)axis->length * (double)columns;
}

static double tiles_of(const struct nh_axis *axis, bool keys, int64_t tile) {
    const struct nh_box *own = keys ? &axis->key : &axis->query;
    int64_t longest = nh_longest_rows(axis, keys);
    int64_t shorter = longest * axis->dilation - own->length;
    return (double)(axis->dilation - shorter) * (double)nh_ceil_div(longest, tile) +
           (double)shorter * (double)nh_ceil_div(longest - 1, tile);
}

/* The same as NH_CONGRUENT in small_layout.cuh. */
static int64_t congruent(int64_t rows, int64_t residue) {
    return rows + ((residue - rows) % 8 + 8) % 8;
}

static void fill_gaps(struct nh_small_shape *shape) {
    int32_t *h = shape->halo, *k = shape->columns;
    if (h[0] * h[1] > 1) h[2] = (int32_t)congruent(h[2], k[2]);
    while (h[0] > 1 && (h[1] * h[2] - k[1] * k[2]) % 8)
        h[1]++;
}

/* The number of pairs that all warp tiles multiply without a test: as many as most of them need. Branches between pairs
 * keep the compiler from overlapping them. */
static int64_t least_pairs(const struct nh_problem *problem, const struct nh_small_shape *shape) {
    int first = NH_AXES - problem->rank;
    int64_t lines =
        nh_min(shape->warp_tile[first] + problem->axis[first].window - 1, shape->columns[first]);
    int64_t per_line = 1;
    for (int a = first + 1; a < NH_AXES; a++)
        per_line *= shape->columns[a];
    return shape->blocks > 16 ? 0 : nh_ceil_div(lines * per_line, 16);
}

bool nh_small_shape_of(const struct nh_problem *problem, bool keys, const int32_t *work_tile,
                       const int32_t *warp_tile, bool boxes, struct nh_small_shape *shape) {
    *shape = (struct nh_small_shape){.dense = true,
                                     .chunk_blocks = NH_SMALL_CHUNK_BLOCKS,
                                     .work_tile_rows = 1,
                                     .work_tiles = 1,
                                     .warp_tiles = 1};
    int64_t box = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (axis->window > MOST_HALO_ROWS) return false;
        int64_t columns = extent_of(axis, keys, warp_tile[a]),
                halo = extent_of(axis, keys, work_tile[a]);
        if (halo > MOST_HALO_ROWS) return false;
        shape->rows[a] = work_tile[a];
        shape->warp_tile[a] = warp_tile[a];
        shape->columns[a] = (int32_t)columns;
        shape->halo[a] = (int32_t)halo;
        shape->dense = shape->dense && all_see(axis, keys, columns);
        shape->work_tile_rows *= work_tile[a];
        shape->work_tiles *= tiles_of(axis, keys, work_tile[a]);
        shape->warp_tiles *= tiles_of(axis, keys, warp_tile[a]);
        box *= columns;
    }
    if (boxes) fill_gaps(shape);
    const int32_t *h = shape->halo, *k = shape->columns;
    int64_t line = h[0] * h[1] == 1 ? h[2] : congruent(h[2], k[2]);
    int64_t plane = h[0] == 1 ? h[1] * line : congruent(h[1] * line, (int64_t)k[1] * k[2]);
    shape->fetched_rows = shape->halo_rows = (h[0] - 1) * plane + (h[1] - 1) * line + h[2];
    shape->blocks = nh_ceil_div(box, 8);
    shape->least_pairs = least_pairs(problem, shape);
    return shape->halo_rows <= MOST_HALO_ROWS;
}

int64_t nh_small_steps(const struct nh_problem *problem, int64_t width) {
    enum { STEP_BYTES = 32 };
    return nh_ceil_div(width * (int64_t)nh_dtype_bytes(problem->dtype), STEP_BYTES);
}

int64_t nh_small_row_bytes(const struct nh_problem *problem, int64_t width) {
    int64_t units = 2 * nh_small_steps(problem, width);
    return 16 * (units & (units - 1) ? units + 1 : units);
}

/* The number of pairs of blocks, 16 columns each, in one chunk. */
static int64_t pairs_of(const struct nh_small_shape *shape) {
    int64_t chunks = nh_ceil_div(shape->blocks, shape->chunk_blocks);
    return nh_ceil_div(nh_ceil_div(shape->blocks, chunks), 2);
}

int64_t nh_small_columns(const struct nh_small_shape *shape) {
    return 16 * nh_ceil_div(shape->blocks, shape->chunk_blocks) * pairs_of(shape);
}

int64_t nh_small_table_bytes(const struct nh_problem *problem, const struct nh_small_shape *shape,
                             bool keys, bool bits, int64_t infos) {
    enum { WORK_TILE_BYTES = 88 + 32 * NH_CUDA_TENSORS, REGION_BYTES = 88, OTHER_BYTES = 1664 };
    const int32_t *q = shape->rows, *k = shape->columns;
    int first = NH_AXES - problem->rank;
    int64_t chunks = nh_ceil_div(shape->blocks, shape->chunk_blocks),
            columns = nh_small_columns(shape);
    int64_t info = WORK_TILE_BYTES +
                   (q[0] + q[1] + q[2]) * ((keys ? 12 : 24) + (bits ? 16 * chunks : 0)) +
                   16 * chunks + 8 * q[first];
    if (nh_small_has_region(problem)) info += REGION_BYTES + 4 * (q[0] + q[1] + q[2]);
    int64_t prefixes = (bits ? k[0] + k[1] + k[2] + 3 : 1) * 16 * chunks;
    int64_t wraps = shape->slots ? k[first] : 1;
    int64_t gathers = chunks * 16 * 16 * (nh_ceil_div(pairs_of(shape), 4) | 1);
    int64_t tables = wraps * (gathers + (keys ? 4 * columns : 0));
    if (problem->has_bias) {
        info += 4 * problem->bias_count;
        int64_t step = 8;
        for (int a = NH_AXES - 1; a >= first; a--) {
            info += (k[a] + shape->warp_tile[a]) * step;
            step *= 2 * problem->axis[a].window - 1;
        }
        tables += 4 * columns;
    }
    return infos * info + prefixes + tables + OTHER_BYTES;
}
