/* nhood: neighborhood attention on 1-D, 2-D and 3-D grids. (RMS norm and rotary positions: nhood_norm_rope.h.)
 *
 * Every token of a grid attends to a window of its nearest tokens. Every use follows the same steps:
 *
 *     context  ->  problem  ->  plan  ->  execute
 *
 *     nhood_context *context;
 *     nhood_context_create(NULL, &context);
 *     nhood_problem problem;
 *     nhood_problem_parse("fwd:f32:b1h4d32:56x56:w7x7", &problem);
 *     nhood_plan *plan;
 *     nhood_plan_create(context, 0, &problem, NULL, &plan);         // all slow work is done here
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
 * Near a border the window is shifted, never shrunk, unless the axis is causal. On several axes the window is the product of
 * the windows along each axis.
 * Over the window: S = scale * q.k (+ bias), P = softmax(S), O = P v, LSE = ln(sum(exp(S))).
 * Sources: Hassani, Hwu, Shi, "Faster Neighborhood Attention" (2024); the stride is that of
 * "Generalized Neighborhood Attention" (2025).
 *
 * Shapes (B batch, X.. the axes, H query heads, Hkv key/value heads, D, Dv head dims):
 *     Q, D_Q  [B, X.., H, D]      K, D_K  [B, X.., Hkv, D]       V, D_V  [B, X.., Hkv, Dv]
 *     O, D_O  [B, X.., H, Dv]     LSE, D_LSE  [B, X.., H]        A  [B, X.., H, k0*k1*k2]
 *     EXTRA_K [B, M, Hkv, D], EXTRA_V [B, M, Hkv, Dv]            BIAS, D_BIAS [H, 2*k0-1, ..]
 *
 * Window tables. An axis may instead have a range of keys of its own for every query coordinate (nhood_windows): windows
 * that shrink at borders, blocks, queries on a finer or coarser grid than the keys, valid lengths of padded data, or any other
 * ranges whose beginnings and ends never decrease. Its queries and keys then lie on two grids, of any two lengths.
 *
 * Regions. The tensors may cover only a part of the grid: those of queries (Q, O, LSE, A, D_O, D_LSE, D_Q) one box of it, and
 * those of keys (K, V, D_K, D_V) another one. X.. are then the lengths of the box. Windows are still those of the whole grid
 * with its lengths L. A query attends those keys of its window that lie in the key box. A query without any such key, and
 * without extra tokens, gets O = 0 and LSE = -infinity. Results over disjoint key boxes can be merged by their LSEs, and
 * gradients of disjoint query boxes add up. Those of disjoint key boxes do, too, if each BWD gets the merged O and LSE.
 *
 * Dtypes: all tensors have the problem's dtype, except LSE and D_LSE: f32, or f64 for an f64 problem.
 * f16 and bf16 are accumulated in f32.
 *
 * Conventions: strides and extents count elements; sizes in bytes have names that end in _bytes.
 * Functions return NHOOD_OK or a negative status; nhood_last_error() then holds one line that names
 * the argument, its value and the limit. The library never aborts, exits, prints (but for $NHOOD_LOG), or changes the
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
    NHOOD_ERR_CACHE_MISS = -6,  /* what the call needs is not stored */
    NHOOD_ERR_INTERNAL = -7,    /* a bug in the library; please report it */
    NHOOD_ERR_INTERRUPTED = -8  /* the application's callback ended the call */
};

/* The status's name ("NHOOD_ERR_ARGUMENT"), or "unknown status". Never NULL. */
NHOOD_API const char *nhood_status_name(nhood_status status);

/* The error text of this thread's last failing call, "" if there was none; at most 4095 bytes. Valid until the thread's next
 * failing call. Never NULL. */
NHOOD_API const char *nhood_last_error(void);

/* "major.minor.patch" of the library that is loaded, which may differ from the header's. */
NHOOD_API const char *nhood_version(void);

/* ---- context --------------------------------------------------------------------------------- */

typedef struct nhood_context nhood_context;

/* Levels of log lines, from the most to the least urgent. */
enum { NHOOD_LOG_ERROR = 0, NHOOD_LOG_WARNING = 1, NHOOD_LOG_INFO = 2 };

/* One iteration of a loop of the library: see nhood_context_options.parallel_for. */
typedef void (*nhood_parallel_body)(void *arg, int64_t index, int32_t worker);

/* All fields but struct_size may be zero. Strings are borrowed. */
typedef struct nhood_context_options {
    size_t struct_size;
    /* Number of CPU workers, including the calling thread, in [0, 1024]. 0: $NHOOD_THREADS or, if that is not set, the least of
     * the CPUs that this process may run on, its cgroup's quota and $OMP_NUM_THREADS. If $LOCAL_WORLD_SIZE is set, as by torchrun,
     * so many processes share the CPUs, unless each is bound to its own. */
    int32_t threads;
    /* 1: CUDA kernels know their source lines, for profilers. 0: only if $NHOOD_LINE_INFO is 1. */
    int32_t line_info;
    /* Best CPU instruction set that may be used: generic, avx2, avx512, amx (on Linux); on aarch64 neon, sve256, sve512.
     * NULL: $NHOOD_ISA or, if that is not set, the best one. */
    const char *isa;
    /* Folder for compiled kernels and wisdom, "" for none. NULL: $NHOOD_CACHE or, if that is not set, $XDG_CACHE_HOME/nhood or
     * ~/.cache/nhood (Windows: %LOCALAPPDATA%/nhood/cache). '~' at the beginning stands for the home folder. Its wisdom and
     * calibrations are read when the context is created; only nhood_wisdom_save and nhood_device_calibrate write them. A folder
     * that others own or may write to, or that cannot be opened, is neither read nor written: a warning is logged. */
    const char *cache;
    /* Path of libnvrtc. NULL: $NHOOD_NVRTC or, if that is not set, it is searched for. */
    const char *nvrtc;
    /* Passed to the callbacks below. These must be callable from any thread, and must not call the library, which may hold a
     * lock. */
    void *user;
    /* Functions for all memory that the library keeps; set both or neither. NULL: those of the C library. allocate returns
     * memory of at least `bytes`, at a multiple of `alignment` (64), or NULL; release never gets NULL. */
    void *(*allocate)(void *user, size_t bytes, size_t alignment);
    void (*release)(void *user, void *memory);
    /* Gets one line at a time, without its end and of at most 511 bytes; level: NHOOD_LOG_*. NULL: no log or, if
     * $NHOOD_LOG is error, warning or info, lines of this level and more urgent ones on stderr. */
    void (*log)(void *user, int32_t level, const char *line);
    /* Runs body(arg, index, worker) exactly once for every index in [0, count), in any order, and returns when all have
     * finished; worker is in [0, threads) (threads 0: below nhood_device_info.workers of the CPU), and calls that run at the
     * same time have different workers.
     * NULL: the library's own threads. */
    void (*parallel_for)(void *user, int64_t count, nhood_parallel_body body, void *arg);
    /* GPUs to plan for that need not be present: "a100", "h100", "h200" or "b200" adds a device of this name after the others,
     * which is known by its published numbers; "sm_80", "sm_90" or "sm_100" adds all those of that architecture.
     * nhood_plan_explain, nhood_bundle_add and nhood_device_calibrate work on them; what would run on them returns DEVICE, as
     * nhood_plan_create does. NULL: none. */
    const char *describe;
    /* Bundles whose kernels are used before those of the cache folder and the compiler: paths, separated by colons (Windows:
     * semicolons), "" for none. NULL: $NHOOD_BUNDLE. */
    const char *bundle;
    /* Asked about ten times a second, by the thread that has called, while a CPU computes in an execute or measures for a plan.
     * Anything but 0 ends that call soon with INTERRUPTED: outputs hold anything then, and what was measured is kept. NULL: calls
     * run to their end. */
    int32_t (*interrupted)(void *user);
} nhood_context_options;

/* Creates a context, which has devices, worker threads, loaded kernels and wisdom. options may be NULL. After an error *context
 * is NULL.
 *
 * Several contexts may coexist, and many threads may use the same one. The library's threads block all signals but those of
 * faults. If the system cannot start all threads, a warning is logged and the context uses fewer. After a fork, even during
 * calls of other threads, the child may plan and execute, but on one thread. No call is a cancellation point. In setuid
 * programs the environment is ignored.
 * Returns ARGUMENT (bad option or environment value, a bundle that does not exist or is not one), MEMORY or DEVICE (there is a
 * CUDA driver, but it fails to list its devices; without a driver or a GPU the context has the CPU alone). */
NHOOD_API nhood_status nhood_context_create(const nhood_context_options *options,
                                            nhood_context **context);

/* Gives up the caller's reference. Plans keep alive what they need. Does nothing for NULL. */
NHOOD_API void nhood_context_destroy(nhood_context *context);

enum { NHOOD_DEVICE_CPU = 0, NHOOD_DEVICE_CUDA = 1 };

typedef struct nhood_device_info {
    size_t struct_size;
    int32_t kind;    /* NHOOD_DEVICE_* */
    int32_t ordinal; /* CUDA device ordinal, -1 for one that is only described; 0 for the CPU */
    int32_t workers; /* CPU threads in use, or streaming multiprocessors */
    int32_t reserved;
    char name[16];         /* "cpu", "cuda:0", or the name of a described GPU, such as "h200" */
    char description[128]; /* model, features, instruction set in use */
} nhood_device_info;

/* The number of devices, which are numbered from 0; device 0 is always the CPU. 0 if context is NULL. */
NHOOD_API int32_t nhood_device_count(const nhood_context *context);

/* Writes what there is to know about a device. ARGUMENT (no such device, info->struct_size). */
NHOOD_API nhood_status nhood_device_query(const nhood_context *context, int32_t device,
                                          nhood_device_info *info);

/* One line that says what was found besides the CPU (driver, compiler, bundles), and what to install if something is missing.
 * Valid as long as the context; "" if that is NULL. */
NHOOD_API const char *nhood_context_notes(const nhood_context *context);

/* Where the number of CPU threads comes from, in words: "options.threads", "NHOOD_THREADS", "OMP_NUM_THREADS", "the CPUs that the
 * process may run on", "the cgroup's quota of 2 CPUs", .. Valid as long as the context; "" if that is NULL. */
NHOOD_API const char *nhood_context_threads(const nhood_context *context);

/* From now on at most so many of the context's CPU threads, the calling one included, take part in a call; 0: all of them, as at
 * first. Results do not depend on it. It may be called at any time by any thread, costs nothing, and does not concern loops by
 * options.parallel_for. ARGUMENT (not in [0, 1024], context is NULL). */
NHOOD_API nhood_status nhood_context_limit_threads(nhood_context *context, int32_t threads);

/* Where the kernels of the context's plans came from so far, and how long getting them took: the times of all kernels, added up
 * also where several threads got theirs at the same time. */
typedef struct nhood_kernel_counts {
    size_t struct_size;
    int64_t from_memory; /* loaded before by the same context */
    int64_t from_store;  /* from the cache folder */
    int64_t compiled;
    double store_ns, compile_ns;
    int64_t from_bundle;
    double bundle_ns;
} nhood_kernel_counts;

/* Writes the counts, which are 0 if no device compiles kernels. ARGUMENT (counts->struct_size). */
NHOOD_API nhood_status nhood_context_kernels(const nhood_context *context,
                                             nhood_kernel_counts *counts);

typedef struct nhood_ceilings {
    size_t struct_size;
    /* Both are those of all workers together. Fused multiply-adds in registers, which count 2, in the dtype asked for; on CUDA
     * those of f16 and bf16 are of tensor cores. */
    double flops_per_s;
    double bytes_per_s; /* of a copy: bytes read plus bytes written */
} nhood_ceilings;

/* Measures the device's peak rates, in some tens of milliseconds, so that speeds can be given as a share of them. dtype is
 * NHOOD_DTYPE_*; a CPU computes f16 and bf16 in f32, and measures that. Allocates 64 MiB on the CPU and 1 GiB on a GPU.
 * ARGUMENT, MEMORY, DEVICE (also for lack of device memory), COMPILE. */
NHOOD_API nhood_status nhood_device_measure(nhood_context *context, int32_t device, int32_t dtype,
                                            nhood_ceilings *ceilings);

/* Where the coefficients of the device's estimates come from, in words: "built in", "built in, ..", or "calibrated, <file>".
 * Valid as long as the context; "" if there is no such device. */
NHOOD_API const char *nhood_device_estimates(const nhood_context *context, int32_t device);

/* How good choices by estimate are before and after a calibration, on the problems of which wisdom has timings of two
 * candidates or more. The numbers after it come from cross-validation: each problem is judged by a fit to others. */
typedef struct nhood_calibration {
    size_t struct_size;
    int64_t problems, timings; /* how many problems, and how many timings of candidates for them */
    /* Share of the problems whose choice takes at most 1.1 times as long as the fastest candidate. */
    double within_before, within_after;
    double worst_before, worst_after; /* the largest ratio of a choice's time to the fastest's */
    double lost_before, lost_after;   /* the geometric mean of these ratios, less 1 */
    int32_t better;                   /* 1: the calibration loses less time */
    int32_t written;                  /* 1: the file was written */
} nhood_calibration;

enum { NHOOD_LEAST_CALIBRATION = 24 /* problems */ };

/* Fits the estimates of a CUDA device, which may be only described, to the context's wisdom, which takes seconds. If the fit is
 * better and dry_run is 0, it is written to a file in the cache folder, one for each model of GPU. Contexts that are created
 * later use it. UNSUPPORTED (the CPU), CACHE_MISS (fewer than NHOOD_LEAST_CALIBRATION problems with timings of two candidates,
 * or no cache folder to write to), ARGUMENT (no such device, calibration->struct_size, the file cannot be written), MEMORY. */
NHOOD_API nhood_status nhood_device_calibrate(nhood_context *context, int32_t device,
                                              int32_t dry_run, nhood_calibration *calibration);

/* ---- problem --------------------------------------------------------------------------------- */

enum {
    NHOOD_OP_FWD = 1, /* Q K V [BIAS EXTRA_K EXTRA_V] -> O [LSE] */
    /* the inputs of FWD, O LSE D_O [D_LSE] -> D_Q D_K D_V [D_BIAS D_EXTRA_K D_EXTRA_V] */
    NHOOD_OP_BWD = 2,
    NHOOD_OP_PN = 3, /* A[i,n] = scale * Q[i].K[N(i,n)] (+ BIAS)   Q K [BIAS] -> A */
    NHOOD_OP_NN = 4, /* O[i] = sum over n of A[i,n] V[N(i,n)]      A V -> O */
    NHOOD_OP_IN = 5  /* D_V[j] = sum over {i,n : j = N(i,n)} of A[i,n] D_O[i]     A D_O -> D_V */
};
/* N(i,n) is the key at slot n of the window of query i; slots are numbered from the window's start, row-major over the axes. A
 * causal window or a key box may leave slots unused: pn writes -infinity there (0 with NHOOD_FLAG_ZERO_FILL), nn and in do not
 * read them. pn uses dim, nn and in use dim_v. With fewer kv_heads than heads, in sums over the query heads of a group. */

enum { NHOOD_DTYPE_F64 = 1, NHOOD_DTYPE_F32 = 2, NHOOD_DTYPE_F16 = 3, NHOOD_DTYPE_BF16 = 4 };

enum {
    /* window*dilation > length is legal: the window becomes max(1, length/dilation), and the stride at most the window */
    NHOOD_FLAG_CLAMP_WINDOW = 1,
    NHOOD_FLAG_DETERMINISTIC = 2, /* results are bit-equal from run to run, or UNSUPPORTED */
    NHOOD_FLAG_ALLOW_TF32 = 4, /* f32 products may be rounded to TF32 (10-bit mantissa) on CUDA */
    NHOOD_FLAG_ZERO_FILL = 8,  /* pn: unused slots get 0 */
    NHOOD_FLAG_UNALIGNED = 16  /* CUDA: tensors may start at any element, not only every 16 bytes */
};

/* The tensors, as indices into nhood_problem.strides and nhood_io.data. */
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
    NHOOD_TENSOR_SLOTS = 24 /* size of the arrays, with room for later tensors */
};

typedef struct nhood_axis {
    int64_t length;   /* 1 <= L <= 2^40 */
    int64_t window;   /* 1 <= k, k * dilation <= L */
    int64_t stride;   /* 1 <= s <= k */
    int64_t dilation; /* 1 <= d */
    int32_t causal;   /* 0 or 1 */
    /* 0 or 1: the axis wraps around; d divides L, s divides L / d; not with causal */
    int32_t periodic;
} nhood_axis;

/* The keys first .. first + count - 1 of one axis. */
typedef struct nhood_range {
    int32_t first, count;
} nhood_range;

/* Where the windows of an axis come from. Below, L queries attend Lk keys, m div n is rounded down, and a range is
 * [begin, end), cut to [0, Lk):
 *
 *     FORMULA     from nhood_axis, as at the top
 *     TABLE       the caller's: range[i], for any L and Lk
 *     RESAMPLED   the window's keys around the one nearest to query i, if both grids cover the same extent, shifted at borders:
 *                 begin = clamp((2i + 1) * Lk div 2L - window div 2, 0, Lk - window);  end = begin + window
 *     CUT         begin = i - window div 2;  end = begin + window: windows shrink at borders, as with padding   (Lk = L)
 *     BLOCKS      block (i + shift) div window: begin = block * window - shift;  end = begin + window: shifted   (Lk = L)
 *                 blocks, ragged at both ends
 *
 *     queries  0 1 2 3 4 5 6 7      RESAMPLED, Lk 4, window 1     CUT, window 3              BLOCKS, window 4, shift 2
 *     keys of query 0, 1, 2, 3      0 | 0 | 1 | 1                 01 | 012 | 123 | 234       01 | 01 | 2345 | 2345
 *     keys of query 4, 5, 6, 7      2 | 2 | 3 | 3                 345 | 456 | 567 | 67       2345 | 2345 | 67 | 67 */
enum {
    NHOOD_WINDOWS_FORMULA = 0,
    NHOOD_WINDOWS_TABLE = 1,
    NHOOD_WINDOWS_RESAMPLED = 2,
    NHOOD_WINDOWS_CUT = 3,
    NHOOD_WINDOWS_BLOCKS = 4
};

/* The windows of an axis that are not those of nhood_axis; window, stride and dilation of that are then 1, causal and periodic
 * 0, and length is the number of queries. Fields that a kind does not use are to be 0. A query without keys gets O = 0 and
 * LSE = -infinity, unless there are extra tokens, and a key that no query attends gets gradients of 0. In A every query has as
 * many slots on the axis as the one with the most keys, at least 1. Not with has_bias. L and Lk are less than 2^31. Windows that are
 * those of a formula without stride, dilation, causality or period are computed by it, and a problem's text says so. */
typedef struct nhood_windows {
    int32_t kind;     /* NHOOD_WINDOWS_*; all others of this struct are 0 for FORMULA */
    int32_t reserved; /* 0 */
    int64_t keys;     /* TABLE, RESAMPLED: Lk >= 1. CUT, BLOCKS: 0 or L */
    int64_t window;   /* RESAMPLED: in [1, Lk]. CUT, BLOCKS: in [1, 2^31) */
    int64_t shift;    /* BLOCKS: in [0, window) */
    /* The last so many keys are padding, in [0, Lk], which no query attends: a range ends before them. */
    int64_t padding;
    /* TABLE: the ranges of queries 0 .. L - 1. 0 <= first, 0 <= count, first + count <= Lk; neither first nor first + count ever
     * decreases. Borrowed: a plan keeps its own copy. */
    const nhood_range *range;
} nhood_windows;

/* Strides of one tensor in elements; the last axis (D, Dv or the slots of A) is contiguous and has none.
 * All zero means packed, heads last, in the shape given at the top. Negative and, for inputs, zero strides
 * are legal; a tensor reaches over at most 2^59 elements. Those of axes from the rank on are to be 0. EXTRA_K/V and their
 * gradients use axis[0] for their token axis. BIAS and D_BIAS are always packed: their entries must stay zero. */
typedef struct nhood_strides {
    int64_t batch;
    int64_t axis[3];
    int64_t head;
} nhood_strides;

/* The part of one axis that the tensors cover: tokens [offset, offset + length), 0 <= offset, offset + length <= L. On a
 * periodic axis 0 <= offset < L, length <= L, and tokens count modulo L. Length 0, with offset 0, is the whole axis. */
typedef struct nhood_region {
    int64_t query_offset, query_length;
    int64_t key_offset, key_length;
} nhood_region;

/* A problem's fields are checked by the functions that take one; those that are not legal are ARGUMENT. */
typedef struct nhood_problem {
    size_t struct_size;
    int32_t op;         /* NHOOD_OP_* */
    int32_t dtype;      /* NHOOD_DTYPE_* */
    int32_t rank;       /* 1, 2 or 3 */
    uint32_t flags;     /* NHOOD_FLAG_* */
    nhood_axis axis[3]; /* slowest first; entries from rank on are ignored */
    /* 0 <= B <= 2^40. 0: there is nothing to compute. Plans need no workspace and set D_BIAS to zero; tensors with a batch are
     * ignored, whatever their pointers. */
    int64_t batch;
    int64_t heads;    /* 1 <= H <= 2^40 */
    int64_t kv_heads; /* Hkv, which divides H; 0: H */
    int64_t dim;      /* 1 <= D <= 65536 */
    int64_t dim_v;    /* 1 <= Dv <= 65536; 0: D */
    /* M further keys and values that every query attends, in the same softmax; 0 <= M < 2^31; only fwd and bwd. */
    int64_t extra_tokens;
    /* Any finite value; NaN: D^-1/2, or 1 for pn. Unless the dtype is f64, only the reference on a CPU takes scales other than
     * 0 whose magnitude is not in [2^-100, 2^100]; on CUDA they are UNSUPPORTED. */
    double scale;
    /* 0 or 1. 1: a relative bias. Its index along each axis is (key position - query position) in the dilation group + k - 1.
     * Only fwd, bwd and pn; not with causal axes. */
    int32_t has_bias;
    int32_t reserved; /* 0 */
    nhood_strides strides[NHOOD_TENSOR_SLOTS];
    nhood_region region[3];   /* by axis */
    nhood_windows windows[3]; /* by axis */
} nhood_problem;

/* Fills a problem with defaults: axes of length, window, stride and dilation 1, batch and heads 1, dim 32, packed tensors,
 * default scale, whole grids, windows by formula. op, dtype and rank are stored as they are, and checked with the other fields later. struct_size
 * is sizeof(nhood_problem), which the macro below adds. Does nothing if problem is NULL. */
NHOOD_API void nhood_problem_init_sized(nhood_problem *problem, size_t struct_size, int32_t op,
                                        int32_t dtype, int32_t rank);
#define nhood_problem_init(problem, op, dtype, rank)                                               \
    nhood_problem_init_sized(problem, sizeof(nhood_problem), op, dtype, rank)

/* The problem text, a line that is used by the tool, the tests, wisdom and logs:
 *     <op>:<dtype>:b<B>h<H>[k<Hkv>]d<D>[v<Dv>]:<L>x<L>..:w<k>x<k>..[:s<s>x..][:d<d>x..][:c<0|1 per axis>]
 *     [:p<0|1 per axis>][:q<offset>+<length>x..][:k<offset>+<length>x..]
 *     [:x<M>][:scale<number>][:rpb][:det][:tf32][:clamp][:zfill][:unaligned]
 * where op is fwd, bwd, pn, nn or in, and dtype is f64, f32, f16 or bf16. c tells which axes are causal and p which are
 * periodic; q and k are the boxes of queries and keys. Strides are not part of the text. For an axis whose windows are not by
 * formula, the place of its window in w has one of
 *     r<Lk>w<window>      RESAMPLED
 *     z<window>           CUT
 *     b<block>+<shift>    BLOCKS
 *     t<Lk>#<16 hexadecimal digits>     TABLE; they are a hash of its ranges, so that this one can be written but not be read
 * followed by v<valid keys> if there is padding: "fwd:f32:b1h4d32:1024x1024:wr64w15xr64w15", "w7xz7xb8+4v60".
 *
 * Reads such a text. The problem is checked as by nhood_plan_create. ARGUMENT, with a text that names the column of a syntax
 * error; *problem is then left as it was. struct_size and the macro are as for nhood_problem_init. */
NHOOD_API nhood_status nhood_problem_parse_sized(const char *text, nhood_problem *problem,
                                                 size_t struct_size);
#define nhood_problem_parse(text, problem)                                                         \
    nhood_problem_parse_sized(text, problem, sizeof(nhood_problem))

/* Writes the text with its terminating zero. *length (may be NULL) is the length without it, in bytes. ARGUMENT if the problem
 * is not legal or capacity <= length; then no text is written (but *length is, if the problem is legal). text may be NULL if
 * capacity is 0. */
NHOOD_API nhood_status nhood_problem_format(const nhood_problem *problem, char *text,
                                            size_t capacity, size_t *length);

/* Checks a problem and reports its useful floating-point operations (2 per multiply-add over the window and the extra tokens;
 * a backward counts as 2.5 forwards, causal windows as whole ones, and keys outside the key box not at all), and the least
 * number of bytes to move: every tensor once. Outputs may be NULL. ARGUMENT (the problem is not legal). */
NHOOD_API nhood_status nhood_problem_cost(const nhood_problem *problem, double *flops,
                                          double *bytes);

/* Reports the number of elements of a packed tensor of this problem (NHOOD_Q .., below NHOOD_TENSOR_COUNT); 0 if the operation
 * does not use it. ARGUMENT (the problem is not legal, no such tensor). */
NHOOD_API nhood_status nhood_problem_elements(const nhood_problem *problem, int32_t tensor,
                                              int64_t *elements);

/* Writes the ranges of the `length` queries of an axis with these windows, whose kind is not FORMULA, to range. ARGUMENT (the
 * windows are not legal). */
NHOOD_API nhood_status nhood_windows_ranges(const nhood_windows *windows, int64_t length,
                                            nhood_range *range);

/* Writes the inverse of `queries` ranges: for each of `keys` keys the range of queries that attend it, which is one range, as
 * beginnings and ends never decrease. It is {first, 0} for a key that no query attends. ARGUMENT (the ranges are not legal,
 * queries or keys is not in [1, 2^31)). */
NHOOD_API nhood_status nhood_windows_inverse(const nhood_range *range, int64_t queries,
                                             int64_t keys, nhood_range *inverse);

/* Reports which keys token `index`, in [0, length), attends on one axis: the `count` tokens first, first + dilation, .. (modulo
 * the length on a periodic axis, where `first` may be negative). Outputs may be NULL. ARGUMENT (the axis is not legal, no such
 * token). */
NHOOD_API nhood_status nhood_window(const nhood_axis *axis, int64_t index, int64_t *first,
                                    int64_t *count);

/* ---- plan ------------------------------------------------------------------------------------ */

typedef struct nhood_plan nhood_plan;

enum {
    NHOOD_EFFORT_ESTIMATE = 0,   /* the fastest candidate that wisdom knows, else by estimate */
    NHOOD_EFFORT_MEASURE = 1,    /* if wisdom does not know the problem, time the candidates */
    NHOOD_EFFORT_WISDOM_ONLY = 2 /* CACHE_MISS if wisdom does not know the problem */
};

typedef struct nhood_plan_options {
    size_t struct_size;
    /* Use only this solver ("reference", "cpu.fused", ..). NULL: choose one. Borrowed. */
    const char *solver;
    int32_t effort;   /* NHOOD_EFFORT_* */
    int32_t reserved; /* 0 */
    /* For MEASURE: about how many seconds it may take, >= 0; of a group, for all members. The candidate with the least estimate
     * is timed in any case, and what has begun is finished. 0: until every candidate has been timed well. */
    double budget_s;
} nhood_plan_options;

/* Creates a plan: chooses a solver, compiles and loads what it needs. options may be NULL. After an error *plan is NULL.
 * A plan is immutable and may be executed by several threads at the same time.
 *
 * The choice depends only on the problem, the device, its calibration, the options and the context's wisdom. MEASURE times
 * candidates on packed tensors of its own, which need as much memory as the problem's, and adds the times to that wisdom. If it
 * fails, a warning is logged and the estimate decides. If the compiler or the device refuses a solver's code, the next best
 * solver is used; the log and the description say so.
 * Returns ARGUMENT (problem or options not legal, no such device or solver), UNSUPPORTED (every solver refused), MEMORY,
 * DEVICE (also for a device that is only described), COMPILE, CACHE_MISS (WISDOM_ONLY), INTERRUPTED (MEASURE). */
NHOOD_API nhood_status nhood_plan_create(nhood_context *context, int32_t device,
                                         const nhood_problem *problem,
                                         const nhood_plan_options *options, nhood_plan **plan);

/* Plans are reference-counted, and created with one reference. The last release destroys. NULL is allowed. */
NHOOD_API void nhood_plan_retain(nhood_plan *plan);
NHOOD_API void nhood_plan_release(nhood_plan *plan);

/* Bytes of workspace that every execute needs, a multiple of 64; 0 if it needs none or plan is NULL. */
NHOOD_API size_t nhood_plan_workspace_bytes(const nhood_plan *plan);

/* One line with the problem, device, solver, config, expected time and origin of the choice. Valid as long as the plan; "" if
 * that is NULL. */
NHOOD_API const char *nhood_plan_description(const nhood_plan *plan);

/* The parts of a GPU that may limit a tiled solver: nhood_candidate.limit_ns. */
enum {
    NHOOD_LIMIT_TENSOR,      /* products on tensor cores, including those that masks hide */
    NHOOD_LIMIT_EXPONENTIAL, /* one per logit */
    NHOOD_LIMIT_MASK,        /* one instruction per logit of a masked tile */
    NHOOD_LIMIT_L2,          /* all that blocks copy from L2 */
    NHOOD_LIMIT_MEMORY,      /* every tensor, moved once */
    NHOOD_LIMIT_COUNT
};

/* A refusal of a solver, or one of its configs with the estimate. Strings are borrowed. */
typedef struct nhood_candidate {
    size_t struct_size;
    const char *solver;
    /* NULL, or why the solver does not take the problem, or is not asked because another one is never slower */
    const char *refusal;
    const char *config; /* "" for a refusal or a solver without knobs */
    double estimate_ns;
    int32_t chosen; /* 1 on the one row that plan_create would build */
    int32_t reserved;
    double measured_ns; /* the median in wisdom, of so many samples; 0: not known */
    int64_t samples;
    /* The counts that the estimate is based on, over all launches; 0 if a solver does not count tiles. */
    double tiles;         /* pairs of a tile of queries and a tile of keys that are multiplied */
    double masked_tiles;  /* of these, except for extra tokens, those in which masks hide pairs */
    double product_flops; /* operations of the products, including those that masks hide */
    /* The time that each part of the device would take alone, at its highest rate. The largest one limits the solver. */
    double limit_ns[NHOOD_LIMIT_COUNT];
} nhood_candidate;
typedef void (*nhood_candidate_fn)(void *user, const nhood_candidate *candidate);

/* Calls `report` for everything that nhood_plan_create would consider, without measuring or building it. Returns the status of
 * the choice: OK, ARGUMENT, UNSUPPORTED, MEMORY. options may be NULL, and so may `report`. The effort is ignored. Refusals are
 * reported even if all solvers refuse (UNSUPPORTED). With batch 0 nothing is reported. */
NHOOD_API nhood_status nhood_plan_explain(nhood_context *context, int32_t device,
                                          const nhood_problem *problem,
                                          const nhood_plan_options *options,
                                          nhood_candidate_fn report, void *user);

/* The names of all solvers, by index from 0 on, each with the kind of device that it runs on (NHOOD_DEVICE_*; device_kind may
 * be NULL). Returns NULL if there is no such index. */
NHOOD_API const char *nhood_solver_name(int32_t index, int32_t *device_kind);

/* ---- bundles --------------------------------------------------------------------------------- */

/* A bundle is a file of CUDA kernels that were compiled ahead of time, for machines without NVRTC, or so that first plans need
 * not wait. It serves the version of the library that made it (the same kernel sources), on the architectures that it was made
 * for. */
typedef struct nhood_bundle nhood_bundle;

/* Creates an empty bundle, which keeps its context alive. Needs NVRTC, but no GPU. After an error *bundle is NULL. COMPILE (no
 * NVRTC), ARGUMENT (context or bundle is NULL), MEMORY. */
NHOOD_API nhood_status nhood_bundle_create(nhood_context *context, nhood_bundle **bundle);
NHOOD_API void nhood_bundle_destroy(nhood_bundle *bundle); /* NULL is allowed */

/* Adds the kernels that nhood_plan_create would use for the problem on a CUDA device, which may be only described. The effort
 * must be ESTIMATE or WISDOM_ONLY, otherwise ARGUMENT. Any number of threads may add at the same time. Returns what
 * nhood_plan_create would, and UNSUPPORTED for the CPU. */
NHOOD_API nhood_status nhood_bundle_add(nhood_bundle *bundle, int32_t device,
                                        const nhood_problem *problem,
                                        const nhood_plan_options *options);

/* Adds those that nhood_plan_create_group would use for the group of `count` problems, and those of every member's own plan, which
 * it would use beside other members. Returns what that and nhood_bundle_add would, with the index of the member in front. */
NHOOD_API nhood_status nhood_bundle_add_group(nhood_bundle *bundle, int32_t device,
                                              const nhood_problem *problems, int64_t count,
                                              const nhood_plan_options *options);

/* Writes the kernels added so far, replacing the file at the path. ARGUMENT (cannot be written). */
NHOOD_API nhood_status nhood_bundle_save(nhood_bundle *bundle, const char *path);

/* As nhood_context_kernels. The bundle has from_store + compiled kernels. ARGUMENT (counts->struct_size). */
NHOOD_API nhood_status nhood_bundle_kernels(const nhood_bundle *bundle,
                                            nhood_kernel_counts *counts);

/* A launch of a CUDA plan. Strings and code are borrowed, and valid during the call that reports it. */
typedef struct nhood_launch {
    size_t struct_size;
    const char *
        kernel; /* the name of the kernel's source, and the options that it is compiled with, after blanks */
    const void *code; /* machine code, an ELF file */
    size_t code_bytes;
    int64_t grid[3];      /* blocks */
    int32_t cluster;      /* blocks of a cluster, 1 without clusters */
    int32_t threads;      /* of a block */
    int64_t shared_bytes; /* of a block, dynamic */
    /* what a multiprocessor of the device has, from which follows how many blocks it holds at a time */
    int64_t multiprocessor_shared_bytes;
} nhood_launch;
typedef void (*nhood_launch_fn)(void *user, const nhood_launch *launch);

/* As nhood_bundle_add; then reports the launches of the plan, in their order. Needs no GPU. ARGUMENT if report is NULL. */
NHOOD_API nhood_status nhood_bundle_launches(nhood_bundle *bundle, int32_t device,
                                             const nhood_problem *problem,
                                             const nhood_plan_options *options,
                                             nhood_launch_fn report, void *user);

/* The texts of the files that CUDA kernels are compiled from, without comments, by index from 0 on. Sets *name to the file's
 * name. Returns NULL if there is no such index. */
NHOOD_API const char *nhood_kernel_source(int32_t index, const char **name);

/* ---- execute --------------------------------------------------------------------------------- */

typedef struct nhood_io {
    size_t struct_size;
    void *data[NHOOD_TENSOR_SLOTS]; /* by NHOOD_Q ..; inputs are only read, unused ones ignored */
    /* In the same kind of memory as the tensors, aligned to 64 bytes; its contents need not be kept. NULL if none is needed. */
    void *workspace;
    size_t workspace_bytes; /* >= nhood_plan_workspace_bytes */
    void *stream;           /* CUDA: the CUstream, 0 the legacy default; ignored on the CPU */
} nhood_io;

/* Runs a plan once, but not one of a group.
 *
 * Pointers are host pointers for CPU plans and device pointers for CUDA plans, aligned to their dtype; on CUDA, those of
 * tensors with head dim D or Dv to 16 bytes unless the problem has NHOOD_FLAG_UNALIGNED. EXTRA_* are used only if
 * extra_tokens > 0, and BIAS only if has_bias. LSE of fwd, D_LSE, and every D_* output of bwd are optional: NULL leaves them
 * out. Outputs must not overlap inputs or each other. Two executes at the same time need two workspaces.
 *
 * CUDA: enqueues the work and returns. It does not allocate, compile or synchronise, and so may be captured into a CUDA graph. But
 * the first execute of a plan with memory of its own on the device (window tables, groups) waits until planning's copy to it has
 * ended, some 10 us after the plan was made.
 * CPU: returns when the result is complete. Neither the result of a plan nor, without wisdom (which is kept for each number of
 * threads), the choice of the plan depends on the number of threads.
 *
 * Returns ARGUMENT (a pointer is missing or misaligned, the workspace is too small), INTERRUPTED (CPU), or DEVICE (a launch was
 * refused, or no CUDA context of the device is current; the caller's next synchronisation reports faults during the run).
 * Results of a plan are bit-equal from run to run on the CPU, and on CUDA with NHOOD_FLAG_DETERMINISTIC. Different plans may
 * differ in rounding. */
NHOOD_API nhood_status nhood_plan_execute(const nhood_plan *plan, const nhood_io *io);

/* ---- groups ---------------------------------------------------------------------------------- */

/* A group is a list of problems, its members, in one plan that one call runs: grids of different sizes, or sets of heads with
 * windows of their own. Members share op, dtype, rank, dim, dim_v, flags, scale and has_bias; all else may differ. A member
 * without tokens is one with batch 0. */
enum { NHOOD_MOST_MEMBERS = 65536 };

/* Creates the plan of a group of `count` problems, in [0, NHOOD_MOST_MEMBERS]; problems may be NULL if that is 0. Everything said
 * of nhood_plan_create holds for every member, and members with equal problems share what they can. Error texts begin with the
 * index of the member, "member 3: ". The plan is executed by nhood_plan_execute_group alone. */
NHOOD_API nhood_status nhood_plan_create_group(nhood_context *context, int32_t device,
                                               const nhood_problem *problems, int64_t count,
                                               const nhood_plan_options *options,
                                               nhood_plan **plan);

typedef struct nhood_group_io {
    size_t struct_size;
    int64_t count; /* members, as many as the plan has */
    /* The tensors of each member; workspace and stream in it are ignored. NULL: they lie in packed tensors. */
    const nhood_io *member;
    /* Packed tensors, by NHOOD_Q ..: the tokens of all members, one member after the other, without overlaps and gaps. The
     * strides of a member, of which axis[rank - 1] is that from a token to the next, must say so, and be the same for all; packed
     * strides do and, where heads are equally many, are. Not with extra tokens or a bias. */
    void *data[NHOOD_TENSOR_SLOTS];
    int64_t query_tokens, key_tokens; /* of the packed tensors; checked */
    /* The first token of each member, and the number of all; count + 1 entries, checked. NULL: not checked. */
    const int64_t *query_offset, *key_offset;
    void *workspace; /* as in nhood_io */
    size_t workspace_bytes;
    void *stream;
    /* Plans of nhood_plan_create_bounded, 0 for others: [count, rank] integers of length_bytes (4 or 8), aligned to that, in the
     * same kind of memory as the tensors. */
    const void *lengths;
    int64_t length_bytes;
} nhood_group_io;

/* Runs a plan of a group once, as nhood_plan_execute runs others. Outputs of different members must not overlap. On the CPU
 * threads are shared over all members, and results are bit-equal to those of the members' own plans. On CUDA members with the
 * same kernel share its launches; a CUDA graph may capture them, and needs the plan as long as it runs. ARGUMENT (with the index
 * of the member), DEVICE, INTERRUPTED. */
NHOOD_API nhood_status nhood_plan_execute_group(const nhood_plan *plan, const nhood_group_io *io);

/* Lengths within a bound. Here the members are samples of one problem that differ in the lengths of their axes alone, and these
 * are data: an array that every execute reads, on CUDA in device memory. So no host work depends on them, and one CUDA graph
 * serves all batches within the bound. */
typedef struct nhood_bound {
    size_t struct_size;
    int64_t members; /* the most members, in [0, NHOOD_MOST_MEMBERS] */
    int64_t tokens;  /* the most tokens of all members together, in [0, 2^40] */
} nhood_bound;

/* Creates the plan of any members within the bound, a plan of a group. problem: fwd or bwd with batch 1, whose axes are the longest
 * that a member may have. Not with extra tokens, a bias, boxes or window tables; its tensors must be those of tokens in a row.
 * options.effort must be ESTIMATE. Otherwise as nhood_plan_create.
 *
 * nhood_plan_execute_group runs it, on packed tensors: io.count in [0, bound.members] members, whose lengths are io.lengths, in
 * tensors of io.query_tokens = io.key_tokens in [0, bound.tokens] tokens; io.query_offset and io.key_offset are NULL. A member's
 * lengths are legal for the problem and at most those of its axes; or all 0, which is no member. Members may end before the
 * tensors do: tokens behind the last one get O = 0, LSE = -infinity, and gradients of 0.
 * Lengths that are not legal, and members that end behind the tensors, cannot be refused where a GPU reads them: that member and
 * all behind it, up to the end of the tensors, get NaN in every output. On the CPU they are ARGUMENT.
 * CUDA: as other executes, it enqueues and returns; the lengths are read in the stream's order. The grids are those of the bound:
 * blocks that no member needs end at once. CPU: plans the members of every execute, unless they are those of the one before, and
 * allocates what that needs. */
NHOOD_API nhood_status nhood_plan_create_bounded(nhood_context *context, int32_t device,
                                                 const nhood_problem *problem,
                                                 const nhood_bound *bound,
                                                 const nhood_plan_options *options,
                                                 nhood_plan **plan);

/* Adds the kernels that nhood_plan_create_bounded would use to a bundle. Returns what that and nhood_bundle_add would. */
NHOOD_API nhood_status nhood_bundle_add_bounded(nhood_bundle *bundle, int32_t device,
                                                const nhood_problem *problem,
                                                const nhood_bound *bound,
                                                const nhood_plan_options *options);

/* ---- wisdom ---------------------------------------------------------------------------------- */

/* Wisdom is the measured times of candidates of problems, whatever their strides. Its text has one candidate per line after the
 * header line "nhood-wisdom 1", with fields separated by one blank:
 *     <device> <problem text> <solver> <config, - for none> <median ns> <samples>
 * The device is its description with '_' for blanks, so texts of several machines may be joined. Of two lines about one
 * candidate, the one with more samples counts or, if they are equal, the faster one. So joining in any order gives the same
 * wisdom, and contexts with the same wisdom on devices of the same kind make the same plans. */

/* Writes the context's wisdom with a terminating zero. *length (may be NULL) is the length without it. A context without wisdom
 * exports only the header line. ARGUMENT if capacity <= length (*length is written then, too; text may be NULL if capacity is
 * 0), MEMORY. */
NHOOD_API nhood_status nhood_wisdom_export(const nhood_context *context, char *text,
                                           size_t capacity, size_t *length);

/* Adds every well-formed line. Those about unknown devices, solvers and configs are kept but not used. One log line says how many
 * lines are left out, and why the first is. *accepted (may be NULL) is the number of lines added. ARGUMENT if the header line is missing
 * or of another format, MEMORY. */
NHOOD_API nhood_status nhood_wisdom_import(nhood_context *context, const char *text,
                                           int64_t *accepted);

/* Imports a file. If path is NULL, that is the file in the context's cache folder, which every context reads when it is
 * created. CACHE_MISS (no such file or no cache folder), ARGUMENT (not wisdom, cannot be read), MEMORY. */
NHOOD_API nhood_status nhood_wisdom_load(nhood_context *context, const char *path,
                                         int64_t *accepted);

/* Merges the context's wisdom into a file or, if `replace` is not 0, replaces the file. path NULL is as above; the folder is
 * created. Any number of processes may save at the same time: they take turns by a lock on <path>.lock, and nothing is lost.
 * Where files cannot be locked, a warning is logged and they may overwrite each other's lines. CACHE_MISS (no cache folder),
 * ARGUMENT (the file is not wisdom, cannot be written), MEMORY. */
NHOOD_API nhood_status nhood_wisdom_save(nhood_context *context, const char *path, int32_t replace);

enum { NHOOD_ANY_DEVICE = -1 };

/* Removes the wisdom about a problem (NULL: all problems) on a device or, with NHOOD_ANY_DEVICE, on all devices, including
 * those of other machines. *forgotten (may be NULL) is the number of lines removed. Files stay as they are until they are saved
 * with `replace`. ARGUMENT (no such device, the problem is not legal). */
NHOOD_API nhood_status nhood_wisdom_forget(nhood_context *context, int32_t device,
                                           const nhood_problem *problem, int64_t *forgotten);

#ifdef __cplusplus
}
#endif
#endif
