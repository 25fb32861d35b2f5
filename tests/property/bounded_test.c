/* Plans of any members within a bound, executed with many lengths: on every device of the context, whose memory must be the host's
 * (an emulated GPU's is), each solver's results are those of the reference's group of the same members, inputs behind the last
 * member, which are NaN, are not read, and the rest of the outputs is set as nhood.h says. */
#include "dtype.h"
#include "nhood.h"
#include "test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { MOST = 300, MEMBERS = 9, ROUNDS = 3, FENCE = 64 /* bytes behind a tensor */ };

static const char *const problems[] = {
    /* borders, shared heads, dilation, causal axes, strides; ranks; types; head dims that fill no vector */
    "fwd:f32:b1h2d20v12:17x15:w3x5",
    "bwd:f32:b1h2d20v12:17x15:w3x5",
    "fwd:bf16:b1h4k2d32:24x20:w5x7:d2x1:c01",
    "bwd:f16:b1h4k2d32:20x16:w5x4:d2x1:c01",
    "fwd:f64:b1h2d8:90:w7:s3:c1",
    "bwd:f64:b1h4k1d8:70:w7:s3:d3",
    "fwd:f16:b1h2d64v48:9x10x12:w3x4x3:s1x2x1",
    "bwd:bf16:b1h2d16:7x8x9:w3x3x3",
    "fwd:bf16:b1h1d32:130:w9:d4",
    "bwd:f32:b1h1d200v256:9x7:w3x5",
    "fwd:f32:b1h1d24v300:60:w13",
    /* tokens that begin at any element */
    "fwd:f16:b1h1d7v9:60:w13",
    "bwd:f16:b1h1d7v9:40:w5:s2",
    /* windows of cuda.small: keys near both ends of short axes, steps, causal axes, dilation, volumes, shared heads */
    "fwd:f16:b1h2d32:23x19:w7x7",
    "bwd:bf16:b1h2d64:23x19:w7x7",
    "bwd:f16:b1h4k2d24v40:26x21:w5x4:s2x3",
    "bwd:bf16:b1h1d32:40x22:w5x5:d3x2:c10",
    "bwd:f16:b1h1d16:7x9x12:w3x5x3",
    "bwd:f32:b1h1d32:20x16:w4x6",
    "bwd:f16:b1h2d32:90:w13",
    /* windows that short axes clamp, dilations longer than an axis */
    "fwd:f16:b1h2d32:20x18:w9x7:s4x1:d2x3:clamp",
    "bwd:f32:b1h2d16:14x18:w9x7:s4x1:d2x5:clamp",
    /* axes that go around */
    "fwd:f32:b1h2d16:24x20:w5x4:s1x2:p11",
    "bwd:f16:b1h2k1d32:24x20:w5x4:d2x1:p10",
    "fwd:bf16:b1h2d32:1x1:w1x1",
    /* so short that there are many */
    "fwd:f32:b1h1d8:6:w3",
    "bwd:f16:b1h1d16:2x3:w2x2",
};

/* ---- tensors ---- */

struct tensors {
    nhood_problem problem;
    int64_t tokens, width[NHOOD_TENSOR_COUNT]; /* elements of a token; 0: not used */
    nhood_group_io io;
};

static int32_t dtype_of(const struct tensors *t, int tensor) {
    const bool lse = tensor == NHOOD_LSE || tensor == NHOOD_D_LSE;
    return lse && t->problem.dtype != NHOOD_DTYPE_F64 ? NHOOD_DTYPE_F32 : t->problem.dtype;
}

static bool is_output(const struct tensors *t, int tensor) {
    return t->problem.op == NHOOD_OP_FWD ? tensor == NHOOD_O || tensor == NHOOD_LSE
                                         : tensor >= NHOOD_D_Q;
}

static size_t bytes_of(const struct tensors *t, int tensor) {
    return (size_t)(t->tokens * t->width[tensor]) * nh_dtype_bytes(dtype_of(t, tensor));
}

/* All tensors of `tokens` tokens: random, outputs full of 0xa5. */
static void create(struct tensors *t, const nhood_problem *problem, int64_t tokens, uint64_t seed) {
    uint64_t state = seed * 2654435761u + 88172645463325252u;
    nhood_problem one = *problem;
    one.flags |= NHOOD_FLAG_CLAMP_WINDOW;
    for (int a = 0; a < one.rank; a++) {
        one.axis[a].length = 1;
        one.axis[a].periodic = 0;
    }
    *t = (struct tensors){.problem = *problem, .tokens = tokens};
    t->io =
        (nhood_group_io){.struct_size = sizeof t->io, .query_tokens = tokens, .key_tokens = tokens};
    for (int i = 0; i < NHOOD_TENSOR_COUNT; i++) {
        CHECK(!nhood_problem_elements(&one, i, &t->width[i]), "%s", nhood_last_error());
        if (!t->width[i]) continue;
        t->io.data[i] = test_allocate(bytes_of(t, i) + FENCE);
        memset(t->io.data[i], 0xa5, bytes_of(t, i) + FENCE);
        for (int64_t e = 0; !is_output(t, i) && e < tokens * t->width[i]; e++)
            nh_store_f64(dtype_of(t, i), t->io.data[i], e, test_uniform(&state));
    }
}

static void destroy(struct tensors *t) {
    for (int i = 0; i < NHOOD_TENSOR_COUNT; i++)
        test_free(t->io.data[i]);
}

/* ---- the reference ---- */

/* The problem of a member, or one of no tokens. */
static nhood_problem member_of(const nhood_problem *problem, const int64_t *length) {
    nhood_problem member = *problem;
    if (!length[0]) member.batch = 0;
    for (int a = 0; a < problem->rank && length[0]; a++)
        member.axis[a].length = length[a];
    return member;
}

static int64_t tokens_of(int rank, const int64_t *length) {
    int64_t tokens = 1;
    for (int a = 0; a < rank; a++)
        tokens *= length[a];
    return tokens;
}

/* Runs the reference's plan of a group with the first `members` lengths on the first tokens of the tensors. */
static void run_reference(nhood_context *context, struct tensors *t, int32_t op, int members,
                          const int64_t *length) {
    nhood_problem *member = malloc((size_t)MOST * sizeof *member);
    nhood_plan *plan = NULL;
    const nhood_plan_options options = {.struct_size = sizeof options, .solver = "reference"};
    nhood_group_io io = t->io;
    io.count = members;
    io.query_tokens = 0;
    for (int i = 0; i < members; i++) {
        member[i] = member_of(&t->problem, length + i * t->problem.rank);
        member[i].op = op;
        if (member[i].batch)
            io.query_tokens += tokens_of(t->problem.rank, length + i * t->problem.rank);
    }
    io.key_tokens = io.query_tokens;
    CHECK(!nhood_plan_create_group(context, 0, member, members, &options, &plan), "%s",
          nhood_last_error());
    io.workspace_bytes = nhood_plan_workspace_bytes(plan);
    io.workspace = test_allocate(io.workspace_bytes + 64);
    CHECK(!nhood_plan_execute_group(plan, &io), "%s", nhood_last_error());
    test_free(io.workspace);
    nhood_plan_release(plan);
    free(member);
}

/* ---- one execute ---- */

struct draw {
    int64_t length[MOST * 3];
    int members, legal;           /* legal: those before the first that is not */
    int64_t tokens, legal_tokens; /* of the tensors, and of the legal members */
};

/* Lengths within the bound, some of them no members; `breaks`: 1: one is not legal, 2: the last ends behind the tensors. */
static void draw(const nhood_problem *problem, const nhood_bound *bound, int breaks, uint64_t seed,
                 struct draw *drawn) {
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    const bool clamps = problem->flags & NHOOD_FLAG_CLAMP_WINDOW;
    int64_t tokens = 0, last = 0;
    memset(drawn, 0, sizeof *drawn);
    drawn->members = (int)test_between(&state, breaks ? 3 : 1, bound->members);
    for (int i = 0; i < drawn->members; i++) {
        int64_t *length = drawn->length + i * problem->rank;
        if (i && test_between(&state, 0, 4) == 0) continue;
        for (int a = 0; a < problem->rank; a++) {
            const nhood_axis *axis = &problem->axis[a];
            const int64_t step = axis->periodic ? axis->dilation * axis->stride : 1;
            const int64_t least = clamps ? 1 : axis->window * axis->dilation;
            length[a] = test_between(&state, (least + step - 1) / step, axis->length / step) * step;
        }
        if (tokens + tokens_of(problem->rank, length) > bound->tokens) {
            memset(length, 0, (size_t)problem->rank * sizeof *length);
            continue;
        }
        last = i;
        tokens += tokens_of(problem->rank, length);
    }
    drawn->legal = drawn->members;
    drawn->legal_tokens = tokens;
    drawn->tokens = test_between(&state, tokens, bound->tokens);
    if (breaks == 1) {
        static const int64_t wrong[] = {-3, 0, INT64_C(1) << 30};
        const int at = (int)test_between(&state, 0, last),
                  axis = (int)test_between(&state, 0, problem->rank - 1);
        int64_t *length = drawn->length + at * problem->rank;
        for (int a = 0; a < problem->rank; a++)
            length[a] = problem->axis[a].length;
        length[axis] = wrong[problem->rank == 1 ? 2 : test_between(&state, 0, 2)];
        drawn->legal = at;
    } else if (breaks == 2) {
        drawn->tokens = tokens - 1;
        drawn->legal = (int)last;
    }
    drawn->legal_tokens = 0;
    for (int i = 0; i < drawn->legal; i++)
        if (drawn->length[i * problem->rank])
            drawn->legal_tokens += tokens_of(problem->rank, drawn->length + i * problem->rank);
}

static double tolerance(int32_t dtype) {
    return dtype == NHOOD_DTYPE_F64   ? 1e-10
           : dtype == NHOOD_DTYPE_F32 ? 1e-4
           : dtype == NHOOD_DTYPE_F16 ? 1e-2
                                      : 6e-2;
}

/* Compares the outputs with the reference's on legal members, and with what is set behind them. */
static void compare(const struct tensors *t, const struct tensors *reference,
                    const struct draw *drawn, const char *what) {
    for (int i = 0; i < NHOOD_TENSOR_COUNT; i++) {
        if (!t->width[i] || !is_output(t, i)) continue;
        const int32_t dtype = dtype_of(t, i);
        const int64_t legal = drawn->legal_tokens * t->width[i], all = t->tokens * t->width[i];
        double largest = 1, worst = 0;
        int64_t wrong = 0;
        for (int64_t e = 0; e < legal; e++) {
            const double x = nh_load_f64(dtype, t->io.data[i], e);
            const double y = nh_load_f64(dtype, reference->io.data[i], e);
            largest = fmax(largest, fabs(y));
            worst = x == x ? fmax(worst, fabs(x - y)) : INFINITY;
        }
        CHECK(worst <= tolerance(t->problem.dtype) * largest, "%s: tensor %d is off by %g of %g",
              what, i, worst, largest);
        for (int64_t e = legal; e < all; e++) {
            const double x = nh_load_f64(dtype, t->io.data[i], e);
            const double none = i == NHOOD_LSE ? -INFINITY : 0;
            wrong += drawn->legal < drawn->members ? x == x : x != none;
        }
        CHECK(!wrong, "%s: %lld elements of tensor %d behind the members", what, (long long)wrong,
              i);
        for (int e = 0; e < FENCE; e++)
            wrong += ((unsigned char *)t->io.data[i])[bytes_of(t, i) + (size_t)e] != 0xa5;
        CHECK(!wrong, "%s: tensor %d is written behind its end", what, i);
    }
}

/* Makes inputs NaN that no legal member has. */
static void spoil(struct tensors *t, const struct draw *drawn) {
    for (int i = 0; i < NHOOD_TENSOR_COUNT; i++)
        for (int64_t e = drawn->legal_tokens * t->width[i];
             !is_output(t, i) && e < t->tokens * t->width[i]; e++)
            nh_store_f64(dtype_of(t, i), t->io.data[i], e, NAN);
}

static void execute(nhood_context *context, const nhood_plan *plan, const nhood_problem *problem,
                    const struct draw *drawn, bool cpu, uint64_t seed, const char *what) {
    struct tensors own, reference;
    int32_t narrow[MOST * 3];
    create(&own, problem, drawn->tokens, seed);
    create(&reference, problem, drawn->tokens, seed);
    if (problem->op == NHOOD_OP_BWD) {
        run_reference(context, &reference, NHOOD_OP_FWD, drawn->legal, drawn->length);
        for (int i = NHOOD_O; i <= NHOOD_LSE; i++)
            if (bytes_of(&own, i)) memcpy(own.io.data[i], reference.io.data[i], bytes_of(&own, i));
    }
    run_reference(context, &reference, problem->op, drawn->legal, drawn->length);
    spoil(&own, drawn);
    for (int i = 0; i < MOST * 3; i++)
        narrow[i] = (int32_t)drawn->length[i];
    own.io.count = drawn->members;
    own.io.lengths = seed % 2 ? (const void *)narrow : drawn->length;
    own.io.length_bytes = seed % 2 ? 4 : 8;
    own.io.workspace_bytes = nhood_plan_workspace_bytes(plan);
    own.io.workspace =
        own.io.workspace_bytes ? test_allocate(own.io.workspace_bytes + FENCE) : NULL;
    if (own.io.workspace) memset(own.io.workspace, 0xff, own.io.workspace_bytes + FENCE);
    const nhood_status status = nhood_plan_execute_group(plan, &own.io);
    if (cpu && drawn->legal < drawn->members) {
        CHECK(status == NHOOD_ERR_ARGUMENT && strstr(nhood_last_error(), "member "), "%s: %s", what,
              nhood_last_error());
    } else {
        CHECK(!status, "%s: %s", what, nhood_last_error());
        compare(&own, &reference, drawn, what);
    }
    for (int e = 0; own.io.workspace && e < FENCE; e++)
        CHECK(((unsigned char *)own.io.workspace)[own.io.workspace_bytes + (size_t)e] == 0xff,
              "%s: behind the workspace", what);
    test_free(own.io.workspace);
    destroy(&own);
    destroy(&reference);
}

/* ---- all problems and solvers ---- */

static void check(nhood_context *context, int32_t device, const char *solver, const char *text,
                  uint64_t seed) {
    nhood_problem problem;
    nhood_plan *plan = NULL;
    char what[256];
    CHECK(!nhood_problem_parse(text, &problem), "%s", nhood_last_error());
    int64_t longest = 1;
    for (int a = 0; a < problem.rank; a++)
        longest *= problem.axis[a].length;
    const nhood_bound bound = {
        .struct_size = sizeof bound,
        .members = longest < 10 ? MOST : MEMBERS, /* more than a block looks at at a time */
        .tokens = longest < 10 ? MOST * longest / 2 : 2 * longest + 5};
    const nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_status status =
        nhood_plan_create_bounded(context, device, &problem, &bound, &options, &plan);
    if (status == NHOOD_ERR_UNSUPPORTED && solver && strcmp(solver, "cuda.naive") != 0) return;
    CHECK(!status, "%s by %s: %s", text, solver ? solver : "any", nhood_last_error());
    for (int round = 0; !status && round < ROUNDS + 2; round++) {
        struct draw drawn;
        const int breaks = round < ROUNDS ? 0 : round - ROUNDS + 1;
        snprintf(what, sizeof what, "%s by %s, round %d", text, solver ? solver : "any", round);
        draw(&problem, &bound, breaks, seed + (uint64_t)round, &drawn);
        execute(context, plan, &problem, &drawn, device == 0, seed + (uint64_t)round, what);
    }
    nhood_plan_release(plan);
}

/* ---- refusals ---- */

#define REFUSED(call, text)                                                                        \
    CHECK((call) == NHOOD_ERR_ARGUMENT && strstr(nhood_last_error(), text), "not '%s' but '%s'",   \
          text, nhood_last_error())

static void refuses_problems(nhood_context *context) {
    nhood_plan *plan = NULL;
    nhood_problem problem;
    nhood_bound bound;
    nhood_plan_options options;
#define WITH(change, text)                                                                         \
    do {                                                                                           \
        CHECK(!nhood_problem_parse("fwd:f32:b1h2d8:9x9:w3x3", &problem), "text");                  \
        bound = (nhood_bound){.struct_size = sizeof bound, .members = 3, .tokens = 99};            \
        options = (nhood_plan_options){.struct_size = sizeof options};                             \
        change;                                                                                    \
        REFUSED(nhood_plan_create_bounded(context, 0, &problem, &bound, &options, &plan), text);   \
        CHECK(!plan, "a plan in spite of an error");                                               \
    } while (0)
    WITH(problem.op = NHOOD_OP_PN, "problem.op = 3: a plan within a bound is of fwd or bwd");
    WITH(problem.batch = 2, "problem.batch = 2: a member of a plan within a bound is one sample");
    WITH(problem.has_bias = 1, "problem.has_bias = 1: a plan within a bound takes no bias");
    WITH(problem.extra_tokens = 3, "problem.extra_tokens = 3: a plan");
    WITH((problem.axis[1].periodic = 1, problem.flags = NHOOD_FLAG_CLAMP_WINDOW),
         "problem.flags = 1: a plan within a bound clamps no windows of periodic axes");
    WITH((problem.region[1].key_offset = 1, problem.region[1].key_length = 3),
         "region[1] is a part of the axis");
    WITH((problem.axis[0].window = 1, problem.windows[0].kind = NHOOD_WINDOWS_CUT,
          problem.windows[0].window = 3),
         "windows[0].kind = 3: a plan within a bound has windows by formula");
    WITH(problem.strides[NHOOD_Q] = ((nhood_strides){0, {160, 16}, 8}),
         "strides[q] that are not those of tokens in a row");
    WITH(problem.axis[0].window = 10, "axis[0].window = 10 exceeds length 9");
    WITH(bound.struct_size = 3, "bound.struct_size = 3");
    WITH(bound.members = -1, "bound.members = -1 is not in [0, 65536]");
    WITH(bound.tokens = INT64_C(1) << 41, "bound.tokens = ");
    WITH((bound.tokens = INT64_C(1) << 40, problem.heads = 1 << 20), "more than 2^60 bytes");
    WITH(options.effort = NHOOD_EFFORT_MEASURE, "options.effort = 1: a plan within a bound");
    WITH(options.solver = "best", "options.solver = 'best'");
    REFUSED(nhood_plan_create_bounded(context, 0, NULL, &bound, NULL, &plan), "problem is NULL");
    CHECK(!nhood_problem_parse("fwd:f32:b1h2d8:9x9:w3x3", &problem), "text");
    REFUSED(nhood_plan_create_bounded(context, 0, &problem, NULL, NULL, &plan), "bound is NULL");
    REFUSED(nhood_plan_create_bounded(context, 99, &problem, &bound, NULL, &plan), "device = 99");
    REFUSED(nhood_plan_create_bounded(NULL, 0, &problem, &bound, NULL, &plan), "context is NULL");
    REFUSED(nhood_plan_create_bounded(context, 0, &problem, &bound, NULL, NULL), "plan is NULL");
}

static void refuses_io(nhood_context *context) {
    nhood_problem problem;
    nhood_plan *plan = NULL;
    struct tensors t;
    int32_t length[] = {9, 5, 0, 0, 3, 3, 4};
    CHECK(!nhood_problem_parse("fwd:f32:b1h2d8:9x9:w3x3", &problem), "%s", nhood_last_error());
    const nhood_bound bound = {.struct_size = sizeof bound, .members = 3, .tokens = 70};
    CHECK(!nhood_plan_create_bounded(context, 0, &problem, &bound, NULL, &plan), "%s",
          nhood_last_error());
    CHECK(strstr(nhood_plan_description(plan),
                 "any 3 members of 70 tokens, at most fwd:f32:b1h2d8:9x9:w3x3, on cpu"),
          "%s", nhood_plan_description(plan));
    create(&t, &problem, 60, 1);
    t.io.count = 3;
    t.io.lengths = length;
    t.io.length_bytes = 4;
    CHECK(!nhood_plan_execute_group(plan, &t.io), "%s", nhood_last_error());
#define BAD(change, undo, text)                                                                    \
    do {                                                                                           \
        change;                                                                                    \
        REFUSED(nhood_plan_execute_group(plan, &t.io), text);                                      \
        undo;                                                                                      \
    } while (0)
    const int64_t offset[] = {0};
    const nhood_io member = {.struct_size = sizeof member};
    BAD(t.io.struct_size = 8, t.io.struct_size = sizeof t.io, "io.struct_size = 8");
    BAD(t.io.count = 4, t.io.count = 3, "io.count = 4 is not in [0, 3]");
    BAD(t.io.query_tokens = 71, t.io.query_tokens = 60, "io.query_tokens = 71 is not in [0, 70]");
    BAD(t.io.key_tokens = 59, t.io.key_tokens = 60, "io.key_tokens = 59 is not in [60, 60]");
    BAD(t.io.member = &member, t.io.member = NULL, "io.member is not NULL");
    BAD(t.io.key_offset = offset, t.io.key_offset = NULL, "io.key_offset is not NULL");
    BAD(t.io.length_bytes = 2, t.io.length_bytes = 4, "io.length_bytes = 2 is not 4 or 8");
    BAD(t.io.lengths = NULL, t.io.lengths = length, "io.lengths is NULL");
    BAD(t.io.lengths = (char *)length + 1, t.io.lengths = length, "is not aligned to 4 bytes");
    void *const o = t.io.data[NHOOD_O];
    BAD(t.io.data[NHOOD_O] = NULL, t.io.data[NHOOD_O] = o, "io.data[o] is NULL");
    BAD(length[4] = 10, length[4] = 3, "member 2: lengths[2][0] = 10 is not in [3, 9]");
    BAD(length[5] = 2, length[5] = 3, "member 2: lengths[2][1] = 2 is not in [3, 9]");
    BAD(length[4] = 6, length[4] = 3, "member 2 ends behind io.query_tokens = 60, at token 63");
    REFUSED(nhood_plan_execute_group(plan, NULL), "io is NULL");
    REFUSED(nhood_plan_execute(plan, &member), "plan is one of a group");
    t.io.query_tokens = t.io.key_tokens = 0; /* nothing to compute, whatever the pointers */
    t.io.data[NHOOD_O] = NULL;
    CHECK(!nhood_plan_execute_group(plan, &t.io), "%s", nhood_last_error());
    t.io.data[NHOOD_O] = o;
    destroy(&t);
    nhood_plan_release(plan);
    CHECK(!nhood_problem_parse("fwd:f32:b1h2d8:12:w3:d2:s2:p1", &problem), "%s",
          nhood_last_error());
    CHECK(!nhood_plan_create_bounded(context, 0, &problem, &bound, NULL, &plan), "%s",
          nhood_last_error());
    create(&t, &problem, 60, 1);
    t.io.count = 1;
    t.io.lengths = length;
    t.io.length_bytes = 4;
    length[0] = 8;
    CHECK(!nhood_plan_execute_group(plan, &t.io), "%s", nhood_last_error());
    length[0] = 10;
    REFUSED(nhood_plan_execute_group(plan, &t.io), "is no multiple of dilation 2 and stride 2");
    destroy(&t);
    nhood_plan_release(plan);
}

/* Kernels that a bundle has, all that a plan needs, with the device's own compiler elsewhere. */
static void from_a_bundle(nhood_context *context, int32_t device, const char *text) {
    static const char path[] = "bounded_test.bundle";
    nhood_problem problem;
    nhood_bundle *bundle = NULL;
    nhood_context *other = NULL;
    nhood_plan *plan = NULL;
    nhood_kernel_counts counts = {.struct_size = sizeof counts};
    const nhood_bound bound = {.struct_size = sizeof bound, .members = 5, .tokens = 900};
    CHECK(!nhood_problem_parse(text, &problem) && !nhood_bundle_create(context, &bundle), "%s",
          nhood_last_error());
    REFUSED(nhood_bundle_add_bounded(bundle, device, &problem, NULL, NULL), "bound is NULL");
    REFUSED(nhood_bundle_add_bounded(NULL, device, &problem, &bound, NULL), "bundle is NULL");
    CHECK(nhood_bundle_add_bounded(bundle, 0, &problem, &bound, NULL) == NHOOD_ERR_UNSUPPORTED,
          "kernels of a CPU");
    CHECK(!nhood_bundle_add_bounded(bundle, device, &problem, &bound, NULL) &&
              !nhood_bundle_save(bundle, path),
          "%s", nhood_last_error());
    nhood_bundle_destroy(bundle);
    const nhood_context_options options = {
        .struct_size = sizeof options, .cache = "", .threads = 1, .bundle = path};
    CHECK(!nhood_context_create(&options, &other) &&
              !nhood_plan_create_bounded(other, device, &problem, &bound, NULL, &plan) &&
              !nhood_context_kernels(other, &counts),
          "%s", nhood_last_error());
    CHECK(counts.from_bundle > 1 && !counts.compiled, "%lld kernels from the bundle, %lld compiled",
          (long long)counts.from_bundle, (long long)counts.compiled);
    nhood_plan_release(plan);
    nhood_context_destroy(other);
    remove(path);
}

int main(int argc, char **argv) {
    static const char *const solvers[][5] = {
        {NULL, "reference"}, {NULL, "cuda.naive", "cuda.fused80", "cuda.split80", "cuda.small"}};
    nhood_context *context = NULL;
    const nhood_context_options options = {
        .struct_size = sizeof options, .cache = "", .threads = 2};
    const uint64_t seeds = argc > 1 ? (uint64_t)atoi(argv[1]) : 3;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    CHECK(nhood_device_count(context) > 1 || argc < 3, "no emulated GPU");
    for (int32_t device = 0; device < nhood_device_count(context); device++)
        for (int s = 0; s < (device ? 5 : 2); s++)
            for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
                for (uint64_t seed = 0; seed < (device ? 1 : seeds); seed++)
                    check(context, device, solvers[device != 0][s], problems[i], 100 * seed + i);
    for (int32_t device = 1; device < nhood_device_count(context); device++)
        from_a_bundle(context, device, problems[1]);
    refuses_problems(context);
    refuses_io(context);
    nhood_context_destroy(context);
    return test_result();
}
