/* A CUDA plan's operation: a few kernel launches in a fixed order, with everything but the pointers known. */
#ifndef NH_LAUNCH_H
#define NH_LAUNCH_H

#include "kernel_abi.h"
#include "kernel_cache.h"
#include "lengths_abi.h"
#include "row_config.h"

#include <assert.h>
#include <stdatomic.h>

enum { NH_CUDA_STEPS = 16, NH_CUDA_MAPS = 21, NH_CUDA_ALIGNMENT = 16, NH_OWN_ARGS_WORDS = 8 };

/* Where a launch is for several problems, a block keeps its member's arguments, and which work it has for it, in shared
 * memory; what follows there begins at a multiple of 1,024 bytes. */
enum { NH_MEMBER_SHARED_BYTES = 2048 };

/* Checks that a family's own part of its arguments, `type`, follows the shared part without a gap and fits into a
 * step. */
#define NH_OWN_ARGS_FIT(args, type)                                                                \
    static_assert(sizeof(struct args) == sizeof(struct nh_cuda_args) + sizeof(struct type) &&      \
                      sizeof(struct type) <= NH_OWN_ARGS_WORDS * sizeof(long long),                \
                  "arguments of a family")

/* A tensor as a bit of a set of them, such as `outputs` below. */
#define NH_BIT(tensor) (1u << NHOOD_##tensor)

/* Where a tensor slot of a step gets its memory from. */
struct nh_cuda_binding {
    /* NHOOD_Q ..: the caller's tensor; NH_BIND_WORKSPACE: the workspace; NH_BIND_KEPT: the plan's memory (nh_cuda_keep);
     * NH_BIND_NONE */
    int32_t from;
    /* Added to that address, modulo 2^64: the way from the first token of a tensor's box to the first token of the grid
     * is negative. */
    size_t offset_bytes;
};
enum { NH_BIND_WORKSPACE = -1, NH_BIND_NONE = -2, NH_BIND_KEPT = -3 };

/* A tensor map of the copy engine (TMA) of sm_90: the members are those of cuTensorMapEncodeTiled. */
struct nh_cuda_map {
    int32_t slot, rank, type, swizzle, promotion;
    uint64_t extent[5], stride_bytes[4];
    uint32_t box[5], element_stride[5];
    /* added to the tensor's address */
    int64_t offset_bytes;
    /* 0: a box. Else the entries of axis 1 that an im2col map (cuTensorMapEncodeIm2col, without margins) fetches in a
     * row: where axis 1 ends, they go on with its first ones at the next coordinate of axis 2. */
    uint32_t pixels;
};

/* An axis as kernels with window tables have it (NH_TABLES): `seen` are addresses on the device. */
struct nh_cuda_table_axis {
    struct nh_cuda_axis axis;
    uint64_t seen[2];
};

struct nh_cuda_step {
    nh_cu_kernel kernel;
    /* x, y and z; nh_cuda_step_add checks them against the hardware's limits */
    int64_t grid[3];
    /* blocks of a cluster, which follow each other along x, at most 8; 0 or 1: no clusters */
    int32_t cluster;
    int32_t threads;
    int64_t shared_bytes;
    /* Programmatic dependent launch, if the device has it and the step right before this one was launched, too: the
     * kernel begins as soon as that one lets it (kernels/common/overlap.cuh), waits itself for what it needs, and does
     * not end before the other has. */
    bool overlaps;
    /* The first step of a plan that is executed with others (cuda_group.c) and overlaps the launch ahead as well, of which it needs
     * nothing: the kernel is compiled with NH_BESIDE. */
    bool beside;
    /* Launched only if one of these tensors is given (bits 1 << NHOOD_D_Q ..); 0: always. */
    uint32_t outputs;
    /* The kernel's one struct of arguments consists of `args`, whose axes have addresses of tables if `tables` is set, then
     * `region` if `regions` is set, then `own`. */
    struct nh_cuda_args args;
    /* Whether the kernel is told the region (NH_REGIONS), which axes are periodic, and which have window tables, both
     * as bits (NH_PERIODIC, NH_TABLES). */
    bool regions;
    int32_t periodic, tables;
    struct nh_cuda_region region[NH_AXES];
    union {
        struct nh_cuda_tiling tiling;
        long long words[NH_OWN_ARGS_WORDS]; /* set by nh_cuda_step_set_own */
    } own;
    /* its blocks for other lengths, where the grid depends on nothing else (cuda_bounded.c) */
    struct nh_cuda_blocks blocks;
    /* If the kernel may begin its loop over work tiles with any of them, so that a group deals them out (NH_DEALS): as many blocks
     * as are resident at a time, each of which keeps NH_MEMBER_SHARED_BYTES as well. A block that waits for others to end would
     * take as long as they all. 0: it may not. */
    int64_t wave_blocks;
    /* then what its work tiles take together, in shares (members_abi.h) */
    int64_t shares;
    /* If its blocks loop over work tiles or rows, and fewer of them than the grid has compute the same: how many fill the device. A
     * group gives members fewer (cuda_group.c). 0: not so. */
    int64_t loop_blocks;
    /* work tiles of the launch; 0: as many as blocks along x, which nh_cuda_step_add fills in */
    int64_t work_tiles;
    struct nh_cuda_binding binding[NH_CUDA_TENSORS];
    /* tensor maps, which the kernel gets as an array after its arguments; 0: no such parameter */
    int32_t maps;
    struct nh_cuda_map map[NH_CUDA_MAPS]; /* an operation's steps have room for `maps` of them */
};

/* The use of an operation's memory on the device. captured: a graph has launches that read it. source: what is copied to it, until
 * somebody has waited for the copy (nh_cuda_await_kept), and NULL from then on. */
struct nh_cuda_memory_use {
    atomic_bool captured;
    _Atomic(unsigned char *) source;
};

struct nh_cuda_operation {
    struct nh_operation base;
    struct nh_cuda_device *device;
    const struct nh_host *host;
    struct nh_arena *arena; /* what it and its steps are in; NULL: the host's memory */
    /* tensors whose pointers must be multiples of NH_CUDA_ALIGNMENT */
    uint32_t aligned;
    /* It is a member of a group: kernels that serve other grids, too, are preferred. */
    bool for_group;
    bool any_length; /* and lengths are data (any_length of struct nh_device) */
    int32_t count;   /* of steps, each of which has memory of its own (nh_cuda_step_copy) */
    struct nh_cuda_step *step[NH_CUDA_STEPS];
    /* what the steps' kernels are made from, in the same memory; unused once they are loaded */
    struct nh_kernel_spec *spec[NH_CUDA_STEPS];
    /* The plan's memory on the device, 0: it has none; what is known of its use, NULL without memory; and its contents until they
     * are sent there. */
    nh_cu_pointer memory;
    struct nh_cuda_memory_use *use;
    unsigned char *kept;
    size_t kept_bytes, kept_room;
    /* axes with window tables, and where the plan's memory has what their queries see and what their keys see */
    bool has_table[NH_AXES];
    size_t table_offset[NH_AXES][2];
};

/* Memory for an operation or its steps, which is not set. NULL if there is none. */
void *nh_cuda_operation_memory(const struct nh_host *host, struct nh_arena *arena, size_t bytes);

/* `build` of every CUDA solver: makes an operation of the launches that the solver's add_steps adds, with their
 * kernels. Fails with what add_steps and nh_kernel_get fail with, and with UNSUPPORTED for a scale that no kernel
 * takes. */
nh_build_fn nh_cuda_build;

/* Makes the kernels of all steps ready: NVRTC compiles as many at a time as threads call it, and a backward pass has two
 * or three large ones. Fails with COMPILE, DEVICE or MEMORY. */
nhood_status nh_cuda_load(struct nh_cuda_operation *operation);

/* Reports the launches of such an operation, whose kernels a cache that collects has. */
void nh_cuda_launches(const struct nh_operation *operation, nhood_launch_fn report, void *user);

/* ---- launching (launch.c) ---- */

/* Room for the arguments of any family; a kernel reads as many bytes as its own struct has. */
struct nh_cuda_arguments {
    struct nh_cuda_args shared;
    char rest[NH_AXES * sizeof(struct nh_cuda_region) + NH_OWN_ARGS_WORDS * sizeof(long long)];
};

/* The same for kernels with window tables, whose axes are longer. */
struct nh_cuda_table_arguments {
    char bytes[sizeof(struct nh_cuda_arguments) +
               NH_AXES * (sizeof(struct nh_cuda_table_axis) - sizeof(struct nh_cuda_axis))];
};

/* Writes the arguments with the addresses of the operation's tables, which are in its memory, added to the axes. */
void nh_cuda_add_tables(const struct nh_cuda_operation *operation,
                        const struct nh_cuda_arguments *arguments,
                        struct nh_cuda_table_arguments *to);

/* Writes what follows the shared part. */
void nh_cuda_step_arguments(const struct nh_cuda_step *step, struct nh_cuda_arguments *arguments);

/* Encodes a tensor map for a tensor at this address. */
nh_cu_result nh_cuda_encode(const struct nh_driver *driver, const struct nh_cuda_map *m,
                            void *address, struct nh_cu_tensor_map *map);

/* Whether the step has something to do: some of its outputs is given. */
bool nh_cuda_wanted(const struct nh_cuda_step *step, const nhood_io *io);

/* ARGUMENT: a tensor does not begin where CUDA plans need it to. */
nhood_status nh_cuda_check_alignment(const struct nh_cuda_operation *operation, const nhood_io *io);

/* Launches a step's kernel with these parameters, and so many blocks along x. overlaps: whether it may begin before the launch
 * ahead of it has ended. Fails with DEVICE. */
nhood_status nh_cuda_launch(const struct nh_cuda_operation *operation,
                            const struct nh_cuda_step *step, int64_t blocks, bool overlaps,
                            void *stream, void **parameters);

/* Whether a step may begin while the launch ahead of it is under way. follows: whether that is the step before or, ahead of the first
 * one, a launch of the same execute. */
static inline bool nh_cuda_may_overlap(const struct nh_cuda_operation *operation, int32_t s,
                                       bool follows) {
    const struct nh_cuda_step *step = operation->step[s];
    return follows && step->overlaps && (s > 0 || step->beside) && operation->device->overlaps;
}

/* Launches a step of `user`, with tensors of `io`. overlaps: as above. */
typedef nhood_status nh_cuda_launch_fn(const void *user, int32_t step, const nhood_io *io,
                                       bool overlaps);

/* Launches those of the first `count` steps that have something to do. A step may overlap only the one right before it. follows:
 * whether the launch ahead of the first step is one of the same execute, which a step `beside` overlaps; set to whether the last
 * step was launched. */
nhood_status nh_cuda_run_steps(const struct nh_cuda_operation *operation, int32_t count,
                               const nhood_io *io, nh_cuda_launch_fn *launch, const void *user,
                               bool *follows);

/* Executes a plan; follows: as above. Fails with what its `run` fails with. */
nhood_status nh_cuda_run(const struct nh_cuda_operation *operation, const nhood_io *io,
                         bool *follows);

/* The shared memory that a block has for itself; for_group: if it is to serve many members. */
static inline int64_t nh_cuda_block_room(const struct nh_cuda_device *device, bool for_group) {
    return device->shared_bytes_per_block - (for_group ? NH_MEMBER_SHARED_BYTES : 0);
}

/* Whether the step's kernel may serve many members (NH_MEMBERS): it reads no memory of a member's plan but window tables, and
 * there is room for the member's arguments in shared memory. */
bool nh_cuda_serves_members(const struct nh_cuda_operation *operation,
                            const struct nh_cuda_step *step);

/* Writes, for such a kernel, the addresses of what the `used` slots are bound to. */
void nh_cuda_set_bases(const struct nh_cuda_step *step, uint32_t used, const nhood_io *io,
                       unsigned long long *base);

/* ---- memory of the plan on the device (plan_memory.c) ---- */

enum { NH_KEPT_ALIGNMENT = 256 };

/* What `bytes` take if something else is kept after them. */
static inline size_t nh_cuda_kept_bytes(size_t bytes) {
    return (bytes + NH_KEPT_ALIGNMENT - 1) / NH_KEPT_ALIGNMENT * NH_KEPT_ALIGNMENT;
}

/* Makes room for so many bytes in all, so that nothing moves while they are kept one after the other. MEMORY. */
nhood_status nh_cuda_keep_room(struct nh_cuda_operation *operation, size_t room);

/* Keeps `bytes` in memory of the plan on the device, at *offset, a multiple of NH_KEPT_ALIGNMENT. The caller writes all of them to
 * the memory that is returned, before the next call; when add_steps is done they are copied to the device, where kernels
 * of every execute read them. NULL if there is no memory. */
void *nh_cuda_keep(struct nh_cuda_operation *operation, size_t bytes, size_t *offset);

/* Keeps the tables of all axes whose windows are not by formula, for kernels with NH_TABLES. MEMORY. */
nhood_status nh_cuda_keep_tables(struct nh_cuda_operation *operation,
                                 const struct nh_problem *problem);

/* Allocates the memory and begins to write it, also while a stream is captured. Plans that cannot run, as their kernels are only
 * collected, have none. MEMORY or DEVICE. */
nhood_status nh_cuda_write_kept(struct nh_cuda_operation *operation);

/* Waits until the memory is written, also while a stream is captured: before the first launch that may read it. The memory of all
 * operations that were made before this one is written, too. DEVICE. */
nhood_status nh_cuda_await_kept(const struct nh_cuda_operation *operation);

/* Notes a launch on a stream that is captured: the graph may be launched when the plan is no more. */
void nh_cuda_note_capture(const struct nh_cuda_operation *operation, nh_cu_stream stream);

/* The same for what a launch of another operation reads of this one's memory. Nothing without memory. */
void nh_cuda_share_capture(const struct nh_cuda_operation *from,
                           const struct nh_cuda_operation *to);

/* Frees it, also while a stream is captured. Waits for kernels that may read it. Memory that a graph reads is left to the end of
 * the device's context. */
void nh_cuda_release_kept(struct nh_cuda_operation *operation);

/* ---- setting up steps (step.c) ---- */

/* Reserves workspace; returns its offset in bytes, a multiple of 256. */
size_t nh_cuda_reserve(struct nh_cuda_operation *operation, size_t bytes);

/* Returns a tensor with these strides and no address. */
struct nh_cuda_tensor nh_cuda_strided(const nhood_strides *strides);

/* Sets up a step with the problem's arguments, every slot bound to the caller's tensor of that number and its address
 * shifted so that coordinates of the grid index it. One block of 128 threads, until the family sets more. */
void nh_cuda_step_init(struct nh_cuda_step *step, const struct nh_problem *problem);

/* Sets the family's own part of a step's arguments, unless that is a tiling: at most NH_OWN_ARGS_WORDS of 8 bytes. */
void nh_cuda_step_set_own(struct nh_cuda_step *step, const void *own, size_t bytes);

/* Binds a slot to the workspace as a packed tensor [B, X.., H, width] over the queries. */
void nh_cuda_bind_workspace(struct nh_cuda_step *step, const struct nh_problem *problem, int slot,
                            size_t offset_bytes, int64_t width);

/* Binds a slot to the workspace, and leaves its strides alone. */
void nh_cuda_bind_offset(struct nh_cuda_step *step, int slot, size_t offset_bytes);

/* Appends the step as it is. MEMORY, or INTERNAL if there are too many steps. */
nhood_status nh_cuda_step_copy(struct nh_cuda_operation *operation, const struct nh_cuda_step *step,
                               const struct nh_kernel_spec *spec);

/* Appends the step with the macros that follow from it. Fails with UNSUPPORTED if the grid exceeds the hardware's limits, and with INTERNAL if there are
 * too many steps, or macros in the spec. */
nhood_status nh_cuda_step_add(struct nh_cuda_operation *operation, const struct nh_cuda_step *step,
                              const struct nh_kernel_spec *spec);

/* The kinds of sums that a kernel makes: over a query's keys, over a key's queries, or over all queries (for an extra
 * token or a bias). */
enum { NH_SUMS_OF_QUERY = 1, NH_SUMS_OF_KEY = 2, NH_SUMS_OVER_ALL = 4 };

/* Whether the problem is of f32 without TF32 and some sum of these kinds (bits) has so many terms that adding them in one
 * chain on tensor cores loses accuracy: a kernel then adds up short chains. The second function defines NH_LONG_SUMS as 1
 * in this case. */
bool nh_cuda_sums_are_long(const struct nh_problem *problem, int rows);
void nh_cuda_define_long_sums(struct nh_kernel_spec *spec, const struct nh_problem *problem,
                              int rows);

/* The tensors of rows of D or Dv as bits 1 << NHOOD_Q ..; none with NHOOD_FLAG_UNALIGNED, with which they may start at
 * any element. */
uint32_t nh_cuda_aligned_tensors(const struct nh_problem *problem);

/* Returns the elements per vector load (at most 16 bytes, a power of two) that extents, strides and alignment of these
 * slots (bits 1 << NH_Q ..) allow. Only tensors of rows of D or Dv count: LSE, A and biases are never loaded in
 * vectors. */
int nh_cuda_vector(const struct nh_problem *problem, uint32_t slots);

/* ---- launches that the backward passes of several solvers have in common (step.c) ---- */

/* The type and the configuration of a kernel in which groups of lanes share rows, and that has no other. */
void nh_cuda_configure_rows(struct nh_kernel_spec *spec, const struct nh_problem *problem,
                            const struct row_config *rows);

/* Sets up a kernel whose groups of lanes take runs of rows (row_runs.cuh). */
void nh_cuda_take_runs(const struct nh_cuda_device *device, struct nh_kernel_spec *spec,
                       struct nh_cuda_step *step, int64_t rows, int64_t lanes);

/* Binds NH_DELTA to the workspace as an f32 tensor [B, H, X, Y, Z, 4] over the queries that the tensors have. Heads
 * come first so that the copy engine of sm_90 can fetch boxes of tokens. */
void nh_cuda_bind_stats(struct nh_cuda_step *step, const struct nh_problem *problem,
                        size_t offset_bytes);

/* Appends the launch that computes LSE and delta of every query (backward_stats.cu), and zeroes the f32 sums of dQ,
 * `sum_columns` per row; 0: there are none. `step` has NH_DELTA bound by nh_cuda_bind_stats. */
nhood_status nh_cuda_add_stats(struct nh_cuda_operation *operation, struct nh_cuda_step *step,
                               const struct nh_problem *problem, int64_t sum_columns);

/* Makes the step of the launch for dQ add the bias's gradient to tables in the workspace, `shares` of each head. */
void nh_cuda_add_bias_tables(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                             int64_t shares, struct nh_cuda_step *step);

/* Appends the launch that adds up partial sums of the bias's gradient. The step, which is used as a template, has
 * NH_D_S bound to them. */
nhood_status nh_cuda_add_bias_sum(struct nh_cuda_operation *operation,
                                  const struct nh_problem *problem, struct nh_cuda_step step);

/* Appends, for a problem with keys left out (nh_attended_keys), the launch that stores zeros as their gradients. */
nhood_status nh_cuda_add_clear_keys(struct nh_cuda_operation *operation,
                                    const struct nh_problem *problem);

#endif
