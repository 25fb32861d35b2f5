/* What launches of cuda.fused90 and of the backward kernels share: clusters of blocks, and repair. */
#ifndef NH_LAUNCH90_H
#define NH_LAUNCH90_H

#include "launch.h"
#include "wgmma90_config.h"

/* ---- configurations ---- */

/* Begins a configuration: what the problem says of it, for shared memory and registers. */
struct wgmma90_config nh_wgmma90_config(const struct nh_problem *problem,
                                        enum wgmma90_kernel kernel);

/* Compiles a kernel with a configuration, to which what the problem says of maps and steps is added. */
void nh_wgmma90_configure(struct nh_kernel_spec *spec, const struct nh_problem *problem,
                          struct wgmma90_config config);

/* ---- clusters of blocks that share the loop of each work tile (fused90_cluster.cuh), where there are few ---- */

/* The number of blocks of a cluster, a power of two from 1 to 8: as many as find a multiprocessor each and have at
 * least one of the `tiles` key tiles of a loop. */
int32_t nh_cluster_blocks(double multiprocessors, double work_tiles, double tiles);

/* Whether there are multiprocessors for clusters of two or more; loops may still be too short for them. */
bool nh_cluster_possible(double multiprocessors, double work_tiles);

/* An estimate of the clocks in which a block writes its partial sums and adds up its share of the rows. */
double nh_cluster_reduction_clocks(int64_t rows, int64_t dim);

/* Makes clusters of so many blocks share the work tiles of a launch that is already set up; 1: leaves it alone. */
void nh_cluster_share(struct nh_cuda_step *step, int32_t cluster);

/* ---- repair of rows that are not finite because something outside their windows is not ---- */

/* Adds the launch of `source` (repair_noted.cuh), whose tensors are bound: NH_QUEUE to two words of the workspace, the
 * second of which notes that there are rows to repair. lanes: threads that share a row, with 8 elements each. */
nhood_status nh_repair_add(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step, const char *source, int64_t lanes);

#endif
