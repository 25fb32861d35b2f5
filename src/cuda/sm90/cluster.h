/* Clusters of blocks that share the KV loop of each work tile (fused90_cluster.cuh), where a launch has fewer work
 * tiles than the device has multiprocessors. */
#ifndef NH_CLUSTER_H
#define NH_CLUSTER_H

#include "launch.h"

/* Blocks of a cluster: as many as find a multiprocessor each and have a tile or more of a loop, 1 to 8. */
int32_t nh_cluster_blocks(double multiprocessors, double work_tiles, double tiles);

/* Whether clusters of two or more are to be had, if loops are long enough. */
bool nh_cluster_possible(double multiprocessors, double work_tiles);

/* What the sums of a block take of its shared memory, in place of its tiles. */
int64_t nh_cluster_sums_bytes(int64_t rows, int64_t dim);

/* Clocks in which a block lays down its sums and adds up its share of the rows. */
double nh_cluster_reduction_clocks(int64_t rows, int64_t dim);

/* Has clusters of so many blocks take the work tiles of a launch that is set up. */
void nh_cluster_share(struct nh_cuda_step *step, struct nh_kernel_spec *spec, int32_t cluster);

#endif
