/* A plan behind the public handle: one operation, or those of a group's members. */
#ifndef NH_PLAN_H
#define NH_PLAN_H

#include "context.h"
#include "group.h"

/* The members of a plan of a group. Members with equal problems share one of the `distinct` problems and operations. */
struct nh_members {
    struct nh_group group;
    struct nh_group_operation *operation;
    const struct nh_host *host;
    int64_t distinct;
    struct nh_problem *problem;
    nhood_range **
        tables; /* of each distinct problem, copies of the caller's window tables; NULL if it has none */
    struct nh_operation **built;
    struct nh_arena *arena;       /* what lives as long as they */
    struct nh_spare_arena *spare; /* the context's */
};

/* A plan of any members within a bound (bounded_api.c). */
struct nh_bounded;

struct nhood_plan {
    struct nh_problem problem;
    nhood_range *tables; /* copies of the caller's window tables, NULL if there are none */
    struct nh_operation *operation; /* NULL in plans of groups */
    struct nh_members *members;     /* NULL in all others */
    struct nh_bounded *bounded;     /* NULL in all others */
    nhood_context *context;         /* holds a reference */
    atomic_int references;
    char description[1024];
};

/* A plan with one reference, without operations. NULL without memory. */
nhood_plan *nh_plan_new(nhood_context *context);

/* ARGUMENT for what cannot be a list of members. */
nhood_status nh_members_check_count(const nhood_problem *problems, int64_t count);

/* Has the kernels compiled that a plan of the group would launch, for a backend of nh_registry_collect_open. */
nhood_status nh_members_collect(nhood_context *context, struct nh_cuda *cuda, int32_t device,
                                const nhood_problem *problems, int64_t count,
                                const nhood_plan_options *options);

/* Does nothing for NULL; the members may be half built. */
void nh_members_destroy(struct nh_members *members);

/* Has the kernels compiled that such a plan would launch, for a backend of nh_registry_collect_open. */
nhood_status nh_bounded_collect(nhood_context *context, struct nh_cuda *cuda, int32_t device,
                                const nhood_problem *problem, const nhood_bound *bound,
                                const nhood_plan_options *options);

size_t nh_bounded_workspace_bytes(const struct nh_bounded *bounded);
nhood_status nh_bounded_execute(const nhood_plan *plan, const nhood_group_io *io);
void nh_bounded_destroy(struct nh_bounded *bounded); /* does nothing for NULL */

#endif
