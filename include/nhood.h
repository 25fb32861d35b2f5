/* nhood: neighborhood attention on 1-D, 2-D and 3-D grids. (RMS norm and rotary positions: nhood_norm_rope.h.)
 *
 * Every token of a grid attends to a window of its nearest tokens. One flow serves everything:
 *
 *     context  ->  problem  ->  plan  ->  execute
 *
 *     nhood_context *context;
 *     nhood_context_create(NULL, &context);
 *     nhood_problem problem;
 *     nhood_problem_parse("fwd:f32:b1h4d32:56x56:w7x7", &problem);
 *     nhood_plan *plan;
 *     nhood_plan_create(context, 0, &problem, NULL, &plan);         // slow things happen here
 *     nhood_io io = {.struct_size = sizeof io};
 *     io.data[NHOOD_Q] = q; io.data[NHOOD_K] = k; io.data[NHOOD_V] = v; io.data[NHOOD_O] = o;
 *     io.workspace_bytes = nhood_plan_workspace_bytes(plan);
 *     io.workspace = aligned_alloc(64, io.workspace_bytes);         // a multiple of 64
 *     nhood_plan_execute(plan, &io);                                // only computes
 *
 * What is computed. On one axis of length L with window k, stride s, dilation d, token i is position
 * j = i div d of dilation group g = i mod d, whose length is Lg = ceil((L - g) / d). It attends the
 * tokens x*d + g for x in [start, end):
 *
 *     not causal:  leader = min((j/s)*s + s/2, Lg-1);  start = clamp(leader - k/2, 0, Lg-k);  end = start + k
 *     causal:      leader = min((j/s)*s + s-1, Lg-1);  start = max(leader - (k-1), 0);        end = j + 1
 *     periodic:    leader = (j/s)*s + s/2;             start = leader - k/2;  end = start + k, modulo Lg
 *
 * Near a border the window is shifted, never shrunk. A window of several axes is the box of its axes.
 * Over the window: S = scale * q.k (+ bias), P = softmax(S), O = P v, LSE = ln(sum(exp(S))).
 * Sources: Hassani, Hwu, Shi, "Faster Neighborhood Attention" (2024); the stride is that of
 * "Generalized Neighborhood Attention" (2025).
 *
 * Shapes (B batch, X.. the axes, H query heads, Hkv key/value heads, D, Dv head dims):
 *     Q, D_Q  [B, X.., H, D]      K, D_K  [B, X.., Hkv, D]       V, D_V  [B, X.., Hkv, Dv]
 *     O, D_O  [B, X.., H, Dv]     LSE, D_LSE  [B, X.., H]        A  [B, X.., H, k0*k1*k2]
 *     EXTRA_K [B, M, Hkv, D], EXTRA_V [B, M, Hkv, Dv]            BIAS, D_BIAS [H, 2*k0-1, ..]
 *
 * Regions. The tensors may cover a part of the grid, whose lengths L alone decide windows: those of queries (Q, O, LSE, A,
 * D_O, D_LSE, D_Q) a box of it, those of keys (K, V, D_K, D_V) another one; X.. are then the lengths of the box. A query
 * attends those keys of its window that lie in the key box. With none, and no extra token: O = 0, LSE = -infinity. Results
 * over disjoint key boxes merge by their LSEs, gradients of disjoint query boxes add up.
 *
 * Dtypes: all tensors have the problem's dtype, except LSE and D_LSE: f32, or f64 for an f64 problem.
 * f16 and bf16 are accumulated in f32.
 *
 * Conventions: strides and extents count elements, sizes count bytes and say so in their names.
 * Functions return NHOOD_OK or a negative status; nhood_last_error() then holds one line that names
 * the argument, its value and the limit. The library never aborts, exits, prints, or changes the
 * floating-point environment; it reads the environment only in nhood_context_create.
 * Structs that may grow start with struct_size: set it to sizeof (the init functions do).
 * "Creates": the caller destroys. "Borrows": valid for the call only. */
#ifndef NHOOD_H
#define NHOOD_H

#include <stddef.h>
#include <stdint.h>

#define NHOOD_VERSION_MAJOR 0 /* the ABI's version: the library's SOVERSION */
#define NHOOD_VERSION_MINOR 1
#define NHOOD_VERSION_PATCH 0

#if defined(NHOOD_BUILD) && defined(_WIN32)
#define NHOOD_API __declspec(dllexport)
#elif defined(NHOOD_BUILD) && defined(__GNUC__)
#define NHOOD_API __attribute__((visibility("default")))
#else
#define NHOOD_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* ---- status ---------------------------------------------------------------------------------- */

typedef int32_t nhood_status;
enum {
    NHOOD_OK = 0,
    NHOOD_ERR_ARGUMENT = -1,    /* an argument is out of its legal range */
    NHOOD_ERR_UNSUPPORTED = -2, /* legal, but no solver takes it; the text joins every refusal */
    NHOOD_ERR_MEMORY = -3,      /* an allocation failed */
    NHOOD_ERR_DEVICE = -4,      /* the device or its driver refused */
    NHOOD_ERR_COMPILE = -5,     /* run-time compilation failed; the text carries the log's start */
    NHOOD_ERR_CACHE_MISS = -6,  /* nothing stored for this request */
    NHOOD_ERR_INTERNAL = -7     /* a bug in the library; please report it */
};

/* The status's name ("NHOOD_ERR_ARGUMENT"), or "unknown status". Never NULL. */
NHOOD_API const char *nhood_status_name(nhood_status status);

/* The text of this thread's last failing call, "" if there was none. Valid until the thread's next
 * failing call. */
NHOOD_API const char *nhood_last_error(void);

/* "major.minor.patch" of the library in use, which may differ from the header's. */
NHOOD_API const char *nhood_version(void);

/* ---- context --------------------------------------------------------------------------------- */

typedef struct nhood_context nhood_context;

enum { NHOOD_LOG_ERROR = 0, NHOOD_LOG_WARNING = 1, NHOOD_LOG_INFO = 2 };

typedef void (*nhood_parallel_body)(void *arg, int64_t index, int32_t worker);

/* All fields but struct_size may be zero. Strings are borrowed. */
typedef struct nhood_context_options {
    size_t struct_size;
    /* CPU workers, the calling thread included, at most 1024. 0: $NHOOD_THREADS, else the CPUs that this process
     * may run on. */
    int32_t threads;
    int32_t reserved; /* 0 */
    /* Highest CPU instruction set: generic, avx2, avx512; aarch64: neon, sve256, sve512. NULL: $NHOOD_ISA, else the best. */
    const char *isa;
    /* Folder for compiled kernels and wisdom, "" for none. NULL: $NHOOD_CACHE, else $XDG_CACHE_HOME/nhood or
     * ~/.cache/nhood (Windows: %LOCALAPPDATA%/nhood/cache). The wisdom and calibrations in it are read at once; only
     * nhood_wisdom_save and nhood_device_calibrate write them. */
    const char *cache;
    /* Path of libnvrtc. NULL: $NHOOD_NVRTC, else searched for. */
    const char *nvrtc;
    /* Handed to the callbacks below, which must be callable from any thread and must not call the library: it may
     * hold a lock. */
    void *user;
    /* Memory for everything the library keeps; both or neither. NULL: that of the C library. */
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *memory);
    /* NULL: no log. */
    void (*log)(void *user, int32_t level, const char *line);
    /* Runs body(arg, index, worker) exactly once for every index in [0, count) and returns when all have
     * finished; worker is in [0, threads), and calls that run at the same time have different workers.
     * NULL: the library's own threads. */
    void (*parallel_for)(void *user, int64_t count, nhood_parallel_body body, void *arg);
    /* A GPU to plan for that need not be there: "a100", "h100", "h200" or "b200" adds a device of this name behind
     * the others, known by its published numbers; "sm_80", "sm_90" or "sm_100" all of that architecture.
     * nhood_plan_explain and nhood_bundle_add work on it, nhood_plan_create does not. NULL: none. */
    const char *describe;
    /* Bundles to take kernels from, before the cache folder and the compiler: paths, separated by colons (Windows: semicolons), "" for none.
     * NULL: $NHOOD_BUNDLE. Structs that end before this field are taken, too. */
    const char *bundle;
} nhood_context_options;

/* Creates a context: devices, worker threads, loaded kernels, wisdom. options may be NULL.
 * Several contexts may coexist; one context may be used by many threads. The library's threads block signals (not those of
 * faults); those that cannot be started are done without (log). After a fork, also beside other threads' calls, the child may
 * plan and execute, on one thread. No call is a cancellation point. Setuid programs take nothing from the environment.
 * Returns ARGUMENT (bad option or environment value, a bundle that is not there or is none) or MEMORY. */
NHOOD_API nhood_status nhood_context_create(const nhood_context_options *options,
                                            nhood_context **context);

/* Gives up the caller's reference; plans keep what they need alive. NULL is fine. */
NHOOD_API void nhood_context_destroy(nhood_context *context);

enum { NHOOD_DEVICE_CPU = 0, NHOOD_DEVICE_CUDA = 1 };

typedef struct nhood_device_info {
    size_t struct_size;
    int32_t kind;    /* NHOOD_DEVICE_* */
    int32_t ordinal; /* CUDA device ordinal, -1 for one that is only described; 0 for the CPU */
    int32_t workers; /* CPU threads in use, or streaming multiprocessors */
    int32_t reserved;
    char name[16];         /* "cpu", "cuda:0" */
    char description[128]; /* model, features, instruction set in use */
} nhood_device_info;

/* Devices are numbered from 0; device 0 is always the CPU. */
NHOOD_API int32_t nhood_device_count(const nhood_context *context);
NHOOD_API nhood_status nhood_device_query(const nhood_context *context, int32_t device,
                                          nhood_device_info *info);

/* One line that says what was looked for and found beyond the CPU (driver, compiler, bundles), and what to
 * install where something is missing. Valid as long as the context. */
NHOOD_API const char *nhood_context_notes(const nhood_context *context);

/* Where the kernels came from that the context's plans asked for so far, and what that took in all. */
typedef struct nhood_kernel_counts {
    size_t struct_size;
    int64_t from_memory; /* loaded before, by the same context */
    int64_t from_store;  /* of the cache folder */
    int64_t compiled;
    double store_ns, compile_ns;
    int64_t from_bundle; /* structs that end before it are taken, too */
    double bundle_ns;
} nhood_kernel_counts;

/* Zeros if no device compiles. ARGUMENT. */
NHOOD_API nhood_status nhood_context_kernels(const nhood_context *context,
                                             nhood_kernel_counts *counts);

typedef struct nhood_ceilings {
    size_t struct_size;
    /* Both by all workers. Fused multiply-adds in registers count 2, in f64 or f32 by dtype. */
    double flops_per_s;
    double bytes_per_s; /* copy, bytes read plus bytes written */
} nhood_ceilings;

/* Measures what the device can reach at most, in some tens of milliseconds, so that speeds can be given as
 * a share of it. dtype is NHOOD_DTYPE_F32 or NHOOD_DTYPE_F64 on the CPU. ARGUMENT, MEMORY, UNSUPPORTED. */
NHOOD_API nhood_status nhood_device_measure(nhood_context *context, int32_t device, int32_t dtype,
                                            nhood_ceilings *ceilings);

/* Where the coefficients of the device's estimates come from, in words: "built in, ..", or "calibrated, <file>". Valid as long as
 * the context; "" if there is no such device. */
NHOOD_API const char *nhood_device_estimates(const nhood_context *context, int32_t device);

/* How good choices by estimate are, before a calibration and after. The problems are those that wisdom has timings of; after it,
 * each is judged by a fit to the others. */
typedef struct nhood_calibration {
    size_t struct_size;
    int64_t problems, timings;
    /* Share of the problems whose choice takes at most 1.1 of the fastest's time. */
    double within_before, within_after;
    double worst_before, worst_after; /* of all choices, time over the fastest's */
    double lost_before, lost_after;   /* geometric mean of the same, less 1 */
    int32_t better;                   /* 1: less time is lost */
    int32_t written;                  /* 1: the file was */
} nhood_calibration;

enum { NHOOD_LEAST_CALIBRATION = 24 /* problems */ };

/* Fits the estimates of a CUDA device, also of one that is only described, to the context's wisdom, in seconds. What is better goes to a
 * file in the cache folder, one for each model of GPU, but not if `dry_run` is not 0. Contexts that are created later follow it.
 * UNSUPPORTED (the CPU), CACHE_MISS (fewer than NHOOD_LEAST_CALIBRATION problems with timings of two candidates; better, but there is no cache
 * folder), ARGUMENT (cannot be written), MEMORY. */
NHOOD_API nhood_status nhood_device_calibrate(nhood_context *context, int32_t device,
                                              int32_t dry_run, nhood_calibration *calibration);

/* ---- problem --------------------------------------------------------------------------------- */

enum {
    NHOOD_OP_FWD = 1, /* Q K V [BIAS EXTRA_K EXTRA_V] -> O [LSE] */
    /* the same, O LSE D_O [D_LSE] -> D_Q D_K D_V [D_BIAS D_EXTRA_K D_EXTRA_V] */
    NHOOD_OP_BWD = 2,
    NHOOD_OP_PN = 3, /* A[i,n] = scale * Q[i].K[N(i,n)] (+ BIAS)   Q K [BIAS] -> A */
    NHOOD_OP_NN = 4, /* O[i] = sum over n of A[i,n] V[N(i,n)]      A V -> O */
    NHOOD_OP_IN = 5  /* D_V[j] = sum over {i,n : j = N(i,n)} of A[i,n] D_O[i]     A D_O -> D_V */
};
/* N(i,n) enumerates the window row-major over its axes, slot n counting from the window's start. A causal
 * window and a key box may leave slots unused: pn writes -infinity there (0 with NHOOD_FLAG_ZERO_FILL), nn and in do
 * not read them. pn uses dim, nn and in use dim_v. With GQA, in sums over the query heads of a group. */

enum { NHOOD_DTYPE_F64 = 1, NHOOD_DTYPE_F32 = 2, NHOOD_DTYPE_F16 = 3, NHOOD_DTYPE_BF16 = 4 };

enum {
    /* window*dilation > length is legal: the window becomes max(1, length/dilation) */
    NHOOD_FLAG_CLAMP_WINDOW = 1,
    NHOOD_FLAG_DETERMINISTIC = 2, /* bit-equal results run to run, or UNSUPPORTED */
    NHOOD_FLAG_ALLOW_TF32 = 4, /* f32 products may be rounded to TF32 (10-bit mantissa) on CUDA */
    NHOOD_FLAG_ZERO_FILL = 8,  /* pn: unused slots get 0 */
    NHOOD_FLAG_UNALIGNED = 16  /* CUDA: tensors may start at any element, not only every 16 bytes */
};

/* The tensors: index into nhood_problem.strides and nhood_io.data. */
enum {
    NHOOD_Q,
    NHOOD_K,
    NHOOD_V,
    NHOOD_O,
    NHOOD_LSE,
    NHOOD_A,
    NHOOD_BIAS,
    NHOOD_EXTRA_K,
    NHOOD_EXTRA_V,
    NHOOD_D_O,
    NHOOD_D_LSE,
    NHOOD_D_Q,
    NHOOD_D_K,
    NHOOD_D_V,
    NHOOD_D_BIAS,
    NHOOD_D_EXTRA_K,
    NHOOD_D_EXTRA_V,
    NHOOD_TENSOR_COUNT,
    NHOOD_TENSOR_SLOTS = 24 /* array size, with room for later ones */
};

typedef struct nhood_axis {
    int64_t length;   /* L >= 1 */
    int64_t window;   /* 1 <= k, k * dilation <= L */
    int64_t stride;   /* 1 <= s <= k */
    int64_t dilation; /* 1 <= d */
    int32_t causal;   /* 0 or 1 */
    /* 0 or 1: the axis wraps around; d divides L, s divides L / d; not with causal */
    int32_t periodic;
} nhood_axis;

/* Strides of one tensor in elements; the last axis (D, Dv or the slots of A) is contiguous and has none.
 * All zero means packed, heads last, in the shape given at the top. Negative and, for inputs, zero strides
 * are legal. EXTRA_K/V and their gradients use axis[0] for their token axis. BIAS and D_BIAS are always
 * packed: their entries must stay zero. */
typedef struct nhood_strides {
    int64_t batch;
    int64_t axis[3];
    int64_t head;
} nhood_strides;

/* What the tensors cover of one axis: tokens [offset, offset + length) of its grid, 0 <= offset, offset + length <= L. On a
 * periodic axis offset < L, length <= L, and tokens are counted modulo L. Length 0: the whole axis, offset 0. */
typedef struct nhood_region {
    int64_t query_offset, query_length;
    int64_t key_offset, key_length;
} nhood_region;

typedef struct nhood_problem {
    size_t struct_size;
    int32_t op;         /* NHOOD_OP_* */
    int32_t dtype;      /* NHOOD_DTYPE_* */
    int32_t rank;       /* 1, 2 or 3 */
    uint32_t flags;     /* NHOOD_FLAG_* */
    nhood_axis axis[3]; /* slowest first; entries from rank on are ignored */
    int64_t batch;      /* B >= 1 */
    int64_t heads;      /* H >= 1 */
    int64_t kv_heads;   /* Hkv divides H; 0: H */
    int64_t dim;        /* 1 <= D <= 65536 */
    int64_t dim_v;      /* 1 <= Dv <= 65536; 0: D */
    /* M >= 0 further tokens that every query attends, in the same softmax; fwd and bwd. */
    int64_t extra_tokens;
    /* Any finite value; NaN: D^-1/2, and 1 for pn. Not f64 and not in [2^-100, 2^100], or 0: by the reference on a CPU. */
    double scale;
    /* 1: relative bias, index per axis (key position - query position) in the dilation group + k - 1; fwd, bwd
     * and pn; not with causal axes. */
    int32_t has_bias;
    int32_t reserved; /* 0 */
    nhood_strides strides[NHOOD_TENSOR_SLOTS];
    nhood_region region[3]; /* by axis; structs that end before it are taken, too: whole grids */
} nhood_problem;

/* Fills a problem with defaults: axes of length, window, stride and dilation 1, batch and heads 1, dim 32,
 * packed tensors, default scale, whole grids. struct_size: sizeof(nhood_problem), which the macro behind it adds. The function
 * of the macro's name serves programs built before nhood_problem had regions, and writes no more than they have room for. */
NHOOD_API void nhood_problem_init_sized(nhood_problem *problem, size_t struct_size, int32_t op,
                                        int32_t dtype, int32_t rank);
NHOOD_API void nhood_problem_init(nhood_problem *problem, int32_t op, int32_t dtype, int32_t rank);
#define nhood_problem_init(problem, op, dtype, rank)                                               \
    nhood_problem_init_sized(problem, sizeof(nhood_problem), op, dtype, rank)

/* The problem text, one line used by the tool, the tests, wisdom and logs:
 *     <op>:<dtype>:b<B>h<H>[k<Hkv>]d<D>[v<Dv>]:<L>x<L>..:w<k>x<k>..[:s<s>x..][:d<d>x..][:c<0|1 per axis>]
 *     [:p<0|1 per axis>][:q<offset>+<length>x..][:k<offset>+<length>x..]
 *     [:x<M>][:scale<number>][:rpb][:det][:tf32][:clamp][:zfill][:unaligned]
 * with op fwd, bwd, pn, nn, in and dtype f64, f32, f16, bf16; p: periodic axes, q and k: the boxes of queries and keys.
 * Strides are not part of it.
 * Parse: ARGUMENT names the column; the result is checked as plan_create would. struct_size and macro: as init's. */
NHOOD_API nhood_status nhood_problem_parse_sized(const char *text, nhood_problem *problem,
                                                 size_t struct_size);
NHOOD_API nhood_status nhood_problem_parse(const char *text, nhood_problem *problem);
#define nhood_problem_parse(text, problem)                                                         \
    nhood_problem_parse_sized(text, problem, sizeof(nhood_problem))

/* Writes the text with its terminating zero; *length (may be NULL) is the length without it. ARGUMENT if
 * the problem is not legal or capacity <= length, then nothing is written (text may be NULL if capacity is 0). */
NHOOD_API nhood_status nhood_problem_format(const nhood_problem *problem, char *text,
                                            size_t capacity, size_t *length);

/* Checks a problem and reports facts: useful floating-point operations (2 per multiply-add over the window
 * and the extra tokens; backward counts 2.5 forwards), the least bytes to move, and each tensor's extent.
 * Outputs may be NULL. ARGUMENT. */
NHOOD_API nhood_status nhood_problem_cost(const nhood_problem *problem, double *flops,
                                          double *bytes);

/* Elements of a packed tensor of this problem; 0 where the operation does not use it. ARGUMENT. */
NHOOD_API nhood_status nhood_problem_elements(const nhood_problem *problem, int32_t tensor,
                                              int64_t *elements);

/* Key range of token `index` on one axis: tokens first, first + dilation, .. (count of them; modulo the length, on a periodic
 * axis). ARGUMENT. */
NHOOD_API nhood_status nhood_window(const nhood_axis *axis, int64_t index, int64_t *first,
                                    int64_t *count);

/* ---- plan ------------------------------------------------------------------------------------ */

typedef struct nhood_plan nhood_plan;

enum {
    NHOOD_EFFORT_ESTIMATE = 0,   /* what wisdom knows to be fastest, else the least estimate */
    NHOOD_EFFORT_MEASURE = 1,    /* if wisdom knows nothing, first time the candidates */
    NHOOD_EFFORT_WISDOM_ONLY = 2 /* CACHE_MISS if wisdom knows nothing */
};

typedef struct nhood_plan_options {
    size_t struct_size;
    /* Only this solver ("reference", "cpu.fused", ..); NULL: choose. Borrowed. */
    const char *solver;
    int32_t effort;   /* NHOOD_EFFORT_* */
    int32_t reserved; /* 0 */
    /* MEASURE: seconds that it may take, more or less: the likeliest candidate is timed in any case, and what has
     * begun is finished. 0: until every candidate has been timed well. */
    double budget_s;
} nhood_plan_options;

/* Creates a plan: chooses a solver, compiles and loads what it needs. options may be NULL.
 * A plan is immutable and may be executed by several threads at the same time.
 *
 * The choice depends on nothing but problem, device, options and the context's wisdom. MEASURE adds to that wisdom
 * what it times, on packed tensors of its own, which need as much memory again as the problem's; where that fails, a
 * warning is logged and the estimate decides. A solver whose code the compiler or the device refuses gives way to
 * the next best; log and description say so.
 * Returns ARGUMENT (problem not legal, no such device or solver), UNSUPPORTED (every solver refused), MEMORY,
 * DEVICE, COMPILE, CACHE_MISS (WISDOM_ONLY). */
NHOOD_API nhood_status nhood_plan_create(nhood_context *context, int32_t device,
                                         const nhood_problem *problem,
                                         const nhood_plan_options *options, nhood_plan **plan);
NHOOD_API void nhood_plan_retain(nhood_plan *plan);
NHOOD_API void nhood_plan_release(nhood_plan *plan); /* the last release destroys; NULL is fine */

/* Bytes of workspace every execute needs, a multiple of 64; 0: none. */
NHOOD_API size_t nhood_plan_workspace_bytes(const nhood_plan *plan);

/* One line: problem, device, solver, config, expected time, origin of the choice. Lives as long as the plan. */
NHOOD_API const char *nhood_plan_description(const nhood_plan *plan);

/* The parts of a GPU that may limit a tiled solver: nhood_candidate.limit_ns. */
enum {
    NHOOD_LIMIT_TENSOR,      /* products on tensor cores, what masks hide included */
    NHOOD_LIMIT_EXPONENTIAL, /* one per logit */
    NHOOD_LIMIT_MASK,        /* one instruction per logit of a masked tile */
    NHOOD_LIMIT_L2,          /* what all blocks copy from the L2 */
    NHOOD_LIMIT_MEMORY,      /* every tensor moved once */
    NHOOD_LIMIT_COUNT
};

/* One row per solver that was asked: a refusal, or a config and its estimate. Strings are borrowed. */
typedef struct nhood_candidate {
    size_t struct_size;
    const char *solver;
    const char *refusal; /* NULL if the solver takes the problem */
    const char *config;  /* "" for a refusal or a solver without knobs */
    double estimate_ns;
    int32_t chosen; /* 1 on the one row that plan_create would build */
    int32_t reserved;
    double measured_ns; /* by wisdom: the median of so many samples; 0: not known */
    int64_t samples;
    /* What the estimate rests on, over all launches; 0 where a solver does not count tiles. */
    double tiles;         /* pairs of a tile of rows with a tile of columns that are multiplied */
    double masked_tiles;  /* of these, extra tokens aside, pairs in which masks hide something */
    double product_flops; /* of the products, what masks hide included */
    /* What each part of the device alone would take at its highest rate: the largest binds. */
    double limit_ns[NHOOD_LIMIT_COUNT];
} nhood_candidate;
typedef void (*nhood_candidate_fn)(void *user, const nhood_candidate *candidate);

/* Reports what plan_create would consider, without measuring or building it. Returns what plan_create's choice would:
 * OK, ARGUMENT, UNSUPPORTED, MEMORY. */
NHOOD_API nhood_status nhood_plan_explain(nhood_context *context, int32_t device,
                                          const nhood_problem *problem,
                                          const nhood_plan_options *options,
                                          nhood_candidate_fn report, void *user);

/* The solver table: names for index 0 .. count-1, each with the kind of device it runs on. NULL past the end. */
NHOOD_API const char *nhood_solver_name(int32_t index, int32_t *device_kind);

/* ---- bundles --------------------------------------------------------------------------------- */

/* CUDA kernels compiled ahead of time, into one file, for machines without NVRTC and first plans that do not wait. A bundle
 * serves the version of the library that made it (the same kernel sources), on the architectures it was made for. */
typedef struct nhood_bundle nhood_bundle;

/* An empty bundle. Needs NVRTC, but no GPU. COMPILE (no NVRTC), ARGUMENT, MEMORY. */
NHOOD_API nhood_status nhood_bundle_create(nhood_context *context, nhood_bundle **bundle);
NHOOD_API void nhood_bundle_destroy(nhood_bundle *bundle); /* NULL is fine */

/* Adds the kernels that plan_create would use for the problem on a CUDA device, one that is there or is only described.
 * Others than ESTIMATE and WISDOM_ONLY are ARGUMENT. Any number of threads may add at the same time. Returns what
 * plan_create would. */
NHOOD_API nhood_status nhood_bundle_add(nhood_bundle *bundle, int32_t device,
                                        const nhood_problem *problem,
                                        const nhood_plan_options *options);

/* Writes what was added so far in place of the file at the path. ARGUMENT (cannot be written). */
NHOOD_API nhood_status nhood_bundle_save(nhood_bundle *bundle, const char *path);

/* As nhood_context_kernels: the bundle has from_store + compiled kernels. ARGUMENT. */
NHOOD_API nhood_status nhood_bundle_kernels(const nhood_bundle *bundle,
                                            nhood_kernel_counts *counts);

/* ---- execute --------------------------------------------------------------------------------- */

typedef struct nhood_io {
    size_t struct_size;
    void *data[NHOOD_TENSOR_SLOTS]; /* by NHOOD_Q ..; inputs are only read, unused ones ignored */
    void *workspace;                /* 64-byte aligned; contents before and after are meaningless */
    size_t workspace_bytes;         /* >= nhood_plan_workspace_bytes */
    void *stream; /* CUDA: the CUstream, 0 the legacy default; ignored on the CPU */
} nhood_io;

/* Runs a plan once.
 *
 * Pointers are host pointers for CPU plans and device pointers for CUDA plans, aligned to their dtype, on
 * CUDA those of head dim D or Dv to 16 bytes unless the problem has NHOOD_FLAG_UNALIGNED
 * (EXTRA_* only if extra_tokens > 0, BIAS only if has_bias). Optional, NULL to leave out: LSE of fwd, D_LSE,
 * and every D_* output of bwd. Outputs must not overlap inputs or each other. Two executes at the same time
 * need two workspaces.
 *
 * CUDA: enqueues and returns; allocates nothing, compiles nothing, synchronises nothing, and so may be
 * captured into a CUDA graph. CPU: returns when the result is complete; the result does not depend on the
 * number of threads.
 *
 * Returns ARGUMENT (a pointer is missing or misaligned, the workspace is too small) or DEVICE (launch refused;
 * faults during the run surface at the caller's next synchronisation). Results of one plan are bit-equal run
 * to run on the CPU, and on CUDA with NHOOD_FLAG_DETERMINISTIC; different plans may differ in rounding. */
NHOOD_API nhood_status nhood_plan_execute(const nhood_plan *plan, const nhood_io *io);

/* ---- wisdom ---------------------------------------------------------------------------------- */

/* What was measured: every candidate of every problem, strides left aside. As text, one candidate a line after the
 * header line "nhood-wisdom 1", fields separated by one blank:
 *     <device> <problem text> <solver> <config, - for none> <median ns> <samples>
 * The device is its description with '_' for blanks: text of several machines may be joined. Of two lines about one
 * candidate that with more samples counts, then the faster: joining in any order gives the same wisdom, and contexts
 * of the same wisdom on alike devices make the same plans. */

/* Export writes the terminating zero; *length (may be NULL) is the length without it; ARGUMENT if capacity <= length,
 * MEMORY. A context that knows nothing exports the header alone. */
NHOOD_API nhood_status nhood_wisdom_export(const nhood_context *context, char *text,
                                           size_t capacity, size_t *length);

/* Takes over every line that is well formed, also those about devices, solvers and configs unknown here, which are
 * kept but not used; each line left out is logged with its reason. *accepted (may be NULL) counts the lines taken.
 * ARGUMENT if the header line is missing or of another format, MEMORY. */
NHOOD_API nhood_status nhood_wisdom_import(nhood_context *context, const char *text,
                                           int64_t *accepted);

/* Imports a file. path NULL: that in the context's cache folder, which every context reads when it is created.
 * CACHE_MISS if there is no such file or no cache folder, ARGUMENT (not wisdom, cannot be read), MEMORY. */
NHOOD_API nhood_status nhood_wisdom_load(nhood_context *context, const char *path,
                                         int64_t *accepted);

/* Joins the context's wisdom into a file; with `replace` not 0, in place of what is there. path NULL: as above; the
 * folder is made. Any number of processes may do so at once: they take turns, by a lock on <path>.lock, and nothing is
 * lost (but where files cannot be locked; log). CACHE_MISS (no cache folder), ARGUMENT (the file there is not
 * wisdom, cannot be written), MEMORY. */
NHOOD_API nhood_status nhood_wisdom_save(nhood_context *context, const char *path, int32_t replace);

enum { NHOOD_ANY_DEVICE = -1 };

/* Drops what is known of a problem (NULL: of every one) on a device or, NHOOD_ANY_DEVICE, on all, other machines'
 * included. *forgotten (may be NULL) counts the lines. ARGUMENT. */
NHOOD_API nhood_status nhood_wisdom_forget(nhood_context *context, int32_t device,
                                           const nhood_problem *problem, int64_t *forgotten);

#ifdef __cplusplus
}
#endif
#endif
