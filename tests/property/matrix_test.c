/* bf16 on tile registers beside the f32 kernels: where a work tile has numbers that are not finite, or scores that make LSE
 * coarse, results are the same; elsewhere they differ by rounding. On a machine without tile registers both are the same kernels, and
 * the shape that takes longest is left out. */
#include "case.h"
#include "dtype.h"

#include <math.h>
#include <stdbool.h>

static double get(const struct test_case *c, int tensor, int64_t i) {
    return nh_load_f64(NHOOD_DTYPE_BF16, c->io.data[tensor], i);
}

static void set(struct test_case *c, int tensor, int64_t i, double value) {
    nh_store_f64(NHOOD_DTYPE_BF16, c->io.data[tensor], i, value);
}

/* What one token of a tensor becomes. */
struct spoilt {
    int tensor;
    int64_t row;
    double value;
};

static void create(struct test_case *c, const char *op, const char *shape, struct spoilt spoilt) {
    char text[256];
    uint64_t state = 88172645463325252u;
    memset(c, 0, sizeof *c);
    c->io.struct_size = sizeof c->io;
    snprintf(text, sizeof text, "%s:%s", op, shape);
    CHECK(!nhood_problem_parse(text, &c->problem), "%s", nhood_last_error());
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        nhood_problem_elements(&c->problem, tensor, &c->elements[tensor]);
        if (!c->elements[tensor]) continue;
        c->io.data[tensor] = calloc((size_t)c->elements[tensor], sizeof(float));
        for (int64_t i = 0; tensor != NHOOD_LSE && i < c->elements[tensor]; i++)
            set(c, tensor, i, test_uniform(&state));
    }
    free(c->io.data[NHOOD_D_LSE]);
    c->io.data[NHOOD_D_LSE] = NULL;
    if (!c->elements[spoilt.tensor]) return;
    for (int64_t i = 0; i < c->problem.dim; i++)
        set(c, spoilt.tensor, spoilt.row * c->problem.dim + i, spoilt.value);
}

/* The largest difference of a tensor relative to its largest number; infinite if only one of two numbers is finite. */
static double difference(const struct test_case *a, const struct test_case *b, int tensor) {
    double worst = 0, largest = 1e-30;
    for (int64_t i = 0; i < a->elements[tensor]; i++) {
        const double x = get(a, tensor, i), y = get(b, tensor, i);
        if (!isfinite(x) != !isfinite(y)) return (double)INFINITY;
        if (!isfinite(x)) continue;
        worst = fmax(worst, fabs(x - y));
        largest = fmax(largest, fabs(x));
    }
    return worst / largest;
}

static int64_t not_finite(const struct test_case *c, int tensor) {
    int64_t count = 0;
    for (int64_t i = 0; i < c->elements[tensor]; i++)
        count += !isfinite(get(c, tensor, i));
    return count;
}

/* Runs both passes with either kernels. The backward of both gets O and LSE of the f32 kernels. */
static void compare(nhood_context *tiles, nhood_context *vectors, const char *shape,
                    struct spoilt spoilt) {
    static const int gradient[] = {NHOOD_D_Q, NHOOD_D_K, NHOOD_D_V};
    struct test_case fwd[2], bwd[2];
    for (int i = 0; i < 2; i++) {
        nhood_context *context = i ? vectors : tiles;
        create(&fwd[i], "fwd", shape, spoilt);
        CHECK(!case_run(context, &fwd[i], "cpu.fused"), "%s: %s", shape, nhood_last_error());
    }
    CHECK(difference(&fwd[0], &fwd[1], NHOOD_O) < 0.01, "%s, tensor %d: O differs by %g", shape,
          spoilt.tensor, difference(&fwd[0], &fwd[1], NHOOD_O));
    for (int i = 0; i < 2; i++) {
        create(&bwd[i], "bwd", shape, spoilt);
        memcpy(bwd[i].io.data[NHOOD_O], fwd[1].io.data[NHOOD_O],
               (size_t)fwd[1].elements[NHOOD_O] * 2);
        memcpy(bwd[i].io.data[NHOOD_LSE], fwd[1].io.data[NHOOD_LSE],
               (size_t)fwd[1].elements[NHOOD_LSE] * 4);
        CHECK(!case_run(i ? vectors : tiles, &bwd[i], "cpu.fused"), "%s: %s", shape,
              nhood_last_error());
    }
    for (int g = 0; g < 3; g++) {
        const double off = difference(&bwd[0], &bwd[1], gradient[g]);
        CHECK(off < 0.03, "%s, tensor %d: gradient %d differs by %g", shape, spoilt.tensor, g, off);
        const bool any = !isfinite(spoilt.value) && bwd[0].elements[spoilt.tensor];
        CHECK(!any || not_finite(&bwd[0], gradient[g]) < bwd[0].elements[gradient[g]],
              "%s: no gradient is finite", shape);
    }
    for (int i = 0; i < 2; i++) {
        case_destroy(&fwd[i]);
        case_destroy(&bwd[i]);
    }
}

int main(void) {
    nhood_context_options options = {.struct_size = sizeof options, .threads = 1, .isa = "amx"};
    nhood_context *tiles = NULL, *vectors = NULL;
    CHECK(!nhood_context_create(&options, &tiles), "%s", nhood_last_error());
    options.isa = "avx512";
    CHECK(!nhood_context_create(&options, &vectors), "%s", nhood_last_error());
    if (!tiles || !vectors) return test_result();
    nhood_device_info first = {.struct_size = sizeof first}, second = first;
    CHECK(!nhood_device_query(tiles, 0, &first) && !nhood_device_query(vectors, 0, &second), "%s",
          nhood_last_error());
    const bool differ = strcmp(first.description, second.description) != 0;
    const char *const shapes[] = {"bf16:b1h1d32:24x70:w9x9", "bf16:b1h1d48:400:w65",
                                  "bf16:b1h1d32:12x18x32:w9x9x9"};
    const size_t count = sizeof shapes / sizeof *shapes - !differ;
    const struct spoilt spoilt[] = {
        {NHOOD_BIAS, 0, 0},        {NHOOD_K, 50, NAN},   {NHOOD_V, 399, INFINITY},
        {NHOOD_Q, 0, NAN},         {NHOOD_D_O, 70, NAN}, {NHOOD_Q, 200, 3e4}, /* a coarse LSE */
        {NHOOD_K, 120, -INFINITY},
    };
    for (size_t s = 0; s < count; s++)
        for (size_t i = 0; i < sizeof spoilt / sizeof *spoilt; i++)
            compare(tiles, vectors, shapes[s], spoilt[i]);
    nhood_context_destroy(tiles);
    nhood_context_destroy(vectors);
    return test_result();
}
