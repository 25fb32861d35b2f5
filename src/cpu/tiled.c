/* Builds and runs the tiled operation of cpu.fused and cpu.unfused. */
#include "tiled.h"

#include "dtype.h"
#include "interruption.h"
#include "kernels.h"

struct nh_tiled_own nh_tiled_own(const struct nh_tiled *plan) {
    return (struct nh_tiled_own){
        .bias = plan->bias_reals,
        .d_bias = plan->geometry.problem.op == NHOOD_OP_BWD ? plan->bias_reals : 0,
        .partial =
            plan->adds_up ? plan->round_units * plan->geometry.tiles * plan->partial_reals : 0,
    };
}

bool nh_tiled_round(const struct nh_tiled *plan, int64_t unit, struct nh_tile_run *run) {
    run->first_unit = unit;
    run->units = nh_max(0, nh_min(plan->round_units, plan->units - unit));
    return run->units > 0;
}

struct job {
    const struct nh_tiled *plan;
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
    const struct nh_tiled *plan = (const struct nh_tiled *)operation;
    const struct nh_tiled_own own = nh_tiled_own(plan);
    const size_t bytes = plan->real_bytes;
    char *const scratch = io->workspace;
    char *const bias = scratch + (size_t)(plan->cpu->threads * plan->scratch_reals) * bytes;
    char *const d_bias = bias + (size_t)own.bias * bytes;
    struct job job = {plan,
                      {.geometry = &plan->geometry,
                       .io = io,
                       .call = nh_interruption_current(),
                       .scratch = scratch,
                       .scratch_reals = plan->scratch_reals,
                       .bias = bias,
                       .d_bias = d_bias,
                       .partial = d_bias + (size_t)own.d_bias * bytes,
                       .partial_reals = plan->partial_reals,
                       .partial_of_worker = !plan->adds_up}};
    plan->kernels->begin(&job.run);
    for (int64_t unit = 0; nh_tiled_round(plan, unit, &job.run); unit += job.run.units) {
        nh_cpu_run(plan->cpu, plan->alone, job.run.units * plan->geometry.tiles, tile_body, &job);
        if (plan->reduces)
            nh_cpu_run(plan->cpu, plan->alone, plan->kernels->reduce_jobs(&job.run), reduce_body,
                       &job);
    }
    plan->kernels->finish(&job.run);
    return NHOOD_OK;
}

static void tiled_destroy(struct nh_operation *operation) {
    struct nh_tiled *plan = (struct nh_tiled *)operation;
    nh_geometry_destroy(plan->host, &plan->geometry);
    nh_release(plan->host, plan);
}

const struct nh_tiled *nh_tiled_of(const struct nh_operation *operation) {
    return operation->run == tiled_run ? (const struct nh_tiled *)operation : NULL;
}

/* The units of a round. They must keep every thread busy; apart from that, partial gradients should stay in the threads'
 * caches until they are added up. */
static int64_t choose_round(const struct nh_tiled *plan) {
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
    struct nh_tiled *plan = nh_allocate(device->host, sizeof *plan);
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
    const struct nh_tiled_own own = nh_tiled_own(plan);
    const int64_t worker = plan->scratch_reals + (plan->adds_up ? 0 : plan->partial_reals);
    plan->base.workspace_bytes =
        (size_t)(cpu->threads * worker + own.bias + own.d_bias + own.partial) * plan->real_bytes;
    plan->base.run = tiled_run;
    plan->base.destroy = tiled_destroy;
    *operation = &plan->base;
    return NHOOD_OK;
}
