/* The reference: every operation exactly as the top of nhood.h defines it, in f64, one query at a time, without
 * optimizations. Tests compare the other solvers with it. On the CPU it is the last resort, as it refuses nothing.
 *
 * Gradients and the results of `in` are accumulated in f64 copies of the outputs, which are kept in the workspace. */
#include "reference.h"

#include "dtype.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

struct reference {
    struct nh_operation base;
    struct nh_problem problem;
    const struct nh_host *host;
    int64_t sum_offset
        [NHOOD_TENSOR_COUNT]; /* start of a tensor's f64 copy in the workspace, in doubles; -1: none */
    int64_t sum_count;
};

/* One query with its window: the slots n = 0 .. window_count-1 name keys. */
struct query {
    int64_t batch, head, kv_head;
    int64_t row[NH_AXES]; /* in the query tensors */
    int64_t at[NH_AXES];  /* in the grid */
    struct nh_range range[NH_AXES];
};

struct run {
    const struct reference *plan;
    const struct nh_problem *problem;
    const nhood_io *io;
    double *sums; /* f64 copies */
};

static int64_t offset_of(const struct nh_problem *problem, int32_t tensor, int64_t batch,
                         const int64_t at[NH_AXES], int64_t head) {
    const nhood_strides *s = &problem->strides[tensor];
    return batch * s->batch + at[0] * s->axis[0] + at[1] * s->axis[1] + at[2] * s->axis[2] +
           head * s->head;
}

static double load(const struct run *run, int32_t tensor, int64_t index) {
    return nh_load_f64(nh_tensor_dtype(run->problem, tensor), run->io->data[tensor], index);
}

static void store(const struct run *run, int32_t tensor, int64_t index, double value) {
    nh_store_f64(nh_tensor_dtype(run->problem, tensor), run->io->data[tensor], index, value);
}

/* The f64 copy is packed in the order in which store_sums reads it. */
static double *sum_at(const struct run *run, int32_t tensor, int64_t row, int64_t width) {
    return run->sums + run->plan->sum_offset[tensor] + row * width;
}

static void query_set(struct query *query, const struct nh_problem *problem, int64_t batch,
                      int64_t head, int64_t token) {
    query->batch = batch;
    query->head = head;
    query->kv_head = head / (problem->heads / problem->kv_heads);
    for (int a = NH_AXES - 1; a >= 0; a--) {
        const struct nh_axis *axis = &problem->axis[a];
        query->row[a] = token % axis->query.length;
        token /= axis->query.length;
        query->at[a] = (axis->query.offset + query->row[a]) % axis->length;
        query->range[a] = nh_axis_window(axis, query->at[a]);
    }
}

/* Finds the key of a slot in the key tensors. False if a causal window leaves the slot unused or the key box lacks the key.
 * *bias is the index into a head's bias table. */
static bool slot_key(const struct nh_problem *problem, const struct query *query, int64_t slot,
                     int64_t key[NH_AXES], int64_t *bias) {
    int64_t bias_step = 1;
    *bias = 0;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        const struct nh_axis *axis = &problem->axis[a];
        int64_t position = query->range[a].begin + slot % axis->window;
        slot /= axis->window;
        if (position >= query->range[a].end) return false;
        int64_t token = position * axis->dilation + query->at[a] % axis->dilation;
        key[a] = token - axis->key.offset;
        if (axis->periodic) key[a] = (key[a] % axis->length + axis->length) % axis->length;
        if (key[a] < 0 || key[a] >= axis->key.length) return false;
        *bias += bias_step * (position - query->at[a] / axis->dilation + axis->window - 1);
        bias_step *= 2 * axis->window - 1;
    }
    return true;
}

static double dot(const struct run *run, int32_t left, int64_t left_index, int32_t right,
                  int64_t right_index, int64_t count) {
    double sum = 0;
    for (int64_t c = 0; c < count; c++)
        sum += load(run, left, left_index + c) * load(run, right, right_index + c);
    return sum;
}

/* Everything one (query, key) pair needs, for window slots and extra tokens alike. */
struct pair {
    int32_t k, v, d_k, d_v; /* tensors */
    int64_t k_index, v_index, kv_row;
    int64_t bias; /* -1: none */
};

static bool pair_set(const struct run *run, const struct query *query, int64_t slot,
                     struct pair *pair) {
    const struct nh_problem *problem = run->problem;
    int64_t key[NH_AXES] = {0};
    *pair = (struct pair){NHOOD_K, NHOOD_V, NHOOD_D_K, NHOOD_D_V, 0, 0, 0, -1};
    int64_t extra = slot - problem->window_count;
    if (extra >= 0) {
        *pair = (struct pair){
            NHOOD_EXTRA_K, NHOOD_EXTRA_V, NHOOD_D_EXTRA_K, NHOOD_D_EXTRA_V, 0, 0, 0, -1};
        key[NH_AXES - problem->rank] = extra;
        pair->kv_row =
            (query->batch * problem->extra_tokens + extra) * problem->kv_heads + query->kv_head;
    } else {
        int64_t bias;
        if (!slot_key(problem, query, slot, key, &bias)) return false;
        if (problem->has_bias) pair->bias = query->head * problem->bias_count + bias;
        int64_t token =
            (key[0] * problem->axis[1].key.length + key[1]) * problem->axis[2].key.length + key[2];
        pair->kv_row =
            (query->batch * problem->key_tokens + token) * problem->kv_heads + query->kv_head;
    }
    pair->k_index = offset_of(problem, pair->k, query->batch, key, query->kv_head);
    pair->v_index = offset_of(problem, pair->v, query->batch, key, query->kv_head);
    return true;
}

static double logit(const struct run *run, const struct query *query, const struct pair *pair) {
    int64_t q = offset_of(run->problem, NHOOD_Q, query->batch, query->row, query->head);
    double value =
        run->problem->scale * dot(run, NHOOD_Q, q, pair->k, pair->k_index, run->problem->dim);
    return pair->bias < 0 ? value : value + load(run, NHOOD_BIAS, pair->bias);
}

static void forward(const struct run *run, const struct query *query) {
    const struct nh_problem *problem = run->problem;
    int64_t slots = problem->window_count + problem->extra_tokens, keys = 0;
    struct pair pair;
    double largest = -INFINITY, sum = 0;
    double *row = run->sums; /* Dv doubles */
    memset(row, 0, (size_t)problem->dim_v * sizeof *row);
    for (int64_t n = 0; n < slots; n++)
        if (pair_set(run, query, n, &pair)) largest = fmax(largest, logit(run, query, &pair));
    for (int64_t n = 0; n < slots; n++) {
        if (!pair_set(run, query, n, &pair)) continue;
        double weight = exp(logit(run, query, &pair) - largest);
        sum += weight;
        keys++;
        for (int64_t c = 0; c < problem->dim_v; c++)
            row[c] += weight * load(run, pair.v, pair.v_index + c);
    }
    int64_t o = offset_of(problem, NHOOD_O, query->batch, query->row, query->head);
    for (int64_t c = 0; c < problem->dim_v; c++)
        store(run, NHOOD_O, o + c, keys ? row[c] / sum : 0);
    if (run->io->data[NHOOD_LSE])
        store(run, NHOOD_LSE, offset_of(problem, NHOOD_LSE, query->batch, query->row, query->head),
              largest + log(sum));
}

static void backward(const struct run *run, const struct query *query, int64_t query_row) {
    const struct nh_problem *problem = run->problem;
    int64_t batch = query->batch, head = query->head, dim = problem->dim, dim_v = problem->dim_v;
    int64_t q = offset_of(problem, NHOOD_Q, batch, query->row, head);
    int64_t d_o = offset_of(problem, NHOOD_D_O, batch, query->row, head);
    int64_t o = offset_of(problem, NHOOD_O, batch, query->row, head);
    double lse = load(run, NHOOD_LSE, offset_of(problem, NHOOD_LSE, batch, query->row, head));
    double delta = dot(run, NHOOD_D_O, d_o, NHOOD_O, o, dim_v);
    if (run->io->data[NHOOD_D_LSE])
        delta -= load(run, NHOOD_D_LSE, offset_of(problem, NHOOD_D_LSE, batch, query->row, head));
    double *d_q = sum_at(run, NHOOD_D_Q, query_row, dim);
    struct pair pair;
    for (int64_t n = 0; n < problem->window_count + problem->extra_tokens; n++) {
        if (!pair_set(run, query, n, &pair)) continue;
        double p = exp(logit(run, query, &pair) - lse);
        double d_s = p * (dot(run, NHOOD_D_O, d_o, pair.v, pair.v_index, dim_v) - delta);
        double *d_k = sum_at(run, pair.d_k, pair.kv_row, dim);
        double *d_v = sum_at(run, pair.d_v, pair.kv_row, dim_v);
        for (int64_t c = 0; c < dim; c++) {
            d_q[c] += problem->scale * d_s * load(run, pair.k, pair.k_index + c);
            d_k[c] += problem->scale * d_s * load(run, NHOOD_Q, q + c);
        }
        for (int64_t c = 0; c < dim_v; c++)
            d_v[c] += p * load(run, NHOOD_D_O, d_o + c);
        if (pair.bias >= 0) *sum_at(run, NHOOD_D_BIAS, pair.bias, 1) += d_s;
    }
}

static void unfused(const struct run *run, const struct query *query) {
    const struct nh_problem *problem = run->problem;
    int64_t a = offset_of(problem, NHOOD_A, query->batch, query->row, query->head),
            dim_v = problem->dim_v;
    double *row = run->sums;
    struct pair pair;
    if (problem->op == NHOOD_OP_NN) memset(row, 0, (size_t)dim_v * sizeof *row);
    for (int64_t n = 0; n < problem->window_count; n++) {
        bool used = pair_set(run, query, n, &pair);
        if (problem->op == NHOOD_OP_PN) {
            double unused = problem->flags & NHOOD_FLAG_ZERO_FILL ? 0.0 : -INFINITY;
            store(run, NHOOD_A, a + n, used ? logit(run, query, &pair) : unused);
        } else if (used && problem->op == NHOOD_OP_NN) {
            double weight = load(run, NHOOD_A, a + n);
            for (int64_t c = 0; c < dim_v; c++)
                row[c] += weight * load(run, NHOOD_V, pair.v_index + c);
        } else if (used) {
            double weight = load(run, NHOOD_A, a + n),
                   *x = sum_at(run, NHOOD_D_V, pair.kv_row, dim_v);
            int64_t y = offset_of(problem, NHOOD_D_O, query->batch, query->row, query->head);
            for (int64_t c = 0; c < dim_v; c++)
                x[c] += weight * load(run, NHOOD_D_O, y + c);
        }
    }
    if (problem->op != NHOOD_OP_NN) return;
    int64_t o = offset_of(problem, NHOOD_O, query->batch, query->row, query->head);
    for (int64_t c = 0; c < dim_v; c++)
        store(run, NHOOD_O, o + c, row[c]);
}

/* Rounds the f64 copies, packed [B, tokens, heads, dim], into the caller's tensors. */
static void store_sums(const struct run *run) {
    const struct nh_problem *problem = run->problem;
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        if (run->plan->sum_offset[tensor] < 0 || !run->io->data[tensor]) continue;
        bool bias = tensor == NHOOD_D_BIAS,
             extra = tensor == NHOOD_D_EXTRA_K || tensor == NHOOD_D_EXTRA_V;
        int64_t heads = tensor == NHOOD_D_Q || bias ? problem->heads : problem->kv_heads;
        int64_t width =
            tensor == NHOOD_D_V || tensor == NHOOD_D_EXTRA_V ? problem->dim_v : problem->dim;
        if (bias) width = problem->bias_count;
        bool queries = tensor == NHOOD_D_Q;
        int64_t tokens = bias      ? 1
                         : extra   ? problem->extra_tokens
                         : queries ? problem->query_tokens
                                   : problem->key_tokens;
        int64_t rows = (bias ? 1 : problem->batch) * tokens * heads;
        for (int64_t row = 0; row < rows; row++) {
            int64_t token = row / heads % tokens, batch = row / heads / tokens;
            int64_t at[NH_AXES], rest = token;
            for (int a = NH_AXES - 1; a >= 0; a--) {
                const struct nh_axis *axis = &problem->axis[a];
                int64_t length = queries ? axis->query.length : axis->key.length;
                at[a] = rest % length;
                rest /= length;
            }
            if (extra || bias) {
                memset(at, 0, sizeof at);
                at[NH_AXES - problem->rank] = token;
            }
            int64_t index = offset_of(problem, tensor, batch, at, row % heads);
            const double *sum = sum_at(run, tensor, row, width);
            for (int64_t c = 0; c < width; c++)
                store(run, tensor, index + c, sum[c]);
        }
    }
}

static nhood_status reference_run(const struct nh_operation *operation, const nhood_io *io) {
    const struct reference *plan = (const struct reference *)operation;
    const struct nh_problem *problem = &plan->problem;
    struct run run = {plan, problem, io, io->workspace};
    memset(run.sums, 0, (size_t)plan->sum_count * sizeof *run.sums);
    for (int64_t batch = 0; batch < problem->batch; batch++)
        for (int64_t token = 0; token < problem->query_tokens; token++)
            for (int64_t head = 0; head < problem->heads; head++) {
                struct query query;
                query_set(&query, problem, batch, head, token);
                int64_t row = (batch * problem->query_tokens + token) * problem->heads + head;
                if (problem->op == NHOOD_OP_FWD) forward(&run, &query);
                if (problem->op == NHOOD_OP_BWD) backward(&run, &query, row);
                if (problem->op >= NHOOD_OP_PN) unfused(&run, &query);
            }
    store_sums(&run);
    return NHOOD_OK;
}

/* A multiply-add takes about 4 ns: a scalar load, a conversion and f64 arithmetic through function calls. Keys that the key
 * box lacks are visited, too. */
static double estimate(const struct nh_solver *solver, const struct nh_problem *problem,
                       const struct nh_device *device, const struct nh_config *config,
                       struct nh_count *count) {
    (void)solver;
    (void)device;
    (void)config;
    (void)count;
    struct nh_problem visited = *problem;
    for (int a = 0; a < NH_AXES; a++)
        visited.axis[a].key = (struct nh_box){0, visited.axis[a].length};
    return 2.0 * nh_problem_flops(&visited);
}

static void reference_destroy(struct nh_operation *operation) {
    struct reference *plan = (struct reference *)operation;
    if (plan) nh_release(plan->host, plan);
}

static nhood_status build(const struct nh_solver *solver, const struct nh_problem *problem,
                          const struct nh_device *device, const struct nh_config *config,
                          struct nh_operation **operation) {
    (void)solver;
    (void)config;
    struct reference *plan = nh_allocate(device->host, sizeof *plan);
    if (!plan) return NHOOD_ERR_MEMORY;
    plan->problem = *problem;
    plan->host = device->host;
    plan->sum_count = problem->dim_v; /* the row of forward and nn */
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        bool summed = nh_problem_role(problem, tensor) == NH_OPTIONAL_OUTPUT ||
                      (problem->op == NHOOD_OP_IN && tensor == NHOOD_D_V);
        plan->sum_offset[tensor] = -1;
        if (!summed || tensor == NHOOD_LSE) continue;
        plan->sum_offset[tensor] = plan->sum_count;
        plan->sum_count += nh_tensor_elements(problem, tensor);
    }
    plan->base.workspace_bytes = nh_align_up((size_t)plan->sum_count * sizeof(double));
    plan->base.run = reference_run;
    plan->base.destroy = reference_destroy;
    *operation = &plan->base;
    return NHOOD_OK;
}

const struct nh_solver nh_solver_reference = {
    .name = "reference",
    .device_kind = NHOOD_DEVICE_CPU,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_ANY_SCALE,
    .refuse = nh_refuse_nothing,
    .candidates = nh_one_config,
    .estimate = estimate,
    .build = build,
};
