/* The launches before and after one that notes rows to repair. */
#include "repair.h"

void nh_repair_bind(struct nh_cuda_step *step, size_t words) {
    step->binding[NH_QUEUE] =
        (struct nh_cuda_binding){.from = NH_BIND_WORKSPACE, .offset_bytes = words};
}

nhood_status nh_repair_add_clear(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem, size_t words) {
    struct nh_kernel_spec spec = {.source = "repair_clear.cu"};
    struct nh_cuda_step step;
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_cuda_step_init(&step, problem);
    nh_repair_bind(&step, words);
    step.threads = 32;
    return nh_cuda_step_add(operation, &step, &spec);
}

nhood_status nh_repair_add(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step, const char *source, int64_t lanes) {
    enum { THREADS = 128, BLOCKS_PER_MULTIPROCESSOR = 4 };
    struct nh_kernel_spec spec = {.source = source};
    nh_kernel_define(&spec, "NH_DTYPE", problem->dtype);
    nh_kernel_define(&spec, "NH_GROUP", lanes);
    nh_kernel_define(&spec, "NH_EXTRA", problem->extra_tokens > 0);
    nh_kernel_define(&spec, "NH_BIASED", problem->has_bias);
    step->overlaps = true;
    step->threads = THREADS;
    step->grid[0] = BLOCKS_PER_MULTIPROCESSOR * operation->device->multiprocessors;
    return nh_cuda_step_add(operation, step, &spec);
}
