/* A CUDA plan's operation: a few kernel launches in a fixed order, with everything but the pointers known. */
#ifndef NH_LAUNCH_H
#define NH_LAUNCH_H

#include "kernel_abi.h"
#include "kernel_cache.h"

#include <assert.h>

enum { NH_CUDA_STEPS = 12, NH_CUDA_MAPS = 21, NH_CUDA_ALIGNMENT = 16, NH_OWN_ARGS_WORDS = 8 };

/* A family's own part of its arguments, as large as `type`, follows what all share without a gap and has room in a step. */
#define NH_OWN_ARGS_FIT(args, type)                                                                \
    static_assert(sizeof(struct args) == sizeof(struct nh_cuda_args) + sizeof(struct type) &&      \
                      sizeof(struct type) <= NH_OWN_ARGS_WORDS * sizeof(long long),                \
                  "arguments of a family")

/* A tensor in a set of them, such as `outputs` below. */
#define NH_BIT(tensor) (1u << NHOOD_##tensor)

/* Where a tensor slot of a step gets its memory from. */
struct nh_cuda_binding {
    /* NHOOD_Q ..: the caller's tensor; NH_BIND_WORKSPACE: the workspace; NH_BIND_NONE */
    int32_t from;
    /* added to that address, modulo 2^64: what leads from the first token of a tensor's box to the first of the grid is below 0 */
    size_t offset_bytes;
    /* what each slab adds to the address, for the outer and the inner count of slabs */
    int64_t slab_bytes[2];
};
enum { NH_BIND_WORKSPACE = -1, NH_BIND_NONE = -2 };

/* A box of a tensor that the copy engine of sm_90 moves: see cuTensorMapEncodeTiled. */
struct nh_cuda_map {
    int32_t slot, rank, type, swizzle, promotion;
    uint64_t extent[5], stride_bytes[4];
    uint32_t box[5], element_stride[5];
    /* added to the tensor's address */
    int64_t offset_bytes;
    /* 0: a box. Else so many entries of axis 1 in a row, of which those after the axis' end are its first, with the next
     * coordinate of axis 2: cuTensorMapEncodeIm2col, without margins. */
    uint32_t pixels;
};

struct nh_cuda_step {
    nh_cu_kernel kernel;
    /* x, y and z; nh_cuda_step_add checks them against the hardware's limits */
    int64_t grid[3];
    /* blocks along x that run at once and reach each other's shared memory, at most 8; 0 or 1: on their own */
    int32_t cluster;
    int32_t threads;
    int64_t shared_bytes;
    /* Not part of the slabs: launched once, after them. Comes after the steps that are. */
    bool after_slabs;
    /* If the step right before it was launched, too, and the device can, it begins as soon as that one lets it
     * (kernels/common/overlap.cuh): its kernel waits for what it needs, and does not end before the other has. */
    bool overlaps;
    /* Launched only if one of these tensors is given; 0: always. Bits 1 << NHOOD_D_Q .. */
    uint32_t outputs;
    /* The kernel's one struct of arguments: what all share, with the region if kernels are told it, and, right after it, what
     * is its family's own. */
    struct nh_cuda_args args;
    /* The kernel is told the region, and which axes are periodic (bits): NH_REGIONS and NH_PERIODIC. */
    bool regions;
    int32_t periodic;
    struct nh_cuda_region region[NH_AXES];
    union {
        struct nh_cuda_tiling tiling;
        long long words[NH_OWN_ARGS_WORDS]; /* set by nh_cuda_step_set_own */
    } own;
    /* Work tiles of the launch; 0: as many as blocks, which nh_cuda_step_add fills in. */
    int64_t work_tiles;
    struct nh_cuda_binding binding[NH_CUDA_TENSORS];
    /* Handed to the kernel as an array after its args, if there are any. */
    int32_t maps;
    struct nh_cuda_map map[NH_CUDA_MAPS];
};

struct nh_cuda_operation {
    struct nh_operation base;
    struct nh_cuda_device *device;
    const struct nh_host *host;
    /* tensors whose pointers must be multiples of NH_CUDA_ALIGNMENT */
    uint32_t aligned;
    /* Outer and inner count of equal parts, one after the other in the same workspace; 0: no such parts. */
    int64_t slabs[2];
    int32_t count;
    struct nh_cuda_step step[NH_CUDA_STEPS];
    /* what the steps' kernels are made from; not needed once they are loaded */
    struct nh_kernel_spec spec[NH_CUDA_STEPS];
};

/* `build` of every CUDA solver: an operation of the launches that it adds, with their kernels. */
nh_build_fn nh_cuda_build;

/* ---- setting up steps (step.c) ---- */

/* Reserves workspace; returns its offset, a multiple of 256. */
size_t nh_cuda_reserve(struct nh_cuda_operation *operation, size_t bytes);

/* A tensor of these strides, without an address. */
struct nh_cuda_tensor nh_cuda_strided(const nhood_strides *strides);

/* A step with the problem's arguments and every slot bound to the caller's tensor of that number, as if that covered the
 * whole grid. */
void nh_cuda_step_init(struct nh_cuda_step *step, const struct nh_problem *problem);

/* Sets the part of its arguments that is the family's own, if that is not a tiling: at most NH_OWN_ARGS_WORDS. */
void nh_cuda_step_set_own(struct nh_cuda_step *step, const void *own, size_t bytes);

/* Binds a slot to the workspace as a packed [B, X.., H, width] tensor of the queries. */
void nh_cuda_bind_workspace(struct nh_cuda_step *step, const struct nh_problem *problem, int slot,
                            size_t offset_bytes, int64_t width);

/* Appends the step. UNSUPPORTED if the grid exceeds what the hardware takes. */
nhood_status nh_cuda_step_add(struct nh_cuda_operation *operation, const struct nh_cuda_step *step,
                              const struct nh_kernel_spec *spec);

/* Rows of which a kernel makes sums: over a query's keys, over a key's queries, over all queries for an extra token
 * or a bias. */
enum { NH_SUMS_OF_QUERY = 1, NH_SUMS_OF_KEY = 2, NH_SUMS_OVER_ALL = 4 };

/* Defines NH_LONG_SUMS as 1 if the problem is of f32 and some row of these kinds (bits) sums up so many terms that one
 * chain of additions spoils them: the kernel adds them up in short ones. Otherwise as without it, which is 0. */
void nh_cuda_define_long_sums(struct nh_kernel_spec *spec, const struct nh_problem *problem,
                              int rows);

/* Tensors of rows of D or Dv, unless they may start at any element: bits 1 << NHOOD_Q .. */
uint32_t nh_cuda_aligned_tensors(const struct nh_problem *problem);

/* Elements per vector load (1, 2, 4 or 8, at most 16 bytes) that the extents, strides and alignment of the slots in
 * the mask allow; bits 1 << NH_Q .. Of those only rows of D or Dv count: LSE, A and biases are never loaded so. */
int nh_cuda_vector(const struct nh_problem *problem, uint32_t slots);

#endif
