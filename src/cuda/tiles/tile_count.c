#include "tile_count.h"

#include <math.h>

/* The most row tiles of which each is looked at; and the most of a long axis with a window table, where looking takes longer. */
enum { MOST_COUNTED = 1 << 14, MOST_OF_TABLES = 1 << 9 };

/* The distance between the row tiles that are counted, of so many in a row. */
static int64_t step_of(const struct nh_axis *axis, int64_t tiles) {
    const bool table = axis->windows.kind && !nh_listed_exactly(axis);
    return nh_ceil_div(tiles, table ? MOST_OF_TABLES : MOST_COUNTED);
}

/* Dilation groups of an axis that are alike, cut into tiles of rows, and these into parts. */
struct cut {
    struct nh_groups groups;
    int64_t length; /* rows that tensors have of a group */
    int32_t rows, part;
};

/* The extents of column tiles that are counted at once, so that what rows see is found once for all of them, and their
 * counts. All doubles here are whole numbers, but for reciprocals and margins. */
struct line {
    int extents;
    bool boxes; /* the copy engine fetches the columns: each part visits at least one box */
    const int32_t *columns;
    /* per extent: 1 / extent, and (1 - 1 / extent) / 2, which rounded_down and rounded_up need */
    double reciprocal[NH_MOST_EXTENTS], margin[NH_MOST_EXTENTS];
    /* of boxes: columns of the first one that lie before the halo, and the number of the last one */
    double before[NH_MOST_EXTENTS], last[NH_MOST_EXTENTS];
    struct nh_tile_counts *counts;
};

struct nh_groups nh_groups_from(const struct nh_axis *axis, int64_t first, bool inverse) {
    const bool whole = !nh_is_cut(axis);
    if (whole && axis->dilation == 1) {
        const struct nh_range all = {0, axis->length};
        return (struct nh_groups){.axis = axis,
                                  .count = 1,
                                  .length = axis->length,
                                  .rows = all,
                                  .columns = all,
                                  .inverse = inverse,
                                  .whole = true};
    }
    const int64_t end[] = {axis->length, axis->query.offset,
                           axis->query.offset + axis->query.length, axis->key.offset,
                           axis->key.offset + axis->key.length};
    int64_t next = axis->dilation;
    for (size_t i = 0; next > 1 && i < sizeof end / sizeof *end; i++)
        if (end[i] % axis->dilation > first) next = nh_min(next, end[i] % axis->dilation);
    return (struct nh_groups){
        .axis = axis,
        .inverse = inverse,
        .whole = whole,
        .count = next - first,
        .length = nh_axis_group_length(axis->length, axis->dilation, first),
        .rows = nh_axis_covered(axis, inverse ? &axis->key : &axis->query, first),
        .columns = nh_axis_covered(axis, inverse ? &axis->query : &axis->key, first)};
}

struct nh_range nh_groups_seen(const struct nh_groups *groups, int64_t row) {
    const struct nh_axis *axis = groups->axis;
    const int64_t at = nh_min(groups->rows.begin + row, groups->rows.end - 1);
    if (groups->rows.begin >= groups->rows.end)
        return (struct nh_range){groups->columns.begin, groups->columns.begin};
    /* Most axes are not cut and have a stride of 1: passing the constant lets compilers leave out divisions. */
    if (groups->whole && axis->stride == 1)
        return nh_seen_range(groups->length, axis->window, 1, axis->causal, 0, groups->inverse, at);
    struct nh_range seen = nh_axis_seen(axis, groups->length, groups->inverse, at);
    return nh_covered_part(seen, groups->columns, groups->length, axis->periodic);
}

int64_t nh_first_box(const struct nh_groups *groups, struct nh_range halo, int64_t extent) {
    if (!groups->axis->periodic) return halo.begin;
    int64_t laps = nh_laps(halo.begin, groups->columns.begin, groups->length);
    int64_t seam = groups->columns.begin + (laps + 1) * groups->length;
    if (seam >= halo.end) return halo.begin;
    return seam - nh_ceil_div(seam - halo.begin, extent) * extent;
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

/* Adds what a part of a tile sees: its first row sees the columns `first`, its last row `last`. A part that is skipped
 * visits one column tile. boxes: line->boxes, as a constant, since most counts are of no boxes and need less. */
static inline void add_part(const struct line *line, bool boxes, struct nh_range halo,
                            struct nh_range first, struct nh_range last, bool skipped,
                            double weight) {
    const double first_begin = (double)(first.begin - halo.begin),
                 first_end = (double)(first.end - halo.begin),
                 last_begin = (double)(last.begin - halo.begin),
                 last_end = skipped ? -INFINITY : (double)(last.end - halo.begin);
    const double least = boxes || skipped;
    double *visits = line->counts->visits, *dense = line->counts->dense;
    for (int i = 0; i < line->extents; i++) {
        double reciprocal = line->reciprocal[i], margin = line->margin[i];
        double before = boxes ? line->before[i] : 0;
        double begin = rounded_down(first_begin + before, reciprocal, margin);
        double end = rounded_up(last_end + before, reciprocal, margin);
        double from = rounded_up(last_begin + before, reciprocal, margin);
        double to = rounded_down(first_end + before, reciprocal, margin);
        if (boxes) begin = smaller(begin, line->last[i]);
        end = larger(end, begin + least);
        visits[i] += weight * (end - begin);
        dense[i] += weight * larger(smaller(to, end) - larger(from, begin), 0);
    }
}

static void add_tile(const struct cut *cut, int64_t tile, double weight, struct line *line) {
    const int64_t begin = tile * cut->rows, end = begin + cut->rows;
    struct nh_range first = nh_groups_seen(&cut->groups, begin),
                    last = nh_groups_seen(&cut->groups, end - 1);
    const struct nh_range halo = {first.begin, last.end};
    line->counts->halo = nh_max(line->counts->halo, halo.end - halo.begin);
    for (int i = 0; line->boxes && i < line->extents; i++) {
        int64_t columns = line->columns[i], first_box = nh_first_box(&cut->groups, halo, columns);
        line->before[i] = (double)(halo.begin - first_box);
        line->last[i] = (double)(nh_max(nh_ceil_div(halo.end - first_box, columns), 1) - 1);
    }
    const bool parts = cut->part < cut->rows;
    for (int64_t row = begin; row < end; row += cut->part) {
        if (row > begin) first = nh_groups_seen(&cut->groups, row);
        if (parts) last = nh_groups_seen(&cut->groups, row + cut->part - 1);
        const bool skipped = parts && row >= cut->length;
        if (line->boxes)
            add_part(line, true, halo, first, last, skipped, weight);
        else
            add_part(line, false, halo, first, last, skipped, weight);
    }
}

/* Whether all rows of row tiles [from, to) see the same columns. It is enough to compare the first with the last, as
 * both ends of what rows see never decrease. */
static bool alike(const struct cut *cut, int64_t from, int64_t to) {
    struct nh_range first = nh_groups_seen(&cut->groups, from * cut->rows),
                    last = nh_groups_seen(&cut->groups, to * cut->rows - 1);
    return to * cut->rows <= cut->length && first.begin == last.begin && first.end == last.end;
}

/* Adds row tiles [from, to), each with this weight. */
static void add_tiles(const struct cut *cut, int64_t from, int64_t to, double weight,
                      struct line *line) {
    int64_t tiles = to - from, step = step_of(cut->groups.axis, tiles);
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

/* The rows so far from both ends of a group, and of the columns that tensors have, that no end cuts what they see. */
static struct nh_range inner_rows(const struct cut *cut, bool boxes) {
    const struct nh_axis *axis = cut->groups.axis;
    const struct nh_groups *groups = &cut->groups;
    const bool one_sided = groups->inverse || axis->causal;
    const int64_t margin = (one_sided ? axis->window : axis->window / 2 + 1) + axis->stride;
    int64_t lap = 0; /* offset of the lap around a periodic axis in which the middle row is */
    if (axis->windows.kind) return (struct nh_range){0, 0}; /* nothing repeats */
    if (axis->periodic && !boxes) {
        bool around = groups->columns.end - groups->columns.begin == groups->length;
        return (struct nh_range){0, around ? cut->length : 0};
    }
    if (axis->periodic)
        lap = nh_laps(groups->rows.begin + cut->length / 2, groups->columns.begin, groups->length) *
              groups->length;
    lap -= groups->rows.begin;
    return (struct nh_range){nh_max(groups->columns.begin + lap + margin, 0),
                             nh_min(groups->columns.end + lap - margin, cut->length)};
}

/* Far from all ends, what tiles see repeats with a period of stride / gcd(stride, rows) tiles: one period is counted
 * and weighted. */
static void add_groups(const struct cut *cut, struct line *line) {
    struct nh_range inner = inner_rows(cut, line->boxes);
    int64_t period =
        cut->groups.axis->stride / nh_common_divisor(cut->groups.axis->stride, cut->rows);
    int64_t tiles = nh_ceil_div(cut->length, cut->rows), from = nh_ceil_div(inner.begin, cut->rows);
    int64_t periods = nh_max(inner.end / cut->rows - from, 0) / period;
    double weight = (double)cut->groups.count;
    if (!periods) {
        add_tiles(cut, 0, tiles, weight, line);
        return;
    }
    add_tiles(cut, 0, from, weight, line);
    add_tiles(cut, from, from + period, weight * (double)periods, line);
    add_tiles(cut, from + periods * period, tiles, weight, line);
}

void nh_tile_counts(const struct nh_axis *axis, int32_t rows, int32_t part, bool inverse,
                    bool beyond, const int32_t *columns, int count, struct nh_tile_counts *counts) {
    const int64_t tiles = nh_ceil_div(nh_longest_rows(axis, inverse), rows);
    struct line line; /* its arrays are large, so they are not cleared */
    line.extents = count;
    line.boxes = beyond && nh_is_cut(axis);
    line.columns = columns;
    line.counts = counts;
    counts->tiles = axis->dilation * tiles;
    counts->halo = 1; /* where no row sees a column, blocks still take the time of a step */
    for (int i = 0; i < count; i++) {
        line.reciprocal[i] = 1.0 / columns[i];
        line.margin[i] = 0.5 - 0.5 * line.reciprocal[i];
        counts->visits[i] = counts->dense[i] = 0;
    }
    for (int64_t group = 0; group < axis->dilation;) {
        struct cut cut = {nh_groups_from(axis, group, inverse), 0, rows, part};
        cut.length = cut.groups.rows.end - cut.groups.rows.begin;
        add_groups(&cut, &line);
        /* a row tile that only the groups with most rows have */
        if (beyond && nh_ceil_div(cut.length, rows) < tiles)
            add_tile(&cut, tiles - 1, (double)cut.groups.count, &line);
        group += cut.groups.count;
    }
    for (int i = 0; i < count; i++) {
        counts->visits[i] = larger(counts->visits[i], 1);
        counts->longest[i] = rounded_up((double)counts->halo, line.reciprocal[i], line.margin[i]);
    }
}

/* An axis that tensors cover, without steps, and the tiles of which each is counted: those near its ends, where what rows see is
 * cut. All others are like the first of them. */
struct plain {
    int64_t tiles, from, alike;
};

/* Whether an axis is one of few such tiles. Most are: groups count tiles of new lengths for each member. */
static bool is_plain(const struct nh_axis *axis, int32_t rows, bool inverse, struct plain *plain) {
    enum { MOST_LOOKED_AT = 64 };
    if (axis->stride != 1 || axis->dilation != 1 || nh_is_cut(axis)) return false;
    const int64_t margin =
        (inverse || axis->causal ? axis->window : axis->window / 2 + 1) + axis->stride;
    plain->tiles = nh_ceil_div(axis->length, rows);
    plain->from = nh_min(nh_ceil_div(margin, rows), plain->tiles);
    plain->alike = nh_max((axis->length - margin) / rows - plain->from, 1);
    return plain->tiles - plain->alike <= MOST_LOOKED_AT;
}

static struct nh_tile_count count_plain(const struct nh_axis *axis, int32_t rows, int32_t columns,
                                        bool inverse, const struct plain *plain) {
    int64_t halo = 1, visits = 0;
    for (int64_t tile = 0, alike; tile < plain->tiles; tile += alike) {
        const int64_t first = tile * rows, last = nh_min(first + rows, axis->length) - 1;
        const int64_t begin =
            nh_seen_range(axis->length, axis->window, 1, axis->causal, 0, inverse, first).begin;
        const int64_t end =
            nh_seen_range(axis->length, axis->window, 1, axis->causal, 0, inverse, last).end;
        alike = tile == plain->from ? plain->alike : 1;
        halo = nh_max(halo, end - begin);
        visits += alike * nh_ceil_div(end - begin, columns);
    }
    return (struct nh_tile_count){plain->tiles, halo, (double)visits};
}

struct nh_tile_count nh_tile_count(const struct nh_axis *axis, int32_t rows, int32_t columns,
                                   bool inverse) {
    struct nh_tile_counts counts;
    struct plain plain;
    if (is_plain(axis, rows, inverse, &plain))
        return count_plain(axis, rows, columns, inverse, &plain);
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
