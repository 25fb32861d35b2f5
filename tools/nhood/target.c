#include "target.h"

#include "buffers.h"
#include "interrupt.h"
#include "message.h"
#include "suite.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void target_init(struct target *target) {
    *target = (struct target){.device_name = "cpu", .describe_option = "arch"};
    const struct option options[] = {{.name = "device",
                                      .text = &target->device_name,
                                      .argument = "NAME",
                                      .help = "device, by its name in 'nhood info' (cpu)",
                                      .values = "cpu cuda:0"},
                                     {.name = "isa",
                                      .text = &target->isa,
                                      .argument = "NAME",
                                      .help = "highest CPU instruction set: generic, avx2, avx512, "
                                              "amx; neon, sve256, sve512 (the best)",
                                      .values = "generic avx2 avx512 amx neon sve256 sve512"},
                                     {.name = "threads",
                                      .integer = &target->threads,
                                      .low = 1,
                                      .high = 1024,
                                      .argument = "N",
                                      .help = "CPU threads, the calling one included (all)"},
                                     {.name = "verbose",
                                      .flag = &target->verbose,
                                      .help = "say more, and show the library's log"},
                                     {.name = NULL}};
    static_assert(sizeof options == sizeof target->options, "room for every row");
    memcpy(target->options, options, sizeof options);
}

static void show_log(void *user, int32_t level, const char *line) {
    static const char *const name[] = {"error", "warning", "info"};
    struct target *target = user;
    const char *asked = getenv("NHOOD_LOG");
    const bool all = target->verbose || (asked && strcmp(asked, "info") == 0);
    if (level == NHOOD_LOG_WARNING) atomic_fetch_add(&target->warnings, 1);
    if (target->quiet || (level == NHOOD_LOG_INFO && !all)) return;
    if (level == NHOOD_LOG_WARNING && !target->verbose && asked && strcmp(asked, "error") == 0)
        return;
    complain(0, "%s: %s", level >= NHOOD_LOG_ERROR && level <= NHOOD_LOG_INFO ? name[level] : "log",
             line);
}

static int32_t interrupted(void *user) {
    (void)user;
    return interrupt_came();
}

static int find_device(struct target *target) {
    char known[256] = "";
    for (int32_t i = 0; i < nhood_device_count(target->context); i++) {
        nhood_device_info info = {.struct_size = sizeof info};
        nhood_status status = nhood_device_query(target->context, i, &info);
        if (status) return complain_library(status, "device");
        if (strcmp(info.name, target->device_name) == 0) {
            target->device = i;
            target->info = info;
            return 0;
        }
        if (info.ordinal < 0) continue; /* only described */
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", info.name);
    }
    return complain(EXIT_USAGE, "--device = '%s' is not a device here; there is: %s (%s)",
                    target->device_name, known, nhood_context_notes(target->context));
}

/* The library names a field of its options, the user gave an option of the command line. */
static int complain_options(nhood_status failure, const struct target *target) {
    static const char field[] = "options.", describe[] = "options.describe";
    const char *text = nhood_last_error();
    if (failure != NHOOD_ERR_ARGUMENT || strncmp(text, field, strlen(field)) != 0)
        return complain_library(failure, "context");
    if (strncmp(text, describe, strlen(describe)) == 0)
        return complain(EXIT_USAGE, "--%s%s", target->describe_option, text + strlen(describe));
    return complain(EXIT_USAGE, "--%s", text + strlen(field));
}

int target_open(struct target *target) {
    nhood_context_options options = {.struct_size = sizeof options,
                                     .threads = (int32_t)target->threads,
                                     .line_info = target->line_info,
                                     .isa = target->isa,
                                     .cache = target->cache,
                                     .user = target,
                                     .log = show_log,
                                     .interrupted = interrupted,
                                     .describe = target->describe};
    nhood_status status = nhood_context_create(&options, &target->context);
    if (status) return complain_options(status, target);
    int failed = find_device(target);
    /* A device that is only described has no memory to open. */
    if (!failed && target->info.ordinal >= 0 && !buffer_open(&target->info)) failed = EXIT_FAILURE;
    return failed;
}

int target_open_untaught(struct target *target) {
    int failed = target_open(target);
    nhood_status status =
        failed ? NHOOD_OK : nhood_wisdom_forget(target->context, NHOOD_ANY_DEVICE, NULL, NULL);
    return status ? complain_library(status, "wisdom") : failed;
}

void target_close(struct target *target) {
    nhood_context_destroy(target->context);
    target->context = NULL;
}

int32_t target_find_solver(const struct target *target, const char *name) {
    char known[512] = "";
    int32_t kind;
    const char *solver;
    for (int32_t i = 0; (solver = nhood_solver_name(i, &kind)); i++) {
        if (kind != target->info.kind) continue;
        if (strcmp(solver, name) == 0) return i;
        size_t used = strlen(known);
        snprintf(known + used, sizeof known - used, "%s%s", used ? ", " : "", solver);
    }
    complain(EXIT_USAGE, "--solver = '%s' is not a solver for %s; there is: %s", name,
             target->info.name, known);
    return -1;
}

/* Returns as target_each_problem. `first` is false if something was printed before. */
static int visit_members(const struct target *target, struct suite *members, bool first, bool json,
                         problem_fn *visit, group_fn *visit_group, const void *arg) {
    int status = 0;
    if (visit_group && members->count > 1) {
        if (!first && !json) printf("\n");
        status = visit_group(target, members, arg);
        first = false;
    }
    suite_drop_equal(members);
    for (size_t i = 0; i < members->count; i++, first = false) {
        if (!first && !json) printf("\n");
        const int failed = visit(target, members->problem[i].text, arg);
        if (failed) status = failed;
    }
    return status;
}

int target_each_problem(const struct target *target, char *const *text, int count, bool json,
                        problem_fn *visit, group_fn *visit_group, const void *arg) {
    int status = 0;
    for (int i = 0; i < count; i++) {
        struct suite members = {.count = 0};
        int failed = suite_add(&members, text[i], text[i]);
        if (!failed)
            failed = visit_members(target, &members, i == 0, json, visit, visit_group, arg);
        if (failed) status = failed;
        suite_free(&members);
    }
    return status;
}
