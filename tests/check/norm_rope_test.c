/* RMS norm and rotary positions against their definition in f64, on random problems; and what is refused, with which words.
 *
 * usage: norm_rope_test cpu ISA | cuda [cases [seed]]      (cuda: a GPU, or tests/emulator in its place)
 *        norm_rope_test compile ARCH..                      kernels through NVRTC, for GPUs that need not be there */
#include "norm_rope_case.h"

#if !defined(_WIN32)
#include <dlfcn.h>
#endif

enum { SKIPPED = 77 };

/* Where tensors live: the host, or a CUDA device. */
static struct {
    bool cuda;
    int (*allocate)(unsigned long long *, size_t);
    int (*release)(unsigned long long);
    int (*write)(unsigned long long, const void *, size_t);
    int (*read)(void *, unsigned long long, size_t);
} device;

#if !defined(_WIN32)
static bool open_cuda(void) {
    int (*init)(unsigned), (*get)(int *, int), (*retain)(void **, int), (*set)(void *), ordinal;
    void *context = NULL, *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const struct {
        const char *name;
        void *to;
    } symbol[] = {{"cuInit", &init},
                  {"cuDeviceGet", &get},
                  {"cuDevicePrimaryCtxRetain", &retain},
                  {"cuCtxSetCurrent", &set},
                  {"cuMemAlloc_v2", &device.allocate},
                  {"cuMemFree_v2", &device.release},
                  {"cuMemcpyHtoD_v2", &device.write},
                  {"cuMemcpyDtoH_v2", &device.read}};
    for (size_t i = 0; i < sizeof symbol / sizeof symbol[0]; i++) {
        void *found = library ? dlsym(library, symbol[i].name) : NULL;
        if (!found) return false;
        memcpy(symbol[i].to, &found, sizeof found);
    }
    device.cuda = true;
    return !init(0) && !get(&ordinal, 0) && !retain(&context, ordinal) && !set(context);
}
#else
static bool open_cuda(void) {
    return false;
}
#endif

static char *device_memory(const char *host, size_t bytes) {
    unsigned long long address = 0;
    if (!device.cuda) {
        char *memory = test_allocate(bytes + 64);
        memcpy(memory, host, bytes);
        return memory;
    }
    if (device.allocate(&address, bytes + 64) || device.write(address, host, bytes)) abort();
    return (char *)(uintptr_t)address;
}

static void device_read(char *host, const char *memory, size_t bytes) {
    if (!device.cuda) {
        memcpy(host, memory, bytes);
    } else if (device.read(host, (uintptr_t)memory, bytes)) {
        abort();
    }
}

static void device_free(char *memory) {
    if (device.cuda) {
        device.release((uintptr_t)memory);
    } else {
        test_free(memory);
    }
}

static void describe(const struct norm_rope_case *c, char *text, size_t capacity) {
    const nhood_norm_rope_problem *p = &c->problem;
    snprintf(text, capacity,
             "op %d dtype %d rank %d norm %d pairs %d weight %d/%d flags %u b%lld h%lld d%lld "
             "%lldx%lldx%lld rotated "
             "%lld,%lld,%lld%s",
             (int)p->op, (int)p->dtype, (int)p->rank, (int)p->norm, (int)p->pairs,
             (int)p->has_weight, (int)p->weight_dtype, (unsigned)p->flags, (long long)p->batch,
             (long long)p->heads, (long long)p->dim, (long long)p->length[0],
             (long long)p->length[1], (long long)p->length[2], (long long)p->rotated[0],
             (long long)p->rotated[1], (long long)p->rotated[2], c->in_place ? " in place" : "");
}

/* Results and what is expected are both rounded to the dtype; sums over many rows for a weight. */
static double bar_of(const nhood_norm_rope_problem *p, int tensor) {
    const int32_t dtype = case_dtype(p, tensor);
    if (dtype == NHOOD_DTYPE_F64) return 1e-13;
    if (dtype == NHOOD_DTYPE_F32) return 4e-6;
    return dtype == NHOOD_DTYPE_F16 ? 1.1e-3 : 8.5e-3;
}

/* Runs the case, leaving out the outputs of `missing` (bits). Results are in a new copy of its memory. */
static char *run(nhood_context *context, const struct norm_rope_case *c, unsigned missing,
                 const char *text) {
    nhood_norm_rope_plan *plan = NULL;
    char *result = malloc(c->bytes), *memory = device_memory(c->memory, c->bytes);
    nhood_status status = nhood_norm_rope_plan_create(context, device.cuda, &c->problem, &plan);
    CHECK(!status, "%s: %s", text, nhood_last_error());
    if (!status) {
        nhood_norm_rope_io io = case_io(c, memory);
        io.workspace_bytes = nhood_norm_rope_workspace_bytes(plan);
        char *noise = malloc(io.workspace_bytes + 1);
        memset(noise, 0xff, io.workspace_bytes + 1);
        char *workspace = device_memory(noise, io.workspace_bytes + 1);
        io.workspace = workspace;
        if (missing >> CASE_D_X & 1) io.d_x = NULL;
        if (missing >> CASE_D_WEIGHT & 1) io.d_weight = NULL;
        status = nhood_norm_rope_execute(plan, &io);
        CHECK(!status, "%s: %s", text, nhood_last_error());
        device_read(result, memory, c->bytes);
        free(noise);
        device_free(workspace);
    }
    device_free(memory);
    nhood_norm_rope_plan_destroy(plan);
    return result;
}

static void check_case(nhood_context *context, nhood_context *other, const struct norm_rope_case *c,
                       unsigned missing) {
    char text[256];
    describe(c, text, sizeof text);
    char *result = run(context, c, missing, text), *again = run(other, c, missing, text);
    CHECK(!memcmp(result, again, c->bytes), "%s: not the same bits again", text);
    for (int t = CASE_Y; t < CASE_TENSORS; t++) {
        if (!case_has(&c->problem, t) || t == CASE_D_Y || missing >> t & 1) continue;
        double error = case_error(c, result, t);
        CHECK(error < bar_of(&c->problem, t) || missing, "%s: tensor %d is off by %.2g", text, t,
              error);
    }
    free(result);
    free(again);
}

static void check_random(nhood_context *context, nhood_context *other, int cases, uint64_t seed) {
    uint64_t random = seed * 0x9e3779b97f4a7c15u + 1;
    for (int i = 0; i < cases; i++) {
        struct norm_rope_case c;
        case_random(&c, &random);
        case_create(&c, &random);
        const bool alone = c.problem.op == NHOOD_OP_BWD && c.problem.has_weight && i % 4 == 0;
        check_case(context, other, &c, 0);
        if (alone) check_case(context, other, &c, 1u << (i % 8 ? CASE_D_X : CASE_D_WEIGHT));
        case_destroy(&c);
    }
}

/* Shapes of models: the decoder's, heads that share a norm, a long sum of weight gradients. */
static void check_named(nhood_context *context, nhood_context *other) {
    for (int i = 0; i < 8; i++) {
        struct norm_rope_case c;
        uint64_t random = (uint64_t)i + 99;
        memset(&c, 0, sizeof c);
        nhood_norm_rope_problem *p = &c.problem;
        nhood_norm_rope_problem_init(p, i % 2 ? NHOOD_OP_BWD : NHOOD_OP_FWD,
                                     i < 6 ? NHOOD_DTYPE_BF16 : NHOOD_DTYPE_F32, 3);
        p->norm = i < 2 || i > 5 ? NHOOD_NORM_HEAD : NHOOD_NORM_TOKEN;
        p->has_weight = 1;
        p->heads = i < 2 ? 4 : i > 5 ? 1 : i < 4 ? 24 : 40;
        p->dim = i < 2 || i > 5 ? 64 : 128;
        p->length[0] = 3;
        p->length[1] = 5;
        p->length[2] = i > 5 ? 700 : 7;
        p->rotated[0] = i < 2 ? 16 : i > 5 ? 20 : 44;
        p->rotated[1] = p->rotated[2] = (p->dim - p->rotated[0]) / 2;
        p->pairs = i >= 4;
        if (i < 2) p->scale = 0.125;
        case_create(&c, &random);
        check_case(context, other, &c, 0);
        case_destroy(&c);
    }
}

static void refused(nhood_context *context, const nhood_norm_rope_problem *p, const char *words) {
    nhood_norm_rope_plan *plan = NULL;
    nhood_status status = nhood_norm_rope_plan_create(context, 0, p, &plan);
    CHECK(status == NHOOD_ERR_ARGUMENT && !plan && strstr(nhood_last_error(), words), "%s, not %s",
          status ? nhood_last_error() : "taken", words);
    nhood_norm_rope_plan_destroy(plan);
}

/* REFUSE(words, changes): a problem that is legal but for the changes. */
#define REFUSE(words, ...)                                                                         \
    do {                                                                                           \
        nhood_norm_rope_problem p;                                                                 \
        nhood_norm_rope_problem_init(&p, NHOOD_OP_BWD, NHOOD_DTYPE_F16, 2);                        \
        p.norm = NHOOD_NORM_TOKEN;                                                                 \
        p.has_weight = 1;                                                                          \
        p.rotated[0] = p.rotated[1] = 16;                                                          \
        p.length[0] = 3;                                                                           \
        __VA_ARGS__;                                                                               \
        refused(context, &p, words);                                                               \
    } while (0)

static void check_refusals(nhood_context *context) {
    REFUSE("problem.struct_size = 3", p.struct_size = 3);
    REFUSE("problem.op = 3 is not in [1, 2]", p.op = NHOOD_OP_PN);
    REFUSE("problem.dtype = 5 is not in [1, 4]", p.dtype = 5);
    REFUSE("problem.rank = 4 is not in [1, 3]", p.rank = 4);
    REFUSE("problem.norm = 3 is not in [0, 2]", p.norm = 3);
    REFUSE("problem.pairs = 2 is not in [0, 1]", p.pairs = 2);
    REFUSE("problem.has_weight = 1 is not in [0, 0]", p.norm = NHOOD_NORM_NONE);
    REFUSE("problem.weight_dtype = 4 is neither dtype 3", p.weight_dtype = NHOOD_DTYPE_BF16);
    REFUSE("problem.flags = 2 has others than 16", p.flags = NHOOD_FLAG_DETERMINISTIC);
    REFUSE("problem.batch = -1", p.batch = -1);
    REFUSE("problem.heads = 0", p.heads = 0);
    REFUSE("problem.dim = 33 is not even", p.dim = 33);
    REFUSE("problem.dim = 1026 is not in [2, 1024]", p.dim = 1026);
    REFUSE("problem.heads = 513 times dim 32 exceeds 16384", p.heads = 513);
    REFUSE("problem.length[1] = 0 is not in [1, 2^40]", p.length[1] = 0);
    REFUSE("problem.offset[1] = -1 is not in [0, 2^40]", p.offset[1] = -1);
    REFUSE("problem.rotated[1] = 18 is not an even number in [0, 16]", p.rotated[1] = 18);
    REFUSE("problem.rotated[0] = 3 is not an even number", p.rotated[0] = 3);
    REFUSE("problem.eps = -1 is not in", p.eps = -1);
    REFUSE("problem.eps = nan", p.eps = NAN);
    REFUSE("problem.scale = inf is not finite", p.scale = INFINITY);
    REFUSE("problem.d_x: a stride of 0 on an axis of 3", p.d_x.head = 1);
    REFUSE("problem.x: a stride of 4611686018427387904 reaches", p.x.axis[0] = INT64_C(1) << 62);
    REFUSE("more than 2^59 tokens", p.length[0] = p.length[1] = INT64_C(1) << 40);
    nhood_norm_rope_plan *plan = NULL;
    CHECK(nhood_norm_rope_plan_create(context, 0, NULL, &plan) == NHOOD_ERR_ARGUMENT,
          "NULL problem");
    CHECK(nhood_norm_rope_plan_create(context, 0, NULL, NULL) == NHOOD_ERR_ARGUMENT, "NULL plan");
    CHECK(nhood_norm_rope_plan_create(context, 99, NULL, &plan) == NHOOD_ERR_ARGUMENT,
          "no such device");
}

/* The checks of an execute: one pointer, or the workspace, is not as it has to be. */
static void check_io(nhood_context *context) {
    struct norm_rope_case c;
    uint64_t random = 5;
    memset(&c, 0, sizeof c);
    nhood_norm_rope_problem_init(&c.problem, NHOOD_OP_BWD, NHOOD_DTYPE_F32, 2);
    c.problem.norm = NHOOD_NORM_HEAD;
    c.problem.has_weight = 1;
    c.problem.rotated[1] = 32;
    case_create(&c, &random);
    nhood_norm_rope_plan *plan = NULL;
    CHECK(!nhood_norm_rope_plan_create(context, 0, &c.problem, &plan), "%s", nhood_last_error());
    nhood_norm_rope_io whole = case_io(&c, c.memory);
    whole.workspace_bytes = nhood_norm_rope_workspace_bytes(plan);
    whole.workspace = test_allocate(whole.workspace_bytes + 64);
    CHECK(whole.workspace_bytes % 64 == 0 && whole.workspace_bytes > 0, "%zu",
          whole.workspace_bytes);
    CHECK(!nhood_norm_rope_execute(plan, &whole), "%s",
          nhood_last_error()); /* table[0] is NULL: axis 0 rotates nothing */
    nhood_norm_rope_io wrong[7];
    for (int i = 0; i < 7; i++)
        wrong[i] = whole;
    wrong[0].struct_size = 1;
    wrong[1].x = NULL;
    wrong[2].table[1] = NULL;
    wrong[3].d_y = (const char *)whole.d_y + 1;
    wrong[4].workspace_bytes--;
    wrong[5].workspace = (char *)whole.workspace + 4;
    wrong[6].weight = NULL;
    static const char *const words[] = {
        "io.struct_size = 1",    "io.x is NULL",    "io.table[1] is NULL", "io.d_y = ",
        "io.workspace_bytes = ", "io.workspace = ", "io.weight is NULL"};
    for (int i = 0; i < 7; i++)
        CHECK(nhood_norm_rope_execute(plan, &wrong[i]) == NHOOD_ERR_ARGUMENT &&
                  strstr(nhood_last_error(), words[i]),
              "%s, not %s", nhood_last_error(), words[i]);
    CHECK(nhood_norm_rope_execute(NULL, &whole) == NHOOD_ERR_ARGUMENT, "NULL plan");
    CHECK(nhood_norm_rope_workspace_bytes(NULL) == 0, "NULL plan");
    nhood_norm_rope_plan_destroy(NULL);
    test_free(whole.workspace);
    nhood_norm_rope_plan_destroy(plan);
    case_destroy(&c);
}

static nhood_context *context_of(const char *isa, int32_t threads) {
    nhood_context *context = NULL;
    const nhood_context_options options = {
        .struct_size = sizeof options, .threads = threads, .isa = isa, .cache = ""};
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    return context;
}

static int check_devices(int argc, char **argv) {
    const bool cuda = !strcmp(argv[1], "cuda");
    const int first = cuda ? 2 : 3;
    if (cuda && !open_cuda()) {
        printf("skipped: no CUDA device\n");
        return SKIPPED;
    }
    const char *isa = cuda ? NULL : argv[2];
    nhood_context *context = context_of(isa, 1), *other = cuda ? context : context_of(isa, 3);
    if (!context || !other) return EXIT_FAILURE;
    if (!cuda) {
        check_refusals(context);
        check_io(context);
    }
    check_named(context, other);
    check_random(context, other, argc > first ? atoi(argv[first]) : 300,
                 argc > first + 1 ? strtoull(argv[first + 1], NULL, 0) : 1);
    nhood_context_destroy(context);
    if (other != context) nhood_context_destroy(other);
    return test_result();
}

/* Kernels of a few problems, forward and backward; those of all dtypes for the first architecture. */
static int check_compile(int argc, char **argv) {
    for (int i = 2; i < argc; i++) {
        nhood_context *context = NULL;
        nhood_bundle *bundle = NULL;
        char name[16];
        snprintf(name, sizeof name, "sm_%.8s", argv[i]);
        const nhood_context_options options = {
            .struct_size = sizeof options, .cache = "", .describe = name};
        CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
        if (!context) return test_result();
        if (nhood_bundle_create(context, &bundle)) {
            printf("skipped: %s\n", nhood_last_error());
            nhood_context_destroy(context);
            return SKIPPED;
        }
        uint64_t random = 17;
        for (int n = 0; n < (i == 2 ? 12 : 3); n++) {
            struct norm_rope_case c;
            char text[256];
            case_random(&c, &random);
            if (n < 3) c.problem.dtype = n ? NHOOD_DTYPE_BF16 : NHOOD_DTYPE_F16;
            if (n < 3) c.problem.op = n < 2 ? NHOOD_OP_BWD : NHOOD_OP_FWD;
            describe(&c, text, sizeof text);
            CHECK(!nhood_bundle_add_norm_rope(bundle, nhood_device_count(context) - 1, &c.problem),
                  "%s %s: %s", name, text, nhood_last_error());
        }
        nhood_kernel_counts counts = {.struct_size = sizeof counts};
        CHECK(!nhood_bundle_kernels(bundle, &counts) && counts.compiled > 2, "%s: %lld kernels",
              name, (long long)counts.compiled);
        CHECK(nhood_bundle_add_norm_rope(bundle, 0, NULL) == NHOOD_ERR_ARGUMENT, "NULL problem");
        nhood_bundle_destroy(bundle);
        nhood_context_destroy(context);
    }
    return test_result();
}

int main(int argc, char **argv) {
    if (argc > 2 && !strcmp(argv[1], "compile")) return check_compile(argc, argv);
    if (argc > 1 && (!strcmp(argv[1], "cuda") || (argc > 2 && !strcmp(argv[1], "cpu"))))
        return check_devices(argc, argv);
    return EXIT_FAILURE;
}
