/* Properties of the model that no fit may break: more work never takes less time, launches that overlap never more than
 * one after the other, and the last wave of blocks is felt. */
#include "device_spec.h"
#include "predict.h"
#include "rates.h"
#include "test.h"

#include <math.h>

static double predict(const struct nh_cuda_device *device, enum nh_kernel_kind kernel,
                      double blocks, double clocks, bool overlaps, int launches) {
    struct nh_problem problem = {.bytes = 1e6};
    struct nh_work work;
    nh_work_start(&work, NH_OPERATION_SPLIT80, &problem);
    work.overlaps = overlaps;
    for (int i = 0; i < launches; i++) {
        struct nh_launch_work *launch = nh_work_add(&work, kernel);
        launch->blocks = blocks;
        launch->residents = launch->in_flight = 2;
        launch->warps = 4;
        launch->steps = 3;
        for (int unit = 0; unit < NH_WORK_UNITS; unit++)
            launch->unit[unit] = clocks;
    }
    return nh_predict(device, &work, NULL);
}

static void check_kernel(const struct nh_cuda_device *device, enum nh_kernel_kind kernel) {
    double last = 0;
    for (double blocks = 1; blocks < 1e6; blocks *= 3) {
        double ns = predict(device, kernel, blocks, 1000, false, 1);
        CHECK(isfinite(ns) && ns >= last, "kernel %d, %g blocks: %g ns after %g", kernel, blocks,
              ns, last);
        CHECK(predict(device, kernel, blocks, 1100, false, 1) > ns,
              "kernel %d, %g blocks: more work takes no more time", kernel, blocks);
        double apart = predict(device, kernel, blocks, 1000, false, 2),
               together = predict(device, kernel, blocks, 1000, true, 2);
        CHECK(together <= apart && together >= ns,
              "kernel %d, %g blocks: %g ns side by side, %g one after the other", kernel, blocks,
              together, apart);
        last = ns;
    }
    double full = predict(device, kernel, 10.0 * device->multiprocessors, 1000, false, 1);
    double more = predict(device, kernel, 10.0 * device->multiprocessors + 1, 1000, false, 1);
    CHECK(more > full * 1.003, "kernel %d: one block more than ten waves takes %g ns, ten %g",
          kernel, more, full);
}

/* Blocks that have nothing else to do take no less than their work at the device's rate. */
static void check_bound(const struct nh_cuda_device *device, enum nh_kernel_kind kernel) {
    struct nh_problem problem = {.bytes = 0};
    struct nh_work work;
    nh_work_start(&work, NH_OPERATION_FUSED80, &problem);
    struct nh_launch_work *launch = nh_work_add(&work, kernel);
    launch->blocks = 5000;
    launch->unit[NH_WORK_TENSOR] = 2000;
    double least =
        launch->blocks * nh_predict_block_clocks(device, launch) / nh_predict_clocks_per_ns(device);
    double ns = nh_predict(device, &work, NULL);
    CHECK(ns >= least, "kernel %d: %g ns, less than the %g of its blocks", kernel, ns, least);
}

static double blocks_of_group;

static bool work_of_group(const struct nh_problem *problem, const struct nh_device *device,
                          const struct nh_config *config, struct nh_work *work) {
    (void)device;
    (void)config;
    nh_work_start(work, NH_OPERATION_FUSED90, problem);
    struct nh_launch_work *launch = nh_work_add(work, NH_KERNEL_FUSED90);
    launch->blocks = blocks_of_group;
    launch->unit[NH_WORK_TENSOR] = 2000;
    return true;
}

/* A group takes no less than one problem of as much work, and more members no less than few. */
static void check_members(const struct nh_device *device) {
    const struct nh_solver solver = {.work = work_of_group};
    const struct nh_problem problem = {.bytes = 1e6};
    const struct nh_config config = {{0}};
    struct nh_device grouped = *device;
    for (blocks_of_group = 2; blocks_of_group < 1e6; blocks_of_group *= 4) {
        double last = 0;
        for (grouped.members = 0; grouped.members < 1000;
             grouped.members = 3 * grouped.members + 1) {
            const double ns = nh_estimate(&solver, &problem, &grouped, &config, NULL);
            CHECK(isfinite(ns) && ns >= last, "%g blocks, %g members: %g ns after %g",
                  blocks_of_group, grouped.members, ns, last);
            last = ns;
        }
    }
}

int main(void) {
    const struct nh_host host = {0};
    struct nh_device device[NH_MOST_DESCRIBED];
    int32_t described;
    nhood_status status = nh_cuda_describe("h200", &host, device, &described);
    CHECK(!status, "%s", nhood_last_error());
    if (status) return test_result();
    for (enum nh_kernel_kind kernel = 0; kernel < NH_KERNEL_KINDS; kernel++) {
        check_kernel(device[0].backend, kernel);
        check_bound(device[0].backend, kernel);
    }
    check_members(&device[0]);
    return test_result();
}
