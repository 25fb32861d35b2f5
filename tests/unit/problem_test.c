/* Problems: every refusal by its text, defaults, the problem text there and back, io checks. */
#include "nhood.h"
#include "test.h"

#include <locale.h>
#include <math.h>
#include <string.h>

static const char *const good = "fwd:f32:b2h4k2d16v8:9x11:w3x5";

/* A good problem with one field changed must be refused with a text that holds `part`. */
#define REFUSED(part, change)                                                                      \
    do {                                                                                           \
        nhood_problem p;                                                                           \
        nhood_problem_parse(good, &p);                                                             \
        change;                                                                                    \
        CHECK(nhood_problem_cost(&p, NULL, NULL) == NHOOD_ERR_ARGUMENT &&                          \
                  strstr(nhood_last_error(), part),                                                \
              "got '%s'", nhood_last_error());                                                     \
    } while (0)

static void check_fields(void) {
    REFUSED("struct_size = 3", p.struct_size = 3);
    REFUSED("problem.op = 0 is not in [1, 5]", p.op = 0);
    REFUSED("problem.dtype = 5", p.dtype = 5);
    REFUSED("problem.rank = 4", p.rank = 4);
    REFUSED("problem.flags = 32", p.flags = 32);
    REFUSED("problem.batch = -1", p.batch = -1);
    REFUSED("problem.heads = -1", p.heads = -1);
    REFUSED("problem.kv_heads = 3 does not divide heads 4", p.kv_heads = 3);
    REFUSED("problem.kv_heads = 8 is not in [0, 4]", p.kv_heads = 8);
    REFUSED("problem.dim = 0", p.dim = 0);
    REFUSED("problem.dim_v = 65537", p.dim_v = 65537);
    REFUSED("problem.extra_tokens = -1", p.extra_tokens = -1);
    REFUSED("problem.scale = inf", p.scale = INFINITY);
    REFUSED("problem.has_bias = 2", p.has_bias = 2);
    REFUSED("operation nn takes no bias", (p.op = NHOOD_OP_NN, p.has_bias = 1));
    REFUSED("operation pn takes none", (p.op = NHOOD_OP_PN, p.extra_tokens = 3));
    REFUSED("axis[0].length = 0", p.axis[0].length = 0);
    REFUSED("axis[1].window = 12 exceeds length 11", p.axis[1].window = 12);
    REFUSED("axis[1].window = 5 times dilation 3 exceeds length 11", p.axis[1].dilation = 3);
    REFUSED("axis[0].window = 0", p.axis[0].window = 0);
    REFUSED("axis[0].dilation = 0", p.axis[0].dilation = 0);
    REFUSED("axis[0].stride = 0", p.axis[0].stride = 0);
    REFUSED("axis[0].stride = 4 exceeds window 3", p.axis[0].stride = 4);
    REFUSED("axis[1].causal = 7", p.axis[1].causal = 7);
    REFUSED("axis[1].periodic = 2", p.axis[1].periodic = 2);
    REFUSED("axis[0].periodic = 1: a causal axis", (p.axis[0].periodic = p.axis[0].causal = 1));
    REFUSED("axis[1].dilation = 2 does not divide length 11",
            (p.axis[1].periodic = 1, p.axis[1].dilation = 2));
    REFUSED("axis[0].stride = 2 does not divide length / dilation 9",
            (p.axis[0].periodic = 1, p.axis[0].stride = 2));
    REFUSED("region[1].query_offset = -1", p.region[1].query_offset = -1);
    REFUSED("region[0].query_offset = 9 is not in [0, 9)", p.region[0].query_offset = 9);
    REFUSED("region[1].key_length = 0 is not in [1, 8]", p.region[1].key_offset = 3);
    REFUSED("region[1].key_length = 9 is not in [1, 8]",
            (p.region[1].key_offset = 3, p.region[1].key_length = 9));
    REFUSED("region[1].key_length = 12 is not in [1, 11]",
            (p.axis[1].periodic = 1, p.region[1].key_offset = 3, p.region[1].key_length = 12));
    REFUSED("axis[1].causal = 1: a relative bias", (p.axis[1].causal = 1, p.has_bias = 1));
    REFUSED("strides[bias] must be zero", (p.has_bias = 1, p.strides[NHOOD_BIAS].head = 1));
    REFUSED("outputs would overlap", p.strides[NHOOD_O].axis[1] = 1);
    REFUSED("reaches beyond", p.strides[NHOOD_Q].axis[0] = INT64_MAX / 2);
    REFUSED("more than 2^59 elements", (p.batch = 1LL << 40, p.heads = p.kv_heads = 1LL << 30));
    REFUSED("overflows", (p.axis[0].length = 1LL << 40, p.axis[1].length = 1LL << 40));
    CHECK(nhood_problem_cost(NULL, NULL, NULL) == NHOOD_ERR_ARGUMENT, "NULL problem");
}

static void check_text(void) {
    static const char *const same[] = {"fwd:f32:b1h1d32:7:w3",
                                       "bwd:bf16:b2h4k2d64v32:9x11:w3x5:s1x2:d2x1:c01:x7:det",
                                       "pn:f64:b1h1d3:4x5x6:w1x2x3:scale0.25:rpb",
                                       "fwd:f32:b1h1d32:7:w3:p1",
                                       "bwd:f16:b1h1d32:9x12:w3x5:p01:q2+5x9+7:k0+9x3+1:x2:det",
                                       "nn:f16:b1h2d8:30:w4:d7",
                                       "in:f32:b1h1d1:1:w1",
                                       "pn:f32:b1h1d8:9:w3:c1:zfill",
                                       "fwd:f32:b1h1d8:12x9:wr4w3xz3",
                                       "bwd:bf16:b1h1d8:1x12x9:w1xr40w3v39xb4+3v0:k0+1x3+20x1+8",
                                       "fwd:f32:b1h1d8:9:w12:clamp:tf32"};
    for (size_t i = 0; i < sizeof same / sizeof same[0]; i++) {
        nhood_problem problem;
        char text[256] = "";
        CHECK(!nhood_problem_parse(same[i], &problem), "%s: %s", same[i], nhood_last_error());
        if (strstr(same[i], "clamp")) continue; /* formats as the window it was clamped to */
        CHECK(!nhood_problem_format(&problem, text, sizeof text, NULL) && !strcmp(text, same[i]),
              "%s became %s", same[i], text);
    }
    static const char *const wrong[] = {"",
                                        "fwd",
                                        "xyz:f32:b1h1d1:1:w1",
                                        "fwd:f8:b1h1d1:1:w1",
                                        "fwd:f32:h1d1:1:w1",
                                        "fwd:f32:b1h1d1:1x2x3x4:w1",
                                        "fwd:f32:b1h1d1:4x4:w1",
                                        "fwd:f32:b1h1d1:4:w1:",
                                        "fwd:f32:b1h1d1:4:w1:q",
                                        "fwd:f32:b1h1d1:4:w1:c2",
                                        "fwd:f32:b1h1d1:4:w1:scalenan",
                                        "fwd:f32:b1h1d1:4:w1:scale",
                                        "fwd:f32:b1h1d1:99999999999999999999:w1",
                                        "fwd:f32:b1h1d1:4:w1 ",
                                        "fwd:f32:b1h1k0d1:4:w1",
                                        "fwd:f32:b1h1d1:4:w1:s1x1",
                                        "fwd:f32:b1h1d1:4:w2:d2:x1:d1",
                                        "fwd:f32:b1h1d1:4:w2:scale1:scale1",
                                        "fwd:f32:b1h1d1:4:wr2",
                                        "fwd:f32:b1h1d1:4:wr2w3",
                                        "fwd:f32:b1h1d1:4:wz0",
                                        "fwd:f32:b1h1d1:4:wz2v5",
                                        "fwd:f32:b1h1d1:4:wb2",
                                        "fwd:f32:b1h1d1:4:wb2+2",
                                        "fwd:f32:b1h1d1:4:wt4#0123456789abcdef",
                                        "fwd:f32:b1h1d1:4:wz2:c1",
                                        "fwd:f32:b1h1d1:4:wz2:rpb"};
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++) {
        nhood_problem problem;
        CHECK(nhood_problem_parse(wrong[i], &problem) == NHOOD_ERR_ARGUMENT, "'%s' was taken",
              wrong[i]);
    }
    nhood_problem problem;
    nhood_problem_parse("bla", &problem);
    CHECK(strstr(nhood_last_error(), "column 1"), "%s", nhood_last_error());
    nhood_problem_parse("fwd:f32:b1h1d1:4:w2:s1:x1:c1:s2", &problem);
    CHECK(strstr(nhood_last_error(), "column 30 ('s2'): expected each option once"), "%s",
          nhood_last_error());
    nhood_problem_parse(good, &problem);
    char text[8] = "keep";
    size_t length = 0;
    CHECK(nhood_problem_format(&problem, text, sizeof text, &length) == NHOOD_ERR_ARGUMENT &&
              length == strlen(good) && !strcmp(text, "keep"),
          "a short buffer was written to");
}

/* The text has a decimal point in every locale. */
static void check_locale(void) {
    static const char *const names[] = {"de_DE.UTF-8", "de_DE", "fr_FR.UTF-8"};
    nhood_problem problem;
    char text[128] = "";
    for (int i = 0; i < 3 && !setlocale(LC_ALL, names[i]); i++)
        continue;
    nhood_problem_parse("pn:f64:b1h1d3:4:w1:scale0.25", &problem);
    nhood_problem_format(&problem, text, sizeof text, NULL);
    CHECK(problem.scale == 0.25 && strstr(text, "scale0.25"), "%g %s", problem.scale, text);
    setlocale(LC_ALL, "C");
}

static void check_facts(void) {
    nhood_problem problem;
    double flops = 0, bytes = 0;
    int64_t elements = 0, first = 0, count = 0;
    nhood_problem_parse("fwd:bf16:b2h4k2d16v8:9x11:w3x5:x3", &problem);
    CHECK(!nhood_problem_cost(&problem, &flops, &bytes) &&
              flops == 2.0 * 2 * 4 * 99 * (15 + 3) * (16 + 8),
          "%g", flops);
    double halfs = 2.0 * 99 * (4 * 16 + 2 * 16 + 2 * 8 + 4 * 8) + 2.0 * 3 * 2 * (16 + 8);
    CHECK(bytes == 2 * halfs + 4.0 * 2 * 99 * 4, "%g", bytes);
    CHECK(!nhood_problem_elements(&problem, NHOOD_EXTRA_V, &elements) && elements == 2 * 3 * 2 * 8,
          "%lld", (long long)elements);
    CHECK(!nhood_problem_elements(&problem, NHOOD_D_Q, &elements) && elements == 0, "%lld",
          (long long)elements);
    nhood_axis axis = {10, 3, 1, 3, 0, 0};
    CHECK(!nhood_window(&axis, 9, &first, &count) && first == 3 && count == 3, "%lld %lld",
          (long long)first, (long long)count);
    CHECK(nhood_window(&axis, 10, &first, &count) == NHOOD_ERR_ARGUMENT, "index 10 of 10");
    CHECK(strstr(nhood_last_error(), "index = 10 is not in [0, 10)"), "%s", nhood_last_error());
}

static void check_io(void) {
    nhood_context *context = NULL;
    nhood_plan *plan = NULL;
    nhood_problem problem;
    static _Alignas(64) float tensor[4][49 * 8];
    static _Alignas(64) char workspace[1 << 20];
    CHECK(!nhood_context_create(NULL, &context), "%s", nhood_last_error());
    nhood_problem_parse("fwd:f32:b1h1d8:7x7:w3x3", &problem);
    CHECK(!nhood_plan_create(context, 0, &problem, NULL, &plan), "%s", nhood_last_error());
    nhood_io io = {
        .struct_size = sizeof io, .workspace = workspace, .workspace_bytes = sizeof workspace};
    for (int i = 0; i < 4; i++)
        io.data[NHOOD_Q + i] = tensor[i];
    CHECK(!nhood_plan_execute(plan, &io), "%s", nhood_last_error());
#define IO_REFUSED(part, change)                                                                   \
    do {                                                                                           \
        nhood_io bad = io;                                                                         \
        change;                                                                                    \
        CHECK(nhood_plan_execute(plan, &bad) == NHOOD_ERR_ARGUMENT &&                              \
                  strstr(nhood_last_error(), part),                                                \
              "%s", nhood_last_error());                                                           \
    } while (0)
    IO_REFUSED("io.data[k] is NULL", bad.data[NHOOD_K] = NULL);
    IO_REFUSED("io.data[o] is NULL", bad.data[NHOOD_O] = NULL);
    IO_REFUSED("is not aligned to 4 bytes", bad.data[NHOOD_V] = (char *)tensor + 2);
    IO_REFUSED("io.workspace_bytes = 1 is less", bad.workspace_bytes = 1);
    IO_REFUSED("64-byte aligned", bad.workspace = workspace + 32);
    IO_REFUSED("io.struct_size = 1", bad.struct_size = 1);
    CHECK(nhood_plan_execute(plan, NULL) == NHOOD_ERR_ARGUMENT, "NULL io");
    CHECK(nhood_plan_execute(NULL, &io) == NHOOD_ERR_ARGUMENT, "NULL plan");
    nhood_plan_options options = {.struct_size = sizeof options, .solver = "cpu.unfused"};
    nhood_plan *refused = plan;
    CHECK(nhood_plan_create(context, 0, &problem, &options, &refused) == NHOOD_ERR_UNSUPPORTED &&
              !refused && strstr(nhood_last_error(), "cpu.unfused: only pn, nn and in"),
          "%s", nhood_last_error());
    options.solver = "nothing";
    CHECK(nhood_plan_create(context, 0, &problem, &options, &refused) == NHOOD_ERR_ARGUMENT, "%s",
          nhood_last_error());
    CHECK(nhood_plan_create(context, 99, &problem, NULL, &refused) == NHOOD_ERR_ARGUMENT &&
              strstr(nhood_last_error(), "device = 99"),
          "%s", nhood_last_error());
    nhood_plan_release(plan);
    nhood_context_destroy(context);
}

int main(void) {
    check_fields();
    check_text();
    check_locale();
    check_facts();
    check_io();
    return test_result();
}
