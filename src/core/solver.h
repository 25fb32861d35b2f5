/* The solver interface. A solver is one way to compute a problem: it refuses problems with a reason, proposes configs,
 * predicts their time and builds operations. The planner finds all solvers in the table of registry.h. */
#ifndef NH_SOLVER_H
#define NH_SOLVER_H

#include "problem.h"

struct nh_timing;
struct nh_work;
struct nh_arena;
struct nh_solver;
struct nh_cuda_operation;

struct nh_device {
    /* Wisdom identifies devices by the description. So it names everything that the speed of a config depends on, and
     * nothing that changes from run to run. */
    nhood_device_info info;
    const struct nh_host *host;
    const struct nh_timing *timing; /* NULL: operations cannot be timed */
    bool spec_only; /* known only by its published numbers: estimates work, nothing can be built */
    /* Operations are members of a group and have no kernels until the backend makes an operation of the group (group.h); and, for
     * `for_group`, their launches may be those of other members, too. Both only of CUDA. */
    bool kernels_later, for_group;
    /* With `for_group`: the members' lengths are data, so that launches are to serve all that are legal (cuda_bounded.h). */
    bool any_length;
    /* what such members' operations take their memory from, and that of the group on CUDA; NULL: each has memory of its own */
    struct nh_arena *arena;
    /* What an estimate's problem stands for: so many members, of which its batch consists. At most 1: none, or a single one. */
    double members;
    void *
        backend; /* struct nh_cpu * or struct nh_cuda_device *; only the backend's own solvers use it */
};

/* The device as solvers see it whose launches are for members of any lengths. */
static inline struct nh_device nh_device_for_any_length(const struct nh_device *device) {
    struct nh_device any = *device;
    any.kernels_later = any.for_group = any.any_length = true;
    return any;
}

/* A config is a handful of integers. The solver's table of knobs gives their names. */
#define NH_CONFIG_KNOBS 14
struct nh_config {
    int32_t value[NH_CONFIG_KNOBS];
};

/* What a plan executes. `run` only computes or enqueues; it does not allocate, compile or lock. The first one may wait for what `build`
 * has left under way. */
struct nh_operation {
    size_t workspace_bytes;
    nhood_status (*run)(const struct nh_operation *operation, const nhood_io *io);
    void (*destroy)(struct nh_operation *operation);
};

/* How a backend times its operations, on memory that the library allocates. */
struct nh_timing {
    /* Memory for the data and workspace of an execute, aligned to NH_ALIGNMENT. MEMORY. */
    nhood_status (*allocate)(const struct nh_device *device, size_t bytes, void **memory);
    void (*release)(const struct nh_device *device, void *memory);
    /* Copies from host memory; the copy is complete when it returns. */
    nhood_status (*write)(const struct nh_device *device, void *memory, const void *host,
                          size_t bytes);
    /* State that is kept between runs; both are NULL if there is none. DEVICE or MEMORY. *clock must be destroyed even after an
     * error. */
    nhood_status (*clock_create)(const struct nh_device *device, void **clock);
    void (*clock_destroy)(const struct nh_device *device, void *clock);
    /* Runs the operation once, on a stream of the backend's choice, and waits for its end. *ns is the time on the device. */
    nhood_status (*run)(const struct nh_device *device, void *clock,
                        const struct nh_operation *operation, const nhood_io *io, double *ns);
};

/* The counts that an estimate is based on, summed over all launches of an operation. */
struct nh_count {
    /* pairs of an owned tile and a loop tile (docs/glossary.md); of these, except for extra tokens, the pairs in which masks
     * hide something */
    double tiles, masked_tiles;
    /* floating-point operations of the products, including those that masks hide */
    double flops;
    /* the time that each part of the device would take alone, at its highest rate */
    double limit_ns[NHOOD_LIMIT_COUNT];
};

/* Predicts nanoseconds. Writes the counts that they are based on to *count unless it is NULL; a solver that does not work
 * by tiles leaves *count unchanged. */
typedef double nh_estimate_fn(const struct nh_solver *solver, const struct nh_problem *problem,
                              const struct nh_device *device, const struct nh_config *config,
                              struct nh_count *count);

typedef nhood_status nh_build_fn(const struct nh_solver *solver, const struct nh_problem *problem,
                                 const struct nh_device *device, const struct nh_config *config,
                                 struct nh_operation **operation);

/* A knob has a name, for the texts of configs. Neighbors with one name are the extents of a tile: "query_tile=1x8x8".
 * Words stand for values from 0 on: "copies|turns|fetched". A solver lists its knobs once, in a file *_knobs.def of lines
 * KNOB(index, name, meaning) or KNOB(index, name, meaning, words). The indices of a config's values, this table and
 * docs/knobs.md are made from it. */
struct nh_knob {
    const char *name, *words;
};
#define NH_KNOB_AS_INDEX(index, name, ...) index,
#define NH_KNOB_AS_ROW(index, name, ...) {name, NH_KNOB_WORDS(__VA_ARGS__, NULL, )},
#define NH_KNOB_WORDS(meaning, words, ...) words

/* Writes what a config asks of the device, from which its time is estimated. False if the config cannot run. */
typedef bool nh_work_fn(const struct nh_problem *problem, const struct nh_device *device,
                        const struct nh_config *config, struct nh_work *work);

/* Features that not every solver takes. nh_solver_refusal refuses them for the solvers that do not. */
enum {
    NH_TAKES_PARTS = 1, /* tensors that cover a part of the grid */
    NH_TAKES_PERIODIC = 2,
    NH_TAKES_ANY_SCALE = 4, /* also scales that f32 does not take (scale.h) */
    NH_TAKES_TABLES = 8     /* windows that are not by formula */
};

struct nh_solver {
    const char *name;           /* "reference", "cpu.fused", .. */
    int32_t device_kind;        /* NHOOD_DEVICE_* */
    uint32_t takes;             /* NH_TAKES_* */
    const struct nh_knob *knob; /* one per value, then one without a name; NULL: no knobs */
    /* NULL, or returns the problem as this solver sees it, for example with axes merged or in another order: either *view or
     * the given problem. All functions below are given that one (nh_solver_view). */
    const struct nh_problem *(*view)(const struct nh_problem *problem, struct nh_problem *view);
    /* Returns NULL, or a fixed text saying why the solver does not take the problem. Callers use nh_solver_refusal. */
    const char *(*refuse)(const struct nh_problem *problem, const struct nh_device *device);
    /* Writes up to `capacity` configs worth trying, at least one, the one with the least estimate first, and returns their
     * number. Values beyond the solver's knobs stay as they are, 0. */
    int (*candidates)(const struct nh_problem *problem, const struct nh_device *device,
                      struct nh_config *config, int capacity);
    nh_estimate_fn *estimate;
    nh_build_fn *build;
    /* CUDA solvers give a config's work, from which nh_estimate predicts its time, and its launches, of which nh_cuda_build
     * makes an operation. NULL for other solvers. */
    nh_work_fn *work;
    nhood_status (*add_steps)(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                              const struct nh_config *config);
    /* Among configs that take about as long, the planner takes the one for which this is least, so that few kernels, each of
     * which must be compiled, serve many sizes. INT_MAX: the config is never preferred. NULL: only estimates count. */
    int (*preference)(const struct nh_solver *solver, const struct nh_config *config);
    /* NULL, or the name of a solver that is never slower. The planner leaves problems that both take to that solver, and
     * neither searches nor measures configs of this one (docs/model.md). */
    const char *left_to;
    /* NULL, or returns NULL or why no config of the solver runs a problem that `refuse` lets pass: it takes longer to find out. */
    const char *(*refuse_all)(const struct nh_problem *problem, const struct nh_device *device);
};

/* Configs of a solver whose estimates are within this factor of its least one, least_ns, count as equally fast, because
 * estimates err by as much (docs/model.md). What takes longer than NH_LONG_NS is worth a kernel of its own, and the factor is
 * NH_NEARLY. */
#define NH_LONG_NS 5e6
#define NH_NEARLY 1.01
static inline double nh_about_as_long(double least_ns) {
    return least_ns > NH_LONG_NS ? NH_NEARLY : 1.05;
}

/* The problem that a solver's functions must be given: *view or `problem` itself. */
const struct nh_problem *nh_solver_view(const struct nh_solver *solver,
                                        const struct nh_problem *problem, struct nh_problem *view);

/* NULL, or why a solver does not take a problem. `view` is the problem as the solver sees it. */
const char *nh_solver_refusal(const struct nh_solver *solver, const struct nh_problem *view,
                              const struct nh_device *device);

/* The same, but for what the estimate of a config, if it is finite, answers: whether some config runs. */
const char *nh_solver_first_refusal(const struct nh_solver *solver, const struct nh_problem *view,
                                    const struct nh_device *device);

/* `refuse` and `candidates` of a solver that takes everything and has no knobs. */
const char *nh_refuse_nothing(const struct nh_problem *problem, const struct nh_device *device);
int nh_one_config(const struct nh_problem *problem, const struct nh_device *device,
                  struct nh_config *config, int capacity);

/* Moves the config with the least estimate to the front; among equal ones, the first. */
void nh_least_first(const struct nh_solver *solver, const struct nh_problem *problem,
                    const struct nh_device *device, struct nh_config *config, int count);

/* Enough for the text of any config, with its terminating zero. */
enum { NH_CONFIG_BYTES = 256 };

/* Writes a text such as "query_tile=1x8x8,warps=4,..", or "" if there are no knobs. It is always terminated. */
void nh_config_text(const struct nh_solver *solver, const struct nh_config *config, char *text,
                    size_t capacity);
/* Reads such a text. False if it is not a config of this solver. */
bool nh_config_parse(const struct nh_solver *solver, const char *text, struct nh_config *config);

#endif
