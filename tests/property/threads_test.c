/* Plans do not depend on the number of threads: random problems, small and large, of every operation and kind of part, for contexts
 * with 1 to 64 threads, which are none of the library's own. */
#include "nhood.h"
#include "random_problem.h"
#include "test.h"

#include <stdbool.h>

enum { CONTEXTS = 5, PROBLEMS = 20000 };
static const int32_t threads[CONTEXTS] = {1, 2, 3, 8, 64};

static void alone(void *user, int64_t count, nhood_parallel_body body, void *arg) {
    (void)user;
    for (int64_t i = 0; i < count; i++)
        body(arg, i, 0);
}

struct choice {
    char text[512]; /* solver and config */
};

static void note(void *user, const nhood_candidate *row) {
    struct choice *choice = user;
    if (row->chosen) snprintf(choice->text, sizeof choice->text, "%s %s", row->solver, row->config);
}

/* What random_problem does not draw: operations, f64, head dims of few channels, boxes, circles and biases, all of them small. */
static void small_problem(uint64_t *state, char *text, size_t capacity) {
    static const char *const ops[] = {"fwd", "bwd", "pn", "nn", "in"};
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    const char *op = ops[test_between(state, 0, 4)];
    const int length = (int)test_between(state, 1, 40),
              window = (int)test_between(state, 1, length);
    const int other = (int)test_between(state, 1, 12), narrow = (int)test_between(state, 1, other);
    const int key = (int)test_between(state, 1, length),
              query = (int)test_between(state, 1, length);
    const bool plane = test_between(state, 0, 1), softmax = op[0] == 'f' || op[0] == 'b';
    int used =
        snprintf(text, capacity, "%s:%s:b%dh%dd%dv%d:", op, dtypes[test_between(state, 0, 3)],
                 (int)test_between(state, 1, 3), (int)test_between(state, 1, 4),
                 (int)test_between(state, 1, 200), (int)test_between(state, 1, 200));
    char *rest = text + used;
    const size_t room = capacity - (size_t)used;
    if (plane)
        used += snprintf(rest, room, "%dx%d:w%dx%d:q%d+%dx0+%d:k%d+%dx0+%d", length, other, window,
                         narrow, length - query, query, other, length - key, key, other);
    else
        used += snprintf(rest, room, "%d:w%d:q%d+%d:k%d+%d", length, window, length - query, query,
                         length - key, key);
    if (softmax && test_between(state, 0, 3) == 0)
        snprintf(text + used, capacity - (size_t)used, ":x%d", (int)test_between(state, 1, 300));
}

int main(void) {
    nhood_context *context[CONTEXTS];
    uint64_t state = 88172645463325252u;
    int reference = 0;
    for (int c = 0; c < CONTEXTS; c++) {
        const nhood_context_options options = {.struct_size = sizeof options,
                                               .threads = threads[c],
                                               .cache = "",
                                               .parallel_for = alone};
        CHECK(!nhood_context_create(&options, &context[c]), "%s", nhood_last_error());
    }
    for (int i = 0; i < PROBLEMS; i++) {
        char text[256];
        nhood_problem problem;
        struct choice choice[CONTEXTS] = {{{0}}};
        (i % 4 ? small_problem : random_problem)(&state, text, sizeof text);
        CHECK(!nhood_problem_parse(text, &problem), "%s: %s", text, nhood_last_error());
        for (int c = 0; c < CONTEXTS; c++) {
            CHECK(!nhood_plan_explain(context[c], 0, &problem, NULL, note, &choice[c]), "%s: %s",
                  text, nhood_last_error());
            CHECK(!strcmp(choice[c].text, choice[0].text), "%s: %s with 1 thread, %s with %d", text,
                  choice[0].text, choice[c].text, (int)threads[c]);
        }
        reference += !strncmp(choice[0].text, "reference", 9);
    }
    printf("%d of %d by the reference\n", reference, PROBLEMS);
    for (int c = 0; c < CONTEXTS; c++)
        nhood_context_destroy(context[c]);
    return test_result();
}
