/* Groups: a list of problems that run as one plan. */
#ifndef NH_GROUP_H
#define NH_GROUP_H

#include "solver.h"

struct nh_group_member {
    const struct nh_problem *problem;
    struct nh_operation *operation; /* members with equal problems share one */
    double ns;                      /* about how long it takes alone */
    int64_t first_query, first_key; /* the tokens before it in packed tensors */
};

/* The members of a plan, which owns them. Backends make an operation of them. */
struct nh_group {
    int64_t count;
    struct nh_group_member *member;
    int64_t query_tokens, key_tokens;        /* of packed tensors */
    int64_t token_bytes[NHOOD_TENSOR_COUNT]; /* from a token to the next in packed tensors */
    char not_packed[256]; /* "", or why the members cannot lie in packed tensors */
};

/* What a plan of a group executes. `run` gets pointers that were checked. */
struct nh_group_operation {
    size_t workspace_bytes;
    int64_t
        launches; /* on a GPU, of an execute in packed tensors that asks for all outputs; 0: not counted */
    nhood_status (*run)(const struct nh_group_operation *operation, const nhood_group_io *io);
    void (*destroy)(struct nh_group_operation *operation);
};

typedef nhood_status nh_group_build_fn(const struct nh_device *device, const struct nh_group *group,
                                       struct nh_group_operation **operation);

/* Runs the members one after the other, all in the same workspace. */
nh_group_build_fn nh_group_loop_build;

/* Fills in what packed tensors need: everything but the members' problems, operations and times. */
void nh_group_pack(struct nh_group *group);

/* ARGUMENT, naming the member and what it does not share with the first one. */
nhood_status nh_group_check_shared(const struct nh_problem *first, const struct nh_problem *problem,
                                   int64_t index);

/* Checks what an execute is given. ARGUMENT. */
nhood_status nh_group_check_io(const struct nh_group *group, const nhood_group_io *io,
                               size_t workspace_bytes);

/* The tensors of a member, with the group's workspace and stream. */
nhood_io nh_group_member_io(const struct nh_group *group, const nhood_group_io *io, int64_t index);

/* Runs a member's own operation on its tensors. Fails with what that fails with, and the member's index in front. */
nhood_status nh_group_run_member(const struct nh_group *group, const nhood_group_io *io,
                                 int64_t index);

/* Puts the member's index in front of the thread's error text, and returns the status. */
nhood_status nh_group_member_error(nhood_status status, int64_t index);

#endif
