/* RMS norm and rotary positions on the CPU: threads take parts of the tokens, then the weight gradients of the parts are
 * added up. */
#include "cpu_norm_rope.h"

#include "cpu.h"
#include "dtype.h"
#include "kernels.h"

struct cpu_norm_rope {
    struct nh_norm_rope_operation base;
    struct nh_norm_rope problem;
    const struct nh_host *host;
    const struct nh_cpu *cpu;
    const struct nh_tile_kernels *kernels;
    int64_t scratch_reals, parts, part_tokens;
    size_t sums_offset; /* in the workspace, behind the scratch of every worker */
    bool alone;         /* too little work to wake other threads */
};

struct job {
    const struct cpu_norm_rope *plan;
    struct nh_norm_rope_run run;
};

static void part_body(void *arg, int64_t index, int32_t worker) {
    const struct job *job = arg;
    job->plan->kernels->norm_rope(&job->run, index, worker);
}

/* Adds up in the order of the parts, which depend only on the problem, so that results do not depend on threads. */
static void store_weight_gradient(const struct cpu_norm_rope *plan, double *sums, void *d_weight) {
    const int64_t channels = plan->problem.channels;
    for (int64_t part = 1; part < plan->parts; part++)
        for (int64_t c = 0; c < channels; c++)
            sums[c] += sums[part * channels + c];
    for (int64_t c = 0; c < channels; c++)
        nh_store_f64(plan->problem.weight_dtype, d_weight, c, sums[c]);
}

static nhood_status run(const struct nh_norm_rope_operation *operation,
                        const nhood_norm_rope_io *io) {
    const struct cpu_norm_rope *plan = (const struct cpu_norm_rope *)operation;
    const bool sums =
        plan->problem.op == NHOOD_OP_BWD && plan->problem.weight_dtype && io->d_weight;
    double *const to = (double *)(void *)((char *)io->workspace + plan->sums_offset);
    struct job job = {plan,
                      {.problem = &plan->problem,
                       .io = io,
                       .scratch = io->workspace,
                       .scratch_reals = plan->scratch_reals,
                       .part_tokens = plan->part_tokens,
                       .sums = sums ? to : NULL}};
    nh_cpu_run(plan->cpu, plan->alone, plan->parts, part_body, &job);
    if (sums) store_weight_gradient(plan, to, io->d_weight);
    return NHOOD_OK;
}

static void destroy(struct nh_norm_rope_operation *operation) {
    struct cpu_norm_rope *plan = (struct cpu_norm_rope *)operation;
    nh_release(plan->host, plan);
}

/* Divides the tokens into parts that are large enough to occupy a thread, and so few that the sums of weight gradients stay
 * small. */
static void choose_parts(struct cpu_norm_rope *plan) {
    enum { LEAST_ELEMENTS = 1 << 14, MOST_PARTS = 1024, MOST_SUMS = 1 << 20 };
    const struct nh_norm_rope *problem = &plan->problem;
    int64_t most = MOST_PARTS;
    if (problem->op == NHOOD_OP_BWD) most = nh_min(most, MOST_SUMS / problem->channels);
    plan->part_tokens = nh_max(nh_ceil_div(problem->tokens, most),
                               nh_ceil_div(LEAST_ELEMENTS, problem->heads * problem->dim));
    plan->parts = nh_ceil_div(problem->tokens, plan->part_tokens);
    plan->alone = problem->tokens * problem->heads * problem->dim < 4 * LEAST_ELEMENTS;
}

/* The kernels of the best instruction set that has norm_rope; the last one always has it. */
static const struct nh_tile_kernels *choose_kernels(const struct nh_cpu *cpu, bool wide) {
    const struct nh_kernels *set = cpu->kernels;
    while (!(wide ? set->f64 : set->f32)->norm_rope)
        set++;
    return wide ? set->f64 : set->f32;
}

nhood_status nh_cpu_norm_rope_build(const struct nh_norm_rope *problem,
                                    const struct nh_device *device,
                                    struct nh_norm_rope_operation **operation) {
    const struct nh_cpu *cpu = device->backend;
    struct cpu_norm_rope *plan = nh_allocate(device->host, sizeof *plan);
    if (!plan) return NHOOD_ERR_MEMORY;
    const bool wide = problem->dtype == NHOOD_DTYPE_F64;
    plan->base = (struct nh_norm_rope_operation){.run = run, .destroy = destroy};
    plan->problem = *problem;
    plan->host = device->host;
    plan->cpu = cpu;
    plan->kernels = choose_kernels(cpu, wide);
    plan->scratch_reals = plan->kernels->norm_rope_reals(problem);
    choose_parts(plan);
    size_t scratch_bytes = (size_t)plan->scratch_reals * (wide ? sizeof(double) : sizeof(float));
    plan->sums_offset = nh_align_up((size_t)cpu->threads * scratch_bytes);
    plan->base.workspace_bytes = plan->sums_offset;
    if (problem->op == NHOOD_OP_BWD && problem->weight_dtype)
        plan->base.workspace_bytes +=
            nh_align_up((size_t)(plan->parts * problem->channels) * sizeof(double));
    *operation = &plan->base;
    return NHOOD_OK;
}
