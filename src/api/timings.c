#include "timings.h"

#include "planner.h"
#include "registry.h"

#include <stdlib.h>
#include <string.h>

/* The fields of a line of wisdom. */
enum { DEVICE, PROBLEM, SOLVER, CONFIG, MEDIAN, SAMPLES, FIELDS };

/* About the most timings that are used, which take 60 MiB. Of wisdom with more, only every second or third problem (and so
 * on) is used. */
enum { MOST_TIMINGS = 40000 };

/* Splits the line at its blanks, in place. Returns where the next line begins. */
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

/* The most candidates of a problem on a device, of all solvers together. */
enum { MOST_PROPOSED = 512 };

struct reader {
    const struct nh_device *device;
    struct nh_device plain; /* the device with the built-in coefficients */
    struct nh_cuda_device plain_backend;
    struct nh_problem problem; /* of the current lines */
    /* The problem's candidates. Wisdom may name any config, and only proposed ones are known to be valid. Those that are
     * proposed without the calibration count, too, as they may have been timed before it. If there are none, the lines of
     * this problem are left out. */
    int proposals;
    struct nh_choice proposal[2 * MOST_PROPOSED];
};

static void propose(struct reader *reader, const struct nh_device *device) {
    const struct nh_request request = {
        .table = nh_registry_solvers, .device = device, .problem = &reader->problem};
    reader->proposals +=
        nh_planner_list(&request, &reader->proposal[reader->proposals], MOST_PROPOSED);
}

/* The candidate that a line is about, or NULL. */
static const struct nh_choice *find_proposal(const struct reader *reader,
                                             char *const field[FIELDS]) {
    const char *text = strcmp(field[CONFIG], "-") != 0 ? field[CONFIG] : "";
    const struct nh_solver *solver = NULL;
    struct nh_config config = {{0}};
    for (int i = 0; i < reader->proposals; i++) {
        const struct nh_choice *choice = &reader->proposal[i];
        if (!solver && !strcmp(choice->solver->name, field[SOLVER])) {
            solver = choice->solver;
            if (!nh_config_parse(solver, text, &config)) return NULL;
        }
        if (choice->solver == solver && !memcmp(&choice->config, &config, sizeof config))
            return choice;
    }
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

/* Adds a line about the current problem if it can be used. MEMORY. */
static nhood_status add_line(const struct reader *reader, char *const field[FIELDS],
                             struct nh_timings *timings) {
    const struct nh_choice *proposal = find_proposal(reader, field);
    if (!proposal) return NHOOD_OK;
    struct nh_timed *timing = make_room(timings);
    if (!timing) return NHOOD_ERR_MEMORY;
    timing->problem = timings->problems;
    timing->solver = proposal->solver;
    timing->measured_ns = (double)strtoll(field[MEDIAN], NULL, 10);
    if (nh_timed_work(&reader->problem, reader->device, &proposal->config, timing))
        timings->count++;
    return NHOOD_OK;
}

/* Begins the lines of another problem. If it is not wanted or not legal, they will be left out. */
static void begin_problem(struct reader *reader, const char *text, bool wanted) {
    nhood_problem parsed;
    reader->proposals = 0;
    if (!wanted || nhood_problem_parse(text, &parsed) ||
        nh_problem_canonical(&parsed, &reader->problem) || reader->problem.batch == 0)
        return;
    propose(reader, reader->device);
    if (((const struct nh_cuda_device *)reader->device->backend)->coefficients)
        propose(reader, &reader->plain);
}

/* Counts the lines about a device. */
static int64_t count_lines(const char *wisdom, const char *device) {
    const size_t length = strlen(device);
    int64_t lines = 0;
    for (const char *at = wisdom; *at; at += strcspn(at, "\n"), at += *at == '\n')
        lines += !strncmp(at, device, length) && at[length] == ' ';
    return lines;
}

/* Keeps the timings from `first` on, which are those of one problem, if there are at least two to choose from. */
static void end_problem(struct nh_timings *timings, int64_t first) {
    if (timings->count < first + 2) {
        timings->count = first;
    } else {
        timings->problems++;
    }
}

static nhood_status read_lines(struct reader *reader, char *wisdom, struct nh_timings *timings) {
    struct nh_wisdom_key key;
    char *field[FIELDS];
    const char *last = "";
    int64_t first = 0, seen = 0;
    nhood_status status = NHOOD_OK;
    nh_wisdom_key(reader->device, NULL, &key);
    const int64_t every = 1 + count_lines(wisdom, key.device) / MOST_TIMINGS;
    for (char *at = split(wisdom, field); *at && !status;) {
        at = split(at, field);
        if (strcmp(field[DEVICE], key.device) != 0) continue;
        if (strcmp(field[PROBLEM], last) != 0) {
            end_problem(timings, first);
            first = timings->count;
            last = field[PROBLEM];
            begin_problem(reader, last, seen++ % every == 0);
        }
        status = add_line(reader, field, timings);
    }
    end_problem(timings, first);
    return status;
}

nhood_status nh_timings_read(const struct nh_device *device, char *wisdom,
                             struct nh_timings *timings) {
    struct reader *reader = nh_allocate(device->host, sizeof *reader);
    *timings = (struct nh_timings){.host = device->host};
    if (!reader) return NHOOD_ERR_MEMORY;
    reader->device = device;
    reader->plain = *device;
    reader->plain_backend = *(const struct nh_cuda_device *)device->backend;
    reader->plain_backend.coefficients = NULL;
    reader->plain.backend = &reader->plain_backend;
    nhood_status status = read_lines(reader, wisdom, timings);
    nh_release(device->host, reader);
    return status;
}

void nh_timings_free(struct nh_timings *timings) {
    nh_release(timings->host, timings->timing);
    timings->timing = NULL;
}
