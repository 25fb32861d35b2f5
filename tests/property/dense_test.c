/* The reference against a different formulation: the whole matrix of scores with a mask that is built from
 * the definition of the window token by token; and against finite differences. */
#include "case.h"
#include "windows_attend.h"

#include <math.h>

/* Whether query i attends key j on one axis of the grid, straight from the definition. *distance: from query to key, in
 * positions. */
static int attends(const nhood_axis *axis, int64_t i, int64_t j, int64_t *distance) {
    int64_t d = axis->dilation, g = i % d, length = (axis->length - g + d - 1) / d, q = i / d;
    if (j % d != g) return 0;
    int64_t block = q / axis->stride * axis->stride;
    *distance = j / d - q;
    if (axis->periodic) {
        int64_t first = block + axis->stride / 2 - axis->window / 2,
                slot = (j / d - first) % length;
        if (slot < 0) slot += length;
        *distance = first + slot - q;
        return slot < axis->window;
    }
    if (axis->causal) {
        int64_t leader =
            block + axis->stride - 1 < length - 1 ? block + axis->stride - 1 : length - 1;
        return j / d <= q && j / d >= leader - (axis->window - 1);
    }
    int64_t leader = block + axis->stride / 2 < length - 1 ? block + axis->stride / 2 : length - 1;
    int64_t start = leader - axis->window / 2;
    if (start + axis->window > length) start = length - axis->window;
    if (start < 0) start = 0;
    return j / d >= start && j / d < start + axis->window;
}

static int64_t keys_of(const nhood_problem *p, int a) {
    return p->windows[a].keys ? p->windows[a].keys : p->axis[a].length;
}

/* In the grid, of a token of the key box or of the query box. */
static void coordinates(const nhood_problem *p, int64_t token, int key, int64_t at[3]) {
    for (int a = p->rank - 1; a >= 0; a--) {
        const nhood_region *r = &p->region[a];
        int64_t whole = key ? keys_of(p, a) : p->axis[a].length;
        int64_t box = key ? r->key_length : r->query_length, length = box ? box : whole;
        at[a] = (token % length + (key ? r->key_offset : r->query_offset)) % whole;
        token /= length;
    }
}

static int64_t tokens_of(const nhood_problem *p, int key) {
    int64_t tokens = 1;
    for (int a = 0; a < p->rank; a++) {
        int64_t box = key ? p->region[a].key_length : p->region[a].query_length;
        tokens *= box ? box : key ? keys_of(p, a) : p->axis[a].length;
    }
    return tokens;
}

/* exp(score) of every pair, 0 where masked; P V and log-sum-exp of one query row. */
static double dense_row(const struct test_case *c, int64_t b, int64_t i, int64_t h, double *out) {
    const nhood_problem *p = &c->problem;
    int64_t tokens = tokens_of(p, 1), queries = tokens_of(p, 0),
            kv = p->kv_heads ? p->kv_heads : p->heads, dv = p->dim_v ? p->dim_v : p->dim, x[3],
            y[3];
    double scale = isnan(p->scale) ? 1 / sqrt((double)p->dim) : p->scale, sum = 0;
    int64_t kh = h / (p->heads / kv);
    coordinates(p, i, 0, x);
    for (int64_t v = 0; v < dv; v++)
        out[v] = 0;
    for (int64_t j = 0; j < tokens + p->extra_tokens; j++) {
        int extra = j >= tokens, seen = 1;
        int64_t bias = 0, row = extra ? (b * p->extra_tokens + j - tokens) * kv + kh
                                      : (b * tokens + j) * kv + kh;
        coordinates(p, j, 1, y);
        for (int a = 0; !extra && a < p->rank; a++) {
            int64_t distance = 0;
            seen &= p->windows[a].kind ? windows_attend(&p->windows[a], p->axis[a].length,
                                                        keys_of(p, a), x[a], y[a])
                                       : attends(&p->axis[a], x[a], y[a], &distance);
            bias = bias * (2 * p->axis[a].window - 1) + distance + p->axis[a].window - 1;
        }
        if (!seen) continue;
        double score = 0;
        for (int64_t e = 0; e < p->dim; e++)
            score += case_get(c, NHOOD_Q, ((b * queries + i) * p->heads + h) * p->dim + e) *
                     case_get(c, extra ? NHOOD_EXTRA_K : NHOOD_K, row * p->dim + e);
        score *= scale;
        if (p->has_bias && !extra)
            score += case_get(c, NHOOD_BIAS, h * (c->elements[NHOOD_BIAS] / p->heads) + bias);
        sum += exp(score);
        for (int64_t v = 0; v < dv; v++)
            out[v] += exp(score) * case_get(c, extra ? NHOOD_EXTRA_V : NHOOD_V, row * dv + v);
    }
    for (int64_t v = 0; v < dv; v++)
        out[v] = sum > 0 ? out[v] / sum : 0;
    return log(sum);
}

static void check_forward(nhood_context *context, const char *text, const char *solver) {
    struct test_case c;
    double out[64], worst = 0;
    case_create(&c, text, 5);
    CHECK(!case_run(context, &c, solver), "%s: %s", text, nhood_last_error());
    int64_t rows = c.elements[NHOOD_LSE], dv = c.elements[NHOOD_O] / rows, heads = c.problem.heads;
    int64_t tokens = rows / heads / c.problem.batch;
    for (int64_t row = 0; row < rows; row++) {
        double lse = dense_row(&c, row / heads / tokens, row / heads % tokens, row % heads, out);
        if (lse != case_get(&c, NHOOD_LSE, row)) /* both may be -infinity */
            worst = fmax(worst, fabs(lse - case_get(&c, NHOOD_LSE, row)));
        for (int64_t v = 0; v < dv; v++)
            worst = fmax(worst, fabs(out[v] - case_get(&c, NHOOD_O, row * dv + v)));
    }
    CHECK(worst < 1e-13, "%s with %s: off by %g", text, solver, worst);
    case_destroy(&c);
}

/* Loss = sum(O * D_O) + sum(LSE * D_LSE) of a forward case. */
static double loss(nhood_context *context, struct test_case *fwd, const struct test_case *bwd) {
    double sum = 0;
    case_run(context, fwd, "reference");
    for (int64_t i = 0; i < fwd->elements[NHOOD_O]; i++)
        sum += case_get(fwd, NHOOD_O, i) * case_get(bwd, NHOOD_D_O, i);
    for (int64_t i = 0; i < fwd->elements[NHOOD_LSE]; i++)
        if (case_get(fwd, NHOOD_LSE, i) != -INFINITY)
            sum += case_get(fwd, NHOOD_LSE, i) * case_get(bwd, NHOOD_D_LSE, i);
    return sum;
}

/* Gradients of a solver against central differences of the reference's forward, at a few entries each. */
static void check_gradients(nhood_context *context, const char *shape, const char *solver) {
    static const int input[] = {NHOOD_Q,    NHOOD_K,       NHOOD_V,
                                NHOOD_BIAS, NHOOD_EXTRA_K, NHOOD_EXTRA_V};
    static const int gradient[] = {NHOOD_D_Q,    NHOOD_D_K,       NHOOD_D_V,
                                   NHOOD_D_BIAS, NHOOD_D_EXTRA_K, NHOOD_D_EXTRA_V};
    struct test_case fwd, bwd;
    char text[256];
    snprintf(text, sizeof text, "fwd:%s", shape);
    case_create(&fwd, text, 9);
    snprintf(text, sizeof text, "bwd:%s", shape);
    case_create(&bwd, text, 9);
    case_run(context, &fwd, "reference");
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        if (fwd.elements[tensor])
            for (int64_t i = 0; i < fwd.elements[tensor]; i++)
                case_set(&bwd, tensor, i, case_get(&fwd, tensor, i));
    CHECK(!case_run(context, &bwd, solver), "%s: %s", text, nhood_last_error());
    for (int g = 0; g < 6; g++) {
        uint64_t state = 77;
        for (int trial = 0; trial < 12 && fwd.elements[input[g]]; trial++) {
            int64_t i = test_between(&state, 0, fwd.elements[input[g]] - 1);
            double value = case_get(&fwd, input[g], i), step = 1e-5;
            case_set(&fwd, input[g], i, value + step);
            double high = loss(context, &fwd, &bwd);
            case_set(&fwd, input[g], i, value - step);
            double low = loss(context, &fwd, &bwd);
            case_set(&fwd, input[g], i, value);
            double expected = (high - low) / (2 * step), got = case_get(&bwd, gradient[g], i);
            CHECK(fabs(got - expected) < 1e-7 * (1 + fabs(expected)),
                  "%s with %s, gradient %d at %lld: %g, expected %g", text, solver, g, (long long)i,
                  got, expected);
        }
    }
    case_destroy(&fwd);
    case_destroy(&bwd);
}

int main(void) {
    static const char *const shapes[] = {
        "f64:b1h1d3:9:w3",
        "f64:b2h4k2d4v5:13:w5:s2:d2:x3",
        "f64:b1h2d3:11:w4:c1",
        "f64:b1h1d5:12:w6:s4:c1:x2",
        "f64:b1h2d3:6x7:w3x4:rpb",
        "f64:b1h2k1d4v2:7x8:w2x3:s1x2:d3x2:rpb:x2",
        "f64:b1h1d4:8x5:w5x5:s5x1:c10",
        "f64:b1h1d3:9x9:w3x3:d3x3",
        "f64:b1h1d3:4x5x6:w3x2x5:rpb",
        "f64:b1h2d2:5x4x6:w2x3x3:s2x1x3:d2x1x2:c101:x1",
        "f64:b1h1d3:3x4x33:w1x2x7:scale0.3",
    };
    /* Parts of grids and periodic axes; in the last three, some queries have no key left. */
    static const char *const parts[] = {
        "f64:b1h1d3:15:w5:q4+7",
        "f64:b1h2d3:15:w5:k2+9",
        "f64:b2h4k2d4v5:23:w5:s2:d2:q3+11:k5+13:x3",
        "f64:b1h2d3:21:w4:c1:q5+9:k7+6",
        "f64:b1h2d3:6x9:w3x4:q1+4x2+5:k0+5x3+4:rpb",
        "f64:b1h2k1d4v2:9x8x7:w2x3x3:s1x2x1:d3x2x1:c001:q2+5x0+8x3+3:k1+8x1+6x0+7",
        "f64:b1h1d3:12:w5:p1",
        "f64:b1h1d3:12:w12:s4:p1",
        "f64:b1h2d3:12x10:w4x3:d1x2:s2x1:p11:rpb:x2",
        "f64:b1h2d3:12x10:w5x3:p10:q9+7x2+3:k7+10x1+7",
        "f64:b1h1d3:8x6x10:w3x2x5:p101:q6+5x1+4x0+10",
        "f64:b1h1d3:30:w5:q2+20:k9+3",
        "f64:b1h1d3:9x9:w3x3:q0+4x0+4:k5+4x0+9",
        "f64:b1h1d3:12:w5:p1:q3+3:k7+2:x1",
    };
    /* Windows that are not by formula; in the last four, some queries have no key. */
    static const char *const windows[] = {
        "f64:b1h1d3:16:wr5w3",
        "f64:b2h4k2d4v5:7:wr30w8:x3",
        "f64:b1h2d3:15:wz4",
        "f64:b1h1d5:11:wz30",
        "f64:b1h2d3:14:wb4+3",
        "f64:b1h1d3:10x6:wr3w2xr9w4",
        "f64:b1h2k1d4v2:9x8:wb4+1xz3:x2",
        "f64:b1h1d3:6x12x7:w3xr4w3xb3+2:s2x1x1:c100",
        "f64:b1h1d2:5x9:wr4w2x3:p01:q1+3x7+4",
        "f64:b1h2d3:15:wz4v9",
        "f64:b1h2d3:20x5:wr12w4v7xb2+1v4:q3+14x0+5:k2+9x1+4",
        "f64:b2h2d3:9:wb3+0v0",
        "f64:b1h1d4:10x9:wb5+2v6xr3w1v2:x1",
    };
    nhood_context *context = NULL;
    nhood_context_create(NULL, &context);
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "fwd:%s", shapes[i]);
        check_forward(context, text, "reference");
        check_forward(context, text, "cpu.fused");
        check_gradients(context, shapes[i], "reference");
        check_gradients(context, shapes[i], "cpu.fused");
    }
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "fwd:%s", parts[i]);
        check_forward(context, text, "reference");
        check_gradients(context, parts[i], "reference");
        check_forward(context, text, "cpu.fused");
        check_gradients(context, parts[i], "cpu.fused");
    }
    for (size_t i = 0; i < sizeof windows / sizeof windows[0]; i++) {
        char text[256];
        snprintf(text, sizeof text, "fwd:%s", windows[i]);
        check_forward(context, text, "reference");
        check_gradients(context, windows[i], "reference");
        check_forward(context, text, "cpu.fused");
        check_gradients(context, windows[i], "cpu.fused");
    }
    nhood_context_destroy(context);
    return test_result();
}
