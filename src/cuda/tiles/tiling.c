/* The tiles of a whole problem, and the order of its query tiles. */
#include "tiling.h"

#include "tile_count.h"

/* The orders in which tiles can be numbered, fastest axis first. The first `rank` ones differ in problems of fewer than
 * three axes, where leading axes have one tile. */
static const int orders[][3] = {{2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {1, 0, 2}, {0, 1, 2}, {0, 2, 1}};

static int32_t orders_of(int32_t rank) {
    return rank == 3 ? 6 : rank;
}

/* inverse, beyond: as for nh_tile_counts. */
static struct nh_tiling_count count_tiles(const struct nh_problem *problem, const int32_t own[3],
                                          const int32_t part[3], const int32_t loop[3],
                                          bool inverse, bool beyond) {
    double work_tiles = 1, visited = 1, full = 1, longest = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        struct nh_tile_counts count;
        nh_tile_counts(axis, own[a], part[a], inverse, beyond, &loop[a], 1, &count);
        work_tiles *= (double)count.tiles;
        longest *= count.longest[0];
        visited *= count.visits[0];
        full *= count.dense[0];
    }
    return (struct nh_tiling_count){work_tiles, visited, visited - full, longest};
}

struct nh_tiling_count nh_tiling_count(const struct nh_problem *problem, const int32_t q[3],
                                       const int32_t k[3]) {
    return count_tiles(problem, q, q, k, false, true);
}

struct nh_tiling_count nh_tiling_part_count(const struct nh_problem *problem, const int32_t q[3],
                                            const int32_t part[3], const int32_t k[3]) {
    return count_tiles(problem, q, part, k, false, true);
}

struct nh_tiling_count nh_tiling_inverse_count(const struct nh_problem *problem, const int32_t k[3],
                                               const int32_t q[3]) {
    return count_tiles(problem, k, k, q, true, true);
}

struct nh_tiling_count nh_tiling_inverse_part_count(const struct nh_problem *problem,
                                                    const int32_t k[3], const int32_t part[3],
                                                    const int32_t q[3]) {
    return count_tiles(problem, k, part, q, true, true);
}

struct nh_tiling_count nh_tiling_grid_count(const struct nh_problem *problem, const int32_t row[3],
                                            const int32_t column[3], bool inverse) {
    return count_tiles(problem, row, row, column, inverse, false);
}

int32_t nh_tiling_order(const struct nh_problem *problem, const int32_t own[3], bool inverse,
                        int32_t blocks) {
    int32_t best = 0;
    double least = 0;
    for (int32_t o = 0; o < orders_of(problem->rank); o++) {
        int64_t left = blocks;
        double columns = 1;
        for (int i = 0; i < NH_AXES; i++) {
            const struct nh_axis *axis = &problem->axis[orders[o][i]];
            int64_t rows = nh_longest_rows(axis, inverse), tile = own[orders[o][i]];
            int64_t tiles = nh_min(nh_ceil_div(rows, tile), left);
            left = nh_max(1, left / tiles);
            columns *=
                (double)nh_min(nh_longest_rows(axis, !inverse), axis->window + tiles * tile - 1);
        }
        if (o > 0 && columns >= least * 0.999) continue;
        best = o;
        least = columns;
    }
    return best;
}

/* The share of an axis that the halo of one stride group covers. */
static double cover(const struct nh_axis *axis) {
    int64_t length = nh_longest_group(axis), halo = axis->window + axis->stride - 1;
    return (double)nh_min(halo, length) / (double)length;
}

int32_t nh_tiling_queue_order(const struct nh_problem *problem) {
    double share[NH_AXES];
    int32_t best = 0;
    for (int a = 0; a < NH_AXES; a++)
        share[a] = cover(&problem->axis[a]);
    for (int32_t o = 1; o < orders_of(problem->rank); o++) {
        int i = 0;
        while (i < NH_AXES - 1 && share[orders[o][i]] == share[orders[best][i]])
            i++;
        if (share[orders[o][i]] > share[orders[best][i]]) best = o;
    }
    return best;
}

bool nh_tiling_laps_fit(const struct nh_problem *problem, const int32_t own[3],
                        const int32_t loop[3], bool inverse) {
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (!axis->periodic) continue;
        int64_t rows = nh_min(own[a], nh_longest_rows(axis, inverse)), lap = nh_longest_group(axis),
                window = axis->window, stride = axis->stride;
        int64_t halo = inverse ? nh_ceil_div(window + rows - 1, stride) * stride
                               : window + nh_ceil_div(rows - 1, stride) * stride;
        if (halo > lap + 1 && lap % loop[a]) return false;
    }
    return true;
}

nhood_status nh_tiling_set(const struct nh_problem *problem, const int32_t own[3], int32_t heads,
                           bool inverse, int32_t order, struct nh_cuda_tiling *tiling) {
    int64_t work_tiles = problem->batch;
    bool fits = nh_multiply(work_tiles, problem->heads / heads, &work_tiles);
    *tiling = (struct nh_cuda_tiling){.work_tiles = 0};
    for (int a = 0, next = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        tiling->tiles[a] = (int)nh_ceil_div(nh_longest_rows(axis, inverse), own[a]);
        fits = fits && nh_multiply(work_tiles, tiling->tiles[a], &work_tiles) &&
               nh_multiply(work_tiles, axis->dilation, &work_tiles);
        /* The kernel knows only the problem's own axes. */
        int ordered = orders[order][a];
        if (ordered >= NH_AXES - problem->rank) tiling->order[next++] = ordered;
    }
    if (!fits || work_tiles > INT32_MAX)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^31 query tiles");
    tiling->work_tiles = (int)work_tiles;
    return NHOOD_OK;
}
