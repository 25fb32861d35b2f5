/* The context and device a command works with, by the options every command shares. */
#ifndef TARGET_H
#define TARGET_H

#include "nhood.h"
#include "options.h"

struct target {
    const char *device_name, *isa;
    /* a GPU to plan for that need not be there; NULL: none */
    const char *describe;
    /* folder of compiled kernels and wisdom; NULL: the usual one, "": none */
    const char *cache;
    int64_t threads;
    bool verbose;
    /* the options that set the fields above */
    struct option options[5];
    /* by target_open */
    nhood_context *context;
    int32_t device;
    nhood_device_info info;
};

void target_init(struct target *target);

/* Returns 0, or the exit status after a message. The target must be closed in either case. */
int target_open(struct target *target);
/* The same without wisdom, but with the calibration that estimates follow, which lives in the cache folder, too. */
int target_open_untaught(struct target *target);
void target_close(struct target *target);

/* What a command does with one problem; returns the exit status. */
typedef int problem_fn(const struct target *target, const char *text, const void *arg);

/* Calls visit for every problem; what it prints is set apart by blank lines, but not as JSON. Returns 0 or the exit
 * status of the last that failed. */
int target_each_problem(const struct target *target, char *const *text, int count, bool json,
                        problem_fn *visit, const void *arg);

/* Index in the solver table of a solver for the target's device; -1 after a message. */
int32_t target_find_solver(const struct target *target, const char *name);

#endif
