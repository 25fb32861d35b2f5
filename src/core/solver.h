/* The solver interface: one way to do the work, able to refuse with a reason, to propose configs, to predict its time
 * and to build an operation. Planner, tool, tests and benchmarks all go through the one table of these. */
#ifndef NH_SOLVER_H
#define NH_SOLVER_H

#include "problem.h"

struct nh_timing;
struct nh_work;
struct nh_solver;
struct nh_cuda_operation;

struct nh_device {
    /* The description names all that the speed of a config depends on and nothing that changes from run to
     * run: wisdom knows devices by it. */
    nhood_device_info info;
    const struct nh_host *host;
    const struct nh_timing *timing; /* NULL: operations cannot be timed */
    bool spec_only; /* known by its published numbers: estimates work, nothing can be built */
    void *
        backend; /* struct nh_cpu *, struct nh_cuda_device *: known to the backend's own solvers only */
};

/* A config is a handful of named integers; the solver's names[] says what they mean. */
#define NH_CONFIG_KNOBS 14
struct nh_config {
    int32_t value[NH_CONFIG_KNOBS];
};

/* What a plan runs. `run` only computes or enqueues: no allocation, no compilation, no lock. */
struct nh_operation {
    size_t workspace_bytes;
    nhood_status (*run)(const struct nh_operation *operation, const nhood_io *io);
    void (*destroy)(struct nh_operation *operation);
};

/* What a backend offers for timing its operations, on memory of the library's own. */
struct nh_timing {
    /* Memory as the data and workspace of an execute, NH_ALIGNMENT aligned. MEMORY. */
    nhood_status (*allocate)(const struct nh_device *device, size_t bytes, void **memory);
    void (*release)(const struct nh_device *device, void *memory);
    /* Copies from the host; done when it returns. */
    nhood_status (*write)(const struct nh_device *device, void *memory, const void *host,
                          size_t bytes);
    /* What runs keep from one to the next; both NULL: nothing. DEVICE or MEMORY; to be destroyed in any case. */
    nhood_status (*clock_create)(const struct nh_device *device, void **clock);
    void (*clock_destroy)(const struct nh_device *device, void *clock);
    /* Runs once, on a stream of the backend's choice, to the end: *ns is what the device took. */
    nhood_status (*run)(const struct nh_device *device, void *clock,
                        const struct nh_operation *operation, const nhood_io *io, double *ns);
};

/* What an estimate rests on, over all launches of an operation. */
struct nh_count {
    /* pairs of a tile that a block owns with a tile of its loop; of these, extra tokens aside, pairs in which masks
     * hide something */
    double tiles, masked_tiles;
    /* of the products, what masks hide included */
    double flops;
    /* what each part of the device alone would take at its highest rate */
    double limit_ns[NHOOD_LIMIT_COUNT];
};

/* Predicted nanoseconds, and what they rest on in *count, NULL for callers who do not ask. A solver that does not work by
 * tiles leaves *count as it is given. */
typedef double nh_estimate_fn(const struct nh_solver *solver, const struct nh_problem *problem,
                              const struct nh_device *device, const struct nh_config *config,
                              struct nh_count *count);

typedef nhood_status nh_build_fn(const struct nh_solver *solver, const struct nh_problem *problem,
                                 const struct nh_device *device, const struct nh_config *config,
                                 struct nh_operation **operation);

/* A knob: its name in the texts of configs, and the macro by which kernels are told its value, NULL: none is told just
 * that. A solver lists its knobs once, in a file <solver>_knobs.def of lines KNOB(index, name, macro, meaning), from which
 * the indices of a config's values, this table and docs/knobs.md are made. */
struct nh_knob {
    const char *name, *macro;
};
#define NH_KNOB_AS_INDEX(index, name, macro, meaning) index,
#define NH_KNOB_AS_ROW(index, name, macro, meaning) {name, macro},

/* What a config asks of the device, which estimates rest on; false if it does not run. */
typedef bool nh_work_fn(const struct nh_problem *problem, const struct nh_device *device,
                        const struct nh_config *config, struct nh_work *work);

/* What not every solver takes; nh_solver_refusal refuses it for those that do not. */
enum {
    NH_TAKES_PARTS = 1, /* tensors that cover a part of the grid */
    NH_TAKES_PERIODIC = 2
};

struct nh_solver {
    const char *name;           /* "reference", "cpu.fused", .. */
    int32_t device_kind;        /* NHOOD_DEVICE_* */
    uint32_t takes;             /* NH_TAKES_* */
    const struct nh_knob *knob; /* of the config's values; ends with no name; NULL: no knobs */
    /* NULL, or the problem as this solver sees it, in *view or as it is given: with axes merged or in another order, say.
     * All functions below are handed that (nh_solver_view). */
    const struct nh_problem *(*view)(const struct nh_problem *problem, struct nh_problem *view);
    /* NULL, or one fixed sentence saying why not. Callers ask nh_solver_refusal. */
    const char *(*refuse)(const struct nh_problem *problem, const struct nh_device *device);
    /* Writes up to capacity configs worth trying, the one of the least estimate first; returns how many. Those estimated
     * at below_ns or more may be left out, even all; with INFINITY there is at least one. Values beyond the solver's
     * knobs are left as they are given: 0. */
    int (*candidates)(const struct nh_problem *problem, const struct nh_device *device,
                      double below_ns, struct nh_config *config, int capacity);
    nh_estimate_fn *estimate;
    nh_build_fn *build;
    /* What `estimate` and `build` of all CUDA solvers rest on: a config's work (nh_estimate), and its launches
     * (nh_cuda_build). NULL: they rest on something else. */
    nh_work_fn *work;
    nhood_status (*add_steps)(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config);
    /* The planner takes, among configs that take about as long, the one for which this is least, so that few kernels, each of
     * which has to be compiled, serve many sizes; INT_MAX: it is preferred to none. NULL: the least estimate counts. */
    int (*preference)(const struct nh_solver *solver, const struct nh_config *config);
    /* NULL, or the name of a solver that is not slower where both take a problem: there the planner leaves it to that one, and
     * neither searches nor measures this one's configs (docs/model.md). */
    const char *left_to;
};

/* Configs of a solver whose estimates differ by less take about as long: estimates err by as much (docs/model.md). */
#define NH_ABOUT_AS_LONG 1.05

/* What a solver's functions are to be handed for a problem; *view is room for it. */
const struct nh_problem *nh_solver_view(const struct nh_solver *solver,
                                        const struct nh_problem *problem, struct nh_problem *view);

/* NULL, or why a solver does not take a problem, which it is handed as it sees it. */
const char *nh_solver_refusal(const struct nh_solver *solver, const struct nh_problem *view,
                              const struct nh_device *device);

/* `refuse` and `candidates` of a solver that takes everything and has no knobs. */
const char *nh_refuse_nothing(const struct nh_problem *problem, const struct nh_device *device);
int nh_one_config(const struct nh_problem *problem, const struct nh_device *device, double below_ns,
                  struct nh_config *config, int capacity);

/* Moves the config of the least estimate, of equals the first, to the front. */
void nh_least_first(const struct nh_solver *solver, const struct nh_problem *problem,
                    const struct nh_device *device, struct nh_config *config, int count);

/* Room for the text of any config. */
enum { NH_CONFIG_BYTES = 256 };

/* "r=4,tx=64,..", "" without knobs; always terminated. */
void nh_config_text(const struct nh_solver *solver, const struct nh_config *config, char *text,
                    size_t capacity);
/* The other way; false if the text is not of this solver. */
bool nh_config_parse(const struct nh_solver *solver, const char *text, struct nh_config *config);

#endif
