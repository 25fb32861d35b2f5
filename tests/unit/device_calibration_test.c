/* Calibration through the public functions: from wisdom to a file, and from the file to choices. Times are made up: estimates, which
 * some solvers are slower than by a factor. */
#include "nhood.h"
#include "test.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

enum { WISDOM_BYTES = 4 << 20 };

static char folder[] = "/tmp/nhood_calibrate_XXXXXX", logged[1024];

static void note_log(void *user, int32_t level, const char *line) {
    (void)user, (void)level;
    snprintf(logged, sizeof logged, "%s", line);
}

/* Memory that runs out after so many pieces; never if that is negative. */
static int pieces_left = -1;

static void *allocate(void *user, size_t bytes, size_t alignment) {
    (void)user, (void)alignment;
    if (pieces_left == 0) return NULL;
    if (pieces_left > 0) pieces_left--;
    return test_allocate(bytes);
}

static void release(void *user, void *memory) {
    (void)user;
    test_free(memory);
}

static nhood_context *open_context(const char *cache, const char *describe) {
    const nhood_context_options options = {.struct_size = sizeof options,
                                           .threads = 1,
                                           .cache = cache,
                                           .describe = describe,
                                           .allocate = allocate,
                                           .release = release,
                                           .log = note_log};
    nhood_context *context = NULL;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    return context;
}

struct lines {
    const char *problem;
    char *text;
    size_t used;
    char first[64]; /* the solver that is chosen */
};

static void print_line(struct lines *lines, const char *solver, const char *config, double ns) {
    lines->used += (size_t)snprintf(
        lines->text + lines->used, WISDOM_BYTES - lines->used,
        "NVIDIA_H200,_compute_capability_9.0,_132_multiprocessors %s %s %s %.0f 7\n",
        lines->problem, solver, *config ? config : "-", ns);
}

static void add_line(void *user, const nhood_candidate *row) {
    struct lines *lines = user;
    if (row->chosen) snprintf(lines->first, sizeof lines->first, "%s", row->solver);
    if (row->refusal || !lines->text) return;
    double ns = row->estimate_ns * (strcmp(row->solver, "cuda.small") == 0 ? 2.5 : 1);
    print_line(lines, row->solver, row->config, ns);
    /* No solver proposes tiles without rows: what they ask of a device cannot be counted. */
    if (strcmp(row->solver, "cuda.fused90") != 0) return;
    char config[512];
    snprintf(config, sizeof config, "query_tile=0x0x0%s", strchr(row->config, ','));
    print_line(lines, row->solver, config, 1);
}

static void explain(nhood_context *context, int32_t device, const char *text, struct lines *lines) {
    nhood_problem problem;
    lines->problem = text;
    CHECK(!nhood_problem_parse(text, &problem), "%s: %s", text, nhood_last_error());
    CHECK(!nhood_plan_explain(context, device, &problem, NULL, add_line, lines), "%s: %s", text,
          nhood_last_error());
}

/* Timings of so many problems on the device. */
static void learn(nhood_context *context, int32_t device, int problems) {
    struct lines lines = {.text = calloc(1, WISDOM_BYTES)};
    lines.used = (size_t)snprintf(lines.text, WISDOM_BYTES, "nhood-wisdom 1\n");
    for (int i = 0; i < problems; i++) {
        char text[128];
        snprintf(text, sizeof text, "%s:f16:b%dh%dd%d:%dx%d:w%dx%d", i % 2 ? "fwd" : "bwd",
                 1 + i % 3, 1 + i % 5, 32 << i % 3, 24 + 5 * i, 20 + 3 * i, 3 + i % 7, 5 + i % 9);
        explain(context, device, text, &lines);
    }
    CHECK(!nhood_wisdom_import(context, lines.text, NULL), "%s", nhood_last_error());
    free(lines.text);
}

static const char *chosen(nhood_context *context, int32_t device, struct lines *lines) {
    lines->text = NULL;
    explain(context, device, "fwd:f16:b3h7d64:70x60:w9x9", lines);
    return lines->first;
}

static void check_errors(void) {
    nhood_context *context = open_context(folder, "h200"), *bare = open_context("", "h200");
    const int32_t device = nhood_device_count(context) - 1;
    nhood_calibration fit = {.struct_size = sizeof fit};
    CHECK(!strcmp(nhood_device_estimates(context, 0), "built in"), "%s",
          nhood_device_estimates(context, 0));
    CHECK(!strcmp(nhood_device_estimates(context, 99), ""), "a device that is not there");
    CHECK(!strcmp(nhood_device_estimates(NULL, 0), ""), "a context that is not there");
    CHECK(nhood_device_calibrate(context, 0, 0, &fit) == NHOOD_ERR_UNSUPPORTED, "the CPU");
    CHECK(nhood_device_calibrate(context, 99, 0, &fit) == NHOOD_ERR_ARGUMENT, "device 99");
    CHECK(nhood_device_calibrate(NULL, 0, 0, &fit) == NHOOD_ERR_ARGUMENT, "no context");
    CHECK(nhood_device_calibrate(context, device, 0, NULL) == NHOOD_ERR_ARGUMENT, "no result");
    learn(context, device, NHOOD_LEAST_CALIBRATION - 1);
    CHECK(nhood_device_calibrate(context, device, 0, &fit) == NHOOD_ERR_CACHE_MISS &&
              strstr(nhood_last_error(), "wisdom has timings of 23 problems on h200"),
          "%s", nhood_last_error());
    learn(bare, device, 40);
    CHECK(nhood_device_calibrate(bare, device, 0, &fit) == NHOOD_ERR_CACHE_MISS &&
              strstr(nhood_last_error(), "no cache folder"),
          "%s", nhood_last_error());
    CHECK(!nhood_device_calibrate(bare, device, 1, &fit) && fit.better && !fit.written, "%s",
          nhood_last_error());
    fit.struct_size--;
    CHECK(nhood_device_calibrate(bare, device, 1, &fit) == NHOOD_ERR_ARGUMENT, "a smaller struct");
    nhood_context_destroy(context);
    nhood_context_destroy(bare);
}

/* Without memory there is an error, and whatever was allocated is released. */
static void check_memory(void) {
    nhood_context *context = open_context(folder, "h200");
    const int32_t device = nhood_device_count(context) - 1;
    nhood_calibration fit = {.struct_size = sizeof fit};
    nhood_status status = NHOOD_ERR_MEMORY;
    learn(context, device, 40);
    int pieces = -1;
    while (status == NHOOD_ERR_MEMORY && pieces++ < 1000) {
        pieces_left = pieces;
        status = nhood_device_calibrate(context, device, 0, &fit);
    }
    CHECK(!status && pieces > 5 && fit.written, "after %d pieces: %s", pieces, nhood_last_error());
    nhood_context_destroy(context);
    const nhood_context_options options = {.struct_size = sizeof options,
                                           .threads = 1,
                                           .cache = folder,
                                           .describe = "h200",
                                           .allocate = allocate,
                                           .release = release};
    status = NHOOD_ERR_MEMORY;
    for (pieces = 0; status == NHOOD_ERR_MEMORY && pieces < 1000; pieces++) {
        pieces_left = pieces;
        status = nhood_context_create(&options, &context);
    }
    pieces_left = -1;
    const char *origin = nhood_device_estimates(context, device);
    CHECK(!status && pieces > 5 && !strncmp(origin, "calibrated, ", 12) && !unlink(origin + 12),
          "after %d pieces: %s, %s", pieces, nhood_last_error(), origin);
    nhood_context_destroy(context);
}

static void check_calibrated(void) {
    nhood_context *context = open_context(folder, "h200");
    const int32_t device = nhood_device_count(context) - 1;
    struct lines before, after, other;
    nhood_calibration fit = {.struct_size = sizeof fit};
    CHECK(!strcmp(nhood_device_estimates(context, device), "built in, fitted on an H200"), "%s",
          nhood_device_estimates(context, device));
    learn(context, device, 40);
    CHECK(!nhood_device_calibrate(context, device, 0, &fit), "%s", nhood_last_error());
    CHECK(fit.problems == 40 && fit.timings > 400 && fit.better && fit.written &&
              fit.within_after > 0.9 && fit.within_after > fit.within_before &&
              fit.lost_after < fit.lost_before && fit.worst_after <= fit.worst_before,
          "%d problems, %g within before, %g after", (int)fit.problems, fit.within_before,
          fit.within_after);
    /* a context that is there already stays as it is */
    CHECK(!strcmp(chosen(context, device, &before), "cuda.small"), "%s", before.first);
    nhood_context *next = open_context(folder, "h200"), *h100 = open_context(folder, "h100");
    const char *origin = nhood_device_estimates(next, device);
    CHECK(!strncmp(origin, "calibrated, ", 12) && !strncmp(origin + 12, folder, strlen(folder)),
          "%s", origin);
    CHECK(strcmp(chosen(next, device, &after), "cuda.small") != 0, "%s is chosen still",
          after.first);
    CHECK(!strcmp(nhood_device_estimates(h100, device),
                  "built in, of an H200, scaled by published rates"),
          "%s", nhood_device_estimates(h100, device));
    CHECK(!strcmp(chosen(h100, device, &other), "cuda.small"), "%s", other.first);
    /* half of the file */
    CHECK(!truncate(origin + 12, 300), "%s", origin);
    logged[0] = '\0';
    nhood_context *broken = open_context(folder, "h200");
    CHECK(strstr(logged, "the calibration of h200 is not used: ") && strstr(logged, "ends at line"),
          "%s", logged);
    CHECK(!strcmp(nhood_device_estimates(broken, device), "built in, fitted on an H200"), "%s",
          nhood_device_estimates(broken, device));
    CHECK(!strcmp(chosen(broken, device, &other), "cuda.small"), "%s", other.first);
    CHECK(!unlink(origin + 12), "%s", origin);
    nhood_context_destroy(context);
    nhood_context_destroy(next);
    nhood_context_destroy(h100);
    nhood_context_destroy(broken);
}

int main(void) {
    CHECK(mkdtemp(folder), "no folder");
    check_errors();
    check_memory();
    check_calibrated();
    CHECK(!rmdir(folder), "%s is not empty", folder);
    return test_result();
}
