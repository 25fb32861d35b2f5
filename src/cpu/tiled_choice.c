/* The candidates of the tiled CPU solvers, and their estimates. */
#include "cpu_solvers.h"
#include "tiled.h"

#include "dtype.h"
#include "kernels.h"

#include <math.h>
#include <string.h>

const struct nh_knob nh_tiled_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "tiled_knobs.def"
#undef KNOB
    {NULL, NULL}};

/* Places, tile extents and scratch counts are 32-bit. Slots of a window are numbered from its first key in the box on, so no
 * key between others may be absent; only weights in memory and biases depend on the numbers. */
const char *nh_tiled_refuse(const struct nh_problem *problem, const struct nh_device *device) {
    (void)device;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (nh_max(axis->query.length, axis->key.length) > INT32_MAX - 1024)
            return "an axis is longer than 2^31 - 1025 tokens";
        if (!nh_is_boxed(axis)) continue;
        if (axis->query.length > NH_MOST_BOXED || axis->dilation > NH_MOST_BOXED ||
            nh_boxed_keys(axis) > NH_MOST_BOXED)
            return "queries of a part of an axis, or of a periodic one, attend more than 2^22 keys "
                   "of it";
        if ((problem->op >= NHOOD_OP_PN || problem->has_bias) && nh_meets_box_twice(axis))
            return "a window of a periodic axis meets the key box in two pieces: weights in memory "
                   "and biases need it in one";
    }
    if (problem->bias_count > INT32_MAX)
        return "a head's bias table has more than 2^31 - 1 entries";
    return NULL;
}

/* Whether the matrix kernels compute a problem: where they were measured to be faster than the f32 kernels (docs/log/cpu.md). Their
 * tiles have 16 queries and 32 keys of a row, most of which would be empty along short axes or with short windows. */
static bool matrix_serves(const struct nh_problem *problem) {
    enum { LEAST_DIM = 32, LEAST_WINDOW = 9 };
    const bool backward = problem->op == NHOOD_OP_BWD;
    const int64_t least_group = backward ? 16 : 32, least_keys = backward ? 32 : 64;
    if (problem->dtype != NHOOD_DTYPE_BF16 || (problem->op != NHOOD_OP_FWD && !backward) ||
        problem->has_bias || problem->dim < LEAST_DIM || problem->dim_v < LEAST_DIM ||
        problem->window_count < least_keys || (backward && problem->extra_tokens > 0))
        return false;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        const bool shorter = axis->query.length / axis->dilation < least_group;
        if (axis->length > 1 && (shorter || axis->window < LEAST_WINDOW || axis->stride > 1))
            return false;
    }
    return true;
}

const struct nh_tile_kernels *nh_tiled_kernels(const struct nh_problem *problem,
                                               const struct nh_device *device) {
    const struct nh_kernels *kernels = ((const struct nh_cpu *)device->backend)->kernels;
    if (kernels->bf16 && matrix_serves(problem)) return kernels->bf16;
    return problem->dtype == NHOOD_DTYPE_F64 ? kernels->f64 : kernels->f32;
}

static double least(double a, double b) {
    return a < b ? a : b;
}

/* The number of keys that `queries` consecutive queries of an axis attend, away from borders. */
static double halo(const struct nh_axis *axis, double queries) {
    double group = (double)axis->query.length / (double)axis->dilation,
           keys = queries + (double)axis->window - 1;
    if (queries < group) return axis->periodic ? keys : least(keys, (double)axis->key.length);
    if (!nh_is_boxed(axis)) return queries; /* whole dilation groups */
    double of_group = group + (double)axis->window - 1;
    if (!axis->periodic)
        of_group = least(of_group, (double)axis->key.length / (double)axis->dilation);
    return queries / group * of_group;
}

/* The share of an axis's vectors that are ragged: their lanes start neither at consecutive keys nor all at the same key. Those
 * are the vectors at the borders of dilation groups, where windows are shifted, or with strides. */
static double ragged_share(const struct nh_axis *axis, double lanes) {
    double group = (double)axis->query.length / (double)axis->dilation;
    bool wide = (double)axis->window >= (double)axis->length / (double)axis->dilation;
    if (wide && !axis->periodic) return axis->dilation > 1 && group < lanes ? 1 : 0;
    if (axis->stride > 1) return (double)axis->stride < lanes ? 1 : 0;
    if (axis->periodic) return axis->dilation > 1 ? least(lanes / group, 1) : 0;
    double ragged = (axis->causal ? 1 : 2) * lanes / group;
    return ragged < 1 ? ragged : 1;
}

/* The share of lanes that hold a query. Tiles whose cuts part the keys may end anywhere; others consist of whole vectors. */
static double lane_share(const struct nh_axis *axis, double tile, bool apart, int32_t lanes) {
    double length = apart ? tile : (double)axis->query.length;
    return length / (ceil(length / lanes) * lanes);
}

/* The gain of folded axes: how many times as many lanes hold queries, less the loss by key rows that not all folded places
 * attend. */
static double fold_gain(const struct nh_problem *permuted, const struct nh_config *config,
                        int32_t lanes) {
    int64_t rows = nh_min(config->value[NH_KNOB_TILE_0 + 1], permuted->axis[1].query.length);
    double places = 1 << nh_fold_log(permuted->axis[2].query.length,
                                     config->value[NH_KNOB_TILE_0 + 2], rows, lanes);
    double window = (double)permuted->axis[1].window;
    return places * window / (window + places - 1);
}

/* The mean number of queries of a tile along an axis. *apart tells whether no key is attended from two tiles. That is so if a
 * dilation group fits `size` or, with a window as wide as the stride, a block of queries does, as tiles then end between
 * them. */
static double tile_length(const struct nh_axis *axis, int64_t size, bool *apart) {
    int64_t length = axis->query.length, part = nh_ceil_div(length, axis->dilation);
    if (axis->stride == axis->window) part = axis->window;
    *apart = part <= size;
    if (*apart && size < length) size -= size % part;
    return (double)length / (double)nh_ceil_div(length, size);
}

struct shape {
    double tiles, queries, keys, lane_share, ragged_share;
    double
        kept_keys; /* keys that are packed at a time, see choose_packed_rows and choose_packed_planes */
    double near_keys; /* of these, keys that the next blocks use again */
    bool apart;       /* no key is in two halos: tiles store the gradients of their keys */
    bool planes;      /* only planes of keys that a place of the slow axis needs are kept */
};

/* The number of keys that a block uses, away from borders. If a tile is wider than a vector, the keys of one vector may lie
 * in one more cache line of every channel. */
static double block_keys(const struct nh_problem *permuted, double tile, int32_t lanes) {
    enum { LINE_REALS = 16, ROWS = 4 };
    const struct nh_axis *axis = permuted->axis;
    const double rows = (double)nh_min(axis[1].query.length, ROWS),
                 vector = tile < lanes ? tile : lanes;
    return halo(&axis[0], 1) * halo(&axis[1], rows) *
           (halo(&axis[2], vector) + (tile > lanes ? LINE_REALS : 0));
}

static struct shape tile_shape(const struct nh_problem *problem, const struct nh_config *config,
                               int32_t lanes) {
    struct nh_problem permuted;
    int64_t slot_step[NH_AXES], bias_step[NH_AXES];
    nh_geometry_permute(problem, config->value[NH_KNOB_LANE_AXIS], &permuted, slot_step, bias_step);
    struct shape shape = {1, 1, 1, 1, ragged_share(&permuted.axis[2], lanes), 1, 1, true, false};
    const bool one_head = problem->heads == problem->kv_heads;
    const bool rolling = permuted.axis[0].query.length == 1 && one_head;
    shape.planes =
        permuted.axis[0].query.length > 1 && one_head && config->value[NH_KNOB_TILE_0 + 2] <= lanes;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &permuted.axis[a];
        bool apart;
        int64_t length = axis->query.length;
        double mean = tile_length(axis, nh_min(config->value[NH_KNOB_TILE_0 + a], length), &apart);
        /* Windows of a periodic axis continue at its other end, which belongs to another tile or to the same one. */
        shape.apart &= apart && !(axis->periodic && axis->stride < axis->window);
        shape.tiles *= (double)length / mean;
        shape.queries *= mean;
        shape.keys *= halo(axis, mean);
        const bool rolls = a == 0 ? shape.planes : a == 1 && rolling;
        const double at_once = a == 0 ? 1 : 4; /* places of queries whose keys are kept */
        shape.kept_keys *= halo(axis, rolls && mean > at_once ? at_once : mean);
        if (a < 2) continue;
        shape.lane_share = lane_share(axis, mean, apart, lanes);
        shape.near_keys = rolling ? shape.kept_keys : block_keys(&permuted, mean, lanes);
    }
    shape.lane_share *= fold_gain(&permuted, config, lanes);
    return shape;
}

/* Tiles are chosen for this number of threads, whatever the context has: the order in which gradients are added up follows
 * from the tiles, and results must not depend on the number of threads. */
enum { NOMINAL_THREADS = 4 };

/* The number of vector operations per packed element. If the lane axis is not the last one, consecutive queries lie rows or
 * planes apart, and have to be gathered. */
static double packing_operations(const struct nh_config *config) {
    return config->value[NH_KNOB_LANE_AXIS] < NH_AXES - 1 ? 0.42 : 0.32;
}

/* The factor by which idle threads in the last wave lengthen a pass of `items` work tiles. As the number of threads is not
 * considered (see above), it is the geometric mean of the factors for one thread, which is 1, twice, and for
 * NOMINAL_THREADS. */
static double idleness(double items) {
    double waves = ceil(items / NOMINAL_THREADS);
    return cbrt(waves * NOMINAL_THREADS / items);
}

/* How often `bytes` must be halved to fit into `kib`. */
static double doublings(double bytes, double kib) {
    double share = bytes / (kib * 1024);
    return share > 1 ? log2(share) : 0;
}

/* A model of the time in nanoseconds, for a nominal 3 GHz and two multiply-add units per thread:
 *     products   multiply-adds over the lanes that hold a query, at 75 % of the peak; less with ragged vectors, whose keys are
 *                permuted and whose band products have more steps
 *     weights    the softmax, about 14 vector operations per vector of scores
 *     packing    some vector operations per packed element of halo and queries. A key whose gradients are stored counts as
 *                seven, or as thirteen if they are added up from several tiles, through memory
 *     caches     the more packed keys (and in a backward their gradients) are kept, the further out in the caches they lie and
 *                the more each use costs. Packing uses all keys that are kept, products those that consecutive blocks share. Keys
 *                of a ring of planes, packed a moment ago, cost products half as much
 * The sum is divided among the threads, if they take part. The constants were fitted on machines with AVX-512. They serve to rank configs, not to
 * predict times. */
double nh_tiled_estimate(const struct nh_solver *solver, const struct nh_problem *problem,
                         const struct nh_device *device, const struct nh_config *config,
                         struct nh_count *count) {
    (void)solver;
    (void)count;
    const struct nh_cpu *cpu = device->backend;
    double lanes = nh_tiled_kernels(problem, device)->lanes;
    struct shape shape = tile_shape(problem, config, (int32_t)lanes);
    double units = (double)problem->batch * (double)problem->kv_heads;
    double group = (double)problem->heads / (double)problem->kv_heads;
    double dims = (double)problem->dim + (double)problem->dim_v;
    bool bwd = problem->op == NHOOD_OP_BWD;
    double operations_per_ns = 6;
    double flops = nh_problem_flops(problem);
    double products = flops / 2 / lanes / shape.lane_share / 0.75;
    double scores = flops / (bwd ? 5.0 : 2.0) / dims / lanes / shape.lane_share;
    double per_key = !bwd ? 1 : shape.apart ? 7 : 13;
    double packed = units * shape.tiles * dims * (shape.keys * per_key + shape.queries * group * 2);
    double real_bytes = problem->dtype == NHOOD_DTYPE_F64 ? 8 : 4;
    double key_bytes = dims * real_bytes * (bwd ? 2 : 1);
    double kept = shape.kept_keys * key_bytes, near = shape.near_keys * key_bytes;
    products *= 1 + 0.3 * shape.ragged_share;
    products *=
        1 + (shape.planes ? 0.5 : 1) * (0.1 * doublings(near, 96) + 0.5 * doublings(near, 1024));
    packed *= packing_operations(config) * (1 + 0.25 * doublings(kept, 40));
    double work = (products + 14 * scores + packed) / operations_per_ns;
    const int32_t threads = nh_tiled_alone(problem) ? 1 : cpu->threads;
    return 200 + work / threads * idleness(units * shape.tiles);
}

/* The tile size that replaces the whole of a long axis, because the tables of a plan hold several tiles. */
enum { MOST_OF_LONG_AXIS = NH_LONG_AXIS / 8 };

/* The extents of a tile along the lane axis and along the others; 0 means the whole axis. */
static const struct size {
    int32_t other, lane;
} sizes[] = {{0, 0},    {0, 64}, {64, 64}, {32, 64}, {16, 64}, {8, 64},  {64, 128},
             {16, 128}, {0, 32}, {32, 32}, {16, 32}, {8, 32},  {16, 256}};

/* Further tiles for problems of three axes: long along the slow axis or both others, and one or two vectors wide. `lane` counts
 * vectors. */
static const struct narrow_size {
    int32_t slow, middle, lane;
} narrow_sizes[] = {{0, 0, 1},   {0, 24, 1},  {0, 16, 1},  {0, 12, 1}, {0, 8, 1},
                    {24, 24, 1}, {24, 16, 1}, {24, 12, 1}, {24, 8, 1}, {16, 16, 1},
                    {8, 8, 1},   {24, 24, 2}, {16, 16, 2}};
enum { SIZES = sizeof sizes / sizeof sizes[0] };
enum { NARROW_SIZES = sizeof narrow_sizes / sizeof narrow_sizes[0] };
enum { MOST_CONFIGS = NH_AXES * (SIZES + NARROW_SIZES) };

/* Whether config[last] is among those before it, as different sizes coincide when they are clamped to short axes. */
static bool known(const struct nh_config *config, int last) {
    for (int i = 0; i < last; i++)
        if (!memcmp(&config[i], &config[last], sizeof config[i])) return true;
    return false;
}

static struct nh_config sized_config(const struct nh_problem *problem, int32_t lane_axis,
                                     const int32_t size[NH_AXES]) {
    struct nh_config config = {.value[NH_KNOB_LANE_AXIS] = lane_axis};
    int from[NH_AXES] = {0, 1, 2};
    from[lane_axis] = 2;
    from[2] = lane_axis;
    for (int a = 0; a < NH_AXES; a++) {
        int32_t most = size[a];
        const int64_t length = problem->axis[from[a]].query.length;
        if (most == 0 && length > NH_LONG_AXIS) most = MOST_OF_LONG_AXIS;
        config.value[NH_KNOB_TILE_0 + a] = (int32_t)(most ? nh_min(most, length) : length);
    }
    return config;
}

/* Lists all configs and returns their number. */
static int all_configs(const struct nh_problem *problem, const struct nh_tile_kernels *kernels,
                       struct nh_config config[MOST_CONFIGS]) {
    enum { MOST_SLOW = 8 }; /* halos of three axes are large: wide tiles are short there */
    const int32_t lanes = kernels->lanes;
    int count = 0;
    for (int32_t lane_axis = NH_AXES - 1; lane_axis >= 0; lane_axis--) {
        /* Weights in memory are laid out along the last axis. An axis with one query would fill one lane. */
        bool last = lane_axis == NH_AXES - 1;
        if (!last && (problem->op >= NHOOD_OP_PN || problem->axis[lane_axis].query.length == 1))
            continue;
        for (int i = 0; i < SIZES; i++) {
            const int32_t other = sizes[i].other, slow = (int32_t)nh_min(other, MOST_SLOW);
            config[count] =
                sized_config(problem, lane_axis, (int32_t[]){slow, other, sizes[i].lane});
            if (!known(config, count)) count++;
        }
        for (int i = 0; problem->rank == 3 && i < NARROW_SIZES; i++) {
            const struct narrow_size *size = &narrow_sizes[i];
            /* a tile of 12 has no whole block of 8 but the first */
            if (size->middle == 12 && kernels->most_rows == 8) continue;
            config[count] = sized_config(problem, lane_axis,
                                         (int32_t[]){size->slow, size->middle, size->lane * lanes});
            if (!known(config, count)) count++;
        }
    }
    return count;
}

int nh_tiled_candidates(const struct nh_problem *problem, const struct nh_device *device,
                        struct nh_config *config, int capacity) {
    struct nh_config all[MOST_CONFIGS];
    int count = all_configs(problem, nh_tiled_kernels(problem, device), all);
    /* Estimates for other numbers of threads have the same order but for rounding, which must not decide, either. */
    struct nh_cpu nominal_cpu = *(const struct nh_cpu *)device->backend;
    struct nh_device nominal = *device;
    nominal_cpu.threads = NOMINAL_THREADS;
    nominal.backend = &nominal_cpu;
    /* The estimate of cpu.unfused is the same function. */
    nh_least_first(&nh_solver_cpu_fused, problem, &nominal, all, count);
    count = (int)nh_min(count, capacity);
    memcpy(config, all, (size_t)count * sizeof *config);
    return count;
}
