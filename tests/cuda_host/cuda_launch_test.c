/* What a plan hands to the driver: pointers, strides, workspace, grids, streams; and what execute refuses. */
#include "cuda_solvers.h"
#include "fixture.h"
#include "launch.h"

static struct fixture f;

static bool execute(const struct nh_solver *solver, const struct nh_problem *problem,
                    const char *text, nhood_io *io) {
    struct nh_operation *operation;
    nhood_status status = build_first(solver, problem, &f.device[0], &operation);
    CHECK(!status, "%s, %s: %s", text, solver->name, nhood_last_error());
    if (status) return false;
    *io = pretended_io(problem, operation);
    fake.launch_count = fake.maps_encoded = 0;
    status = operation->run(operation, io);
    CHECK(!status && fake.launch_count > 0, "%s, %s: %s", text, solver->name, nhood_last_error());
    operation->destroy(operation);
    return !status;
}

/* Every pointer of a launch lies in the tensor of its slot or in the workspace; what the problem has not is NULL. */
static void check_pointers(const struct fake_launch *launch, const struct nh_problem *problem,
                           const nhood_io *io, const char *text) {
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++) {
        const char *data = launch->args.tensor[slot].data;
        const char *workspace = io->workspace;
        if (!data) continue;
        bool inside = data >= workspace && data < workspace + io->workspace_bytes;
        for (int32_t t = 0; !inside && t < NHOOD_TENSOR_COUNT; t++) {
            if (nh_problem_role(problem, t) == NH_UNUSED) continue;
            int64_t bytes = nh_tensor_elements(problem, t) * 8;
            inside = data >= address_of(t) && data < address_of(t) + bytes;
        }
        CHECK(inside, "%s, %s: slot %d points to %p", text, launch->kernel, slot,
              launch->args.tensor[slot].data);
    }
}

/* Every CUDA solver that takes the problem; the fake driver refuses grids beyond the hardware's limits. */
static void check_all(const char *text) {
    struct nh_problem problem;
    nhood_io io;
    int taken = 0;
    read_problem(text, &problem);
    for (int i = 0; nh_registry_solvers[i]; i++) {
        const struct nh_solver *solver = nh_registry_solvers[i];
        if (solver->device_kind != NHOOD_DEVICE_CUDA || refusal_of(solver, &problem, &f.device[0]))
            continue;
        if (!execute(solver, &problem, text, &io)) continue;
        taken++;
        for (int l = 0; l < fake.launch_count && l < FAKE_LAUNCHES; l++) {
            CHECK(fake.launch[l].stream == io.stream, "%s, %s: stream %p", text, solver->name,
                  fake.launch[l].stream);
            check_pointers(&fake.launch[l], &problem, &io, text);
        }
        for (int m = 0; m < fake.maps_encoded && m < FAKE_MAPS; m++) {
            const char *at = fake.map_address[m], *workspace = io.workspace;
            bool known = at >= workspace && at < workspace + io.workspace_bytes;
            for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
                known = known || at == address_of(t);
            CHECK(known, "%s, %s: map %d at %p", text, solver->name, m, fake.map_address[m]);
        }
    }
    CHECK(taken >= 1, "%s: no solver takes it", text);
}

/* cuda.naive, whose launches are simple enough to be written down: problems that it does not cut into tiles. */
static const struct fake_launch *naive(const char *text, struct nh_problem *problem) {
    nhood_io io;
    read_problem(text, problem);
    fake.launch[0].grid[0] = 0;
    execute(&nh_solver_cuda_naive, problem, text, &io);
    return &fake.launch[0];
}

/* Whether a map of a region begins with a tensor's box or, of keys, so many bytes behind it, as the keys before are left out. */
static bool begins_a_box(const char *at, size_t left_out_bytes) {
    bool known = false;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        bool keys = t == NHOOD_K || t == NHOOD_V || t == NHOOD_D_K || t == NHOOD_D_V;
        known = known || at == (const char *)address_of(t) + (keys ? left_out_bytes : 0);
    }
    return known;
}

/* Tensor maps are those of the tensors, which begin with their boxes, as are the workspace's statistics. Queries from 8 on
 * attend no key before 5. */
static void check_maps_of_regions(const struct nh_solver *solver, int launches, int least_maps) {
    struct nh_problem problem;
    nhood_io io;
    const char *text = "bwd:bf16:b1h4d32:56x56:w7x7:p01:q8+20x50+56:k0+48x30+56";
    read_problem(text, &problem);
    if (!execute(solver, &problem, text, &io)) return;
    CHECK(fake.launch_count == launches && fake.maps_encoded >= least_maps,
          "%s: %d launches, %d maps", solver->name, fake.launch_count, fake.maps_encoded);
    for (int m = 0; m < fake.maps_encoded && m < FAKE_MAPS; m++) {
        bool known = fake.map_address[m] == io.workspace ||
                     begins_a_box(fake.map_address[m], (size_t)5 * 56 * 4 * 32 * 2);
        CHECK(known, "%s: map %d at %p", solver->name, m, fake.map_address[m]);
    }
    const struct nh_cuda_args *args = &fake.launch[0].args;
    CHECK((uintptr_t)args->tensor[NH_DELTA].data ==
                  (uintptr_t)workspace_address() - (uint64_t)(8 * 56 + 50) * 4 * 4 &&
              args->tensor[NH_DELTA].head == 20 * 56 * 4,
          "%s: statistics at %p", solver->name, args->tensor[NH_DELTA].data);
}

/* Tensors that cover boxes of a grid are handed over as if they covered it all, and only rows that they have are launched. */
static void check_regions(void) {
    struct nh_problem problem;
    const struct fake_launch *launch =
        naive("fwd:f16:b1h2d64:40x50:w7x7:q3+20x5+30:k0+32x1+49", &problem);
    const struct nh_cuda_args *args = &launch->args;
    const int64_t q_first = (int64_t)(3 * 30 + 5) * 2 * 64,
                  k_first = (int64_t)(0 * 49 + 1) * 2 * 64;
    CHECK((uintptr_t)args->tensor[NH_Q].data ==
                  (uintptr_t)address_of(NHOOD_Q) - 2 * (uint64_t)q_first &&
              (uintptr_t)args->tensor[NH_K].data ==
                  (uintptr_t)address_of(NHOOD_K) - 2 * (uint64_t)k_first &&
              (uintptr_t)args->tensor[NH_LSE].data ==
                  (uintptr_t)address_of(NHOOD_LSE) - 4 * (uint64_t)(q_first / 64),
          "Q at %p, K at %p, LSE at %p", args->tensor[NH_Q].data, args->tensor[NH_K].data,
          args->tensor[NH_LSE].data);
    CHECK(args->axis[1].length == 40 && launch->region[1].query.offset == 3 &&
              launch->region[1].query.length == 20 && launch->region[1].key.offset == 0 &&
              launch->region[1].key.length == 26 && launch->region[2].key.offset == 2 &&
              launch->region[2].key.length == 36 && launch->region[0].query.length == 1,
          "axis of %lld, queries %lld + %lld", args->axis[1].length, launch->region[1].query.offset,
          launch->region[1].query.length);
    CHECK(launch->grid[0] == 20 * 30 * 2 * 8 / 128, "%u blocks", launch->grid[0]);
    nhood_io io;
    check_maps_of_regions(&nh_solver_cuda_small, 3, 13);
    check_maps_of_regions(&nh_solver_cuda_split90, 4, 9);
    read_problem("bwd:f16:b1h2d64:4096:w300:q1024+512:k900+768", &problem);
    if (!execute(&nh_solver_cuda_split80, &problem, "split80", &io)) return;
    const struct fake_launch *stats = &fake.launch[0];
    CHECK((uintptr_t)stats->args.tensor[NH_DELTA].data ==
                  (uintptr_t)workspace_address() - (uint64_t)1024 * 2 * 4 * 4 &&
              stats->args.tensor[NH_DELTA].batch == 512 * 2 * 4,
          "delta at %p", stats->args.tensor[NH_DELTA].data);
    for (int l = 1; l < fake.launch_count; l++) {
        unsigned rows = l == 1 ? 512 : 768; /* queries, then keys */
        CHECK(fake.launch[l].grid[0] % 2 == 0 && rows % (fake.launch[l].grid[0] / 2) == 0 &&
                  fake.launch[l].region[2].query.offset == 1024,
              "launch %d: %u blocks", l, fake.launch[l].grid[0]);
    }
}

/* The last launch of a backward that leaves out keys has the boxes of all keys and of those attended, and goes over dK and
 * dV; without them it is left out. */
static void check_clear_keys(void) {
    struct nh_problem problem;
    struct nh_operation *operation;
    read_problem("bwd:f16:b3h4k2d64v32:30x40:w7x7:q3+20x5+9:k0+30x1+39", &problem);
    if (build_first(&nh_solver_cuda_naive, &problem, &f.device[0], &operation)) return;
    nhood_io io = pretended_io(&problem, operation);
    fake.launch_count = 0;
    CHECK(!operation->run(operation, &io), "%s", nhood_last_error());
    const int launches = fake.launch_count;
    const struct fake_launch *clear = &fake.launch[launches - 1];
    /* a thread has 8 elements of 4 keys; a line has 39 */
    CHECK(clear->region[1].key.offset == 0 && clear->region[1].key.length == 30 &&
              clear->region[2].key.offset == 1 && clear->region[2].key.length == 39 &&
              clear->grid[0] == (3 * 30 * 10 * 2 * 8 + 127) / 128 && clear->grid[1] == 2,
          "%u x %u blocks over keys %lld + %lld", clear->grid[0], clear->grid[1],
          clear->region[2].key.offset, clear->region[2].key.length);
    io.data[NHOOD_D_K] = io.data[NHOOD_D_V] = NULL;
    fake.launch_count = 0;
    CHECK(!operation->run(operation, &io) && fake.launch_count < launches - 1,
          "%d launches of %d without dK and dV", fake.launch_count, launches);
    operation->destroy(operation);
}

/* Around a circle of 60 tokens, boxes that lack 8 of them meet a window of 9 at one end alone, those that lack 7 at both. */
static void check_region_refusals(void) {
    static const struct {
        const struct nh_solver *solver;
        const char *text, *reason;
    } row[] = {{&nh_solver_cuda_fused80, "fwd:f16:b1h1d32:60:w9:p1:q3+50:k46+52", NULL},
               {&nh_solver_cuda_fused80, "fwd:f16:b1h1d32:60:w9:p1:q3+50:k46+53",
                "windows that meet both ends of a key box on a periodic axis"},
               {&nh_solver_cuda_split80, "bwd:f16:b1h1d32:60:w9:p1:q3+52:k46+60", NULL},
               {&nh_solver_cuda_split80, "bwd:f16:b1h1d32:60:w9:p1:q3+53:k46+60",
                "keys whose queries are at both ends of a query box on a periodic axis"},
               {&nh_solver_cuda_naive, "bwd:f16:b1h1d32:60:w9:p1:q3+53:k46+53", NULL},
               {&nh_solver_cuda_fused90, "fwd:f16:b1h1d32:60:w9:p1:q3+50:k46+52", NULL},
               {&nh_solver_cuda_fused90, "fwd:f16:b1h1d32:60:w9:p1:q3+50:k46+53",
                "windows that meet both ends of a key box on a periodic axis"},
               {&nh_solver_cuda_fused90, "fwd:f16:b1h1d32:192:w191:p1", NULL},
               {&nh_solver_cuda_fused90, "fwd:f16:b1h1d32:190:w189:p1",
                "a window and a query tile go around a periodic axis that no key tile divides"},
               {&nh_solver_cuda_fused90, "fwd:f16:b1h1d32:60:w9:p1",
                "a window and a query tile go around a periodic axis that no key tile divides"},
               {&nh_solver_cuda_fused90, "fwd:f16:b1h1d32:60x9:w3x9:d10x1:k3+10x0+9", NULL},
               {&nh_solver_cuda_fused90, "fwd:f16:b1h1d32:60x9:w3x9:d10x1:k3+9x0+9",
                "a box that lacks whole dilation groups of an axis with a large dilation"},
               {&nh_solver_cuda_split90, "bwd:f16:b1h1d32:600:w9:p1:q3+592:k46+600", NULL},
               {&nh_solver_cuda_split90, "bwd:f16:b1h1d32:600:w9:p1:q3+593:k46+600",
                "keys whose queries are at both ends of a query box on a periodic axis"},
               {&nh_solver_cuda_split90, "bwd:f16:b1h1d32:192:w191:p1", NULL},
               {&nh_solver_cuda_split90, "bwd:f16:b1h1d32:190:w189:p1",
                "a window and a query tile go around a periodic axis that no key tile divides"},
               {&nh_solver_cuda_split90, "bwd:f16:b1h1d32:254:w128:s127:p1",
                "queries of a key tile go around a periodic axis that no query tile divides"},
               {&nh_solver_cuda_joint90, "bwd:f16:b1h1d32:192:w191:p1", NULL},
               {&nh_solver_cuda_joint90, "bwd:f16:b1h1d32:240:w239:p1",
                "queries of a key tile go around a periodic axis that no query tile divides"},
               {&nh_solver_cuda_short, "bwd:f16:b1h1d32:60:w9:q3+50", "part of a grid"},
               {&nh_solver_cuda_small, "fwd:f16:b1h1d32:60:w9:p1:q3+50:k46+52", NULL},
               {&nh_solver_cuda_small, "fwd:f16:b1h1d32:60:w9:p1:q3+50:k46+53",
                "windows that meet both ends of a key box on a periodic axis"},
               {&nh_solver_cuda_small, "bwd:f16:b1h1d32:60:w9:p1:q3+53:k46+60",
                "keys whose queries are at both ends of a query box on a periodic axis"},
               {&nh_solver_cuda_short, "fwd:f16:b1h1d32:60:w9:p1", "periodic axis"}};
    struct nh_problem problem;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        read_problem(row[i].text, &problem);
        const char *reason = refusal_of(row[i].solver, &problem, &f.device[0]);
        CHECK(row[i].reason ? reason && strcmp(reason, row[i].reason) == 0 : !reason, "%s, %s: %s",
              row[i].text, row[i].solver->name, reason ? reason : "taken");
    }
}

/* Sizes past 2^31 elements keep all their bits, and rows past the grid's limits are folded. */
static void check_large(void) {
    struct nh_problem problem;
    const char *text = "fwd:f16:b5h40k20d128:1024x1024:w7x7";
    const struct nh_cuda_args *args = &naive(text, &problem)->args;
    CHECK(args->tensor[NH_Q].batch == (int64_t)1024 * 1024 * 40 * 128 &&
              args->tensor[NH_K].batch == (int64_t)1024 * 1024 * 20 * 128 &&
              args->tensor[NH_Q].axis[1] == 1024 * 40 * 128 && args->tensor[NH_Q].head == 128,
          "strides %lld, %lld", args->tensor[NH_Q].batch, args->tensor[NH_K].batch);
    text = "bwd:f64:b1h8d64:16777216:w3";
    args = &naive(text, &problem)->args;
    CHECK(args->axis[2].length == 16777216 && args->tensor[NH_DELTA].batch == 8 * 16777216LL,
          "delta of %lld a batch", args->tensor[NH_DELTA].batch);
    const unsigned *grid = naive("fwd:f16:b100000h40000d1:64:w3", &problem)->grid;
    CHECK(grid[0] == 1u << 30 && grid[1] == 1 && grid[2] == 1, "grid %u x %u x %u", grid[0],
          grid[1], grid[2]);
    grid =
        naive("fwd:f16:b100000h40000d8:64:w3", &problem)->grid; /* more tiles than can be counted */
    CHECK(grid[0] == 1u << 30, "grid %u", grid[0]);
    grid = naive("fwd:f16:b70000h2d8:64:w17", &problem)->grid;
    CHECK(grid[0] == 70000 * 2 * 64 / 128 && grid[1] == 1, "grid %u x %u", grid[0], grid[1]);
    grid = naive("fwd:f16:b1h1d65536:8:w3", &problem)->grid;
    CHECK(grid[0] == 2 && grid[1] == 256, "grid %u x %u", grid[0], grid[1]);
}

/* The step that every solver adds its launches with says which axis of a grid is too large. */
static void check_grid_limits(void) {
    static const struct {
        int axis;
        int64_t blocks;
        const char *text;
    } row[] = {
        {0, (int64_t)1 << 31, "naive_pn.cu: grid axis 0 has 2147483648 blocks, of [1, 2147483647]"},
        {1, 65536, "naive_pn.cu: grid axis 1 has 65536 blocks, of [1, 65535]"},
        {2, 65536, "naive_pn.cu: grid axis 2 has 65536 blocks, of [1, 65535]"},
        {2, 0, "naive_pn.cu: grid axis 2 has 0 blocks, of [1, 65535]"}};
    struct nh_problem problem;
    struct nh_cuda_operation operation = {.count = 0};
    struct nh_kernel_spec spec = {.source = "naive_pn.cu"};
    read_problem("pn:f32:b1h1d32:64:w7", &problem);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct nh_cuda_step step;
        nh_cuda_step_init(&step, &problem);
        step.grid[row[i].axis] = row[i].blocks;
        CHECK(nh_cuda_step_add(&operation, &step, &spec) == NHOOD_ERR_UNSUPPORTED &&
                  strcmp(nhood_last_error(), row[i].text) == 0,
              "%s", nhood_last_error());
    }
    CHECK(operation.count == 0, "%d steps", (int)operation.count);
}

/* More work tiles than a launch can count: the solver is left for one that folds its grid. */
static void check_uncountable(void) {
    static const struct {
        const struct nh_solver *solver;
        const char *text;
    } row[] = {{&nh_solver_cuda_short, "more than 2^30 work tiles"},
               {&nh_solver_cuda_short90, "more than 2^30 work tiles"},
               {&nh_solver_cuda_small, "more than 2^30 boxes of rows"},
               {&nh_solver_cuda_fused80,
                "fused80_forward.cu: grid axis 0 has 1099511627776 blocks, of "
                "[1, 2147483647]"},
               {&nh_solver_cuda_fused90, "more than 2^31 query tiles"}};
    struct nh_problem problem;
    read_problem("fwd:f16:b1073741824h1024k1d32:16:w3", &problem);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct nh_operation *operation;
        const char *name = row[i].solver->name;
        const char *reason = refusal_of(row[i].solver, &problem, &f.device[0]);
        CHECK(!reason, "%s: %s", name, reason);
        if (reason) continue;
        nhood_status status = build_first(row[i].solver, &problem, &f.device[0], &operation);
        CHECK(status == NHOOD_ERR_UNSUPPORTED && strcmp(nhood_last_error(), row[i].text) == 0,
              "%s: %s", name, status ? nhood_last_error() : "built");
        if (!status) operation->destroy(operation);
    }
}

/* Scales that f32 does not take are refused, by every solver (choice_test.c has the error); 0, and those of f64, are not. */
static void check_scales(void) {
    static const struct {
        const char *text;
        bool refused;
    } row[] = {{"fwd:f32:b1h1d32:64:w7:scale1e+39", true},
               {"bwd:f16:b1h1d32:64:w7:scale-1e-50", true},
               {"fwd:bf16:b1h1d32:64:w7:scale0", false},
               {"fwd:f32:b1h1d32:64:w7:scale1e+30", false},
               {"fwd:f64:b1h1d32:64:w7:scale1e+39", false}};
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        struct nh_problem problem;
        struct nh_operation *operation;
        read_problem(row[i].text, &problem);
        const char *refusal = nh_solver_refusal(&nh_solver_cuda_naive, &problem, &f.device[0]);
        CHECK(!refusal == !row[i].refused && (!refusal || strstr(refusal, "scale")), "%s: %s",
              row[i].text, refusal ? refusal : "taken");
        if (row[i].refused) continue;
        nhood_status status =
            build_first(&nh_solver_cuda_naive, &problem, &f.device[0], &operation);
        CHECK(!status, "%s: %s", row[i].text, nhood_last_error());
        if (!status) operation->destroy(operation);
    }
}

/* Runs a backward with these outputs only; returns the kernels' names, joined, with a plus for launches that overlap with
 * the one before. */
static const char *backward_kernels(const struct nh_operation *operation,
                                    const struct nh_problem *problem, uint32_t outputs) {
    static char names[512];
    nhood_io io = pretended_io(problem, operation);
    for (int32_t t = NHOOD_D_Q; t < NHOOD_TENSOR_COUNT; t++)
        if (!(outputs >> t & 1)) io.data[t] = NULL;
    fake.launch_count = 0;
    CHECK(operation->run(operation, &io) == NHOOD_OK, "%s", nhood_last_error());
    names[0] = '\0';
    for (int i = 0; i < fake.launch_count; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s%s", i ? " " : "",
                 fake.launch[i].overlaps ? "+" : "", fake.launch[i].kernel);
        for (int32_t t = NHOOD_D_Q; t < NHOOD_TENSOR_COUNT; t++)
            CHECK(!(outputs >> t & 1) == !fake.launch[i].args.tensor[t].data, "%s: tensor %d",
                  fake.launch[i].kernel, (int)t);
    }
    return names;
}

/* Outputs left out are NULL in every launch, and launches for them alone do not happen. */
static void check_left_out(void) {
    static const struct {
        uint32_t outputs;
        const char *kernels;
    } row[] = {{0, "naive_backward_query"},
               {1u << NHOOD_D_Q, "naive_backward_query"},
               {1u << NHOOD_D_V, "naive_backward_query naive_backward_key"},
               {1u << NHOOD_D_K | 1u << NHOOD_D_Q, "naive_backward_query naive_backward_key"},
               {1u << NHOOD_D_EXTRA_K, "naive_backward_query naive_backward_extra"},
               {1u << NHOOD_D_BIAS, "naive_backward_query naive_backward_bias"}};
    struct nh_problem problem;
    struct nh_operation *operation;
    read_problem("bwd:f32:b1h1d32:64:w7:x2:rpb", &problem);
    CHECK(!build_first(&nh_solver_cuda_naive, &problem, &f.device[0], &operation), "%s",
          nhood_last_error());
    CHECK(operation->workspace_bytes == 256, "%zu bytes", operation->workspace_bytes);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        const char *kernels = backward_kernels(operation, &problem, row[i].outputs);
        CHECK(strcmp(kernels, row[i].kernels) == 0, "outputs %x: %s", row[i].outputs, kernels);
    }
    operation->destroy(operation);
    read_problem("fwd:f32:b1h1d32:64:w7", &problem);
    CHECK(!build_first(&nh_solver_cuda_naive, &problem, &f.device[0], &operation), "%s",
          nhood_last_error());
    nhood_io io = pretended_io(&problem, operation);
    io.data[NHOOD_LSE] = NULL;
    fake.launch_count = 0;
    CHECK(operation->run(operation, &io) == NHOOD_OK && !fake.launch[0].args.tensor[NH_LSE].data &&
              fake.launch[0].args.tensor[NH_O].data == address_of(NHOOD_O),
          "LSE left out");
    operation->destroy(operation);
}

static void check_overlaps_of(const struct nh_solver *solver, const char *text, uint32_t outputs,
                              const char *expected) {
    struct nh_problem problem;
    struct nh_operation *operation;
    read_problem(text, &problem);
    CHECK(!build_first(solver, &problem, &f.device[0], &operation), "%s", nhood_last_error());
    const char *kernels = backward_kernels(operation, &problem, outputs);
    CHECK(strcmp(kernels, expected) == 0, "%s, outputs %x: %s", text, outputs, kernels);
    operation->destroy(operation);
}

/* A launch overlaps with the one before it in the list alone: where that is left out, it may need what came before. */
static void check_overlaps(void) {
    enum { D_Q = 1u << NHOOD_D_Q, D_K = 1u << NHOOD_D_K, D_BIAS = 1u << NHOOD_D_BIAS };
    const char *plain = "bwd:f16:b1h1d64:16x16:w7x7", *wide = "bwd:f16:b1h1d256:16x16:w7x7",
               *biased = "bwd:f16:b1h1d64:16x16:w7x7:rpb";
    const struct nh_solver *split = &nh_solver_cuda_split90, *joint = &nh_solver_cuda_joint90;
    uint32_t all = D_Q | D_K | 1u << NHOOD_D_V;
    check_overlaps_of(split, plain, all, "backward_stats +split90_query +split90_key");
    check_overlaps_of(split, plain, D_Q, "backward_stats +split90_query");
    check_overlaps_of(split, plain, D_K, "backward_stats split90_key");
    check_overlaps_of(split, wide, all, "backward_stats +split90_query +split90_key +split90_key");
    check_overlaps_of(split, biased, all | D_BIAS,
                      "backward_stats +split90_query +bias_sum +split90_key");
    check_overlaps_of(split, biased, all, "backward_stats +split90_query split90_key");
    check_overlaps_of(joint, plain, all,
                      "backward_stats +joint90 +joint90_convert +joint90_repair");
    check_overlaps_of(joint, plain, D_K, "backward_stats +joint90 joint90_repair");
    check_overlaps_of(&nh_solver_cuda_split80, plain, all,
                      "backward_stats +split80_backward +split80_backward");
    check_overlaps_of(&nh_solver_cuda_small, plain, all,
                      "small_backward_query_boxes +small_backward_key_boxes");
    ((struct nh_cuda_device *)f.device[0].backend)->overlaps = false;
    check_overlaps_of(split, plain, all, "backward_stats split90_query split90_key");
    ((struct nh_cuda_device *)f.device[0].backend)->overlaps = true;
}

static struct nh_operation *tiled(const char *text, struct nh_problem *problem) {
    const struct nh_config tile = {.value = {1, 8, 8}};
    struct nh_operation *operation = NULL;
    read_problem(text, problem);
    CHECK(!nh_solver_cuda_naive.build(&nh_solver_cuda_naive, problem, &f.device[0], &tile,
                                      &operation),
          "%s", nhood_last_error());
    return operation;
}

/* The halo of a smaller window needs less shared memory of the same kernel, and takes none from plans that were there. */
static void check_shared_kernel(void) {
    struct nh_problem wide_problem, narrow_problem;
    struct nh_operation *wide = tiled("fwd:f32:b1h1d32:56x56:w13x13", &wide_problem);
    struct nh_operation *narrow = tiled("fwd:f32:b1h1d32:56x56:w7x7", &narrow_problem);
    nhood_io io = pretended_io(&wide_problem, wide);
    fake.launch_count = 0;
    CHECK(wide->run(wide, &io) == NHOOD_OK, "%s", nhood_last_error());
    CHECK(fake.launch[0].shared_bytes > 48 << 10, "%u bytes", fake.launch[0].shared_bytes);
    narrow->destroy(narrow);
    wide->destroy(wide);
}

/* Window tables are copied to the device: what queries see, then what keys see; axes by formula have none. Queries and keys
 * of an axis with a table have extents of their own, and the kernels do not depend on what a table says. */
static void check_tables(void) {
    static const nhood_range wide[6] = {{0, 2}, {0, 3}, {2, 1}, {3, 0}, {3, 1}, {3, 1}},
                             seen_by_keys[4] = {{0, 2}, {0, 2}, {1, 2}, {4, 2}},
                             narrow[6] = {{0, 1}, {0, 1}, {0, 1}, {1, 3}, {1, 3}, {3, 1}};
    struct nh_problem problem;
    nhood_problem given;
    struct nh_operation *operation[2];
    nhood_kernel_counts counts[2];
    CHECK(!nhood_problem_parse("bwd:f32:b1h1d64:6x9:w1x5", &given), "%s", nhood_last_error());
    for (int i = 0; i < 2; i++) {
        given.windows[0] =
            (nhood_windows){.kind = NHOOD_WINDOWS_TABLE, .keys = 4, .range = i ? narrow : wide};
        CHECK(!nh_problem_canonical(&given, &problem) &&
                  !build_first(&nh_solver_cuda_naive, &problem, &f.device[0], &operation[i]),
              "%s", nhood_last_error());
        if (test_failed) return;
        counts[i] = (nhood_kernel_counts){.struct_size = sizeof counts[i]};
        nh_kernel_cache_count(f.cuda->kernels, &counts[i]);
        if (i) continue;
        CHECK(fake.sent_bytes == sizeof wide + sizeof seen_by_keys &&
                  !memcmp(fake.sent, wide, sizeof wide) &&
                  !memcmp(fake.sent + sizeof wide, seen_by_keys, sizeof seen_by_keys),
              "%zu bytes were copied, or others", fake.sent_bytes);
    }
    CHECK(counts[0].compiled == counts[1].compiled, "%lld kernels for one table, %lld for both",
          (long long)counts[0].compiled, (long long)counts[1].compiled);
    nhood_io io = pretended_io(&problem, operation[0]);
    fake.launch_count = 0;
    CHECK(!operation[0]->run(operation[0], &io) && fake.launch_count == 2, "%s",
          nhood_last_error());
    for (int i = 0; i < fake.launch_count; i++) {
        const struct nh_cuda_table_axis *axis = fake.launch[i].table_axis;
        CHECK(axis[1].seen[0] == FAKE_MEMORY && axis[1].seen[1] == FAKE_MEMORY + sizeof wide &&
                  !axis[0].seen[0] && !axis[0].seen[1] && !axis[2].seen[0] && !axis[2].seen[1],
              "launch %d: tables at %llx and %llx", i, (unsigned long long)axis[1].seen[0],
              (unsigned long long)axis[1].seen[1]);
        CHECK(axis[1].axis.length == 6 && axis[1].axis.window == 3 && axis[2].axis.length == 9 &&
                  axis[2].axis.window == 5,
              "launch %d: an axis of %lld, windows of %lld", i, axis[1].axis.length,
              axis[1].axis.window);
    }
    CHECK(fake.launch[0].grid[0] == (6 * 9 * 16 + 127) / 128 &&
              fake.launch[1].grid[0] == (4 * 9 * 16 + 127) / 128,
          "%u blocks of queries, %u of keys", fake.launch[0].grid[0], fake.launch[1].grid[0]);
    for (int i = 0; i < 2; i++)
        operation[i]->destroy(operation[i]);
    /* The largest halo, which cuda.small's kernels have room for, is known of tables up to this length. */
    read_problem("fwd:bf16:b1h1d32:4096x8:wz5xz5", &problem);
    CHECK(!refusal_of(&nh_solver_cuda_small, &problem, &f.device[0]), "refused");
    read_problem("fwd:bf16:b1h1d32:40970x8:wz5xz5", &problem);
    CHECK(!refusal_of(&nh_solver_cuda_small, &problem, &f.device[0]), "refused");
    read_problem("fwd:bf16:b1h1d32:4097x8:wb5+1xz5", &problem);
    CHECK(refusal_of(&nh_solver_cuda_small, &problem, &f.device[0]), "not refused");
}

/* Halos roll along an axis with a table as along one by formula, unless work tiles that follow each other leave out keys; masks
 * are those of a formula where what rows see is as even. */
static void check_rolling_tables(void) {
    static const struct {
        const char *text, *pipeline, *mask;
    } rows[] = {
        {"fwd:bf16:b1h8d64:256x256:wr258w7xr257w7", "SMALL_BOXES", "SMALL_STARTS"},
        {"bwd:bf16:b1h8d64:256x256:wr258w7xr257w7", "SMALL_LINES", "SMALL_COORDINATES"},
        {"bwd:bf16:b1h8d64:256x256:wz7xz7", "SMALL_LINES", "SMALL_KINDS"},
        {"bwd:bf16:b1h8d64:256x256:wz7xb6+2", "SMALL_BOXES", "SMALL_COORDINATES"},
        {"fwd:bf16:b1h8d64:24x48x80:wr26w3xr48w7xr80w7", "SMALL_PLANES", "SMALL_STARTS"},
        {"fwd:bf16:b1h8d64:24x48x80:wz3xz7xz7", "SMALL_PLANES", "SMALL_COORDINATES"},
        {"fwd:bf16:b1h8d32:24x48x80:wr48w3xr48w7x7", "SMALL_PLANES", "SMALL_STARTS"},
        {"fwd:bf16:b1h8d32:24x48x80:wr96w3xr48w7x7", "SMALL_COPIES", "SMALL_COORDINATES"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        struct nh_problem problem;
        struct nh_operation *built;
        read_problem(rows[i].text, &problem);
        CHECK(!build_first(&nh_solver_cuda_small, &problem, &f.device[0], &built), "%s: %s",
              rows[i].text, nhood_last_error());
        if (test_failed) return;
        const struct nh_cuda_operation *cuda = (const void *)built;
        char last[NH_KERNEL_CONFIG_BYTES];
        nh_kernel_config_text(cuda->spec[cuda->count - 1], last);
        CHECK(strstr(last, rows[i].pipeline) && strstr(last, rows[i].mask), "%s: %s", rows[i].text,
              last);
        built->destroy(built);
    }
}

/* Whether a launch has the columns of a part of values, 208 and 192 of 400, in these tensors, to which these slots are bound. */
static void check_part(const struct fake_launch *launch, int part, const int *slot,
                       const int32_t *tensor, int count, const char *what) {
    const struct nh_cuda_args *args = &launch->args;
    for (int i = 0; i < count; i++) {
        CHECK(args->tensor[slot[i]].data == address_of(tensor[i]) + part * 208 * 2 &&
                  args->tensor[slot[i]].head == 400,
              "%s: part %d, slot %d at %p", what, part, slot[i], args->tensor[slot[i]].data);
    }
    CHECK(args->dim_v == (part ? 192 : 208), "%s: part %d: %lld columns", what, part, args->dim_v);
}

/* Wide values are computed in parts of their columns: outputs, of which the first part's launch stores LSE, and dV. For dQ and
 * dK all of them are needed. */
static void check_wide_values(void) {
    static const int of_values[] = {NH_V, NH_O, NH_EXTRA_V}, sums[] = {NH_V, NH_D_O, NH_D_V};
    static const int32_t tensors[] = {NHOOD_V, NHOOD_O, NHOOD_EXTRA_V},
                         gradients[] = {NHOOD_V, NHOOD_D_O, NHOOD_D_V},
                         extra[] = {NHOOD_EXTRA_V, NHOOD_D_O, NHOOD_D_EXTRA_V};
    const struct nh_solver *const forward[] = {&nh_solver_cuda_fused80, &nh_solver_cuda_fused90};
    struct nh_problem problem;
    nhood_io io;
    const char *text = "fwd:f16:b1h2d32v400:64:w7:x2";
    read_problem(text, &problem);
    for (int i = 0; i < 2; i++) {
        if (!execute(forward[i], &problem, text, &io)) continue;
        CHECK(fake.launch_count == 2, "%s: %d launches", forward[i]->name, fake.launch_count);
        for (int part = 0; part < fake.launch_count; part++) {
            const struct fake_launch *launch = &fake.launch[part];
            check_part(launch, part, of_values, tensors, 3, forward[i]->name);
            CHECK(!launch->args.tensor[NH_LSE].data == (part == 1), "%s: part %d: LSE at %p",
                  forward[i]->name, part, launch->args.tensor[NH_LSE].data);
        }
    }
    /* statistics, dQ, dK, dV in two parts, and the same of the extra tokens but for dQ */
    text = "bwd:f16:b1h2d32v400:64:w7:x2";
    read_problem(text, &problem);
    if (!execute(&nh_solver_cuda_split80, &problem, text, &io)) return;
    CHECK(fake.launch_count == 8, "%d launches", fake.launch_count);
    for (int i = 0; i < 3 + 3; i += i == 2 ? 3 : 1)
        CHECK(fake.launch[i].args.dim_v == 400, "launch %d: %lld columns", i,
              fake.launch[i].args.dim_v);
    for (int part = 0; part < 2; part++) {
        check_part(&fake.launch[3 + part], part, sums, gradients, 3, "dV");
        check_part(&fake.launch[6 + part], part, sums, extra, 3, "dV of extra tokens");
    }
    /* the same without extra tokens; a launch for dV has nothing to do with dK */
    text = "bwd:f16:b1h2d32v400:64:w7";
    read_problem(text, &problem);
    if (!execute(&nh_solver_cuda_split90, &problem, text, &io)) return;
    CHECK(fake.launch_count == 5, "%d launches", fake.launch_count);
    for (int i = 0; i < 3; i++)
        CHECK(fake.launch[i].args.dim_v == 400, "launch %d: %lld columns", i,
              fake.launch[i].args.dim_v);
    for (int part = 0; part < 2; part++) {
        check_part(&fake.launch[3 + part], part, sums, gradients, 3, "dV of cuda.split90");
        CHECK(!fake.launch[3 + part].args.tensor[NH_D_K].data, "dK of part %d", part);
    }
}

/* Heads that share memory, as those of a tensor that is expanded, are fetched like any others. */
static void check_expanded(void) {
    static const struct nh_solver *const solver[] = {
        &nh_solver_cuda_fused90, &nh_solver_cuda_split90, &nh_solver_cuda_joint90};
    struct nh_problem problem;
    nhood_io io;
    for (int i = 0; i < 3; i++) {
        const char *text = i ? "bwd:bf16:b2h4d32v64:40x40:w9x9" : "fwd:bf16:b2h4d32v64:40x40:w9x9";
        read_problem(text, &problem);
        problem.strides[NHOOD_V].head = 0;
        const char *refusal = refusal_of(solver[i], &problem, &f.device[0]);
        CHECK(!refusal, "%s: %s", solver[i]->name, refusal);
        if (!refusal) execute(solver[i], &problem, text, &io);
        problem.strides[NHOOD_V].head = -64;
        CHECK(refusal_of(solver[i], &problem, &f.device[0]), "%s: a stride of -64",
              solver[i]->name);
    }
}

static void check_alignment_of(const char *text, int32_t tensor, int offset_bytes,
                               const char *refusal) {
    struct nh_problem problem;
    struct nh_operation *operation;
    read_problem(text, &problem);
    CHECK(!build_first(&nh_solver_cuda_naive, &problem, &f.device[0], &operation), "%s",
          nhood_last_error());
    nhood_io io = pretended_io(&problem, operation);
    io.data[tensor] = (char *)io.data[tensor] + offset_bytes;
    fake.launch_count = 0;
    nhood_status status = operation->run(operation, &io);
    if (refusal) {
        CHECK(status == NHOOD_ERR_ARGUMENT && strstr(nhood_last_error(), refusal) &&
                  fake.launch_count == 0,
              "%s, tensor %d: %d, %s", text, (int)tensor, (int)status, nhood_last_error());
    } else {
        CHECK(!status && fake.launch[0].args.tensor[tensor].data == io.data[tensor], "%s: %s", text,
              nhood_last_error());
    }
    operation->destroy(operation);
}

static void check_alignment(void) {
    check_alignment_of("fwd:f16:b1h1d32:64:w7", NHOOD_Q, 8,
                       "io.data[q] = 0x100000000008 is not a multiple of 16 bytes, which CUDA "
                       "plans need without NHOOD_FLAG_UNALIGNED");
    check_alignment_of("fwd:f64:b1h1d32:64:w7", NHOOD_O, 8, "io.data[o] = ");
    check_alignment_of("bwd:f16:b1h1d32:64:w7", NHOOD_D_V, 2, "io.data[d_v] = ");
    check_alignment_of("bwd:f16:b1h1d32:64:w7:x1", NHOOD_EXTRA_K, 2, "io.data[extra_k] = ");
    /* Tensors that are no rows of a head dim need no more than their dtype's alignment. */
    check_alignment_of("fwd:f16:b1h1d32:64:w7", NHOOD_LSE, 4, NULL);
    check_alignment_of("fwd:f16:b1h1d32:64:w7:rpb", NHOOD_BIAS, 2, NULL);
    check_alignment_of("fwd:f16:b1h1d32:64:w7:unaligned", NHOOD_Q, 2, NULL);
}

/* Rows of head dims decide how wide loads may be; LSE, A and biases, whose strides are odd, do not. */
static void check_vector(void) {
    static const struct {
        const char *text;
        int elements;
    } row[] = {{"fwd:f16:b2h3d32:9x9:w7x7:rpb", 8},      {"bwd:f16:b2h3d32:9x9:w7x7:rpb:x3", 8},
               {"pn:bf16:b2h3d64:9x9:w7x7", 8},          {"fwd:f32:b2h3d32:9x9:w7x7", 4},
               {"fwd:f64:b2h3d32:9x9:w7x7", 2},          {"fwd:f16:b2h3d36:9x9:w7x7", 4},
               {"fwd:f16:b2h3d32v33:9x9:w7x7", 1},       {"fwd:f16:b2h3d34:9x9:w7x7", 2},
               {"fwd:f16:b2h3d32:9x9:w7x7:unaligned", 1}};
    struct nh_problem problem;
    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        read_problem(row[i].text, &problem);
        int elements = nh_cuda_vector(&problem, UINT32_MAX);
        CHECK(elements == row[i].elements, "%s: %d elements", row[i].text, elements);
    }
    read_problem(row[0].text, &problem);
    problem.strides[NHOOD_K].axis[1] += 2;
    CHECK(nh_cuda_vector(&problem, UINT32_MAX) == 2 && nh_cuda_vector(&problem, 1u << NH_Q) == 8,
          "a stride that is no multiple of 8");
    read_problem("fwd:f16:b1h1d32:1:w1:x3", &problem);
    problem.strides[NHOOD_EXTRA_K].axis[2] += 2;
    CHECK(nh_cuda_vector(&problem, UINT32_MAX) == 2, "one token, but three extra ones");
}

int main(void) {
    fake_driver_reset(90);
    CHECK(fixture_open(&f, "") == NHOOD_OK, "%s", nhood_last_error());
    const char *const problems[] = {"fwd:f16:b2h4k2d64:6x20x24:w3x7x7:x3",
                                    "fwd:bf16:b3h2d32v48:40x40:w9x9:s3x3:d2x1",
                                    "fwd:f32:b1h2d80:300:w33:rpb",
                                    "fwd:bf16:b1h2d128:300:w33:c1",
                                    "bwd:bf16:b2h4k2d64:20x24:w7x7:rpb:x3",
                                    "bwd:f64:b1h2d24:6x7x8:w3x3x3",
                                    "pn:f16:b2h2d32:30x30:w5x5",
                                    "nn:f32:b2h2d32:300:w5",
                                    "in:bf16:b2h4k2d32:30x30:w5x5:d2x2",
                                    "fwd:f16:b70000h2d32:64:w3",
                                    "bwd:f16:b2h40d64:1024x1024:w5x5",
                                    "in:f16:b70000h1d16:64:w3"};
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
        check_all(problems[i]);
    check_regions();
    check_clear_keys();
    check_region_refusals();
    check_large();
    check_grid_limits();
    check_uncountable();
    check_scales();
    check_left_out();
    check_overlaps();
    check_shared_kernel();
    check_tables();
    check_rolling_tables();
    check_wide_values();
    check_expanded();
    check_alignment();
    check_vector();
    fixture_close(&f, "launches");
    return test_result();
}
