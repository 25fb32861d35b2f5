#include "work.h"

#include "dtype.h"

#include <string.h>

/* The launch that stores zeros as gradients of keys that are left out. */
static void add_clear_keys(struct nh_work *work, const struct nh_problem *problem) {
    double keys = 1;
    for (int a = 0; a < NH_AXES; a++)
        keys *= (double)problem->axis[a].key_tensor.length;
    double elements =
        (double)(problem->batch * problem->kv_heads * (problem->dim + problem->dim_v));
    work->helpers++;
    work->helper_bytes +=
        (keys - (double)problem->key_tokens) * elements * (double)nh_dtype_bytes(problem->dtype);
}

void nh_work_start(struct nh_work *work, enum nh_operation_kind operation,
                   const struct nh_problem *problem) {
    /* The launches are cleared when they are added, as searches start thousands of works. */
    work->operation = operation;
    work->overlaps = false;
    work->launches = work->helpers = 0;
    work->bytes = problem->bytes;
    work->helper_bytes = 0;
    if (problem->op == NHOOD_OP_BWD && nh_leaves_out_keys(problem)) add_clear_keys(work, problem);
}

struct nh_launch_work *nh_work_add(struct nh_work *work, enum nh_kernel_kind kernel) {
    struct nh_launch_work *launch = &work->launch[work->launches++];
    memset(launch, 0, sizeof *launch);
    launch->kernel = kernel;
    launch->residents = launch->in_flight = launch->warps = launch->steps = launch->longest = 1;
    launch->serial = launch->unit[NH_WORK_BLOCK] = 1;
    return launch;
}
