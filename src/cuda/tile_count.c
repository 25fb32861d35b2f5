#include "tile_count.h"

enum { MOST_COUNTED = 1 << 14, REMEMBERED = 1024 };

static struct nh_range partners(const struct nh_axis *axis, int64_t length, bool inverse,
                                int64_t position) {
    return inverse ? nh_inverse_range(length, axis->window, axis->stride, axis->causal, position)
                   : nh_window_range(length, axis->window, axis->stride, axis->causal, position);
}

/* A dilation group of an axis, cut into tiles of rows, and these into parts. */
struct cut {
    const struct nh_axis *axis;
    int64_t length;
    int32_t rows, part, columns;
    bool inverse;
};

/* Adds what the part that starts at row `first` of a tile meets of that tile's walk. */
static void count_part(const struct cut *cut, int64_t walk, int64_t first, double *visits,
                       double *dense) {
    int64_t columns = cut->columns, low = nh_min(first, cut->length - 1);
    int64_t high = nh_max(nh_min(first + cut->part, cut->length) - 1, low);
    struct nh_range seen = partners(cut->axis, cut->length, cut->inverse, low);
    struct nh_range last = partners(cut->axis, cut->length, cut->inverse, high);
    int64_t begin = (seen.begin - walk) / columns, end = nh_ceil_div(last.end - walk, columns);
    if (first >= cut->length) end = begin + 1;
    int64_t from = nh_ceil_div(last.begin - walk, columns), to = (seen.end - walk) / columns;
    *visits += (double)(end - begin);
    *dense += (double)nh_max(nh_min(to, end) - nh_max(from, begin), 0);
}

/* Adds row tiles [from, to), each as often as `weight` says. */
static void count_tiles(const struct cut *cut, int64_t from, int64_t to, double weight,
                        struct nh_tile_count *count) {
    int64_t step = nh_max(nh_ceil_div(to - from, MOST_COUNTED), 1);
    double visits = 0, dense = 0;
    for (int64_t t = from; t < to; t += step) {
        int64_t first = t * cut->rows, last = nh_min(first + cut->rows, cut->length) - 1;
        int64_t walk = partners(cut->axis, cut->length, cut->inverse, first).begin;
        int64_t end = partners(cut->axis, cut->length, cut->inverse, last).end;
        count->halo = nh_max(count->halo, end - walk);
        for (int32_t row = 0; row < cut->rows; row += cut->part)
            count_part(cut, walk, first + row, &visits, &dense);
    }
    if (to > from) weight *= (double)(to - from) / (double)nh_ceil_div(to - from, step);
    count->visits += weight * visits;
    count->dense += weight * dense;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Positions so far from both ends of their group see a range that neither end cuts. */
static int64_t margin_of(const struct cut *cut) {
    const struct nh_axis *axis = cut->axis;
    bool whole = cut->inverse || axis->causal;
    return (whole ? axis->window : axis->window / 2 + 1) + axis->stride;
}

/* Away from both ends of the group what tiles see repeats, so that one period stands for all. */
static void count_group(const struct cut *cut, int64_t groups, struct nh_tile_count *count) {
    int64_t margin = margin_of(cut);
    int64_t period = cut->axis->stride / common_divisor(cut->axis->stride, cut->rows);
    int64_t tiles = nh_ceil_div(cut->length, cut->rows), from = nh_ceil_div(margin, cut->rows);
    int64_t periods = nh_max((cut->length - margin) / cut->rows - from, 0) / period;
    double weight = (double)groups;
    if (!periods) {
        count_tiles(cut, 0, tiles, weight, count);
        return;
    }
    count_tiles(cut, 0, from, weight, count);
    count_tiles(cut, from, from + period, weight * (double)periods, count);
    count_tiles(cut, from + periods * period, tiles, weight, count);
}

/* `cut` is of the shorter groups. */
static void count_beyond(const struct cut *cut, int64_t groups, struct nh_tile_count *count) {
    if (cut->length == 0 || cut->length % cut->rows) return;
    struct nh_range seen = partners(cut->axis, cut->length, cut->inverse, cut->length - 1);
    int64_t columns = seen.end - seen.begin, parts = cut->rows / cut->part;
    int64_t visits = nh_ceil_div(columns, cut->columns), dense = columns / cut->columns;
    if (parts > 1) {
        visits = parts;
        dense = dense ? parts : 0;
    }
    count->visits_beyond = (double)(groups * visits);
    count->dense_beyond = (double)(groups * dense);
}

static struct nh_tile_count count_axis(const struct nh_axis *axis, int32_t rows, int32_t part,
                                       int32_t columns, bool inverse) {
    int64_t longest = nh_axis_group_length(axis->length, axis->dilation, 0);
    struct nh_tile_count count = {.tiles = axis->dilation * nh_ceil_div(longest, rows)};
    int64_t shorter = longest * axis->dilation - axis->length;
    struct cut cut = {axis, longest, rows, part, columns, inverse};
    count_group(&cut, axis->dilation - shorter, &count);
    if (!shorter) return count;
    cut.length--;
    count_group(&cut, shorter, &count);
    count_beyond(&cut, shorter, &count);
    return count;
}

static bool same_axis(const struct nh_axis *a, const struct nh_axis *b) {
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
    if (remembered[place].tile != tile || !same_axis(&remembered[place].axis, axis)) {
        remembered[place].axis = *axis;
        remembered[place].tile = tile;
        remembered[place].count = count_axis(axis, rows, part, columns, inverse);
    }
    return remembered[place].count;
}

struct nh_tile_count nh_tile_count(const struct nh_axis *axis, int32_t rows, int32_t columns,
                                   bool inverse) {
    return nh_tile_part_count(axis, rows, rows, columns, inverse);
}

int nh_tile_boxes(const struct nh_problem *problem, int32_t size, int32_t box[NH_MOST_BOXES][3]) {
    int64_t cover[NH_AXES];
    int count = 0;
    for (int a = 0; a < NH_AXES; a++) {
        int64_t longest =
            nh_axis_group_length(problem->axis[a].length, problem->axis[a].dilation, 0);
        for (cover[a] = 1; cover[a] < longest && cover[a] < size;)
            cover[a] *= 2;
    }
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
