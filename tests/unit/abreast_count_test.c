/* The tiles that walks of several lines abreast visit, against an enumeration of every tile of small problems. */
#include "abreast_count.h"
#include "grid.h"
#include "test.h"

#include <string.h>

/* The walk of a row tile: where it starts, and its boxes along each axis. */
struct walk {
    int stack, abreast;
    int64_t start[NH_AXES], boxes[NH_AXES];
    struct nh_abreast_count count;
};

/* Where box i of the tile is that has the n-th box of the lines from `line` on; false: behind the last line. */
static bool find_box(const struct grid *grid, const struct walk *walk, int64_t line, int64_t n,
                     int64_t column[3]) {
    int second = walk->stack == 2 ? 1 : 2, third = 3 - walk->stack - second;
    int64_t at[NH_AXES];
    at[walk->stack] = n;
    at[second] = line % walk->boxes[second];
    at[third] = line / walk->boxes[second];
    for (int a = 0; a < NH_AXES; a++)
        column[a] = walk->start[a] + at[a] * grid->columns[a];
    return at[third] < walk->boxes[third];
}

static bool sees_boxes(const struct grid *grid, const struct walk *walk, const int64_t row[3],
                       int64_t line, int64_t n) {
    for (int i = 0; i < walk->abreast; i++) {
        int64_t column[3];
        if (!find_box(grid, walk, line + i, n, column) || !sees_all(grid, row, column))
            return false;
    }
    return true;
}

/* A part multiplies what of each line some row of it sees; beyond its group, one tile. */
static void count_part(const struct grid *grid, const struct walk *walk, const int64_t first[3],
                       struct nh_abreast_count *count) {
    int s = walk->stack;
    int64_t row[3], begin, end, columns = grid->columns[s], lines = 1;
    for (int a = 0; a < NH_AXES; a++) {
        row[a] = nh_min(first[a], grid->length[a] - 1);
        lines *= a == s ? 1 : walk->boxes[a];
    }
    find_halo(grid, s, row[s], grid->part[s], &begin, &end);
    int64_t from = (begin - walk->start[s]) / columns,
            to = (end - walk->start[s] + columns - 1) / columns;
    if (first[s] >= grid->length[s]) to = from + 1;
    for (int64_t line = 0; line < lines; line += walk->abreast)
        for (int64_t n = from; n < to; n++) {
            count->multiplied++;
            count->masked += !sees_boxes(grid, walk, row, line, n);
        }
}

static void count_row_tile(struct grid *grid, const int64_t row[3], void *to) {
    struct walk *walk = to;
    struct nh_abreast_count *count = &walk->count;
    int64_t lines = 1, first[3];
    for (int a = 0; a < NH_AXES; a++) {
        int64_t end;
        find_halo(grid, a, nh_min(row[a], grid->length[a] - 1), grid->rows[a], &walk->start[a],
                  &end);
        walk->boxes[a] = (end - walk->start[a] + grid->columns[a] - 1) / grid->columns[a];
        lines *= a == walk->stack ? 1 : walk->boxes[a];
    }
    count->items++;
    count->fetched +=
        (double)(walk->boxes[walk->stack] * ((lines + walk->abreast - 1) / walk->abreast));
    memcpy(first, row, sizeof first);
    for (int s = walk->stack; first[s] < row[s] + grid->rows[s]; first[s] += grid->part[s])
        count_part(grid, walk, first, count);
}

static void check(const struct nh_problem *problem, const struct grid *shape, int stack,
                  int abreast) {
    struct grid grid = *shape;
    struct walk walk = {.stack = stack, .abreast = abreast};
    struct nh_abreast_count count =
        nh_abreast_count(problem, grid.rows, grid.part[stack], stack, grid.columns, abreast);
    for_row_tiles(&grid, count_row_tile, &walk);
    const struct nh_abreast_count *expected = &walk.count;
    CHECK(memcmp(&count, expected, sizeof count) == 0,
          "L %lld,%lld,%lld, %d lines of axis %d: %g items %g fetched %g tiles %g masked, "
          "enumerated %g %g %g %g",
          (long long)problem->axis[0].length, (long long)problem->axis[1].length,
          (long long)problem->axis[2].length, abreast, stack, count.items, count.fetched,
          count.multiplied, count.masked, expected->items, expected->fetched, expected->multiplied,
          expected->masked);
}

static void check_random(uint64_t *state) {
    struct nh_problem problem = {.rank = 3};
    struct grid grid = {.problem = &problem};
    int stack = (int)test_between(state, 0, 2), abreast = 1 << test_between(state, 0, 3);
    for (int a = 0; a < NH_AXES; a++) {
        struct nh_axis *axis = &problem.axis[a];
        axis->length = test_between(state, 1, 14);
        axis->dilation = test_between(state, 1, nh_min(3, axis->length));
        axis->window = test_between(state, 1, nh_max(1, axis->length / axis->dilation));
        axis->stride = test_between(state, 1, axis->window);
        axis->causal = test_between(state, 0, 3) == 0;
        axis->query = axis->key = (struct nh_box){0, axis->length};
        grid.part[a] = (int32_t)test_between(state, 1, 4);
        grid.rows[a] = grid.part[a] * (a == stack ? (int32_t)test_between(state, 1, 3) : 1);
        grid.columns[a] = (int32_t)test_between(state, 1, 4);
    }
    check(&problem, &grid, stack, abreast);
}

int main(void) {
    uint64_t state = 1;
    for (int i = 0; i < 1000; i++)
        check_random(&state);
    return test_result();
}
