/* Clusters of blocks that share the KV loop of each work tile (fused90_cluster.cuh), where a launch has fewer work
 * tiles than the device has multiprocessors. */
#ifndef NH_CLUSTER_H
#define NH_CLUSTER_H

#include "launch.h"

/* The number of blocks of a cluster, a power of two from 1 to 8: as many as find a multiprocessor each and have at
 * least one of the `tiles` key tiles of a loop. */
int32_t nh_cluster_blocks(double multiprocessors, double work_tiles, double tiles);

/* Whether there are multiprocessors for clusters of two or more; loops may still be too short for them. */
bool nh_cluster_possible(double multiprocessors, double work_tiles);

/* Bytes of shared memory for the partial sums of a block. They reuse the memory of its tiles. */
int64_t nh_cluster_sums_bytes(int64_t rows, int64_t dim);

/* An estimate of the clocks in which a block writes its partial sums and adds up its share of the rows. */
double nh_cluster_reduction_clocks(int64_t rows, int64_t dim);

/* Makes clusters of so many blocks share the work tiles of a launch that is already set up; 1: leaves it alone. */
void nh_cluster_share(struct nh_cuda_step *step, struct nh_kernel_spec *spec, int32_t cluster);

#endif
