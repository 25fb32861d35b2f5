/* Merged axes: on random problems every query sees the same tokens as before, and tensors lie where they did. */
#include "permuted_axes.h"
#include "test.h"

#include <string.h>

enum { PROBLEMS = 1500, MOST_LENGTH = 9, EXTRA_STRIDE = 1000 };

static struct nh_problem random_problem(uint64_t *state) {
    struct nh_problem problem = {.rank = (int32_t)test_between(state, 1, 3)};
    bool apart = test_between(state, 0, 9) == 0; /* axes with gaps between them */
    int64_t stride = 8;
    for (int a = 0; a < NH_AXES; a++)
        problem.axis[a] = nh_whole_axis(1, 1, 1, 1, 0);
    for (int a = NH_AXES - 1; a >= NH_AXES - problem.rank; a--) {
        struct nh_axis *axis = &problem.axis[a];
        *axis = nh_whole_axis(test_between(state, 1, MOST_LENGTH), 1, 1, 1, 0);
        bool whole = test_between(state, 0, 2) > 0;
        axis->window = whole ? axis->length : test_between(state, 1, axis->length);
        axis->stride = test_between(state, 1, axis->window);
        if (axis->length >= 2 * axis->window && test_between(state, 0, 3) == 0) axis->dilation = 2;
        axis->causal = test_between(state, 0, 5) == 0;
        for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
            if (nh_tensor_of_grid(tensor)) problem.strides[tensor].axis[a] = stride;
        stride *= axis->length + apart;
    }
    problem.strides[NHOOD_EXTRA_K].axis[NH_AXES - problem.rank] = EXTRA_STRIDE;
    return problem;
}

/* A token by its number, the last axis fastest: where it lies, and its coordinates. */
static int64_t place_of(const struct nh_problem *problem, int64_t token, int64_t at[NH_AXES]) {
    int64_t place = 0;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        at[a] = token % problem->axis[a].length;
        token /= problem->axis[a].length;
        place += at[a] * problem->strides[NHOOD_K].axis[a];
    }
    return place;
}

static bool sees(const struct nh_problem *problem, const int64_t query[NH_AXES],
                 const int64_t key[NH_AXES]) {
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        const struct nh_range range = nh_axis_window(axis, query[a]);
        int64_t position = key[a] / axis->dilation;
        if (key[a] % axis->dilation != query[a] % axis->dilation || position < range.begin ||
            position >= range.end)
            return false;
    }
    return true;
}

static void check(const struct nh_problem *given, const struct nh_problem *merged) {
    int64_t tokens = given->axis[0].length * given->axis[1].length * given->axis[2].length;
    int64_t was[2][NH_AXES], is[2][NH_AXES];
    CHECK(merged->strides[NHOOD_EXTRA_K].axis[NH_AXES - merged->rank] == EXTRA_STRIDE,
          "extra tokens lost their stride");
    for (int64_t query = 0; query < tokens; query++)
        for (int64_t key = 0; key < tokens; key += 1 + key % 3) {
            place_of(given, query, was[0]);
            place_of(merged, query, is[0]);
            CHECK(place_of(given, key, was[1]) == place_of(merged, key, is[1]),
                  "a token lies elsewhere");
            CHECK(sees(given, was[0], was[1]) == sees(merged, is[0], is[1]),
                  "%lldx%lldx%lld: query %lld, key %lld", (long long)given->axis[0].length,
                  (long long)given->axis[1].length, (long long)given->axis[2].length,
                  (long long)query, (long long)key);
        }
}

int main(void) {
    uint64_t state = 1;
    int count[NH_AXES + 1] = {0};
    for (int i = 0; i < PROBLEMS; i++) {
        struct nh_problem problem = random_problem(&state), merged;
        if (!nh_merged_axes(&problem, &merged)) continue;
        count[problem.rank - merged.rank]++;
        check(&problem, &merged);
        problem.has_bias = true;
        CHECK(!nh_merged_axes(&problem, &merged), "the table of a bias has the order of all axes");
    }
    CHECK(count[1] > PROBLEMS / 20 && count[2] > PROBLEMS / 20, "merged once %d times, twice %d",
          count[1], count[2]);
    return test_result();
}
