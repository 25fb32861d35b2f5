/* The kernel cache: memory, then the disk store, then the compiler, and every way in which they fail. */
#include "cuda_solvers.h"
#include "fixture.h"

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static char base[] = "/tmp/nhood-cuda-XXXXXX";
static char folder[64];

/* A folder of its own for the store of every check. */
static const char *cold_folder(const char *name) {
    snprintf(folder, sizeof folder, "%s/%s", base, name);
    return folder;
}

static nhood_status plan(struct fixture *f, int device, const char *text) {
    struct nh_problem problem;
    struct nh_operation *operation;
    read_problem(text, &problem);
    nhood_status status =
        build_first(&nh_solver_cuda_naive, &problem, &f->device[device], &operation);
    if (!status) operation->destroy(operation);
    return status;
}

#define PROBLEM "fwd:f32:b1h1d32:64:w17"

static void expect(const struct fixture *f, const char *what, int64_t from_memory,
                   int64_t from_store, int64_t compiled) {
    nhood_kernel_counts counts;
    nh_kernel_cache_count(f->cuda->kernels, &counts);
    CHECK(counts.from_memory == from_memory && counts.from_store == from_store &&
              counts.compiled == compiled && (counts.compile_ns > 0) == (compiled > 0) &&
              (counts.store_ns > 0) == (from_store > 0),
          "%s: %lld from memory, %lld from the store, %lld compiled", what,
          (long long)counts.from_memory, (long long)counts.from_store, (long long)counts.compiled);
}

/* Opens a context on the folder, plans once and closes; says where the kernel came from. */
static void expect_life(const char *cache, const char *what, int64_t from_store, int64_t compiled) {
    struct fixture f;
    fake_driver_reset(90);
    CHECK(fixture_open(&f, cache) == NHOOD_OK && plan(&f, 0, PROBLEM) == NHOOD_OK, "%s: %s", what,
          nhood_last_error());
    expect(&f, what, 0, from_store, compiled);
    fixture_close(&f, what);
}

/* A kernel's key holds nothing of a problem's extents; it does hold dtype and head dim, and the architecture. */
static void check_memory(void) {
    struct fixture f;
    fake_driver_reset(90);
    CHECK(fixture_open(&f, "") == NHOOD_OK, "%s", nhood_last_error());
    const char *const alike[] = {PROBLEM, PROBLEM, "fwd:f32:b3h6k2d32:9999:w33:s3:d2:c1:x5",
                                 "fwd:f32:b1h1d32:20x30x40:w3x5x17:scale2"};
    for (int i = 0; i < 4; i++)
        CHECK(plan(&f, 0, alike[i]) == NHOOD_OK, "%s: %s", alike[i], nhood_last_error());
    expect(&f, "other extents", 3, 0, 1);
    CHECK(plan(&f, 0, "fwd:f16:b1h1d32:64:w17") == NHOOD_OK, "%s", nhood_last_error());
    CHECK(plan(&f, 0, "fwd:f32:b1h1d256:64:w7") == NHOOD_OK, "%s", nhood_last_error());
    expect(&f, "other dtype and head dim", 3, 0, 3);
    /* f32 sums of more than 256 terms are added up in another way */
    CHECK(plan(&f, 0, "fwd:f32:b1h1d32:20x30x40:w5x6x17") == NHOOD_OK, "%s", nhood_last_error());
    CHECK(plan(&f, 0, "fwd:f32:b1h1d32:4096:w4000") == NHOOD_OK, "%s", nhood_last_error());
    expect(&f, "long sums", 4, 0, 4);
    CHECK(fake.libraries_open == 4, "%d libraries", fake.libraries_open);
    fixture_close(&f, "memory");
}

/* Plans in the primary context find a kernel ready, but for more shared memory than a plan before asked for; others make it ready in
 * their own. */
static void check_ready(void) {
    static const struct nh_kernel_spec spec = {.source = "bias_sum.cu"};
    static const struct {
        int64_t shared_bytes;
        bool own_context;
        int calls;
    } get[] = {{50000, false, 1}, {50000, false, 1}, {40000, false, 1}, {60000, false, 2},
               {50000, false, 2}, {50000, true, 3},  {50000, true, 4},  {60000, false, 4}};
    struct fixture f;
    nh_cu_kernel kernel;
    fake_driver_reset(90);
    CHECK(fixture_open(&f, "") == NHOOD_OK, "%s", nhood_last_error());
    fake.failing = "kernel_set"; /* is counted, and does not fail */
    fake.fail_from = 1000;
    for (size_t i = 0; i < sizeof get / sizeof *get; i++) {
        fake.context_current = get[i].own_context;
        CHECK(!nh_kernel_get(f.device[0].backend, &spec, get[i].shared_bytes, &kernel), "%s",
              nhood_last_error());
        CHECK(fake.calls_of_failing == get[i].calls, "get %d: %d calls", (int)i,
              fake.calls_of_failing);
    }
    fake.context_current = false;
    fixture_close(&f, "ready kernels");
}

static void check_store(void) {
    char code[sizeof fake.code];
    const char *cache = cold_folder("store");
    expect_life(cache, "cold store", 0, 1);
    memcpy(code, fake.code, sizeof code);
    int compiled = atomic_load(&fake_compiler()->compiled);
    expect_life(cache, "warm store", 1, 0);
    CHECK(strcmp(code, fake.code) == 0 && *code, "loaded '%s', compiled '%s'", fake.code, code);
    CHECK(atomic_load(&fake_compiler()->compiled) == compiled, "NVRTC was called");
    struct fixture f;
    fake_driver_reset(80);
    CHECK(fixture_open(&f, cache) == NHOOD_OK && plan(&f, 0, PROBLEM) == NHOOD_OK, "%s",
          nhood_last_error());
    expect(&f, "another architecture", 0, 0, 1);
    fixture_close(&f, "another architecture");
}

/* The path of the folder's one entry. */
static void entry_path(const char *cache, char path[512]) {
    DIR *entries = opendir(cache);
    *path = '\0';
    for (struct dirent *entry; entries && (entry = readdir(entries));)
        if (entry->d_name[0] != '.') snprintf(path, 512, "%s/%s", cache, entry->d_name);
    if (entries) closedir(entries);
}

/* A damaged entry is made anew and written over; so is a whole one that the driver does not take. */
static void check_damage(void) {
    char path[512];
    const char *cache = cold_folder("damage");
    expect_life(cache, "cold", 0, 1);
    entry_path(cache, path);
    flip_last_byte(path);
    expect_life(cache, "flipped bit", 0, 1);
    expect_life(cache, "mended", 1, 0);
    CHECK(truncate(path, 100) == 0, "%s", path);
    expect_life(cache, "truncated", 0, 1);
    expect_life(cache, "mended again", 1, 0);
    struct fixture f;
    fake_driver_reset(90);
    fake.failing = "library_load";
    fake.fail_from = fake.fail_times = 1;
    atomic_store(&lines_logged, 0);
    CHECK(fixture_open(&f, cache) == NHOOD_OK && plan(&f, 0, PROBLEM) == NHOOD_OK, "%s",
          nhood_last_error());
    expect(&f, "entry of a foreign driver", 0, 0, 1);
    CHECK(atomic_load(&lines_logged) == 1 && strstr(last_line, "a stored kernel does not load"),
          "%d lines, the last: %s", atomic_load(&lines_logged), last_line);
    fixture_close(&f, "entry of a foreign driver");
}

/* Whatever is wrong with the folder, plans work; one warning tells. */
static void check_unusable_folders(void) {
    struct rlimit before, small;
    atomic_store(&lines_logged, 0);
    expect_life("/dev/null/nhood", "folder that cannot be", 0, 1);
    CHECK(atomic_load(&lines_logged) == 1 && strstr(last_line, "/dev/null/nhood"), "%d lines: %s",
          atomic_load(&lines_logged), last_line);
    const char *cache = cold_folder("full");
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before);
    small = before;
    small.rlim_cur = 16;
    setrlimit(RLIMIT_FSIZE, &small);
    atomic_store(&lines_logged, 0);
    expect_life(cache, "full disk", 0, 1);
    setrlimit(RLIMIT_FSIZE, &before);
    CHECK(atomic_load(&lines_logged) == 1 && strstr(last_line, "cache is not written"),
          "%d lines: %s", atomic_load(&lines_logged), last_line);
    expect_life(cache, "after the full disk", 0, 1);
}

/* ---- racing ---- */

enum { RACERS = 16 };

static void *plan_on_thread(void *argument) {
    return plan(argument, 0, PROBLEM) ? NULL : argument;
}

static int plan_on_threads(struct fixture *f) {
    pthread_t thread[RACERS];
    int good = 0;
    for (int i = 0; i < RACERS; i++)
        pthread_create(&thread[i], NULL, plan_on_thread, f);
    for (int i = 0; i < RACERS; i++) {
        void *result = NULL;
        pthread_join(thread[i], &result);
        good += result != NULL;
    }
    return good;
}

static void check_threads(void) {
    struct fixture f;
    struct fake_nvrtc *compiler = fake_compiler();
    fake_driver_reset(90);
    compiler->compile_us = 20000;
    atomic_store(&compiler->compiled, 0);
    CHECK(fixture_open(&f, "") == NHOOD_OK, "%s", nhood_last_error());
    compiler->fault = FAKE_NVRTC_COMPILE_FAILS;
    CHECK(plan_on_threads(&f) == 0, "threads got a plan that does not compile");
    compiler->fault = FAKE_NVRTC_WORKS;
    atomic_store(&compiler->compiled, 0);
    CHECK(plan_on_threads(&f) == RACERS, "not all threads got their plan");
    CHECK(atomic_load(&compiler->compiled) == 1 && fake.libraries_loaded == 1,
          "%d compilations, %d libraries", atomic_load(&compiler->compiled), fake.libraries_loaded);
    nhood_kernel_counts counts;
    nh_kernel_cache_count(f.cuda->kernels, &counts);
    CHECK(counts.from_memory == RACERS - 1, "%lld from memory", (long long)counts.from_memory);
    compiler->compile_us = 0;
    fixture_close(&f, "threads");
}

/* In each process: compiled once or not at all, and never an error. */
static int race(const char *cache) {
    struct fixture f;
    test_failed = 0;
    atomic_store(&fake_compiler()->compiled, 0);
    if (fixture_open(&f, cache) || plan(&f, 0, PROBLEM) || plan(&f, 0, PROBLEM)) return 1;
    fixture_close(&f, "race");
    return test_failed || atomic_load(&fake_compiler()->compiled) > 1 ? 2 : 0;
}

static void check_processes(void) {
    pid_t child[RACERS];
    const char *cache = cold_folder("race");
    fake_driver_reset(90);
    fake_compiler()->compile_us = 5000;
    fflush(stdout);
    for (int i = 0; i < RACERS; i++)
        if ((child[i] = fork()) == 0) _exit(race(cache));
    for (int i = 0; i < RACERS; i++) {
        int status = -1;
        waitpid(child[i], &status, 0);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "process %d: status %x", i, status);
    }
    fake_compiler()->compile_us = 0;
    expect_life(cache, "after the race", 1, 0);
}

/* ---- the compiler ---- */

static void check_compiler_fault(enum fake_nvrtc_fault fault, const char *text) {
    struct fixture f;
    fake_driver_reset(90);
    fake_compiler()->fault = fault;
    CHECK(fixture_open(&f, cold_folder("faulty")) == NHOOD_OK, "%s", nhood_last_error());
    CHECK(plan(&f, 0, PROBLEM) == NHOOD_ERR_COMPILE && strcmp(nhood_last_error(), text) == 0,
          "'%s', not '%s'", nhood_last_error(), text);
    /* Nothing of the failure stays: neither in memory nor in the store. */
    fake_compiler()->fault = FAKE_NVRTC_WORKS;
    CHECK(plan(&f, 0, PROBLEM) == NHOOD_OK, "%s", nhood_last_error());
    fixture_close(&f, text);
    char path[512];
    entry_path(folder, path);
    CHECK(unlink(path) == 0, "%s", path);
}

/* options.nvrtc = path: planning says what is wrong with it, every time. */
static void check_no_compiler(const char *path, const char *part) {
    struct fixture f = {0};
    nhood_context_options options = {.struct_size = sizeof options, .cache = "", .nvrtc = path};
    char expected[512];
    snprintf(expected, sizeof expected, "options.nvrtc = '%s' cannot be used: ", path);
    fake_driver_reset(90);
    fake_driver_table(&f.driver);
    CHECK(nh_cuda_open(&f.driver, &options, &f.host, f.device, 1, &f.count, &f.cuda) == NHOOD_OK,
          "%s", nhood_last_error());
    for (int i = 0; i < 2; i++)
        CHECK(plan(&f, 0, PROBLEM) == NHOOD_ERR_COMPILE &&
                  strncmp(nhood_last_error(), expected, strlen(expected)) == 0 &&
                  strstr(nhood_last_error(), part),
              "%s", nhood_last_error());
    const char *note = nh_kernel_cache_note(f.cuda->kernels, "");
    CHECK(strcmp(note, nhood_last_error()) == 0, "%s", note);
    fixture_close(&f, path);
}

int main(void) {
    if (!mkdtemp(base)) return EXIT_FAILURE;
    check_memory();
    check_ready();
    check_store();
    check_damage();
    check_unusable_folders();
    check_threads();
    check_processes();
    check_compiler_fault(FAKE_NVRTC_CREATE_FAILS,
                         "NVRTC, naive_forward.cu: NVRTC_ERROR_MADE_TO_FAIL");
    check_compiler_fault(FAKE_NVRTC_COMPILE_FAILS,
                         "NVRTC, naive_forward.cu: NVRTC_ERROR_MADE_TO_FAIL: kernel.cu(7): error: "
                         "made to fail");
    check_compiler_fault(FAKE_NVRTC_NOTE, "NVRTC, naive_forward.cu: C7508: ptxas info: (C7508) "
                                          "made to be noted");
    check_compiler_fault(FAKE_NVRTC_NO_CODE, "NVRTC gave no machine code");
    check_compiler_fault(FAKE_NVRTC_CODE_FAILS, "NVRTC: NVRTC_ERROR_MADE_TO_FAIL");
    check_no_compiler("/nowhere/libnvrtc.so.13", "/nowhere/libnvrtc.so.13: cannot open");
    check_no_compiler("libm.so.6", "it is not NVRTC");
    char command[64];
    snprintf(command, sizeof command, "rm -rf '%s'", base);
    if (system(command)) printf("%s stays behind\n", base);
    return test_result();
}
