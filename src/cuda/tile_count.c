#include "tile_count.h"

enum { MOST_COUNTED = 1 << 14 };

static struct nh_range partners(const struct nh_axis *axis, int64_t length, bool inverse,
                                int64_t position) {
    return inverse ? nh_inverse_range(length, axis->window, axis->stride, axis->causal, position)
                   : nh_window_range(length, axis->window, axis->stride, axis->causal, position);
}

static void count_group(const struct nh_axis *axis, int64_t length, int64_t groups, int32_t rows,
                        int32_t columns, bool inverse, struct nh_tile_count *count) {
    int64_t tiles = nh_ceil_div(length, rows), step = nh_ceil_div(tiles, MOST_COUNTED);
    double visits = 0, dense = 0;
    for (int64_t t = 0; t < tiles; t += step) {
        int64_t last_row = nh_min(t * rows + rows, length) - 1;
        struct nh_range first = partners(axis, length, inverse, t * rows);
        struct nh_range last = partners(axis, length, inverse, last_row);
        visits += (double)nh_ceil_div(last.end - first.begin, columns);
        int64_t lead = nh_ceil_div(last.begin - first.begin, columns) * columns;
        int64_t shared = first.end - (first.begin + lead);
        if (shared >= columns) dense += (double)(shared / columns);
    }
    double weight = (double)groups * (double)tiles / (double)nh_ceil_div(tiles, step);
    count->visits += weight * visits;
    count->dense += weight * dense;
}

struct nh_tile_count nh_tile_count(const struct nh_axis *axis, int32_t rows, int32_t columns,
                                   bool inverse) {
    int64_t longest = nh_axis_group_length(axis->length, axis->dilation, 0);
    struct nh_tile_count count = {.tiles = axis->dilation * nh_ceil_div(longest, rows)};
    int64_t shorter = longest * axis->dilation - axis->length;
    count_group(axis, longest, axis->dilation - shorter, rows, columns, inverse, &count);
    if (shorter) count_group(axis, longest - 1, shorter, rows, columns, inverse, &count);
    return count;
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
