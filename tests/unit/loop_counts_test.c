/* Counts that a search shares between pairs of tiles are those of the pairs alone, and what there is no room for is
 * refused. */
#include "tiling.h"

#include "random_problem.h"
#include "test.h"

#include <string.h>

enum { SHAPES = 4 };
static const int32_t shapes[SHAPES][3] = {{1, 1, 16}, {1, 4, 8}, {2, 3, 8}, {4, 4, 4}};

static bool same(struct nh_tiling_count a, struct nh_tiling_count b) {
    return a.work_tiles == b.work_tiles && a.visited == b.visited && a.partial == b.partial &&
           a.longest == b.longest;
}

/* Columns from the shape `first` on: two searches on the same axes may differ in them. */
static void check_loops(const char *text, const struct nh_problem *problem, bool inverse,
                        int first) {
    struct nh_loop_counts counts;
    struct nh_loop_extents extents = {.count = {0}};
    struct nh_loop_columns columns[SHAPES];
    for (int i = first; i < SHAPES; i++)
        CHECK(nh_loop_extents_add(&extents, shapes[i], &columns[i]), "%s: shape %d", text, i);
    nh_loop_counts_start(&counts, problem, inverse, true, &extents);
    for (int row = 0; row < SHAPES; row++)
        for (int i = first; i < SHAPES; i++) {
            struct nh_loop_rows rows;
            nh_loop_rows_of(&counts, shapes[row], shapes[row], &rows);
            struct nh_tiling_count alone =
                nh_tiling_count(problem, shapes[row], shapes[row], shapes[i], inverse, true);
            CHECK(same(nh_loop_count(&rows, columns[i]), alone), "%s: shapes %d and %d", text, row,
                  i);
        }
}

static void check_room(void) {
    struct nh_loop_extents extents = {.count = {0}};
    struct nh_loop_columns columns;
    const int32_t more[3] = {7, 1, 200};
    for (int32_t i = 1; i <= NH_MOST_EXTENTS; i++)
        CHECK(nh_loop_extents_add(&extents, (const int32_t[3]){1, 1, i}, &columns) &&
                  columns.place[2] == i - 1,
              "extent %d", i);
    CHECK(!nh_loop_extents_add(&extents, more, &columns) && extents.count[0] == 1,
          "one extent too many");
}

int main(void) {
    uint64_t state = 20240307;
    nhood_problem given;
    struct nh_problem problem;
    for (int i = 0; i < 100; i++) {
        char text[512];
        random_problem(&state, text, sizeof text);
        CHECK(!nhood_problem_parse(text, &given) && !nh_problem_canonical(&given, &problem), "%s",
              nhood_last_error());
        check_loops(text, &problem, i % 2, 0);
        check_loops(text, &problem, !(i % 2), 1);
    }
    check_room();
    return test_result();
}
