/* The boxes of cuda.small's kernels (small.cuh) on a problem. */
#include "small_launch.h"
#include "tile_count.h"

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

bool nh_small_sees_windows(const struct nh_axis *axis) {
    if (axis->causal) return false;
    if (axis->key.length == axis->length) return true;
    int64_t group = 0;
    while (group < axis->dilation && group_sees_windows(axis, group))
        group = nh_next_group_kind(axis, group);
    return group >= axis->dilation;
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

/* Sets the rows of the halo in shared memory. */
static void set_halo_rows(struct nh_small_launch *launch) {
    int32_t *h = launch->halo, *k = launch->columns;
    if (launch->stages && h[0] * h[1] > 1) h[2] = (int32_t)congruent(h[2], k[2]);
    while (launch->stages && h[0] > 1 && (h[1] * h[2] - k[1] * k[2]) % 8)
        h[1]++;
    int64_t line = h[0] * h[1] == 1 ? h[2] : congruent(h[2], k[2]);
    int64_t plane = h[0] == 1 ? h[1] * line : congruent(h[1] * line, (int64_t)k[1] * k[2]);
    launch->fetched_rows = launch->halo_rows = (h[0] - 1) * plane + (h[1] - 1) * line + h[2];
}

/* The number of pairs that all warp tiles multiply without a test: as many as most of them need. Branches between pairs
 * keep the compiler from overlapping them. */
static int64_t least_pairs(const struct nh_small_launch *launch) {
    int first = NH_AXES - launch->problem->rank;
    int64_t window = launch->problem->axis[first].window;
    int64_t columns = nh_min(launch->warp_tile[first] + window - 1, launch->columns[first]);
    for (int a = first + 1; a < NH_AXES; a++)
        columns *= launch->columns[a];
    return launch->blocks > 16 ? 0 : nh_ceil_div(columns, 16);
}

bool nh_small_set_shape(struct nh_small_launch *launch, const int32_t *work_tile,
                        const int32_t *warp_tile) {
    const bool keys = launch->keys;
    int64_t columns = 1;
    launch->dense = true;
    launch->chunk_blocks = NH_SMALL_CHUNK_BLOCKS;
    launch->work_tile_rows = 1;
    launch->work_tiles = launch->warp_tiles = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &launch->problem->axis[a];
        if (axis->window > MOST_HALO_ROWS) return false;
        int64_t halo = nh_tile_count(axis, work_tile[a], 1, keys).halo;
        if (halo > MOST_HALO_ROWS) return false;
        launch->rows[a] = work_tile[a];
        launch->warp_tile[a] = warp_tile[a];
        launch->columns[a] = (int32_t)nh_tile_count(axis, warp_tile[a], 1, keys).halo;
        launch->halo[a] = (int32_t)halo;
        launch->dense = launch->dense && all_see(axis, keys, launch->columns[a]);
        launch->work_tile_rows *= work_tile[a];
        launch->work_tiles *= tiles_of(axis, keys, work_tile[a]);
        launch->warp_tiles *= tiles_of(axis, keys, warp_tile[a]);
        columns *= launch->columns[a];
    }
    set_halo_rows(launch);
    launch->blocks = nh_ceil_div(columns, 8);
    launch->least_pairs = least_pairs(launch);
    return launch->halo_rows <= MOST_HALO_ROWS;
}
