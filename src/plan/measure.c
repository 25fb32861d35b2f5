/* Times candidates in a contest. They enter in the order of their estimates and then run in rounds, interleaved, so that a
 * slow phase of the machine affects all of them alike. Those that are clearly slower drop out. The result of each is the
 * median of its runs. */
#include "measure.h"

#include "interruption.h"
#include "os.h"
#include "scratch.h"

#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_CONTESTANTS = 128,
    LEAST_SAMPLES = 7,
    MOST_SAMPLES = 63,
};
/* A candidate whose first run is more than this factor slower than the fastest one is not run again. */
static const double hopeless = 10;
/* Short operations get more than LEAST_SAMPLES samples, until this much time is spent. */
static const double enough_s = 0.1;

struct contestant {
    struct nh_choice choice;
    /* NULL: the build failed for `reason`, or time was up before it began and `reason` is "" */
    struct nh_operation *operation;
    nhood_status status;
    char reason[256];
    bool out;
    int samples; /* 0: it has not entered the contest */
    double sample_ns[MOST_SAMPLES], median_ns;
    double fastest_ns; /* of all runs, including the warm-up */
};

struct contest {
    const struct nh_request *request;
    struct nh_problem problem; /* the request's with packed tensors */
    struct nh_scratch scratch;
    double start_s, budget_s;
    int count;
    struct contestant *contestant; /* the one with the least estimate first */
    atomic_int next;               /* to be built */
    struct nh_interruption *call;
};

/* The time at which this share of the budget is spent. */
static double time_of(const struct contest *contest, double share) {
    return contest->budget_s > 0 ? contest->start_s + share * contest->budget_s : INFINITY;
}

/* ---- building ---- */

static void build(const struct contest *contest, struct contestant *contestant) {
    contestant->status = nh_choice_build(&contestant->choice, &contest->problem,
                                         contest->request->device, &contestant->operation);
    /* Each thread has its own error text, so it is copied. */
    if (contestant->status)
        snprintf(contestant->reason, sizeof contestant->reason, "%.*s",
                 (int)sizeof contestant->reason - 1, nhood_last_error());
}

/* Builds the first one in any case, and begins others within the first two fifths of the budget, unless interrupted. */
static void *build_more(void *argument) {
    struct contest *contest = argument;
    for (int i = 0; (i = atomic_fetch_add(&contest->next, 1)) < contest->count;)
        if (i == 0 || (nh_steady_s() < time_of(contest, 0.4) && !nh_interrupted(contest->call)))
            build(contest, &contest->contestant[i]);
    return NULL;
}

/* Compiling a candidate may take a second, so several threads build. A running compiler takes some hundred megabytes, and
 * more threads than these gain little. */
static void build_all(struct contest *contest) {
    atomic_init(&contest->next, 0);
    nh_thread_team((int)nh_min(nh_min(nh_os_cpus(), NH_MOST_TEAM), contest->count), build_more,
                   contest);
}

/* ---- the contest ---- */

static int ascending(const void *left, const void *right) {
    double a = *(const double *)left, b = *(const double *)right;
    return (a > b) - (a < b);
}

static void update_median(struct contestant *contestant) {
    double sorted[MOST_SAMPLES];
    size_t count = (size_t)contestant->samples;
    memcpy(sorted, contestant->sample_ns, count * sizeof *sorted);
    qsort(sorted, count, sizeof *sorted, ascending);
    contestant->median_ns = (sorted[(count - 1) / 2] + sorted[count / 2]) / 2;
}

static nhood_status run_once(const struct contest *contest, struct contestant *contestant,
                             double *ns) {
    nhood_status status = nh_scratch_run(&contest->scratch, contestant->operation, ns);
    if (nh_interrupted(contest->call)) /* also if it came within the run, whose time says nothing */
        return nh_error(NHOOD_ERR_INTERRUPTED, "interrupted");
    if (!status) contestant->fastest_ns = fmin(contestant->fastest_ns, *ns);
    return status;
}

static void add_sample(struct contestant *contestant, double ns) {
    contestant->sample_ns[contestant->samples++] = ns;
    update_median(contestant);
}

static double fastest_of_all(const struct contest *contest) {
    double ns = INFINITY;
    for (int i = 0; i < contest->count; i++)
        if (contest->contestant[i].samples) ns = fmin(ns, contest->contestant[i].fastest_ns);
    return ns;
}

/* A candidate with more samples must be closer to the best: within a factor of 10 after one, 3.25 after two and 1.18 after
 * seven. With few runs the fastest says more than the median, as disturbances only ever add time. */
static void drop_out(struct contest *contest) {
    for (int i = 0; i < contest->count; i++) {
        struct contestant *contestant = &contest->contestant[i];
        double samples = contestant->samples;
        if (samples > 0 &&
            contestant->fastest_ns > fastest_of_all(contest) * (1 + 9 / (samples * samples)))
            contestant->out = true;
    }
}

static void explain_failure(const struct contest *contest, const struct nh_choice *choice,
                            const char *reason) {
    char config[NH_CONFIG_BYTES];
    nh_config_text(choice->solver, &choice->config, config, sizeof config);
    nh_log(contest->request->device->host, NHOOD_LOG_WARNING, "not measured: %s %s: %s",
           choice->solver->name, config, reason);
}

/* Warms up and takes the first sample. If the warm-up is hopelessly slow, it counts as the sample. */
static nhood_status enter(struct contest *contest, struct contestant *contestant) {
    const struct nh_operation *operation = contestant->operation;
    double ns = 0;
    contestant->fastest_ns = INFINITY;
    if (!operation) {
        if (*contestant->reason) explain_failure(contest, &contestant->choice, contestant->reason);
        return contestant->status ? nh_error(contestant->status, "%s", contestant->reason)
                                  : NHOOD_OK;
    }
    nhood_status status = nh_scratch_reserve(&contest->scratch, operation->workspace_bytes);
    if (!status) status = run_once(contest, contestant, &ns);
    if (!status && ns <= hopeless * fastest_of_all(contest))
        status = run_once(contest, contestant, &ns);
    if (status) {
        if (status != NHOOD_ERR_INTERRUPTED)
            explain_failure(contest, &contestant->choice, nhood_last_error());
    } else {
        add_sample(contestant, ns);
    }
    return status;
}

static nhood_status enter_all(struct contest *contest) {
    nhood_status failure = NHOOD_OK;
    bool entered = false;
    for (int i = 0; i < contest->count; i++) {
        if (entered && nh_steady_s() >= time_of(contest, 0.6)) break;
        nhood_status status = enter(contest, &contest->contestant[i]);
        if (status == NHOOD_ERR_INTERRUPTED) return entered ? NHOOD_OK : status;
        if (status) failure = status;
        entered |= contest->contestant[i].samples > 0;
        drop_out(contest);
    }
    return entered ? NHOOD_OK : failure;
}

/* Whether the medians can be trusted. On a machine with other load they differ from the fastest runs. */
static bool steady(const struct contest *contest) {
    const struct contestant *best = NULL;
    for (int i = 0; i < contest->count; i++) {
        const struct contestant *contestant = &contest->contestant[i];
        if (contestant->samples && (!best || contestant->median_ns < best->median_ns))
            best = contestant;
    }
    return best && best->median_ns <= 1.1 * best->fastest_ns;
}

static void run_rounds(struct contest *contest) {
    double start = nh_steady_s(), end = time_of(contest, 1);
    int running = contest->count;
    for (int round = 1; running > 0 && round < MOST_SAMPLES; round++) {
        bool enough = running == 1 || nh_steady_s() - start >= enough_s;
        if (round >= LEAST_SAMPLES && enough && steady(contest)) return;
        running = 0;
        for (int i = 0; i < contest->count; i++) {
            struct contestant *contestant = &contest->contestant[i];
            if (!contestant->samples || contestant->out) continue;
            if (nh_steady_s() >= end || nh_interrupted(contest->call)) return;
            double ns;
            if (run_once(contest, contestant, &ns)) {
                contestant->out = true;
            } else {
                add_sample(contestant, ns);
            }
            running++;
        }
        drop_out(contest);
    }
}

static nhood_status remember(const struct contest *contest) {
    struct nh_wisdom_key key;
    nhood_status status = NHOOD_OK;
    nh_wisdom_key(contest->request->device, &contest->problem, &key);
    for (int i = 0; !status && i < contest->count; i++) {
        const struct contestant *contestant = &contest->contestant[i];
        const struct nh_choice *choice = &contestant->choice;
        char config[NH_CONFIG_BYTES];
        if (!contestant->samples) continue;
        nh_config_text(choice->solver, &choice->config, config, sizeof config);
        struct nh_wisdom_record record = {
            .device = key.device,
            .problem = key.problem,
            .solver = choice->solver->name,
            .config = config,
            .median_ns = nh_max(1, llround(contestant->median_ns)),
            .samples = contestant->samples,
        };
        status = nh_wisdom_add(contest->request->wisdom, &record);
    }
    return status;
}

/* Lists the candidates worth a run, the one with the least estimate first. */
static nhood_status list_contestants(struct contest *contest) {
    struct nh_choice choice[MOST_CONTESTANTS];
    struct nh_request packed = *contest->request;
    packed.problem = &contest->problem;
    int count = nh_planner_list(&packed, choice, MOST_CONTESTANTS);
    while (count > 1 && choice[count - 1].estimate_ns > NH_MEASURE_UNLIKELY * choice[0].estimate_ns)
        count--;
    if (!count)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "no solver takes the problem with packed tensors");
    const struct nh_host *host = contest->request->device->host;
    contest->contestant = nh_allocate(host, (size_t)count * sizeof *contest->contestant);
    if (!contest->contestant) return NHOOD_ERR_MEMORY;
    contest->count = count;
    for (int i = 0; i < count; i++)
        contest->contestant[i].choice = choice[i];
    return NHOOD_OK;
}

/* Wisdom's key has no strides, so the problem is measured with packed tensors. */
static nhood_status pack(const struct nh_problem *given, struct nh_problem *packed) {
    static const nhood_strides zero = {0};
    nhood_status status = NHOOD_OK;
    *packed = *given;
    for (int32_t tensor = 0; !status && tensor < NHOOD_TENSOR_COUNT; tensor++)
        status = nh_problem_set_strides(packed, tensor, &zero);
    return status;
}

/* Another thread may have measured the problem while this one was building. */
static bool is_known(const struct nh_request *request) {
    struct nh_choice choice;
    return !nh_planner_choose(request, &choice) && choice.samples;
}

static nhood_status run_all(struct contest *contest) {
    nhood_status status =
        nh_scratch_create(contest->request->device, &contest->problem, &contest->scratch);
    if (!status) status = enter_all(contest);
    if (status) return status;
    run_rounds(contest);
    return remember(contest);
}

/* Builds begin within the first two fifths of the budget, and candidates enter within the next fifth. The rest serves to
 * tell the good ones apart. Compilations that end late and the wait for other contests do not shorten the time for runs. */
nhood_status nh_measure(const struct nh_request *request, double budget_s, pthread_mutex_t *alone) {
    const struct nh_device *device = request->device;
    if (!device->timing)
        return nh_error(NHOOD_ERR_UNSUPPORTED, "operations on %s cannot be timed",
                        device->info.name);
    struct contest contest = {.request = request,
                              .budget_s = budget_s,
                              .start_s = nh_steady_s(),
                              .call = nh_interruption_current()};
    nhood_status status = pack(request->problem, &contest.problem);
    if (!status) status = list_contestants(&contest);
    if (!status) {
        build_all(&contest);
        pthread_mutex_lock(alone);
        contest.start_s += fmax(0, nh_steady_s() - time_of(&contest, 0.4));
        if (!is_known(request)) status = run_all(&contest);
        pthread_mutex_unlock(alone);
    }
    for (int i = 0; i < contest.count; i++)
        if (contest.contestant[i].operation)
            contest.contestant[i].operation->destroy(contest.contestant[i].operation);
    if (contest.scratch.device) nh_scratch_free(&contest.scratch);
    nh_release(device->host, contest.contestant);
    return status;
}
