/* Every CUDA solver, on problems that between them ask for every kernel and config, for every architecture: compiled
 * by NVRTC as on a machine with the GPU, then loaded by a driver that only pretends. Needs no GPU.
 *
 * usage: compile_test problems.txt configs arch..: at most so many configs of each solver and problem, the likeliest
 * first. A line is a problem and the solvers to compile it with, without "cuda."; all that take it where none is named.
 * With all configs names do not count, and every kernel source must have been asked for. With $QUICK_NVRTC, the path of
 * quick_nvrtc.c's library, most kernels are not optimised.
 * Prints what was compiled with its time. */
#include "bound.h"
#include "cuda.h"
#include "fake_driver.h"
#include "kernel_cache.h"
#include "norm_rope.h"
#include "peaks.h"
#include "problem.h"
#include "registry.h"
#include "test.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { SKIPPED = 77, LINE_BYTES = 256, MOST_WORDS = 16, MOST_CONFIGS = 64 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool *compiled; /* by rows of nh_kernel_sources */

static void note_source(void *user, int32_t level, const char *line) {
    char word[80];
    (void)user, (void)level;
    for (int i = 0; i < nh_kernel_source_count; i++) {
        snprintf(word, sizeof word, " %s ", nh_kernel_sources[i].name);
        compiled[i] |= !strncmp(line, "compiled ", 9) && strstr(line, word);
    }
}

/* All but that of groups, which the emulator's tests of groups ask for. */
static void check_sources(void) {
    for (int i = 0; i < nh_kernel_source_count; i++) {
        const char *name = nh_kernel_sources[i].name, *end = strrchr(name, '.');
        if (strcmp(name, "member_maps.cu") == 0) continue;
        CHECK(compiled[i] || strcmp(end, ".cu") != 0, "no problem asks for %s", name);
    }
}

/* Whether the words behind a problem, which end in one that is NULL, name the CUDA solver. */
static bool is_named(const struct nh_solver *solver, char *const *name) {
    for (; *name; name++)
        if (!strcmp(solver->name + strlen("cuda."), *name)) return true;
    return false;
}

/* Every name is of a solver, and of one that takes the problem if the device is of sm_90, which all solvers have kernels for. */
static void check_names(const char *line, const struct nh_problem *problem,
                        const struct nh_device *device, char *const *name) {
    for (; *name; name++) {
        const struct nh_solver *const *row = nh_registry_solvers;
        while (*row && ((*row)->device_kind != NHOOD_DEVICE_CUDA ||
                        strcmp((*row)->name + strlen("cuda."), *name)))
            row++;
        CHECK(*row, "%s: no solver is called cuda.%s", line, *name);
        struct nh_problem room;
        const char *refusal =
            *row && fake.arch == 90
                ? nh_solver_refusal(*row, nh_solver_view(*row, problem, &room), device)
                : NULL;
        CHECK(!refusal, "%s: %s refuses it: %s", line, *name, refusal);
    }
}

/* Builds the first candidates of every CUDA solver that takes the problem, or of those named. */
static void build_all(const char *line, char *const *name, const struct nh_device *device,
                      int most) {
    nhood_problem given;
    struct nh_problem problem;
    CHECK(nhood_problem_parse(line, &given) == NHOOD_OK, "%s: %s", line, nhood_last_error());
    if (nh_problem_canonical(&given, &problem)) return;
    check_names(line, &problem, device, name);
    bool all = !*name || most == MOST_CONFIGS;
    for (int i = 0; nh_registry_solvers[i]; i++) {
        const struct nh_solver *solver = nh_registry_solvers[i];
        struct nh_problem room;
        const struct nh_problem *view = nh_solver_view(solver, &problem, &room);
        if (solver->device_kind != NHOOD_DEVICE_CUDA || nh_solver_refusal(solver, view, device))
            continue;
        if (!all && !is_named(solver, name)) continue;
        struct nh_config config[MOST_CONFIGS];
        int count = solver->candidates(view, device, config, most);
        CHECK(count >= 1, "%s: %s proposes nothing", line, solver->name);
        for (int c = 0; c < count; c++) {
            char text[256];
            struct nh_operation *operation = NULL;
            nh_config_text(solver, &config[c], text, sizeof text);
            nhood_status status = solver->build(solver, view, device, &config[c], &operation);
            CHECK(!status, "sm_%d %s: %s %s: %s", fake.arch, line, solver->name, text,
                  nhood_last_error());
            if (!status) operation->destroy(operation);
            CHECK(solver->estimate(solver, view, device, &config[c], NULL) > 0,
                  "%s: %s: no estimate", line, solver->name);
        }
    }
}

/* RMS norm and rotary positions, which are no solver's: norm_rope_test compiles more of them. */
static void build_norm_rope(const struct nh_device *device) {
    for (int32_t op = NHOOD_OP_FWD; op <= NHOOD_OP_BWD; op++) {
        nhood_norm_rope_problem given;
        struct nh_norm_rope problem;
        struct nh_norm_rope_operation *operation = NULL;
        nhood_norm_rope_problem_init(&given, op, NHOOD_DTYPE_BF16, 1);
        given.norm = NHOOD_NORM_HEAD;
        given.has_weight = 1;
        given.rotated[0] = 32;
        nhood_status status = nh_norm_rope_canonical(&given, &problem);
        if (!status) status = nh_registry_norm_rope(&problem, device, &operation);
        CHECK(!status, "sm_%d norm_rope: %s", fake.arch, nhood_last_error());
        if (operation) operation->destroy(operation);
    }
}

/* Launches for any members within a bound. */
static void build_bounded(const struct nh_device *alone) {
    const struct nh_device any = nh_device_for_any_length(alone), *device = &any;
    static const char *const line[] = {"fwd:bf16:b1h2d32:16x16:w5x5", "bwd:f16:b1h2d32:16x16:w5x5",
                                       "fwd:f32:b1h2d16:16x16:w5x5:p10"};
    for (size_t i = 0; i < sizeof line / sizeof *line; i++) {
        const nhood_bound given = {.struct_size = sizeof given, .members = 4, .tokens = 999};
        nhood_problem problem;
        struct nh_bound bound;
        CHECK(!nhood_problem_parse(line[i], &problem) &&
                  !nh_bound_canonical(&problem, &given, &bound),
              "%s: %s", line[i], nhood_last_error());
        for (int s = 0; nh_registry_bounded_solvers[s]; s++) {
            const struct nh_solver *solver = nh_registry_bounded_solvers[s];
            const struct nh_config rows = {{0}}; /* of cuda.naive */
            struct nh_config config = rows;
            struct nh_group_operation *operation = NULL;
            if (nh_solver_refusal(solver, &bound.problem, device)) continue;
            if (strcmp(solver->name, "cuda.naive") != 0)
                CHECK(solver->candidates(&bound.problem, device, &config, 1) == 1, "%s: %s",
                      line[i], solver->name);
            const nhood_status status =
                nh_registry_bounded(solver, &config, device, &bound, &operation);
            CHECK(!status, "sm_%d %s within a bound: %s: %s", fake.arch, line[i], solver->name,
                  nhood_last_error());
            if (!status) operation->destroy(operation);
        }
    }
}

/* The kernels that reach a device's ceilings. */
static void check_ceilings(const struct nh_device *device) {
    for (int32_t dtype = NHOOD_DTYPE_F64; dtype <= NHOOD_DTYPE_BF16; dtype++) {
        nhood_ceilings ceilings = {.struct_size = sizeof ceilings};
        CHECK(!nh_cuda_measure(device, dtype, &ceilings), "sm_%d, dtype %d: %s", fake.arch,
              (int)dtype, nhood_last_error());
    }
}

static void check_arch(int arch, int most, const char *path, const char *nvrtc) {
    struct nh_driver driver;
    struct nh_host host = {.log = note_source};
    struct nh_device device;
    struct nh_cuda *cuda;
    int32_t count;
    nhood_context_options options = {.struct_size = sizeof options, .cache = "", .nvrtc = nvrtc};
    fake_driver_reset(arch);
    fake_driver_table(&driver);
    nhood_status status = nh_cuda_open(&driver, &options, &host, &device, 1, &count, &cuda);
    CHECK(!status && count == 1, "sm_%d: %s", arch, nhood_last_error());
    if (status) return;
    char line[LINE_BYTES];
    FILE *file = fopen(path, "r");
    CHECK(file, "%s", path);
    double start = seconds();
    while (file && fgets(line, sizeof line, file)) {
        char *word[MOST_WORDS + 1] = {NULL}, *rest = line;
        line[strcspn(line, "#\n")] = '\0';
        for (int i = 0; i < MOST_WORDS && (word[i] = strtok_r(rest, " ", &rest)); i++) {
        }
        if (*word) build_all(word[0], word + 1, &device, most);
    }
    if (file) fclose(file);
    build_norm_rope(&device);
    build_bounded(&device);
    check_ceilings(&device);
    nhood_kernel_counts counts;
    nh_kernel_cache_count(cuda->kernels, &counts);
    printf("sm_%d: %lld kernels compiled in %.1f s\n", arch, (long long)counts.compiled,
           seconds() - start);
    CHECK(counts.compiled > 0, "sm_%d: nothing was compiled", arch);
    CHECK(fake.libraries_open == counts.compiled, "%d libraries open", fake.libraries_open);
    nh_cuda_close(cuda, &device, count);
    CHECK(fake.libraries_open == 0 && fake.primary_references == 0, "sm_%d: not all was closed",
          arch);
}

int main(int argc, char **argv) {
    const char *nvrtc = fake_driver_nvrtc();
    int most = argc < 3 ? 0 : atoi(argv[2]);
    if (most < 1 || most > MOST_CONFIGS) return EXIT_FAILURE;
    if (!nvrtc) {
        printf("skipped: no libnvrtc (pip install nvidia-cuda-nvrtc, its path in $NHOOD_NVRTC)\n");
        return SKIPPED;
    }
    const char *quick = getenv("QUICK_NVRTC");
    if (quick && *quick) {
        setenv("REAL_NVRTC", nvrtc, 1);
        nvrtc = quick;
    }
    compiled = calloc((size_t)nh_kernel_source_count, sizeof *compiled);
    if (!compiled) return EXIT_FAILURE;
    for (int i = 3; i < argc; i++)
        check_arch(atoi(argv[i]), most, argv[1], nvrtc);
    if (most == MOST_CONFIGS) check_sources();
    free(compiled);
    return test_result();
}
