/* What cuda.fused80 and cuda.split80 share: tiles of rows with a loop over tiles of columns, with copies by threads and
 * the tensor core instructions of sm_80. */
#ifndef NH_TILED80_H
#define NH_TILED80_H

#include "tile_count.h"
#include "launch.h"

/* NULL, or why their kernels do not take the problem. */
const char *nh_tiled80_refuse(const struct nh_problem *problem);

/* Head dims in shared memory: rounded up to one tensor core step, 32 bytes. */
struct nh_tiled80_widths {
    int64_t element_bytes, dim, dim_v;
};
struct nh_tiled80_widths nh_tiled80_widths(const struct nh_problem *problem);

/* Bytes of shared memory for masks: words per coordinate of the columns, and ranges per coordinate of the rows. */
int64_t nh_tiled80_mask_bytes(const int32_t row[NH_AXES], const int32_t column[NH_AXES]);

/* The most registers that a thread can have. */
enum { NH_TILED80_MOST_REGISTERS = 255 };

/* Blocks that are resident on a multiprocessor if their threads want that many registers (threads that get fewer
 * spill); 0: not even one fits. */
int64_t nh_tiled80_residents(const struct nh_cuda_device *device, int64_t shared_bytes,
                             int64_t warps, int64_t registers);

/* The number of tensor core instructions in a warp's code for a tile with `products` multiply-adds. */
double nh_tiled80_code(const struct nh_problem *problem, double products, double warps);

#endif
