/* Groups on the CPU: the work tiles of many members in one loop, so that threads are shared over all of them.
 *
 * Members are ordered by the time of one of their work tiles, the longest first. They form waves, whose partial gradients are in
 * memory at the same time; the members of a wave run their rounds (kernels.h) together. A thread takes a run of tiles of one
 * member that is about a quarter of its share of the time left, so that the last runs are short.
 * A member's tiles and sums are those of a plan of its own, so its results are, too. */
#include "cpu_group.h"

#include "interruption.h"
#include "kernels.h"
#include "tiled.h"

#include <stdatomic.h>
#include <stdlib.h>

struct part {
    const struct nh_tiled *plan;
    int64_t member;
    double tile_ns;
    size_t own_offset; /* of what the member keeps, in the workspace */
    int64_t wave;      /* the first part of the next wave */
};

/* An execute of a part. It lies in the workspace, as executes do not allocate. */
struct part_run {
    nhood_io io;
    struct nh_tile_run run;
    int64_t jobs_end; /* of the loop: jobs of this part and those before it */
    double ns_end;
};

struct cpu_group {
    struct nh_group_operation base;
    const struct nh_host *host;
    const struct nh_group *group;
    const struct nh_cpu *cpu;
    int64_t parts;
    struct part *part;
    size_t
        workers_offset; /* of the scratch of workers, then of their partial gradients, in the workspace */
    int64_t scratch_reals, partial_reals; /* of one worker: the most of any part */
    bool alone;                           /* too little work to wake other threads */
};

/* ---- one loop over the jobs of several parts ---- */

struct loop {
    const struct cpu_group *plan;
    struct part_run *run;
    int64_t first, end; /* the parts */
    bool reduces;
    struct nh_interruption *call;
    atomic_llong next; /* job */
};

/* The first job of part `at` in the loop. */
static int64_t jobs_before(const struct loop *loop, int64_t at) {
    return at == loop->first ? 0 : loop->run[at - 1].jobs_end;
}

static double ns_before(const struct loop *loop, int64_t at) {
    return at == loop->first ? 0 : loop->run[at - 1].ns_end;
}

/* How many jobs of part `at` a thread takes, of those from `job` on. */
static int64_t share(const struct loop *loop, int64_t at, int64_t job) {
    const int64_t left = loop->run[at].jobs_end - job;
    const int64_t jobs = loop->run[at].jobs_end - jobs_before(loop, at);
    const double ns = (loop->run[at].ns_end - ns_before(loop, at)) / (double)jobs;
    const double left_ns =
        loop->run[loop->end - 1].ns_end - loop->run[at].ns_end + ns * (double)left;
    const double jobs_of_share = left_ns / (4 * loop->plan->cpu->threads) / ns;
    return jobs_of_share < (double)left ? nh_max(1, (int64_t)jobs_of_share) : left;
}

/* What one thread does in a loop: it takes jobs until none is left. */
static void take_jobs(void *arg, int64_t index, int32_t worker) {
    struct loop *loop = arg;
    const int64_t all = loop->run[loop->end - 1].jobs_end;
    int64_t at = loop->first;
    (void)index;
    for (;;) {
        long long job = atomic_load(&loop->next), end;
        do {
            if (job >= all) return;
            while (job >= loop->run[at].jobs_end)
                at++;
            end = job + share(loop, at, job);
        } while (!atomic_compare_exchange_weak(&loop->next, &job, end));
        const struct nh_tile_kernels *kernels = loop->plan->part[at].plan->kernels;
        for (; job < end && !nh_interrupted(loop->call); job++)
            (loop->reduces ? kernels->reduce : kernels->tile)(&loop->run[at].run,
                                                              job - jobs_before(loop, at), worker);
    }
}

static int64_t jobs_of(const struct nh_tiled *plan, const struct nh_tile_run *run, bool reduces) {
    if (run->units == 0) return 0;
    if (!reduces) return run->units * plan->geometry.tiles;
    return plan->reduces ? plan->kernels->reduce_jobs(run) : 0;
}

/* Runs the present round of the parts [first, end): its tiles, or the sums after it. */
static void run_loop(const struct cpu_group *plan, struct part_run *run, int64_t first, int64_t end,
                     bool reduces) {
    struct loop loop = {.plan = plan,
                        .run = run,
                        .first = first,
                        .end = end,
                        .reduces = reduces,
                        .call = nh_interruption_current()};
    int64_t jobs = 0;
    double ns = 0;
    for (int64_t i = first; i < end; i++) {
        const int64_t own = jobs_of(plan->part[i].plan, &run[i].run, reduces);
        jobs += own;
        ns += (double)own * (reduces ? 1 : plan->part[i].tile_ns);
        run[i].jobs_end = jobs;
        run[i].ns_end = ns;
    }
    atomic_init(&loop.next, 0);
    if (jobs)
        nh_cpu_run(plan->cpu, plan->alone, nh_min(plan->cpu->threads, jobs), take_jobs, &loop);
}

/* ---- executing ---- */

static void begin(const struct cpu_group *plan, const nhood_group_io *io, int64_t index,
                  struct part_run *run) {
    const struct part *part = &plan->part[index];
    const struct nh_tiled *tiled = part->plan;
    const struct nh_tiled_own own = nh_tiled_own(tiled);
    const size_t bytes = tiled->real_bytes;
    char *const scratch = (char *)io->workspace + plan->workers_offset;
    char *const bias = (char *)io->workspace + part->own_offset;
    char *const d_bias = bias + (size_t)own.bias * bytes;
    char *const of_worker =
        scratch + nh_align_up((size_t)(plan->cpu->threads * plan->scratch_reals) * bytes);
    run->io = nh_group_member_io(plan->group, io, part->member);
    run->run = (struct nh_tile_run){
        .geometry = &tiled->geometry,
        .io = &run->io,
        .call = nh_interruption_current(),
        .scratch = scratch,
        .scratch_reals = plan->scratch_reals,
        .bias = bias,
        .d_bias = d_bias,
        .partial = tiled->adds_up ? d_bias + (size_t)own.d_bias * bytes : of_worker,
        .partial_reals =
            tiled->adds_up || !tiled->partial_reals ? tiled->partial_reals : plan->partial_reals,
        .partial_of_worker = !tiled->adds_up};
    tiled->kernels->begin(&run->run);
    nh_tiled_round(tiled, 0, &run->run);
}

/* Makes ready the next round of the parts, and returns whether any has one. */
static bool next_round(const struct cpu_group *plan, struct part_run *run, int64_t first,
                       int64_t end) {
    bool any = false;
    for (int64_t i = first; i < end; i++)
        any |= nh_tiled_round(plan->part[i].plan, run[i].run.first_unit + run[i].run.units,
                              &run[i].run);
    return any;
}

/* Members that are not tiled, the reference's, one after the other. */
static nhood_status run_others(const struct cpu_group *plan, const nhood_group_io *io) {
    nhood_status status = NHOOD_OK;
    for (int64_t i = 0; !status && i < plan->group->count; i++)
        if (!nh_tiled_of(plan->group->member[i].operation))
            status = nh_group_run_member(plan->group, io, i);
    return status;
}

static nhood_status group_run(const struct nh_group_operation *operation,
                              const nhood_group_io *io) {
    const struct cpu_group *plan = (const struct cpu_group *)operation;
    struct part_run *run = io->workspace;
    nhood_status status = run_others(plan, io);
    for (int64_t first = 0, end; !status && first < plan->parts; first = end) {
        end = plan->part[first].wave;
        for (int64_t i = first; i < end; i++)
            begin(plan, io, i, &run[i]);
        do {
            run_loop(plan, run, first, end, false);
            run_loop(plan, run, first, end, true);
        } while (next_round(plan, run, first, end));
        for (int64_t i = first; i < end; i++)
            plan->part[i].plan->kernels->finish(&run[i].run);
    }
    return status;
}

static void group_destroy(struct nh_group_operation *operation) {
    struct cpu_group *plan = (struct cpu_group *)operation;
    nh_release(plan->host, plan->part);
    nh_release(plan->host, plan);
}

/* ---- building ---- */

/* The longest tiles first; among equal ones, the earlier member. */
static int compare(const void *left, const void *right) {
    const struct part *a = left, *b = right;
    if (a->tile_ns != b->tile_ns) return a->tile_ns > b->tile_ns ? -1 : 1;
    return a->member < b->member ? -1 : a->member > b->member;
}

static void list_parts(struct cpu_group *plan) {
    double flops = 0;
    for (int64_t i = 0; i < plan->group->count; i++) {
        const struct nh_group_member *member = &plan->group->member[i];
        const struct nh_tiled *tiled = nh_tiled_of(member->operation);
        if (!tiled) continue;
        const int64_t tiles = tiled->units * tiled->geometry.tiles;
        flops += nh_problem_flops(member->problem);
        plan->part[plan->parts++] =
            (struct part){.plan = tiled,
                          .member = i,
                          .tile_ns = (member->ns > 1 ? member->ns : 1) / (double)tiles};
        plan->scratch_reals = nh_max(plan->scratch_reals, tiled->scratch_reals);
        if (!tiled->adds_up)
            plan->partial_reals = nh_max(plan->partial_reals, tiled->partial_reals);
    }
    plan->alone = flops < NH_ALONE_FLOPS;
    qsort(plan->part, (size_t)plan->parts, sizeof *plan->part, compare);
}

/* Divides the parts into waves, so that the partial gradients of one stay in the threads' caches until they are added up, as
 * those of a round do; what they keep begins at `offset`. Returns the end of the workspace. */
static size_t place_parts(struct cpu_group *plan, size_t offset) {
    const size_t room = (size_t)plan->cpu->threads << 20;
    size_t end = offset, at = offset;
    for (int64_t i = 0, first = 0; i < plan->parts; i++) {
        struct part *part = &plan->part[i];
        const struct nh_tiled_own own = nh_tiled_own(part->plan);
        const size_t bytes =
            nh_align_up((size_t)(own.bias + own.d_bias + own.partial) * part->plan->real_bytes);
        if (i > first && at + bytes - offset > room) {
            first = i;
            at = offset;
        }
        part->own_offset = at;
        at += bytes;
        end = at > end ? at : end;
        plan->part[first].wave = i + 1;
    }
    return end;
}

nhood_status nh_cpu_group_build(const struct nh_device *device, const struct nh_group *group,
                                struct nh_group_operation **operation) {
    struct cpu_group *plan = nh_allocate(device->host, sizeof *plan);
    if (!plan) return NHOOD_ERR_MEMORY;
    *plan = (struct cpu_group){.base = {.run = group_run, .destroy = group_destroy},
                               .host = device->host,
                               .group = group,
                               .cpu = device->backend};
    plan->part = nh_allocate(device->host, (size_t)nh_max(group->count, 1) * sizeof *plan->part);
    if (!plan->part) {
        nh_release(device->host, plan);
        return NHOOD_ERR_MEMORY;
    }
    list_parts(plan);
    if (plan->parts) {
        const size_t bytes = plan->part[0].plan->real_bytes, threads = (size_t)plan->cpu->threads;
        plan->workers_offset = nh_align_up((size_t)plan->parts * sizeof(struct part_run));
        plan->base.workspace_bytes =
            place_parts(plan, plan->workers_offset +
                                  nh_align_up(threads * (size_t)plan->scratch_reals * bytes) +
                                  nh_align_up(threads * (size_t)plan->partial_reals * bytes));
    }
    for (int64_t i = 0; i < group->count;
         i++) { /* they run before the others, in the same memory */
        const struct nh_operation *own = group->member[i].operation;
        if (!nh_tiled_of(own) && own->workspace_bytes > plan->base.workspace_bytes)
            plan->base.workspace_bytes = own->workspace_bytes;
    }
    *operation = &plan->base;
    return NHOOD_OK;
}
