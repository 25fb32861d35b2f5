/* What must hold for any solver, whatever the numbers: invariances, bit equality, what stays untouched. */
#include "case.h"

#include <math.h>
#include <pthread.h>

static nhood_context *context_with(int threads, const char *isa) {
    nhood_context_options options = {.struct_size = sizeof options, .threads = threads, .isa = isa};
    nhood_context *context = NULL;
    if (nhood_context_create(&options, &context)) printf("%s\n", nhood_last_error());
    return context;
}

static void copy_inputs(const struct test_case *from, struct test_case *to) {
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        for (int64_t i = 0; i < from->elements[tensor] && i < to->elements[tensor]; i++)
            case_set(to, tensor, i, case_get(from, tensor, i));
}

static void ones_stay_ones(nhood_context *context, const char *text) {
    struct test_case c;
    case_create(&c, text, 1);
    for (int64_t i = 0; i < c.elements[NHOOD_V]; i++)
        case_set(&c, NHOOD_V, i, 1);
    for (int64_t i = 0; i < c.elements[NHOOD_EXTRA_V]; i++)
        case_set(&c, NHOOD_EXTRA_V, i, 1);
    CHECK(!case_run(context, &c, NULL), "%s", nhood_last_error());
    double worst = 0;
    for (int64_t i = 0; i < c.elements[NHOOD_O]; i++)
        worst = fmax(worst, fabs(case_get(&c, NHOOD_O, i) - 1));
    CHECK(worst < 1e-6, "%s: %g", text, worst);
    case_destroy(&c);
}

/* The same numbers through another problem text. */
static void same_as(nhood_context *context, const char *text, const char *other, double limit) {
    struct test_case a, b;
    case_create(&a, text, 2);
    case_create(&b, other, 3);
    copy_inputs(&a, &b);
    CHECK(!case_run(context, &a, NULL) && !case_run(context, &b, NULL), "%s", nhood_last_error());
    double difference = case_difference(&a, &b, NHOOD_O);
    CHECK(difference <= limit, "%s and %s differ by %g", text, other, difference);
    case_destroy(&a);
    case_destroy(&b);
}

/* Moving the input by one token moves the output, away from borders. */
static void shifts(nhood_context *context) {
    struct test_case a, b;
    case_create(&a, "fwd:f32:b1h1d8:40x40:w7x5", 4);
    case_create(&b, "fwd:f32:b1h1d8:40x40:w7x5", 5);
    for (int tensor = NHOOD_Q; tensor <= NHOOD_V; tensor++)
        for (int64_t y = 0; y < 39; y++)
            for (int64_t i = 0; i < 39 * 8; i++)
                case_set(&b, tensor, ((y + 1) * 40 + 1) * 8 + i,
                         case_get(&a, tensor, y * 40 * 8 + i));
    case_run(context, &a, NULL);
    case_run(context, &b, NULL);
    double worst = 0;
    for (int64_t y = 8; y < 30; y++)
        for (int64_t i = 8 * 8; i < 30 * 8; i++)
            worst = fmax(worst, fabs(case_get(&a, NHOOD_O, y * 40 * 8 + i) -
                                     case_get(&b, NHOOD_O, ((y + 1) * 40 + 1) * 8 + i)));
    CHECK(worst < 1e-6, "%g", worst);
    case_destroy(&a);
    case_destroy(&b);
}

static void own_parallel_for(void *user, int64_t count, nhood_parallel_body body, void *arg) {
    *(int *)user += 1;
    for (int64_t i = count - 1; i >= 0; i--)
        body(arg, i, (int32_t)(i % 3));
}

/* Results are bit-equal run to run, for any number of threads, and with the caller's loop. */
static void threads_do_not_matter(const char *text) {
    struct test_case expected, got;
    int called = 0;
    nhood_context_options options = {.struct_size = sizeof options,
                                     .threads = 3,
                                     .user = &called,
                                     .parallel_for = own_parallel_for};
    nhood_context *one = context_with(1, NULL), *two = context_with(2, NULL),
                  *five = context_with(5, NULL), *own = NULL;
    CHECK(!nhood_context_create(&options, &own), "%s", nhood_last_error());
    nhood_context *const contexts[] = {one, two, five, own, five};
    case_create(&expected, text, 6);
    CHECK(!case_run(one, &expected, NULL), "%s", nhood_last_error());
    for (int i = 0; i < 5; i++) {
        case_create(&got, text, 6);
        CHECK(!case_run(contexts[i], &got, NULL), "%s", nhood_last_error());
        for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
            CHECK(!got.elements[tensor] || !memcmp(got.io.data[tensor], expected.io.data[tensor],
                                                   (size_t)got.elements[tensor] *
                                                       case_element_bytes(&got.problem, tensor)),
                  "%s: tensor %d differs in context %d", text, tensor, i);
        case_destroy(&got);
    }
    CHECK(called > 0, "parallel_for was not used");
    case_destroy(&expected);
    for (int i = 0; i < 4; i++)
        nhood_context_destroy(contexts[i]);
}

/* One plan, several threads at once, a workspace each; the context is gone before they start. */
struct sharer {
    const nhood_plan *plan;
    struct test_case c;
};

static void *execute_often(void *argument) {
    struct sharer *sharer = argument;
    sharer->c.io.workspace_bytes = nhood_plan_workspace_bytes(sharer->plan);
    sharer->c.io.workspace = test_allocate(sharer->c.io.workspace_bytes);
    intptr_t bad = 0;
    for (int i = 0; i < 20; i++)
        bad += nhood_plan_execute(sharer->plan, &sharer->c.io) != NHOOD_OK;
    test_free(sharer->c.io.workspace);
    return (void *)bad;
}

static void plans_are_shared(void) {
    static const char *const text = "fwd:f32:b2h2d16:24x24:w5x5";
    struct sharer sharer[4];
    pthread_t thread[4];
    nhood_context *context = context_with(3, NULL);
    nhood_plan *plan = NULL;
    for (int i = 0; i < 4; i++)
        case_create(&sharer[i].c, text, 8);
    CHECK(!nhood_plan_create(context, 0, &sharer[0].c.problem, NULL, &plan), "%s",
          nhood_last_error());
    nhood_context_destroy(context);
    for (int i = 0; i < 4; i++) {
        sharer[i].plan = plan;
        pthread_create(&thread[i], NULL, execute_often, &sharer[i]);
    }
    for (int i = 0; i < 4; i++) {
        void *bad = NULL;
        pthread_join(thread[i], &bad);
        CHECK(!bad, "thread %d", i);
        CHECK(case_difference(&sharer[0].c, &sharer[i].c, NHOOD_O) == 0,
              "thread %d computed something else", i);
    }
    for (int i = 0; i < 4; i++)
        case_destroy(&sharer[i].c);
    nhood_plan_retain(plan);
    nhood_plan_release(plan);
    nhood_plan_release(plan);
}

/* A NaN in keys and values outside a query's window leaves its outputs alone, forward and backward. Poisoned: a place of
 * the first axis. */
static void nan_stays_outside(nhood_context *context, const char *text, int64_t poisoned) {
    struct test_case clean, dirty;
    case_create(&clean, text, 10);
    case_create(&dirty, text, 10);
    const nhood_axis *axis = &clean.problem.axis[0];
    const int result = clean.problem.op == NHOOD_OP_BWD ? NHOOD_D_Q : NHOOD_O;
    int64_t row = clean.elements[NHOOD_K] / axis->length,
            out = clean.elements[result] / axis->length;
    for (int64_t i = 0; i < row; i++) {
        case_set(&dirty, NHOOD_K, poisoned * row + i, NAN);
        case_set(&dirty, NHOOD_V, poisoned * row + i, i & 1 ? INFINITY : NAN);
    }
    CHECK(!case_run(context, &clean, NULL) && !case_run(context, &dirty, NULL), "%s",
          nhood_last_error());
    for (int64_t token = 0; token < axis->length; token++) {
        int64_t first = 0, count = 0, differ = 0, nan = 0;
        nhood_window(axis, token, &first, &count);
        int inside = 0;
        for (int64_t n = 0; n < count; n++)
            inside |= first + n * axis->dilation == poisoned;
        for (int64_t i = 0; i < out; i++) {
            double got = case_get(&dirty, result, token * out + i);
            differ += got != case_get(&clean, result, token * out + i);
            nan += isnan(got) != 0; /* any number but 0 means true */
        }
        CHECK(inside ? nan > 0 : differ == 0, "%s: token %lld, poisoned %lld", text,
              (long long)token, (long long)poisoned);
    }
    case_destroy(&clean);
    case_destroy(&dirty);
}

/* A query whose logits are large, infinite or NaN leaves the gradients of all other queries as they are, bit by bit, also of those
 * that are computed beside it. */
static void rows_stand_alone(nhood_context *context, const char *text, double large) {
    struct test_case c[2];
    for (int i = 0; i < 2; i++) {
        case_create(&c[i], text, 12);
        const int64_t row = c[i].elements[NHOOD_Q] / c[i].problem.axis[0].length;
        for (int64_t e = 0; i && e < row; e++)
            case_set(&c[i], NHOOD_Q, e, large);
        struct test_case forward = c[i];
        forward.problem.op = NHOOD_OP_FWD;
        CHECK(!case_run(context, &forward, NULL), "%s", nhood_last_error());
        CHECK(!case_run(context, &c[i], "cpu.fused"), "%s", nhood_last_error());
        memset(c[i].io.data[NHOOD_D_Q], 0, (size_t)row * case_element_bytes(&c[i].problem, 0));
    }
    const double difference = case_difference(&c[0], &c[1], NHOOD_D_Q);
    CHECK(difference == 0, "%s: a query of %g changes others by %g", text, large, difference);
    for (int i = 0; i < 2; i++)
        case_destroy(&c[i]);
}

static void large_logits(nhood_context *context) {
    struct test_case c;
    case_create(&c, "fwd:f32:b1h1d4:30:w9:scale1", 11);
    for (int64_t i = 0; i < c.elements[NHOOD_Q]; i++) {
        case_set(&c, NHOOD_Q, i, 1e4 * case_get(&c, NHOOD_Q, i));
        case_set(&c, NHOOD_K, i, 1e4 * case_get(&c, NHOOD_K, i));
    }
    CHECK(!case_run(context, &c, NULL), "%s", nhood_last_error());
    for (int64_t i = 0; i < c.elements[NHOOD_O]; i++)
        CHECK(fabs(case_get(&c, NHOOD_O, i)) <= 1, "output %lld is %g", (long long)i,
              case_get(&c, NHOOD_O, i));
    case_destroy(&c);
}

/* Means of values near the largest number of their type are finite, by kernels and reference: equal keys, so that the mean is known;
 * windows of one step, of several, with extra tokens. */
static void large_values(nhood_context *context, const char *text, const char *solver,
                         double largest) {
    struct test_case c;
    case_create(&c, text, 13);
    for (int64_t i = 0; i < c.elements[NHOOD_K]; i++)
        case_set(&c, NHOOD_K, i, 1);
    for (int64_t i = 0; i < c.elements[NHOOD_EXTRA_K]; i++)
        case_set(&c, NHOOD_EXTRA_K, i, 1);
    for (int64_t i = 0; i < c.elements[NHOOD_V]; i++)
        case_set(&c, NHOOD_V, i, i % 2 ? largest : -largest);
    for (int64_t i = 0; i < c.elements[NHOOD_EXTRA_V]; i++)
        case_set(&c, NHOOD_EXTRA_V, i, i % 2 ? largest : -largest);
    CHECK(!case_run(context, &c, solver), "%s", nhood_last_error());
    double worst = 0;
    for (int64_t i = 0; i < c.elements[NHOOD_O]; i++)
        worst = fmax(worst, fabs(case_get(&c, NHOOD_O, i) / (i % 2 ? largest : -largest) - 1));
    CHECK(worst < 1e-5, "%s, %s: off by %g", text, solver, worst);
    const double keys = (double)c.problem.extra_tokens + 49;
    for (int64_t i = 0; c.problem.rank == 2 && i < c.elements[NHOOD_LSE]; i++) {
        double logit = 0;
        for (int64_t d = 0; d < c.problem.dim; d++)
            logit += case_get(&c, NHOOD_Q, i * c.problem.dim + d);
        const double lse = logit / sqrt((double)c.problem.dim) + log(keys);
        CHECK(fabs(case_get(&c, NHOOD_LSE, i) - lse) < 1e-5, "%s: LSE %g, not %g", text,
              case_get(&c, NHOOD_LSE, i), lse);
    }
    case_destroy(&c);
}

/* Scales beyond the range of f32, where scores are within that of f64: results are those of an f64 problem. */
static void extreme_scales(nhood_context *context) {
    static const struct {
        double scale, input; /* what queries and keys are multiplied with */
    } cases[] = {{1e39, 1}, {1e300, 1e-3}, {-1e200, 1}, {1e-50, 1e25}, {1e-60, 1e30}, {-1e-45, 1}};
    static const char *const texts[] = {"fwd:f32:b1h2d8:30:w5", "pn:f32:b1h2d8:6x5:w3x3"};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t t = 0; t < 2; t++) {
            struct test_case single, exact;
            const int out = t ? NHOOD_A : NHOOD_O;
            if (t && cases[i].input <= 1) continue; /* scores are not within the range of f32 */
            case_create(&single, texts[t], 5);
            char text[64];
            snprintf(text, sizeof text, "%s", texts[t]);
            memcpy(strstr(text, "f32"), "f64", 3);
            case_create(&exact, text, 5);
            single.problem.scale = exact.problem.scale = cases[i].scale;
            for (int tensor = NHOOD_Q; tensor <= NHOOD_V; tensor++)
                for (int64_t e = 0; e < single.elements[tensor]; e++) {
                    const double factor = tensor == NHOOD_V ? 1 : cases[i].input;
                    case_set(&single, tensor, e, factor * case_get(&exact, tensor, e));
                    case_set(&exact, tensor, e, case_get(&single, tensor, e));
                }
            CHECK(!case_run(context, &single, NULL) && !case_run(context, &exact, NULL), "%s",
                  nhood_last_error());
            double worst = 0, largest = 0;
            for (int64_t e = 0; e < single.elements[out]; e++) {
                const double value = case_get(&exact, out, e);
                largest = fmax(largest, fabs(value));
                worst = fmax(worst, fabs(case_get(&single, out, e) - value));
                if (isnan(case_get(&single, out, e))) worst = INFINITY;
            }
            CHECK(worst <= 1e-6 * largest, "scale %g, %s: error %g of %g", cases[i].scale, text,
                  worst, largest);
            case_destroy(&single);
            case_destroy(&exact);
        }
}

int main(void) {
#if defined(__aarch64__)
    static const char *const isas[] = {"neon", "sve256", "sve512"};
#else
    static const char *const isas[] = {"generic", "avx2", "avx512"};
#endif
    for (int i = 0; i < 3; i++) {
        nhood_context *context = context_with(2, isas[i]);
        ones_stay_ones(context, "fwd:f32:b1h2d16:50:w7:s3");
        ones_stay_ones(context, "fwd:f32:b2h4k2d24v40:9x30:w3x9:d3x1:rpb");
        ones_stay_ones(context, "fwd:f32:b1h1d8:6x7x20:w3x7x5:c011:x5");
        same_as(context, "fwd:f64:b1h2d7:40:w9:s2:d3", "fwd:f64:b1h2d7:1x40:w1x9:s1x2:d1x3", 1e-14);
        same_as(context, "fwd:f64:b1h2d7:9x8:w3x4:s2x1", "fwd:f64:b1h2d7:9x1x8:w3x1x4:s2x1x1",
                1e-14);
        same_as(context, "fwd:f64:b1h2d7:12:w12", "fwd:f64:b1h2d7:12:w12:s12", 1e-14);
        same_as(context, "fwd:f64:b1h2d7:9:w30:clamp", "fwd:f64:b1h2d7:9:w9", 0);
        shifts(context);
        for (int64_t poisoned = 0; poisoned < 40; poisoned += 13) {
            nan_stays_outside(context, "fwd:f32:b1h1d8:40:w7", poisoned);
            nan_stays_outside(context, "fwd:f32:b1h1d8:40:w8:c1", poisoned);
            nan_stays_outside(context, "fwd:f32:b1h1d8:40:w6:s4:d3", poisoned);
            nan_stays_outside(context, "bwd:f32:b1h1d8:40:w7", poisoned);
            nan_stays_outside(context, "fwd:f32:b1h1d8:7x7:w3x3", poisoned % 7);
            nan_stays_outside(context, "bwd:f32:b1h1d8:7x7:w3x5:c10", poisoned % 7);
        }
        rows_stand_alone(context, "bwd:f32:b1h1d8:700:w700", 1e4);
        rows_stand_alone(context, "bwd:f32:b1h1d8:700:w700", INFINITY);
        rows_stand_alone(context, "bwd:f32:b1h1d8:60:w9:x300", 1e4);
        rows_stand_alone(context, "bwd:f64:b1h1d8:60:w9", NAN);
        for (int s = 0; s < 2; s++) {
            const char *solver = s ? "reference" : "cpu.fused";
            large_values(context, "fwd:f32:b1h2d16:9x20:w7x7", solver, 1e38);
            large_values(context, "fwd:f32:b1h1d8:700:w700", solver, 3e38);
            large_values(context, "fwd:f32:b1h2d16:9x20:w7x7:x5", solver, 3e38);
            large_values(context, "fwd:f64:b1h2d16:9x20:w7x7", solver, 1.7e308);
        }
        large_logits(context);
        extreme_scales(context);
        nhood_context_destroy(context);
    }
    threads_do_not_matter("fwd:f32:b2h4k2d24:30x40:w7x9");
    threads_do_not_matter("bwd:f32:b2h4k2d24:30x40:w7x9:rpb:x3");
    threads_do_not_matter("bwd:f32:b1h1d16:3000:w600");
    threads_do_not_matter("bwd:f32:b1h2d32:3000:w3:d1000");
    threads_do_not_matter("in:f32:b1h2d16:8x20x20:w3x5x3");
    plans_are_shared();
    return test_result();
}
