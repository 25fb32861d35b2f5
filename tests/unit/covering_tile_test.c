/* Covering tiles against all tiles of evenly cut groups. */
#include "tiling.h"
#include "test.h"

static int64_t rows_of(const int32_t tile[3]) {
    return (int64_t)tile[0] * tile[1] * tile[2];
}

/* The tile that cuts groups into so many parts, its first extent above 1 a multiple of `warpgroups`. */
static void cut_evenly(const struct nh_problem *problem, const int64_t cuts[3], int32_t warpgroups,
                       int32_t tile[3]) {
    bool stacked = false;
    for (int a = 0; a < NH_AXES; a++) {
        tile[a] = (int32_t)nh_ceil_div(nh_longest_group(&problem->axis[a]), cuts[a]);
        if (stacked || (tile[a] == 1 && a < 2)) continue;
        tile[a] = (int32_t)nh_ceil_div(tile[a], warpgroups) * warpgroups;
        stacked = true;
    }
}

/* The fewest blocks of all such tiles whose rows are `warpgroups` warpgroup tiles; 0: there is none. */
static int64_t fewest_blocks(const struct nh_problem *problem, int32_t warpgroups) {
    const int64_t most_cuts = 8;
    int64_t fewest = 0, cuts[3];
    for (cuts[0] = 1; cuts[0] <= most_cuts; cuts[0]++)
        for (cuts[1] = 1; cuts[1] <= most_cuts; cuts[1]++)
            for (cuts[2] = 1; cuts[2] <= nh_longest_group(&problem->axis[2]); cuts[2]++) {
                int32_t tile[3];
                bool even = true;
                for (int a = 0; a < 2; a++)
                    even = even && cuts[a] <= nh_longest_group(&problem->axis[a]);
                if (!even) continue;
                cut_evenly(problem, cuts, warpgroups, tile);
                int64_t blocks = cuts[0] * cuts[1] * cuts[2];
                if (rows_of(tile) <= warpgroups * 64 && rows_of(tile) > (warpgroups - 1) * 64 &&
                    (!fewest || blocks < fewest))
                    fewest = blocks;
            }
    return fewest;
}

static int64_t blocks_of(const struct nh_problem *problem, const int32_t tile[3]) {
    int64_t blocks = 1;
    for (int a = 0; a < NH_AXES; a++)
        blocks *= nh_ceil_div(nh_longest_group(&problem->axis[a]), tile[a]);
    return blocks;
}

static int found;

static void check(const struct nh_problem *problem, int32_t warpgroups) {
    int32_t tile[3];
    if (!nh_covering_tile(problem, warpgroups, tile)) return;
    int stack = tile[0] > 1 ? 0 : tile[1] > 1 ? 1 : 2;
    found++;
    CHECK(rows_of(tile) < warpgroups * 64 && rows_of(tile) > (warpgroups - 1) * 64 &&
              tile[stack] % warpgroups == 0,
          "%d x %d x %d are no %d warpgroup tiles", tile[0], tile[1], tile[2], warpgroups);
    CHECK(blocks_of(problem, tile) <= fewest_blocks(problem, warpgroups),
          "groups of %lld x %lld x %lld: %d x %d x %d make more than %lld blocks of %d slabs",
          (long long)nh_longest_group(&problem->axis[0]),
          (long long)nh_longest_group(&problem->axis[1]),
          (long long)nh_longest_group(&problem->axis[2]), tile[0], tile[1], tile[2],
          (long long)fewest_blocks(problem, warpgroups), warpgroups);
}

static struct nh_problem problem_of(uint64_t *state, int32_t rank, int64_t longest) {
    struct nh_problem problem = {.rank = rank};
    for (int a = 0; a < NH_AXES; a++) {
        struct nh_axis *axis = &problem.axis[a];
        axis->dilation = test_between(state, 1, 3);
        axis->length =
            a < NH_AXES - rank ? axis->dilation : test_between(state, 4, longest) * axis->dilation;
        axis->window = test_between(state, 1, axis->length / axis->dilation);
        axis->query = axis->key = (struct nh_box){0, axis->length};
    }
    return problem;
}

int main(void) {
    uint64_t state = 1;
    for (int i = 0; i < 300; i++)
        for (int32_t warpgroups = 2; warpgroups <= 3; warpgroups++) {
            struct nh_problem plane = problem_of(&state, 2, 40), space = problem_of(&state, 3, 20);
            check(&plane, warpgroups);
            check(&space, warpgroups);
        }
    CHECK(found > 300, "only %d tiles found", found);
    struct nh_problem wide = problem_of(&state, 2, 40);
    wide.axis[1].length = wide.axis[1].query.length = 41 * wide.axis[1].dilation;
    int32_t tile[3];
    CHECK(!nh_covering_tile(&wide, 2, tile), "a long axis");
    return test_result();
}
