/* The reference: every operation exactly as the top of nhood.h defines it, in f64, one query at a time, without
 * optimizations. Tests compare the other solvers with it. On the CPU it is the last resort, as it refuses nothing.
 *
 * Gradients and the results of `in` are accumulated in f64 copies of the outputs, which are kept in the workspace. So are the
 * rows of the pair at hand as f64, and the logits of a query. */
#include "reference.h"

#include "dtype.h"
#include "interruption.h"

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
    double *sums;                         /* f64 copies */
    double *q, *d_o, *k, *v, *o, *logits; /* of the query, and of the key at hand */
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

/* A row as f64: where it is, or decoded to `copy`. */
static const double *load_row(const struct run *run, int32_t tensor, int64_t index, int64_t count,
                              double *copy) {
    int32_t dtype = nh_tensor_dtype(run->problem, tensor);
    const void *data = run->io->data[tensor];
    if (dtype == NHOOD_DTYPE_F64) return (const double *)data + index;
    for (int64_t c = 0; c < count; c++)
        copy[c] = nh_load_f64(dtype, data, index + c);
    return copy;
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

/* Two sums, so that additions wait half as long for each other. */
static double dot(const double *left, const double *right, int64_t count) {
    double even = 0, odd = 0;
    int64_t c = 0;
    for (; c + 1 < count; c += 2) {
        even += left[c] * right[c];
        odd += left[c + 1] * right[c + 1];
    }
    return even + odd + (c < count ? left[c] * right[c] : 0);
}

static void add_scaled(double *sum, double factor, const double *row, int64_t count) {
    for (int64_t c = 0; c < count; c++)
        sum[c] += factor * row[c];
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

static const double *query_row(const struct run *run, const struct query *query, int32_t tensor,
                               int64_t count, double *copy) {
    int64_t index = offset_of(run->problem, tensor, query->batch, query->row, query->head);
    return load_row(run, tensor, index, count, copy);
}

static const double *key_row(const struct run *run, const struct pair *pair) {
    return load_row(run, pair->k, pair->k_index, run->problem->dim, run->k);
}

static const double *value_row(const struct run *run, const struct pair *pair) {
    return load_row(run, pair->v, pair->v_index, run->problem->dim_v, run->v);
}

static double logit(const struct run *run, const struct pair *pair, const double *q,
                    const double *k) {
    double value = run->problem->scale * dot(q, k, run->problem->dim);
    return pair->bias < 0 ? value : value + load(run, NHOOD_BIAS, pair->bias);
}

static void forward(const struct run *run, const struct query *query) {
    const struct nh_problem *problem = run->problem;
    int64_t slots = problem->window_count + problem->extra_tokens, keys = 0;
    struct pair pair;
    double largest = -INFINITY, sum = 0;
    const double *q = query_row(run, query, NHOOD_Q, problem->dim, run->q);
    memset(run->o, 0, (size_t)problem->dim_v * sizeof *run->o);
    for (int64_t n = 0; n < slots; n++) {
        if (!pair_set(run, query, n, &pair)) continue;
        run->logits[n] = logit(run, &pair, q, key_row(run, &pair));
        largest = fmax(largest, run->logits[n]);
    }
    /* Logits of -infinity alone have weights of 0, and -infinity for the logarithm of their sum. */
    const double shift = largest == -INFINITY ? 0 : largest;
    for (int64_t n = 0; n < slots; n++) {
        if (!pair_set(run, query, n, &pair)) continue;
        double weight = exp(run->logits[n] - shift);
        sum += weight;
        keys++;
        add_scaled(run->o, weight, value_row(run, &pair), problem->dim_v);
    }
    int64_t o = offset_of(problem, NHOOD_O, query->batch, query->row, query->head);
    bool finite = true;
    for (int64_t c = 0; c < problem->dim_v; c++)
        finite &= isfinite(run->o[c]) != 0;
    /* If it is only the sum that overflows, weights that are divided by theirs before give the result. */
    if (!finite) memset(run->o, 0, (size_t)problem->dim_v * sizeof *run->o);
    for (int64_t n = 0; n < slots && !finite; n++)
        if (pair_set(run, query, n, &pair))
            add_scaled(run->o, exp(run->logits[n] - largest) / sum, value_row(run, &pair),
                       problem->dim_v);
    for (int64_t c = 0; c < problem->dim_v; c++)
        store(run, NHOOD_O, o + c, !keys ? 0 : finite ? run->o[c] / sum : run->o[c]);
    if (run->io->data[NHOOD_LSE])
        store(run, NHOOD_LSE, offset_of(problem, NHOOD_LSE, query->batch, query->row, query->head),
              largest + log(sum));
}

static void backward(const struct run *run, const struct query *query, int64_t d_q_row) {
    const struct nh_problem *problem = run->problem;
    int64_t batch = query->batch, head = query->head, dim = problem->dim, dim_v = problem->dim_v;
    const double *q = query_row(run, query, NHOOD_Q, dim, run->q);
    const double *d_o = query_row(run, query, NHOOD_D_O, dim_v, run->d_o);
    double lse = load(run, NHOOD_LSE, offset_of(problem, NHOOD_LSE, batch, query->row, head));
    double delta = dot(d_o, query_row(run, query, NHOOD_O, dim_v, run->o), dim_v);
    if (run->io->data[NHOOD_D_LSE])
        delta -= load(run, NHOOD_D_LSE, offset_of(problem, NHOOD_D_LSE, batch, query->row, head));
    double *d_q = sum_at(run, NHOOD_D_Q, d_q_row, dim);
    struct pair pair;
    for (int64_t n = 0; n < problem->window_count + problem->extra_tokens; n++) {
        if (!pair_set(run, query, n, &pair)) continue;
        const double *k = key_row(run, &pair);
        const double above = logit(run, &pair, q, k) - lse;
        double p = exp(above > 0 ? 0 : above); /* LSE is rounded, which matters if it is large */
        double d_s = p * (dot(d_o, value_row(run, &pair), dim_v) - delta);
        add_scaled(d_q, problem->scale * d_s, k, dim);
        add_scaled(sum_at(run, pair.d_k, pair.kv_row, dim), problem->scale * d_s, q, dim);
        add_scaled(sum_at(run, pair.d_v, pair.kv_row, dim_v), p, d_o, dim_v);
        if (pair.bias >= 0) *sum_at(run, NHOOD_D_BIAS, pair.bias, 1) += d_s;
    }
}

static void unfused(const struct run *run, const struct query *query) {
    const struct nh_problem *problem = run->problem;
    int64_t a = offset_of(problem, NHOOD_A, query->batch, query->row, query->head);
    int64_t dim_v = problem->dim_v;
    const double *q = NULL, *y = NULL;
    struct pair pair;
    if (problem->op == NHOOD_OP_PN) q = query_row(run, query, NHOOD_Q, problem->dim, run->q);
    if (problem->op == NHOOD_OP_IN) y = query_row(run, query, NHOOD_D_O, dim_v, run->d_o);
    if (problem->op == NHOOD_OP_NN) memset(run->o, 0, (size_t)dim_v * sizeof *run->o);
    for (int64_t n = 0; n < problem->window_count; n++) {
        bool used = pair_set(run, query, n, &pair);
        if (problem->op == NHOOD_OP_PN) {
            double unused = problem->flags & NHOOD_FLAG_ZERO_FILL ? 0.0 : -INFINITY;
            store(run, NHOOD_A, a + n, used ? logit(run, &pair, q, key_row(run, &pair)) : unused);
        } else if (used && problem->op == NHOOD_OP_NN) {
            add_scaled(run->o, load(run, NHOOD_A, a + n), value_row(run, &pair), dim_v);
        } else if (used) {
            double *x = sum_at(run, NHOOD_D_V, pair.kv_row, dim_v);
            add_scaled(x, load(run, NHOOD_A, a + n), y, dim_v);
        }
    }
    if (problem->op != NHOOD_OP_NN) return;
    int64_t o = offset_of(problem, NHOOD_O, query->batch, query->row, query->head);
    for (int64_t c = 0; c < dim_v; c++)
        store(run, NHOOD_O, o + c, run->o[c]);
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
    struct run run = {plan, problem, io, io->workspace, NULL, NULL, NULL, NULL, NULL, NULL};
    memset(run.sums, 0, (size_t)plan->sum_count * sizeof *run.sums);
    run.q = run.sums + plan->sum_count;
    run.k = run.q + problem->dim;
    run.v = run.k + problem->dim;
    run.o = run.v + problem->dim_v;
    run.d_o = run.o + problem->dim_v;
    run.logits = run.d_o + problem->dim_v;
    struct nh_interruption *call = nh_interruption_current();
    for (int64_t batch = 0; batch < problem->batch; batch++)
        for (int64_t token = 0; token < problem->query_tokens; token++)
            for (int64_t head = 0; head < problem->heads && !nh_interrupted(call); head++) {
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

/* An operation takes 0.3 ns (backward in f64) to 1 ns (forward in f32, whose rows are decoded), as `nhood bench --solver
 * reference` measured with head dim 64 and windows of 7 x 7. Keys that the key box lacks are visited, too. */
static double estimate(const struct nh_solver *solver, const struct nh_problem *problem,
                       const struct nh_device *device, const struct nh_config *config,
                       struct nh_count *count) {
    (void)solver;
    (void)device;
    (void)config;
    (void)count;
    struct nh_problem visited = *problem;
    for (int a = 0; a < NH_AXES; a++)
        visited.axis[a].key = (struct nh_box){0, nh_axis_keys(&visited.axis[a])};
    return 0.8 * nh_problem_flops(&visited);
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
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        bool summed = nh_problem_role(problem, tensor) == NH_OPTIONAL_OUTPUT ||
                      (problem->op == NHOOD_OP_IN && tensor == NHOOD_D_V);
        plan->sum_offset[tensor] = -1;
        if (!summed || tensor == NHOOD_LSE) continue;
        plan->sum_offset[tensor] = plan->sum_count;
        plan->sum_count += nh_tensor_elements(problem, tensor);
    }
    int64_t rows = 2 * problem->dim + 3 * problem->dim_v; /* q, k and v, o, d_o */
    int64_t logits = problem->window_count + problem->extra_tokens;
    plan->base.workspace_bytes =
        nh_align_up((size_t)(plan->sum_count + rows + logits) * sizeof(double));
    plan->base.run = reference_run;
    plan->base.destroy = reference_destroy;
    *operation = &plan->base;
    return NHOOD_OK;
}

const struct nh_solver nh_solver_reference = {
    .name = "reference",
    .device_kind = NHOOD_DEVICE_CPU,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_ANY_SCALE | NH_TAKES_TABLES,
    .refuse = nh_refuse_nothing,
    .candidates = nh_one_config,
    .estimate = estimate,
    .build = build,
};
