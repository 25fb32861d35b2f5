#include "work.h"

#include <string.h>

void nh_work_start(struct nh_work *work, enum nh_operation_kind operation,
                   const struct nh_problem *problem) {
    /* The launches are cleared when they are added, as searches start thousands of works. */
    work->operation = operation;
    work->overlaps = false;
    work->launches = work->helpers = 0;
    work->bytes = problem->bytes;
    work->helper_bytes = 0;
}

struct nh_launch_work *nh_work_add(struct nh_work *work, enum nh_kernel_kind kernel) {
    struct nh_launch_work *launch = &work->launch[work->launches++];
    memset(launch, 0, sizeof *launch);
    launch->kernel = kernel;
    launch->residents = launch->in_flight = launch->warps = launch->steps = launch->longest = 1;
    launch->serial = launch->unit[NH_WORK_BLOCK] = 1;
    return launch;
}
