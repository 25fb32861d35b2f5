/* How much a calibration mends, by timings that were recorded: for calibration.py. Lines "f|j problem solver config ns" in, those of
 * a problem one after the other: what to fit to (f), and what to judge by (j). Out, a line: percent of problems whose choice takes at most 1.1 of
 * the fastest's time, by rank and of all, worst choice and time lost in percent, by the table alone and after the fit; problems and timings
 * of the fit; and whether `nhood calibrate` would write it, by these alone.
 *
 *     build/calibration none|rates|families|a100|sm80 SEED < timings
 *
 * The scenario says how wrong the table is: `rates`, those of half the kernels, each by its own factor of 1.3 to 2, up or down;
 * `families`, those of whole families, up, down or not at all; `a100`, the H200 that the timings are of is taken for a GPU with an A100's
 * clock, bandwidth and rates of a clock; `sm80`, the same by rates of sm_86, and without the solvers of sm_90. */
#include "calibrate.h"
#include "cuda.h"
#include "device_spec.h"
#include "rates.h"
#include "registry.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES = 1024, RANKS = 3, MOST_TIMINGS = 40000 };

struct list {
    struct nh_timed *timing;
    int64_t count, problems;
    char last[LINE_BYTES];
};

/* By what the units of each kernel are multiplied. */
static double wrong[NH_KERNEL_KINDS][NH_WORK_UNITS];

static const struct nh_solver *find_solver(const char *name) {
    for (const struct nh_solver *const *row = nh_registry_solvers; *row; row++)
        if (!strcmp((*row)->name, name)) return *row;
    return NULL;
}

static double uniform(void) {
    return (double)rand() / RAND_MAX;
}

/* "FUSED80" and "SMALL" of "FUSED80_F32" and "SMALL_QUERY": the same sign for all kernels of a family. */
static bool same_family(const char *name, const char *other) {
    size_t length = strcspn(name, "_");
    return length == strcspn(other, "_") && !strncmp(name, other, length);
}

static void make_wrong(const char *scenario, struct nh_cuda_device *device) {
    static const char *const names[] = {
#define NH_KERNEL(name, ...) #name,
#define NH_PIPELINE(...)
#define NH_OPERATION(...)
#include "h200.def"
    };
    const bool rates = !strcmp(scenario, "rates"), families = !strcmp(scenario, "families");
    int sign = 0;
    for (int k = 0; k < NH_KERNEL_KINDS; k++) {
        if (families && (k == 0 || !same_family(names[k], names[k - 1]))) sign = rand() % 3 - 1;
        bool chosen = families || (rates && uniform() < 0.5);
        for (int u = 0; u < NH_WORK_UNITS; u++) {
            int direction = families ? sign : rand() % 2 ? 1 : -1;
            wrong[k][u] = chosen ? pow(1.3 + 0.7 * uniform(), direction) : 1;
        }
    }
    if (strcmp(scenario, "a100") != 0 && strcmp(scenario, "sm80") != 0) return;
    device->arch = !strcmp(scenario, "a100") ? 80 : 86;
    device->clock_hz = 1.410e9;
    device->memory_bytes_per_s = 2.039e12;
}

static bool add(const char *line, const char *scenario, const struct nh_device *device,
                struct list *fit, struct list judged[RANKS]) {
    char use, text[LINE_BYTES], name[64], knobs[LINE_BYTES];
    double ns;
    nhood_problem given;
    struct nh_problem problem, room;
    struct nh_config config;
    if (sscanf(line, "%c %1023s %63s %1023s %lf", &use, text, name, knobs, &ns) != 5 ||
        nhood_problem_parse(text, &given) || nh_problem_canonical(&given, &problem))
        return false;
    struct list *list = use == 'f' ? fit : &judged[given.rank - 1];
    struct nh_timed *timing = &list->timing[list->count];
    timing->solver = find_solver(name);
    if (!timing->solver || list->count == MOST_TIMINGS ||
        !nh_config_parse(timing->solver, strcmp(knobs, "-") != 0 ? knobs : "", &config))
        return false;
    if (!strcmp(scenario, "sm80") && strstr(name, "90")) return true;
    const struct nh_problem *view = nh_solver_view(timing->solver, &problem, &room);
    if (!timing->solver->work || !timing->solver->work(view, device, &config, &timing->work))
        return true;
    for (int i = 0; i < timing->work.launches; i++)
        for (int u = 0; u < NH_WORK_UNITS; u++)
            timing->work.launch[i].unit[u] *= wrong[timing->work.launch[i].kernel][u];
    timing->preference =
        timing->solver->preference ? timing->solver->preference(timing->solver, &config) : 0;
    timing->measured_ns = ns;
    if (strcmp(text, list->last) != 0) list->problems++;
    strcpy(list->last, text);
    timing->problem = list->problems - 1;
    list->count++;
    return true;
}

static void print_verdict(const struct nh_cuda_device *gpu, const struct list judged[RANKS],
                          const struct nh_coefficients *coefficients) {
    static double slower[MOST_TIMINGS];
    const struct nh_fold whole = {.of = 1};
    int64_t all = 0;
    for (int rank = 0; rank < RANKS; rank++) {
        const struct list *list = &judged[rank];
        nh_judge(gpu, list->timing, list->count, whole, coefficients, slower + all);
        printf("%.1f ", 100 * nh_verdict_of(slower + all, list->problems).within);
        all += list->problems;
    }
    struct nh_verdict verdict = nh_verdict_of(slower, all);
    printf("%.1f %.2f %.1f ", 100 * verdict.within, verdict.worst, 100 * verdict.lost);
}

int main(int argc, char **argv) {
    const struct nh_host host = {0};
    struct nh_device device[NH_MOST_DESCRIBED];
    struct list fit = {.count = 0}, judged[RANKS] = {{.count = 0}};
    int32_t described;
    char line[LINE_BYTES];
    double factor[NH_FACTORS];
    struct nh_comparison comparison;
    struct nh_coefficients fitted;
    if (argc != 3 || nh_cuda_describe("h200", &host, device, &described)) {
        fprintf(stderr, "usage: calibration none|rates|families|a100|sm80 SEED < timings\n");
        return EXIT_FAILURE;
    }
    struct nh_cuda_device gpu = *(const struct nh_cuda_device *)device[0].backend;
    device[0].backend = &gpu;
    srand((unsigned)strtoul(argv[2], NULL, 10));
    make_wrong(argv[1], &gpu);
    fit.timing = calloc(MOST_TIMINGS, sizeof *fit.timing);
    bool room = fit.timing;
    for (int rank = 0; rank < RANKS; rank++)
        room &= (judged[rank].timing = calloc(MOST_TIMINGS, sizeof *fit.timing)) != NULL;
    while (room && fgets(line, sizeof line, stdin))
        if (!add(line, argv[1], &device[0], &fit, judged)) {
            fprintf(stderr, "calibration: no timing: %s", line);
            return EXIT_FAILURE;
        }
    if (!room ||
        nh_calibrate(&device[0], fit.timing, fit.count, (struct nh_fold){.of = 1}, factor) ||
        nh_compare(&device[0], fit.timing, fit.count, fit.problems, &comparison))
        return EXIT_FAILURE;
    nh_coefficients_scale(factor, &fitted);
    print_verdict(&gpu, judged, &nh_built_in);
    print_verdict(&gpu, judged, &fitted);
    printf("%lld %lld %s\n", (long long)fit.problems, (long long)fit.count,
           comparison.better ? "written" : "kept");
    free(fit.timing);
    for (int rank = 0; rank < RANKS; rank++)
        free(judged[rank].timing);
    return EXIT_SUCCESS;
}
