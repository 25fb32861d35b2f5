/* nhood kernel: prints the CUDA kernels that would run for a problem, and writes their sources and machine code. */
#include "candidates.h"
#include "commands.h"
#include "cubin.h"
#include "message.h"
#include "output.h"
#include "system.h"
#include "target.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 1024, LINE_COLUMNS = 110 };

struct request {
    nhood_plan_options options;
    const char *config, *output;
    bool line_info, json;
};

/* What the launches of one problem are reported with. */
struct visit {
    const struct request *request;
    int launches, failed;
};

/* ---- files ---- */

static bool write_file(const char *folder, const char *name, const void *data, size_t bytes) {
    char path[PATH_BYTES];
    if (snprintf(path, sizeof path, "%s/%s", folder, name) >= (int)sizeof path) return false;
    FILE *file = fopen(path, "wb");
    bool written = file && fwrite(data, 1, bytes, file) == bytes;
    return file && !fclose(file) && written;
}

static int write_sources(const char *folder) {
    const char *name, *text;
    if (!system_make_folder(folder))
        return complain(EXIT_FAILURE, "--output = '%s': %s", folder, strerror(errno));
    for (int32_t i = 0; (text = nhood_kernel_source(i, &name)); i++)
        if (!write_file(folder, name, text, strlen(text)))
            return complain(EXIT_FAILURE, "%s/%s cannot be written", folder, name);
    return 0;
}

/* Writes the launch's machine code and, if nvdisasm is in $PATH, its instructions. False if the former cannot be written. */
static bool write_code(const char *folder, const char *stem, const nhood_launch *launch,
                       bool line_info) {
    char name[PATH_BYTES], cubin[PATH_BYTES], text[PATH_BYTES];
    snprintf(name, sizeof name, "%s.cubin", stem);
    snprintf(cubin, sizeof cubin, "%s/%s.cubin", folder, stem);
    snprintf(text, sizeof text, "%s/%s.sass", folder, stem);
    if (!write_file(folder, name, launch->code, launch->code_bytes)) return false;
    char *with_lines[] = {(char[]){"nvdisasm"}, (char[]){"-c"}, (char[]){"-g"}, cubin, NULL};
    char *plain[] = {(char[]){"nvdisasm"}, (char[]){"-c"}, cubin, NULL};
    if (!system_run(line_info ? with_lines : plain, text)) remove(text);
    return true;
}

/* ---- printing ---- */

static int arch_of(const char *kernel) {
    const char *name = strstr(kernel, "=sm_");
    return name ? atoi(name + 4) : 0;
}

/* Prints the compiler's options on lines that end behind an option or behind a member of a configuration. */
static void print_options(const char *options) {
    int column = 0;
    while (*options) {
        int length = (int)strcspn(options, " ,");
        length += options[length] != '\0';
        if (column + length > LINE_COLUMNS) {
            printf("\n");
            column = 0;
        }
        column += printf("%s%.*s", column ? "" : "      ", length, options);
        options += length;
    }
    printf("\n");
}

static void print_launch(int number, const nhood_launch *launch, const struct cubin_facts *facts,
                         const struct cubin_occupancy *occupancy) {
    int name = (int)strcspn(launch->kernel, " ");
    printf("%2d    %.*s\n", number, name, launch->kernel);
    printf("      %lld x %lld x %lld blocks of %d threads", (long long)launch->grid[0],
           (long long)launch->grid[1], (long long)launch->grid[2], (int)launch->threads);
    if (launch->cluster > 1) printf(", clusters of %d", (int)launch->cluster);
    printf("\n      shared memory of a block: %lld bytes", (long long)launch->shared_bytes);
    if (facts->shared_bytes) printf(" and %lld static", (long long)facts->shared_bytes);
    if (facts->instructions)
        printf("\n      %lld registers, %lld bytes of stack (spills and arrays), %lld instructions",
               (long long)facts->registers, (long long)facts->stack_bytes,
               (long long)facts->instructions);
    if (facts->instructions && occupancy->limit)
        printf("\n      blocks of a multiprocessor: %lld, %lld of %lld warps, limited by %s",
               (long long)occupancy->blocks, (long long)occupancy->warps,
               (long long)occupancy->most_warps, occupancy->limit);
    printf("\n");
    print_options(launch->kernel + name + (launch->kernel[name] == ' '));
}

static void print_launch_json(const nhood_launch *launch, const struct cubin_facts *facts,
                              const struct cubin_occupancy *occupancy) {
    char source[PATH_BYTES];
    const char *options = launch->kernel + strcspn(launch->kernel, " ");
    snprintf(source, sizeof source, "%.*s", (int)(options - launch->kernel), launch->kernel);
    json_list_object();
    json_text("source", source);
    json_text("options", options + (*options == ' '));
    json_integer("grid_x", launch->grid[0]);
    json_integer("grid_y", launch->grid[1]);
    json_integer("grid_z", launch->grid[2]);
    json_integer("cluster", launch->cluster);
    json_integer("threads", launch->threads);
    json_integer("shared_bytes", launch->shared_bytes);
    json_integer("static_shared_bytes", facts->shared_bytes);
    json_integer("registers", facts->registers);
    json_integer("stack_bytes", facts->stack_bytes);
    json_integer("instructions", facts->instructions);
    json_integer("blocks_per_multiprocessor", occupancy->blocks);
    json_integer("warps_per_multiprocessor", occupancy->warps);
    json_text("limited_by", occupancy->limit ? occupancy->limit : "");
    json_object_end();
}

static void report(void *user, const nhood_launch *launch) {
    struct visit *visit = user;
    const struct request *request = visit->request;
    struct cubin_facts facts;
    int number = ++visit->launches;
    cubin_read(launch->code, launch->code_bytes, &facts);
    const struct cubin_occupancy occupancy =
        cubin_occupancy(&facts, arch_of(launch->kernel), launch->threads, launch->shared_bytes,
                        launch->multiprocessor_shared_bytes);
    if (request->json)
        print_launch_json(launch, &facts, &occupancy);
    else
        print_launch(number, launch, &facts, &occupancy);
    char stem[128];
    snprintf(stem, sizeof stem, "%d-%.*s", number, (int)strcspn(launch->kernel, "."),
             launch->kernel);
    if (request->output && !visit->failed &&
        !write_code(request->output, stem, launch, request->line_info))
        visit->failed =
            complain(EXIT_FAILURE, "%s/%s.cubin cannot be written", request->output, stem);
}

/* ---- problems ---- */

/* Makes wisdom choose a config: of this problem it then knows nothing else. */
static nhood_status prefer(const struct target *target, const nhood_problem *problem,
                           const struct request *request) {
    char text[PROBLEM_BYTES], device[sizeof target->info.description], wisdom[2048];
    snprintf(device, sizeof device, "%s", target->info.description);
    for (char *at = device; *at; at++)
        if (*at == ' ') *at = '_';
    nhood_status status = nhood_problem_format(problem, text, sizeof text, NULL);
    if (!status) status = nhood_wisdom_forget(target->context, target->device, problem, NULL);
    snprintf(wisdom, sizeof wisdom, "nhood-wisdom 1\n%s %s %s %s 1 7\n", device, text,
             request->options.solver, *request->config ? request->config : "-");
    return status ? status : nhood_wisdom_import(target->context, wisdom, NULL);
}

static int print_kernels(const struct target *target, const char *text,
                         const nhood_problem *problem, const struct candidate *chosen,
                         const struct request *request) {
    struct visit visit = {.request = request};
    nhood_bundle *bundle = NULL;
    if (request->json) {
        json_begin();
        json_text("problem", text);
        json_text("device", target->info.name);
        json_text("solver", chosen->solver);
        json_text("config", chosen->config);
        json_list_begin("kernels");
    } else {
        printf("problem    %s\ndevice     %s: %s\nsolver     %s%s%s\n", text, target->info.name,
               target->info.description, chosen->solver, *chosen->config ? " " : "",
               chosen->config);
    }
    nhood_status status = nhood_bundle_create(target->context, &bundle);
    if (!status)
        status = nhood_bundle_launches(bundle, target->device, problem, &request->options, report,
                                       &visit);
    int failed = status ? complain_library(status, text) : visit.failed;
    nhood_bundle_destroy(bundle);
    if (request->json) {
        json_list_end();
        json_end();
    }
    return failed;
}

static int show(const struct target *target, const char *text, const void *arg) {
    const struct request *request = arg;
    struct candidates candidates;
    nhood_problem problem;
    nhood_status status = nhood_problem_parse(text, &problem);
    if (!status && request->config) status = prefer(target, &problem, request);
    if (status) return complain_library(status, text);
    if (!candidates_exist(&problem, text)) return EXIT_FAILURE;
    status = candidates_explain(target, &problem, &request->options, &candidates);
    const struct candidate *chosen = candidates_chosen(&candidates);
    int failed = 0;
    if (status || !chosen)
        failed = complain_library(status, text);
    else if (request->config && strcmp(request->config, chosen->config) != 0)
        failed = complain(EXIT_USAGE,
                          "--config = '%s' is none that %s proposes for this problem, such as %s",
                          request->config, chosen->solver, chosen->config);
    else
        failed = print_kernels(target, text, &problem, chosen, request);
    candidates_free(&candidates);
    return failed;
}

/* Takes the GPU that --arch describes instead of the CPU: the first one of an architecture. */
static int find_described(struct target *target) {
    for (int32_t i = 0; i < nhood_device_count(target->context); i++) {
        nhood_device_info info = {.struct_size = sizeof info};
        nhood_status status = nhood_device_query(target->context, i, &info);
        if (status) return complain_library(status, "device");
        if (info.ordinal >= 0) continue;
        target->device = i;
        target->info = info;
        break;
    }
    return 0;
}

static int check_options(const struct target *target, const struct request *request, int count) {
    if (request->config && !request->options.solver)
        return complain(EXIT_USAGE, "kernel: --config needs --solver");
    if (request->output && count > 1)
        return complain(EXIT_USAGE, "kernel: --output takes one problem, not %d", count);
    if (target->describe && strcmp(target->device_name, "cpu") != 0)
        return complain(EXIT_USAGE, "kernel: give either --arch or a GPU as --device");
    return 0;
}

int cmd_kernel(int argc, char **argv) {
    struct target target;
    struct request request = {.options = {.struct_size = sizeof request.options}};
    target_init(&target);
    const struct option options[] = {
        {.name = "arch",
         .text = &target.describe,
         .argument = "NAME",
         .help = "sm_80, sm_90 or sm_100, or one GPU: a100, h100, h200, b200 (h200)",
         .values = "sm_80 sm_90 sm_100 a100 h100 h200 b200"},
        {.name = "solver",
         .text = &request.options.solver,
         .argument = "NAME",
         .help = "only this solver (the one that plans would take)"},
        {.name = "config",
         .text = &request.config,
         .argument = "TEXT",
         .help = "this config of the solver, as 'nhood simulate' prints them"},
        {.name = "output",
         .text = &request.output,
         .argument = "DIR",
         .help = "write sources, cubins and, where nvdisasm is, SASS there"},
        {.name = "line-info",
         .flag = &request.line_info,
         .help = "the code knows its source lines, as with NHOOD_LINE_INFO=1"},
        {.name = "json", .flag = &request.json, .help = "print one object per problem"},
        {.name = NULL}};
    const struct usage usage = {
        "kernel", "[options] <problem>...",
        "Prints the launches of a problem's plan on a GPU: each kernel's source, the options it "
        "is\n"
        "compiled with, among them its configuration, the registers, stack and shared memory that\n"
        "it takes, and how many blocks a multiprocessor holds. NVRTC must be here; a GPU need not.",
        options, target.options};
    int status, count = options_parse_problems(&usage, argc, argv, &status);
    if (count < 0) return status;
    status = check_options(&target, &request, count);
    if (!target.describe && !strcmp(target.device_name, "cpu")) target.describe = "h200";
    target.line_info = request.line_info;
    if (!status) status = target_open(&target);
    if (!status && target.describe) status = find_described(&target);
    const char *solver = request.options.solver;
    if (!status && solver && target_find_solver(&target, solver) < 0) status = EXIT_USAGE;
    if (!status && request.output) status = write_sources(request.output);
    if (!status)
        status = target_each_problem(&target, argv, count, request.json, show, NULL, &request);
    target_close(&target);
    return status;
}
