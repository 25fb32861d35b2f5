/* nhood info: prints the library's version, its devices and its solvers. */
#include "commands.h"
#include "message.h"
#include "output.h"
#include "target.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *kind_name(int32_t kind) {
    return kind == NHOOD_DEVICE_CPU ? "cpu" : kind == NHOOD_DEVICE_CUDA ? "cuda" : "unknown";
}

static int print_devices(const nhood_context *context, bool json) {
    for (int32_t i = 0; i < nhood_device_count(context); i++) {
        nhood_device_info info = {.struct_size = sizeof info};
        nhood_status status = nhood_device_query(context, i, &info);
        if (status) return complain_library(status, "device");
        if (!json) {
            printf("device   %-10s%s\n", info.name, info.description);
            if (info.kind == NHOOD_DEVICE_CPU)
                printf("%-19sthreads: %s\n", "", nhood_context_threads(context));
            else
                printf("%-19sestimates: %s\n", "", nhood_device_estimates(context, i));
            continue;
        }
        json_list_object();
        json_text("name", info.name);
        json_text("kind", kind_name(info.kind));
        json_integer("workers", info.workers);
        json_text("description", info.description);
        if (info.kind == NHOOD_DEVICE_CPU) json_text("threads", nhood_context_threads(context));
        json_text("estimates", nhood_device_estimates(context, i));
        json_object_end();
    }
    return 0;
}

static void print_solvers(bool json) {
    int32_t kind;
    const char *name;
    for (int32_t i = 0; (name = nhood_solver_name(i, &kind)); i++) {
        if (!json) {
            printf("solver   %-10s%s\n", kind_name(kind), name);
            continue;
        }
        json_list_object();
        json_text("name", name);
        json_text("kind", kind_name(kind));
        json_object_end();
    }
}

static int print_all(const nhood_context *context, bool json) {
    const char *notes = nhood_context_notes(context);
    if (json) {
        json_begin();
        json_text("version", nhood_version());
        json_list_begin("devices");
    } else {
        printf("nhood    %s\n", nhood_version());
    }
    int status = print_devices(context, json);
    if (json) {
        json_list_end();
        json_text("notes", notes);
        json_list_begin("solvers");
    } else if (*notes) {
        printf("notes    %s\n", notes);
    }
    print_solvers(json);
    if (json) {
        json_list_end();
        json_end();
    }
    return status;
}

int cmd_info(int argc, char **argv) {
    struct target target;
    bool json = false;
    target_init(&target);
    const struct option options[] = {{.name = "json", .flag = &json, .help = "print one object"},
                                     {.name = NULL}};
    const struct usage usage = {
        "info", "[options]",
        "Prints the version, the devices with their features, where the number of CPU threads and "
        "the\n"
        "coefficients of estimates of GPUs come from, what was looked for beyond the CPU, and the\n"
        "table of solvers.",
        options, target.options};
    int status, count = options_parse(&usage, argc, argv, &status);
    if (count < 0) return status;
    if (count > 0)
        return complain(EXIT_USAGE, "info: takes no argument, but there is '%s'", argv[0]);
    status = target_open(&target);
    if (!status) status = print_all(target.context, json);
    target_close(&target);
    return status;
}
