/* Groups of random members: on every device of the context, whose memory must be the host's (an emulated GPU's is), results are
 * those of the members' own plans, in member form and in packed tensors; on the CPU all bits, whatever the number of threads. The
 * members' own plans are checked against the reference. What is not legal is refused, with the member's index. */
#include "case.h"

#include <stdbool.h>

enum { MOST = 12, TEXT = 512 };

struct group {
    int count;
    nhood_problem problem[MOST];
    char text[MOST][TEXT];
    struct test_case alone[MOST], together[MOST];
};

/* A member of the given rank; `shared` draws what all members have in common. */
static void draw_member(uint64_t *state, const char *head, int rank, bool same_heads, bool packed,
                        bool bias, char *text) {
    char part[6][64] = {""};
    const bool whole = packed || test_between(state, 0, 2);
    for (int a = 0; a < rank; a++) {
        const int most = rank == 1 ? 90 : rank == 2 ? 17 : 8;
        const int l = (int)test_between(state, 1, most),
                  d = (int)test_between(state, 1, l > 5 ? 2 : 1);
        const int w = (int)test_between(state, 1, l / d), s = (int)test_between(state, 1, w);
        const int q = whole ? 0 : (int)test_between(state, 0, l - 1);
        const int causal = !bias && test_between(state, 0, 3) == 0;
        const char *x = a ? "x" : "";
        snprintf(part[0] + strlen(part[0]), 20, "%s%d", x, l);
        snprintf(part[1] + strlen(part[1]), 20, "%s%d", x, w);
        snprintf(part[2] + strlen(part[2]), 20, "%s%d", x, test_between(state, 0, 1) ? 1 : s);
        snprintf(part[3] + strlen(part[3]), 20, "%s%d", x, d);
        snprintf(part[4] + strlen(part[4]), 2, "%d", causal);
        snprintf(part[5] + strlen(part[5]), 40, "%s%d+%d", x, q,
                 whole ? l : (int)test_between(state, 1, l - q));
    }
    const int batch = (int)test_between(state, 0, 9) == 0 ? 0 : (int)test_between(state, 1, 2);
    const int kv = same_heads ? 2 : (int)test_between(state, 1, 3);
    const int heads = same_heads ? 4 : kv * (int)test_between(state, 1, 2);
    snprintf(text, TEXT, "%s:b%dh%dk%d%s:%s:w%s:s%s:d%s:c%s:q%s%s", head, batch, heads, kv,
             "d20v12", part[0], part[1], part[2], part[3], part[4], part[5], bias ? ":rpb" : "");
}

static const char *const heads_of[] = {"fwd:f32", "bwd:f32", "bwd:f64",
                                       "pn:f32",  "nn:f64",  "in:f32"};

static void draw_group(uint64_t seed, bool packed, struct group *group) {
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    const char *head = heads_of[test_between(&state, 0, 5)];
    const int rank = (int)test_between(&state, 1, 3);
    const bool bias = !packed && strchr("fb", head[0]) && test_between(&state, 0, 2) == 0;
    memset(group, 0, sizeof *group);
    group->count = (int)test_between(&state, 1, MOST);
    for (int i = 0; i < group->count; i++) {
        if (i && test_between(&state, 0, 3) == 0)
            memcpy(group->text[i], group->text[i - 1], TEXT);
        else
            draw_member(&state, head, rank, packed, packed, bias, group->text[i]);
        case_create(&group->alone[i], group->text[i], seed + (uint64_t)i);
        case_create(&group->together[i], group->text[i], seed + (uint64_t)i);
        group->problem[i] = group->alone[i].problem;
    }
}

static bool is_output(int32_t op, int t) {
    switch (op) {
    case NHOOD_OP_FWD: return t == NHOOD_O || t == NHOOD_LSE;
    case NHOOD_OP_BWD: return t >= NHOOD_D_Q;
    case NHOOD_OP_PN: return t == NHOOD_A;
    case NHOOD_OP_NN: return t == NHOOD_O;
    default: return t == NHOOD_D_V;
    }
}

/* Runs the members alone, with O and LSE of their forwards as inputs of backwards. */
static void run_alone(nhood_context *context, int32_t device, struct group *group) {
    for (int i = 0; i < group->count; i++) {
        struct test_case *c = &group->alone[i];
        if (c->problem.op == NHOOD_OP_BWD && c->problem.batch) {
            struct test_case forward = *c;
            forward.problem.op = NHOOD_OP_FWD;
            CHECK(!case_run(context, &forward, NULL), "%s: %s", group->text[i], nhood_last_error());
            for (int t = NHOOD_O; t <= NHOOD_LSE; t++)
                memcpy(group->together[i].io.data[t], c->io.data[t],
                       (size_t)c->elements[t] * case_element_bytes(&c->problem, t));
        }
        CHECK(!case_run_on(context, device, c, NULL), "%s: %s", group->text[i], nhood_last_error());
    }
}

static void compare(const struct group *group, const struct test_case *other, bool bits,
                    const char *how) {
    for (int i = 0; i < group->count; i++) {
        const struct test_case *c = &group->alone[i];
        for (int t = 0; t < NHOOD_TENSOR_COUNT; t++) {
            if (!c->elements[t] || !is_output(c->problem.op, t)) continue;
            const size_t bytes = (size_t)c->elements[t] * case_element_bytes(&c->problem, t);
            const bool equal = !memcmp(c->io.data[t], other[i].io.data[t], bytes);
            CHECK(bits ? equal : case_difference(c, &other[i], t) <= 1e-4,
                  "%s: tensor %d of member %d, %s, is off by %g", how, t, i, group->text[i],
                  case_difference(c, &other[i], t));
        }
    }
}

static void with_workspace(const nhood_plan *plan, nhood_group_io *io) {
    io->struct_size = sizeof *io;
    io->workspace_bytes = nhood_plan_workspace_bytes(plan);
    io->workspace = io->workspace_bytes ? test_allocate(io->workspace_bytes) : NULL;
    if (io->workspace) memset(io->workspace, 0xff, io->workspace_bytes);
}

static void forget_outputs(struct group *group) {
    for (int i = 0; i < group->count; i++)
        for (int t = 0; t < NHOOD_TENSOR_COUNT; t++)
            if (is_output(group->problem[i].op, t) && group->together[i].io.data[t])
                memset(group->together[i].io.data[t], 0xa5,
                       (size_t)group->together[i].elements[t] *
                           case_element_bytes(&group->problem[i], t));
}

static void run_members(nhood_context *context, int32_t device, struct group *group, bool bits,
                        const char *how) {
    nhood_plan *plan = NULL;
    nhood_io member[MOST];
    forget_outputs(group);
    for (int i = 0; i < group->count; i++)
        member[i] = group->together[i].io;
    CHECK(!nhood_plan_create_group(context, device, group->problem, group->count, NULL, &plan),
          "%s: %s", group->text[0], nhood_last_error());
    if (!plan) return;
    nhood_group_io io = {.count = group->count, .member = member};
    with_workspace(plan, &io);
    CHECK(!nhood_plan_execute_group(plan, &io), "%s", nhood_last_error());
    compare(group, group->together, bits, how);
    test_free(io.workspace);
    nhood_plan_release(plan);
}

/* Packs the tensors of all members, runs, and takes the results apart again. */
static void run_packed(nhood_context *context, int32_t device, struct group *group, bool bits) {
    nhood_plan *plan = NULL;
    nhood_group_io io = {.count = group->count};
    int64_t offset[2][MOST + 1] = {{0}};
    forget_outputs(group);
    CHECK(!nhood_plan_create_group(context, device, group->problem, group->count, NULL, &plan),
          "%s: %s", group->text[0], nhood_last_error());
    if (!plan) return;
    with_workspace(plan, &io);
    for (int i = 0; i < group->count; i++) {
        int64_t tokens = group->problem[i].batch;
        for (int a = 0; a < group->problem[i].rank; a++)
            tokens *= group->problem[i].axis[a].length;
        offset[0][i + 1] = offset[1][i + 1] = offset[0][i] + tokens;
    }
    io.query_tokens = io.key_tokens = offset[0][group->count];
    io.query_offset = offset[0];
    io.key_offset = offset[1];
    for (int t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        int64_t bytes = 0;
        for (int i = 0; i < group->count; i++)
            bytes +=
                group->together[i].elements[t] * (int64_t)case_element_bytes(group->problem, t);
        io.data[t] = malloc((size_t)bytes + 8);
        char *at = io.data[t];
        for (int i = 0; i < group->count; i++) {
            const size_t own =
                (size_t)group->together[i].elements[t] * case_element_bytes(group->problem, t);
            if (own) memcpy(at, group->together[i].io.data[t], own);
            at += own;
        }
    }
    const nhood_status status = nhood_plan_execute_group(plan, &io);
    /* slots of A differ in number from member to member, so that its tokens are not equally far apart */
    const bool slots = group->problem[0].op == NHOOD_OP_PN || group->problem[0].op == NHOOD_OP_NN ||
                       group->problem[0].op == NHOOD_OP_IN;
    CHECK(!status || (slots && strstr(nhood_last_error(), "of a ")), "%s", nhood_last_error());
    for (int t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        const char *at = io.data[t];
        for (int i = 0; i < group->count; i++) {
            const size_t own =
                (size_t)group->together[i].elements[t] * case_element_bytes(group->problem, t);
            if (own) memcpy(group->together[i].io.data[t], at, own);
            at += own;
        }
        free(io.data[t]);
    }
    if (!status) compare(group, group->together, bits, "packed");
    test_free(io.workspace);
    nhood_plan_release(plan);
}

static void against_reference(nhood_context *context, struct group *group) {
    for (int i = 0; i < group->count; i++) {
        if (!group->problem[i].batch) continue;
        CHECK(!case_run(context, &group->together[i], "reference"), "%s", nhood_last_error());
    }
    compare(group, group->together, false, "reference");
}

static void free_group(struct group *group) {
    for (int i = 0; i < group->count; i++) {
        case_destroy(&group->alone[i]);
        case_destroy(&group->together[i]);
    }
}

static void in_order(void *user, int64_t count, nhood_parallel_body body, void *arg) {
    (void)user;
    for (int64_t i = count - 1; i >= 0; i--)
        body(arg, i, 0);
}

static nhood_context *create(int32_t threads, bool own_loop) {
    nhood_context *context = NULL;
    const nhood_context_options options = {.struct_size = sizeof options,
                                           .cache = "",
                                           .threads = threads,
                                           .parallel_for = own_loop ? in_order : NULL};
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    return context;
}

static void random_groups(int count) {
    nhood_context *const context = create(3, false), *const one = create(1, false),
                         *const own = create(2, true);
    for (int32_t device = 0; device < nhood_device_count(context); device++)
        for (int i = 0; i < (device ? count / 8 : count); i++) {
            struct group group;
            const bool packed = i % 2;
            draw_group((uint64_t)(1000 * device + i), packed, &group);
            run_alone(context, device, &group);
            run_members(context, device, &group, device == 0, "members");
            if (packed) run_packed(context, device, &group, device == 0);
            if (device == 0) {
                run_members(one, 0, &group, true, "one thread");
                run_members(own, 0, &group, true, "the program's loop");
                against_reference(context, &group);
            }
            free_group(&group);
        }
    nhood_context_destroy(context);
    nhood_context_destroy(one);
    nhood_context_destroy(own);
}

/* Work enough for several threads, in several waves of backwards. */
static void large_group(void) {
    static const char *const texts[] = {
        "bwd:f32:b1h4d20v12:60x61:w9x9",   "bwd:f32:b2h4d20v12:9x9:w3x3",
        "bwd:f32:b1h4d20v12:40x40:w21x21", "bwd:f32:b1h4d20v12:64x30:w5x7:d2x1",
        "bwd:f32:b1h4d20v12:5x700:w5x33",  "bwd:f32:b1h4d20v12:64x64:w7x7"};
    nhood_context *const context = create(3, false);
    struct group group = {.count = sizeof texts / sizeof *texts};
    for (int i = 0; i < group.count; i++) {
        snprintf(group.text[i], TEXT, "%s", texts[i]);
        case_create(&group.alone[i], texts[i], (uint64_t)i);
        case_create(&group.together[i], texts[i], (uint64_t)i);
        group.problem[i] = group.alone[i].problem;
    }
    run_alone(context, 0, &group);
    for (int i = 0; i < 3; i++) {
        run_members(context, 0, &group, true, "large");
        run_packed(context, 0, &group, true);
    }
    free_group(&group);
    nhood_context_destroy(context);
}

/* ---- refusals ---- */

#define REFUSED(call, text)                                                                        \
    CHECK((call) == NHOOD_ERR_ARGUMENT && strstr(nhood_last_error(), text), "not '%s' but '%s'",   \
          text, nhood_last_error())

static void refuses_problems(nhood_context *context) {
    nhood_problem problem[3];
    nhood_plan *plan = NULL;
#define WITH(member, change, text)                                                                 \
    do {                                                                                           \
        for (int i = 0; i < 3; i++)                                                                \
            CHECK(!nhood_problem_parse("fwd:f32:b1h2d8:9x9:w3x3", &problem[i]), "text");           \
        change;                                                                                    \
        REFUSED(nhood_plan_create_group(context, 0, problem, 3, NULL, &plan),                      \
                "member " #member ": " text);                                                      \
        CHECK(!plan, "a plan in spite of an error");                                               \
    } while (0)
    WITH(2, problem[2].axis[1].window = 10, "axis[1].window = 10 exceeds length 9");
    WITH(1, problem[1].axis[0].dilation = 4,
         "axis[0].window = 3 times dilation 4 exceeds length 9");
    WITH(0, problem[0].heads = 0, "problem.heads = 0 is not in [1, ");
    WITH(1, problem[1].struct_size = 3, "problem.struct_size = 3");
    WITH(2, problem[2].region[0].key_offset = 9, "region[0].key_offset = 9 is not in [0, 9)");
    WITH(1, problem[1].op = NHOOD_OP_BWD, "problem.op = 2, that of member 0 is 1");
    WITH(2, problem[2].dtype = NHOOD_DTYPE_F64, "problem.dtype = 1, that of member 0 is 2");
    WITH(1, problem[1].rank = 1, "problem.rank = 1, that of member 0 is 2");
    WITH(1, problem[1].dim = 16, "problem.dim = 16, that of member 0 is 8");
    WITH(2, problem[2].dim_v = 4, "problem.dim_v = 4, that of member 0 is 8");
    WITH(1, problem[1].flags = NHOOD_FLAG_DETERMINISTIC,
         "problem.flags = 2, that of member 0 is 0");
    WITH(1, problem[1].has_bias = 1, "problem.has_bias = 1, that of member 0 is 0");
    WITH(2, problem[2].scale = 0.5, "problem.scale = 0.5, that of member 0 is 0.353553");
    REFUSED(nhood_plan_create_group(context, 0, problem, -1, NULL, &plan),
            "count = -1 is not in [0, ");
    REFUSED(nhood_plan_create_group(context, 0, problem, NHOOD_MOST_MEMBERS + 1, NULL, &plan),
            "count = 65537 is not in [0, 65536]");
    REFUSED(nhood_plan_create_group(context, 0, NULL, 1, NULL, &plan), "problems is NULL");
    REFUSED(nhood_plan_create_group(context, 99, problem, 0, NULL, &plan), "device = 99");
    REFUSED(nhood_plan_create_group(NULL, 0, problem, 1, NULL, &plan), "context is NULL");
    REFUSED(nhood_plan_create_group(context, 0, problem, 1, NULL, NULL), "plan is NULL");
    const nhood_plan_options options = {.struct_size = sizeof options, .solver = "best"};
    REFUSED(nhood_plan_create_group(context, 0, problem, 1, &options, &plan),
            "options.solver = 'best'");
}

static void refuses_io(nhood_context *context) {
    static float memory[4][64 * 16];
    static _Alignas(64) char workspace[1 << 20];
    const char *const texts[] = {"fwd:f32:b1h2d8:9:w3", "fwd:f32:b1h2d8:20:w5",
                                 "fwd:f32:b0h2d8:4:w1"};
    nhood_problem problem[3];
    nhood_io member[3] = {{0}};
    nhood_plan *plan = NULL, *single = NULL;
    for (int i = 0; i < 3; i++) {
        CHECK(!nhood_problem_parse(texts[i], &problem[i]), "%s", nhood_last_error());
        member[i] = (nhood_io){.struct_size = sizeof member[i]};
        member[i].data[NHOOD_Q] = memory[0], member[i].data[NHOOD_K] = memory[1];
        member[i].data[NHOOD_V] = memory[2], member[i].data[NHOOD_O] = memory[3];
    }
    CHECK(!nhood_plan_create_group(context, 0, problem, 3, NULL, &plan), "%s", nhood_last_error());
    CHECK(!nhood_plan_create(context, 0, problem, NULL, &single), "%s", nhood_last_error());
    CHECK(nhood_plan_workspace_bytes(plan) <= sizeof workspace, "the test's workspace");
    CHECK(strstr(nhood_plan_description(plan),
                 "group of 3, 3 different, first fwd:f32:b1h2d8:9:w3") &&
              strstr(nhood_plan_description(plan), "for 2,"),
          "%s", nhood_plan_description(plan));
    nhood_group_io io = {.struct_size = sizeof io,
                         .count = 3,
                         .query_tokens = 29,
                         .key_tokens = 29,
                         .workspace = workspace,
                         .workspace_bytes = sizeof workspace};
    for (int t = 0; t < 4; t++)
        io.data[t] = memory[t];
    CHECK(!nhood_plan_execute_group(plan, &io), "%s", nhood_last_error());
#define BAD(change, undo, text)                                                                    \
    do {                                                                                           \
        change;                                                                                    \
        REFUSED(nhood_plan_execute_group(plan, &io), text);                                        \
        undo;                                                                                      \
    } while (0)
    BAD(io.struct_size = 8, io.struct_size = sizeof io, "io.struct_size = 8");
    BAD(io.count = 2, io.count = 3, "io.count = 2, the plan has 3 members");
    BAD(io.query_tokens = 30, io.query_tokens = 29, "io.query_tokens = 30, the members have 29");
    BAD(io.key_tokens = 28, io.key_tokens = 29, "io.key_tokens = 28, the members have 29");
    const int64_t right[] = {0, 9, 29, 29}, overlap[] = {0, 8, 28, 28}, gap[] = {0, 9, 30, 30},
                  late[] = {1, 10, 30, 30}, longer[] = {0, 9, 29, 30};
    io.query_offset = io.key_offset = right;
    CHECK(!nhood_plan_execute_group(plan, &io), "%s", nhood_last_error());
    BAD(io.query_offset = overlap, io.query_offset = right,
        "io.query_offset[1] = 8: the members overlap");
    BAD(io.key_offset = gap, io.key_offset = right, "io.key_offset[2] = 30: there is a gap");
    BAD(io.key_offset = late, io.key_offset = right, "io.key_offset[0] = 1: there is a gap");
    BAD(io.query_offset = longer, io.query_offset = right,
        "io.query_offset[3] = 30: this is the end of all members");
    BAD(io.data[NHOOD_K] = NULL, io.data[NHOOD_K] = memory[1], "member 0: io.data[k] is NULL");
    BAD(io.workspace_bytes = 0, io.workspace_bytes = sizeof workspace, "io.workspace_bytes = 0");
    io.member = member;
    CHECK(!nhood_plan_execute_group(plan, &io), "%s", nhood_last_error());
    BAD(member[1].data[NHOOD_V] = NULL, member[1].data[NHOOD_V] = memory[2],
        "member 1: io.data[v] is NULL");
    BAD(member[0].struct_size = 0, member[0].struct_size = sizeof *member,
        "member 0: io.struct_size = 0");
    BAD(member[1].data[NHOOD_Q] = (char *)memory + 1, member[1].data[NHOOD_Q] = memory,
        "member 1: io.data[q] = ");
    REFUSED(nhood_plan_execute_group(plan, NULL), "io is NULL");
    REFUSED(nhood_plan_execute_group(NULL, &io), "plan is NULL");
    REFUSED(nhood_plan_execute_group(single, &io), "plan is not one of a group");
    REFUSED(nhood_plan_execute(plan, member), "plan is one of a group");
    nhood_plan_release(plan);
    nhood_plan_release(single);
}

/* Strides that are not those of tokens in a row, other distances between tokens, a bias, extra tokens. */
static void refuses_packing(nhood_context *context) {
    static const char *const texts[][2] = {
        {"fwd:f32:b1h2d8:9:w3", "fwd:f32:b1h4d8:9:w3"},
        {"fwd:f32:b1h2d8:9:w3:rpb", "fwd:f32:b1h2d8:9:w3:rpb"},
        {"fwd:f32:b1h2d8:9:w3", "fwd:f32:b1h2d8:9:w3:x2"},
        {"fwd:f32:b1h2d8:4x4:w3x3", "fwd:f32:b1h2d8:4x4:w3x3"},
        {"pn:f32:b1h2d8:9:w3", "pn:f32:b1h2d8:9:w5"},
    };
    static const char *const errors[] = {
        "member 1 has tokens of q 128 bytes apart, member 0 has them 64 apart: give io.member",
        "member 0 has a bias", "member 1 has extra tokens",
        "member 1 has strides[k] that are not those of tokens in a row",
        "member 1 has tokens of a 40 bytes apart, member 0 has them 24 apart"};
    for (int i = 0; i < 5; i++) {
        nhood_problem problem[2];
        nhood_plan *plan = NULL;
        for (int m = 0; m < 2; m++)
            CHECK(!nhood_problem_parse(texts[i][m], &problem[m]), "%s", nhood_last_error());
        if (i == 3) problem[1].strides[NHOOD_K] = (nhood_strides){256, {17 * 4, 16}, 8};
        CHECK(!nhood_plan_create_group(context, 0, problem, 2, NULL, &plan), "%s",
              nhood_last_error());
        nhood_group_io io = {.count = 2};
        with_workspace(plan, &io);
        REFUSED(nhood_plan_execute_group(plan, &io), errors[i]);
        test_free(io.workspace);
        nhood_plan_release(plan);
    }
}

static void empty_groups(nhood_context *context) {
    for (int32_t device = 0; device < nhood_device_count(context); device++) {
        nhood_plan *plan = NULL;
        const nhood_group_io io = {.struct_size = sizeof io};
        CHECK(!nhood_plan_create_group(context, device, NULL, 0, NULL, &plan), "%s",
              nhood_last_error());
        CHECK(plan && nhood_plan_workspace_bytes(plan) == 0 && !nhood_plan_execute_group(plan, &io),
              "%s", nhood_last_error());
        CHECK(!strncmp(nhood_plan_description(plan), "group of 0, 0 different, on ", 28) &&
                  strstr(nhood_plan_description(plan), ": nothing to compute"),
              "%s", nhood_plan_description(plan));
        nhood_plan_release(plan);
    }
}

int main(int argc, char **argv) {
    random_groups(argc > 1 ? atoi(argv[1]) : 160);
    large_group();
    nhood_context *const context = create(2, false);
    refuses_problems(context);
    refuses_io(context);
    refuses_packing(context);
    empty_groups(context);
    nhood_context_destroy(context);
    return test_result();
}
