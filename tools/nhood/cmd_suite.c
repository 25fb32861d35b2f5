/* nhood suite: prints sets of problems. */
#include "commands.h"
#include "message.h"
#include "options.h"
#include "paper_suite.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The number of a name in the list, counted from 1; 0 after a message. */
static int32_t number_of(const char *option, const char *name, const char *const *list, int count) {
    for (int i = 0; i < count; i++)
        if (strcmp(list[i], name) == 0) return i + 1;
    complain(EXIT_USAGE, "suite: --%s = '%s' is not one that there is", option, name);
    return 0;
}

int cmd_suite(int argc, char **argv) {
    static const char *const ops[] = {"fwd", "bwd", "pn", "nn", "in"};
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    const char *op = "fwd", *dtype = "f16";
    struct paper_options wanted = {.sample = 0};
    struct suite suite = {.count = 0};
    const struct option options[] = {{.name = "sample",
                                      .integer = &wanted.sample,
                                      .low = 1,
                                      .high = 1e6,
                                      .argument = "N",
                                      .help = "only N of them; the same in every larger sample"},
                                     {.name = "most-gflop",
                                      .number = &wanted.most_gflop,
                                      .low = 1e-6,
                                      .high = 1e9,
                                      .argument = "G",
                                      .help = "leave out those with more operations than G * 10^9"},
                                     {.name = "op",
                                      .text = &op,
                                      .argument = "NAME",
                                      .help = "fwd, bwd, pn, nn or in (fwd)",
                                      .values = "fwd bwd pn nn in"},
                                     {.name = "dtype",
                                      .text = &dtype,
                                      .argument = "NAME",
                                      .help = "f64, f32, f16 or bf16 (f16)",
                                      .values = "f64 f32 f16 bf16"},
                                     {.name = NULL, .values = "paper-1d paper-2d paper-3d"}};
    static const struct option none[] = {{.name = NULL}};
    const struct usage usage = {
        "suite", "[options] paper-1d|paper-2d|paper-3d",
        "Prints a set of problems, one per line, for 'bench --suite' and 'tune --suite': 6150 of\n"
        "rank 1, 5676 of rank 2, 2448 of rank 3, in the manner of the operator study of \"Faster\n"
        "Neighborhood Attention\". The same command prints the same problems everywhere.",
        options, none};
    int status, count = options_parse(&usage, argc, argv, &status);
    if (count < 0) return status;
    if (count != 1 || !paper_suite_exists(argv[0]))
        return complain(EXIT_USAGE, "suite: name one of paper-1d, paper-2d, paper-3d");
    wanted.op = number_of("op", op, ops, 5);
    wanted.dtype = wanted.op ? number_of("dtype", dtype, dtypes, 4) : 0;
    if (!wanted.dtype) return EXIT_USAGE;
    status = paper_suite_add(&suite, argv[0], &wanted);
    for (size_t i = 0; !status && i < suite.count; i++)
        printf("%s\n", suite.problem[i].text);
    suite_free(&suite);
    return status;
}
