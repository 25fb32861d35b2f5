/* Attention in parts: what its launches need, and their work. */
#include "gemm.h"

#include "dtype.h"
#include "rates.h"

enum { WARP_ROWS = 16, LANES = NH_GEMM_LANES, MOST_PLACE = 1 << 16 };

static int64_t most_reach(const struct nh_axis *axis, int64_t extent) {
    return nh_min(nh_longest_group(axis), extent + axis->window + axis->stride - 2);
}

/* Sets the sizes of a part: slots, row and lanes, and the same as struct nh_part_bounds of gemm_part.cuh. */
static void set_sizes(const struct nh_gemm *of, struct nh_gemm_part *part) {
    const struct nh_problem *problem = of->problem;
    const int32_t *value = of->config->value;
    int64_t rows = WARP_ROWS, piece = 16 / (int64_t)nh_dtype_bytes(problem->dtype), columns = 1;
    part->slots = part->box = 1;
    for (int a = NH_AXES - 1; a >= (value[GEMM_PLANES] ? 1 : NH_AXES - problem->rank); a--) {
        const struct nh_axis *axis = &problem->axis[a];
        int64_t extent = nh_min(value[GEMM_TILE + a], rows);
        part->slots *= axis->window;
        columns += (most_reach(axis, extent) - 1) * part->box;
        part->box *= most_reach(axis, value[GEMM_TILE + a]);
        rows /= extent;
    }
    part->held = nh_ceil_div(part->box, 16) * 16 + 16;
    part->columns = nh_ceil_div(columns, 16) * 16;
    part->row = nh_ceil_div(part->slots, piece) * piece;
    part->lanes = nh_gemm_lanes(part->slots);
}

/* The more shared memory 16 rows take, the fewer blocks are resident, and the more warps should share the rows; warps
 * of nn share the columns of V. The limits, in bytes of a row's columns, were measured on an H200. */
static void set_teams(const struct nh_gemm *of, struct nh_gemm_part *part) {
    enum { FOR_TWO = 200, FOR_FOUR = 800, MOST_THREADS = 512 };
    int64_t row = part->columns * (int64_t)nh_dtype_bytes(of->problem->dtype);
    int64_t team = row > FOR_FOUR ? 4 : row > FOR_TWO ? 2 : 1;
    while (2 * nh_gemm_rows(of->config) * team > MOST_THREADS)
        team /= 2;
    part->team[NH_GEMM_PART_PN] = team;
    while (nh_gemm_width(of->problem->dim_v) % (16 * team))
        team /= 2;
    part->team[NH_GEMM_PART_NN] = team;
}

/* A block has the rows of a part, twice if there are several parts, and their offsets. */
static void set_shared_bytes(const struct nh_gemm *of, struct nh_gemm_part *part) {
    int64_t rows = nh_gemm_rows(of->config), stages = of->config->value[GEMM_PLANES] ? 2 : 1;
    int64_t size = (int64_t)nh_dtype_bytes(of->problem->dtype);
    int64_t key = nh_gemm_width(of->problem->dim) * size + 16,
            value = (nh_gemm_width(of->problem->dim_v) + 8) * size;
    int64_t weights = part->columns * size + 16 + part->row * size;
    part->shared_bytes[NH_GEMM_PART_PN] =
        part->held * (8 + stages * key) +
        rows * (key + (part->columns + 8) * (int64_t)sizeof(float));
    part->shared_bytes[NH_GEMM_PART_NN] =
        nh_max(part->held * 8 + rows * value, part->held * (8 + stages * value) + rows * weights);
}

static int64_t heads_of(const struct nh_gemm *of) {
    enum { MOST_HEADS = 8, WARPS_PER_MULTIPROCESSOR = 16 };
    const struct nh_problem *problem = of->problem;
    int64_t warps =
        problem->batch * problem->heads * nh_gemm_tiles(of) * nh_gemm_rows(of->config) / WARP_ROWS;
    int64_t most = warps / (WARPS_PER_MULTIPROCESSOR * (int64_t)of->cuda->multiprocessors);
    int64_t heads = nh_max(1, nh_min(most, nh_min(MOST_HEADS, problem->heads)));
    while (problem->heads % heads)
        heads--;
    return heads;
}

struct nh_gemm_part nh_gemm_part_of(const struct nh_gemm *of) {
    struct nh_gemm_part part;
    set_sizes(of, &part);
    set_teams(of, &part);
    set_shared_bytes(of, &part);
    part.heads = heads_of(of);
    if (of->config->value[GEMM_PLANES]) part.row *= of->problem->axis[0].window;
    return part;
}

/* Bytes of static shared memory: a table entry per query, and two per slot. */
static int64_t tables_bytes(const struct nh_gemm *of, const struct nh_gemm_part *part) {
    return 256 + 72 * nh_gemm_rows(of->config) + 4 * part->slots;
}

bool nh_gemm_part_takes(const struct nh_gemm *of) {
    const struct nh_problem *problem = of->problem;
    bool planes = of->config->value[GEMM_PLANES], volume = problem->rank == NH_AXES;
    if (problem->op != NHOOD_OP_FWD || nh_problem_causal(problem) || (planes && !volume))
        return false;
    const struct nh_gemm_part part = nh_gemm_part_of(of);
    int64_t bytes = nh_max(part.shared_bytes[NH_GEMM_PART_PN], part.shared_bytes[NH_GEMM_PART_NN]);
    /* In 3-D, the rows of a whole box leave room for one block of few warps per multiprocessor: planes took half the
     * time. */
    return part.slots <= (volume && !planes ? 256 : LANES * NH_GEMM_HELD) &&
           part.box <= MOST_PLACE && problem->bias_count <= MOST_PLACE &&
           bytes + tables_bytes(of, &part) <= of->cuda->shared_bytes_per_block;
}

/* Adds one of the launches. sweeps: how often it goes over the parts; lanes: that share a row. A block computes several
 * heads, one after the other, with one table. */
static void add_launch(const struct nh_gemm *of, const struct nh_gemm_part *part, int index,
                       int64_t lanes, double sweeps, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const int32_t *value = of->config->value;
    bool pn = index == NH_GEMM_PART_PN;
    int64_t rows = nh_gemm_rows(of->config);
    double parts = 1, own_parts = 1, heads = (double)part->heads;
    if (value[GEMM_PLANES]) {
        int64_t plane = value[GEMM_TILE + 1] * value[GEMM_TILE + 2];
        parts = (double)most_reach(&problem->axis[0], value[GEMM_TILE]);
        own_parts = (double)most_reach(&problem->axis[0], nh_max(1, WARP_ROWS / plane));
    }
    double passes = heads * sweeps * own_parts * (double)rows;
    const struct nh_gemm_launch launch = {
        .kernel = pn ? NH_KERNEL_GEMM_PART_PN : NH_KERNEL_GEMM_PART_NN,
        .dim = pn ? problem->dim : problem->dim_v,
        .threads = 2 * rows * part->team[index],
        .registers = 80,
        .shared_bytes = part->shared_bytes[index] + tables_bytes(of, part),
        .blocks = (double)(problem->batch * problem->heads * nh_gemm_tiles(of)) / heads,
        .steps = heads * sweeps * parts,
        .columns = (double)part->held,
        .scores = passes * (double)part->columns};
    struct nh_launch_work *added = nh_gemm_add_launch(of, &launch, work);
    added->unit[NH_WORK_TILE] = passes * (double)lanes / LANES;
    added->unit[NH_WORK_INDEX] =
        added->unit[NH_WORK_TILE] * (double)nh_ceil_div(part->slots, lanes);
}

void nh_gemm_part_add_work(const struct nh_gemm *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const struct nh_gemm_part part = nh_gemm_part_of(of);
    double weights =
        (double)(problem->batch * problem->heads * problem->query_tokens) * (double)part.row;
    work->helper_bytes = 2 * weights * (double)nh_dtype_bytes(problem->dtype);
    add_launch(of, &part, NH_GEMM_PART_PN, part.lanes, of->config->value[GEMM_PLANES] ? 2 : 1,
               work);
    add_launch(of, &part, NH_GEMM_PART_NN, LANES, 1, work);
}
