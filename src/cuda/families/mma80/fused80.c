/* cuda.fused80: softmax(Q K^T) V in one kernel on tensor cores, for sm_80 and later. A block owns a box of queries of
 * one dilation group and streams the box of keys that they attend, their halo, through shared memory:
 * fused80_forward.cu. Query and key boxes are chosen per problem by counting the tile pairs that each choice visits. No
 * head dims above 256, no value dims above 1,024, no f64. */
#include "cuda_family.h"
#include "tiled80.h"
#include "value_parts.h"

enum { MOST_CANDIDATES = 6 };
#define NH_KNOBS "fused80_knobs.def"
#include "knob_table.h"

static const char *refuse(const struct nh_problem *problem, const struct nh_device *device) {
    (void)device;
    if (problem->op != NHOOD_OP_FWD) return "only the forward pass";
    return nh_tiled80_refuse(problem);
}

static struct nh_tiled80_kernel kernel_of(const struct nh_problem *problem,
                                          const struct nh_cuda_device *cuda, const int32_t *value) {
    return nh_tiled80_kernel(problem, cuda, MMA80_FORWARD, value + Q0, value[STAGES]);
}

static bool work_of(const struct nh_problem *problem, const struct nh_device *device,
                    const struct nh_config *config, const struct nh_tiling_count *count,
                    struct nh_work *work) {
    nh_work_start(work, NH_OPERATION_FUSED80, problem);
    for (int part = 0; part < nh_value_parts(problem); part++) {
        struct nh_problem room;
        const struct nh_tiled80_kernel kernel =
            kernel_of(nh_value_part(problem, part, &room), device->backend, config->value);
        if (!nh_tiled80_add_work(&kernel, count, work)) return false;
    }
    return true;
}

static bool work(const struct nh_problem *problem, const struct nh_device *device,
                 const struct nh_config *config, struct nh_work *work) {
    const struct nh_tiling_count count = nh_tiling_count(
        problem, config->value + Q0, config->value + Q0, config->value + K0, false, false);
    return work_of(problem, device, config, &count, work);
}

/* ---- candidates ---- */

static const struct nh_box_variant variants[] = {{32, 32, 2, 1},   {64, 64, 2, 2}, {64, 32, 4, 1},
                                                 {128, 64, 4, 2},  {64, 64, 4, 1}, {128, 64, 4, 1},
                                                 {128, 128, 4, 2}, {64, 64, 4, 2}};

static struct nh_config config_of(const struct nh_box_choice *choice) {
    struct nh_config config = {{0}};
    nh_tiled80_set_knobs(choice, config.value + Q0);
    config.value[STAGES] = choice->variant->stages;
    return config;
}

static bool choice_work(const struct nh_box_search *search, const struct nh_box_choice *choice,
                        struct nh_work *work) {
    const struct nh_config config = config_of(choice);
    return work_of(search->problem, search->device, &config, &choice->count, work);
}

static int candidates(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity) {
    const struct nh_box_search search = {.problem = problem,
                                         .variant = variants,
                                         .variants = sizeof variants / sizeof *variants,
                                         .work = choice_work,
                                         .device = device};
    struct nh_box_choice best[MOST_CANDIDATES];
    int count = nh_box_search(&search, best, (int)nh_min(capacity, MOST_CANDIDATES));
    for (int i = 0; i < count; i++)
        config[i] = config_of(&best[i]);
    return count;
}

/* ---- plan ---- */

static nhood_status add_part(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             const struct nh_config *config, int part) {
    struct nh_problem room;
    const struct nh_tiled80_kernel kernel =
        kernel_of(nh_value_part(problem, part, &room), operation->device, config->value);
    struct nh_kernel_spec spec = {.source = "fused80_forward.cu"};
    struct nh_cuda_step step;
    nh_tiled80_step(&kernel, &step, &spec);
    nh_value_part_bind(&step, problem, part);
    if (part) step.binding[NH_LSE].from = NH_BIND_NONE; /* the first part stores it */
    return nh_cuda_step_add(operation, &step, &spec);
}

static nhood_status add_steps(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config) {
    nhood_status status = NHOOD_OK;
    for (int part = 0; !status && part < nh_value_parts(problem); part++)
        status = add_part(operation, problem, config, part);
    return status;
}

const struct nh_solver nh_solver_cuda_fused80 = {
    NH_CUDA_SOLVER("cuda.fused80", knobs, refuse, candidates, work, add_steps),
    .view = nh_attended_keys,
    .takes = NH_TAKES_PARTS | NH_TAKES_PERIODIC | NH_TAKES_TABLES,
    .left_to = "cuda.fused90",
};
