/* The context and device that a command uses, by the options that every command has. */
#ifndef TARGET_H
#define TARGET_H

#include "nhood.h"
#include "options.h"

#include <stdatomic.h>

struct target {
    const char *device_name, *isa;
    /* a GPU to plan for that need not be present; NULL: none */
    const char *describe;
    /* the name of the option that sets it: "gpu" or "arch" */
    const char *describe_option;
    /* folder of compiled kernels and wisdom; NULL: the default, "": none */
    const char *cache;
    int64_t threads;
    bool verbose;
    /* leaves out the library's log, as another context's on the same machine has been shown */
    bool quiet;
    /* of CUDA kernels: whether they know their source lines */
    bool line_info;
    /* the options that set the fields above */
    struct option options[5];
    /* set by target_open */
    nhood_context *context;
    int32_t device;
    nhood_device_info info;
    /* warnings of the library so far, shown or not */
    atomic_llong warnings;
};

void target_init(struct target *target);

/* Returns 0, or the exit status after a message. The target must be closed in either case. */
int target_open(struct target *target);
/* The same without wisdom, but with the calibration of estimates, which is in the cache folder, too. */
int target_open_untaught(struct target *target);
void target_close(struct target *target);

/* Runs a command on one problem, and returns the exit status. */
typedef int problem_fn(const struct target *target, const char *text, const void *arg);

/* Runs a command on a group, before it runs on its members. */
struct suite;
typedef int group_fn(const struct target *target, const struct suite *members, const void *arg);

/* Calls `visit` for every problem, and for each different member of a group, after `visit_group` (NULL: none), with blank lines
 * between their outputs unless these are JSON. Returns 0, or the exit status of the last one that failed. */
int target_each_problem(const struct target *target, char *const *text, int count, bool json,
                        problem_fn *visit, group_fn *visit_group, const void *arg);

/* The index of a solver for the target's device in the solver table; -1 after a message. */
int32_t target_find_solver(const struct target *target, const char *name);

#endif
