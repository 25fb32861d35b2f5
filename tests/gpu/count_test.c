/* Compares the tiles that estimates count with those that the kernels of a counting build multiply and mask (tile_note.cuh), for
 * every CUDA solver that counts tiles, on problems with borders, strides, dilations that do not divide lengths, causal axes,
 * shared heads and extra tokens. Needs a GPU or, in its place, tests/emulator.
 *
 * usage: count_test [configs [solver..]]: the number of configs of each solver and problem (2), and only these solvers */
#include "launch.h"
#include "problem.h"
#include "registry.h"
#include "scratch.h"
#include "test.h"

#include <dlfcn.h>
#include <string.h>

enum { SKIPPED = 77, NOTED_TILES = 512, MOST_CONFIGS = 64 };

/* cuMemcpyDtoH, which the library itself does not use. */
static nh_cu_result (*copy_out)(void *, nh_cu_pointer, size_t);

static const char *const problems[] = {
    "fwd:bf16:b1h2d32:300:w31",
    "fwd:bf16:b1h2d32:200:w24:s8:c1",
    "fwd:bf16:b1h4k2d32:385:w17:d3",
    "fwd:bf16:b1h1d32:150:w20:x70",
    "fwd:bf16:b1h1d32:20x27:w7x5",
    "fwd:bf16:b1h1d32:50x50:w19x21",
    "fwd:bf16:b2h1d32:19x33:w8x8:s4x2:d1x2",
    "fwd:bf16:b1h1d32:7x9x11:w3x5x4:c010",
    "fwd:bf16:b1h1d32:9x18x21:w5x9x8:d1x1x2",
    "fwd:f32:b1h1d32:17x22:w5x7:s1x3",
    "bwd:bf16:b1h1d32:257:w31",
    "bwd:bf16:b1h4k2d32:193:w16:s4:d3",
    "bwd:bf16:b1h1d32:20x21:w7x5:c10",
    "bwd:bf16:b1h1d32:6x10x10:w3x5x4:d1x2x1",
    "bwd:f32:b1h1d32:15x13:w5x7:s2x1",
    "bwd:bf16:b2h4k2d32:11x19:w5x7:x70",
    "bwd:f16:b1h1d200v256:50:w9:x20",
    /* warpgroup skipping in the backward */
    "bwd:bf16:b1h1d32:12x12x12:w5x5x5",
    "bwd:bf16:b1h1d32:24x33:w13x13",
    /* planes that roll, with keys in tiles that begin before the first */
    "bwd:bf16:b1h3d32:20x10x13:w5x5x5",
    /* parts of a grid, periodic axes */
    "fwd:bf16:b1h1d32:50x50:w19x21:q5+30x20+30:k0+40x25+20",
    "fwd:bf16:b1h2d32:385:w17:d3:q100+200:k150+101:x70",
    "fwd:bf16:b1h1d32:20x28:w7x5:s1x2:p01:q3+9x20+28:k0+20x11+28",
    "fwd:bf16:b1h1d32:300:w60:s3:d2:p1:q250+280:k31+300",
    "fwd:bf16:b1h1d32:7x9x40:w3x5x13:p001:q2+3x0+9x35+40:k1+6x0+9x0+40",
    "fwd:bf16:b1h1d32:300:w60:p1:q290+60:k280+200",
    "fwd:bf16:b1h1d32:25x31:w5x5:d3x2:q4+15x0+31",
    "fwd:bf16:b1h1d32:14x16x16:w5x7x7:p011:q1+12x3+16x0+16:k0+13x5+16x0+16", /* boxes abreast */
    "bwd:bf16:b1h4k2d32:193:w16:s4:d3:q20+150:k31+140:x70",
    "bwd:bf16:b1h1d32:20x28:w7x5:p11:q3+20x20+28:k7+20x11+28",
};

struct noted {
    double tiles, masked;
};

/* Adds up the counts of all launches. */
static struct noted read_tables(const struct nh_cuda_operation *operation, const nhood_io *io) {
    struct noted noted = {0, 0};
    for (int32_t i = 0; i < operation->count; i++) {
        const struct nh_cuda_step *step = operation->step[i];
        int64_t work_tiles = step->work_tiles;
        size_t bytes = (size_t)work_tiles * NOTED_TILES * sizeof(uint32_t);
        uint32_t *table = malloc(bytes);
        if (!table) exit(EXIT_FAILURE);
        const char *from = (const char *)io->workspace + step->binding[NH_NOTES].offset_bytes;
        CHECK(!copy_out(table, (nh_cu_pointer)(uintptr_t)from, bytes), "copying out");
        for (int64_t n = 0; n < work_tiles * NOTED_TILES; n++) {
            uint32_t met = table[n] & INT32_MAX;
            noted.tiles += met;
            noted.masked += table[n] >> 31 ? met : 0;
            CHECK(!met || n % NOTED_TILES < NOTED_TILES - 1, "a work tile meets too many tiles");
        }
        free(table);
    }
    return noted;
}

/* Runs a config once, where timing would run it twice. */
static struct noted run(const struct nh_problem *problem, const struct nh_device *device,
                        struct nh_operation *operation) {
    struct nh_scratch scratch;
    struct noted noted = {-1, -1};
    nhood_status status = nh_scratch_create(device, problem, &scratch);
    if (!status) status = nh_scratch_reserve(&scratch, operation->workspace_bytes);
    if (!status) {
        void *zeros = calloc(1, operation->workspace_bytes);
        if (!zeros) exit(EXIT_FAILURE);
        status =
            device->timing->write(device, scratch.io.workspace, zeros, operation->workspace_bytes);
        free(zeros);
    }
    if (!status) status = operation->run(operation, &scratch.io);
    if (!status) noted = read_tables((const struct nh_cuda_operation *)operation, &scratch.io);
    nh_scratch_free(&scratch);
    return noted;
}

static void check_config(const char *text, const struct nh_problem *problem,
                         const struct nh_device *device, const struct nh_solver *solver,
                         const struct nh_config *config) {
    char knobs[NH_CONFIG_BYTES];
    struct nh_operation *operation = NULL;
    struct nh_count count = {.tiles = 0};
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(solver, problem, &room);
    nh_config_text(solver, config, knobs, sizeof knobs);
    nhood_status status = solver->build(solver, view, device, config, &operation);
    CHECK(!status, "%s: %s %s: %s", text, solver->name, knobs, nhood_last_error());
    if (status) return;
    solver->estimate(solver, view, device, config, &count);
    struct noted noted = run(problem, device, operation);
    CHECK(count.tiles > 0 && noted.tiles == count.tiles && noted.masked == count.masked_tiles,
          "%s: %s %s: counted %.17g tiles, %.17g masked; met %.17g, masked %.17g", text,
          solver->name, knobs, count.tiles, count.masked_tiles, noted.tiles, noted.masked);
    operation->destroy(operation);
}

/* Whether a solver works by tiles, so that a new one cannot evade this test by counting none. */
static bool by_tiles(const struct nh_solver *solver) {
    static const char *const without_tiles[] = {"cuda.gemm", "cuda.naive", "cuda.short",
                                                "cuda.short90"};
    for (size_t i = 0; i < sizeof without_tiles / sizeof *without_tiles; i++)
        if (strcmp(solver->name, without_tiles[i]) == 0) return false;
    return true;
}

/* Whether the solver is among the names, which end with NULL. If there are none, every solver is. */
static bool is_asked_for(const struct nh_solver *solver, char *const *name) {
    for (char *const *at = name; *at; at++)
        if (strcmp(solver->name, *at) == 0) return true;
    return !*name;
}

/* Whether a solver of that name counts tiles. */
static bool counts_tiles(const char *name) {
    for (int i = 0; nh_registry_solvers[i]; i++)
        if (strcmp(nh_registry_solvers[i]->name, name) == 0)
            return by_tiles(nh_registry_solvers[i]);
    return false;
}

static int check_problem(const char *text, const struct nh_device *device, int most,
                         char *const *name) {
    nhood_problem given;
    struct nh_problem problem;
    int solvers = 0;
    CHECK(!nhood_problem_parse(text, &given), "%s: %s", text, nhood_last_error());
    if (nh_problem_canonical(&given, &problem)) return 0;
    for (int i = 0; nh_registry_solvers[i]; i++) {
        const struct nh_solver *solver = nh_registry_solvers[i];
        struct nh_config config[MOST_CONFIGS];
        struct nh_problem room;
        const struct nh_problem *view = nh_solver_view(solver, &problem, &room);
        if (solver->device_kind != NHOOD_DEVICE_CUDA || !by_tiles(solver) ||
            !is_asked_for(solver, name) || nh_solver_refusal(solver, view, device))
            continue;
        int count = solver->candidates(view, device, config, most);
        for (int c = 0; c < count; c++)
            check_config(text, &problem, device, solver, &config[c]);
        solvers++;
    }
    return solvers;
}

int main(int argc, char **argv) {
    struct nh_host host = {0};
    struct nh_device device;
    struct nh_cuda *cuda;
    int32_t count = 0;
    int most = argc > 1 ? atoi(argv[1]) : 2;
    nhood_context_options options = {.struct_size = sizeof options};
    if (most < 1 || most > MOST_CONFIGS) return EXIT_FAILURE;
    nhood_status status = nh_cuda_open(NULL, &options, &host, &device, 1, &count, &cuda);
    CHECK(!status, "%s", nhood_last_error());
    if (!count) {
        printf("skipped: %s\n", cuda ? cuda->driver_note : nhood_last_error());
        nh_cuda_close(cuda, &device, 0);
        return SKIPPED;
    }
    struct nh_cuda_device *backend = device.backend;
    struct nh_cuda_scope scope;
    void *copy = dlsym(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL), "cuMemcpyDtoH_v2");
    memcpy(&copy_out, &copy, sizeof copy);
    CHECK(!nh_cuda_enter(backend, true, &scope), "%s", nhood_last_error());
    backend->noted_tiles = NOTED_TILES;
    char *const *name = argc > 2 ? argv + 2 : argv + argc;
    for (char *const *at = name; *at; at++)
        CHECK(counts_tiles(*at), "no solver %s that counts", *at);
    int solvers = 0;
    for (size_t i = 0; i < sizeof problems / sizeof *problems; i++) {
        int own = check_problem(problems[i], &device, most, name);
        CHECK(own > 0 || *name, "%s: no solver counts", problems[i]);
        solvers += own;
    }
    CHECK(solvers > 0, "no solver counts");
    nh_cuda_leave(backend, &scope);
    nh_cuda_close(cuda, &device, count);
    return test_result();
}
