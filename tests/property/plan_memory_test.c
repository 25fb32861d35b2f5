/* Plans of problems of two billion tokens take megabytes and milliseconds, whatever the lengths of their axes: counted by the
 * context's allocator, and on the processor's clock. */
#include "nhood.h"
#include "test.h"

#include <string.h>
#include <time.h>

enum { HEADER_BYTES = 64 };
static const size_t most_bytes = 8 << 20;
static const double most_s = 2; /* of a build with sanitizers, too */

static size_t held, most_held;

static void *allocate(void *user, size_t bytes, size_t alignment) {
    (void)user;
    (void)alignment;
    char *memory = test_allocate(bytes + HEADER_BYTES);
    if (!memory) return NULL;
    memcpy(memory, &bytes, sizeof bytes);
    held += bytes;
    if (held > most_held) most_held = held;
    return memory + HEADER_BYTES;
}

static void release(void *user, void *memory) {
    size_t bytes;
    (void)user;
    memcpy(&bytes, (char *)memory - HEADER_BYTES, sizeof bytes);
    held -= bytes;
    test_free((char *)memory - HEADER_BYTES);
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Plans of parts of long axes hold tables of the boxes, some 100 bytes a token. */
static void plan_problem(nhood_context *context, const nhood_problem *problem, const char *text,
                         size_t most) {
    nhood_plan *made = NULL;
    const size_t before = held;
    most_held = held;
    const double start = seconds();
    CHECK(!nhood_plan_create(context, 0, problem, NULL, &made), "%s: %s", text, nhood_last_error());
    const double taken = seconds() - start;
    CHECK(strstr(nhood_plan_description(made), "on cpu: cpu."), "%s", nhood_plan_description(made));
    CHECK(most_held - before < most, "%s: %zu bytes", nhood_plan_description(made),
          most_held - before);
    CHECK(taken < most_s, "%s: %g s", nhood_plan_description(made), taken);
    nhood_plan_release(made);
}

static void plan(nhood_context *context, const char *text, size_t most) {
    nhood_problem problem;
    CHECK(!nhood_problem_parse(text, &problem), "%s", nhood_last_error());
    plan_problem(context, &problem, text, most);
}

/* Plans with window tables of a million queries: what a generator says as a table, and steps without a period. */
static void plan_tables(nhood_context *context) {
    static const char *const windows[] = {"r62500w7", "r1000000w7", "z9", "b64+5", "r1000000w301"};
    enum { QUERIES = 1000000 };
    static const char *const ops[] = {"fwd:f32:b1h1d32", "bwd:f32:b1h1d32", "pn:f64:b1h1d32"};
    nhood_range *range = test_allocate(QUERIES * sizeof *range);
    const size_t kinds = sizeof windows / sizeof windows[0];
    for (size_t w = 0; range && w <= kinds; w++)
        for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
            nhood_problem problem;
            char text[200];
            snprintf(text, sizeof text, "%s:%d:w%s", ops[o], QUERIES, windows[w < kinds ? w : 1]);
            CHECK(!nhood_problem_parse(text, &problem), "%s", nhood_last_error());
            const int64_t keys = problem.windows[0].keys ? problem.windows[0].keys : QUERIES;
            CHECK(!nhood_windows_ranges(&problem.windows[0], QUERIES, range), "%s",
                  nhood_last_error());
            uint32_t drawn = 1;
            for (int32_t i = 0, first = 0; w == kinds && i < QUERIES; i++) {
                drawn = drawn * 1664525 + 1013904223;
                if (first < keys - 9) first += (int32_t)(drawn >> 30) % 3;
                range[i] = (nhood_range){first, 7};
            }
            problem.windows[0] =
                (nhood_windows){.kind = NHOOD_WINDOWS_TABLE, .keys = keys, .range = range};
            /* Vectors of 16 lanes share next to nothing where windows begin at random steps, those of 8 nearly all. */
            plan_problem(context, &problem, text, (size_t)(w < kinds ? 32 : 80) << 20);
        }
    test_free(range);
}

int main(void) {
    static const char *const shapes[] = {
        "2000000000:w129",          "2000000000:w128:s3:c1",
        "2000000000:w64:s64",       "2000000001:w33:d7",
        "2000000000:w3:d600000000", "1999999999:w1:d1999999999",
        "44722x44722:w13x13",       "44722x44722:w7x7:d3000x11:c10",
        "2x1000000000:w2x65",       "1000000000x2:w65x2:s8x1",
        "1260x1260x1260:w5x7x7:x3", "2x40000x25000:w2x13x7:s1x3x1:d1x2x5",
        "200000x100x100:w16x3x3",
    };
    static const char *const parts[] = {
        "2000000000:w129:q1000000007+1000:k999990000+20000",
        "2000000000:w129:s3:q0+1:k1+1999999999",
        "400000000000:w65:d3:q17+30000:k0+100000",
        "100000x20000:w7x9:p01:q99990+10x0+20000",
        "2000000000:w129:q5+1000000",
    };
    static const char *const ops[] = {"fwd:f32:b1h2d64", "bwd:f32:b1h2d64", "bwd:bf16:b1h1d128",
                                      "pn:f64:b1h1d32", "in:f32:b1h1d16"};
    nhood_context_options options = {.struct_size = sizeof options,
                                     .threads = 4,
                                     .cache = "",
                                     .allocate = allocate,
                                     .release = release};
    nhood_context *context = NULL;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (size_t o = 0; o < sizeof ops / sizeof ops[0]; o++) {
            char text[200];
            if (o >= 3 && strstr(shapes[s], ":x")) continue; /* no extra tokens there */
            snprintf(text, sizeof text, "%s:%s", ops[o], shapes[s]);
            plan(context, text, most_bytes);
        }
    for (size_t s = 0; s < sizeof parts / sizeof parts[0]; s++)
        for (size_t o = 0; o < 3; o++) {
            char text[200];
            snprintf(text, sizeof text, "%s:%s", ops[o], parts[s]);
            plan(context, text, strstr(parts[s], "+1000000") ? (size_t)100 << 20 : most_bytes);
        }
    plan_tables(context);
    nhood_context_destroy(context);
    CHECK(held == 0, "%zu bytes are left", held);
    return test_result();
}
