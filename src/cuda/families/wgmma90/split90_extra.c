/* The extra tokens' gradients on sm_90 (split90_extra.cu): blocks own tiles of extra tokens and loop over shares of the
 * queries; the shares' sums are then added in a fixed order. */
#include "split90.h"
#include "split90_pass.h"

enum { ROWS = 64 * NH_BACKWARD90_WARPGROUPS, MOST_DIM = 256 };
static const int32_t own[] = {1, 1, ROWS};
static const uint32_t outputs = NH_BIT(D_EXTRA_K) | NH_BIT(D_EXTRA_V);

/* The problem as extra tokens see it: every query attends every extra token, without windows or bias, so that the box
 * of queries is a grid of its own. */
static struct nh_problem without_windows(const struct nh_problem *problem) {
    struct nh_problem dense = *problem;
    dense.has_bias = false;
    for (int a = 0; a < NH_AXES; a++)
        dense.axis[a] = nh_whole_axis(problem->axis[a].query.length, 1, 1, 1, 0);
    return dense;
}

const char *nh_split90_refuse_extra(const struct nh_problem *problem,
                                    const struct nh_device *device) {
    const struct nh_problem dense = without_windows(problem);
    return nh_sm90_refuse_boxes(&dense, device, NH_BIT(Q) | NH_BIT(D_O));
}

static struct nh_backward90_kernel kernel_of(const struct nh_problem *problem,
                                             const struct nh_cuda_device *cuda,
                                             const int32_t *loop) {
    return (struct nh_backward90_kernel){
        .problem = problem, .cuda = cuda, .keys = true, .own = own, .loop = loop};
}

static int64_t grid_tiles(const struct nh_problem *problem, const int32_t tile[3]) {
    int64_t tiles = 1;
    for (int a = 0; a < NH_AXES; a++)
        tiles *= nh_ceil_div(problem->axis[a].length, tile[a]);
    return tiles;
}

static bool fits(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                 const int32_t loop[3]) {
    const struct nh_backward90_kernel kernel = kernel_of(problem, cuda, loop);
    if (!nh_sm90_boxes_fit(problem, loop)) return false;
    for (enum nh_split90_pass pass = 0; pass < NH_SPLIT90_PASSES; pass++)
        if (pass != NH_SPLIT90_D_Q && nh_split90_used(problem, pass) &&
            !nh_split90_fits(&kernel, pass))
            return false;
    return true;
}

/* The box of queries, of 64 rows or, where heads are wide, 32, that covers the grid with the fewest rows. */
static const int32_t *loop_tile_of(const struct nh_problem *problem,
                                   const struct nh_cuda_device *cuda) {
    static const int32_t shapes[][3] = {{1, 1, 64}, {1, 8, 8}, {1, 4, 16}, {2, 4, 8},
                                        {1, 1, 32}, {1, 4, 8}, {1, 2, 16}, {2, 2, 8}};
    const int32_t *best = NULL;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (!fits(problem, cuda, shapes[i])) continue;
        bool smaller = best && nh_box_volume(shapes[i]) < nh_box_volume(best);
        if (!smaller && (!best || grid_tiles(problem, shapes[i]) < grid_tiles(problem, best)))
            best = shapes[i];
    }
    return best;
}

const int32_t *nh_split90_extra_loop_tile(const struct nh_problem *problem,
                                          const struct nh_cuda_device *cuda, double *tiles) {
    const struct nh_problem dense = without_windows(problem);
    const int32_t *loop = loop_tile_of(&dense, cuda);
    *tiles = (double)(nh_ceil_div(problem->extra_tokens, ROWS) * grid_tiles(&dense, loop));
    return loop;
}

/* Binds a slot to the f32 sums of all shares, [share, batch, head, token, dim]. */
static void bind_shares(struct nh_cuda_step *step, const struct nh_problem *problem, int slot,
                        int64_t dim, size_t offset) {
    struct nh_cuda_tensor *t = &step->args.tensor[slot];
    step->binding[slot] =
        (struct nh_cuda_binding){.from = NH_BIND_WORKSPACE, .offset_bytes = offset};
    t->axis[2] = dim;
    t->head = problem->extra_tokens * dim;
    t->batch = problem->kv_heads * t->head;
    t->axis[0] = problem->batch * t->batch;
}

struct shares {
    int64_t count;
    size_t keys, values;
};

static void bind_all_shares(struct nh_cuda_step *step, const struct nh_problem *problem,
                            const struct shares *shares) {
    bind_shares(step, problem, NH_P, problem->dim, shares->keys);
    bind_shares(step, problem, NH_D_S, problem->dim_v, shares->values);
}

static nhood_status add_pass(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             size_t stats, const int32_t loop[3], const struct shares *shares,
                             int64_t tiles, enum nh_split90_pass pass) {
    const struct nh_cuda_device *cuda = operation->device;
    struct nh_kernel_spec spec = {.source = "split90_extra.cu"};
    struct nh_cuda_step step;
    const struct nh_backward90_kernel kernel = kernel_of(problem, cuda, loop);
    nhood_status status = nh_split90_step(&kernel, pass, stats, &step, &spec);
    if (status) return status;
    struct nh_cuda_tiling *tiling = &step.own.tiling;
    for (int a = 0; a < NH_AXES; a++)
        tiling->tiles[a] = (int)nh_ceil_div(problem->axis[a].length, loop[a]);
    tiling->extra_tiles = (int)nh_ceil_div(problem->extra_tokens, ROWS);
    tiling->work_tiles = (int)(tiles * shares->count);
    step.work_tiles = tiling->work_tiles;
    step.grid[0] = nh_min(tiling->work_tiles, cuda->multiprocessors);
    step.map[0] = nh_sm90_extra_map(problem, NHOOD_EXTRA_K, ROWS);
    step.map[1] = nh_sm90_extra_map(problem, NHOOD_EXTRA_V, ROWS);
    step.outputs = outputs;
    bind_all_shares(&step, problem, shares);
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status add_sum(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                            const struct shares *shares) {
    struct nh_kernel_spec spec = {.source = "split90_extra_sum.cu"};
    struct nh_cuda_step step;
    nh_cuda_step_init(&step, problem);
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    bind_all_shares(&step, problem, shares);
    step.own.tiling.work_tiles = (int)shares->count;
    step.threads = MOST_DIM;
    step.grid[0] = problem->batch * problem->kv_heads * problem->extra_tokens;
    step.grid[1] = 2;
    step.outputs = outputs;
    return nh_cuda_step_add(operation, &step, &spec);
}

nhood_status nh_split90_add_extra(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, size_t stats) {
    const struct nh_problem dense = without_windows(problem);
    const int32_t *loop = loop_tile_of(&dense, operation->device);
    int64_t tiles = problem->batch * problem->kv_heads * nh_ceil_div(problem->extra_tokens, ROWS);
    int64_t steps = grid_tiles(&dense, loop) * (problem->heads / problem->kv_heads);
    int64_t rows = problem->batch * problem->kv_heads * problem->extra_tokens;
    struct shares shares = {
        .count = nh_min(steps, nh_max(1, operation->device->multiprocessors / tiles))};
    if (tiles * shares.count > INT32_MAX || steps > INT32_MAX)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "more than 2^31 tiles of extra tokens or queries");
    size_t row_bytes = (size_t)(shares.count * rows) * sizeof(float);
    shares.keys = nh_cuda_reserve(operation, row_bytes * (size_t)problem->dim);
    shares.values = nh_cuda_reserve(operation, row_bytes * (size_t)problem->dim_v);
    nhood_status status = NHOOD_OK;
    for (enum nh_split90_pass pass = NH_SPLIT90_D_K_AND_V; !status && pass < NH_SPLIT90_PASSES;
         pass++)
        if (nh_split90_used(problem, pass))
            status = add_pass(operation, &dense, stats, loop, &shares, tiles, pass);
    return status ? status : add_sum(operation, problem, &shares);
}
