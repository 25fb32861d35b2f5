/* A NaN or infinity outside a query's window leaves its output alone, and that outside a query's or key's
 * neighborhood its gradients, for the CUDA solvers that promise it (docs/numerics.md). On the emulated GPU memory is the
 * host's, so tensors need no copies. */
#include "nhood.h"
#include "test.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

enum { CUDA_DEVICE = 1 };
static const uint16_t NAN_BITS = 0x7fc0, INFINITY_BITS = 0x7f80;

/* Elements of a tensor of rows, bf16 or f32, as the bits of a bf16: the upper half of an f32. */
static void set_bits(const nhood_problem *problem, void *tensor, int64_t at, uint16_t bits) {
    if (problem->dtype == NHOOD_DTYPE_F32) {
        ((uint32_t *)tensor)[at] = (uint32_t)bits << 16;
    } else {
        ((uint16_t *)tensor)[at] = bits;
    }
}

static float value_of(const nhood_problem *problem, const void *tensor, int64_t at) {
    if (problem->dtype == NHOOD_DTYPE_F32) return ((const float *)tensor)[at];
    uint32_t word = (uint32_t)((const uint16_t *)tensor)[at] << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* bf16 of magnitude 0.25 to 0.5. */
static uint16_t random_bits(uint64_t *state) {
    return (uint16_t)(0x3e80 + test_between(state, 0, 127) +
                      (test_between(state, 0, 1) ? 0x8000 : 0));
}

/* Tensors of a problem of one head, all random; LSE far above all scores keeps weights small. */
static void make_tensors(const nhood_problem *problem, nhood_io *io) {
    uint64_t state = 7;
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        int64_t elements = 0;
        nhood_problem_elements(problem, tensor, &elements);
        if (!elements) continue;
        io->data[tensor] = malloc((size_t)elements * sizeof(float));
        for (int64_t i = 0; i < elements; i++)
            if (tensor == NHOOD_LSE)
                ((float *)io->data[tensor])[i] = 4;
            else
                set_bits(problem, io->data[tensor], i, random_bits(&state));
    }
    free(io->data[NHOOD_D_LSE]);
    io->data[NHOOD_D_LSE] = NULL;
}

static void free_tensors(nhood_io *io) {
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        free(io->data[tensor]);
}

/* Elements of a row of a tensor. */
static int64_t width_of(const nhood_problem *problem, int tensor) {
    const bool values =
        tensor == NHOOD_V || tensor == NHOOD_O || tensor == NHOOD_D_O || tensor == NHOOD_D_V;
    return values && problem->dim_v ? problem->dim_v : problem->dim;
}

/* Runs a problem; the token `poisoned` of the tensors in the mask is not finite, none if negative. */
static void run(nhood_context *context, const char *solver, const nhood_problem *problem,
                uint32_t mask, int64_t poisoned, nhood_io *io) {
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan = NULL;
    *io = (nhood_io){.struct_size = sizeof *io};
    make_tensors(problem, io);
    for (int tensor = 0; poisoned >= 0 && tensor < NHOOD_TENSOR_COUNT; tensor++)
        for (int64_t i = 0; (mask >> tensor & 1) && i < width_of(problem, tensor); i++)
            set_bits(problem, io->data[tensor], poisoned * width_of(problem, tensor) + i,
                     i & 1 ? INFINITY_BITS : NAN_BITS);
    if (nhood_plan_create(context, CUDA_DEVICE, problem, &options, &plan)) {
        CHECK(false, "%s", nhood_last_error());
        return;
    }
    io->workspace_bytes = nhood_plan_workspace_bytes(plan);
    io->workspace = aligned_alloc(256, (io->workspace_bytes + 256) / 256 * 256);
    memset(io->workspace, 0xff, io->workspace_bytes);
    CHECK(!nhood_plan_execute(plan, io), "%s", nhood_last_error());
    free(io->workspace);
    nhood_plan_release(plan);
}

/* Positions along an axis that the tensors of keys, or of queries, have. */
static int64_t positions_of(const nhood_problem *problem, int axis, bool keys) {
    const nhood_region *region = &problem->region[axis];
    int64_t covered = keys ? region->key_length : region->query_length;
    return covered ? covered : problem->axis[axis].length;
}

/* Tokens of the tensors of keys, or of queries. */
static int64_t tokens_of(const nhood_problem *problem, bool keys) {
    int64_t tokens = 1;
    for (int axis = 0; axis < problem->rank; axis++)
        tokens *= positions_of(problem, axis, keys);
    return tokens;
}

/* Whether a query's window has a key along an axis, each at a position of its tensors. */
static bool attends_along(const nhood_problem *problem, int number, int64_t query, int64_t key) {
    const nhood_axis *axis = &problem->axis[number];
    const nhood_region *region = &problem->region[number];
    int64_t first = 0, count = 0;
    nhood_window(axis, (query + region->query_offset) % axis->length, &first, &count);
    for (int64_t n = 0; n < count; n++) {
        int64_t apart = first + n * axis->dilation - region->key_offset - key;
        if (axis->periodic ? apart % axis->length == 0 : apart == 0) return true;
    }
    return false;
}

/* Whether a query attends a key, each a token of its tensors. */
static bool attends(const nhood_problem *problem, int64_t query, int64_t key) {
    bool all = true;
    for (int axis = problem->rank - 1; axis >= 0; axis--) {
        int64_t queries = positions_of(problem, axis, false),
                keys = positions_of(problem, axis, true);
        all = all && attends_along(problem, axis, query % queries, key % keys);
        query /= queries;
        key /= keys;
    }
    return all;
}

/* Tokens of an output that have to do with the poisoned one (reached[token]) are not finite, all others as they are
 * without poison. A row made again may round another way: a unit in the last place, below 1 up to 2^-8. */
static void check_output(const char *what, const nhood_problem *problem, const bool *reached,
                         const nhood_io *clean, const nhood_io *dirty, int tensor) {
    const void *with = dirty->data[tensor], *without = clean->data[tensor];
    const bool of_keys = tensor == NHOOD_D_K || tensor == NHOOD_D_V;
    const int64_t width = width_of(problem, tensor);
    for (int64_t token = 0; token < tokens_of(problem, of_keys); token++) {
        int64_t good = 0;
        for (int64_t i = token * width; i < (token + 1) * width; i++)
            good += fabsf(value_of(problem, with, i) - value_of(problem, without, i)) <= 0x1p-8f;
        CHECK(reached[token] ? good == 0 : good == width,
              "%s: tensor %d, token %lld: %lld elements as without poison", what, tensor,
              (long long)token, (long long)good);
    }
}

/* Entries of the bias's gradient for pairs with the poisoned token are not finite, the others close to what they are
 * without poison. */
static void check_bias(const char *what, const nhood_problem *problem, bool of_key,
                       int64_t poisoned, const nhood_io *clean, const nhood_io *dirty) {
    const nhood_axis *axis = problem->axis;
    const void *with = dirty->data[NHOOD_D_BIAS], *without = clean->data[NHOOD_D_BIAS];
    for (int64_t entry = 0; entry < 2 * axis->window - 1; entry++) {
        int64_t distance = entry - axis->window + 1;
        int64_t query = of_key ? poisoned - distance : poisoned;
        int64_t key = of_key ? poisoned : poisoned + distance;
        bool reached = query >= 0 && query < axis->length && attends(problem, query, key);
        float difference =
            fabsf(value_of(problem, with, entry) - value_of(problem, without, entry));
        CHECK(reached ? !(difference < INFINITY) : difference <= 0x1p-6f,
              "%s: bias entry %lld differs by %g", what, (long long)entry, (double)difference);
    }
}

/* Poisoned are K and V of a key, which are in O or dQ of the queries that attend it and in its own dK and dV, or Q and dO of
 * a query, which are in its own dQ and in dK and dV of its keys. */
static void nan_stays_outside(nhood_context *context, const char *solver, const char *text,
                              bool of_key, int64_t poisoned) {
    enum { MOST_TOKENS = 1600 };
    bool query[MOST_TOKENS] = {false}, key[MOST_TOKENS] = {false};
    char what[200];
    nhood_problem problem;
    nhood_io clean, dirty;
    snprintf(what, sizeof what, "%s, %s, poisoned %s %lld", solver, text, of_key ? "key" : "query",
             (long long)poisoned);
    CHECK(!nhood_problem_parse(text, &problem), "%s", nhood_last_error());
    bool forward = problem.op == NHOOD_OP_FWD;
    uint32_t mask = of_key ? 1u << NHOOD_K | 1u << NHOOD_V : 1u << NHOOD_Q | 1u << NHOOD_D_O;
    run(context, solver, &problem, mask, -1, &clean);
    run(context, solver, &problem, mask, poisoned, &dirty);
    for (int64_t token = 0; token < tokens_of(&problem, false); token++)
        query[token] = of_key ? attends(&problem, token, poisoned) : token == poisoned;
    for (int64_t token = 0; token < tokens_of(&problem, true); token++)
        key[token] = of_key ? token == poisoned : attends(&problem, poisoned, token);
    if (forward) {
        check_output(what, &problem, query, &clean, &dirty, NHOOD_O);
    } else {
        check_output(what, &problem, query, &clean, &dirty, NHOOD_D_Q);
        check_output(what, &problem, key, &clean, &dirty, NHOOD_D_K);
        check_output(what, &problem, key, &clean, &dirty, NHOOD_D_V);
        if (problem.has_bias) check_bias(what, &problem, of_key, poisoned, &clean, &dirty);
    }
    free_tensors(&clean);
    free_tensors(&dirty);
}

/* Wisdom by which a solver takes a problem with another value of a knob. The last such wisdom counts. */
static void prefer(nhood_context *context, const char *solver, const char *text, const char *knob,
                   const char *value) {
    static int ns = 1000;
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_device_info device = {.struct_size = sizeof device};
    nhood_problem problem;
    nhood_plan *plan = NULL;
    char wisdom[1000], knobs[300] = "", wanted[100];
    CHECK(!nhood_problem_parse(text, &problem) &&
              !nhood_device_query(context, CUDA_DEVICE, &device) &&
              !nhood_plan_create(context, CUDA_DEVICE, &problem, &options, &plan),
          "%s", nhood_last_error());
    const char *described = plan ? strstr(nhood_plan_description(plan), solver) : NULL;
    if (described) sscanf(described + strlen(solver) + 1, "%299[^ ]", knobs);
    char *place = strstr(knobs, knob);
    CHECK(place, "%s: %s: no %s", text, knobs, knob);
    nhood_plan_release(plan);
    if (!place) return;
    const char *rest = place + strlen(knob);
    for (const char *c = value; c; c = strchr(c + 1, ',')) /* as many knobs as the value has */
        rest += *rest == ',' ? 1 + strcspn(rest + 1, ",") : strcspn(rest, ",");
    for (char *c = device.description; *c; c++)
        if (*c == ' ') *c = '_';
    snprintf(wanted, sizeof wanted, "%s%s,", knob, value);
    /* after the last knob, too, there is a comma */
    snprintf(wisdom, sizeof wisdom, "nhood-wisdom 1\n%s %s %s %.*s%s%s", device.description, text,
             solver, (int)(place - knobs), knobs, wanted, *rest ? rest + 1 : "");
    snprintf(strrchr(wisdom, ','), 20, " %d 7\n", ns--);
    CHECK(!nhood_wisdom_import(context, wisdom, NULL), "%s", nhood_last_error());
    CHECK(!nhood_plan_create(context, CUDA_DEVICE, &problem, &options, &plan), "%s",
          nhood_last_error());
    CHECK(strstr(nhood_plan_description(plan), wanted), "%s: %s", wanted,
          nhood_plan_description(plan));
    nhood_plan_release(plan);
}

/* Where threads copy tensors of columns, which lie side by side in shared memory, and take turns there. */
static void check_small(nhood_context *context, const char *const *texts, int count,
                        int64_t poisoned) {
    for (int i = 0; i < 2 * count; i++) {
        const char *text = texts[i / 2];
        const bool is_backward = text[0] == 'b';
        prefer(context, "cuda.small", text,
               ",pipeline=", i % 2 ? "turns,stages=0" : "copies,stages=0");
        if (is_backward)
            prefer(context, "cuda.small", text,
                   ",dkv_pipeline=", i % 2 ? "turns,dkv_stages=0" : "copies,dkv_stages=0");
        for (int of_key = !is_backward; of_key < 2; of_key++)
            nan_stays_outside(context, "cuda.small", text, of_key, poisoned);
    }
}

/* Parts of a grid, with queries that see no key, and circles. */
static void check_regions(nhood_context *context) {
    static const char *const part = ":bf16:b1h1d32:90:w20:d2:q30+60:k4+40";
    static const char *const circle = ":bf16:b1h1d32:80:w9:s2:p1:q70+60:k3+80";
    /* whose length a tile of 64 queries divides */
    static const char *const near_circle = "bwd:bf16:b1h1d32:64:w9:s2:p1:q50+64:k3+64";
    for (int i = 0; i < 2; i++) {
        char forward[80], backward[80];
        snprintf(forward, sizeof forward, "fwd%s", i ? circle : part);
        snprintf(backward, sizeof backward, "bwd%s", i ? circle : part);
        nan_stays_outside(context, "cuda.fused80", forward, true, 29);
        nan_stays_outside(context, "cuda.naive", forward, true, 29);
        nan_stays_outside(context, "cuda.small", forward, true, 29);
        for (int again = 0; again < 2; again++) {
            prefer(context, "cuda.fused90", forward, ",repair_apart=", again ? "1" : "0");
            nan_stays_outside(context, "cuda.fused90", forward, true, 29);
        }
        for (int of_key = 0; of_key < 2; of_key++) {
            nan_stays_outside(context, "cuda.split80", backward, of_key, 9);
            nan_stays_outside(context, "cuda.split90", backward, of_key, 9);
            nan_stays_outside(context, "cuda.joint90", i ? near_circle : backward, of_key, 9);
            nan_stays_outside(context, "cuda.small", backward, of_key, 9);
            nan_stays_outside(context, "cuda.naive", backward, of_key, 9);
        }
    }
}

/* More work tiles than blocks, of a part of a grid: those that a queue hands out (repair_apart 1) give what fixed shares do. */
static void check_queue(nhood_context *context) {
    static const char *const text = "fwd:bf16:b1h1d256:700:w30:q50+640:k4+680";
    nhood_problem problem;
    nhood_io io[2];
    CHECK(!nhood_problem_parse(text, &problem), "%s", nhood_last_error());
    for (int again = 0; again < 2; again++) {
        if (again)
            prefer(context, "cuda.fused90", text, ",repair_apart=", "1"); /* else too short */
        run(context, "cuda.fused90", &problem, 0, -1, &io[again]);
    }
    const int64_t count = tokens_of(&problem, false) * problem.dim;
    CHECK(!memcmp(io[0].data[NHOOD_O], io[1].data[NHOOD_O], 2 * (size_t)count),
          "%s: a queue gives other outputs", text);
    for (int again = 0; again < 2; again++)
        free_tensors(&io[again]);
}

/* The config that a solver chooses for a problem has these two knobs. */
static void check_chosen(nhood_context *context, const char *solver, const char *text,
                         const char *knob, const char *other_knob) {
    const nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_problem problem;
    nhood_plan *plan = NULL;
    CHECK(!nhood_problem_parse(text, &problem) &&
              !nhood_plan_create(context, CUDA_DEVICE, &problem, &options, &plan),
          "%s", nhood_last_error());
    const char *chosen = plan ? nhood_plan_description(plan) : "";
    CHECK(strstr(chosen, knob) && strstr(chosen, other_knob), "not %s and %s: %s", knob, other_knob,
          chosen);
    nhood_plan_release(plan);
}

/* Planes that roll in the backward of a volume, and are overwritten once warps have passed them. In bf16 a chunk of
 * columns is a plane, in f32 all columns of a box make chunks. */
static void check_planes(nhood_context *context) {
    static const char *const texts[] = {"bwd:bf16:b1h1d32:16x8x12:w3x5x5",
                                        "bwd:f32:b1h1d32:16x8x12:w3x3x3"};
    for (int i = 0; i < 2; i++) {
        check_chosen(context, "cuda.small", texts[i], " query_tile=1x", ",dkv_key_tile=1x");
        for (int of_key = 0; of_key < 2; of_key++)
            for (int64_t poisoned = 700; poisoned < 1300; poisoned += 500)
                nan_stays_outside(context, "cuda.small", texts[i], of_key, poisoned);
    }
}

/* Scores that a step of the product masks, in volumes and images: a NaN in a key makes those of all rows of the work tile
 * NaN. */
static void check_mask_step(nhood_context *context) {
    static const char *const volume = "fwd:bf16:b1h1d32:12x11x12:w7x7x7",
                             *const image = "fwd:bf16:b1h1d32:45x30:w11x11";
    check_chosen(context, "cuda.fused90", volume, ",key_box=1x10x10,", ",boxes_per_tile=1,");
    nan_stays_outside(context, "cuda.fused90", volume, true, 700);
    check_chosen(context, "cuda.fused90", image, ",key_box=1x4x18,", ",boxes_per_tile=1,");
    nan_stays_outside(context, "cuda.fused90", image, true, 700);
}

/* Values in parts of their columns: each part repairs its own. */
static void check_wide(nhood_context *context) {
    static const char *const forward = "fwd:bf16:b1h1d32v272:60:w9",
                             *const backward = "bwd:bf16:b1h1d32v272:60:w9";
    nan_stays_outside(context, "cuda.fused80", forward, true, 29);
    for (int again = 0; again < 2; again++) {
        prefer(context, "cuda.fused90", forward, ",repair_apart=", again ? "1" : "0");
        nan_stays_outside(context, "cuda.fused90", forward, true, 29);
    }
    for (int of_key = 0; of_key < 2; of_key++) {
        nan_stays_outside(context, "cuda.split80", backward, of_key, 29);
        nan_stays_outside(context, "cuda.split90", backward, of_key, 29);
    }
}

/* With the argument "wide": wide values alone. With the argument "planes": those alone, which take more than one work tile only on a device of few
 * multiprocessors. */
int main(int count, char **argument) {
    static const char *const long_calls[] = {"fwd:bf16:b1h1d32:70:w9:rpb",
                                             "fwd:bf16:b1h1d32:60:w8:c1"};
    static const char *const in_turns[] = {"fwd:f32:b1h1d128:70:w9:rpb", "fwd:f32:b1h1d64:60:w8:c1",
                                           "bwd:f32:b1h1d128:70:w9", "bwd:f32:b1h1d64:60:w8:c1"};
    static const char *const in_turns_of_regions[] = {"fwd:f32:b1h1d64:90:w9:q30+60:k4+40",
                                                      "bwd:f32:b1h1d64:80:w9:p1:q70+80:k3+80"};
    static const char *const forward[] = {"cuda.small",   "cuda.short",   "cuda.short90",
                                          "cuda.fused80", "cuda.fused90", "cuda.naive"};
    static const char *const backward[] = {"cuda.small",   "cuda.short",   "cuda.split80",
                                           "cuda.split90", "cuda.joint90", "cuda.naive"};
    nhood_context *context = NULL;
    if (nhood_context_create(NULL, &context)) {
        printf("%s\n", nhood_last_error());
        return EXIT_FAILURE;
    }
    if (count > 1) {
        if (!strcmp(argument[1], "wide")) {
            check_wide(context);
        } else {
            check_planes(context);
            check_mask_step(context);
        }
        nhood_context_destroy(context);
        return test_result();
    }
    for (int64_t poisoned = 0; poisoned < 60; poisoned += 29) {
        for (size_t i = 0; i < sizeof forward / sizeof *forward; i++) {
            const bool biased = !strstr(forward[i], "cuda.short");
            nan_stays_outside(context, forward[i],
                              biased ? "fwd:bf16:b1h1d32:70:w9:rpb" : "fwd:bf16:b1h1d32:70:w9",
                              true, poisoned);
            nan_stays_outside(context, forward[i], "fwd:bf16:b1h1d32:60:w8:c1", true, poisoned);
            nan_stays_outside(context, forward[i], "fwd:bf16:b1h1d32:60:w6:s4:d3", true, poisoned);
        }
        for (size_t i = 0; i < 2 * sizeof backward / sizeof *backward; i++) {
            const char *solver = backward[i / 2];
            bool biased = strcmp(solver, "cuda.joint90") != 0 && !strstr(solver, "cuda.short");
            bool of_key = i % 2;
            nan_stays_outside(context, solver,
                              biased ? "bwd:bf16:b1h1d32:70:w9:rpb" : "bwd:bf16:b1h1d32:70:w9",
                              of_key, poisoned);
            nan_stays_outside(context, solver, "bwd:bf16:b1h1d32:60:w8:c1", of_key, poisoned);
        }
    }
    nan_stays_outside(context, "cuda.small", "fwd:f32:b1h1d32:70:w9:rpb", true, 29);
    nan_stays_outside(context, "cuda.small", "fwd:f32:b1h1d64:60:w6:s4:d3", true, 29);
    nan_stays_outside(context, "cuda.short", "fwd:f32:b1h1d64:60:w6:s4:d3", true, 29);
    for (int of_key = 0; of_key < 2; of_key++) {
        nan_stays_outside(context, "cuda.small", "bwd:f32:b1h1d32:60:w8:c1", of_key, 29);
        nan_stays_outside(context, "cuda.small", "bwd:f32:b1h1d64:70:w9:rpb", of_key, 29);
        nan_stays_outside(context, "cuda.short", "bwd:f32:b1h1d64:60:w6:s4:d3", of_key, 29);
    }
    nan_stays_outside(context, "cuda.split80", "bwd:bf16:b1h1d32:60:w6:s4:d3:x20", false, 29);
    nan_stays_outside(context, "cuda.split90", "bwd:bf16:b1h1d32:60:w6:s4:d3:x20", false, 29);
    nan_stays_outside(context, "cuda.joint90", "bwd:bf16:b1h1d32:60:w6:s4:d3", true, 29);
    /* by blocks that share a work tile */
    nan_stays_outside(context, "cuda.fused90", "fwd:bf16:b1h1d32:96:w60", true, 29);
    for (int of_key = 0; of_key < 2; of_key++)
        nan_stays_outside(context, "cuda.split90", "bwd:bf16:b1h1d32:96:w60", of_key, 29);
    for (size_t i = 0; i < sizeof long_calls / sizeof *long_calls; i++) {
        prefer(context, "cuda.fused90", long_calls[i], ",repair_apart=", "1");
        nan_stays_outside(context, "cuda.fused90", long_calls[i], true, 29);
    }
    check_queue(context);
    check_small(context, in_turns, 4, 29);
    check_regions(context);
    check_small(context, in_turns_of_regions, 2, 9);
    nhood_context_destroy(context);
    return test_result();
}
