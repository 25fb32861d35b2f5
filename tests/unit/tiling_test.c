/* The tiles that estimates count, against an enumeration of every tile pair of small problems. */
#include "grid.h"
#include "test.h"
#include "tile_count.h"
#include "tiling.h"
#include "window_table.h"

#include <string.h>

/* The tiles that a part sees of a halo that starts at column `halo_begin`. */
static void count_part(const struct grid *grid, const int64_t first[3], const int64_t halo_begin[3],
                       struct nh_tiling_count *count) {
    int64_t row[3], start[3], tiles[3], t[3];
    for (int a = 0; a < NH_AXES; a++) {
        int64_t begin, end, columns = grid->columns[a];
        bool whole = grid->part[a] == grid->rows[a], outside = first[a] >= grid->length[a];
        row[a] = nh_min(first[a], grid->length[a] - 1);
        find_halo(grid, a, row[a], grid->part[a], &begin, &end);
        start[a] = halo_begin[a] + (begin - halo_begin[a]) / columns * columns;
        tiles[a] = outside && !whole ? 1 : (end - start[a] + columns - 1) / columns;
    }
    FOR_BOX(t, tiles) {
        int64_t column[3];
        for (int a = 0; a < NH_AXES; a++)
            column[a] = start[a] + t[a] * grid->columns[a];
        count->visited++;
        count->partial += !sees_all(grid, row, column);
    }
}

static void count_row_tile(struct grid *grid, const int64_t row[3], void *to) {
    struct nh_tiling_count *count = to;
    int64_t halo_begin[3], end[3], parts[3], part[3];
    count->work_tiles++;
    for (int a = 0; a < NH_AXES; a++) {
        parts[a] = grid->rows[a] / grid->part[a];
        find_halo(grid, a, nh_min(row[a], grid->length[a] - 1), grid->rows[a], &halo_begin[a],
                  &end[a]);
        grid->halo[a] = nh_max(grid->halo[a], end[a] - halo_begin[a]);
    }
    FOR_BOX(part, parts) {
        int64_t first[3];
        for (int a = 0; a < NH_AXES; a++)
            first[a] = row[a] + part[a] * grid->part[a];
        count_part(grid, first, halo_begin, count);
    }
}

static struct nh_tiling_count enumerate(struct grid *grid) {
    struct nh_tiling_count count = {.work_tiles = 0};
    for_row_tiles(grid, count_row_tile, &count);
    return count;
}

/* Counts that are made at once are those made one by one. */
static void check_line(const struct nh_axis *axis, int32_t rows, int32_t part, int32_t columns,
                       bool inverse) {
    const int32_t extent[3] = {1, columns, 2 * columns + 1};
    struct nh_tile_counts line[2];
    for (int beyond = 0; beyond < 2; beyond++)
        nh_tile_counts(axis, rows, part, inverse, beyond, extent, 3, &line[beyond]);
    for (int i = 0; i < 6; i++) {
        const struct nh_tile_counts *all = &line[i / 3];
        struct nh_tile_counts one;
        nh_tile_counts(axis, rows, part, inverse, i / 3, &extent[i % 3], 1, &one);
        CHECK(all->tiles == one.tiles && all->halo == one.halo &&
                  all->longest[i % 3] == (double)nh_ceil_div(one.halo, extent[i % 3]) &&
                  all->visits[i % 3] == one.visits[0] && all->dense[i % 3] == one.dense[0],
              "L %lld: %d rows, parts of %d, %d columns, inverse %d, beyond %d",
              (long long)axis->length, rows, part, extent[i % 3], inverse, i / 3);
    }
}

static void check_problem(const struct nh_problem *problem, const int32_t rows[3],
                          const int32_t part[3], const int32_t columns[3], bool inverse) {
    struct grid grid = {.problem = problem, .inverse = inverse};
    memcpy(grid.rows, rows, sizeof grid.rows);
    memcpy(grid.part, part, sizeof grid.part);
    memcpy(grid.columns, columns, sizeof grid.columns);
    struct nh_tiling_count expected = enumerate(&grid);
    struct nh_tiling_count count = nh_tiling_count(problem, rows, part, columns, inverse, true);
    CHECK(count.work_tiles == expected.work_tiles && count.visited == expected.visited &&
              count.partial == expected.partial,
          "L %lld,%lld,%lld inverse %d: %g work tiles %g tiles %g masked, enumerated %g %g %g",
          (long long)problem->axis[0].length, (long long)problem->axis[1].length,
          (long long)problem->axis[2].length, inverse, count.work_tiles, count.visited,
          count.partial, expected.work_tiles, expected.visited, expected.partial);
    for (int a = 0; a < NH_AXES; a++) {
        int64_t halo = nh_tile_count(&problem->axis[a], rows[a], columns[a], inverse).halo;
        check_line(&problem->axis[a], rows[a], part[a], columns[a], inverse);
        CHECK(halo == grid.halo[a], "axis %d inverse %d: halo %lld, enumerated %lld", a, inverse,
              (long long)halo, (long long)grid.halo[a]);
    }
}

/* Few long axes or several short ones, so that the enumeration stays small. */
static void check_random(uint64_t *state) {
    struct nh_problem problem = {.rank = (int32_t)test_between(state, 1, 3)};
    int32_t rows[3] = {1, 1, 1}, part[3] = {1, 1, 1}, columns[3] = {1, 1, 1};
    const int64_t longest[] = {0, 90, 20, 9};
    for (int a = 0; a < NH_AXES; a++)
        problem.axis[a] = nh_whole_axis(1, 1, 1, 1, 0);
    for (int a = NH_AXES - problem.rank; a < NH_AXES; a++) {
        struct nh_axis *axis = &problem.axis[a];
        axis->length = test_between(state, 1, longest[problem.rank]);
        axis->dilation = test_between(state, 1, nh_min(3, axis->length));
        int64_t share = test_between(state, 0, 1) ? 8 : 1; /* small windows: counts by period */
        axis->window = test_between(state, 1, nh_max(1, axis->length / axis->dilation / share));
        axis->stride = test_between(state, 1, axis->window);
        axis->causal = test_between(state, 0, 3) == 0;
        axis->query = axis->key = (struct nh_box){0, axis->length};
        rows[a] = (int32_t)test_between(state, 1, problem.rank == 1 ? 16 : 5);
        columns[a] = (int32_t)test_between(state, 1, problem.rank == 1 ? 16 : 5);
    }
    check_problem(&problem, rows, rows, columns, false);
    check_problem(&problem, rows, rows, columns, true);
    int axis = (int)test_between(state, NH_AXES - problem.rank, NH_AXES - 1);
    memcpy(part, rows, sizeof part);
    rows[axis] *= (int32_t)test_between(state, 2, 3);
    check_problem(&problem, rows, part, columns, false);
}

/* Whether tensors have the key that the query of a token sees in a slot of its window; *key: in theirs. */
static bool find_key(const struct nh_axis *axis, int64_t query, int64_t slot, int64_t *key) {
    const struct nh_range window = nh_axis_window(axis, query % axis->length);
    if (window.begin + slot >= window.end) return false;
    *key = (window.begin + slot) * axis->dilation + query % axis->dilation - axis->key.offset;
    if (axis->periodic) *key = (*key % axis->length + axis->length) % axis->length;
    return *key >= 0 && *key < axis->key.length;
}

/* Tiles of one row and one column are the pairs of a query with a key that tensors have. */
static void check_pairs(const struct nh_axis *axis) {
    int64_t pairs = 0, key;
    for (int64_t row = 0; row < axis->query.length; row++)
        for (int64_t slot = 0; slot < axis->window; slot++)
            pairs += find_key(axis, axis->query.offset + row, slot, &key);
    for (int inverse = 0; inverse < 2; inverse++) {
        double visits = nh_tile_count(axis, 1, 1, inverse).visits;
        CHECK(visits == (double)nh_max(pairs, 1),
              "L %lld w %lld s %lld d %lld periodic %d, queries %lld + %lld, keys %lld + %lld, "
              "inverse %d: %g pairs of %lld",
              (long long)axis->length, (long long)axis->window, (long long)axis->stride,
              (long long)axis->dilation, axis->periodic, (long long)axis->query.offset,
              (long long)axis->query.length, (long long)axis->key.offset,
              (long long)axis->key.length, inverse, visits, (long long)pairs);
    }
}

/* Tiles of rows, which begin with a group's first, and of the columns that those see. */
static void check_covered_tiles(const struct nh_axis *axis, int32_t rows, int32_t columns) {
    double visits = 0;
    for (int64_t group = 0; group < axis->dilation; group++) {
        const struct nh_range row = nh_axis_covered(axis, &axis->query, group);
        for (int64_t tile = row.begin; tile < row.end; tile += rows) {
            int64_t first = INT64_MAX, last = -1, key;
            for (int64_t r = tile; r < nh_min(tile + rows, row.end); r++)
                for (int64_t slot = 0; slot < axis->window; slot++) {
                    if (!find_key(axis, r * axis->dilation + group, slot, &key)) continue;
                    first = nh_min(first, key / axis->dilation);
                    last = nh_max(last, key / axis->dilation);
                }
            if (last >= 0) visits += (double)nh_ceil_div(last - first + 1, columns);
        }
    }
    double counted = nh_tile_count(axis, rows, columns, false).visits;
    CHECK(counted == (visits > 0 ? visits : 1), "%d rows, %d columns: %g tiles, enumerated %g",
          rows, columns, counted, visits);
}

/* Whether a box covers the token at a position of a dilation group, counted on around a circle. */
static bool covers(const struct nh_axis *axis, const struct nh_box *box, int64_t group,
                   int64_t position) {
    int64_t token = position * axis->dilation + group - box->offset;
    if (axis->periodic) token = (token % axis->length + axis->length) % axis->length;
    return token >= 0 && token < box->length;
}

/* The window of a query at a position of a dilation group, counted on around a circle, also from before 0. */
static struct nh_range window_at(const struct nh_axis *axis, int64_t group, int64_t position) {
    int64_t ahead = axis->periodic ? 2 * axis->length / axis->dilation : 0;
    struct nh_range window = nh_axis_window(axis, (position + ahead) * axis->dilation + group);
    return (struct nh_range){window.begin - ahead, window.end - ahead};
}

/* What a row of a dilation group, of a token that tensors have, sees of the columns that they have: a query of keys or, inverse,
 * a key of queries. Counted on around a circle; empty if there are none. */
static struct nh_range find_seen(const struct nh_axis *axis, int64_t group, int64_t row,
                                 bool inverse) {
    const struct nh_box *columns = inverse ? &axis->query : &axis->key;
    int64_t length = nh_axis_group_length(axis->length, axis->dilation, group);
    struct nh_range seen = {INT64_MAX, INT64_MIN};
    for (int64_t column = row - length; column <= row + length; column++) {
        if (!axis->periodic && (column < 0 || column >= length)) continue;
        const struct nh_range window = window_at(axis, group, inverse ? column : row);
        const int64_t key = inverse ? row : column;
        if (key < window.begin || key >= window.end || !covers(axis, columns, group, column))
            continue;
        seen.begin = nh_min(seen.begin, column);
        seen.end = nh_max(seen.end, column + 1);
    }
    return seen;
}

/* A dilation group of an axis, of which rows are queries or, inverse, keys. */
struct rows {
    const struct nh_axis *axis;
    int64_t group;
    bool inverse;
    struct nh_range row; /* that tensors have */
};

static struct rows rows_of(const struct nh_axis *axis, int64_t group, bool inverse) {
    const struct nh_box *own = inverse ? &axis->key : &axis->query;
    return (struct rows){axis, group, inverse, nh_axis_covered(axis, own, group)};
}

/* What rows of [row, row + count) see that tensors have. */
static struct nh_range find_covered_halo(const struct rows *rows, int64_t row, int64_t count) {
    struct nh_range halo = {INT64_MAX, INT64_MIN};
    for (int64_t r = row; r < nh_min(row + count, rows->row.end); r++) {
        const struct nh_range seen = find_seen(rows->axis, rows->group, r, rows->inverse);
        halo.begin = nh_min(halo.begin, seen.begin);
        halo.end = nh_max(halo.end, seen.end);
    }
    return halo;
}

/* The first end of a lap of the columns behind a position. */
static int64_t find_seam(const struct rows *rows, int64_t position) {
    const struct nh_axis *axis = rows->axis;
    const struct nh_box *columns = rows->inverse ? &axis->query : &axis->key;
    int64_t seam = nh_axis_covered(axis, columns, rows->group).begin - 2 * axis->length;
    while (seam <= position)
        seam += axis->length / axis->dilation;
    return seam;
}

/* Where the boxes of a walk begin: around a circle one ends where a lap of the columns does. */
static int64_t find_loop(const struct rows *rows, struct nh_range halo, int64_t columns) {
    int64_t seam = find_seam(rows, halo.begin);
    if (!rows->axis->periodic || seam >= halo.end) return halo.begin;
    while (seam > halo.begin)
        seam -= columns;
    return seam;
}

struct boxes {
    double visits, dense;
};

/* A part of a row tile meets a box at least, whether it sees one or not; where it has no row, that of the last one. */
static void count_part_boxes(const struct rows *rows, int64_t row, int64_t count,
                             int64_t halo_begin, int64_t columns, struct boxes *boxes) {
    bool outside = row >= rows->row.end;
    if (outside) row = rows->row.end - 1;
    const struct nh_range halo = find_covered_halo(rows, row, count);
    const bool empty = halo.begin >= halo.end;
    int64_t first = empty ? 0 : (halo.begin - halo_begin) / columns;
    int64_t last = empty || outside ? first + 1 : nh_ceil_div(halo.end - halo_begin, columns);
    boxes->visits += (double)(last - first);
    for (int64_t box = first; box < last && halo.begin < halo.end; box++) {
        bool whole = true;
        for (int64_t r = row; r < nh_min(row + count, rows->row.end); r++) {
            const struct nh_range seen = find_seen(rows->axis, rows->group, r, rows->inverse);
            whole = whole && seen.begin <= halo_begin + box * columns &&
                    seen.end >= halo_begin + (box + 1) * columns;
        }
        boxes->dense += whole;
    }
}

static int laps_met; /* second ends of laps that tiles had to end with */

/* Where the laps fit, a tile ends with each that the loop meets. */
static void check_laps(const struct rows *rows, struct nh_range halo, int32_t own,
                       int32_t columns) {
    struct nh_problem problem;
    const int32_t row_tile[3] = {1, 1, own}, column_tile[3] = {1, 1, columns};
    for (int a = 0; a < NH_AXES; a++)
        problem.axis[a] = nh_whole_axis(1, 1, 1, 1, 0);
    problem.axis[2] = *rows->axis;
    if (!rows->axis->periodic ||
        !nh_tiling_laps_fit(&problem, row_tile, column_tile, rows->inverse))
        return;
    int64_t first = find_seam(rows, halo.begin), lap = rows->axis->length / rows->axis->dilation;
    for (int64_t seam = first; seam < halo.end; seam += lap) {
        CHECK((seam - find_loop(rows, halo, columns)) % columns == 0,
              "L %lld w %lld s %lld d %lld, %d rows, %d columns, inverse %d: no tile ends at %lld",
              (long long)rows->axis->length, (long long)rows->axis->window,
              (long long)rows->axis->stride, (long long)rows->axis->dilation, own, columns,
              rows->inverse, (long long)seam);
        laps_met += seam > first;
    }
}

/* Boxes of columns that the copy engine fetches (boxes.cuh). */
static void check_boxes(const struct nh_axis *axis, int32_t own, int32_t part, int32_t columns,
                        bool inverse) {
    struct boxes boxes = {0, 0};
    for (int64_t group = 0; group < axis->dilation; group++) {
        const struct rows rows = rows_of(axis, group, inverse);
        for (int64_t t = 0; t < nh_row_tiles(axis, own, inverse) / axis->dilation; t++) {
            const int64_t first = rows.row.begin + t * own, seen = nh_min(first, rows.row.end - 1);
            const struct nh_range halo = find_covered_halo(&rows, seen, own);
            if (rows.row.begin >= rows.row.end || halo.begin >= halo.end) {
                boxes.visits += own / part;
                continue;
            }
            const int64_t halo_begin = find_loop(&rows, halo, columns);
            check_laps(&rows, halo, own, columns);
            for (int64_t r = first; r < first + own; r += part)
                count_part_boxes(&rows, part < own ? r : seen, part, halo_begin, columns, &boxes);
        }
    }
    struct nh_tile_counts count;
    nh_tile_counts(axis, own, part, inverse, true, &columns, 1, &count);
    CHECK(count.visits[0] == boxes.visits && count.dense[0] == boxes.dense,
          "L %lld w %lld s %lld d %lld causal %d periodic %d, queries %lld + %lld, keys %lld + "
          "%lld, inverse %d, %d rows, parts of %d, %d columns: %g boxes, %g whole; enumerated %g, "
          "%g",
          (long long)axis->length, (long long)axis->window, (long long)axis->stride,
          (long long)axis->dilation, axis->causal, axis->periodic, (long long)axis->query.offset,
          (long long)axis->query.length, (long long)axis->key.offset, (long long)axis->key.length,
          inverse, own, part, columns, count.visits[0], count.dense[0], boxes.visits, boxes.dense);
}

static struct nh_box random_box(uint64_t *state, const struct nh_axis *axis) {
    int64_t offset = test_between(state, 0, axis->length - 1);
    int64_t most = axis->periodic ? axis->length : axis->length - offset;
    if (test_between(state, 0, 2) == 0) return (struct nh_box){0, axis->length};
    return (struct nh_box){offset, test_between(state, 1, most)};
}

/* Axes of which tensors cover boxes, and periodic ones, where what a row sees is in one piece (tiled80.c). */
static void check_covered(uint64_t *state) {
    int64_t dilation = test_between(state, 1, 4), group = test_between(state, 1, 40);
    struct nh_axis axis =
        nh_whole_axis(group * dilation, test_between(state, 1, group), 1, dilation, 0);
    axis.periodic = (int32_t)test_between(state, 0, 1);
    axis.stride = test_between(state, 1, axis.window);
    while (axis.periodic && group % axis.stride)
        axis.stride--;
    if (!axis.periodic) {
        axis.length += test_between(state, 0, dilation - 1);
        axis.causal = test_between(state, 0, 2) == 0;
    }
    axis.query = random_box(state, &axis);
    axis.key = random_box(state, &axis);
    if (axis.periodic) {
        int64_t queries = nh_ceil_div(axis.window, axis.stride) * axis.stride;
        if (queries > group - nh_ceil_div(axis.query.length, dilation) + 1)
            axis.query.length = axis.length;
        if (axis.window > group - nh_ceil_div(axis.key.length, dilation) + 1)
            axis.key.length = axis.length;
    }
    check_pairs(&axis);
    int32_t part = (int32_t)test_between(state, 1, 5), parts = (int32_t)test_between(state, 1, 3),
            boxed = (int32_t)test_between(state, 1, 9);
    bool parted = !nh_is_whole(&axis, &axis.query) || !nh_is_whole(&axis, &axis.key);
    if (axis.periodic ? axis.key.length == axis.length : parted)
        check_boxes(&axis, part * parts, part, boxed, false);
    if (axis.periodic ? axis.query.length == axis.length : parted)
        check_boxes(&axis, part * parts, part, boxed, true);
    if (!axis.periodic)
        check_covered_tiles(&axis, (int32_t)test_between(state, 1, 9),
                            (int32_t)test_between(state, 1, 9));
}

enum { MOST_LISTED = 60 };

/* Ranges that may overlap, leave gaps and be empty, of which neither end goes back. */
static void random_ranges(uint64_t *state, int64_t queries, int64_t keys, nhood_range *range) {
    int64_t first = 0, end = 0;
    for (int64_t i = 0; i < queries; i++) {
        first = nh_min(first + test_between(state, 0, 2 * keys / queries + 1), keys);
        end = nh_max(nh_max(first, end), nh_min(first + test_between(state, 0, 9), keys));
        range[i] = (nhood_range){(int32_t)first, (int32_t)(end - first)};
    }
}

/* Row tiles of an axis with a table: each loops from what its first row sees to what its last row sees. seen: by row. */
static void check_listed_tiles(const struct nh_axis *axis, const nhood_range *seen, int32_t own,
                               int32_t columns, bool inverse) {
    const struct nh_box *rows = inverse ? &axis->key : &axis->query,
                        *others = inverse ? &axis->query : &axis->key;
    double visits = 0;
    for (int64_t row = 0; row < rows->length; row += own) {
        const nhood_range *first = &seen[rows->offset + row],
                          *last = &seen[rows->offset + nh_min(row + own, rows->length) - 1];
        int64_t begin = nh_max(first->first, others->offset),
                end = nh_min(last->first + last->count, others->offset + others->length);
        visits += (double)nh_ceil_div(
            nh_max(end - nh_min(begin, others->offset + others->length), 0), columns);
    }
    const double counted = nh_tile_count(axis, own, columns, inverse).visits;
    CHECK(counted == (visits > 0 ? visits : 1),
          "a table of %lld queries and %lld keys, inverse %d, %d rows, %d columns: %g tiles of %g",
          (long long)axis->length, (long long)axis->windows.keys, inverse, own, columns, counted,
          visits);
}

static void check_tables(uint64_t *state) {
    nhood_range range[MOST_LISTED], inverse[MOST_LISTED];
    const int64_t queries = test_between(state, 1, MOST_LISTED),
                  keys = test_between(state, 1, MOST_LISTED);
    const nhood_windows given = {.kind = NHOOD_WINDOWS_TABLE, .keys = keys, .range = range};
    const struct nh_axis other = nh_whole_axis(keys, 1, 1, 1, 0);
    struct nh_axis axis = nh_whole_axis(queries, 1, 1, 1, 0);
    random_ranges(state, queries, keys, range);
    CHECK(!nh_windows_canonical("windows", &given, queries, &axis.windows) &&
              !nhood_windows_inverse(range, queries, keys, inverse),
          "%s", nhood_last_error());
    axis.window = axis.windows.most;
    axis.query = random_box(state, &axis);
    axis.key = random_box(state, &other);
    check_pairs(&axis);
    const int32_t own = (int32_t)test_between(state, 1, 9),
                  columns = (int32_t)test_between(state, 1, 9);
    check_listed_tiles(&axis, range, own, columns, false);
    check_listed_tiles(&axis, inverse, own, columns, true);
}

/* The fastest axis is the one of which a row's halo covers most: the first here, or the last of equal ones. */
static void check_queue_order(int64_t stride, int64_t first, int expected) {
    struct nh_problem problem = {.rank = 3};
    const int32_t own[3] = {2, 8, 8};
    struct nh_cuda_tiling tiling;
    problem.batch = problem.heads = 1;
    problem.axis[0] = nh_whole_axis(first, 18, stride, 1, 0);
    problem.axis[1] = nh_whole_axis(48, 24, stride, 1, 0);
    problem.axis[2] = nh_whole_axis(48, 24, stride, 1, 0);
    CHECK(nh_tiling_set(&problem, own, 1, false, nh_tiling_queue_order(&problem), &tiling) ==
              NHOOD_OK,
          "%lld tokens: refused", (long long)first);
    CHECK(tiling.order[0] == expected && tiling.order[1] == 1,
          "%lld tokens, stride %lld: order %d, %d, %d", (long long)first, (long long)stride,
          tiling.order[0], tiling.order[1], tiling.order[2]);
}

/* The count of one extent, which has a way of its own for axes without steps, is that of many. */
static void check_one(uint64_t *state) {
    const int64_t length = test_between(state, 1, 400);
    const struct nh_axis axis = nh_whole_axis(
        length, test_between(state, 1, test_between(state, 0, 1) ? length : nh_min(length, 20)), 1,
        1, (int32_t)test_between(state, 0, 1));
    const int32_t rows = (int32_t)test_between(state, 1, 40),
                  columns = (int32_t)test_between(state, 1, 40);
    const bool inverse = test_between(state, 0, 1);
    struct nh_tile_counts many;
    nh_tile_counts(&axis, rows, rows, inverse, false, &columns, 1, &many);
    const struct nh_tile_count one = nh_tile_count(&axis, rows, columns, inverse);
    CHECK(one.tiles == many.tiles && one.halo == many.halo && one.visits == many.visits[0],
          "L %lld, window %lld, causal %d: %d rows, %d columns, inverse %d: %lld tiles, halo %lld, "
          "%g visits, not %lld, %lld, %g",
          (long long)length, (long long)axis.window, (int)axis.causal, rows, columns, inverse,
          (long long)one.tiles, (long long)one.halo, one.visits, (long long)many.tiles,
          (long long)many.halo, many.visits[0]);
}

/* What kernels of cuda.small for groups have room for: on axes without steps as many columns as on one of any length. */
static void check_room(uint64_t *state) {
    const int64_t dilation = test_between(state, 1, 3), length = test_between(state, 3, 300);
    const int32_t rows = (int32_t)test_between(state, 1, 40),
                  causal = (int32_t)test_between(state, 0, 1);
    struct nh_axis axis =
        nh_whole_axis(length, test_between(state, 1, length / dilation), 1, dilation, causal);
    const int64_t window = axis.window, queries = nh_tile_count(&axis, rows, 1, false).halo,
                  keys = nh_tile_count(&axis, rows, 1, true).halo;
    CHECK(queries <= rows - 1 + window &&
              (length / dilation < 2 * window + rows || keys <= rows - 1 + window + window / 2),
          "L %lld, window %lld, dilation %lld, causal %d: %d queries see %lld keys, keys %lld",
          (long long)length, (long long)window, (long long)dilation, (int)causal, (int)rows,
          (long long)queries, (long long)keys);
    axis = nh_whole_axis(4 * (rows + window + 1) + length, window, 1, 1, causal);
    CHECK(nh_tile_count(&axis, rows, 1, false).halo == rows - 1 + window,
          "L %lld, window %lld, causal %d: %d queries see %lld keys", (long long)axis.length,
          (long long)window, (int)causal, (int)rows,
          (long long)nh_tile_count(&axis, rows, 1, false).halo);
}

int main(void) {
    uint64_t state = 20240307;
    for (int i = 0; i < 20000; i++)
        check_room(&state);
    for (int i = 0; i < 20000; i++)
        check_one(&state);
    check_queue_order(1, 30, 0);
    check_queue_order(8, 30, 0);
    check_queue_order(1, 300, 2);
    for (int i = 0; i < 400; i++)
        check_random(&state);
    for (int i = 0; i < 4000; i++)
        check_covered(&state);
    for (int i = 0; i < 2000; i++)
        check_tables(&state);
    CHECK(laps_met > 100, "%d laps that tiles end with", laps_met);
    return test_result();
}
