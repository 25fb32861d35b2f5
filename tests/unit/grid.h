/* Small grids of which tests enumerate every pair of tiles. */
#ifndef GRID_H
#define GRID_H

#include "problem.h"

/* A dilation group of the grid, with the tiles of its rows and columns, and the parts of the former. */
struct grid {
    const struct nh_problem *problem;
    bool inverse;
    int64_t length[NH_AXES];
    int32_t rows[NH_AXES], part[NH_AXES], columns[NH_AXES];
    /* the longest that was met */
    int64_t halo[NH_AXES];
};

static bool sees(const struct grid *grid, int a, int64_t row, int64_t column) {
    const struct nh_axis *axis = &grid->problem->axis[a];
    int64_t query = grid->inverse ? column : row, key = grid->inverse ? row : column;
    struct nh_range keys =
        nh_window_range(grid->length[a], axis->window, axis->stride, axis->causal, query);
    return keys.begin <= key && key < keys.end;
}

/* Calls for every point of the box [0, extent). */
#define FOR_BOX(at, extent)                                                                        \
    for (at[0] = 0; at[0] < (extent)[0]; at[0]++)                                                  \
        for (at[1] = 0; at[1] < (extent)[1]; at[1]++)                                              \
            for (at[2] = 0; at[2] < (extent)[2]; at[2]++)

/* Whether every row of the part at `row` sees every column of the tile at `column`. */
static bool sees_all(const struct grid *grid, const int64_t row[3], const int64_t column[3]) {
    int64_t r[3], c[3], rows[3], columns[3];
    for (int a = 0; a < NH_AXES; a++) {
        rows[a] = nh_min(grid->part[a], grid->length[a] - row[a]);
        columns[a] = grid->columns[a];
    }
    FOR_BOX(r, rows)
    FOR_BOX(c, columns)
    for (int a = 0; a < NH_AXES; a++)
        if (column[a] + c[a] >= grid->length[a] || !sees(grid, a, row[a] + r[a], column[a] + c[a]))
            return false;
    return true;
}

/* Columns [begin, end) that any of so many rows sees on an axis. */
static void find_halo(const struct grid *grid, int a, int64_t row, int64_t rows, int64_t *begin,
                      int64_t *end) {
    *begin = grid->length[a];
    *end = 0;
    for (int64_t r = row; r < nh_min(row + rows, grid->length[a]); r++)
        for (int64_t c = 0; c < grid->length[a]; c++)
            if (sees(grid, a, r, c)) {
                *begin = nh_min(*begin, c);
                *end = nh_max(*end, c + 1);
            }
}

/* Calls for the first row of each tile of rows of each group; tiles that only the longest groups have are in all. */
static void for_row_tiles(struct grid *grid,
                          void (*visit)(struct grid *, const int64_t row[3], void *), void *to) {
    const struct nh_axis *axis = grid->problem->axis;
    const int64_t groups[3] = {axis[0].dilation, axis[1].dilation, axis[2].dilation};
    int64_t group[3], tile[3], tiles[3];
    FOR_BOX(group, groups) {
        for (int a = 0; a < NH_AXES; a++) {
            grid->length[a] = (axis[a].length - group[a] + axis[a].dilation - 1) / axis[a].dilation;
            int64_t longest = (axis[a].length + axis[a].dilation - 1) / axis[a].dilation;
            tiles[a] = (longest + grid->rows[a] - 1) / grid->rows[a];
        }
        FOR_BOX(tile, tiles) {
            int64_t row[3];
            for (int a = 0; a < NH_AXES; a++)
                row[a] = tile[a] * grid->rows[a];
            visit(grid, row, to);
        }
    }
}

#endif
