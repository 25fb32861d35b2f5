/* Groups whose members' lengths are data: what all members share, and what bounds them. */
#ifndef NH_BOUND_H
#define NH_BOUND_H

#include "group.h"

struct nh_bound {
    struct nh_problem problem; /* one sample, whose axes are the longest that a member may have */
    int64_t members, tokens;   /* the most of both */
    int64_t least[NH_AXES];    /* the shortest that they may be */
    int64_t token_bytes[NHOOD_TENSOR_COUNT]; /* from a token to the next in packed tensors */
};

/* Checks what a plan is created with, and fills in *bound. ARGUMENT. */
nhood_status nh_bound_canonical(const nhood_problem *problem, const nhood_bound *given,
                                struct nh_bound *bound);

/* Checks all that an execute is given, but for the lengths. ARGUMENT. */
nhood_status nh_bound_check_io(const struct nh_bound *bound, const nhood_group_io *io,
                               size_t workspace_bytes);

/* Reads the lengths of a member from memory of the host, the grid's own axes last; those in front are 1, or 0 for no member. Returns
 * ARGUMENT, with the member's index, if they are not legal. */
nhood_status nh_bound_read(const struct nh_bound *bound, const nhood_group_io *io, int64_t index,
                           int64_t length[NH_AXES]);

/* Whether an execute writes the tensor. */
bool nh_bound_writes(const struct nh_bound *bound, int32_t tensor);

#endif
