/* nhood_norm_rope: RMS norm, scale and rotary positions of queries or keys, in one pass over memory, forward and backward.
 *
 * What stands between a model's projections and attention, of one tensor X [B, X.., H, D] at a time:
 *
 *     z = x * rsqrt(mean(x^2) + eps) * weight * scale          (without a norm: z = x * scale)
 *     y[a] = z[a] * cosine - z[b] * sine,  y[b] = z[a] * sine + z[b] * cosine      for each pair of channels (a, b)
 *
 * Rotary positions are axial: a head's first rotated[0] channels turn by the token's position on axis 0, the next rotated[1] by
 * that on axis 1, and so on; what is left of the head is not rotated. A table per axis, TABLE_0 .. [>= offset + length,
 * rotated / 2, 2], has the cosine and the sine of each pair at each position; token i of the axis is at position offset + i.
 * With R the sum of `rotated`, pair p is made of channels
 *
 *     NHOOD_PAIRS_INTERLEAVED   2p and 2p + 1
 *     NHOOD_PAIRS_HALVES        p and p + R/2
 *
 * and pairs are numbered by axis: 0 .. rotated[0]/2 - 1 belong to axis 0.
 *
 * Arithmetic is f32, f64 for f64 tensors; what is stored is rounded once. Tables are of that type. Backward takes X and the
 * gradient of Y and makes those of X and WEIGHT; tables get none. Nothing is kept from the forward pass but X.
 * It is as memory-bound as a copy: every tensor is read or written once.
 *
 *     nhood_norm_rope_problem problem;
 *     nhood_norm_rope_problem_init(&problem, NHOOD_OP_FWD, NHOOD_DTYPE_BF16, 3);
 *     problem.length[0] = 16; problem.length[1] = 24; problem.length[2] = 40; problem.heads = 8; problem.dim = 64;
 *     problem.rotated[0] = 16; problem.rotated[1] = problem.rotated[2] = 24;
 *     problem.norm = NHOOD_NORM_HEAD;
 *     nhood_norm_rope_plan *plan;
 *     nhood_norm_rope_plan_create(context, device, &problem, &plan);
 *     nhood_norm_rope_io io = {.struct_size = sizeof io, .x = x, .weight = weight, .table = {t, h, w}, .y = y};
 *     nhood_norm_rope_execute(plan, &io);                  // on CPUs, and backward, io needs a workspace, too
 *
 * Conventions, errors and threads are those of nhood.h. */
#ifndef NHOOD_NORM_ROPE_H
#define NHOOD_NORM_ROPE_H

#include "nhood.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What the mean of squares is over. */
enum {
    NHOOD_NORM_NONE = 0,  /* no norm: rotary positions and scale alone */
    NHOOD_NORM_HEAD = 1,  /* the D channels of a head; WEIGHT [D] is that of every head */
    NHOOD_NORM_TOKEN = 2, /* the H * D channels of a token; WEIGHT [H, D] */
};

enum { NHOOD_PAIRS_INTERLEAVED = 0, NHOOD_PAIRS_HALVES = 1 };

enum {
    NHOOD_NORM_ROPE_MOST_DIM = 1024,      /* channels of a head */
    NHOOD_NORM_ROPE_MOST_CHANNELS = 16384 /* that a mean is over */
};

typedef struct nhood_norm_rope_problem {
    size_t struct_size;
    /* NHOOD_OP_FWD: X [WEIGHT] TABLE.. -> Y; NHOOD_OP_BWD: X [WEIGHT] TABLE.. D_Y -> [D_X] [D_WEIGHT] */
    int32_t op;
    int32_t dtype;        /* of X, Y and their gradients */
    int32_t rank;         /* 1, 2 or 3 */
    int32_t norm;         /* NHOOD_NORM_* */
    int32_t pairs;        /* NHOOD_PAIRS_* */
    int32_t has_weight;   /* 0: as with a weight of ones; 1: only with a norm */
    int32_t weight_dtype; /* of WEIGHT and D_WEIGHT: dtype, or f32 beside f16 and bf16; 0: dtype */
    uint32_t flags;       /* 0 or NHOOD_FLAG_UNALIGNED */
    int64_t batch; /* 0 <= B <= 2^40, as in nhood_problem; B times the lengths is at most 2^59 */
    /* The arrays have an entry per axis, the slowest first; those from rank on are ignored. Lengths are in [1, 2^40]. */
    int64_t length[3];
    /* 1 <= H < 2^31; with NHOOD_NORM_TOKEN, H * D <= NHOOD_NORM_ROPE_MOST_CHANNELS */
    int64_t heads;
    int64_t dim;        /* D, even, in [2, NHOOD_NORM_ROPE_MOST_DIM] */
    int64_t rotated[3]; /* channels that each axis rotates: even, >= 0, at most D together */
    int64_t offset[3];  /* position of the first token on each axis, in [0, 2^40] */
    double eps;         /* >= 0, finite */
    double scale;       /* finite */
    /* As nhood_problem.strides: elements, the channels contiguous; all zero: packed. Negative strides are legal, and for X and
     * D_Y zero ones. Forward uses x and y, backward x, d_y and d_x. */
    nhood_strides x, y, d_y, d_x;
} nhood_norm_rope_problem;

/* Fills a problem with defaults: lengths, batch and heads 1, dim 32, nothing rotated, NHOOD_NORM_NONE, interleaved, eps 1e-6,
 * scale 1, packed. struct_size: sizeof(nhood_norm_rope_problem), which the macro adds. op, dtype and rank are checked with the
 * other fields, by nhood_norm_rope_plan_create. */
NHOOD_API void nhood_norm_rope_problem_init_sized(nhood_norm_rope_problem *problem,
                                                  size_t struct_size, int32_t op, int32_t dtype,
                                                  int32_t rank);
#define nhood_norm_rope_problem_init(problem, op, dtype, rank)                                     \
    nhood_norm_rope_problem_init_sized(problem, sizeof(nhood_norm_rope_problem), op, dtype, rank)

typedef struct nhood_norm_rope_plan nhood_norm_rope_plan;

/* Creates a plan for a device: checks, and on CUDA compiles and loads kernels. Kernels depend on dtypes, pairs, norm and the
 * number of channels, not on the grid. Plans are immutable; several threads may execute one at the same time, each with a
 * workspace of its own. After an error *plan is NULL. ARGUMENT (a field is not legal, no such device), UNSUPPORTED, MEMORY,
 * DEVICE (also for a device that is only described), COMPILE. */
NHOOD_API nhood_status nhood_norm_rope_plan_create(nhood_context *context, int32_t device,
                                                   const nhood_norm_rope_problem *problem,
                                                   nhood_norm_rope_plan **plan);
NHOOD_API void nhood_norm_rope_plan_destroy(nhood_norm_rope_plan *plan); /* NULL is allowed */

/* Bytes of workspace that every execute needs, a multiple of 64; 0 if it needs none or plan is NULL. */
NHOOD_API size_t nhood_norm_rope_workspace_bytes(const nhood_norm_rope_plan *plan);

/* X, Y and their gradients have the shape [B, X.., H, D]. Except for y on x, no output overlaps another tensor. */
typedef struct nhood_norm_rope_io {
    size_t struct_size;
    const void *x;
    const void *weight;     /* if has_weight: [D], or [H, D] with NHOOD_NORM_TOKEN; packed */
    const void *table[3];   /* of each axis that rotates channels; f32, or f64 beside f64; packed */
    void *y;                /* forward; may be x, with the same strides */
    const void *d_y;        /* backward */
    void *d_x;              /* backward; NULL: not wanted */
    void *d_weight;         /* backward, shaped as weight; NULL: not wanted */
    void *workspace;        /* in x's kind of memory, aligned to 64 bytes; NULL if none is needed */
    size_t workspace_bytes; /* >= nhood_norm_rope_workspace_bytes */
    void *stream;           /* CUDA: the CUstream, 0 the legacy default; ignored on the CPU */
} nhood_norm_rope_io;

/* Runs a plan once. Pointers are as in nhood_plan_execute. On CUDA they are device pointers, and those of x, y, d_y, d_x and
 * tables are multiples of 16 bytes unless the problem has NHOOD_FLAG_UNALIGNED; all others need only be aligned to their
 * elements. CUDA enqueues, and may be captured into a graph. Results of one plan are bit-equal from run to run, on the CPU with
 * any number of threads. ARGUMENT (a pointer is missing or misaligned, the workspace is too small), DEVICE (a launch was
 * refused). */
NHOOD_API nhood_status nhood_norm_rope_execute(const nhood_norm_rope_plan *plan,
                                               const nhood_norm_rope_io *io);

/* Adds the kernels of such a plan to a bundle; device as in nhood_bundle_add. Returns what
 * nhood_norm_rope_plan_create would, and UNSUPPORTED for the CPU. */
NHOOD_API nhood_status nhood_bundle_add_norm_rope(nhood_bundle *bundle, int32_t device,
                                                  const nhood_norm_rope_problem *problem);

#ifdef __cplusplus
}
#endif
#endif
