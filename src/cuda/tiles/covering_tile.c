/* The tile of rows that covers short dilation groups with the fewest blocks. */
#include "tiling.h"

#include <math.h>
#include <string.h>

enum { WARPGROUP_ROWS = 64, LONG = 40, MOST_CUTS = 8 };

struct fit {
    int32_t tile[3], blocks;
    double halo;
};

static int32_t cut(int32_t length, int32_t cuts) {
    return (length + cuts - 1) / cuts;
}

static int32_t in_units(int32_t length, int32_t unit) {
    return cut(length, unit) * unit;
}

/* The number of parts into which a group is cut, and their extent. */
struct cuts {
    int32_t count, extent;
};

/* Lists the numbers of parts, up to MOST_CUTS, that differ in their extent. Returns how many there are. */
static int cuts_of(int64_t length, struct cuts cuts[MOST_CUTS]) {
    int count = 0;
    for (int32_t i = 1; i <= nh_min(length, MOST_CUTS); i++) {
        int32_t extent = cut((int32_t)length, i);
        if (!count || extent < cuts[count - 1].extent) cuts[count++] = (struct cuts){i, extent};
    }
    return count;
}

/* Tries a tile that is cut along x and y as given, and along z into as few as `warpgroups` warpgroup tiles allow. The
 * first extent above 1 is a multiple of `warpgroups`; tiles of one warpgroup tile less are left out. */
static void try_cuts(const struct nh_problem *problem, int32_t warpgroups, struct cuts x,
                     struct cuts y, int32_t length, struct fit *best) {
    bool across = x.extent == 1 && y.extent == 1;
    int32_t unit = across ? warpgroups : 1, rows;
    struct fit fit = {.tile = {x.extent > 1 ? in_units(x.extent, warpgroups) : 1,
                               x.extent > 1   ? y.extent
                               : y.extent > 1 ? in_units(y.extent, warpgroups)
                                              : 1}};
    rows = fit.tile[0] * fit.tile[1];
    int32_t most = warpgroups * WARPGROUP_ROWS / rows / unit * unit;
    if (!most) return;
    int32_t z = cut(length, most);
    fit.blocks = x.count * y.count * z;
    if (fit.blocks > best->blocks) return;
    fit.tile[2] = in_units(cut(length, z), unit);
    if (rows * fit.tile[2] <= (warpgroups - 1) * WARPGROUP_ROWS) return;
    fit.halo = 1;
    for (int a = 0; a < NH_AXES; a++)
        fit.halo *= (double)(fit.tile[a] + problem->axis[a].window - 1);
    if (fit.blocks < best->blocks || fit.halo < best->halo) *best = fit;
}

bool nh_covering_tile(const struct nh_problem *problem, int32_t warpgroups, int32_t tile[3]) {
    struct fit best = {.blocks = INT32_MAX, .halo = INFINITY};
    struct cuts x[MOST_CUTS], y[MOST_CUTS];
    int64_t length[NH_AXES];
    for (int a = 0; a < NH_AXES; a++) {
        length[a] = nh_longest_rows(&problem->axis[a], false);
        if (length[a] > LONG) return false;
    }
    int xs = cuts_of(length[0], x), ys = cuts_of(length[1], y);
    for (int i = 0; i < xs; i++)
        for (int j = 0; j < ys && x[i].count * y[j].count <= best.blocks; j++)
            try_cuts(problem, warpgroups, x[i], y[j], (int32_t)length[2], &best);
    memcpy(tile, best.tile, sizeof best.tile);
    return tile[0] > 0 && nh_box_volume(tile) < warpgroups * WARPGROUP_ROWS;
}
