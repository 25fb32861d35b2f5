/* The tiles that loops visit whose tiles are several boxes, against an enumeration of every tile of small problems. */
#include "tiling.h"
#include "grid.h"
#include "test.h"

#include <string.h>

/* The loop of a row tile: where its halo starts, and its boxes along each axis. */
struct loop {
    int stack, tile_boxes;
    int64_t start[NH_AXES], boxes[NH_AXES];
    struct nh_box_tile_count count;
};

/* Where box i of the tile is that has the n-th box of the lines from `line` on; false: behind the last line. */
static bool find_box(const struct grid *grid, const struct loop *loop, int64_t line, int64_t n,
                     int64_t column[3]) {
    int second = loop->stack == 2 ? 1 : 2, third = 3 - loop->stack - second;
    int64_t at[NH_AXES];
    at[loop->stack] = n;
    at[second] = line % loop->boxes[second];
    at[third] = line / loop->boxes[second];
    for (int a = 0; a < NH_AXES; a++)
        column[a] = loop->start[a] + at[a] * grid->columns[a];
    return at[third] < loop->boxes[third];
}

static bool sees_boxes(const struct grid *grid, const struct loop *loop, const int64_t row[3],
                       int64_t line, int64_t n) {
    for (int i = 0; i < loop->tile_boxes; i++) {
        int64_t column[3];
        if (!find_box(grid, loop, line + i, n, column) || !sees_all(grid, row, column))
            return false;
    }
    return true;
}

/* A part multiplies what of each line some row of it sees; beyond its group, one tile. */
static void count_part(const struct grid *grid, const struct loop *loop, const int64_t first[3],
                       struct nh_box_tile_count *count) {
    int s = loop->stack;
    int64_t row[3], begin, end, columns = grid->columns[s], lines = 1;
    for (int a = 0; a < NH_AXES; a++) {
        row[a] = nh_min(first[a], grid->length[a] - 1);
        lines *= a == s ? 1 : loop->boxes[a];
    }
    find_halo(grid, s, row[s], grid->part[s], &begin, &end);
    int64_t from = (begin - loop->start[s]) / columns,
            to = (end - loop->start[s] + columns - 1) / columns;
    if (first[s] >= grid->length[s]) to = from + 1;
    for (int64_t line = 0; line < lines; line += loop->tile_boxes)
        for (int64_t n = from; n < to; n++) {
            count->multiplied++;
            count->masked += !sees_boxes(grid, loop, row, line, n);
        }
}

static void count_row_tile(struct grid *grid, const int64_t row[3], void *to) {
    struct loop *loop = to;
    struct nh_box_tile_count *count = &loop->count;
    int64_t lines = 1, first[3];
    for (int a = 0; a < NH_AXES; a++) {
        int64_t end;
        find_halo(grid, a, nh_min(row[a], grid->length[a] - 1), grid->rows[a], &loop->start[a],
                  &end);
        loop->boxes[a] = (end - loop->start[a] + grid->columns[a] - 1) / grid->columns[a];
        lines *= a == loop->stack ? 1 : loop->boxes[a];
    }
    count->work_tiles++;
    count->fetched +=
        (double)(loop->boxes[loop->stack] * ((lines + loop->tile_boxes - 1) / loop->tile_boxes));
    memcpy(first, row, sizeof first);
    for (int s = loop->stack; first[s] < row[s] + grid->rows[s]; first[s] += grid->part[s])
        count_part(grid, loop, first, count);
}

static void check(const struct nh_problem *problem, const struct grid *shape, int stack,
                  int tile_boxes) {
    struct grid grid = *shape;
    struct loop loop = {.stack = stack, .tile_boxes = tile_boxes};
    struct nh_box_tile_count count =
        nh_box_tile_count(problem, grid.rows, grid.part[stack], stack, grid.columns, tile_boxes);
    for_row_tiles(&grid, count_row_tile, &loop);
    const struct nh_box_tile_count *expected = &loop.count;
    CHECK(memcmp(&count, expected, sizeof count) == 0,
          "L %lld,%lld,%lld, %d lines of axis %d: %g work tiles %g fetched %g tiles %g masked, "
          "enumerated %g %g %g %g",
          (long long)problem->axis[0].length, (long long)problem->axis[1].length,
          (long long)problem->axis[2].length, tile_boxes, stack, count.work_tiles, count.fetched,
          count.multiplied, count.masked, expected->work_tiles, expected->fetched,
          expected->multiplied, expected->masked);
}

static void check_random(uint64_t *state) {
    struct nh_problem problem = {.rank = 3};
    struct grid grid = {.problem = &problem};
    int stack = (int)test_between(state, 0, 2), tile_boxes = 1 << test_between(state, 0, 3);
    for (int a = 0; a < NH_AXES; a++) {
        struct nh_axis *axis = &problem.axis[a];
        axis->length = test_between(state, 1, 14);
        axis->dilation = test_between(state, 1, nh_min(3, axis->length));
        axis->window = test_between(state, 1, nh_max(1, axis->length / axis->dilation));
        axis->stride = test_between(state, 1, axis->window);
        axis->causal = test_between(state, 0, 3) == 0;
        axis->query = axis->key = (struct nh_box){0, axis->length};
        grid.part[a] = (int32_t)test_between(state, 1, 4);
        grid.rows[a] = grid.part[a] * (a == stack ? (int32_t)test_between(state, 2, 3) : 1);
        grid.columns[a] = (int32_t)test_between(state, 1, 4);
    }
    check(&problem, &grid, stack, tile_boxes);
}

int main(void) {
    uint64_t state = 1;
    for (int i = 0; i < 1000; i++)
        check_random(&state);
    return test_result();
}
