#include "tile_count.h"

enum { MOST_COUNTED = 1 << 14 };

static inline struct nh_range range_of(const struct nh_axis *axis, int64_t length, int64_t stride,
                                       bool inverse, int64_t position) {
    return nh_seen_range(length, axis->window, stride, axis->causal, 0, inverse, position);
}

/* Most strides are 1: passing the constant lets compilers leave out divisions. */
static struct nh_range partners(const struct nh_axis *axis, int64_t length, bool inverse,
                                int64_t position) {
    return axis->stride == 1 ? range_of(axis, length, 1, inverse, position)
                             : range_of(axis, length, axis->stride, inverse, position);
}

/* What else is known of a dilation group if tensors do not cover the grid, or the axis is periodic. */
struct covered {
    int64_t group_length, first; /* position of the first row */
    struct nh_range columns;
    bool boxes; /* see count_covered */
};

/* A dilation group of an axis, cut into tiles of rows, and these into parts. */
struct cut {
    const struct nh_axis *axis;
    int64_t length; /* rows that tensors have */
    int32_t rows, part;
    bool inverse;
    const struct covered *covered; /* NULL: tensors cover the grid, and the axis is not periodic */
};

/* The extents of column tiles that are counted at once, so that what rows see is found once for all of them, and their
 * counts. All doubles here are whole numbers, but for reciprocals and margins. */
struct line {
    int extents;
    const int32_t *columns;
    /* per extent: 1 / extent, and (1 - 1 / extent) / 2, which rounded_down and rounded_up need */
    double reciprocal[NH_MOST_EXTENTS], margin[NH_MOST_EXTENTS];
    struct nh_tile_counts *counts;
};

static struct nh_range covered_partners(const struct cut *cut, int64_t row) {
    const struct nh_axis *axis = cut->axis;
    const struct covered *covered = cut->covered;
    struct nh_range seen =
        nh_seen_range(covered->group_length, axis->window, axis->stride, axis->causal,
                      axis->periodic, cut->inverse, covered->first + row);
    return nh_covered_part(seen, covered->columns, covered->group_length, axis->periodic);
}

static struct nh_range seen_by(const struct cut *cut, int64_t row) {
    if (cut->covered) return covered_partners(cut, nh_min(row, cut->length - 1));
    return partners(cut->axis, cut->length, cut->inverse, nh_min(row, cut->length - 1));
}

/* Rounds to the nearest whole number, for values below 2^50, by an addition, which compilers vectorise. */
static double rounded(double value) {
    const double shift = 0x1.8p52;
    return value + shift - shift;
}

/* Exact quotients of whole numbers, rounded down and up. The margin, (1 - 1 / divisor) / 2, keeps the argument of the
 * rounding at least half of 1 / divisor away from where it would round the other way, which exceeds its floating-point
 * error. */
static double rounded_down(double dividend, double reciprocal, double margin) {
    return rounded(dividend * reciprocal - margin);
}

static double rounded_up(double dividend, double reciprocal, double margin) {
    return rounded(dividend * reciprocal + margin);
}

static double larger(double a, double b) {
    return a > b ? a : b;
}

static double smaller(double a, double b) {
    return a < b ? a : b;
}

/* Adds what a part sees, whose first row sees the columns `first` and whose last row sees `last`, both counted from the
 * start of its tile's halo. */
static void add_part(const struct line *line, struct nh_range first, struct nh_range last,
                     bool beyond, double weight) {
    const double first_begin = (double)first.begin, first_end = (double)first.end;
    const double last_begin = (double)last.begin, last_end = (double)last.end;
    double *visits = line->counts->visits, *dense = line->counts->dense;
    for (int i = 0; i < line->extents; i++) {
        double reciprocal = line->reciprocal[i], margin = line->margin[i];
        double begin = rounded_down(first_begin, reciprocal, margin);
        double end = beyond ? begin + 1 : rounded_up(last_end, reciprocal, margin);
        double from = rounded_up(last_begin, reciprocal, margin);
        double to = rounded_down(first_end, reciprocal, margin);
        visits[i] += weight * (end - begin);
        dense[i] += weight * larger(smaller(to, end) - larger(from, begin), 0);
    }
}

/* The same for a tile that is a single part: its halo begins with what the first row sees. */
static void add_whole(const struct line *line, struct nh_range first, struct nh_range last,
                      double weight) {
    const double first_end = (double)(first.end - first.begin);
    const double last_begin = (double)(last.begin - first.begin),
                 last_end = (double)(last.end - first.begin);
    double *visits = line->counts->visits, *dense = line->counts->dense;
    for (int i = 0; i < line->extents; i++) {
        double reciprocal = line->reciprocal[i], margin = line->margin[i];
        double from = rounded_up(last_begin, reciprocal, margin);
        double to = rounded_down(first_end, reciprocal, margin);
        visits[i] += weight * rounded_up(last_end, reciprocal, margin);
        dense[i] += weight * larger(to - from, 0);
    }
}

/* Adds what the parts of the row tile at `row` see in boxes of the i-th extent: at least one box each. */
static void add_boxes(const struct cut *cut, int64_t row, int i, double weight,
                      const struct line *line) {
    int64_t columns = line->columns[i], end = row + cut->rows;
    const struct nh_range halo = {seen_by(cut, row).begin, seen_by(cut, end - 1).end};
    int64_t halo_begin =
        nh_first_box(cut->axis, cut->covered->columns, cut->covered->group_length, halo, columns);
    int64_t boxes = nh_max(nh_ceil_div(halo.end - halo_begin, columns), 1);
    for (; row < end; row += cut->part) {
        struct nh_range first = seen_by(cut, row), last = seen_by(cut, row + cut->part - 1);
        int64_t from = nh_min((first.begin - halo_begin) / columns, boxes - 1);
        int64_t to = nh_max(nh_ceil_div(last.end - halo_begin, columns), from + 1);
        if (row >= cut->length && cut->part < cut->rows) to = from + 1;
        int64_t whole = nh_min(to, (first.end - halo_begin) / columns) -
                        nh_max(from, nh_ceil_div(last.begin - halo_begin, columns));
        line->counts->visits[i] += weight * (double)(to - from);
        line->counts->dense[i] += weight * (double)nh_max(whole, 0);
    }
    line->counts->halo = nh_max(line->counts->halo, halo.end - halo.begin);
}

static void add_tile(const struct cut *cut, int64_t tile, double weight, const struct line *line) {
    int64_t row = tile * cut->rows, end = row + cut->rows;
    if (cut->covered && cut->covered->boxes) {
        for (int i = 0; i < line->extents; i++)
            add_boxes(cut, row, i, weight, line);
        return;
    }
    struct nh_range first = seen_by(cut, row);
    int64_t halo_begin = first.begin;
    if (cut->part == cut->rows) {
        struct nh_range last = seen_by(cut, end - 1);
        add_whole(line, first, last, weight);
        line->counts->halo = nh_max(line->counts->halo, last.end - halo_begin);
        return;
    }
    for (;;) {
        struct nh_range last = seen_by(cut, row + cut->part - 1);
        first.begin -= halo_begin, first.end -= halo_begin, last.begin -= halo_begin,
            last.end -= halo_begin;
        add_part(line, first, last, row >= cut->length, weight);
        line->counts->halo = nh_max(line->counts->halo, last.end);
        row += cut->part;
        if (row >= end) break;
        first = seen_by(cut, row);
    }
}

/* Whether all rows of row tiles [from, to) see the same columns. It is enough to compare the first with the last, as
 * both ends of what rows see never decrease. */
static bool alike(const struct cut *cut, int64_t from, int64_t to) {
    struct nh_range first = seen_by(cut, from * cut->rows), last = seen_by(cut, to * cut->rows - 1);
    return to * cut->rows <= cut->length && first.begin == last.begin && first.end == last.end;
}

/* Adds row tiles [from, to), each with this weight. */
static void add_tiles(const struct cut *cut, int64_t from, int64_t to, double weight,
                      const struct line *line) {
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

/* The distance from both ends of their group at which neither end cuts what positions see. */
static int64_t margin_of(const struct cut *cut) {
    const struct nh_axis *axis = cut->axis;
    bool whole = cut->inverse || axis->causal;
    return (whole ? axis->window : axis->window / 2 + 1) + axis->stride;
}

/* The rows that are that far from all ends. */
static struct nh_range inner_rows(const struct cut *cut) {
    int64_t margin = margin_of(cut);
    struct nh_range inner = {margin, cut->length - margin};
    if (!cut->covered) return inner;
    const struct covered *covered = cut->covered;
    bool around = covered->columns.end - covered->columns.begin == covered->group_length;
    int64_t lap = 0; /* offset of the lap around a periodic axis in which the middle row is */
    if (cut->axis->periodic && !covered->boxes)
        return (struct nh_range){0, around ? cut->length : 0};
    if (cut->axis->periodic)
        lap = nh_laps(covered->first + cut->length / 2, covered->columns.begin,
                      covered->group_length) *
              covered->group_length;
    inner.begin = nh_max(covered->columns.begin + lap + margin - covered->first, 0);
    inner.end = nh_min(covered->columns.end + lap - margin - covered->first, cut->length);
    return inner;
}

/* Far from all ends, what tiles see repeats with a period of stride / gcd(stride, rows) tiles: one period is counted
 * and weighted. */
static void add_group(const struct cut *cut, int64_t groups, const struct line *line) {
    struct nh_range inner = inner_rows(cut);
    int64_t period = cut->axis->stride / nh_common_divisor(cut->axis->stride, cut->rows);
    int64_t tiles = nh_ceil_div(cut->length, cut->rows), from = nh_ceil_div(inner.begin, cut->rows);
    int64_t periods = nh_max(inner.end / cut->rows - from, 0) / period;
    double weight = (double)groups;
    if (!periods) {
        add_tiles(cut, 0, tiles, weight, line);
        return;
    }
    add_tiles(cut, 0, from, weight, line);
    add_tiles(cut, from, from + period, weight * (double)periods, line);
    add_tiles(cut, from + periods * period, tiles, weight, line);
}

/* Adds the row tile that only the longest dilation groups have, for `groups` groups that end just before it. */
static void add_beyond(const struct cut *cut, double groups, const struct line *line) {
    struct nh_range seen = seen_by(cut, cut->length - 1);
    double columns = (double)(seen.end - seen.begin), parts = (double)(cut->rows / cut->part);
    for (int i = 0; i < line->extents; i++) {
        double up = rounded_up(columns, line->reciprocal[i], line->margin[i]);
        double down = rounded_down(columns, line->reciprocal[i], line->margin[i]);
        bool whole = parts == 1;
        line->counts->visits[i] += groups * (whole ? up : parts);
        line->counts->dense[i] += groups * (whole ? down : down > 0 ? parts : 0);
    }
}

static void start(struct line *line, const int32_t *columns, int count,
                  struct nh_tile_counts *counts) {
    line->extents = count;
    line->columns = columns;
    line->counts = counts;
    counts->halo = 0;
    for (int i = 0; i < count; i++) {
        line->reciprocal[i] = 1.0 / columns[i];
        line->margin[i] = 0.5 - 0.5 * line->reciprocal[i];
        counts->visits[i] = counts->dense[i] = 0;
    }
}

int64_t nh_first_box(const struct nh_axis *axis, struct nh_range columns, int64_t group_length,
                     struct nh_range halo, int64_t extent) {
    if (!axis->periodic) return halo.begin;
    int64_t laps = nh_laps(halo.begin, columns.begin, group_length);
    int64_t seam = columns.begin + (laps + 1) * group_length;
    if (seam >= halo.end) return halo.begin;
    return seam - nh_ceil_div(seam - halo.begin, extent) * extent;
}

int64_t nh_next_group_kind(const struct nh_axis *axis, int64_t group) {
    const int64_t end[] = {axis->length, axis->query.offset,
                           axis->query.offset + axis->query.length, axis->key.offset,
                           axis->key.offset + axis->key.length};
    int64_t next = axis->dilation;
    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        if (end[i] % axis->dilation > group) next = nh_min(next, end[i] % axis->dilation);
    return next;
}

/* Counts an axis of which tensors lack a part, or that is periodic. boxes: column tiles are fetched by the copy engine,
 * whose boxes do not go around a periodic axis, and kernels skip no row tile: each part visits at least one box, also
 * those of row tiles that only the groups with most rows have. */
static void count_covered(const struct nh_axis *axis, int32_t rows, int32_t part, bool inverse,
                          bool boxes, const struct line *line) {
    const struct nh_box *own = inverse ? &axis->key : &axis->query;
    const struct nh_box *other = inverse ? &axis->query : &axis->key;
    const int64_t tiles = nh_ceil_div(nh_longest_rows(axis, inverse), rows);
    for (int64_t group = 0; group < axis->dilation; group = nh_next_group_kind(axis, group)) {
        const struct nh_range row = nh_axis_covered(axis, own, group);
        const struct covered covered = {nh_axis_group_length(axis->length, axis->dilation, group),
                                        row.begin, nh_axis_covered(axis, other, group), boxes};
        const struct cut cut = {axis, row.end - row.begin, rows, part, inverse, &covered};
        const int64_t groups = nh_next_group_kind(axis, group) - group;
        if (cut.length > 0) add_group(&cut, groups, line);
        if (!boxes) continue;
        /* A row tile that only the groups with most rows have loops over what the last row sees, if there is one. */
        if (cut.length > 0 && nh_ceil_div(cut.length, rows) < tiles)
            add_tile(&cut, tiles - 1, (double)groups, line);
        for (int i = 0; i < line->extents && cut.length <= 0; i++)
            line->counts->visits[i] += (double)(groups * tiles * (rows / part));
    }
    /* Where no row sees a column, blocks still take the time of a step. */
    line->counts->halo = nh_max(line->counts->halo, 1);
    for (int i = 0; i < line->extents; i++)
        line->counts->visits[i] = larger(line->counts->visits[i], 1);
}

static void count_whole(const struct nh_axis *axis, int32_t rows, int32_t part, bool inverse,
                        bool beyond, const struct line *line) {
    int64_t longest = nh_longest_group(axis);
    int64_t shorter = longest * axis->dilation - axis->length;
    struct cut cut = {axis, longest, rows, part, inverse, NULL};
    add_group(&cut, axis->dilation - shorter, line);
    cut.length--;
    if (shorter) add_group(&cut, shorter, line);
    if (beyond && shorter && cut.length > 0 && cut.length % rows == 0)
        add_beyond(&cut, (double)shorter, line);
}

void nh_tile_counts(const struct nh_axis *axis, int32_t rows, int32_t part, bool inverse,
                    bool beyond, const int32_t *columns, int count, struct nh_tile_counts *counts) {
    struct line line;
    start(&line, columns, count, counts);
    counts->tiles = nh_row_tiles(axis, rows, inverse);
    (nh_is_cut(axis) ? count_covered : count_whole)(axis, rows, part, inverse, beyond, &line);
    for (int i = 0; i < count; i++)
        counts->longest[i] = rounded_up((double)counts->halo, line.reciprocal[i], line.margin[i]);
}

struct nh_tile_count nh_tile_count(const struct nh_axis *axis, int32_t rows, int32_t columns,
                                   bool inverse) {
    struct nh_tile_counts counts;
    nh_tile_counts(axis, rows, rows, inverse, false, &columns, 1, &counts);
    return (struct nh_tile_count){counts.tiles, counts.halo, counts.visits[0]};
}

int32_t nh_tile_cover(const struct nh_axis *axis, int32_t most) {
    int64_t longest = nh_max(nh_longest_rows(axis, false), nh_longest_rows(axis, true));
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

/* Whether what a row sees of a periodic axis, at most `seen` columns, may reach from the end of the box that tensors
 * cover around to its beginning, so that it is two pieces of that box. */
static bool in_two_pieces(const struct nh_axis *axis, const struct nh_box *columns, int64_t seen) {
    int64_t covered = nh_ceil_div(columns->length, axis->dilation);
    int64_t missing = axis->length / axis->dilation - covered;
    return axis->periodic && columns->length < axis->length && seen > missing + 1;
}

const char *nh_refuse_pieces(const struct nh_axis *axis, bool backward) {
    int64_t queries =
        nh_ceil_div(axis->window, axis->stride) * axis->stride; /* the most that attend a key */
    if (in_two_pieces(axis, &axis->key, axis->window))
        return "windows that meet both ends of a key box on a periodic axis";
    if (backward && in_two_pieces(axis, &axis->query, queries))
        return "keys whose queries are at both ends of a query box on a periodic axis";
    return NULL;
}
