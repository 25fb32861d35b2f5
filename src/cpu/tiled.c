/* Builds and runs the tiled operation of cpu.fused and cpu.unfused. */
#include "tiled.h"

#include "dtype.h"
#include "kernels.h"

struct tiled {
    struct nh_operation base;
    const struct nh_host *host;
    const struct nh_cpu *cpu;
    const struct nh_tile_kernels *kernels;
    struct nh_geometry geometry;
    size_t real_bytes;
    int64_t scratch_reals, bias_reals, partial_reals;
    int64_t units, round_units; /* pairs of a batch entry and a kv head: all, and per round */
    bool adds_up;               /* adds up partial gradients after each round */
    bool reduces;               /* has a reduction to run after each round */
    bool alone;                 /* too little work to wake other threads */
};

/* The workspace holds the scratch of each worker, the bias tables, their running gradient, and the partial gradients of a round's
 * tiles or of each worker. */
static int64_t workspace_reals(const struct tiled *plan, int64_t *bias, int64_t *d_bias,
                               int64_t *partial) {
    int64_t used = plan->cpu->threads * plan->scratch_reals;
    *bias = used;
    used += plan->bias_reals;
    *d_bias = used;
    if (plan->geometry.problem.op == NHOOD_OP_BWD) used += plan->bias_reals;
    *partial = used;
    int64_t areas = plan->adds_up ? plan->round_units * plan->geometry.tiles : plan->cpu->threads;
    return used + areas * plan->partial_reals;
}

struct job {
    const struct tiled *plan;
    struct nh_tile_run run;
};

static void tile_body(void *arg, int64_t index, int32_t worker) {
    const struct job *job = arg;
    job->plan->kernels->tile(&job->run, index, worker);
}

static void reduce_body(void *arg, int64_t index, int32_t worker) {
    const struct job *job = arg;
    job->plan->kernels->reduce(&job->run, index, worker);
}

static nhood_status tiled_run(const struct nh_operation *operation, const nhood_io *io) {
    const struct tiled *plan = (const struct tiled *)operation;
    int64_t bias, d_bias, partial;
    workspace_reals(plan, &bias, &d_bias, &partial);
    char *workspace = io->workspace;
    struct job job = {plan,
                      {.geometry = &plan->geometry,
                       .io = io,
                       .scratch = workspace,
                       .scratch_reals = plan->scratch_reals,
                       .bias = workspace + (size_t)bias * plan->real_bytes,
                       .d_bias = workspace + (size_t)d_bias * plan->real_bytes,
                       .partial = workspace + (size_t)partial * plan->real_bytes,
                       .partial_reals = plan->partial_reals,
                       .partial_of_worker = !plan->adds_up}};
    plan->kernels->begin(&job.run);
    for (int64_t unit = 0; unit < plan->units; unit += plan->round_units) {
        job.run.first_unit = unit;
        job.run.units = nh_min(plan->round_units, plan->units - unit);
        nh_cpu_run(plan->cpu, plan->alone, job.run.units * plan->geometry.tiles, tile_body, &job);
        if (plan->reduces)
            nh_cpu_run(plan->cpu, plan->alone, plan->kernels->reduce_jobs(&job.run), reduce_body,
                       &job);
    }
    plan->kernels->finish(&job.run);
    return NHOOD_OK;
}

static void tiled_destroy(struct nh_operation *operation) {
    struct tiled *plan = (struct tiled *)operation;
    nh_geometry_destroy(plan->host, &plan->geometry);
    nh_release(plan->host, plan);
}

/* The units of a round. They must keep every thread busy; apart from that, partial gradients should stay in the threads'
 * caches until they are added up. */
static int64_t choose_round(const struct tiled *plan) {
    if (!plan->adds_up) return plan->units;
    const int64_t room = (int64_t)plan->cpu->threads << 20; /* bytes */
    int64_t unit_bytes = plan->geometry.tiles * plan->partial_reals * (int64_t)plan->real_bytes;
    int64_t items = plan->cpu->threads == 1 ? 1 : 3 * plan->cpu->threads;
    int64_t busy = nh_ceil_div(items, plan->geometry.tiles);
    int64_t units = nh_min(plan->units, nh_max(busy, room / nh_max(1, unit_bytes)));
    int64_t heads = plan->geometry.problem.kv_heads; /* whole batch entries, or part of one */
    return units < heads ? units : units / heads * heads;
}

nhood_status nh_tiled_build(const struct nh_solver *solver, const struct nh_problem *problem,
                            const struct nh_device *device, const struct nh_config *config,
                            struct nh_operation **operation) {
    (void)solver;
    const struct nh_cpu *cpu = device->backend;
    struct tiled *plan = nh_allocate(device->host, sizeof *plan);
    if (!plan) return NHOOD_ERR_MEMORY;
    plan->host = device->host;
    plan->cpu = cpu;
    plan->kernels = nh_tiled_kernels(problem, device);
    plan->real_bytes = problem->dtype == NHOOD_DTYPE_F64 ? sizeof(double) : sizeof(float);
    struct nh_geometry_options options = {.lanes = plan->kernels->lanes,
                                          .most_rows = plan->kernels->most_rows,
                                          .band_budget = plan->kernels->band_budget,
                                          .single_outputs = plan->kernels->single_outputs,
                                          .one_place = plan->kernels->one_place,
                                          .lane_axis = config->value[NH_KNOB_LANE_AXIS],
                                          .size = {config->value[NH_KNOB_TILE_0],
                                                   config->value[NH_KNOB_TILE_1],
                                                   config->value[NH_KNOB_TILE_2]}};
    nhood_status status = nh_geometry_create(problem, device->host, &options, &plan->geometry);
    if (status) {
        nh_release(device->host, plan);
        return status;
    }
    plan->scratch_reals = plan->kernels->scratch_reals(&plan->geometry);
    plan->partial_reals = plan->kernels->partial_reals(&plan->geometry);
    plan->units = problem->batch * problem->kv_heads;
    const struct nh_tile_run one = {.geometry = &plan->geometry, .units = 1};
    plan->reduces = plan->kernels->reduce_jobs(&one) > 0;
    plan->adds_up = plan->reduces && (!plan->geometry.tiles_apart || problem->extra_tokens > 0 ||
                                      (problem->op == NHOOD_OP_BWD && problem->has_bias));
    plan->round_units = choose_round(plan);
    plan->alone = nh_tiled_alone(problem);
    if (problem->has_bias) {
        int64_t reals = problem->heads * problem->bias_count;
        plan->bias_reals = nh_ceil_div(reals, NH_ALIGNMENT) * NH_ALIGNMENT;
    }
    int64_t bias, d_bias, partial;
    plan->base.workspace_bytes =
        (size_t)workspace_reals(plan, &bias, &d_bias, &partial) * plan->real_bytes;
    plan->base.run = tiled_run;
    plan->base.destroy = tiled_destroy;
    *operation = &plan->base;
    return NHOOD_OK;
}
