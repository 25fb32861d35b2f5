/* Opens the CPU device with its instruction set and threads, and measures its peak rates. */
#include "cpu.h"

#include "interruption.h"
#include "kernels.h"
#include "os.h"

#include <stdio.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#if defined(NH_HAS_AMX)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(NH_HAS_SVE)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#include <sys/prctl.h>
#endif

/* The best instruction set comes first. */
static const struct nh_kernels levels[] = {
#if defined(__x86_64__)
#if defined(NH_HAS_AMX)
    {"amx", &nh_tile_avx512_f32, &nh_tile_avx512_f64, &nh_matrix_avx512_bf16},
#endif
    {"avx512", &nh_tile_avx512_f32, &nh_tile_avx512_f64, NULL},
    {"avx2", &nh_tile_avx2_f32, &nh_tile_avx2_f64, NULL},
#elif defined(NH_HAS_SVE) /* f64 is NEON's: the library stays below 2 MB */
    {"sve512", &nh_tile_sve512_f32, &nh_tile_neon_f64, NULL},
    {"sve256", &nh_tile_sve256_f32, &nh_tile_neon_f64, NULL},
#endif
#if defined(__aarch64__)
    {"neon", &nh_tile_neon_f32, &nh_tile_neon_f64, NULL},
#else
    {"generic", &nh_tile_generic_f32, &nh_tile_generic_f64, NULL},
#endif
};
enum { LEVELS = sizeof levels / sizeof levels[0] };

#if defined(NH_HAS_SVE)
/* The number of bits of an SVE vector in this thread; 0 without SVE. */
static int sve_bits(void) {
    if (!(getauxval(AT_HWCAP) & HWCAP_SVE)) return 0;
    const int length = prctl(PR_SVE_GET_VL);
    return length < 0 ? 0 : (length & PR_SVE_VL_LEN_MASK) * 8;
}
#endif

#if defined(NH_HAS_AMX)
/* Whether the processor has AMX tiles of bf16 and the AVX-512 conversion to bf16, and Linux permits the process to use tiles.
 * Linux saves the 8 KB of tile registers only for threads that use them, so the process must request permission first.
 * Requesting it again changes nothing. */
static bool has_amx(void) {
    enum { TILES = 18, AVX512_BF16 = 1 << 5, AMX_BF16 = 1 << 22, AMX_TILE = 1 << 24 };
    enum { ARCH_REQUEST_PERMISSION = 0x1023 }; /* ARCH_REQ_XCOMP_PERM, Linux 5.16 */
    unsigned a, b, c, d = 0;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d)) return false;
    if (!(d & AMX_BF16) || !(d & AMX_TILE)) return false;
    if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || !(a & AVX512_BF16)) return false;
    return syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, TILES) == 0;
}
#endif

/* Every machine has the last level. SVE kernels are compiled for one vector length and run only with exactly that one. */
static bool has_level(const char *name) {
#if defined(__x86_64__)
    unsigned a, b, c = 0, d; /* F16C has no name in __builtin_cpu_supports of clang 14 */
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
    if (!strcmp(name, "avx2")) return avx2;
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") &&
                        __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                        __builtin_cpu_supports("avx512vl");
    if (!strcmp(name, "avx512")) return avx512;
#if defined(NH_HAS_AMX)
    if (!strcmp(name, "amx")) return avx512 && has_amx();
#endif
#elif defined(NH_HAS_SVE)
    if (!strcmp(name, "sve512")) return sve_bits() == 512;
    if (!strcmp(name, "sve256")) return sve_bits() == 256;
#endif
    return !strcmp(name, levels[LEVELS - 1].name);
}

static nhood_status unknown_level(const char *cap, const struct nh_host *host) {
    char names[64] = "";
    for (int i = 0; i < LEVELS; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", levels[i].name);
    }
    return nh_error(NHOOD_ERR_ARGUMENT, "%s = '%s' is not one of %s",
                    host->from_environment.isa ? "NHOOD_ISA" : "options.isa", cap, names);
}

/* Chooses the best instruction set that the machine has and that is no better than `cap`; NULL is no limit. "generic" stands
 * for the last one on every architecture. */
static nhood_status choose_level(const char *cap, const struct nh_host *host,
                                 const struct nh_kernels **kernels) {
    int first = 0;
    while (cap && first < LEVELS && strcmp(cap, levels[first].name) != 0)
        first++;
    if (first == LEVELS && !strcmp(cap, "generic")) first--;
    if (first == LEVELS) return unknown_level(cap, host);
    while (!has_level(levels[first].name))
        first++;
    *kernels = &levels[first];
    return NHOOD_OK;
}

nhood_status nh_cpu_open(const nhood_context_options *options, const struct nh_host *host,
                         struct nh_device *device) {
    const struct nh_kernels *kernels = NULL;
    nhood_status status = choose_level(options->isa, host, &kernels);
    if (status) return status;
    struct nh_cpu *cpu = nh_allocate(host, sizeof *cpu);
    if (!cpu) return NHOOD_ERR_MEMORY;
    cpu->host = host;
    cpu->kernels = kernels;
    cpu->threads = options->threads;
    if (!host->parallel_for) {
        status = nh_pool_create(host, cpu->threads, &cpu->pool);
        if (status) {
            nh_release(host, cpu);
            return status;
        }
        cpu->threads = nh_pool_threads(cpu->pool);
    }
    device->backend = cpu;
    device->timing = &nh_cpu_timing;
    device->host = host;
    device->info = (nhood_device_info){.struct_size = sizeof device->info,
                                       .kind = NHOOD_DEVICE_CPU,
                                       .workers = cpu->threads,
                                       .name = "cpu"};
    char model[96] = "CPU";
    nh_os_cpu_name(model, sizeof model);
    snprintf(device->info.description, sizeof device->info.description, "%s, %s, %d thread%s",
             model, kernels->name, (int)cpu->threads, cpu->threads == 1 ? "" : "s");
    return NHOOD_OK;
}

void nh_cpu_close(struct nh_device *device) {
    struct nh_cpu *cpu = device->backend;
    if (!cpu) return;
    nh_pool_destroy(cpu->pool);
    nh_release(cpu->host, cpu);
    device->backend = NULL;
}

/* ---- loops ---- */

void nh_cpu_limit_threads(const struct nh_device *device, int32_t threads) {
    const struct nh_cpu *cpu = device->backend;
    if (cpu->pool) nh_pool_limit(cpu->pool, threads);
}

/* A loop of the application's, whose iterations do nothing once the call is interrupted. */
struct guarded {
    nhood_parallel_body body;
    void *arg;
    struct nh_interruption *call;
};

static void guarded_body(void *arg, int64_t index, int32_t worker) {
    const struct guarded *guarded = arg;
    if (!nh_interrupted(guarded->call)) guarded->body(guarded->arg, index, worker);
}

static void spread(const struct nh_cpu *cpu, int64_t count, nhood_parallel_body body, void *arg) {
    if (cpu->host->parallel_for) {
        struct guarded guarded = {body, arg, nh_interruption_current()};
        cpu->host->parallel_for(cpu->host->user, count, guarded_body, &guarded);
    } else {
        nh_pool_run(cpu->pool, count, body, arg);
    }
}

void nh_cpu_run(const struct nh_cpu *cpu, bool alone, int64_t count, nhood_parallel_body body,
                void *arg) {
    if (!alone && cpu->threads > 1 && count > 1) {
        spread(cpu, count, body, arg);
        return;
    }
    nh_run_alone(count, body, arg);
}

/* ---- ceilings ---- */

struct ceiling_job {
    const struct nh_tile_kernels *kernels;
    int64_t rounds, done[1024];
    char *from, *to;
    size_t bytes;
};

static void fma_body(void *arg, int64_t index, int32_t worker) {
    struct ceiling_job *job = arg;
    (void)worker;
    job->done[index] = job->kernels->multiply_add(job->rounds);
}

static void copy_body(void *arg, int64_t index, int32_t worker) {
    struct ceiling_job *job = arg;
    (void)worker;
    memcpy(job->to + (size_t)index * job->bytes, job->from + (size_t)index * job->bytes,
           job->bytes);
}

/* Takes the best of a few runs of some milliseconds each, because it measures a peak, not an average. */
nhood_status nh_cpu_measure(const struct nh_device *device, int32_t dtype,
                            nhood_ceilings *ceilings) {
    const struct nh_cpu *cpu = device->backend;
    size_t bytes = (size_t)32 << 20; /* much more than one core's share of the last-level cache */
    struct ceiling_job *job = nh_allocate(device->host, sizeof *job);
    if (!job) return NHOOD_ERR_MEMORY;
    job->kernels = dtype == NHOOD_DTYPE_F64 ? cpu->kernels->f64 : cpu->kernels->f32;
    job->rounds = 200000;
    job->bytes = bytes / (size_t)cpu->threads / NH_ALIGNMENT * NH_ALIGNMENT;
    job->from = nh_allocate(device->host, bytes);
    job->to = nh_allocate(device->host, bytes);
    nhood_status status = job->from && job->to ? NHOOD_OK : NHOOD_ERR_MEMORY;
    ceilings->flops_per_s = ceilings->bytes_per_s = 0;
    for (int run = 0; !status && run < 5; run++) {
        double start = nh_steady_s(), done = 0;
        spread(cpu, cpu->threads, fma_body, job);
        double middle = nh_steady_s();
        spread(cpu, cpu->threads, copy_body, job);
        double end = nh_steady_s();
        for (int32_t i = 0; i < cpu->threads; i++)
            done += 2 * (double)job->done[i];
        double moved = 2 * (double)job->bytes * cpu->threads;
        if (done / (middle - start) > ceilings->flops_per_s)
            ceilings->flops_per_s = done / (middle - start);
        if (moved / (end - middle) > ceilings->bytes_per_s)
            ceilings->bytes_per_s = moved / (end - middle);
    }
    nh_release(device->host, job->from);
    nh_release(device->host, job->to);
    nh_release(device->host, job);
    return status;
}
