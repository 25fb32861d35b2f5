/* Tolerances. A correct solver's result is the exact one for inputs that are off by a few rounding errors. So the f64
 * reference runs a second time, with its inputs changed at random by the roundings that a solver is allowed:
 *
 *   every input           (2 + sqrt(r)) u, for sums of r terms in arithmetic with unit roundoff u, whose
 *                         errors add up like a random walk; with TF32 allowed, one roundoff of that more
 *   V, dO and what goes   one roundoff of the storage type (or TF32) more: the softmax weights and their
 *   with them             gradients, which multiply these, may be rounded to it
 *
 * The change of the result has the size of a legitimate error, whatever the scale, the bias, the cancellation and the number of
 * terms. The limit for an element is a multiple of the change's root mean square over the tensor plus a multiple of its
 * largest value. The former serves most elements, with room for the tail of a normal distribution, the latter the few that are
 * more sensitive, such as those of a softmax between two equal scores. The rounding of the result to its storage type is
 * added, and the errors of sums that do not depend on the inputs. */
#include "oracle.h"

#include "message.h"
#include "random.h"
#include "storage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MEAN_ERRORS 4
#define LARGEST_ERRORS 2

/* A small tensor has few changes to average, so the second run is repeated until there are this many, up to a limit. */
enum { ENOUGH_CHANGES = 64, MOST_REPEATS = 8 };

static const char reference[] = "reference";

static double *values(const struct problem_data *data, int32_t tensor) {
    return data->io.data[tensor]; /* f64, packed, in host memory */
}

static int64_t value_count(const struct problem_data *data, int32_t tensor) {
    return data->view[tensor].rows * data->view[tensor].extent[VIEW_INNER];
}

/* ---- the inputs ---- */

/* An axis as changed by CLAMP_WINDOW, for nhood_window. */
static nhood_axis effective_axis(const nhood_axis *axis) {
    nhood_axis clamped = *axis;
    if (clamped.dilation > axis->length) clamped.dilation = axis->length;
    if (clamped.window > axis->length / clamped.dilation)
        clamped.window = axis->length / clamped.dilation;
    if (clamped.stride > clamped.window) clamped.stride = clamped.window;
    return clamped;
}

/* Whether the key box has a token of the grid's axis; on a periodic axis tokens count modulo its length. */
static bool has_key(const nhood_problem *problem, int a, int64_t token) {
    const nhood_axis *axis = &problem->axis[a];
    int64_t key = token - problem->region[a].key_offset;
    if (axis->periodic) key = (key % axis->length + axis->length) % axis->length;
    return key >= 0 && key < covered_length(problem, a, true);
}

/* The windows of an axis: those of a formula, or a table of all of them. */
struct axis_windows {
    nhood_axis axis;
    nhood_range *range; /* NULL: by formula */
    int64_t slots;
};

static void free_windows(struct axis_windows windows[3]) {
    for (int a = 0; a < 3; a++)
        free(windows[a].range);
}

static bool list_windows(const nhood_problem *problem, struct axis_windows windows[3]) {
    memset(windows, 0, 3 * sizeof *windows);
    for (int a = 0; a < problem->rank; a++) {
        windows[a].axis = effective_axis(&problem->axis[a]);
        windows[a].slots = windows[a].axis.window;
        if (!problem->windows[a].kind) continue;
        const int64_t length = windows[a].axis.length;
        nhood_range *range = windows[a].range = malloc((size_t)length * sizeof *range);
        if (!range) return !complain(EXIT_FAILURE, "out of memory");
        nhood_status status = nhood_windows_ranges(&problem->windows[a], length, range);
        if (status) return !complain_library(status, "windows");
        for (int64_t i = 0; i < length; i++)
            if (range[i].count > windows[a].slots) windows[a].slots = range[i].count;
    }
    return true;
}

/* Whether a short window or the key box leaves a slot in this row of A unused, so that kernels must not read it. */
static bool slot_unused(const nhood_problem *problem, const struct axis_windows *windows,
                        const struct view *view, int64_t row, int64_t slot) {
    row /= view->extent[VIEW_HEAD];
    for (int a = problem->rank - 1; a >= 0; a--) {
        const nhood_axis *axis = &windows[a].axis;
        int64_t token = problem->region[a].query_offset + row % view->extent[VIEW_AXIS + a];
        int64_t first = 0, count = 0;
        if (windows[a].range) {
            first = windows[a].range[token].first;
            count = windows[a].range[token].count;
        } else {
            nhood_window(axis, token % axis->length, &first, &count);
        }
        int64_t at = slot % windows[a].slots;
        if (at >= count || !has_key(problem, a, first + at * axis->dilation)) return true;
        slot /= windows[a].slots;
        row /= view->extent[VIEW_AXIS + a];
    }
    return false;
}

/* Normally distributed values; NaN in unused slots of A. */
static bool draw(const struct problem_data *given, int32_t tensor, void *image,
                 struct random *random) {
    const nhood_problem *problem = &given->problem;
    const struct view *view = &given->view[tensor];
    struct axis_windows windows[3];
    const bool slots = tensor == NHOOD_A;
    const bool listed = !slots || list_windows(problem, windows);
    for (int64_t row = 0; listed && row < view->rows; row++) {
        int64_t start = view_row(view, row);
        for (int64_t c = 0; c < view->extent[VIEW_INNER]; c++) {
            double value = random_normal(random);
            if (slots && slot_unused(problem, windows, view, row, c)) value = NAN;
            storage_store(tensor_dtype(problem, tensor), image, start + c, value);
        }
    }
    if (slots) free_windows(windows);
    return listed;
}

/* Moves a tensor between the problem's own layout and the packed f64 copy. */
enum direction { ENCODE, DECODE };

static bool transfer(struct problem_data *given, struct problem_data *truth, int32_t tensor,
                     enum direction direction) {
    const struct view *view = &given->view[tensor];
    int32_t dtype = tensor_dtype(&given->problem, tensor);
    int64_t width = view->extent[VIEW_INNER];
    double *packed = values(truth, tensor);
    if (direction != DECODE && !data_mark(given, tensor)) return false; /* NaN in every gap */
    void *image = data_image(given, tensor);
    if (!image) return false;
    for (int64_t row = 0; row < view->rows; row++) {
        int64_t start = view_row(view, row);
        for (int64_t c = 0; c < width; c++) {
            if (direction == ENCODE)
                storage_store(dtype, image, start + c, packed[row * width + c]);
            else
                packed[row * width + c] = storage_load(dtype, image, start + c);
        }
    }
    if (direction != DECODE) data_set_image(given, tensor, image);
    free(image);
    return true;
}

static bool draw_input(struct problem_data *given, int32_t tensor, struct random *random) {
    if (!data_mark(given, tensor)) return false;
    void *image = data_image(given, tensor);
    bool drawn = image && draw(given, tensor, image, random);
    if (drawn) data_set_image(given, tensor, image);
    free(image);
    return drawn;
}

static bool from_forward(const nhood_problem *problem, int32_t tensor) {
    return problem->op == NHOOD_OP_BWD && (tensor == NHOOD_O || tensor == NHOOD_LSE);
}

static int draw_inputs(struct problem_data *given, struct problem_data *truth,
                       const struct target *target, struct random *random) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        if (tensor_role(&given->problem, t) != TENSOR_INPUT || from_forward(&given->problem, t))
            continue;
        if (!draw_input(given, t, random) || !transfer(given, truth, t, DECODE))
            return EXIT_FAILURE;
    }
    if (given->problem.op != NHOOD_OP_BWD) return 0;
    int status = data_run(truth, target->context, 0, NHOOD_OP_FWD, reference);
    /* The truth keeps O and LSE as they are: rounded to f32, an LSE of 1e10 makes weights of e^600. */
    for (int32_t t = 0; !status && t < NHOOD_TENSOR_COUNT; t++)
        if (from_forward(&given->problem, t) && !transfer(given, truth, t, ENCODE))
            status = EXIT_FAILURE;
    return status;
}

/* ---- the limits ---- */

static double arithmetic_roundoff(const nhood_problem *problem) {
    return storage_roundoff(problem->dtype == NHOOD_DTYPE_F64 ? NHOOD_DTYPE_F64 : NHOOD_DTYPE_F32);
}

/* The roundoff of the factors of f32 products if these may be rounded to TF32, whose mantissa is as long as that of f16. */
static double product_roundoff(const nhood_problem *problem) {
    bool tf32 = problem->dtype == NHOOD_DTYPE_F32 && problem->flags & NHOOD_FLAG_ALLOW_TF32;
    return tf32 ? storage_roundoff(NHOOD_DTYPE_F16) : 0;
}

static double query_count(const nhood_problem *problem) {
    double count = (double)(problem->batch * problem->heads);
    for (int a = 0; a < problem->rank; a++)
        count *= (double)covered_length(problem, a, false);
    return count;
}

/* About the number of keys of a query; the backward counts them two and a half times. */
static double key_count(const nhood_problem *problem) {
    double flops = 0;
    double dims = (double)(problem->dim + (problem->dim_v ? problem->dim_v : problem->dim));
    nhood_problem_cost(problem, &flops, NULL);
    return flops / (2 * query_count(problem) * dims);
}

static double input_error(const nhood_problem *problem, int32_t tensor) {
    bool softmax = problem->op == NHOOD_OP_FWD || problem->op == NHOOD_OP_BWD;
    bool weighted = tensor == NHOOD_V || tensor == NHOOD_EXTRA_V || tensor == NHOOD_O ||
                    tensor == NHOOD_D_O || tensor == NHOOD_D_LSE;
    double dims = (double)(problem->dim + (problem->dim_v ? problem->dim_v : problem->dim));
    double error = (2 + sqrt(dims + key_count(problem))) * arithmetic_roundoff(problem) +
                   product_roundoff(problem);
    double weights = fmax(storage_roundoff(problem->dtype), product_roundoff(problem));
    return softmax && weighted ? error + weights : error;
}

/* The error of sums that changes of the inputs do not show: of the sum of weights, whose logarithm is LSE, and of sums over all
 * queries if their terms have the same sign. */
static double sum_error(const nhood_problem *problem, int32_t tensor, double sum) {
    switch (tensor) {
    case NHOOD_LSE: return sqrt(key_count(problem)) * arithmetic_roundoff(problem);
    case NHOOD_D_BIAS:
    case NHOOD_D_EXTRA_K:
    case NHOOD_D_EXTRA_V:
        return sqrt(query_count(problem)) * arithmetic_roundoff(problem) * fabs(sum);
    default: return 0;
    }
}

static void move_inputs(const struct problem_data *given, const struct problem_data *truth,
                        struct problem_data *moved, struct random *random) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        if (tensor_role(&given->problem, t) != TENSOR_INPUT) continue;
        double error = input_error(&given->problem, t);
        const double *from = values(truth, t);
        double *to = values(moved, t);
        for (int64_t i = 0; i < value_count(truth, t); i++)
            to[i] = from[i] * (random_once_in(random, 2) ? 1 + error : 1 - error);
    }
}

static void add_response(const struct problem_data *truth, const struct problem_data *moved,
                         int32_t tensor, struct response *response) {
    const double *before = values(truth, tensor), *after = values(moved, tensor);
    int64_t count = value_count(truth, tensor);
    for (int64_t i = 0; i < count; i++) {
        if (!isfinite(before[i])) continue;
        double change = fabs(after[i] - before[i]);
        response->mean_square += change * change / (double)count;
        response->largest = fmax(response->largest, change);
    }
}

static int repeats(const struct problem_data *truth) {
    int64_t fewest = ENOUGH_CHANGES;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        const int64_t values = value_count(truth, t); /* 0 in an empty batch */
        const bool output = tensor_role(&truth->problem, t) == TENSOR_OUTPUT;
        if (output && values > 0 && values < fewest) fewest = values;
    }
    int64_t count = ENOUGH_CHANGES / fewest;
    return count < MOST_REPEATS ? (int)count : MOST_REPEATS;
}

static int measure_response(struct oracle *oracle, const struct target *target,
                            const struct problem_data *given, struct random *random) {
    struct problem_data *truth = &oracle->truth, moved;
    int count = repeats(truth);
    int status = data_create(&moved, &truth->device, &truth->problem) ? 0 : EXIT_FAILURE;
    for (int i = 0; !status && i < count; i++) {
        move_inputs(given, truth, &moved, random);
        status = data_run(&moved, target->context, 0, truth->problem.op, reference);
        for (int32_t t = 0; !status && t < NHOOD_TENSOR_COUNT; t++)
            if (tensor_role(&truth->problem, t) == TENSOR_OUTPUT)
                add_response(truth, &moved, t, &oracle->response[t]);
    }
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        oracle->response[t].mean_square /= count;
    data_free(&moved);
    return status;
}

int oracle_create(struct oracle *oracle, const struct target *target, struct problem_data *given,
                  uint64_t seed) {
    *oracle = (struct oracle){.truth = {.io = {0}}};
    nhood_device_info cpu = {.struct_size = sizeof cpu};
    nhood_status failure = nhood_device_query(target->context, 0, &cpu);
    if (failure) return complain_library(failure, "device 0");
    nhood_problem exact = given->problem;
    exact.dtype = NHOOD_DTYPE_F64;
    memset(exact.strides, 0, sizeof exact.strides);
    if (!data_create(&oracle->truth, &cpu, &exact)) return EXIT_FAILURE;
    struct random random = {seed};
    int status = draw_inputs(given, &oracle->truth, target, &random);
    if (!status) status = data_run(&oracle->truth, target->context, 0, exact.op, reference);
    if (!status) status = measure_response(oracle, target, given, &random);
    return status;
}

void oracle_free(struct oracle *oracle) {
    data_free(&oracle->truth);
}

/* ---- the verdict ---- */

static double limit_at(const struct oracle *oracle, const nhood_problem *problem, int32_t tensor,
                       double expected) {
    int32_t dtype = tensor_dtype(problem, tensor);
    const struct response *response = &oracle->response[tensor];
    double change = MEAN_ERRORS * sqrt(response->mean_square) + LARGEST_ERRORS * response->largest;
    return change + MEAN_ERRORS * sum_error(problem, tensor, expected) +
           2 * storage_roundoff(dtype) * fabs(expected) + storage_smallest(dtype);
}

/* largest: number of the storage type, whose infinities stand for all finite numbers beyond it. */
static double share_of_limit(double value, double expected, double limit, double largest) {
    if (value == expected) return 0; /* infinities included */
    if (isinf(value) && isfinite(expected)) {
        value = copysign(largest, value);
        expected = fmin(fmax(expected, -largest), largest);
    }
    double error = fabs(value - expected);
    return isfinite(error) ? error / limit : INFINITY;
}

static bool compare_tensor(const struct oracle *oracle, const struct problem_data *given,
                           int32_t tensor, struct comparison *worst) {
    const struct view *view = &given->view[tensor];
    int32_t dtype = tensor_dtype(&given->problem, tensor);
    const double *expected = values(&oracle->truth, tensor);
    void *image = data_image(given, tensor);
    if (!image) return false;
    for (int64_t row = 0; row < view->rows; row++) {
        int64_t start = view_row(view, row);
        for (int64_t c = 0; c < view->extent[VIEW_INNER]; c++, expected++) {
            double value = storage_load(dtype, image, start + c);
            double limit = limit_at(oracle, &given->problem, tensor, *expected);
            double share = share_of_limit(value, *expected, limit, storage_largest(dtype));
            if (worst->tensor >= 0 && share <= worst->share) continue;
            int32_t spoiled = worst->spoiled;
            *worst = (struct comparison){tensor, row, c, value, *expected, limit, share, spoiled};
        }
    }
    free(image);
    return true;
}

int oracle_compare(const struct oracle *oracle, const struct problem_data *given,
                   struct comparison *worst) {
    *worst = (struct comparison){.tensor = -1, .spoiled = -1};
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        if (tensor_role(&given->problem, t) != TENSOR_OUTPUT) continue;
        if (!compare_tensor(oracle, given, t, worst)) return EXIT_FAILURE;
        int intact = data_intact(given, t);
        if (intact < 0) return EXIT_FAILURE;
        if (!intact) worst->spoiled = t;
    }
    return 0;
}
