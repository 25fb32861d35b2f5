/* Groups in nhood verify: all members in one call, each compared with the f64 reference. */
#ifndef VERIFY_GROUP_H
#define VERIFY_GROUP_H

#include "oracle.h"
#include "suite.h"

/* A group's members in memory, with their exact results. */
struct group_case {
    size_t count;
    nhood_problem *problem;
    struct problem_data *data;
    struct oracle *oracle;
    nhood_io *member; /* the tensors, by member */
    struct buffer workspace;
};

/* Both return 0, or the exit status after a message; the case must be freed in either case. The members are those of a group that
 * begins at `first`; member i has the data of seed + i. */
int group_case_create(struct group_case *group, const struct target *target,
                      const struct suite_problem *first, uint64_t seed);
/* Plans the group with a solver (NULL: by the planner's choice), runs it and compares. *worst is the worst member's comparison, and
 * *index its index. A plan of which the library warns is a failure, as then each member has launches of its own. */
int group_case_run(struct group_case *group, const struct target *target, const char *solver,
                   struct comparison *worst, size_t *index);
void group_case_free(struct group_case *group);

/* Adds the members of a random group, which depend on the seed alone. */
int random_group(struct suite *suite, uint64_t seed);

#endif
