/* The axis that lines run along: chosen as expected, and every axis moved with its strides in all tensors of the grid. */
#include "permuted_axes.h"
#include "test.h"

static struct nh_problem problem_of(int32_t rank, const int64_t length[3],
                                    const int64_t window[3]) {
    struct nh_problem problem = {.rank = rank};
    for (int a = 0; a < NH_AXES; a++) {
        problem.axis[a] = nh_whole_axis(length[a], window[a], 1, 1, a == 1);
        for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
            problem.strides[tensor].axis[a] = 100 * tensor + a;
    }
    return problem;
}

/* Axis i of the permuted problem is axis of[i] of the given one. */
static void check(const struct nh_problem *given, const int of[3], const char *text) {
    struct nh_problem permuted;
    const struct nh_problem *got = nh_permuted_axes(given, &permuted);
    CHECK((got == given) == (of[2] == 2), "%s: permuted without need, or not at all", text);
    for (int i = 0; i < NH_AXES; i++) {
        const struct nh_axis *axis = &got->axis[i], *expected = &given->axis[of[i]];
        CHECK(axis->length == expected->length && axis->window == expected->window &&
                  axis->causal == expected->causal,
              "%s: axis %d has length %lld, not %lld", text, i, (long long)axis->length,
              (long long)expected->length);
        for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
            bool extra = tensor == NHOOD_EXTRA_K || tensor == NHOOD_EXTRA_V ||
                         tensor == NHOOD_D_EXTRA_K || tensor == NHOOD_D_EXTRA_V;
            bool bias = tensor == NHOOD_BIAS || tensor == NHOOD_D_BIAS;
            int from = extra || bias ? i : of[i];
            CHECK(got->strides[tensor].axis[i] == 100 * tensor + from,
                  "%s: tensor %d, axis %d has the stride of another", text, (int)tensor, i);
        }
    }
}

int main(void) {
    static const struct {
        const char *text;
        int32_t rank;
        int64_t length[3], window[3];
        int of[3];
    } cases[] = {
        {"a short axis filled by its window", 3, {16, 14, 14}, {13, 13, 13}, {1, 2, 0}},
        {"the axis in the middle", 3, {14, 16, 14}, {7, 16, 7}, {0, 2, 1}},
        {"an axis shorter than a line", 3, {7, 13, 13}, {7, 5, 5}, {0, 1, 2}},
        {"all axes alike", 3, {24, 24, 24}, {7, 7, 7}, {0, 1, 2}},
        {"the last is the best", 3, {14, 14, 16}, {13, 13, 13}, {0, 1, 2}},
        {"a wider window in a longer axis", 3, {30, 48, 80}, {18, 24, 24}, {0, 1, 2}},
        {"two axes", 2, {1, 16, 14}, {1, 13, 13}, {0, 1, 2}},
        {"one axis", 1, {1, 1, 14}, {1, 1, 13}, {0, 1, 2}},
    };
    static const int as_given[] = {0, 1, 2};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct nh_problem problem = problem_of(cases[i].rank, cases[i].length, cases[i].window);
        check(&problem, cases[i].of, cases[i].text);
        problem.has_bias = true;
        check(&problem, as_given, "with a bias");
    }
    struct nh_problem dilated = problem_of(3, (int64_t[]){16, 14, 14}, (int64_t[]){5, 5, 5});
    dilated.axis[0].dilation = 4;
    check(&dilated, as_given, "dilation groups of four");
    return test_result();
}
