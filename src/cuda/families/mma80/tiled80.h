/* What cuda.fused80 and cuda.split80 share: tiles of rows with a loop over tiles of columns, both by threads' copies
 * and the tensor cores of sm_80. */
#ifndef NH_TILED80_H
#define NH_TILED80_H

#include "box.h"
#include "launch.h"

/* NULL, or what in the problem their kernels cannot count or hold. */
const char *nh_tiled80_refuse(const struct nh_problem *problem);

/* Head dims as they lie in shared memory: multiples of one tensor core step, 32 bytes. */
struct nh_tiled80_widths {
    int64_t element_bytes, dim, dim_v;
};
struct nh_tiled80_widths nh_tiled80_widths(const struct nh_problem *problem);

/* Shared memory of masks: words per coordinate of the columns, and ranges per coordinate of the rows. */
int64_t nh_tiled80_mask_bytes(const int32_t row[NH_AXES], const int32_t column[NH_AXES]);

/* Registers that a thread may have. */
enum { NH_TILED80_MOST_REGISTERS = 255 };

/* Blocks that share a multiprocessor, whose threads would use so many registers if they could; 0: not even one fits. */
int64_t nh_tiled80_residents(const struct nh_cuda_device *device, int64_t shared_bytes,
                             int64_t warps, int64_t registers);

/* Products of tensor cores that a warp's code for a tile of so many multiply-adds has, one by one. */
double nh_tiled80_code(const struct nh_problem *problem, double products, double warps);

#endif
