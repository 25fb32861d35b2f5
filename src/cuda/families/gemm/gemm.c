/* cuda.gemm: the operators as products of tiles on tensor cores (mma.sync), with attention weights in memory, and
 * attention as a sequence of them. This is the GEMM-based method of "Faster Neighborhood Attention" (Hassani, Hwu, Shi
 * 2024), extended to 3-D grids, and with a tile's keys gathered as one box, so that no pair of tiles is multiplied that
 * shares nothing. It needs memory for the weights of attention; no extra tokens, no f64, no heads wider than its
 * registers. */
#include "gemm.h"
#include "rates.h"

#include "top_n.h"
#include "cuda_family.h"
#include "dtype.h"

const struct nh_knob nh_gemm_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "gemm_knobs.def"
#undef KNOB
    {NULL, NULL}};

enum { WIDEST_ROW = 256, MOST_SHAPES = 6, MOST_CANDIDATES = 3 };
enum { WARP_ROWS = 16, LANES = NH_GEMM_LANES, MOST_PLACE = 1 << 16 };
#define MOST_TOKENS ((int64_t)1 << 30)
#define MOST_SLOTS ((int64_t)1 << 27)
#define MOST_SLAB_BYTES ((int64_t)16 << 30)

/* Tile shapes by rank, of 128 to 16 tokens. */
static const int shapes[3][MOST_SHAPES][NH_AXES] = {
    {{1, 1, 128}, {1, 1, 64}, {1, 1, 32}, {1, 1, 16}},
    {{1, 8, 16}, {1, 8, 8}, {1, 4, 16}, {1, 4, 8}, {1, 4, 4}, {1, 1, 64}},
    {{4, 4, 8}, {4, 4, 4}, {2, 4, 8}, {2, 4, 4}, {2, 2, 4}, {1, 1, 64}},
};

/* Tile shapes of the part kernels: along the last axes no wider than the rows of a warp. */
static const int part_shapes[3][MOST_SHAPES][NH_AXES] = {
    {{1, 1, 128}, {1, 1, 64}, {1, 1, 32}, {1, 1, 16}},
    {{1, 32, 4}, {1, 16, 4}, {1, 8, 4}, {1, 4, 4}, {1, 8, 2}, {1, 1, 16}},
    {{8, 4, 4}, {4, 4, 4}, {2, 4, 4}, {1, 4, 4}, {8, 2, 4}, {4, 2, 4}},
};

/* ---- what a config needs ---- */

int64_t nh_gemm_tiles(const struct nh_gemm *of) {
    int64_t tiles = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &of->problem->axis[a];
        tiles *= nh_ceil_div(nh_longest_group(axis), of->config->value[GEMM_TILE + a]) *
                 nh_min(axis->dilation, axis->length);
    }
    return tiles;
}

/* The size of the layouts of gemm_pn.cu and gemm_band.cu; the padding of rows is in gemm_fragment.cuh. */
int64_t nh_gemm_pn_bytes(const struct nh_gemm *of, int64_t dim) {
    int64_t size = (int64_t)nh_dtype_bytes(of->problem->dtype), rows = nh_gemm_rows(of->config);
    int64_t columns = of->config->value[GEMM_COLUMNS];
    return (rows + 2 * columns) * (nh_gemm_width(dim) * size + 16) + rows * (columns + 8) * 4;
}

int64_t nh_gemm_band_bytes(const struct nh_gemm *of, int64_t dim) {
    int64_t size = (int64_t)nh_dtype_bytes(of->problem->dtype), rows = nh_gemm_rows(of->config);
    int64_t columns = of->config->value[GEMM_COLUMNS], row = (nh_gemm_width(dim) + 8) * size;
    return nh_max(2 * columns * row + rows * (columns * size + 16), rows * row);
}

int64_t nh_gemm_slab_bytes(const struct nh_problem *problem) {
    bool forward = problem->op == NHOOD_OP_FWD; /* the forward pass keeps scores in f32 */
    int64_t bytes = forward ? 4 : (int64_t)nh_dtype_bytes(problem->dtype);
    if (!nh_multiply(bytes, problem->window_count, &bytes) ||
        !nh_multiply(bytes, problem->heads / problem->kv_heads, &bytes) ||
        !nh_multiply(bytes, problem->query_tokens, &bytes))
        return INT64_MAX;
    return bytes;
}

static int64_t widest_row(const struct nh_problem *problem) {
    if (problem->op == NHOOD_OP_PN) return problem->dim;
    if (problem->op == NHOOD_OP_NN || problem->op == NHOOD_OP_IN) return problem->dim_v;
    return nh_max(problem->dim, problem->dim_v);
}

/* An upper bound per table entry of static shared memory: tables have one entry per row, and two or three per
 * column. */
enum { TABLE_BYTES = 64 };

/* ---- attention in parts ----
 * The forward pass in two launches, with a row's softmax computed where its scores are (gemm_part.cuh). It is for
 * windows for which the keys of a part of a tile's box fit shared memory. */

/* The most keys along an axis that queries in a row of `extent` attend. */
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

/* Whether the part kernels take the problem with this config on this device. */
static bool part_takes(const struct nh_gemm *of) {
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

/* ---- configs ---- */

/* Sets a config; false if it does not run. */
static bool complete(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                     const int shape[NH_AXES], int columns, int planes, struct nh_config *config) {
    const struct nh_gemm of = {problem, cuda, config};
    if (!shape[0]) return false;
    *config = (struct nh_config){{shape[0], shape[1], shape[2], columns, planes}};
    if (nh_gemm_in_parts(config)) return part_takes(&of);
    int64_t dim = widest_row(problem);
    int64_t tables = TABLE_BYTES * (nh_gemm_rows(config) + 3 * columns) + 256;
    return nh_max(nh_gemm_pn_bytes(&of, dim), nh_gemm_band_bytes(&of, dim)) + tables <=
           cuda->shared_bytes_per_block;
}

/* ---- work ---- */

/* A launch. Each step copies `columns` rows of `dim` elements, and all warps together multiply for `scores` pairs of
 * rows. shared_bytes: static ones included. */
struct launch {
    enum nh_kernel_kind kernel;
    int64_t dim, threads, registers, shared_bytes;
    double blocks, steps, columns, scores;
};

static struct nh_launch_work *add_launch(const struct nh_gemm *of, const struct launch *launch,
                                         struct nh_work *work) {
    enum { THREADS = 2048, BLOCKS = 32 }; /* of a multiprocessor */
    double width = (double)nh_gemm_width(launch->dim),
           size = (double)nh_dtype_bytes(of->problem->dtype);
    int64_t by_shared = nh_cuda_residents_by_shared(of->cuda, launch->shared_bytes),
            by_registers = NH_CUDA_REGISTERS / (launch->threads * launch->registers),
            by_threads = nh_min(THREADS / launch->threads, BLOCKS);
    struct nh_launch_work *added = nh_work_add(work, launch->kernel);
    added->blocks = launch->blocks;
    added->residents = added->in_flight =
        (double)nh_max(1, nh_min(nh_min(by_shared, by_registers), by_threads));
    added->warps = (double)(launch->threads / 32);
    added->serial = 1 / added->warps;
    added->steps = launch->steps;
    added->unit[NH_WORK_TENSOR] =
        launch->scores * width / nh_cuda_products_per_clock(of->problem, of->cuda, false);
    added->unit[NH_WORK_VECTOR] = nh_cuda_lane_clocks(launch->scores);
    added->unit[NH_WORK_COPY] =
        nh_cuda_lane_clocks(launch->steps * launch->columns * width * size / 16);
    return added;
}

/* The chunks of a tile's box, and those of them in which one warp's 16 rows have keys. */
struct chunks {
    double all, own;
};

static struct chunks chunks_of(const struct nh_gemm *of) {
    const int32_t *value = of->config->value;
    double box = 1, reach = 0; /* columns of the box; range from the warp's first key to its last */
    int rows = 16;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        const struct nh_axis *axis = &of->problem->axis[a];
        int extent = (int)nh_min(value[GEMM_TILE + a], rows);
        double own = (double)most_reach(axis, extent);
        reach += (a == NH_AXES - 1 ? own : own - 1) * box;
        box *= (double)most_reach(axis, value[GEMM_TILE + a]);
        rows /= extent;
    }
    double all = (double)nh_ceil_div((int64_t)box, value[GEMM_COLUMNS]);
    /* A range that begins anywhere touches up to one chunk more than its length; 0.7 on average is fitted (e9b61c3). */
    double touched = reach / value[GEMM_COLUMNS] + 0.7;
    return (struct chunks){all, touched < all ? touched : all};
}

/* The products of an operation: of gemm_pn.cu and of gemm_band.cu, over rows of queries' or of values' width. */
enum { PN, NN, IN };
struct product {
    enum { NO_PRODUCT, OF_QUERIES, OF_VALUES } rows;
    int kind;
};
static const struct product products[][6] = {
    [NHOOD_OP_FWD] = {{OF_QUERIES, PN}, {OF_VALUES, NN}},
    [NHOOD_OP_BWD] =
        {{OF_QUERIES, PN}, {OF_VALUES, PN}, {OF_QUERIES, NN}, {OF_QUERIES, IN}, {OF_VALUES, IN}},
    [NHOOD_OP_PN] = {{OF_QUERIES, PN}},
    [NHOOD_OP_NN] = {{OF_VALUES, NN}},
    [NHOOD_OP_IN] = {{OF_VALUES, IN}},
};

/* Adds the launch of one product: a block copies the chunks of its tile's box, and its warps multiply those in which
 * their rows have keys. */
static void add_product(const struct nh_gemm *of, int64_t dim, int kind, struct nh_work *work) {
    static const enum nh_kernel_kind kernel[] = {NH_KERNEL_GEMM_PN, NH_KERNEL_GEMM_NN,
                                                 NH_KERNEL_GEMM_IN};
    const struct nh_problem *problem = of->problem;
    const struct chunks chunks = chunks_of(of);
    int64_t rows = nh_gemm_rows(of->config), columns = of->config->value[GEMM_COLUMNS];
    /* PN: NVRTC 13.0 takes 56 to 70 for sm_80 and sm_90, in five problems of f16, bf16 and f32 */
    int64_t registers = kind == PN ? 76 : 48 + columns / 2 + nh_gemm_width(dim) / 2;
    int64_t tables =
        TABLE_BYTES * rows + (kind == IN ? 2 * TABLE_BYTES : TABLE_BYTES / 4) * columns;
    double members = kind == IN ? (double)(problem->heads / problem->kv_heads) : 1;
    double heads = (double)problem->heads / members;
    const struct launch launch = {
        .kernel = kernel[kind],
        .dim = dim,
        .threads = 2 * rows,
        .registers = nh_min(nh_ceil_div(registers, 8) * 8, 255),
        .shared_bytes =
            tables + (kind == PN ? nh_gemm_pn_bytes(of, dim) : nh_gemm_band_bytes(of, dim)),
        .blocks = (double)problem->batch * heads * (double)nh_gemm_tiles(of),
        .steps = members * chunks.all,
        .columns = (double)columns,
        .scores = members * (double)rows * chunks.own * (double)columns};
    struct nh_launch_work *added = add_launch(of, &launch, work);
    added->unit[NH_WORK_STEP] = added->steps;
    added->unit[NH_WORK_TILE] = members * added->warps;
}

/* Adds one of the launches. sweeps: how often it goes over the parts; lanes: that share a row. A block computes several
 * heads, one after the other, with one table. */
static void add_part(const struct nh_gemm *of, const struct nh_gemm_part *part, int index,
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
    const struct launch launch = {
        .kernel = pn ? NH_KERNEL_GEMM_PART_PN : NH_KERNEL_GEMM_PART_NN,
        .dim = pn ? problem->dim : problem->dim_v,
        .threads = 2 * rows * part->team[index],
        .registers = 80,
        .shared_bytes = part->shared_bytes[index] + tables_bytes(of, part),
        .blocks = (double)(problem->batch * problem->heads * nh_gemm_tiles(of)) / heads,
        .steps = heads * sweeps * parts,
        .columns = (double)part->held,
        .scores = passes * (double)part->columns};
    struct nh_launch_work *added = add_launch(of, &launch, work);
    added->unit[NH_WORK_TILE] = passes * (double)lanes / LANES;
    added->unit[NH_WORK_INDEX] =
        added->unit[NH_WORK_TILE] * (double)nh_ceil_div(part->slots, lanes);
}

/* Adds the work of both launches, and the bytes of the weights that they move. */
static void add_parts(const struct nh_gemm *of, struct nh_work *work) {
    const struct nh_problem *problem = of->problem;
    const struct nh_gemm_part part = nh_gemm_part_of(of);
    double weights =
        (double)(problem->batch * problem->heads * problem->query_tokens) * (double)part.row;
    work->helper_bytes = 2 * weights * (double)nh_dtype_bytes(problem->dtype);
    add_part(of, &part, NH_GEMM_PART_PN, part.lanes, of->config->value[GEMM_PLANES] ? 2 : 1, work);
    add_part(of, &part, NH_GEMM_PART_NN, LANES, 1, work);
}

/* Attention weights are written and read between the products. */
static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    const struct nh_gemm of = {problem, device->backend, config};
    double weights = (double)(problem->batch * problem->heads * problem->query_tokens) *
                     (double)problem->window_count;
    double size = (double)nh_dtype_bytes(problem->dtype);
    nh_work_start(work, NH_OPERATION_GEMM, problem);
    if (problem->op == NHOOD_OP_FWD && nh_gemm_in_parts(config)) {
        add_parts(&of, work);
        return true;
    }
    for (const struct product *next = products[problem->op]; next->rows != NO_PRODUCT; next++)
        add_product(&of, next->rows == OF_QUERIES ? problem->dim : problem->dim_v, next->kind,
                    work);
    if (problem->op == NHOOD_OP_FWD) work->helper_bytes = (3 * sizeof(float) + size) * weights;
    if (problem->op == NHOOD_OP_BWD) work->helper_bytes = 6 * size * weights;
    work->helpers = work->helper_bytes > 0;
    return true;
}

/* ---- solver ---- */

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    const struct nh_cuda_device *cuda = device->backend;
    struct nh_config config;
    const struct nh_gemm of = {problem, cuda, &config};
    if (cuda->arch < 80) return "needs compute capability 8.0";
    if (problem->dtype == NHOOD_DTYPE_F64)
        return "no f64: tensor cores are used for f32, f16 and bf16";
    if (problem->extra_tokens) return "no extra tokens";
    if (widest_row(problem) > WIDEST_ROW) return "head dims above 256";
    if (problem->query_tokens > MOST_TOKENS) return "more than 2^30 tokens per batch entry";
    if (problem->bias_count > MOST_SLOTS || problem->window_count > MOST_SLOTS)
        return "windows or bias tables of more than 2^27 entries";
    if (problem->op < NHOOD_OP_PN && nh_gemm_slab_bytes(problem) > MOST_SLAB_BYTES)
        return "attention weights of one key head would take more than 16 GiB of workspace";
    const int *smallest = shapes[problem->rank - 1][problem->rank == 1 ? 3 : 4];
    if (!complete(problem, cuda, smallest, 32, 0, &config))
        return "not even the smallest tile fits the device's shared memory";
    if (problem->batch > INT32_MAX / problem->heads ||
        nh_gemm_tiles(&of) > INT32_MAX / (problem->batch * problem->heads))
        return "more than 2^31 tiles";
    return NULL;
}

/* Proposes the shapes whose predicted time is at most 1.5 times the best, best first. */
static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity) {
    struct nh_top_n top;
    nh_top_configs_start(&top, below_ns, config, (int)nh_min(capacity, MOST_CANDIDATES));
    for (int i = 0; i < 4 * MOST_SHAPES; i++) {
        bool parts = i % 4 > 1;
        int columns = parts ? 0 : i % 2 ? 32 : 64;
        struct nh_config next;
        if (complete(problem, device->backend,
                     (parts ? part_shapes : shapes)[problem->rank - 1][i / 4], columns,
                     parts && i % 2, &next))
            nh_top_n_add(&top, &next,
                         nh_estimate(&nh_solver_cuda_gemm, problem, device, &next, NULL));
    }
    int count = top.count;
    while (count > 1 && top.ns[count - 1] > 1.5 * top.ns[0])
        count--;
    return count;
}

const struct nh_solver nh_solver_cuda_gemm = {
    NH_CUDA_SOLVER,           .name = "cuda.gemm", .knob = nh_gemm_knobs,          .refuse = refuse,
    .candidates = candidates, .work = work,        .add_steps = nh_gemm_add_steps,
};
