#include "warpgroup_tile.h"

#include "tile_count.h"

#include <string.h>

int64_t nh_sm90_row_bytes(int64_t dim) {
    return dim == 32 ? 64 : nh_ceil_div(dim, 64) * 128;
}

bool nh_sm90_pairs(const int32_t warpgroup_tile[3]) {
    return warpgroup_tile[2] % 16 == 0 || (warpgroup_tile[2] == 8 && warpgroup_tile[1] % 2 == 0);
}

bool nh_sm90_warpgroup_tile(const int32_t tile[3], int32_t heads, int32_t stack,
                            int32_t warpgroup_tile[3]) {
    int32_t warpgroups = (int32_t)nh_ceil_div(nh_box_volume(tile) * heads, 64);
    memcpy(warpgroup_tile, tile, 3 * sizeof *warpgroup_tile);
    warpgroup_tile[stack] /= warpgroups;
    return warpgroup_tile[stack] * warpgroups == tile[stack];
}

bool nh_sm90_first_warpgroup_tile(const int32_t tile[3], int32_t warpgroup_tile[3]) {
    return nh_sm90_warpgroup_tile(tile, 1, tile[0] > 1 ? 0 : tile[1] > 1 ? 1 : 2, warpgroup_tile);
}

bool nh_sm90_suits(const struct nh_problem *problem, const int32_t tile[3], bool keys) {
    for (int a = 0; a < NH_AXES; a++)
        if (tile[a] > 1 && tile[a] / 2 >= nh_longest_rows(&problem->axis[a], keys)) return false;
    return true;
}

bool nh_sm90_sevens_fit(const struct nh_problem *problem, const int32_t tile[3]) {
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        int64_t length = nh_longest_rows(axis, false);
        if (tile[a] % 7 == 0 && nh_ceil_div(length, tile[a]) > nh_ceil_div(length, tile[a] / 7 * 8))
            return false;
    }
    return true;
}

bool nh_sm90_windows_slide(const struct nh_problem *problem) {
    return !nh_problem_causal(problem) && !nh_problem_strided(problem) && !problem->has_bias &&
           !problem->extra_tokens && !nh_problem_has_tables(problem);
}
