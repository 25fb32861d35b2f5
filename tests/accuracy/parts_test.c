/* Backwards over parts of the keys, given the O and LSE of all keys, against sums in f64: `parts_test [-v] ISA SOLVER..`, with
 * solvers and devices as in accuracy_test. Every query attends every key and every extra token, so what is right takes no windows.
 *
 * LSE is up to 1,000, the keys of the last part weigh from 1e-7 up to as much as all others, and values have sizes up to 1e5. Bars are what rounding explains, element by element: of O, of LSE, of products in f32, and of results to
 * their type. A kernel that takes the LSE of all keys for that of its own part, and corrects P or delta by what then seems to be a
 * rounding error, misses them. */
#include "dtype.h"
#include "nhood.h"
#include "test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { MOST_KEYS = 1024, MOST_DIM = 64, MOST_PARTS = 3 };
enum { EMULATED_KEYS = 200 }; /* the longest problems on CUDA devices, which may be emulated */

struct shape {
    const char *axes;                     /* of the problem text: lengths and windows */
    int32_t dtype, dim;                   /* of heads */
    int32_t tokens, plane;                /* all tokens, and those of a place of the first axis */
    int32_t extras;                       /* extra tokens, which only the last part has */
    int32_t parts, begin[MOST_PARTS + 1]; /* of the first axis */
};

static const struct shape shapes[] = {
    {"16:w16", NHOOD_DTYPE_F32, 8, 16, 1, 0, 2, {0, 15, 16}},
    {"16:w16", NHOOD_DTYPE_BF16, 8, 16, 1, 0, 2, {0, 15, 16}},
    {"16:w16", NHOOD_DTYPE_F16, 8, 16, 1, 0, 2, {0, 15, 16}},
    {"16:w16", NHOOD_DTYPE_F64, 8, 16, 1, 0, 2, {0, 15, 16}},
    /* several places of the middle axis in a vector, and blocks of several vectors */
    {"8x7:w8x7", NHOOD_DTYPE_F32, 20, 56, 7, 0, 3, {0, 3, 7, 8}},
    {"6x20:w6x20", NHOOD_DTYPE_BF16, 16, 120, 20, 0, 2, {0, 5, 6}},
    /* bf16 rows that tile registers take */
    {"80:w80", NHOOD_DTYPE_BF16, 32, 80, 1, 0, 2, {0, 79, 80}},
    /* more keys than scores are kept of: several steps */
    {"700:w700", NHOOD_DTYPE_F32, 8, 700, 1, 0, 2, {0, 699, 700}},
    /* a window that is whole in one part, whose LSE is of more keys all the same: those of extra tokens in the other */
    {"16:w16", NHOOD_DTYPE_F32, 8, 16, 1, 2, 2, {0, 16, 16}},
    {"16:w16", NHOOD_DTYPE_F16, 8, 16, 1, 2, 2, {0, 16, 16}},
};

struct level {
    double lse;       /* of all keys, about */
    double last;      /* weight of a key of the last part, of all other keys together 1 */
    double size;      /* of values */
    double last_size; /* of the last part's values */
    double gradient;  /* of dO */
};

static const struct level levels[] = {
    {0, 1, 1, 1, 1},           {0, 1e-4, 1, 1, 1},        {3, 1e-6, 1, 1e3, 1},
    {23, 1e-5, 1, 1, 1},       {23, 1e-5, 1e3, 1e3, 1},   {23, 1e-6, 1e3, 1e3, 1e2},
    {23, 1e-7, 1e4, 1e4, 1},   {40, 1e-3, 1, 1, 1},       {40, 3e-6, 1, 1e4, 1},
    {203, 1e-4, 1, 1, 1},      {203, 1e-5, 1e3, 1e3, 1},  {203, 1e-6, 1, 1e5, 1},
    {1000, 1, 1, 1, 1},        {1000, 1e-3, 1e5, 1e5, 1}, {1000, 1e-4, 1, 1e3, 1},
    {1000, 1e-7, 1e5, 1e5, 1},
};

static bool verbose;
static double worst; /* error over bar */

struct tensors {
    double *data[NHOOD_TENSOR_COUNT]; /* f64 images of what the kernels get */
};

static double unit_of(int32_t dtype) { /* largest relative error of rounding */
    return dtype == NHOOD_DTYPE_F64   ? 0x1p-53
           : dtype == NHOOD_DTYPE_F32 ? 0x1p-24
           : dtype == NHOOD_DTYPE_F16 ? 0x1p-11
                                      : 0x1p-8;
}

static int32_t keys_of(const struct shape *shape) {
    return shape->tokens + shape->extras;
}

static double rounded(int32_t dtype, double x) {
    double storage;
    nh_store_f64(dtype, &storage, 0, x);
    return nh_load_f64(dtype, &storage, 0);
}

/* Whether a key belongs to the last part, which also has the extra tokens; they come after the tokens of the grid. */
static bool is_last(const struct shape *shape, int32_t key) {
    return key >= shape->begin[shape->parts - 1] * shape->plane;
}

/* Queries begin with two ones; keys with the logit that all of them have and with what each adds, which 16 bits hold. */
static void fill(const struct shape *shape, const struct level *level, struct tensors *t) {
    uint64_t state = 88172645463325252u;
    const int32_t n = shape->tokens, keys = keys_of(shape), dim = shape->dim, dtype = shape->dtype;
    const double most =
        dtype == NHOOD_DTYPE_F16 ? 300 : INFINITY; /* so that gradients do not overflow */
    for (int32_t i = 0; i < n; i++)
        for (int32_t c = 0; c < dim; c++) {
            t->data[NHOOD_Q][i * dim + c] = c < 2 ? 1 : rounded(dtype, 0.3 * test_uniform(&state));
            t->data[NHOOD_D_O][i * dim + c] =
                rounded(dtype, fmin(level->gradient, most / 300) * (test_uniform(&state) + 0.5));
        }
    for (int32_t j = 0; j < keys; j++)
        for (int32_t c = 0; c < dim; c++) {
            const double size = fmin(is_last(shape, j) ? level->last_size : level->size, most);
            const double own = is_last(shape, j) ? log(level->last * n) : 0;
            const double x = c == 0   ? level->lse - log(n)
                             : c == 1 ? own + 0.5 * test_uniform(&state)
                                      : test_uniform(&state);
            t->data[NHOOD_K][j * dim + c] = rounded(dtype, x);
            t->data[NHOOD_V][j * dim + c] = rounded(dtype, size * (test_uniform(&state) + 0.3));
        }
}

/* ---- what is right, and what rounding explains ---- */

struct right {
    double p[MOST_KEYS], d_s[MOST_KEYS], slack[MOST_KEYS], p_slack[MOST_KEYS];
};

static double dot_of(const double *a, const double *b, int32_t dim, double *size) {
    double sum = 0;
    *size = 0;
    for (int32_t c = 0; c < dim; c++) {
        sum += a[c] * b[c];
        *size += fabs(a[c] * b[c]);
    }
    return sum;
}

/* P and dS of a query over all keys, and by how much rounding may change them. Stores O and LSE, rounded, if `store`. */
static void query_right(const struct shape *shape, struct tensors *t, int32_t i, double weight_unit,
                        struct right *right) {
    const int32_t keys = keys_of(shape), dim = shape->dim, dtype = shape->dtype;
    const double *q = t->data[NHOOD_Q] + i * dim, *d_o = t->data[NHOOD_D_O] + i * dim;
    const double real_unit = dtype == NHOOD_DTYPE_F64 ? 0x1p-53 : 0x1p-24;
    static double s[MOST_KEYS];
    double largest = -INFINITY, sum = 0, size, o[MOST_DIM] = {0}, delta_slack = 0, delta = 0;
    for (int32_t j = 0; j < keys; j++) {
        s[j] = dot_of(q, t->data[NHOOD_K] + j * dim, dim, &size);
        right->p_slack[j] = real_unit * size; /* for now, of the logit */
        largest = fmax(largest, s[j]);
    }
    for (int32_t j = 0; j < keys; j++)
        sum += exp(s[j] - largest);
    const double lse = largest + log(sum);
    for (int32_t j = 0; j < keys; j++) {
        right->p[j] = exp(s[j] - lse);
        for (int32_t c = 0; c < dim; c++)
            o[c] += right->p[j] * t->data[NHOOD_V][j * dim + c];
    }
    for (int32_t c = 0; c < dim; c++) {
        const double stored = rounded(dtype, o[c]);
        t->data[NHOOD_O][i * dim + c] = stored;
        delta += d_o[c] * o[c];
        delta_slack += fabs(d_o[c] * (stored - o[c])) + 4 * real_unit * fabs(d_o[c] * o[c]);
    }
    t->data[NHOOD_LSE][i] = dtype == NHOOD_DTYPE_F64 ? lse : (double)(float)lse;
    /* Where extra tokens are elsewhere, their part cannot be told from a whole window whose O and LSE are rounded. */
    const double explained = shape->extras ? unit_of(dtype) : 0;
    double lse_slack = fabs(t->data[NHOOD_LSE][i] - lse);
    if (weight_unit > 0) lse_slack += real_unit * fabs(lse); /* it is rounded again, to base 2 */
    for (int32_t j = 0; j < keys; j++)
        delta_slack +=
            explained * right->p[j] * fabs(dot_of(d_o, t->data[NHOOD_V] + j * dim, dim, &size));
    for (int32_t j = 0; j < keys; j++) {
        const double d_p = dot_of(d_o, t->data[NHOOD_V] + j * dim, dim, &size);
        const double relative = right->p_slack[j] + lse_slack + 4 * real_unit + weight_unit;
        right->d_s[j] = right->p[j] * (d_p - delta);
        /* f16 weights below 2^-14 are rounded as those are */
        const double least = dtype == NHOOD_DTYPE_F16 ? 0x1p-14 : 0;
        right->p_slack[j] = right->p[j] * relative + least * weight_unit;
        right->slack[j] =
            right->p[j] * (relative * fabs(d_p - delta) + delta_slack + 4 * real_unit * size);
    }
}

/* Gradients and their bars, of all tokens. */
static void all_right(const struct shape *shape, struct tensors *t, double weight_unit,
                      struct tensors *bar) {
    static struct right right;
    const int32_t keys = keys_of(shape), dim = shape->dim;
    for (int32_t i = 0; i < shape->tokens; i++) {
        query_right(shape, t, i, weight_unit, &right);
        for (int32_t j = 0; j < keys; j++)
            for (int32_t c = 0; c < dim; c++) {
                const double q = t->data[NHOOD_Q][i * dim + c], k = t->data[NHOOD_K][j * dim + c];
                const double d_o = t->data[NHOOD_D_O][i * dim + c];
                t->data[NHOOD_D_Q][i * dim + c] += right.d_s[j] * k;
                t->data[NHOOD_D_K][j * dim + c] += right.d_s[j] * q;
                t->data[NHOOD_D_V][j * dim + c] += right.p[j] * d_o;
                bar->data[NHOOD_D_Q][i * dim + c] += right.slack[j] * fabs(k);
                bar->data[NHOOD_D_K][j * dim + c] += right.slack[j] * fabs(q);
                bar->data[NHOOD_D_V][j * dim + c] += right.p_slack[j] * fabs(d_o);
            }
    }
}

/* ---- what the kernels give ---- */

static int32_t stored_type(const struct shape *shape, int32_t tensor) {
    return tensor == NHOOD_LSE && shape->dtype != NHOOD_DTYPE_F64 ? NHOOD_DTYPE_F32 : shape->dtype;
}

/* Executes a part; gradients of queries are added to `sum`, those of keys stored there. */
static bool run_part(nhood_context *context, int32_t device, const char *solver,
                     const struct shape *shape, int32_t part, const struct tensors *t,
                     struct tensors *sum, struct tensors *rounding) {
    static const int tensors[] = {NHOOD_Q,        NHOOD_K,       NHOOD_V,       NHOOD_O,
                                  NHOOD_LSE,      NHOOD_D_O,     NHOOD_D_Q,     NHOOD_D_K,
                                  NHOOD_D_V,      NHOOD_EXTRA_K, NHOOD_EXTRA_V, NHOOD_D_EXTRA_K,
                                  NHOOD_D_EXTRA_V};
    char text[160];
    const bool last = part == shape->parts - 1;
    const int32_t dim = shape->dim;
    int32_t first = shape->begin[part], count = shape->begin[part + 1] - first;
    const bool none =
        count == 0; /* extra tokens alone, beside one key that weighs nothing: see below */
    snprintf(text, sizeof text, "bwd:%s:b1h1d%d:%s", nh_dtype_name(shape->dtype), (int)dim,
             shape->axes);
    nhood_problem problem;
    if (nhood_problem_parse(text, &problem)) return false;
    problem.scale = 1;
    if (none) first = 0, count = 1;
    problem.region[0].key_offset = first;
    problem.region[0].key_length = count;
    problem.extra_tokens = last ? shape->extras : 0;
    nhood_io io = {.struct_size = sizeof io};
    for (size_t n = 0; n < sizeof tensors / sizeof *tensors; n++) {
        const int tensor = tensors[n];
        int64_t elements = 0;
        nhood_problem_elements(&problem, tensor, &elements);
        if (!elements) continue;
        const int32_t dtype = stored_type(shape, tensor);
        io.data[tensor] = malloc((size_t)elements * 8);
        const bool extra = tensor == NHOOD_EXTRA_K || tensor == NHOOD_EXTRA_V;
        const double *from = tensor == NHOOD_EXTRA_K   ? t->data[NHOOD_K]
                             : tensor == NHOOD_EXTRA_V ? t->data[NHOOD_V]
                                                       : t->data[tensor];
        if (extra) from += (int64_t)shape->tokens * dim;
        if (tensor == NHOOD_K || tensor == NHOOD_V) from += (int64_t)first * shape->plane * dim;
        for (int64_t i = 0; from && i < elements; i++)
            nh_store_f64(dtype, io.data[tensor], i,
                         none && tensor == NHOOD_K ? -3e4 * (i % dim == 0) : from[i]);
    }
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan = NULL;
    bool done = !nhood_plan_create(context, device, &problem, &options, &plan);
    if (done) {
        io.workspace_bytes = nhood_plan_workspace_bytes(plan);
        io.workspace = test_allocate(io.workspace_bytes + 64);
        done = !nhood_plan_execute(plan, &io);
        nhood_plan_release(plan);
        test_free(io.workspace);
    }
    const double unit = unit_of(shape->dtype);
    for (int32_t i = 0; done && i < shape->tokens * dim; i++) {
        const double d_q = nh_load_f64(shape->dtype, io.data[NHOOD_D_Q], i);
        sum->data[NHOOD_D_Q][i] += d_q;
        rounding->data[NHOOD_D_Q][i] += unit * fabs(d_q);
    }
    for (int32_t which = 0; done && which < 2; which++) {
        const int grid = which ? NHOOD_D_V : NHOOD_D_K,
                  extra = which ? NHOOD_D_EXTRA_V : NHOOD_D_EXTRA_K;
        for (int32_t i = 0; !none && i < count * shape->plane * dim; i++)
            sum->data[grid][first * shape->plane * dim + i] =
                nh_load_f64(shape->dtype, io.data[grid], i);
        for (int32_t i = 0; last && i < shape->extras * dim; i++)
            sum->data[grid][shape->tokens * dim + i] = nh_load_f64(shape->dtype, io.data[extra], i);
    }
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        free(io.data[tensor]);
    return done;
}

static void compare(const struct shape *shape, const char *what, const struct tensors *t,
                    const struct tensors *bar, const struct tensors *sum,
                    const struct tensors *rounding) {
    static const int compared[] = {NHOOD_D_Q, NHOOD_D_K, NHOOD_D_V};
    static const char *const names[] = {"dQ", "dK", "dV"};
    for (int n = 0; n < 3; n++) {
        const int tensor = compared[n];
        const int32_t rows = tensor == NHOOD_D_Q ? shape->tokens : keys_of(shape);
        double most = 0, error = 0;
        int32_t at = 0;
        for (int32_t i = 0; i < rows * shape->dim; i++) {
            const double difference = fabs(sum->data[tensor][i] - t->data[tensor][i]);
            const double limit = 2.5 * bar->data[tensor][i] + rounding->data[tensor][i] +
                                 1.5 * unit_of(shape->dtype) * fabs(t->data[tensor][i]) +
                                 (shape->dtype == NHOOD_DTYPE_F16 ? 0x1p-24 : 1e-37) + 1e-30;
            const double share = difference / limit;
            if (!(share <= most)) most = share, error = difference, at = i;
        }
        worst = fmax(worst, most);
        if (verbose) printf("%s: error of %s is %.2f of its bar\n", what, names[n], most);
        CHECK(most <= 1, "%s: error of %s[%d] is %.2e, %.1f times its bar", what, names[n], (int)at,
              error, most);
    }
}

static struct tensors zeros(void) {
    struct tensors t;
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        t.data[tensor] = calloc((size_t)MOST_KEYS * MOST_DIM, sizeof(double));
    return t;
}

static void release(struct tensors *t) {
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        free(t->data[tensor]);
}

/* False if the solver does not take the parts. */
static bool check(nhood_context *context, int32_t device, const char *solver,
                  const struct shape *shape, const struct level *level, double weight_unit) {
    struct tensors t = zeros(), bar = zeros(), sum = zeros(), rounding = zeros();
    bool done = true;
    char what[256];
    fill(shape, level, &t);
    all_right(shape, &t, weight_unit, &bar);
    for (int32_t part = 0; done && part < shape->parts; part++)
        done = run_part(context, device, solver, shape, part, &t, &sum, &rounding);
    snprintf(what, sizeof what, "%s %s d%d %s, LSE %.0f, last %.0e, values %.0e and %.0e, dO %.0e",
             solver, nh_dtype_name(shape->dtype), (int)shape->dim, shape->axes, level->lse,
             level->last, level->size, level->last_size, level->gradient);
    if (done) compare(shape, what, &t, &bar, &sum, &rounding);
    release(&t);
    release(&bar);
    release(&sum);
    release(&rounding);
    return done;
}

/* What products of matrices add to the relative error of P and dS: their rounding to 16 bits or, of f32, parts of TF32. */
static double weight_unit(bool matrices, int32_t dtype) {
    if (!matrices || dtype == NHOOD_DTYPE_F64) return 0;
    return dtype == NHOOD_DTYPE_F32 ? 0x1p-20 : unit_of(dtype);
}

int main(int count, char **argument) {
    verbose = count > 1 && !strcmp(argument[1], "-v");
    argument += verbose;
    count -= verbose;
    if (count < 3) {
        printf("usage: parts_test [-v] ISA SOLVER..\n");
        return EXIT_FAILURE;
    }
    const nhood_context_options options = {
        .struct_size = sizeof options, .isa = argument[1], .cache = ""};
    nhood_context *context = NULL;
    if (nhood_context_create(&options, &context)) {
        printf("%s\n", nhood_last_error());
        return EXIT_FAILURE;
    }
    for (int i = 2; i < count; i++) {
        const bool cuda = !strncmp(argument[i], "cuda.", 5);
        const bool amx = !strcmp(argument[1], "amx");
        int taken = 0;
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (size_t l = 0; l < sizeof levels / sizeof *levels; l++)
                taken += (!cuda || shapes[s].tokens <= EMULATED_KEYS) &&
                         check(context, cuda, argument[i], &shapes[s], &levels[l],
                               weight_unit(cuda || amx, shapes[s].dtype));
        CHECK(taken > 0, "%s took no problem", argument[i]);
    }
    nhood_context_destroy(context);
    printf("largest error: %.2f of its bar\n", worst);
    return test_result();
}
