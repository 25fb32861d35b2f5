/* Plans of any members within a bound on CUDA: their launches, what these are handed, and that their grids have room for all members
 * that the bound allows. Lengths are at an address that the host cannot read. */
#include "bound.h"
#include "cuda_bounded.h"
#include "cuda_solvers.h"
#include "fixture.h"
#include "launch.h"

#include <stddef.h>

static struct fixture f;
static const struct nh_config rows = {{0}};

struct made {
    struct nh_bound bound;
    struct nh_group_operation *operation;
    nhood_group_io io;
};

static void bound_of(const char *text, int64_t members, int64_t tokens, struct nh_bound *bound) {
    const nhood_bound given = {.struct_size = sizeof given, .members = members, .tokens = tokens};
    nhood_problem problem;
    memset(bound, 0, sizeof *bound);
    CHECK(!nhood_problem_parse(text, &problem) && !nh_bound_canonical(&problem, &given, bound),
          "%s: %s", text, nhood_last_error());
}

static nhood_status make(const struct nh_solver *solver, const struct nh_config *config,
                         const char *text, int64_t members, int64_t tokens, struct made *made) {
    const struct nh_device device = nh_device_for_any_length(&f.device[0]);
    struct nh_config first = {{0}};
    made->operation = NULL;
    bound_of(text, members, tokens, &made->bound);
    if (!config && solver->candidates(&made->bound.problem, &device, &first, 1) != 1)
        return nh_error(NHOOD_ERR_INTERNAL, "no config");
    return nh_cuda_bounded_build(solver, config ? config : &first, &device, &made->bound,
                                 &made->operation);
}

static void unmake(struct made *made) {
    if (made->operation) made->operation->destroy(made->operation);
}

static nhood_status run(struct made *made, int64_t count, int missing) {
    made->io = (nhood_group_io){.struct_size = sizeof made->io,
                                .count = count,
                                .query_tokens = made->bound.tokens,
                                .key_tokens = made->bound.tokens,
                                .workspace = workspace_address(),
                                .workspace_bytes = made->operation->workspace_bytes,
                                .stream = (void *)(uintptr_t)0x5000,
                                .lengths = (const void *)(uintptr_t)0x7000,
                                .length_bytes = 8};
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if (nh_problem_role(&made->bound.problem, t) != NH_UNUSED && t != missing)
            made->io.data[t] = address_of(t);
    fake.launch_count = 0;
    return made->operation->run(made->operation, &made->io);
}

/* ---- launches ---- */

static void check_forward(void) {
    struct made made;
    nhood_status status =
        make(&nh_solver_cuda_naive, &rows, "fwd:f16:b1h2k1d64:40x30:w7x5:d2x1", 10, 3000, &made);
    CHECK(!status && made.operation->launches == 2 && !run(&made, 7, NHOOD_LSE) &&
              fake.launch_count == 2,
          "%d launches, %s", fake.launch_count, nhood_last_error());
    if (!status) {
        const struct nh_cuda_lengths *lengths = &fake.launch[0].lengths;
        const struct nh_cuda_members *members = &fake.launch[1].members;
        CHECK(!strncmp(fake.launch[0].kernel, "lengths", 7) && lengths->members == 7 &&
                  lengths->rank == 2 && lengths->length_bytes == 8 && lengths->tokens == 3000 &&
                  lengths->lengths == made.io.lengths && lengths->steps == 1 &&
                  lengths->least[1] == 14 && lengths->least[2] == 5 &&
                  lengths->axis[1].length == 40 && !lengths->clamps,
              "the launch that reads lengths");
        CHECK(lengths->rest[0].data == address_of(NHOOD_O) && !lengths->rest[1].data &&
                  lengths->rest[0].token_bytes == 2 * 64 * 2 && lengths->rest[0].width == 64 &&
                  lengths->rest[0].none == 0 && lengths->rest[0].illegal == 0x7e00 &&
                  lengths->rest[1].none == 0xff800000u && lengths->rest[1].element_bytes == 4,
              "outputs behind the last member");
        CHECK(members->members == 7 && members->base_step == 0 &&
                  members->base[0] == (uintptr_t)address_of(NHOOD_Q) &&
                  (const char *)members->member > (const char *)workspace_address() &&
                  (const char *)members->place + 7 * members->bases * 8 <=
                      workspace_address() + made.operation->workspace_bytes,
              "tables in the workspace");
        /* 8 lanes share a query with a head: 2 * 3000 of them in blocks of 16, and 10 that are not full */
        CHECK(fake.launch[1].grid[0] == 2 * 3000 / 16 + 10, "%u blocks", fake.launch[1].grid[0]);
        /* 10 members by 3 blocks of 4, then blocks for the rest of outputs */
        CHECK(lengths->table_blocks == 3 && fake.launch[0].grid[0] > 3, "%u blocks",
              fake.launch[0].grid[0]);
    }
    unmake(&made);
}

static void check_backward(void) {
    struct made made;
    nhood_status status =
        make(&nh_solver_cuda_split80, NULL, "bwd:bf16:b1h2d64:40x30:w7x5", 10, 3000, &made);
    CHECK(!status && made.operation->launches == 4 && !run(&made, 10, -1) &&
              fake.launch_count == 4 && !fake.launch[0].overlaps && !fake.launch[1].overlaps &&
              fake.launch[2].overlaps,
          "%d launches, %s", fake.launch_count, nhood_last_error());
    if (!status) {
        CHECK(fake.launch[0].lengths.steps == 3 &&
                  fake.launch[0].lengths.rest[2].data == address_of(NHOOD_D_V),
              "gradients behind the last member");
        CHECK(!run(&made, 10, NHOOD_D_Q) && fake.launch_count == 3, "%d launches without dQ",
              fake.launch_count);
        made.io.data[NHOOD_K] = address_of(NHOOD_K) + 2;
        fake.launch_count = 0;
        CHECK(made.operation->run(made.operation, &made.io) == NHOOD_ERR_ARGUMENT &&
                  fake.launch_count == 0 && strstr(nhood_last_error(), "io.data[k]"),
              "a misaligned tensor: %s", nhood_last_error());
    }
    unmake(&made);
    /* Tokens of 14 bytes: members begin anywhere, and so may tensors. */
    status = make(&nh_solver_cuda_naive, &rows, "bwd:f16:b1h1d7:90:w5", 3, 200, &made);
    CHECK(!status && !run(&made, 3, -1), "%s", nhood_last_error());
    made.io.data[NHOOD_K] = address_of(NHOOD_K) + 2;
    CHECK(!made.operation->run(made.operation, &made.io), "%s", nhood_last_error());
    unmake(&made);
}

/* Launches whose blocks loop over work tiles: fewer blocks, no tensor maps, and statistics that lie by tokens as members do. */
static void check_loops(void) {
    static const char *const texts[] = {
        "fwd:bf16:b1h2d64:64x64:w7x7", "bwd:bf16:b1h2d64:64x64:w7x7", "bwd:f32:b1h2d32:64x64:w5x5"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct made made;
        const nhood_status status = make(&nh_solver_cuda_small, NULL, texts[i], 400, 400000, &made);
        const int launches = i ? 3 : 2;
        CHECK(!status && made.operation->launches == launches && !run(&made, 400, -1) &&
                  fake.launch_count == launches && !fake.launch[launches - 1].overlaps == !i,
              "%s: %d launches, %s", texts[i], fake.launch_count, nhood_last_error());
        for (int l = 1; !status && l < launches; l++) {
            /* 4 waves of at most 16 blocks on 132 multiprocessors, a wave or two more as sizes are drawn, and one of each member */
            const unsigned blocks = fake.launch[l].grid[0];
            CHECK(blocks >= 4 * 132 && blocks <= 8 * 16 * 132 + 400,
                  "%s: launch %d of %u blocks for 12,800 work tiles", texts[i], l, blocks);
            CHECK(!strncmp(fake.launch[l].kernel, "small_", 6) &&
                      (strstr(fake.launch[l].kernel, "copies") ||
                       strstr(fake.launch[l].kernel, "turns")),
                  "%s by %s", texts[i], fake.launch[l].kernel);
        }
        unmake(&made);
    }
}

/* Launches with tensor maps, or that are otherwise made for a size, are refused. */
static void check_refusals(void) {
    struct made made;
    nhood_status status =
        make(&nh_solver_cuda_fused90, NULL, "fwd:bf16:b1h2d64:64x64:w15x15", 3, 9000, &made);
    CHECK(status == NHOOD_ERR_UNSUPPORTED && strstr(nhood_last_error(), "depends on lengths"), "%s",
          nhood_last_error());
    unmake(&made);
    const struct nh_device device = nh_device_for_any_length(&f.device[0]);
    static const char *const refused[][2] = {{"fwd:f16:b1h2d32:20x20:w5x5:clamp", "clamp"},
                                             {"fwd:f16:b1h2d32:20x20:w5x5:p10", "periodic"}};
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        struct nh_problem problem;
        read_problem(refused[i][0], &problem);
        const char *reason = nh_solver_refusal(&nh_solver_cuda_small, &problem, &device);
        CHECK(reason && strstr(reason, refused[i][1]), "%s: %s", refused[i][0], reason);
        CHECK(!nh_solver_refusal(&nh_solver_cuda_small, &problem, &f.device[0]), "%s alone",
              refused[i][0]);
    }
    status = make(&nh_solver_cuda_naive, &rows, "fwd:f32:b1h4096d64:4096x4096:w3x3", 65536,
                  INT64_C(1) << 30, &made);
    CHECK(status == NHOOD_ERR_UNSUPPORTED && strstr(nhood_last_error(), "more than 2^31 blocks"),
          "%s", nhood_last_error());
    unmake(&made);
}

/* ---- grids ---- */

/* The blocks of a member, as kernels/common/lengths.cu counts them. */
static int64_t blocks_of(const struct nh_cuda_blocks *blocks, const struct nh_bound *bound,
                         const int64_t length[NH_AXES]) {
    int64_t tokens = length[0] * length[1] * length[2], tiles = blocks->heads;
    if (blocks->rows) return nh_ceil_div(blocks->heads * tokens, blocks->rows);
    for (int a = 0; a < NH_AXES; a++) {
        const int64_t dilation = nh_min(bound->problem.axis[a].dilation, length[a]);
        tiles *= dilation * nh_ceil_div(nh_ceil_div(length[a], dilation), blocks->tile[a]);
    }
    return blocks->loop ? nh_ceil_div(tiles, blocks->loop) : tiles;
}

/* Members of drawn sizes, as many as the bound allows. */
static void check_mixed(const char *text, const struct nh_cuda_blocks *blocks,
                        const struct nh_bound *bound, int64_t most) {
    uint64_t state = 88172645463325252u;
    for (int draw = 0; draw < 20; draw++) {
        int64_t tokens = 0, all = 0, members = 0;
        for (int tries = 0; tries < 300 && members < bound->members; tries++) {
            int64_t length[NH_AXES], own = 1;
            for (int a = 0; a < NH_AXES; a++) {
                const int64_t longest = bound->problem.axis[a].length;
                length[a] = test_between(&state, bound->least[a],
                                         draw % 2 ? longest : nh_min(longest, 2 * bound->least[a]));
                own *= length[a];
            }
            if (tokens + own > bound->tokens) continue;
            tokens += own;
            members++;
            all += blocks_of(blocks, bound, length);
        }
        CHECK(all <= most, "%s: %lld blocks, %lld members have %lld", text, (long long)most,
              (long long)members, (long long)all);
    }
}

/* The most blocks of members of one size: as many of them as the bound allows, for every size. */
static void check_grid(const char *text, struct nh_cuda_blocks blocks, int64_t members,
                       int64_t tokens) {
    struct nh_bound bound;
    int64_t length[NH_AXES], worst = 0;
    bound_of(text, members, tokens, &bound);
    const int64_t most = nh_cuda_most_blocks(&blocks, &bound);
    for (length[0] = bound.least[0]; length[0] <= bound.problem.axis[0].length; length[0]++)
        for (length[1] = bound.least[1]; length[1] <= bound.problem.axis[1].length; length[1]++)
            for (length[2] = bound.least[2]; length[2] <= bound.problem.axis[2].length;
                 length[2]++) {
                const int64_t of_tokens = tokens / (length[0] * length[1] * length[2]);
                worst =
                    nh_max(worst, nh_min(of_tokens, members) * blocks_of(&blocks, &bound, length));
            }
    CHECK(worst <= most, "%s: %lld blocks, there may be %lld", text, (long long)most,
          (long long)worst);
    const bool clamps = bound.problem.flags & NHOOD_FLAG_CLAMP_WINDOW;
    CHECK(most <= (clamps ? 8 : 2) * worst + 2 * blocks.heads + (blocks.loop ? members : 0),
          "%s: %lld blocks of %lld members for at most %lld", text, (long long)most,
          (long long)members, (long long)worst);
    check_mixed(text, &blocks, &bound, most);
}

static void check_grids(void) {
    static const char *const texts[] = {"fwd:f16:b1h2d64:70:w5",
                                        "fwd:f16:b1h2d64:300:w5:d7",
                                        "fwd:f16:b1h2d64:40x30:w7x5",
                                        "fwd:f16:b1h2d64:40x60:w3x5:d3x9",
                                        "fwd:f16:b1h2d64:9x20x24:w3x3x5:d2x1x3",
                                        "fwd:f16:b1h2d64:60x50:w9x9:d6x1:clamp",
                                        "fwd:f16:b1h2d64:60:w9:d50:clamp"};
    static const struct nh_cuda_blocks blocks[] = {{.heads = 3, .rows = 16},
                                                   {.heads = 3, .rows = 1},
                                                   {.heads = 2, .tile = {1, 8, 8}},
                                                   {.heads = 2, .tile = {1, 1, 64}},
                                                   {.heads = 1, .tile = {2, 4, 4}},
                                                   {.heads = 1, .tile = {1, 1, 1}},
                                                   {.heads = 2, .tile = {1, 8, 8}, .loop = 1},
                                                   {.heads = 3, .tile = {1, 4, 8}, .loop = 5}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (size_t b = 0; b < sizeof blocks / sizeof *blocks; b++) {
            check_grid(texts[i], blocks[b], 1000000 / 17, 5000);
            check_grid(texts[i], blocks[b], 3, 100000);
            check_grid(texts[i], blocks[b], 60, 4000);
        }
}

/* ---- faults ---- */

static nhood_status make_steps_of_split80(void) {
    struct made made;
    const nhood_status status =
        make(&nh_solver_cuda_split80, NULL, "bwd:bf16:b1h2d64:40x30:w7x5", 10, 3000, &made);
    unmake(&made);
    return status;
}

static nhood_status make_steps_of_naive(void) {
    struct made made;
    const nhood_status status =
        make(&nh_solver_cuda_naive, &rows, "bwd:f16:b1h2d64:40x30:w7x5", 10, 3000, &made);
    unmake(&made);
    return status;
}

int main(void) {
    fake_driver_reset(90);
    fake.for_members = true;
    CHECK(!fixture_open(&f, ""), "%s", nhood_last_error());
    check_forward();
    check_backward();
    check_loops();
    check_refusals();
    check_grids();
    fixture_close(&f, "bounds");
    check_failing_call(&f, "memory_allocate", make_steps_of_split80);
    check_failing_call(&f, "memory_send", make_steps_of_split80);
    check_failing_call(&f, "library_load", make_steps_of_split80);
    check_failing_allocations(&f, make_steps_of_naive);
    return test_result();
}
