/* Groups on CUDA whose members' lengths are data. The launches are those of a group (cuda_group.c), but the tables by which blocks
 * find their members lie in the workspace, where one more launch ahead of them writes what follows from the lengths
 * (kernels/common/lengths.cu), and their grids are those of the bound. No host work depends on the lengths. */
#include "cuda_bounded.h"

#include "dtype.h"
#include "launch.h"

#include <math.h>
#include <string.h>

static_assert((int)NH_BOUNDED_STEPS == (int)NH_CUDA_STEPS, "tables of all steps");
static_assert(sizeof(struct nh_cuda_arguments) % 8 == 0,
              "arguments are copied in words of 8 bytes");

/* The tables of a step, as offsets in the workspace. */
struct table {
    size_t arguments, member, place;
    uint32_t used;
    int32_t bases;
};

struct cuda_bounded {
    struct nh_group_operation base;
    const struct nh_host *host;
    const struct nh_bound *bound;
    struct nh_cuda_operation *operation; /* `steps` of a member, then the one that reads lengths */
    int32_t steps;
    struct table table[NH_CUDA_STEPS];
    size_t described; /* in the plan's memory: struct nh_cuda_bounded_step of each step */
};

/* ---- the grid of a bound ---- */

/* The tiles of an axis of some length, in all its dilation groups. */
static double tiles_of(const struct nh_axis *axis, int64_t length, int32_t tile) {
    const int64_t dilation = nh_min(axis->dilation, length);
    return (double)(dilation * nh_ceil_div(nh_ceil_div(length, dilation), tile));
}

/* The most tiles per token of an axis: at its shortest, where a longer one first needs another tile in each group, or where each
 * token is a dilation group. */
static double most_per_token(const struct nh_axis *axis, int64_t least, int32_t tile) {
    const int64_t most = axis->length, from = nh_max(least, nh_min(axis->dilation, most));
    const int64_t in_group = nh_ceil_div(nh_ceil_div(from, axis->dilation), tile) * tile;
    const int64_t next = nh_min(in_group * axis->dilation + 1, most);
    double ratio = fmax(tiles_of(axis, least, tile) / (double)least,
                        tiles_of(axis, from, tile) / (double)from);
    ratio = fmax(ratio, tiles_of(axis, next, tile) / (double)next);
    return least < axis->dilation ? fmax(ratio, 1) : ratio;
}

/* The shortest length of an axis that has so many tiles in each dilation group. */
static int64_t shortest(const struct nh_axis *axis, int64_t least, int32_t tile, int64_t tiles) {
    return nh_max(least, (tiles - 1) * tile * axis->dilation + 1);
}

/* Grids that have the fewest tokens of all with as many tiles per axis. */
struct corners {
    int64_t first[NH_AXES],
        last[NH_AXES]; /* tiles in a dilation group of the shortest axes, and of the longest */
};

/* False if there are too many to look at, or if dilations depend on lengths. */
static bool find_corners(const struct nh_cuda_blocks *blocks, const struct nh_bound *bound,
                         struct corners *corners) {
    const int64_t most = 1 << 14;
    int64_t count = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &bound->problem.axis[a];
        const int64_t step = blocks->tile[a] * axis->dilation;
        if (bound->least[a] < axis->dilation) return false;
        corners->first[a] = nh_ceil_div(bound->least[a], step);
        corners->last[a] = nh_ceil_div(axis->length, step);
        if (corners->last[a] - corners->first[a] >= most) return false;
        count *= corners->last[a] - corners->first[a] + 1;
        if (count > most) return false;
    }
    return true;
}

/* The most that a member's tiles exceed `price` a token; 0 for no member. */
static double most_gain(const struct nh_cuda_blocks *blocks, const struct nh_bound *bound,
                        const struct corners *corners, double price) {
    const struct nh_axis *axis = bound->problem.axis;
    const int64_t *least = bound->least;
    double most = 0;
    for (int64_t i = corners->first[0]; i <= corners->last[0]; i++)
        for (int64_t j = corners->first[1]; j <= corners->last[1]; j++) {
            const double tiles = (double)(i * axis[0].dilation * j * axis[1].dilation);
            const double tokens = (double)shortest(&axis[0], least[0], blocks->tile[0], i) *
                                  (double)shortest(&axis[1], least[1], blocks->tile[1], j);
            for (int64_t k = corners->first[2]; k <= corners->last[2]; k++)
                most = fmax(most, tiles * (double)(k * axis[2].dilation) -
                                      price * tokens *
                                          (double)shortest(&axis[2], least[2], blocks->tile[2], k));
        }
    return most;
}

/* The most members that have tokens. */
static double most_members(const struct nh_bound *bound) {
    const int64_t *least = bound->least;
    const double shortest = (double)least[0] * (double)least[1] * (double)least[2];
    return fmin((double)bound->members, floor((double)bound->tokens / shortest));
}

/* The most tiles of so many members with so many tokens: at any price of a token, what all tokens cost and what members gain beyond
 * that. The price with the least of these is between 0 and 1 tile, as every tile has a token. */
static double most_tiles(const struct nh_cuda_blocks *blocks, const struct nh_bound *bound,
                         const struct corners *corners) {
    enum { STEPS = 40 };
    const double tokens = (double)bound->tokens, members = most_members(bound);
    double low = 0, high = 1, least = INFINITY;
    for (int i = 0; i < STEPS; i++) {
        const double third = (high - low) / 3, price[2] = {low + third, high - third};
        double all[2];
        for (int k = 0; k < 2; k++)
            all[k] = price[k] * tokens + members * most_gain(blocks, bound, corners, price[k]);
        least = fmin(least, fmin(all[0], all[1]));
        if (all[0] < all[1])
            high = price[1];
        else
            low = price[0];
    }
    return least;
}

int64_t nh_cuda_most_blocks(const struct nh_cuda_blocks *blocks, const struct nh_bound *bound) {
    const double tokens = (double)bound->tokens, members = most_members(bound);
    const double heads = (double)blocks->heads;
    double of_member = 1, per_token = 1, all;
    struct corners corners;
    if (blocks->rows) {
        const double longest = fmin(tokens, (double)bound->problem.query_tokens);
        of_member = ceil(longest * heads / blocks->rows);
        /* each may have one that is not full */
        all = fmin(floor(tokens * heads / blocks->rows) + members, members * of_member);
    } else {
        for (int a = 0; a < NH_AXES; a++) {
            const struct nh_axis *axis = &bound->problem.axis[a];
            of_member *= tiles_of(axis, axis->length, blocks->tile[a]);
            per_token *= most_per_token(axis, bound->least[a], blocks->tile[a]);
        }
        all = fmin(tokens * per_token, members * of_member);
        if (find_corners(blocks, bound, &corners))
            all = fmin(all, most_tiles(blocks, bound, &corners));
        all = floor(all * (1 + 1e-9) + 1e-6) * heads; /* rounded sums of products */
        /* each member may have a block that does not loop as often */
        if (blocks->loop) all = floor((all + members * (blocks->loop - 1)) / blocks->loop);
    }
    return all < 0x1p62 ? nh_max((int64_t)all, 1) : INT64_C(1) << 62;
}

/* ---- making ---- */

static nhood_status check_step(const struct nh_cuda_operation *operation, int32_t s) {
    const struct nh_cuda_step *step = operation->step[s];
    if ((step->blocks.rows || step->blocks.tile[0]) && !step->maps && !step->tables &&
        step->cluster <= 1 && nh_cuda_serves_members(operation, step))
        return NHOOD_OK;
    return nh_error(NHOOD_ERR_UNSUPPORTED, "%s: its launch depends on lengths",
                    operation->spec[s]->source);
}

/* Bytes from a token to the next of what a slot is bound to. In the workspace a token has rows of all heads. */
static int64_t token_bytes(const struct nh_bound *bound, const struct nh_cuda_step *step,
                           int32_t slot) {
    const int32_t from = step->binding[slot].from;
    const int32_t as = from >= 0 ? from : NHOOD_LSE;
    if (from >= 0) return bound->token_bytes[from];
    return step->args.tensor[slot].axis[NH_AXES - 1] *
           (int64_t)nh_dtype_bytes(nh_tensor_dtype(&bound->problem, as));
}

/* The arguments of a member, as struct nh_cuda_bounded_step says. */
static void write_arguments(const struct nh_cuda_step *step, struct nh_cuda_arguments *arguments) {
    arguments->shared = step->args;
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++) {
        struct nh_cuda_tensor *tensor = &arguments->shared.tensor[slot];
        tensor->data = (void *)(uintptr_t)step->binding[slot].offset_bytes;
        tensor->axis[0] = tensor->axis[1] = tensor->axis[NH_AXES - 1];
    }
    nh_cuda_step_arguments(step, arguments);
}

/* Lets blocks take several work tiles one after the other where they loop, as each prepares for the loop: as many as leave some waves
 * of blocks in the largest batch, so that all multiprocessors are done at about the same time, also with a smaller one. 32 images
 * of 14x14 to 64x64, windows of 7x7, cuda.small on an H200, forward, by queries and by keys (us): a tile at a time 228, 270 and 568; 3 to
 * 6 of them 169, 209 and 402; 8 of them 160, 204 and 419; 9 to 15, of which there are 4 waves, 172, 217 and 475. */
static void set_loop(struct nh_cuda_step *step, const struct nh_bound *bound) {
    enum { MOST = 8 };
    if (!step->wave_blocks || !step->blocks.tile[0]) return;
    const int64_t tiles = nh_cuda_most_blocks(&step->blocks, bound);
    step->blocks.loop =
        (int)nh_min(nh_max(tiles / (NH_BOUNDED_WAVES * step->wave_blocks), 1), MOST);
}

/* Makes a step one of all members: its grid, and room for its tables. */
static nhood_status make_step(struct cuda_bounded *created, int32_t s,
                              struct nh_cuda_bounded_step *described) {
    struct nh_cuda_operation *operation = created->operation;
    struct nh_cuda_step *step = operation->step[s];
    struct table *table = &created->table[s];
    const size_t members = (size_t)created->bound->members;
    nhood_status status = check_step(operation, s);
    size_t arguments_at;
    if (status) return status;
    set_loop(step, created->bound);
    step->grid[0] = nh_cuda_most_blocks(&step->blocks, created->bound);
    if (step->grid[0] > INT32_MAX)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "%s: the bound asks for more than 2^31 blocks",
                        operation->spec[s]->source);
    for (int slot = 0; slot < NH_CUDA_TENSORS; slot++) {
        if (step->binding[slot].from == NH_BIND_NONE) continue;
        table->used |= 1u << slot;
        described->token_bytes[table->bases++] = token_bytes(created->bound, step, slot);
    }
    struct nh_cuda_arguments *arguments = nh_cuda_keep(operation, sizeof *arguments, &arguments_at);
    if (!arguments) return NHOOD_ERR_MEMORY;
    write_arguments(step, arguments);
    table->arguments = nh_cuda_reserve(operation, members * sizeof *arguments);
    table->member = nh_cuda_reserve(operation, (members + 1) * sizeof(struct nh_cuda_member));
    table->place = nh_cuda_reserve(operation, members * (size_t)table->bases * sizeof(long long));
    described->blocks = step->blocks;
    described->arguments = (long long)arguments_at;
    described->to_arguments = (long long)table->arguments;
    described->to_member = (long long)table->member;
    described->to_place = (long long)table->place;
    described->bases = table->bases;
    described->regions = step->regions;
    nh_kernel_define(operation->spec[s], "NH_MEMBERS", 2);
    return NHOOD_OK;
}

/* Adds the launch that reads the lengths. */
static nhood_status add_lengths(struct cuda_bounded *created,
                                const struct nh_cuda_bounded_step described[NH_CUDA_STEPS]) {
    enum { REST_BLOCKS = 2 }; /* of a multiprocessor */
    struct nh_cuda_operation *operation = created->operation;
    const size_t bytes = (size_t)created->steps * sizeof *described;
    void *kept = nh_cuda_keep(operation, bytes, &created->described);
    if (!kept) return NHOOD_ERR_MEMORY;
    memcpy(kept, described, bytes);
    const struct nh_kernel_spec spec = {.source = "lengths.cu"};
    const struct nh_cuda_step step = {
        .grid = {nh_max(1, nh_ceil_div(created->bound->members, NH_LENGTHS_MEMBERS)) +
                     REST_BLOCKS * operation->device->multiprocessors,
                 1, 1},
        .threads = NH_LENGTHS_THREADS};
    return nh_cuda_step_add(operation, &step, &spec);
}

static void destroy(struct nh_group_operation *operation) {
    struct cuda_bounded *created = (struct cuda_bounded *)operation;
    if (created->operation) created->operation->base.destroy(&created->operation->base);
    nh_release(created->host, created);
}

static nhood_status make(struct cuda_bounded *created) {
    struct nh_cuda_operation *operation = created->operation;
    struct nh_cuda_bounded_step described[NH_CUDA_STEPS] = {{.bases = 0}};
    nhood_status status = NHOOD_OK;
    created->steps = operation->count;
    for (int32_t s = 0; !status && s < created->steps; s++)
        status = make_step(created, s, &described[s]);
    if (!status) status = add_lengths(created, described);
    if (!status) status = nh_cuda_load(operation);
    if (!status) status = nh_cuda_write_kept(operation);
    created->base.workspace_bytes = operation->base.workspace_bytes;
    created->base.launches = operation->count;
    return status;
}

/* ---- executing ---- */

/* The bits of -infinity, or of a NaN. */
static unsigned long long special_bits(int32_t dtype, bool nan) {
    switch (dtype) {
    case NHOOD_DTYPE_F64: return nan ? 0x7ff8000000000000u : 0xfff0000000000000u;
    case NHOOD_DTYPE_F32: return nan ? 0x7fc00000u : 0xff800000u;
    case NHOOD_DTYPE_F16: return nan ? 0x7e00u : 0xfc00u;
    default: return nan ? 0x7fc0u : 0xff80u;
    }
}

static struct nh_cuda_rest rest_of(const struct nh_bound *bound, const nhood_group_io *io,
                                   int32_t tensor) {
    const struct nh_problem *problem = &bound->problem;
    const int32_t dtype = nh_tensor_dtype(problem, tensor);
    const int64_t bytes = (int64_t)nh_dtype_bytes(dtype);
    const bool keys = tensor == NHOOD_D_K || tensor == NHOOD_D_V;
    const bool of_dim = tensor == NHOOD_D_Q || tensor == NHOOD_D_K;
    return (struct nh_cuda_rest){.data = io->data[tensor],
                                 .token_bytes = bound->token_bytes[tensor],
                                 .head_bytes = problem->strides[tensor].head * bytes,
                                 .heads = keys ? problem->kv_heads : problem->heads,
                                 .width = tensor == NHOOD_LSE ? 1
                                          : of_dim            ? problem->dim
                                                              : problem->dim_v,
                                 .element_bytes = (int)bytes,
                                 .none = tensor == NHOOD_LSE ? special_bits(dtype, false) : 0,
                                 .illegal = special_bits(dtype, true)};
}

/* Launches the step that reads the lengths. */
static nhood_status read_lengths(const struct cuda_bounded *created, const nhood_group_io *io) {
    const struct nh_cuda_operation *operation = created->operation;
    const struct nh_bound *bound = created->bound;
    const struct nh_problem *problem = &bound->problem;
    const char *memory = (const char *)(uintptr_t)operation->memory;
    const struct nh_cuda_step *step = operation->step[created->steps];
    struct nh_cuda_lengths lengths = {
        .lengths = io->lengths,
        .step = (const struct nh_cuda_bounded_step *)(const void *)(memory + created->described),
        .memory = memory,
        .workspace = io->workspace,
        .tokens = io->query_tokens,
        .length_bytes = (int)io->length_bytes,
        .rank = problem->rank,
        .members = (int)io->count,
        .steps = created->steps,
        .argument_bytes = (int)sizeof(struct nh_cuda_arguments),
        .clamps = (problem->flags & NHOOD_FLAG_CLAMP_WINDOW) != 0,
        .table_blocks = (int)nh_max(1, nh_ceil_div(bound->members, NH_LENGTHS_MEMBERS))};
    void *parameters[1] = {&lengths};
    for (int a = 0; a < NH_AXES; a++) {
        lengths.axis[a] = operation->step[0]->args.axis[a];
        lengths.least[a] = bound->least[a];
        lengths.periodic |= problem->axis[a].periodic << a;
    }
    for (int32_t t = 0, i = 0; t < NHOOD_TENSOR_COUNT; t++)
        if (nh_bound_writes(bound, t)) lengths.rest[i++] = rest_of(bound, io, t);
    return nh_cuda_launch(operation, step, step->grid[0], false, io->stream, parameters);
}

/* An execute of so many members. */
struct execute {
    const struct cuda_bounded *created;
    int64_t members;
};

/* Launches step s of all members. */
static nhood_status launch_step(const void *user, int32_t s, const nhood_io *io, bool overlaps) {
    const struct execute *execute = user;
    const struct cuda_bounded *created = execute->created;
    const struct nh_cuda_operation *operation = created->operation;
    const struct nh_cuda_step *step = operation->step[s];
    const struct table *table = &created->table[s];
    const char *workspace = io->workspace;
    struct nh_cuda_members members = {
        .arguments = workspace + table->arguments,
        .member = (const struct nh_cuda_member *)(const void *)(workspace + table->member),
        .place = (const long long *)(const void *)(workspace + table->place),
        .members = (int)execute->members,
        .argument_bytes = (int)sizeof(struct nh_cuda_arguments),
        .threads = step->threads,
        .used = table->used,
        .bases = table->bases};
    void *parameters[1] = {&members};
    nh_cuda_set_bases(step, table->used, io, members.base);
    return nh_cuda_launch(operation, step, step->grid[0], overlaps, io->stream, parameters);
}

static nhood_status run_steps(const struct cuda_bounded *created, const nhood_group_io *io) {
    const struct nh_cuda_operation *operation = created->operation;
    const struct execute execute = {created, io->count};
    nhood_io all = {.struct_size = sizeof all, .workspace = io->workspace, .stream = io->stream};
    memcpy(all.data, io->data, sizeof all.data);
    bool follows = false;
    nhood_status status = nh_cuda_check_alignment(operation, &all);
    if (!status) status = read_lengths(created, io);
    return status ? status
                  : nh_cuda_run_steps(operation, created->steps, &all, launch_step, &execute,
                                      &follows);
}

static nhood_status run(const struct nh_group_operation *operation, const nhood_group_io *io) {
    const struct cuda_bounded *created = (const struct cuda_bounded *)operation;
    struct nh_cuda_scope scope;
    nhood_status status = nh_cuda_enter(created->operation->device, false, &scope);
    if (status) return status;
    status = run_steps(created, io);
    nh_cuda_leave(created->operation->device, &scope);
    return status;
}

/* ---- */

/* What steps are made for: their workspace is that of all tokens. Members begin at any token, and where these are no multiples of
 * 16 bytes, tensors are not aligned. */
static struct nh_problem problem_of_all(const struct nh_bound *bound) {
    struct nh_problem problem = bound->problem;
    problem.query_tokens = problem.key_tokens = nh_max(bound->tokens, 1);
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        if (t != NHOOD_LSE && t != NHOOD_D_LSE && bound->token_bytes[t] % NH_CUDA_ALIGNMENT)
            problem.flags |= NHOOD_FLAG_UNALIGNED;
    return problem;
}

nhood_status nh_cuda_bounded_build(const struct nh_solver *solver, const struct nh_config *config,
                                   const struct nh_device *device, const struct nh_bound *bound,
                                   struct nh_group_operation **operation) {
    const struct nh_problem problem = problem_of_all(bound);
    struct nh_operation *of_member = NULL;
    struct cuda_bounded *created = nh_allocate(device->host, sizeof *created);
    if (!created) return NHOOD_ERR_MEMORY;
    created->base = (struct nh_group_operation){.run = run, .destroy = destroy};
    created->host = device->host;
    created->bound = bound;
    nhood_status status = solver->build(solver, &problem, device, config, &of_member);
    created->operation = (struct nh_cuda_operation *)(void *)of_member;
    if (!status) status = make(created);
    if (status) {
        destroy(&created->base);
        return status;
    }
    *operation = &created->base;
    return NHOOD_OK;
}
