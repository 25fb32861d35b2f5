/* Kernels compiled ahead for GPUs that are only described, and contexts that live by them. */
#include "bundle.h"
#include "cuda_solvers.h"
#include "device_spec.h"
#include "fixture.h"

#include <unistd.h>

static char base[] = "/tmp/nhood-bundled-XXXXXX";
static char path[64], other_path[64];

#define PROBLEM "fwd:f32:b1h1d32:64:w17"
#define OTHER "fwd:f16:b1h1d32:64:w17"

static nhood_status build(const struct nh_solver *solver, const char *text,
                          const struct nh_device *device) {
    struct nh_problem problem;
    struct nh_operation *operation;
    read_problem(text, &problem);
    nhood_status status = build_first(solver, &problem, device, &operation);
    if (!status) operation->destroy(operation);
    return status;
}

/* Builds on the twins of every GPU of sm_90, and writes the bundle. */
static void collect(const char *file, const struct nh_solver *solver, const char *text,
                    int64_t kernels) {
    struct nh_device device[NH_MOST_DESCRIBED], twin;
    struct nh_host host = {.allocate = counted_allocate, .release = counted_release};
    struct nh_cuda *cuda = NULL;
    int32_t count = 0;
    const nhood_context_options options = {
        .struct_size = sizeof options, .cache = "", .nvrtc = FAKE_NVRTC};
    CHECK(!nh_cuda_describe("sm_90", &host, device, &count) && count == 2, "%d GPUs", (int)count);
    CHECK(!nh_cuda_collect_open(&options, &host, &cuda), "%s", nhood_last_error());
    for (int32_t i = 0; i < count; i++) {
        CHECK(!nh_cuda_collect_twin(cuda, &device[i], &twin) && !build(solver, text, &twin),
              "%s: %s", text, nhood_last_error());
        nh_release(&host, twin.backend);
    }
    nhood_kernel_counts counts = {.struct_size = sizeof counts};
    nh_kernel_cache_count(cuda->kernels, &counts);
    CHECK(counts.compiled == kernels && counts.from_memory == kernels, "%lld compiled, %lld known",
          (long long)counts.compiled, (long long)counts.from_memory);
    CHECK(!nh_kernel_cache_write(cuda->kernels, file), "%s", nhood_last_error());
    nh_cuda_close(cuda, NULL, 0);
    CHECK(atomic_load(&blocks_live) == 0, "%d blocks kept", atomic_load(&blocks_live));
}

static nhood_status open_with(struct fixture *f, const char *nvrtc, const char *bundle) {
    const nhood_context_options options = {
        .struct_size = sizeof options, .cache = "", .nvrtc = nvrtc, .bundle = bundle};
    *f = (struct fixture){
        .host = {.allocate = counted_allocate, .release = counted_release, .log = count_line}};
    fake_driver_reset(90);
    fake_driver_table(&f->driver);
    atomic_store(&lines_logged, 0);
    return nh_cuda_open(&f->driver, &options, &f->host, f->device, MOST_DEVICES, &f->count,
                        &f->cuda);
}

/* Opens, plans, and says where the kernel came from. */
static void expect(const char *what, const char *nvrtc, const char *bundle, const char *text,
                   int64_t from_bundle, int64_t compiled, int lines) {
    struct fixture f;
    nhood_kernel_counts counts = {.struct_size = sizeof counts};
    CHECK(!open_with(&f, nvrtc, bundle) && !build(&nh_solver_cuda_naive, text, &f.device[0]),
          "%s: %s", what, nhood_last_error());
    nh_kernel_cache_count(f.cuda->kernels, &counts);
    CHECK(counts.from_bundle == from_bundle && counts.compiled == compiled &&
              (counts.bundle_ns > 0) == (from_bundle > 0) && !counts.from_store,
          "%s: %lld from bundles, %lld compiled", what, (long long)counts.from_bundle,
          (long long)counts.compiled);
    CHECK(atomic_load(&lines_logged) == lines, "%s: %d lines, the last: %s", what,
          atomic_load(&lines_logged), last_line);
    fixture_close(&f, what);
}

static void check_use(void) {
    char code[sizeof fake.code], both[160];
    expect("no bundle", FAKE_NVRTC, NULL, PROBLEM, 0, 1, 0);
    memcpy(code, fake.code, sizeof code);
    expect("a bundle instead of NVRTC", "/nowhere", path, PROBLEM, 1, 0, 0);
    CHECK(*code && memcmp(code, fake.code, sizeof code) == 0, "loaded '%s', compiled '%s'",
          fake.code, code);
    expect("other extents", "/nowhere", path, "fwd:f32:b3h6k2d32:999:w33:s3:d2:c1:x5", 1, 0, 0);
    expect("before NVRTC", FAKE_NVRTC, path, PROBLEM, 1, 0, 0);
    expect("what it lacks", FAKE_NVRTC, path, OTHER, 0, 1, 0);
    snprintf(both, sizeof both, ":%s::%s", path, other_path);
    expect("the second of two", "/nowhere", both, OTHER, 1, 0, 0);
}

static void check_note(void) {
    struct fixture f;
    char expected[160];
    snprintf(expected, sizeof expected, ", bundle %s (1 kernels, nvrtc 13.9)", path);
    CHECK(!open_with(&f, FAKE_NVRTC, path), "%s", nhood_last_error());
    CHECK(strstr(nh_cuda_note(f.cuda), expected) && strstr(nh_cuda_note(f.cuda), "NVRTC 13.9 ("),
          "%s", nh_cuda_note(f.cuda));
    fixture_close(&f, "note");
}

static void check_errors(void) {
    struct fixture f;
    CHECK(!open_with(&f, "/nowhere", path), "%s", nhood_last_error());
    CHECK(build(&nh_solver_cuda_naive, OTHER, &f.device[0]) == NHOOD_ERR_COMPILE &&
              strstr(nhood_last_error(), "no bundle in use has the kernel naive_forward.cu ") &&
              strstr(nhood_last_error(), "options.nvrtc = '/nowhere'"),
          "%s", nhood_last_error());
    fixture_close(&f, "a kernel that is nowhere");
    CHECK(open_with(&f, FAKE_NVRTC, "/nowhere/bundle") == NHOOD_ERR_ARGUMENT && !f.cuda &&
              strstr(nhood_last_error(), "bundle '/nowhere/bundle'"),
          "%s", nhood_last_error());
    CHECK(open_with(&f, FAKE_NVRTC, FAKE_NVRTC) == NHOOD_ERR_ARGUMENT && !f.cuda &&
              strstr(nhood_last_error(), "not a bundle"),
          "%s", nhood_last_error());
    CHECK(atomic_load(&blocks_live) == 0, "%d blocks kept", atomic_load(&blocks_live));
    struct nh_cuda *cuda;
    const nhood_context_options no_compiler = {
        .struct_size = sizeof no_compiler, .cache = "", .nvrtc = "/nowhere"};
    CHECK(nh_cuda_collect_open(&no_compiler, &f.host, &cuda) == NHOOD_ERR_COMPILE && !cuda,
          "a bundle without a compiler");
    CHECK(atomic_load(&blocks_live) == 0, "%d blocks kept", atomic_load(&blocks_live));
}

/* What is foreign or damaged is told once and made anew. */
static void check_damage(void) {
    CHECK(!nh_bundle_write(other_path, "schema 1 sources 0123456789abcdef nvrtc 13.9", NULL), "%s",
          nhood_last_error());
    expect("other sources", FAKE_NVRTC, other_path, PROBLEM, 0, 1, 1);
    CHECK(strstr(last_line, "of another version of the library"), "%s", last_line);
    flip_last_byte(path);
    expect("flipped bit", FAKE_NVRTC, path, PROBLEM, 0, 1, 1);
    CHECK(strstr(last_line, "is damaged: kernel"), "%s", last_line);
    CHECK(!truncate(path, 200), "%s", path);
    expect("truncated", FAKE_NVRTC, path, PROBLEM, 0, 1, 1);
    CHECK(strstr(last_line, "is damaged at byte"), "%s", last_line);
}

/* Every solver compiles for a GPU that is only described: none asks its driver. */
static void check_solvers(void) {
    static const char *const problems[] = {
        "fwd:bf16:b1h2d64:24x68x24:w9x24x24", "bwd:bf16:b1h2d64:24x68x24:w9x24x24",
        "fwd:f16:b1h4d32:14x14:w7x7:rpb",     "bwd:f16:b1h4d32:14x14:w7x7:rpb",
        "bwd:f32:b1h2d32:56x56:w7x7:x5",      "pn:bf16:b1h2d32:12x12:w5x5",
        "nn:bf16:b1h2d32:12x12:w5x5",         "in:bf16:b1h2d32:12x12:w5x5"};
    static const char *const gpus[] = {"a100", "h200", "b200"};
    struct nh_host host = {.allocate = counted_allocate, .release = counted_release};
    const nhood_context_options options = {
        .struct_size = sizeof options, .cache = "", .nvrtc = FAKE_NVRTC};
    for (int g = 0; g < 3; g++) {
        struct nh_device device[NH_MOST_DESCRIBED], twin;
        struct nh_cuda *cuda = NULL;
        int32_t count = 0, built = 0;
        CHECK(!nh_cuda_describe(gpus[g], &host, device, &count) &&
                  !nh_cuda_collect_open(&options, &host, &cuda) &&
                  !nh_cuda_collect_twin(cuda, device, &twin),
              "%s", nhood_last_error());
        for (size_t i = 0; i < sizeof problems / sizeof *problems; i++)
            for (int s = 0; nh_registry_solvers[s]; s++) {
                const struct nh_solver *solver = nh_registry_solvers[s];
                struct nh_problem problem;
                read_problem(problems[i], &problem);
                if (solver->device_kind != NHOOD_DEVICE_CUDA ||
                    nh_solver_refusal(solver, &problem, &twin))
                    continue;
                CHECK(!build(solver, problems[i], &twin), "%s, %s: %s", problems[i], solver->name,
                      nhood_last_error());
                built++;
            }
        CHECK(built >= 18, "%s: %d plans", gpus[g], (int)built);
        nh_release(&host, twin.backend);
        nh_cuda_close(cuda, NULL, 0);
    }
    CHECK(atomic_load(&blocks_live) == 0, "%d blocks kept", atomic_load(&blocks_live));
}

int main(void) {
    if (!mkdtemp(base)) return EXIT_FAILURE;
    snprintf(path, sizeof path, "%s/bundle", base);
    snprintf(other_path, sizeof other_path, "%s/other", base);
    collect(path, &nh_solver_cuda_naive, PROBLEM, 1);
    collect(other_path, &nh_solver_cuda_naive, OTHER, 1);
    check_use();
    check_note();
    check_errors();
    check_damage();
    check_solvers();
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", base);
    if (system(command)) printf("%s stays behind\n", base);
    return test_result();
}
