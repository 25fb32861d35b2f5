#include "tile_count.h"

enum { MOST_COUNTED = 1 << 14 };

static void count_group(const struct nh_axis *axis, int64_t length, int64_t groups, int32_t queries,
                        int32_t keys, struct nh_tile_count *count) {
    int64_t tiles = nh_ceil_div(length, queries), step = nh_ceil_div(tiles, MOST_COUNTED);
    double visits = 0, dense = 0;
    for (int64_t t = 0; t < tiles; t += step) {
        int64_t last = nh_min(t * queries + queries, length) - 1;
        struct nh_range first_keys =
            nh_window_range(length, axis->window, axis->stride, axis->causal, t * queries);
        struct nh_range last_keys =
            nh_window_range(length, axis->window, axis->stride, axis->causal, last);
        visits += (double)nh_ceil_div(last_keys.end - first_keys.begin, keys);
        int64_t lead = nh_ceil_div(last_keys.begin - first_keys.begin, keys) * keys;
        int64_t shared = first_keys.end - (first_keys.begin + lead);
        if (shared >= keys) dense += (double)(shared / keys);
    }
    double weight = (double)groups * (double)tiles / (double)nh_ceil_div(tiles, step);
    count->visits += weight * visits;
    count->dense += weight * dense;
}

struct nh_tile_count nh_tile_count(const struct nh_axis *axis, int32_t queries, int32_t keys) {
    int64_t longest = nh_axis_group_length(axis->length, axis->dilation, 0);
    struct nh_tile_count count = {.tiles = axis->dilation * nh_ceil_div(longest, queries)};
    int64_t shorter = longest * axis->dilation - axis->length;
    count_group(axis, longest, axis->dilation - shorter, queries, keys, &count);
    if (shorter) count_group(axis, longest - 1, shorter, queries, keys, &count);
    return count;
}
