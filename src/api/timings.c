#include "timings.h"

#include "registry.h"

#include <stdlib.h>
#include <string.h>

/* The fields of a line of wisdom. */
enum { DEVICE, PROBLEM, SOLVER, CONFIG, MEDIAN, SAMPLES, FIELDS };

/* About as many are used at most, 60 MiB of them: of wisdom that has more, every second problem, every third, .. */
enum { MOST_TIMINGS = 40000 };

/* Cuts the line at its blanks. Returns where the next one begins. */
static char *split(char *line, char *field[FIELDS]) {
    char *end = line + strcspn(line, "\n"), *at = line;
    char *next = *end ? end + 1 : end;
    *end = '\0';
    for (int i = 0; i < FIELDS; i++) {
        field[i] = at;
        at += strcspn(at, " ");
        if (*at) *at++ = '\0';
    }
    return next;
}

static const struct nh_solver *find_solver(const char *name) {
    for (const struct nh_solver *const *row = nh_registry_solvers; *row; row++)
        if (!strcmp((*row)->name, name)) return *row;
    return NULL;
}

static struct nh_timed *make_room(struct nh_timings *timings) {
    if (timings->count == timings->capacity) {
        int64_t capacity = timings->capacity ? 2 * timings->capacity : 256;
        struct nh_timed *grown = nh_allocate(timings->host, (size_t)capacity * sizeof *grown);
        if (!grown) return NULL;
        if (timings->count) memcpy(grown, timings->timing, (size_t)timings->count * sizeof *grown);
        nh_release(timings->host, timings->timing);
        timings->timing = grown;
        timings->capacity = capacity;
    }
    return &timings->timing[timings->count];
}

/* Adds a line about the problem, if it can be used. MEMORY. */
static nhood_status add_line(const struct nh_device *device, char *const field[FIELDS],
                             const struct nh_problem *problem, struct nh_timings *timings) {
    struct nh_config config;
    const struct nh_solver *solver = find_solver(field[SOLVER]);
    if (!solver || solver->device_kind != device->info.kind ||
        !nh_config_parse(solver, strcmp(field[CONFIG], "-") != 0 ? field[CONFIG] : "", &config))
        return NHOOD_OK;
    struct nh_timed *timing = make_room(timings);
    if (!timing) return NHOOD_ERR_MEMORY;
    timing->problem = timings->problems;
    timing->solver = solver;
    timing->measured_ns = (double)strtoll(field[MEDIAN], NULL, 10);
    if (nh_timed_work(problem, device, &config, timing)) timings->count++;
    return NHOOD_OK;
}

/* How many lines are about the device. */
static int64_t count_lines(const char *wisdom, const char *device) {
    const size_t length = strlen(device);
    int64_t lines = 0;
    for (const char *at = wisdom; *at; at += strcspn(at, "\n"), at += *at == '\n')
        lines += !strncmp(at, device, length) && at[length] == ' ';
    return lines;
}

/* Keeps the timings since `first`, of one problem, if there is a choice among them. */
static void end_problem(struct nh_timings *timings, int64_t first) {
    if (timings->count < first + 2) {
        timings->count = first;
    } else {
        timings->problems++;
    }
}

nhood_status nh_timings_read(const struct nh_device *device, char *wisdom,
                             struct nh_timings *timings) {
    struct nh_wisdom_key key;
    struct nh_problem problem;
    nhood_problem parsed;
    char *field[FIELDS];
    const char *last = "";
    bool legal = false;
    int64_t first = 0, seen = 0;
    nhood_status status = NHOOD_OK;
    *timings = (struct nh_timings){.host = device->host};
    nh_wisdom_key(device, NULL, &key);
    const int64_t every = 1 + count_lines(wisdom, key.device) / MOST_TIMINGS;
    for (char *at = split(wisdom, field); *at && !status;) {
        at = split(at, field);
        if (strcmp(field[DEVICE], key.device) != 0) continue;
        if (strcmp(field[PROBLEM], last) != 0) {
            end_problem(timings, first);
            first = timings->count;
            last = field[PROBLEM];
            legal = seen++ % every == 0 && !nhood_problem_parse(last, &parsed) &&
                    !nh_problem_canonical(&parsed, &problem);
        }
        if (legal) status = add_line(device, field, &problem, timings);
    }
    end_problem(timings, first);
    return status;
}

void nh_timings_free(struct nh_timings *timings) {
    nh_release(timings->host, timings->timing);
    timings->timing = NULL;
}
