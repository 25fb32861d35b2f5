#include "build_many.h"

#include "os.h"
#include "thread.h"

#include <stdatomic.h>
#include <stdio.h>

/* A running compiler takes some hundred megabytes, and more threads than these gain little. */
enum { MOST_THREADS = 8 };

struct work {
    const struct nh_problem *problem;
    const struct nh_device *device;
    struct nh_build *build;
    int count;
    double deadline_s;
    atomic_int next;
};

static void build_one(const struct work *work, struct nh_build *build) {
    const struct nh_choice *choice = &build->choice;
    struct nh_problem room;
    const struct nh_problem *view = nh_solver_view(choice->solver, work->problem, &room);
    build->status = choice->solver->build(choice->solver, view, work->device, &choice->config,
                                          &build->operation);
    /* Each thread has its own error text, so it is copied. */
    if (build->status)
        snprintf(build->reason, sizeof build->reason, "%.*s", (int)sizeof build->reason - 1,
                 nhood_last_error());
}

static void *build_more(void *argument) {
    struct work *work = argument;
    while (nh_steady_s() < work->deadline_s) {
        int index = atomic_fetch_add(&work->next, 1);
        if (index >= work->count) break;
        build_one(work, &work->build[index]);
    }
    return NULL;
}

void nh_build_many(const struct nh_problem *problem, const struct nh_device *device,
                   struct nh_build *build, int count, double deadline_s) {
    struct work work = {.problem = problem,
                        .device = device,
                        .build = build,
                        .count = count,
                        .deadline_s = deadline_s};
    pthread_t thread[MOST_THREADS];
    int64_t threads = nh_min(nh_min(nh_os_cpus(), MOST_THREADS), count);
    int started = 0;
    atomic_init(&work.next, 1);
    while (started + 1 < threads && !nh_thread_create(&thread[started], build_more, &work))
        started++;
    build_one(&work, &build[0]);
    build_more(&work);
    for (int i = 0; i < started; i++)
        pthread_join(thread[i], NULL);
}
