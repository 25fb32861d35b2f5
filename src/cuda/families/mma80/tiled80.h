/* The kernels of cuda.fused80 and cuda.split80: blocks own a tile of rows and loop over tiles of columns, with copies
 * by threads and the tensor core instructions of sm_80. */
#ifndef NH_TILED80_H
#define NH_TILED80_H

#include "tile_count.h"
#include "box_search.h"
#include "launch.h"
#include "mma80_config.h"

/* Indices of a kernel's knobs: extents of its row tile, extents of its column tile, warps. */
enum { NH_TILED80_ROW, NH_TILED80_COLUMN = 3, NH_TILED80_WARPS = 6, NH_TILED80_KNOBS };

/* A kernel for a problem and device. What only its launch needs to know, nh_tiled80_step adds to the configuration. apart:
 * blocks own keys, and it makes only one of their two sums, as other kernels make the other. */
struct nh_tiled80_kernel {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    struct mma80_config config;
    bool apart;
};

struct nh_tiled80_kernel nh_tiled80_kernel(const struct nh_problem *problem,
                                           const struct nh_cuda_device *cuda, enum mma80_pass pass,
                                           const int32_t knob[NH_TILED80_KNOBS], int32_t stages);

/* Sets the knobs to those of a choice. */
void nh_tiled80_set_knobs(const struct nh_box_choice *choice, int32_t knob[NH_TILED80_KNOBS]);

/* NULL, or why the kernels do not take the problem. */
const char *nh_tiled80_refuse(const struct nh_problem *problem);

/* The number of a kernel's launches: 2 if dK and dV have one each, because registers do not hold both. */
int nh_tiled80_launches(const struct nh_tiled80_kernel *kernel);

/* Blocks resident on a multiprocessor; threads that get fewer registers than they want spill. 0: not one block fits. */
int64_t nh_tiled80_residents(const struct nh_tiled80_kernel *kernel);

/* The number of row tiles of one head, over the whole batch; not for extra tokens. */
int64_t nh_tiled80_head_tiles(const struct nh_tiled80_kernel *kernel);

/* Adds the work of the kernel's launches with these counts per batch entry and head. False: blocks do not fit. */
bool nh_tiled80_add_work(const struct nh_tiled80_kernel *kernel,
                         const struct nh_tiling_count *count, struct nh_work *work);

/* Sets up the kernel's launch, whose blocks have a row tile each, and what the kernel is compiled with. */
void nh_tiled80_step(const struct nh_tiled80_kernel *kernel, struct nh_cuda_step *step,
                     struct nh_kernel_spec *spec);

#endif
