/* What the plan of a group costs on the host: microseconds in which plans of random groups of new sizes are made and released, where
 * others of their kind were made before, by the first CUDA device of this machine: what one of ten takes less than, and half of them do.
 *
 *     build/group_plans 'fwd:bf16:b1h12d64:14..64x14..64:w7x7' 32 50
 *
 * The problem's ranges are drawn from for each member; w0 is a window as long as its axis. Without a GPU, the driver and the compiler of
 * the tests pretend to be one:
 *
 *     NHOOD_CACHE= LD_LIBRARY_PATH=build/fake_driver NHOOD_NVRTC=build/tests/cuda_host/libfake_nvrtc.so build/group_plans ... */
#include "drawn.h"

enum { MOST_MEMBERS = 4096, FIRST = 3 }; /* groups that are not timed */

static int ascending(const void *left, const void *right) {
    const double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

/* The value that so many of a hundred are below. */
static double percentile(double *us, int count, int percent) {
    qsort(us, (size_t)count, sizeof *us, ascending);
    return us[count * percent / 100];
}

static int32_t first_gpu(const nhood_context *context) {
    for (int32_t i = 0; i < nhood_device_count(context); i++) {
        nhood_device_info info = {.struct_size = sizeof info};
        if (!nhood_device_query(context, i, &info) && info.kind == NHOOD_DEVICE_CUDA) return i;
    }
    return -1;
}

/* Times a group; us: planning, and releasing. */
static nhood_status time_group(nhood_context *context, int32_t device, const char *text, int count,
                               nhood_problem *problem, double us[2], int64_t *launches) {
    nhood_plan *plan;
    for (int i = 0; i < count; i++) {
        const nhood_status status = draw_given(text, &problem[i]);
        if (status) return status;
    }
    const double start = now_us();
    const nhood_status status =
        nhood_plan_create_group(context, device, problem, count, NULL, &plan);
    if (status) return status;
    us[0] = now_us() - start;
    const char *of_launches = strstr(nhood_plan_description(plan), " launch");
    while (of_launches && of_launches[-1] >= '0' && of_launches[-1] <= '9')
        of_launches--;
    *launches += of_launches ? strtoll(of_launches, NULL, 10) : 0;
    const double planned = now_us();
    nhood_plan_release(plan);
    us[1] = now_us() - planned;
    return NHOOD_OK;
}

int main(int argc, char **argv) {
    static nhood_problem problem[MOST_MEMBERS];
    const int count = argc == 4 ? atoi(argv[2]) : 0, groups = argc == 4 ? atoi(argv[3]) : 0;
    nhood_context *context;
    if (count < 1 || count > MOST_MEMBERS || groups < 1) {
        fprintf(stderr, "usage: group_plans PROBLEM MEMBERS GROUPS\n");
        return EXIT_FAILURE;
    }
    double *planned = malloc((size_t)groups * sizeof *planned);
    double *released = malloc((size_t)groups * sizeof *released);
    nhood_kernel_counts before = {.struct_size = sizeof before}, after = before;
    int64_t launches = 0;
    if (!planned || !released || nhood_context_create(NULL, &context)) {
        fprintf(stderr, "group_plans: %s\n", nhood_last_error());
        return EXIT_FAILURE;
    }
    const int32_t device = first_gpu(context);
    for (int g = -FIRST; g < groups; g++) {
        double us[2];
        if (g == 0) launches = 0;
        if (g == 0) nhood_context_kernels(context, &before);
        if (time_group(context, device, argv[1], count, problem, us, &launches)) {
            fprintf(stderr, "group_plans: %s\n", nhood_last_error());
            return EXIT_FAILURE;
        }
        if (g < 0) continue;
        planned[g] = us[0];
        released[g] = us[1];
    }
    nhood_context_kernels(context, &after);
    const double us = percentile(planned, groups, 10);
    printf("%s, %d members: %.0f us, %.2f a member (median %.0f us); released in %.0f us; %.1f "
           "launches, %.2f new kernels a group\n",
           argv[1], count, us, us / count, percentile(planned, groups, 50),
           percentile(released, groups, 50), (double)launches / groups,
           (double)(after.compiled + after.from_store + after.from_bundle - before.compiled -
                    before.from_store - before.from_bundle) /
               groups);
    nhood_context_destroy(context);
    free(planned);
    free(released);
    return EXIT_SUCCESS;
}
