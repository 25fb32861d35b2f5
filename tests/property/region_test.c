/* Parts of a grid: what two boxes of the queries, or of the keys, give together is what the whole gives, for every operation and
 * storage type. Query boxes crop the results of queries, and gradients of keys add up; key boxes merge by their LSEs, and gradients of
 * queries add up. */
#include "case.h"
#include "dtype.h"

#include <math.h>

static double get(const struct test_case *c, int32_t tensor, int64_t i) {
    bool lse = tensor == NHOOD_LSE || tensor == NHOOD_D_LSE;
    bool wide = c->problem.dtype == NHOOD_DTYPE_F64;
    return nh_load_f64(lse && !wide ? NHOOD_DTYPE_F32 : c->problem.dtype, c->io.data[tensor], i);
}

static void create(struct test_case *c, const nhood_problem *problem, uint64_t seed) {
    *c = (struct test_case){.problem = *problem, .io.struct_size = sizeof c->io};
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        CHECK(!nhood_problem_elements(problem, t, &c->elements[t]), "%s", nhood_last_error());
        const size_t bytes = case_element_bytes(problem, t);
        if (c->elements[t]) c->io.data[t] = malloc((size_t)c->elements[t] * bytes);
        for (int64_t i = 0; i < c->elements[t]; i++) {
            const int32_t dtype = bytes == 8   ? NHOOD_DTYPE_F64
                                  : bytes == 4 ? NHOOD_DTYPE_F32
                                               : problem->dtype;
            nh_store_f64(dtype, c->io.data[t], i, test_uniform(&seed) * 2 - 1);
        }
    }
}

/* ---- where elements of a part are in the whole ---- */

static bool of_grid(int32_t tensor) {
    return tensor != NHOOD_BIAS && tensor != NHOOD_D_BIAS && tensor != NHOOD_EXTRA_K &&
           tensor != NHOOD_EXTRA_V && tensor != NHOOD_D_EXTRA_K && tensor != NHOOD_D_EXTRA_V;
}

static bool of_keys(int32_t tensor) {
    return tensor == NHOOD_K || tensor == NHOOD_V || tensor == NHOOD_D_K || tensor == NHOOD_D_V;
}

/* Index in the whole's packed tensor of element i of the part's. */
static int64_t in_whole(const struct test_case *part, int32_t tensor, int64_t i) {
    const nhood_problem *p = &part->problem;
    if (!of_grid(tensor)) return i;
    int64_t at[3] = {0}, tokens = p->batch;
    for (int a = 0; a < p->rank; a++) {
        const nhood_region *r = &p->region[a];
        const int64_t length = of_keys(tensor) ? r->key_length : r->query_length;
        tokens *= length ? length : p->axis[a].length;
    }
    const int64_t row = part->elements[tensor] / tokens;
    int64_t token = i / row, index = 0;
    for (int a = p->rank - 1; a >= 0; a--) {
        const nhood_region *r = &p->region[a];
        const int64_t length = of_keys(tensor) ? r->key_length : r->query_length;
        const int64_t offset = of_keys(tensor) ? r->key_offset : r->query_offset;
        const int64_t covered = length ? length : p->axis[a].length;
        at[a] = (offset + token % covered) % p->axis[a].length;
        token /= covered;
    }
    for (int a = 0; a < p->rank; a++)
        index = index * p->axis[a].length + at[a];
    for (int a = 0; a < p->rank; a++)
        token *= p->axis[a].length; /* token is the batch entry now */
    return (token + index) * row + i % row;
}

static void copy_inputs(const struct test_case *whole, struct test_case *part) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        const size_t bytes = case_element_bytes(&part->problem, t);
        for (int64_t i = 0; i < part->elements[t]; i++)
            memcpy((char *)part->io.data[t] + (size_t)i * bytes,
                   (char *)whole->io.data[t] + (size_t)in_whole(part, t, i) * bytes, bytes);
    }
}

/* ---- checks ---- */

static const double tolerance[] = {[NHOOD_DTYPE_F64] = 1e-12,
                                   [NHOOD_DTYPE_F32] = 3e-6,
                                   [NHOOD_DTYPE_F16] = 4e-3,
                                   [NHOOD_DTYPE_BF16] = 3e-2};

static nhood_context *context;

static void run(struct test_case *c) {
    const char *solver = c->problem.op <= NHOOD_OP_BWD ? "cpu.fused" : "cpu.unfused";
    CHECK(!case_run(context, c, solver), "%s", nhood_last_error());
}

/* O and LSE of a backward pass are those of the forward pass on its inputs. */
static void make_forward(struct test_case *bwd) {
    struct test_case fwd = *bwd;
    fwd.problem.op = NHOOD_OP_FWD;
    run(&fwd);
}

static bool is_output(int32_t op, int32_t tensor) {
    switch (op) {
    case NHOOD_OP_FWD: return tensor == NHOOD_O || tensor == NHOOD_LSE;
    case NHOOD_OP_BWD: return tensor >= NHOOD_D_Q;
    case NHOOD_OP_PN: return tensor == NHOOD_A;
    case NHOOD_OP_NN: return tensor == NHOOD_O;
    default: return tensor == NHOOD_D_V;
    }
}

/* The parts' values of one element of the whole: NaN where a part does not have it. */
struct shares {
    double *value[2];
};

static struct shares collect(const struct test_case *whole, const struct test_case part[2],
                             int32_t tensor) {
    struct shares shares;
    for (int p = 0; p < 2; p++) {
        shares.value[p] = malloc((size_t)whole->elements[tensor] * sizeof(double));
        for (int64_t i = 0; i < whole->elements[tensor]; i++)
            shares.value[p][i] = NAN;
        for (int64_t i = 0; i < part[p].elements[tensor]; i++)
            shares.value[p][in_whole(&part[p], tensor, i)] = get(&part[p], tensor, i);
    }
    return shares;
}

static double merged_lse(double a, double b) {
    const double most = fmax(a, b);
    return most == -INFINITY ? most : most + log(exp(a - most) + exp(b - most));
}

/* What the two parts give together, of an element both have: sums, or results of the softmax merged. */
static double together(const struct test_case part[2], const struct shares *value,
                       const struct shares *lse, int32_t tensor, int64_t i, int64_t row) {
    const double a = value->value[0][i], b = value->value[1][i];
    if (isnan(a)) return b;
    if (isnan(b)) return a;
    const int32_t op = part[0].problem.op;
    if (op == NHOOD_OP_FWD && tensor == NHOOD_LSE) return merged_lse(a, b);
    if (op == NHOOD_OP_FWD) {
        const double la = lse->value[0][i / row], lb = lse->value[1][i / row];
        const double both = merged_lse(la, lb);
        return a * exp(la - both) + b * exp(lb - both);
    }
    if (op == NHOOD_OP_PN) { /* one of the two boxes has the key */
        const bool first = b == -INFINITY;
        return first ? a : a == -INFINITY ? b : NAN;
    }
    return a + b;
}

static void compare(const char *text, const struct test_case *whole, const struct test_case part[2],
                    int32_t tensor) {
    const nhood_problem *p = &whole->problem;
    struct shares value = collect(whole, part, tensor), lse = {{NULL, NULL}};
    if (p->op == NHOOD_OP_FWD) lse = collect(whole, part, NHOOD_LSE);
    const int64_t row =
        p->op == NHOOD_OP_FWD ? whole->elements[NHOOD_O] / whole->elements[NHOOD_LSE] : 1;
    double worst = 0, largest = 1;
    for (int64_t i = 0; i < whole->elements[tensor]; i++) {
        const double expected = get(whole, tensor, i);
        const double got = together(part, &value, &lse, tensor, i, row);
        if (got == expected) continue; /* infinities included */
        largest = fmax(largest, fabs(expected));
        const double error = fabs(got - expected);
        if (!(error <= worst)) worst = isnan(error) ? INFINITY : error;
    }
    CHECK(worst <= tolerance[p->dtype] * largest, "%s, op %d, dtype %d, tensor %d: off by %g", text,
          p->op, p->dtype, tensor, worst);
    for (int i = 0; i < 2; i++) {
        free(value.value[i]);
        free(lse.value[i]);
    }
}

/* Cuts the queries (or keys) of axis a into [from, from + length) and the rest, which on a periodic axis wraps. */
static void cut(nhood_problem problem[2], int a, bool keys, int64_t from, int64_t length) {
    const int64_t all = problem->axis[a].length;
    const int64_t offset[2] = {from, (from + length) % all}, lengths[2] = {length, all - length};
    for (int i = 0; i < 2; i++) {
        nhood_region *r = &problem[i].region[a];
        *(keys ? &r->key_offset : &r->query_offset) = offset[i];
        *(keys ? &r->key_length : &r->query_length) = lengths[i];
    }
}

static void check_cut(const char *text, const struct test_case *whole, int a, bool keys,
                      int64_t from, int64_t length) {
    nhood_problem problem[2] = {whole->problem, whole->problem};
    struct test_case part[2];
    char name[256];
    cut(problem, a, keys, from, length);
    snprintf(name, sizeof name, "%s, %s [%lld, +%lld) of axis %d", text, keys ? "keys" : "queries",
             (long long)from, (long long)length, a);
    for (int i = 0; i < 2; i++) {
        create(&part[i], &problem[i], 5);
        copy_inputs(whole, &part[i]);
        for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
            if (is_output(problem[i].op, t) && part[i].elements[t])
                memset(part[i].io.data[t], 0xff,
                       (size_t)part[i].elements[t] * case_element_bytes(&problem[i], t));
        run(&part[i]);
    }
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if (is_output(whole->problem.op, t) && whole->elements[t]) compare(name, whole, part, t);
    for (int i = 0; i < 2; i++)
        case_destroy(&part[i]);
}

static void check(const char *shape, int32_t op, int32_t dtype) {
    static const char *const dtypes[] = {"", "f64", "f32", "f16", "bf16"};
    static const char *const ops[] = {"", "fwd", "bwd", "pn", "nn", "in"};
    const bool bias = strstr(shape, ":rpb"), extra = strstr(shape, ":x");
    if ((op > NHOOD_OP_PN && bias) || (op > NHOOD_OP_BWD && extra)) return;
    char text[160];
    nhood_problem problem;
    struct test_case whole;
    snprintf(text, sizeof text, "%s:%s:%s", ops[op], dtypes[dtype], shape);
    CHECK(!nhood_problem_parse(text, &problem), "%s: %s", text, nhood_last_error());
    create(&whole, &problem, 3);
    if (op == NHOOD_OP_BWD) make_forward(&whole);
    run(&whole);
    for (int a = 0; a < problem.rank; a++) {
        const nhood_axis *axis = &problem.axis[a];
        const int64_t half = axis->length / 2, from = axis->periodic ? axis->length - 2 : 0;
        check_cut(shape, &whole, a, false, from, half);
        check_cut(shape, &whole, a, false, 0, 1);
        if (extra) continue; /* they would count twice */
        check_cut(shape, &whole, a, true, from, half);
        const bool in_slots = op > NHOOD_OP_BWD || bias; /* windows are met in one piece only */
        if (!axis->periodic || !in_slots) check_cut(shape, &whole, a, true, 0, axis->length - 1);
    }
    case_destroy(&whole);
}

/* A query box and a key box that no window joins: nothing is attended. */
static void check_nothing(void) {
    nhood_problem problem;
    struct test_case c;
    CHECK(!nhood_problem_parse("bwd:f32:b1h2d8v12:40x6:w5x3:q0+9x0+6:k30+10x0+6", &problem), "%s",
          nhood_last_error());
    create(&c, &problem, 9);
    make_forward(&c);
    run(&c);
    int wrong = 0;
    for (int64_t i = 0; i < c.elements[NHOOD_O]; i++)
        wrong += get(&c, NHOOD_O, i) != 0;
    for (int64_t i = 0; i < c.elements[NHOOD_LSE]; i++)
        wrong += get(&c, NHOOD_LSE, i) != -INFINITY;
    for (int32_t t = NHOOD_D_Q; t <= NHOOD_D_V; t++)
        for (int64_t i = 0; i < c.elements[t]; i++)
            wrong += get(&c, t, i) != 0;
    CHECK(!wrong && c.elements[NHOOD_D_V] > 0, "%d values of nothing", wrong);
    case_destroy(&c);
}

/* What the kernels refuse, with reasons: windows that meet a key box in two pieces, where slots count; tables without bound. */
static void check_refusals(void) {
    static const struct {
        const char *text, *reason;
    } refused[] = {{"nn:f32:b1h1d8:12:w9:p1:k2+8", "two pieces"},
                   {"fwd:f32:b1h1d8:12:w9:p1:k2+8:rpb", "two pieces"},
                   {"fwd:f32:b1h1d8:2000000000:w9:p1", "2^22 keys"},
                   {"fwd:f32:b1h1d8:2000000000:w9:q7+1000000000", "2^22 keys"}};
    static const char *const taken[] = {
        "fwd:f32:b1h1d8:12:w9:p1:k2+8", "nn:f32:b1h1d8:12:w5:p1:k2+8",
        "nn:f32:b1h1d8:40:w12:p1:k2+30:q10+12", "fwd:f32:b1h1d8:9000000000:w9:q7+1000:k0+2000"};
    nhood_problem problem;
    nhood_plan *plan = NULL;
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++) {
        CHECK(!nhood_problem_parse(refused[i].text, &problem), "%s", nhood_last_error());
        nhood_plan_options options = {.struct_size = sizeof options};
        options.solver = problem.op <= NHOOD_OP_BWD ? "cpu.fused" : "cpu.unfused";
        CHECK(nhood_plan_create(context, 0, &problem, &options, &plan) == NHOOD_ERR_UNSUPPORTED &&
                  strstr(nhood_last_error(), refused[i].reason),
              "%s: %s", refused[i].text, nhood_last_error());
    }
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++) {
        CHECK(!nhood_problem_parse(taken[i], &problem), "%s", nhood_last_error());
        nhood_plan_options options = {.struct_size = sizeof options};
        options.solver = problem.op <= NHOOD_OP_BWD ? "cpu.fused" : "cpu.unfused";
        CHECK(!nhood_plan_create(context, 0, &problem, &options, &plan), "%s: %s", taken[i],
              nhood_last_error());
        nhood_plan_release(plan);
    }
}

/* What was measured of a part is known again in another context, from text. */
static void check_wisdom(void) {
    static const char text[] = "fwd:f32:b1h1d8:12x10:w5x3:p10:q9+7x2+3:k7+10x1+7";
    static char first[1 << 16], second[1 << 16];
    nhood_plan_options options = {.struct_size = sizeof options};
    options.effort = NHOOD_EFFORT_MEASURE;
    options.budget_s = 0.05;
    nhood_context *other = NULL;
    nhood_problem problem;
    nhood_plan *plan = NULL;
    int64_t accepted = 0;
    CHECK(!nhood_problem_parse(text, &problem) &&
              !nhood_plan_create(context, 0, &problem, &options, &plan),
          "%s", nhood_last_error());
    nhood_plan_release(plan);
    CHECK(!nhood_wisdom_export(context, first, sizeof first, NULL) && strstr(first, text), "%s",
          first);
    CHECK(!nhood_context_create(NULL, &other), "%s", nhood_last_error());
    CHECK(!nhood_wisdom_import(other, first, &accepted) && accepted > 0, "%s", first);
    CHECK(!nhood_wisdom_export(other, second, sizeof second, NULL) && !strcmp(first, second), "%s",
          second);
    options.effort = NHOOD_EFFORT_WISDOM_ONLY;
    CHECK(!nhood_plan_create(other, 0, &problem, &options, &plan), "%s", nhood_last_error());
    CHECK(strstr(nhood_plan_description(plan), text), "%s", nhood_plan_description(plan));
    nhood_plan_release(plan);
    problem.region[0].key_offset--; /* another part, of which nothing is known */
    CHECK(nhood_plan_create(other, 0, &problem, &options, &plan) == NHOOD_ERR_CACHE_MISS, "%s",
          nhood_last_error());
    nhood_context_destroy(other);
}

int main(void) {
    static const char *const shapes[] = {
        "b2h2k1d8:19:w5",
        "b1h2d8v12:24:w5:s2:d2:p1",
        "b1h2d20:9x22:w3x5:rpb",
        "b1h1d8:12x10:w5x3:p10:rpb",
        "b1h2d8:6x7x8:w3x3x5:c100",
        "b1h2d8:6x8x9:w3x3x3:d1x2x1:p011",
        "b1h2d8:70x8:w9x7:s3x1:c10:x3",
        "b1h1d16:300:w40:d3",
    };
    CHECK(!nhood_context_create(NULL, &context), "%s", nhood_last_error());
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int32_t op = NHOOD_OP_FWD; op <= NHOOD_OP_IN; op++)
            for (int32_t dtype = NHOOD_DTYPE_F64; dtype <= NHOOD_DTYPE_BF16; dtype++)
                check(shapes[s], op, dtype);
    check_nothing();
    check_refusals();
    check_wisdom();
    nhood_context_destroy(context);
    return test_result();
}
