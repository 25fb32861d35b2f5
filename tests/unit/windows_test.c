/* Windows that are not by formula: generators and inverses against their definitions, every refusal by its text, plans that keep
 * their own tables, and tables that say what a formula says. */
#include "case.h"
#include "windows_attend.h"

#include <math.h>
#include <stdbool.h>
#include <time.h>

enum { MOST = 40 };

static void check_generator(const nhood_windows *w, int length) {
    nhood_range range[MOST], inverse[MOST];
    const int keys = w->keys ? (int)w->keys : length;
    int most = 1, wrong = 0;
    nhood_status status = nhood_windows_ranges(w, length, range);
    if (!status) status = nhood_windows_inverse(range, length, keys, inverse);
    CHECK(!status, "%s", nhood_last_error());
    for (int i = 0; !status && i < length; i++) {
        if (range[i].count > most) most = range[i].count;
        for (int j = 0; j < keys; j++) {
            const bool seen = windows_attend(w, length, keys, i, j);
            wrong += seen != (j >= range[i].first && j < range[i].first + range[i].count);
            wrong += seen != (i >= inverse[j].first && i < inverse[j].first + inverse[j].count);
        }
    }
    nhood_problem problem;
    int64_t slots = 0;
    nhood_problem_init(&problem, NHOOD_OP_PN, NHOOD_DTYPE_F32, 1);
    problem.axis[0].length = length;
    problem.windows[0] = *w;
    CHECK(!nhood_problem_elements(&problem, NHOOD_A, &slots), "%s", nhood_last_error());
    CHECK(!wrong && slots == (int64_t)most * length,
          "%d wrong, %lld slots, most keys %d: kind %d, length %d, keys %d, window %lld, shift "
          "%lld, padding %lld",
          wrong, (long long)slots, most, w->kind, length, keys, (long long)w->window,
          (long long)w->shift, (long long)w->padding);
}

static void generators(void) {
    for (int length = 1; length <= 12; length++)
        for (int window = 1; window <= 14; window++)
            for (int padding = 0; padding <= length; padding += 1 + length / 4) {
                nhood_windows w = {.kind = NHOOD_WINDOWS_CUT, .window = window, .padding = padding};
                check_generator(&w, length);
                w.kind = NHOOD_WINDOWS_BLOCKS;
                for (w.shift = 0; w.shift < window; w.shift++)
                    check_generator(&w, length);
            }
    for (int length = 1; length <= 20; length++)
        for (int keys = 1; keys <= MOST; keys += 1 + keys / 5)
            for (int window = 1; window <= keys; window += 1 + keys / 9)
                for (int padding = 0; padding <= keys; padding += 1 + keys / 3)
                    check_generator(&(nhood_windows){.kind = NHOOD_WINDOWS_RESAMPLED,
                                                     .keys = keys,
                                                     .window = window,
                                                     .padding = padding},
                                    length);
}

/* The longest axes: no overflow, and an answer at once. */
static void long_axes(void) {
    const int64_t longest = INT32_MAX;
    const nhood_windows windows[] = {
        {.kind = NHOOD_WINDOWS_RESAMPLED, .keys = longest, .window = longest},
        {.kind = NHOOD_WINDOWS_RESAMPLED, .keys = longest, .window = 5, .padding = 7},
        {.kind = NHOOD_WINDOWS_CUT, .window = longest},
        {.kind = NHOOD_WINDOWS_BLOCKS, .window = longest, .shift = longest - 1},
    };
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        nhood_problem problem;
        char text[256];
        double flops = 0;
        nhood_problem_init(&problem, NHOOD_OP_FWD, NHOOD_DTYPE_F32, 1);
        problem.axis[0].length = longest;
        problem.windows[0] = windows[i];
        const double start_s = (double)clock() / CLOCKS_PER_SEC;
        CHECK(!nhood_problem_cost(&problem, &flops, NULL) && flops > 0 &&
                  !nhood_problem_format(&problem, text, sizeof text, NULL),
              "%s", nhood_last_error());
        const double seconds = (double)clock() / CLOCKS_PER_SEC - start_s;
        CHECK(seconds < 1, "%s took %g s", text, seconds); /* a look at every query takes more */
    }
}

#define REFUSED(part, change)                                                                      \
    do {                                                                                           \
        nhood_problem p;                                                                           \
        nhood_windows *w = &p.windows[1];                                                          \
        nhood_problem_init(&p, NHOOD_OP_FWD, NHOOD_DTYPE_F32, 2);                                  \
        p.axis[1].length = 3;                                                                      \
        *w = (nhood_windows){.kind = NHOOD_WINDOWS_TABLE, .keys = 5, .range = legal};              \
        change;                                                                                    \
        CHECK(nhood_problem_cost(&p, NULL, NULL) == NHOOD_ERR_ARGUMENT &&                          \
                  strstr(nhood_last_error(), part),                                                \
              "got '%s'", nhood_last_error());                                                     \
    } while (0)

static void refusals(void) {
    static const nhood_range legal[] = {{0, 2}, {1, 3}, {1, 4}};
    static const nhood_range back[] = {{0, 2}, {2, 1}, {1, 4}};
    static const nhood_range shrinks[] = {{0, 4}, {1, 2}, {1, 4}};
    static const nhood_range beyond[] = {{0, 2}, {1, 3}, {2, 4}};
    static const nhood_range negative[] = {{0, 2}, {1, 3}, {4, -1}};
    static const nhood_range huge[] = {{0, 2}, {1, 3}, {INT32_MAX, INT32_MAX}};
    REFUSED("windows[1].kind = 5 is not in [0, 4]", w->kind = 5);
    REFUSED("windows[1].kind = 0 (FORMULA), but other fields are not 0", w->kind = 0);
    REFUSED("windows[1].reserved = 1 is not 0", w->reserved = 1);
    REFUSED("windows[1].keys = 0 is not in [1, 2147483647]", w->keys = 0);
    REFUSED("windows[1].keys = 2147483648", w->keys = INT64_C(1) << 31);
    REFUSED("windows[1].window = 2 is not 0", w->window = 2);
    REFUSED("windows[1].shift = 1 is not 0", w->shift = 1);
    REFUSED("windows[1].padding = 6 is not in [0, 5]", w->padding = 6);
    REFUSED("windows[1].range is NULL", w->range = NULL);
    REFUSED("windows[1].range[2] = {first 1, count 4} goes back behind {first 2, count 1}",
            w->range = back);
    REFUSED("windows[1].range[1] = {first 1, count 2} goes back behind {first 0, count 4}",
            w->range = shrinks);
    REFUSED("windows[1].range[2] = {first 2, count 4} is not a range of 5 keys", w->range = beyond);
    REFUSED("windows[1].range[2] = {first 4, count -1} is not a range", w->range = negative);
    REFUSED("windows[1].range[2] = {first 2147483647, count 2147483647}", w->range = huge);
    REFUSED("the axis' length 2147483648 is not in [1, 2^31)", p.axis[1].length = INT64_C(1) << 31);
    REFUSED("axis[1] has window 3, stride 1, dilation 1, causal 0, periodic 0, but its windows are "
            "those of windows[1]",
            p.axis[1].window = 3);
    REFUSED("but its windows", p.axis[1].causal = 1);
    REFUSED("but its windows", p.axis[1].periodic = 1);
    REFUSED("windows[1].kind = 1: a relative bias needs", p.has_bias = 1);
    REFUSED("region[1].query_length = 4 is not in [1, 3]", p.region[1].query_length = 4);
    REFUSED("region[1].key_length = 6 is not in [1, 5]", p.region[1].key_length = 6);
    REFUSED("windows[1].window = 6 is not in [1, 5]",
            *w = ((nhood_windows){.kind = NHOOD_WINDOWS_RESAMPLED, .keys = 5, .window = 6}));
    REFUSED("windows[1].range is not NULL: only a TABLE has one",
            (w->kind = NHOOD_WINDOWS_RESAMPLED, w->window = 2));
    REFUSED("windows[1].keys = 4 is not 3",
            *w = ((nhood_windows){.kind = NHOOD_WINDOWS_CUT, .keys = 4, .window = 2}));
    REFUSED("windows[1].shift = 2 is not in [0, 1]",
            *w = ((nhood_windows){.kind = NHOOD_WINDOWS_BLOCKS, .window = 2, .shift = 2}));
    nhood_range out[3];
    nhood_windows cut = {.kind = NHOOD_WINDOWS_CUT, .window = 2};
    CHECK(nhood_windows_ranges(NULL, 3, out) == NHOOD_ERR_ARGUMENT, "no windows");
    CHECK(nhood_windows_ranges(&cut, 3, NULL) == NHOOD_ERR_ARGUMENT, "nowhere to write");
    cut.kind = NHOOD_WINDOWS_FORMULA;
    cut.window = 0;
    CHECK(nhood_windows_ranges(&cut, 3, out) == NHOOD_ERR_ARGUMENT, "a formula");
    CHECK(nhood_windows_inverse(back, 3, 5, out) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "range[2]"),
          "%s", nhood_last_error());
    CHECK(nhood_windows_inverse(legal, 0, 5, out) == NHOOD_ERR_ARGUMENT, "no queries");
    CHECK(nhood_windows_inverse(legal, 3, 0, out) == NHOOD_ERR_ARGUMENT, "no keys");
}

/* The ranges of a formula without dilation as tables. */
static void like_formula(nhood_context *context, const char *text, const char *solver) {
    struct test_case formula, table;
    nhood_range range[3][64];
    double worst = 0;
    case_create(&formula, text, 3);
    case_create(&table, text, 3);
    for (int a = 0; a < formula.problem.rank; a++) {
        const nhood_axis *axis = &formula.problem.axis[a];
        for (int64_t i = 0; i < axis->length; i++) {
            int64_t first, count;
            nhood_window(axis, i, &first, &count);
            range[a][i] = (nhood_range){(int32_t)first, (int32_t)count};
        }
        table.problem.windows[a] =
            (nhood_windows){.kind = NHOOD_WINDOWS_TABLE, .keys = axis->length, .range = range[a]};
        table.problem.axis[a] = (nhood_axis){axis->length, 1, 1, 1, 0, 0};
    }
    CHECK(!case_run(context, &formula, solver) && !case_run(context, &table, solver), "%s: %s",
          text, nhood_last_error());
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        worst = fmax(worst, case_difference(&formula, &table, tensor));
    CHECK(worst < 1e-5, "%s with %s: off by %g", text, solver, worst);
    case_destroy(&formula);
    case_destroy(&table);
}

/* A plan, and one of a group, computes with the tables that it was made with, whatever the caller writes there later. */
static void tables_are_kept(nhood_context *context) {
    struct test_case c[2];
    nhood_plan *plan = NULL, *group = NULL;
    for (int i = 0; i < 2; i++) {
        nhood_range range[] = {{0, 3}, {0, 3}, {0, 3}, {2, 3}, {2, 3}};
        case_create(&c[i], "fwd:f64:b1h1d3:5:wr5w3", 4);
        c[i].problem.windows[0] =
            (nhood_windows){.kind = NHOOD_WINDOWS_TABLE, .keys = 5, .range = range};
        nhood_plan_options options = {.struct_size = sizeof options, .solver = "reference"};
        CHECK(!nhood_plan_create(context, 0, &c[i].problem, &options, &plan) &&
                  !nhood_plan_create_group(context, 0, &c[i].problem, 1, &options, &group),
              "%s", nhood_last_error());
        if (i) memset(range, 0, sizeof range);
        c[i].io.workspace_bytes = nhood_plan_workspace_bytes(plan);
        c[i].io.workspace = test_allocate(c[i].io.workspace_bytes);
        CHECK(!nhood_plan_execute(plan, &c[i].io), "%s", nhood_last_error());
        struct test_case alone = c[i];
        alone.io.data[NHOOD_O] = calloc((size_t)c[i].elements[NHOOD_O], sizeof(double));
        const nhood_group_io io = {.struct_size = sizeof io,
                                   .count = 1,
                                   .member = &alone.io,
                                   .workspace = c[i].io.workspace,
                                   .workspace_bytes = nhood_plan_workspace_bytes(group)};
        CHECK(io.workspace_bytes <= c[i].io.workspace_bytes &&
                  !nhood_plan_execute_group(group, &io),
              "%s", nhood_last_error());
        CHECK(case_difference(&alone, &c[i], NHOOD_O) == 0, "the group's member differs");
        free(alone.io.data[NHOOD_O]);
        test_free(c[i].io.workspace);
        nhood_plan_release(plan);
        nhood_plan_release(group);
    }
    CHECK(case_difference(&c[0], &c[1], NHOOD_O) == 0, "a plan reads the caller's table later");
    case_destroy(&c[0]);
    case_destroy(&c[1]);
}

/* Windows that are what a formula says are by formula, in texts, too, but with a bias are refused as windows. */
static void formulas_are_known(void) {
    static const char *const text[][2] = {
        {"fwd:f32:b1h1d8:12x9:wr12w3xz30", "fwd:f32:b1h1d8:12x9:w3x9"},
        {"bwd:f32:b1h1d8:12x9:wr12w4xb9+0:q2+5x0+9:k0+12x3+4",
         "bwd:f32:b1h1d8:12x9:w4x9:q2+5x0+9:k0+12x3+4"},
        {"fwd:f32:b1h1d8:12:wr12w3v11", NULL},
        {"fwd:f32:b1h1d8:12:wz3", NULL},
        {"fwd:f32:b1h1d8:12:wr13w3", NULL},
        {"fwd:f32:b1h1d8:12:wb4+0", NULL}};
    nhood_problem problem;
    char formatted[256];
    for (size_t i = 0; i < sizeof text / sizeof *text; i++) {
        CHECK(!nhood_problem_parse(text[i][0], &problem) &&
                  !nhood_problem_format(&problem, formatted, sizeof formatted, NULL) &&
                  !strcmp(formatted, text[i][text[i][1] != NULL]),
              "%s became %s: %s", text[i][0], formatted, nhood_last_error());
    }
    for (int moved = 0; moved < 2; moved++) {
        const nhood_range range[] = {{0, 4}, {0, 4}, {0, 4}, {1, 4}, {1 + moved, 4}, {2, 4}};
        CHECK(!nhood_problem_parse("fwd:f32:b1h1d8:6:w1", &problem), "%s", nhood_last_error());
        problem.windows[0] =
            (nhood_windows){.kind = NHOOD_WINDOWS_TABLE, .keys = 6, .range = range};
        nhood_problem_format(&problem, formatted, sizeof formatted, NULL);
        CHECK((strcmp(formatted, "fwd:f32:b1h1d8:6:w4") == 0) == moved, "%s", formatted);
    }
    nhood_problem_parse("fwd:f32:b1h1d8:12:w3", &problem);
    problem.axis[0].window = 1;
    problem.has_bias = 1;
    problem.windows[0] = (nhood_windows){.kind = NHOOD_WINDOWS_RESAMPLED, .keys = 12, .window = 3};
    CHECK(nhood_problem_format(&problem, formatted, sizeof formatted, NULL) == NHOOD_ERR_ARGUMENT,
          "a bias is taken");
}

/* Texts differ by a table's contents and not by where they lie; choices by estimate and measurement work for tables, too. */
static void texts_and_wisdom(nhood_context *context) {
    nhood_range range[2][5] = {{{0, 3}, {0, 3}, {0, 3}, {2, 3}, {2, 3}},
                               {{0, 3}, {0, 3}, {0, 3}, {2, 3}, {2, 3}}};
    char text[3][256];
    nhood_problem problem;
    nhood_problem_parse("fwd:f32:b1h1d8:5:wr5w3", &problem);
    for (int i = 0; i < 3; i++) {
        problem.windows[0] =
            (nhood_windows){.kind = NHOOD_WINDOWS_TABLE, .keys = 5, .range = range[i & 1]};
        range[0][4].count = i < 2 ? 3 : 2;
        range[0][4].first = i < 2 ? 2 : 3;
        CHECK(!nhood_problem_format(&problem, text[i], sizeof text[i], NULL), "%s",
              nhood_last_error());
    }
    CHECK(!strcmp(text[0], text[1]) && strcmp(text[0], text[2]), "%s, %s, %s", text[0], text[1],
          text[2]);
    nhood_plan *plan = NULL;
    const nhood_plan_options measure = {
        .struct_size = sizeof measure, .effort = NHOOD_EFFORT_MEASURE, .budget_s = 0.05};
    const nhood_plan_options known = {.struct_size = sizeof known,
                                      .effort = NHOOD_EFFORT_WISDOM_ONLY};
    CHECK(!nhood_plan_create(context, 0, &problem, &measure, &plan), "%s", nhood_last_error());
    CHECK(strstr(nhood_plan_description(plan), " sample"), "%s", nhood_plan_description(plan));
    nhood_plan_release(plan);
    CHECK(!nhood_plan_create(context, 0, &problem, &known, &plan), "%s", nhood_last_error());
    nhood_plan_release(plan);
    range[0][4] = (nhood_range){2, 3};
    CHECK(nhood_plan_create(context, 0, &problem, &known, &plan) == NHOOD_ERR_CACHE_MISS,
          "another table at the same place is taken for the first");
    int64_t forgotten = 0;
    range[0][4] = (nhood_range){3, 2};
    CHECK(!nhood_wisdom_forget(context, 0, &problem, &forgotten) && forgotten > 0, "%lld lines",
          (long long)forgotten);
}

int main(void) {
    generators();
    long_axes();
    refusals();
    nhood_context *context = NULL;
    const nhood_context_options options = {
        .struct_size = sizeof options, .threads = 2, .cache = "", .bundle = ""};
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    static const char *const formulas[] = {
        "fwd:f32:b1h2d16:40:w7",
        "bwd:f32:b1h2d16:40:w8:s3",
        "bwd:f32:b2h4k2d24v8:9x30:w3x9:s1x4:c10:x3",
        "fwd:f32:b1h1d8:5x9x20:w3x3x5:c001",
        "bwd:f32:b1h1d8:5x9x20:w3x9x5",
        "pn:f32:b1h2d8:20x21:w5x7:c10",
    };
    for (size_t i = 0; i < sizeof formulas / sizeof formulas[0]; i++) {
        like_formula(context, formulas[i], "reference");
        like_formula(context, formulas[i], *formulas[i] == 'p' ? "cpu.unfused" : "cpu.fused");
    }
    tables_are_kept(context);
    formulas_are_known();
    texts_and_wisdom(context);
    nhood_context_destroy(context);
    return test_result();
}
