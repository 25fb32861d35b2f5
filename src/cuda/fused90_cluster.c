#include "fused90_cluster.h"

int32_t nh_fused90_cluster(double multiprocessors, double items, double tiles) {
    enum { MOST = 8 }; /* that every device of compute capability 9.0 takes */
    int32_t cluster = 1;
    while (cluster < MOST && 2 * cluster * items <= multiprocessors && 2 * cluster <= tiles)
        cluster *= 2;
    return cluster;
}

int64_t nh_fused90_sums_bytes(int64_t rows, int64_t dim) {
    return rows * (dim + 8) * (int64_t)sizeof(float);
}

double nh_fused90_meeting_clocks(int64_t rows, int64_t dim) {
    const double meeting = 1500, element = 0.1;
    return meeting + element * (double)(rows * dim);
}

void nh_fused90_share(struct nh_cuda_step *step, struct nh_kernel_spec *spec, int32_t cluster) {
    if (cluster == 1) return;
    nh_kernel_define(spec, "NH_CLUSTER", cluster);
    step->cluster = cluster;
    step->grid[0] = (int64_t)step->args.tiling.items * cluster;
}
