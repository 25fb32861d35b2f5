/* Tests tensors of more than 2^31 elements on every CUDA solver. Compares some rows of each result, including the last ones,
 * with a plain f64 evaluation of the definition, as a reference for all rows would take too long.
 *
 * usage: gpu_large_test           the problems listed below
 *        gpu_large_test N SEED    N random ones of rank 3, forward and backward in turn */
#include "cuda_api.h"
#include "test.h"

#include <math.h>

/* For a backward, every key of every query that attends a key is evaluated, so its random windows are smaller. Along an axis a
 * key is attended by up to 3/2 w queries at a border, and by up to a stride more. */
enum { SAMPLES = 60, MOST_ROW = 128, MOST_WINDOW = 147, MOST_WINDOW_BWD = 45, MOST_KEYS = 512 };
static const double tolerance = 0.02; /* bf16 rounds results of size 1 to 2^-9 */

static const char *const problems[] = {
    "fwd:bf16:b2h20d64:1024x1024:w3x3",
    "fwd:bf16:b1h1d64:40000000:w5",
    "fwd:bf16:b1h1k1d128:270x256x256:w3x3x3",
    "bwd:bf16:b2h20d64:1024x1024:w3x3",
    "bwd:bf16:b1h1d64:40000000:w5",
    /* many short sequences, for solvers that keep whole dilation groups in shared memory */
    "fwd:bf16:b16400h8d64:256:w31",
    "bwd:bf16:b16400h8d64:256:w31",
    /* operators: many rows, and many weights */
    "pn:bf16:b1h1d64:40000000:w5",
    "nn:bf16:b2h20d64:1024x1024:w3x3",
    "in:bf16:b1h1d64:40000000:w5",
    "pn:bf16:b1h1d32:70000000:w37",
    "nn:bf16:b1h1d32:70000000:w37",
};

/* Random numbers repeat with a period that divides no power of two, so that an offset that has lost its high bits finds other
 * numbers. */
enum { PERIOD = 20000008 };

struct large {
    nhood_problem problem;
    nhood_io io;
    int64_t tokens;
    const char *name;
};

static void fill(void *memory, int64_t elements, int tensor) {
    static uint16_t *numbers;
    uint64_t seed = 7;
    if (!numbers) {
        numbers = malloc(2 * PERIOD * sizeof *numbers);
        for (int64_t n = 0; n < PERIOD; n++) { /* +-[0.125, 2) */
            numbers[n] = (uint16_t)((test_random(&seed) & 0x81ff) | 0x3e00);
            numbers[n + PERIOD] = numbers[n];
        }
    }
    int64_t first = elements < PERIOD ? elements : PERIOD;
    MUST(write(address_in(memory), numbers + tensor * 1000003, (size_t)first * 2));
    for (int64_t at = PERIOD; at < elements; at += PERIOD) {
        int64_t count = elements - at < PERIOD ? elements - at : PERIOD;
        MUST(copy(address_in(memory) + (size_t)at * 2, address_in(memory), (size_t)count * 2));
    }
}

/* A query or key: its batch entry, its position on the axes, and its head. */
struct place {
    int64_t batch, at[3], head;
};

static int64_t row_of(const struct large *l, const struct place *p, int64_t heads) {
    int64_t row = p->batch;
    for (int a = 0; a < l->problem.rank; a++)
        row = row * l->problem.axis[a].length + p->at[a];
    return row * heads + p->head;
}

/* The first result of the problem's operation. */
static int output_of(const struct large *l) {
    switch (l->problem.op) {
    case NHOOD_OP_BWD: return NHOOD_D_Q;
    case NHOOD_OP_PN: return NHOOD_A;
    case NHOOD_OP_IN: return NHOOD_D_V;
    default: return NHOOD_O;
    }
}

/* The elements of a row: the window of a query's weights, or the head dim. */
static int64_t width_of(const struct large *l, int tensor) {
    int64_t width = 1;
    for (int a = 0; tensor == NHOOD_A && a < l->problem.rank; a++)
        width *= l->problem.axis[a].window;
    return tensor == NHOOD_A ? width : l->problem.dim;
}

static void read_row(const struct large *l, int tensor, const struct place *p,
                     double row[MOST_ROW]) {
    uint16_t bits[MOST_ROW];
    int64_t dim = width_of(l, tensor), at = row_of(l, p, l->problem.heads) * dim;
    MUST(read(bits, address_in(l->io.data[tensor]) + (size_t)at * 2, (size_t)dim * 2));
    for (int64_t i = 0; i < dim; i++) {
        uint32_t wide = (uint32_t)bits[i] << 16;
        float value;
        memcpy(&value, &wide, sizeof value);
        row[i] = (double)value;
    }
}

static double dot(const double *a, const double *b, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

static int in_window(const struct large *l, const struct place *query, const struct place *key) {
    for (int a = 0; a < l->problem.rank; a++) {
        int64_t first, count, dilation = l->problem.axis[a].dilation;
        nhood_window(&l->problem.axis[a], query->at[a], &first, &count);
        int64_t steps = (key->at[a] - first) / dilation;
        if (key->at[a] < first || (key->at[a] - first) % dilation || steps >= count) return 0;
    }
    return 1;
}

/* Lists the tokens that p attends or that attend it, all of which are less than a window away. */
static int neighbors(const struct large *l, const struct place *p, int attended,
                     struct place found[MOST_KEYS]) {
    int64_t reach[3] = {0}, low[3] = {0}, high[3] = {0};
    int count = 0;
    for (int a = 0; a < l->problem.rank; a++) {
        reach[a] = l->problem.axis[a].window * l->problem.axis[a].dilation;
        low[a] = p->at[a] > reach[a] ? p->at[a] - reach[a] : 0;
        high[a] = p->at[a] + reach[a] < l->problem.axis[a].length ? p->at[a] + reach[a]
                                                                  : l->problem.axis[a].length - 1;
    }
    struct place near = *p;
    for (near.at[0] = low[0]; near.at[0] <= high[0]; near.at[0]++)
        for (near.at[1] = low[1]; near.at[1] <= high[1]; near.at[1]++)
            for (near.at[2] = low[2]; near.at[2] <= high[2]; near.at[2]++)
                if (attended ? in_window(l, p, &near) : in_window(l, &near, p)) {
                    if (count < MOST_KEYS) found[count] = near;
                    count++;
                }
    CHECK(count <= MOST_KEYS, "%s: %d neighbors, room for %d", l->name, count, MOST_KEYS);
    return count < MOST_KEYS ? count : MOST_KEYS;
}

/* Computes one query by the definition: its output, and as the result its LSE. */
static double attend(const struct large *l, const struct place *query, double o[MOST_ROW]) {
    struct place key[MOST_KEYS];
    double q[MOST_ROW], row[MOST_ROW], weight[MOST_KEYS], sum = 0;
    int64_t dim = l->problem.dim;
    int count = neighbors(l, query, 1, key);
    read_row(l, NHOOD_Q, query, q);
    for (int n = 0; n < count; n++) {
        read_row(l, NHOOD_K, &key[n], row);
        weight[n] = exp(dot(q, row, dim) / sqrt((double)dim));
        sum += weight[n];
    }
    memset(o, 0, MOST_ROW * sizeof *o);
    for (int n = 0; n < count; n++) {
        read_row(l, NHOOD_V, &key[n], row);
        for (int64_t i = 0; i < dim; i++)
            o[i] += weight[n] / sum * row[i];
    }
    return log(sum);
}

/* Computes P and dS of a pair of a query and a key. */
static void gradient_of_score(const struct large *l, const struct place *query,
                              const struct place *key, double *p, double *d_s) {
    double q[MOST_ROW], k[MOST_ROW], v[MOST_ROW], o[MOST_ROW], d_o[MOST_ROW];
    int64_t dim = l->problem.dim;
    read_row(l, NHOOD_Q, query, q);
    read_row(l, NHOOD_K, key, k);
    read_row(l, NHOOD_V, key, v);
    read_row(l, NHOOD_D_O, query, d_o);
    double lse = attend(l, query, o);
    *p = exp(dot(q, k, dim) / sqrt((double)dim) - lse);
    *d_s = *p * (dot(d_o, v, dim) - dot(d_o, o, dim));
}

static void add(double sum[MOST_ROW], double weight, const double row[MOST_ROW], int64_t dim) {
    for (int64_t i = 0; i < dim; i++)
        sum[i] += weight * row[i];
}

static void compare(const struct large *l, int tensor, const struct place *p,
                    const double expected[MOST_ROW]) {
    double row[MOST_ROW], worst = 0, size = 1;
    read_row(l, tensor, p, row);
    for (int64_t i = 0; i < width_of(l, tensor); i++) {
        double error = fabs(row[i] - expected[i]);
        if (!(error <= worst)) worst = error;
        if (fabs(expected[i]) > size) size = fabs(expected[i]);
    }
    CHECK(worst <= tolerance * size, "%s: tensor %d, row %lld: off by %g of %g", l->name, tensor,
          (long long)row_of(l, p, l->problem.heads), worst, size);
}

/* The place of a key among those of a query, in whose order the query's weights are. */
static int slot_of(const struct large *l, const struct place *query, const struct place *key) {
    struct place near[MOST_KEYS];
    int count = neighbors(l, query, 1, near), slot = 0;
    while (slot < count && memcmp(near[slot].at, key->at, sizeof key->at) != 0)
        slot++;
    return slot;
}

/* Checks the result of an operator at a query or, of `in`, a key. */
static void check_operator(const struct large *l, const struct place *p) {
    struct place near[MOST_KEYS];
    double sum[MOST_ROW] = {0}, row[MOST_ROW], weights[MOST_ROW], q[MOST_ROW];
    int inverse = l->problem.op == NHOOD_OP_IN;
    int count = neighbors(l, p, !inverse, near);
    if (l->problem.op == NHOOD_OP_PN) read_row(l, NHOOD_Q, p, q);
    if (l->problem.op == NHOOD_OP_NN) read_row(l, NHOOD_A, p, weights);
    for (int n = 0; n < count; n++) {
        int input = inverse ? NHOOD_D_O : l->problem.op == NHOOD_OP_PN ? NHOOD_K : NHOOD_V;
        read_row(l, input, &near[n], row);
        if (inverse) read_row(l, NHOOD_A, &near[n], weights);
        if (l->problem.op == NHOOD_OP_PN)
            sum[n] = dot(q, row, l->problem.dim);
        else
            add(sum, weights[inverse ? slot_of(l, &near[n], p) : n], row, l->problem.dim);
    }
    compare(l, output_of(l), p, sum);
}

static void check_place(const struct large *l, const struct place *p) {
    struct place near[MOST_KEYS];
    double sum[MOST_ROW] = {0}, sum_v[MOST_ROW] = {0}, row[MOST_ROW], weight, d_s;
    double scale = 1 / sqrt((double)l->problem.dim);
    if (l->problem.op >= NHOOD_OP_PN) {
        check_operator(l, p);
        return;
    }
    if (l->problem.op == NHOOD_OP_FWD) {
        attend(l, p, sum);
        compare(l, NHOOD_O, p, sum);
        return;
    }
    int count = neighbors(l, p, 1, near);
    for (int n = 0; n < count; n++) {
        gradient_of_score(l, p, &near[n], &weight, &d_s);
        read_row(l, NHOOD_K, &near[n], row);
        add(sum, scale * d_s, row, l->problem.dim);
    }
    compare(l, NHOOD_D_Q, p, sum);
    memset(sum, 0, sizeof sum);
    count = neighbors(l, p, 0, near);
    for (int n = 0; n < count; n++) {
        gradient_of_score(l, &near[n], p, &weight, &d_s);
        read_row(l, NHOOD_Q, &near[n], row);
        add(sum, scale * d_s, row, l->problem.dim);
        read_row(l, NHOOD_D_O, &near[n], row);
        add(sum_v, weight, row, l->problem.dim);
    }
    compare(l, NHOOD_D_K, p, sum);
    compare(l, NHOOD_D_V, p, sum_v);
}

/* The rows to compare: the very last ones, and random ones, most of which are past 2^31 elements. */
static struct place sample(const struct large *l, int number, uint64_t *state) {
    struct place p = {.batch = l->problem.batch - 1, .head = l->problem.heads - 1};
    for (int a = 0; a < l->problem.rank; a++)
        p.at[a] = l->problem.axis[a].length - 1;
    if (number < 3) {
        p.at[l->problem.rank - 1] -= number;
        return p;
    }
    if (number % 3 == 0) p.batch = test_between(state, 0, p.batch);
    p.head = test_between(state, 0, p.head);
    for (int a = 0; a < l->problem.rank; a++) {
        int64_t low = a == 0 && number % 3 ? p.at[a] - p.at[a] / 8 : 0;
        p.at[a] = test_between(state, low, p.at[a]);
    }
    return p;
}

static int execute(struct large *l, nhood_context *context, const char *solver, int32_t op) {
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_problem problem = l->problem;
    nhood_plan *plan;
    problem.op = op;
    nhood_status status = nhood_plan_create(context, CUDA_DEVICE, &problem, &options, &plan);
    if (status == NHOOD_ERR_UNSUPPORTED) return 0;
    CHECK(!status, "%s: %s", l->name, nhood_last_error());
    if (status) return 0;
    l->io.workspace_bytes = nhood_plan_workspace_bytes(plan);
    l->io.workspace = device_allocate(l->io.workspace_bytes);
    status = nhood_plan_execute(plan, &l->io);
    CHECK(!status, "%s: %s", l->name, nhood_last_error());
    MUST(synchronize());
    device_free(l->io.workspace);
    nhood_plan_release(plan);
    return !status;
}

/* Allocates and fills the tensors. O and LSE of a backward are computed by the first solver that can. */
static int prepare(struct large *l, nhood_context *context, const char *text) {
    size_t room = 0, total = 0, needed = 0;
    memset(l, 0, sizeof *l);
    l->io.struct_size = sizeof l->io;
    l->name = text;
    CHECK(nhood_problem_parse(text, &l->problem) == NHOOD_OK, "%s", nhood_last_error());
    int64_t elements[NHOOD_TENSOR_COUNT];
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        nhood_problem_elements(&l->problem, t, &elements[t]);
        needed += (size_t)elements[t] * (t == NHOOD_LSE || t == NHOOD_D_LSE ? 4 : 2);
    }
    MUST(room(&room, &total));
    if (needed > room / 10 * 9) {
        printf("%s: left out, it needs %.1f GB of %.1f\n", text, (double)needed * 1e-9,
               (double)room * 1e-9);
        return 0;
    }
    int64_t most = 0;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if (elements[t] > most) most = elements[t];
    CHECK(most > INT32_MAX, "%s: only %lld elements", text, (long long)most);
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        if (!elements[t] || t == NHOOD_D_LSE) continue;
        l->io.data[t] = device_allocate((size_t)elements[t] * (t == NHOOD_LSE ? 4 : 2));
        if (t != NHOOD_LSE) fill(l->io.data[t], elements[t], t);
    }
    return l->problem.op != NHOOD_OP_BWD || execute(l, context, NULL, NHOOD_OP_FWD);
}

static void check_problem(nhood_context *context, const char *text) {
    struct large l;
    int32_t kind;
    const char *solver;
    int ready = prepare(&l, context, text);
    for (int32_t i = 0; ready && (solver = nhood_solver_name(i, &kind)); i++) {
        char name[256];
        uint64_t state = 12345;
        if (kind != NHOOD_DEVICE_CUDA) continue;
        snprintf(name, sizeof name, "%s, %s", solver, text);
        l.name = name;
        int output = output_of(&l), checked = test_passed;
        int64_t elements;
        nhood_problem_elements(&l.problem, output, &elements);
        MUST(fill(address_in(l.io.data[output]), 0xff, (size_t)elements * 2));
        if (!execute(&l, context, solver, l.problem.op)) continue;
        for (int n = 0; n < (l.problem.op == NHOOD_OP_BWD ? SAMPLES / 4 : SAMPLES); n++) {
            struct place p = sample(&l, n, &state);
            check_place(&l, &p);
        }
        printf("%s: %d rows\n", name, test_passed - checked);
    }
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        device_free(l.io.data[t]);
}

enum { TEXT_SIZE = 128 };

/* Draws a problem of rank 3 whose tensors have 2^31 elements and up to a tenth more: long and short clips, with windows of 3 to 7
 * along each axis. One axis in four is strided, dilated or causal. */
static void draw(char text[TEXT_SIZE], const char *op, int most_window, uint64_t *state) {
    int64_t window[3], stride[3], dilation[3], length[3], dim = 32 << test_between(state, 0, 2);
    int64_t heads = test_between(state, 1, 24), batch = test_between(state, 1, 2);
    int causal[3];
    do
        for (int a = 0; a < 3; a++)
            window[a] = 3 + 2 * test_between(state, 0, 2);
    while (window[0] * window[1] * window[2] > most_window);
    for (int a = 0; a < 3; a++) {
        stride[a] = test_between(state, 0, 3) ? 1 : test_between(state, 1, window[a]);
        dilation[a] = test_between(state, 0, 3) ? 1 : test_between(state, 2, 3);
        causal[a] = !test_between(state, 0, 3);
    }
    double tokens = ldexp(1, 31) / (double)(batch * heads * dim);
    length[0] = test_between(state, window[0] * dilation[0], 120);
    double side = sqrt(tokens / (double)length[0]), wide = 0.1 * (double)test_between(state, 6, 18);
    length[1] = (int64_t)ceil(side / wide);
    length[2] = (int64_t)ceil(side * wide * (1 + 0.01 * (double)test_between(state, 1, 10)));
    snprintf(text, TEXT_SIZE, "%s:bf16:b%dh%dd%d:%dx%dx%d:w%dx%dx%d:s%dx%dx%d:d%dx%dx%d:c%d%d%d",
             op, (int)batch, (int)heads, (int)dim, (int)length[0], (int)length[1], (int)length[2],
             (int)window[0], (int)window[1], (int)window[2], (int)stride[0], (int)stride[1],
             (int)stride[2], (int)dilation[0], (int)dilation[1], (int)dilation[2], causal[0],
             causal[1], causal[2]);
}

int main(int argc, char **argv) {
    nhood_context *context = open_context();
    char text[TEXT_SIZE];
    uint64_t state = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    for (size_t i = 0; argc < 2 && i < sizeof problems / sizeof *problems; i++)
        check_problem(context, problems[i]);
    for (int i = 0; argc == 3 && i < atoi(argv[1]); i++) {
        draw(text, i % 2 ? "bwd" : "fwd", i % 2 ? MOST_WINDOW_BWD : MOST_WINDOW, &state);
        check_problem(context, text);
    }
    nhood_context_destroy(context);
    return test_result();
}
