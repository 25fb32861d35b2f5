#include "tile_count.h"

enum { MOST_COUNTED = 1 << 14, REMEMBERED = 1024 };

static inline struct nh_range range_of(const struct nh_axis *axis, int64_t length, int64_t stride,
                                       bool inverse, int64_t position) {
    return inverse ? nh_inverse_range(length, axis->window, stride, axis->causal, position)
                   : nh_window_range(length, axis->window, stride, axis->causal, position);
}

/* Most strides are 1, where compilers leave out divisions. */
static struct nh_range partners(const struct nh_axis *axis, int64_t length, bool inverse,
                                int64_t position) {
    return axis->stride == 1 ? range_of(axis, length, 1, inverse, position)
                             : range_of(axis, length, axis->stride, inverse, position);
}

/* A dilation group of an axis, cut into tiles of rows, and these into parts. */
struct cut {
    const struct nh_axis *axis;
    int64_t length;
    int32_t rows, part;
    bool inverse;
};

/* The counts of some extents of columns at once: what rows see is found once for all of them. All values are whole. */
struct line {
    int extents;
    double columns[NH_MOST_EXTENTS], reciprocal[NH_MOST_EXTENTS];
    double visits[NH_MOST_EXTENTS], dense[NH_MOST_EXTENTS];
    int64_t halo;
};

static struct nh_range seen_by(const struct cut *cut, int64_t row) {
    return partners(cut->axis, cut->length, cut->inverse, nh_min(row, cut->length - 1));
}

/* Rounds down what lies between whole numbers, below 2^50: what is left of a half less is rounded by an addition, which
 * compilers vectorise. */
static double floor_of(double value) {
    const double shift = 0x1.8p52;
    return value - 0.5 + shift - shift;
}

/* Exact: a half more keeps quotients clear of whole numbers by more than rounding takes them off. */
static double quotient(double dividend, double reciprocal) {
    return floor_of((dividend + 0.5) * reciprocal);
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double smaller(double a, double b) {
    return a < b ? a : b;
}

/* Adds what a part meets of its tile's walk, whose columns count from 0: its first row sees `first`, its last one `last`. */
static void add_part(struct line *line, struct nh_range first, struct nh_range last, bool beyond,
                     double weight) {
    const double first_begin = (double)first.begin, first_end = (double)first.end;
    const double last_begin = (double)last.begin, last_end = (double)last.end;
    for (int i = 0; i < line->extents; i++) {
        double reciprocal = line->reciprocal[i], last_column = line->columns[i] - 1;
        double begin = quotient(first_begin, reciprocal);
        double end = beyond ? begin + 1 : quotient(last_end + last_column, reciprocal);
        double from = quotient(last_begin + last_column, reciprocal);
        double to = quotient(first_end, reciprocal);
        line->visits[i] += weight * (end - begin);
        line->dense[i] += weight * larger(smaller(to, end) - larger(from, begin), 0);
    }
}

/* Adds a tile that is all of one part: its walk begins with what its first row sees. */
static void add_whole(struct line *line, struct nh_range first, struct nh_range last,
                      double weight) {
    const double first_end = (double)(first.end - first.begin);
    const double last_begin = (double)(last.begin - first.begin),
                 last_end = (double)(last.end - first.begin);
    for (int i = 0; i < line->extents; i++) {
        double reciprocal = line->reciprocal[i], last_column = line->columns[i] - 1;
        double end = quotient(last_end + last_column, reciprocal);
        double from = quotient(last_begin + last_column, reciprocal);
        double to = quotient(first_end, reciprocal);
        line->visits[i] += weight * end;
        line->dense[i] += weight * larger(to - from, 0);
    }
}

static void add_tile(const struct cut *cut, int64_t tile, double weight, struct line *line) {
    int64_t row = tile * cut->rows, end = row + cut->rows;
    struct nh_range first = seen_by(cut, row);
    int64_t walk = first.begin;
    if (cut->part == cut->rows) {
        struct nh_range last = seen_by(cut, end - 1);
        add_whole(line, first, last, weight);
        line->halo = nh_max(line->halo, last.end - walk);
        return;
    }
    for (;;) {
        struct nh_range last = seen_by(cut, row + cut->part - 1);
        first.begin -= walk, first.end -= walk, last.begin -= walk, last.end -= walk;
        add_part(line, first, last, row >= cut->length, weight);
        line->halo = nh_max(line->halo, last.end);
        row += cut->part;
        if (row >= end) break;
        first = seen_by(cut, row);
    }
}

/* Whether all rows of row tiles [from, to) see the same: ranges never go back from one row to the next. */
static bool alike(const struct cut *cut, int64_t from, int64_t to) {
    struct nh_range first = seen_by(cut, from * cut->rows), last = seen_by(cut, to * cut->rows - 1);
    return to * cut->rows <= cut->length && first.begin == last.begin && first.end == last.end;
}

/* Adds row tiles [from, to), each as often as `weight` says. */
static void add_tiles(const struct cut *cut, int64_t from, int64_t to, double weight,
                      struct line *line) {
    int64_t tiles = to - from, step = nh_ceil_div(tiles, MOST_COUNTED);
    if (tiles > 1 && alike(cut, from, to)) {
        add_tile(cut, from, weight * (double)tiles, line);
    } else if (tiles > 1 && step == 1) {
        add_tiles(cut, from, from + tiles / 2, weight, line);
        add_tiles(cut, from + tiles / 2, to, weight, line);
    } else if (tiles > 0) {
        weight *= (double)tiles / (double)nh_ceil_div(tiles, step);
        for (int64_t tile = from; tile < to; tile += step)
            add_tile(cut, tile, weight, line);
    }
}

/* Positions so far from both ends of their group see a range that neither end cuts. */
static int64_t margin_of(const struct cut *cut) {
    const struct nh_axis *axis = cut->axis;
    bool whole = cut->inverse || axis->causal;
    return (whole ? axis->window : axis->window / 2 + 1) + axis->stride;
}

/* Away from both ends of the group what tiles see repeats, so that one period stands for all. */
static void add_group(const struct cut *cut, int64_t groups, struct line *line) {
    int64_t margin = margin_of(cut);
    int64_t period = cut->axis->stride / nh_common_divisor(cut->axis->stride, cut->rows);
    int64_t tiles = nh_ceil_div(cut->length, cut->rows), from = nh_ceil_div(margin, cut->rows);
    int64_t periods = nh_max((cut->length - margin) / cut->rows - from, 0) / period;
    double weight = (double)groups;
    if (!periods) {
        add_tiles(cut, 0, tiles, weight, line);
        return;
    }
    add_tiles(cut, 0, from, weight, line);
    add_tiles(cut, from, from + period, weight * (double)periods, line);
    add_tiles(cut, from + periods * period, tiles, weight, line);
}

/* `cut` is of the shorter groups. */
static void add_beyond(const struct cut *cut, int64_t groups, int64_t columns,
                       struct nh_tile_count *count) {
    if (cut->length == 0 || cut->length % cut->rows) return;
    struct nh_range seen = seen_by(cut, cut->length - 1);
    int64_t seen_columns = seen.end - seen.begin, parts = cut->rows / cut->part;
    int64_t visits = nh_ceil_div(seen_columns, columns), dense = seen_columns / columns;
    if (parts > 1) {
        visits = parts;
        dense = dense ? parts : 0;
    }
    count->visits_beyond = (double)(groups * visits);
    count->dense_beyond = (double)(groups * dense);
}

void nh_tile_counts(const struct nh_axis *axis, int32_t rows, int32_t part, bool inverse,
                    const int32_t *columns, int count, struct nh_tile_count *counts) {
    int64_t longest = nh_longest_group(axis);
    int64_t shorter = longest * axis->dilation - axis->length;
    struct cut cut = {axis, longest, rows, part, inverse};
    struct line line;
    line.extents = count;
    line.halo = 0;
    for (int i = 0; i < count; i++) {
        line.columns[i] = columns[i];
        line.reciprocal[i] = 1.0 / columns[i];
        line.visits[i] = line.dense[i] = 0;
    }
    add_group(&cut, axis->dilation - shorter, &line);
    cut.length--;
    if (shorter) add_group(&cut, shorter, &line);
    for (int i = 0; i < count; i++) {
        counts[i] = (struct nh_tile_count){.tiles = nh_row_tiles(axis, rows),
                                           .halo = line.halo,
                                           .visits = line.visits[i],
                                           .dense = line.dense[i]};
        if (shorter) add_beyond(&cut, shorter, columns[i], &counts[i]);
    }
}

bool nh_same_axis(const struct nh_axis *a, const struct nh_axis *b) {
    return a->length == b->length && a->window == b->window && a->stride == b->stride &&
           a->dilation == b->dilation && a->causal == b->causal;
}

/* Solvers try many shapes of tiles that share their extents per axis, and are asked again for the estimates of those
 * they propose: what a thread has counted lately is remembered. */
struct nh_tile_count nh_tile_part_count(const struct nh_axis *axis, int32_t rows, int32_t part,
                                        int32_t columns, bool inverse) {
    static _Thread_local struct {
        struct nh_axis axis;
        uint64_t tile;
        struct nh_tile_count count;
    } remembered[REMEMBERED];
    uint64_t tile = (uint64_t)rows << 42 | (uint64_t)part << 21 | (uint64_t)columns << 1 | inverse;
    uint64_t key = (tile * 31 + (uint64_t)axis->length) * UINT64_C(0x9e3779b97f4a7c15);
    size_t place = key >> 32 & (REMEMBERED - 1);
    if (remembered[place].tile != tile || !nh_same_axis(&remembered[place].axis, axis)) {
        remembered[place].axis = *axis;
        remembered[place].tile = tile;
        nh_tile_counts(axis, rows, part, inverse, &columns, 1, &remembered[place].count);
    }
    return remembered[place].count;
}

struct nh_tile_count nh_tile_count(const struct nh_axis *axis, int32_t rows, int32_t columns,
                                   bool inverse) {
    return nh_tile_part_count(axis, rows, rows, columns, inverse);
}

int32_t nh_tile_cover(const struct nh_axis *axis, int32_t most) {
    int64_t longest = nh_longest_group(axis);
    int32_t cover = 1;
    while (cover < longest && cover < most)
        cover *= 2;
    return cover;
}

int nh_tile_boxes(const struct nh_problem *problem, int32_t size, int32_t box[NH_MOST_BOXES][3]) {
    int64_t cover[NH_AXES];
    int count = 0;
    for (int a = 0; a < NH_AXES; a++)
        cover[a] = nh_tile_cover(&problem->axis[a], size);
    while (cover[0] * cover[1] * cover[2] < size)
        cover[2] *= 2;
    for (int32_t x = 1; x <= cover[0]; x *= 2)
        for (int32_t y = 1; y <= cover[1] && x * y <= size; y *= 2) {
            int32_t z = size / (x * y);
            if (z > cover[2] || count == NH_MOST_BOXES) continue;
            box[count][0] = x;
            box[count][1] = y;
            box[count++][2] = z;
        }
    return count;
}
