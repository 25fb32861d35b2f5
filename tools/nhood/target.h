/* The context and device a command works with, by the options every command shares. */
#ifndef TARGET_H
#define TARGET_H

#include "nhood.h"
#include "options.h"

struct target {
    /* options */
    const char *device_name, *isa;
    int64_t threads;
    bool verbose;
    /* open */
    nhood_context *context;
    int32_t device;
    nhood_device_info info;
};

#define TARGET_DEFAULTS                                                                            \
    { .device_name = "cpu" }

/* Rows for a table of options. */
#define TARGET_OPTIONS(target)                                                                     \
    {"device",                                                                                     \
     OPTION_TEXT,                                                                                  \
     &(target).device_name,                                                                        \
     0,                                                                                            \
     0,                                                                                            \
     "NAME",                                                                                       \
     "device, by its name in 'nhood info' (cpu)"},                                                 \
        {"isa",                                                                                    \
         OPTION_TEXT,                                                                              \
         &(target).isa,                                                                            \
         0,                                                                                        \
         0,                                                                                        \
         "NAME",                                                                                   \
         "highest CPU instruction set: generic, avx2, avx512 (the best)"},                         \
        {"threads",                                                                                \
         OPTION_INTEGER,                                                                           \
         &(target).threads,                                                                        \
         1,                                                                                        \
         1024,                                                                                     \
         "N",                                                                                      \
         "CPU threads, the calling one included (all)"},                                           \
    {                                                                                              \
        "verbose", OPTION_FLAG, &(target).verbose, 0, 0, NULL,                                     \
            "say more, and show the library's log"                                                 \
    }

/* Returns 0, or the exit status after a message. A context must be closed in either case. */
int target_open(struct target *target);
void target_close(struct target *target);

/* Index in the solver table of a solver for the target's device; -1 after a message. */
int32_t target_find_solver(const struct target *target, const char *name);

#endif
