/* The canonical problem of RMS norm and rotary positions (three axes with unit axes in front, defaults made explicit,
 * every field checked), and the operation that a backend builds for it. */
#ifndef NH_NORM_ROPE_H
#define NH_NORM_ROPE_H

#include "nhood_norm_rope.h"
#include "problem.h"

/* The tensors that have strides. */
enum nh_norm_rope_tensor { NH_ROPE_X, NH_ROPE_Y, NH_ROPE_D_Y, NH_ROPE_D_X, NH_ROPE_TENSORS };

struct nh_norm_rope {
    int32_t op, dtype, rank, norm, pairs;
    int32_t weight_dtype; /* 0: there is no weight */
    bool unaligned;
    int64_t batch, heads, dim, length[NH_AXES], offset[NH_AXES];
    /* Pairs first_pair[a] .. first_pair[a + 1] - 1 of a head belong to axis a; first_pair[NH_AXES] pairs are rotated. */
    int64_t first_pair[NH_AXES + 1];
    double eps, scale;
    nhood_strides strides[NH_ROPE_TENSORS]; /* axis strides shifted like the axes */
    /* derived */
    int64_t tokens;   /* of all batch entries */
    int64_t channels; /* over which a mean of squares is taken: D, or H * D */
};

struct nh_norm_rope_operation {
    size_t workspace_bytes;
    nhood_status (*run)(const struct nh_norm_rope_operation *operation,
                        const nhood_norm_rope_io *io);
    void (*destroy)(struct nh_norm_rope_operation *operation);
};

/* Checks a problem and makes it canonical. ARGUMENT, with a text that names the field, its value and the limit. */
nhood_status nh_norm_rope_canonical(const nhood_norm_rope_problem *given,
                                    struct nh_norm_rope *problem);

/* Checks the pointers and the workspace that an execute is given. ARGUMENT. */
nhood_status nh_norm_rope_check_io(const struct nh_norm_rope *problem, const nhood_norm_rope_io *io,
                                   size_t workspace_bytes);

/* Number of pairs of channels of a head that an axis rotates. */
static inline int64_t nh_norm_rope_pairs(const struct nh_norm_rope *problem, int axis) {
    return problem->first_pair[axis + 1] - problem->first_pair[axis];
}

#endif
