/* nhood, the command-line tool: inspects, checks and measures the library. It uses only the public headers. */
#include "commands.h"
#include "interrupt.h"
#include "message.h"
#include "nhood.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const struct command commands[] = {
    {"info", "the library, its devices and its solvers", cmd_info},
    {"plan", "how a problem would be solved, and what else was considered", cmd_plan},
    {"simulate", "tiles, waste and time that a GPU would take, without one", cmd_simulate},
    {"verify", "check every solver against the reference", cmd_verify},
    {"bench", "measure speed, also as a share of what the machine can reach", cmd_bench},
    {"tune", "time every candidate of problems and remember", cmd_tune},
    {"calibrate", "fit the estimates of a GPU to timings on it", cmd_calibrate},
    {"wisdom", "show, carry, merge and forget what was measured", cmd_wisdom},
    {"bundle", "compile the CUDA kernels of problems ahead of time", cmd_bundle},
    {"kernel", "the CUDA kernels of problems: configuration, registers, code", cmd_kernel},
    {"suite", "print sets of problems", cmd_suite},
    {"completion", "print what completes commands in bash, zsh and fish", cmd_completion},
    {NULL, NULL, NULL},
};

static const char problem_help[] =
    "A problem is one line of text:\n"
    "  <op>:<dtype>:b<B>h<H>[k<Hkv>]d<D>[v<Dv>]:<L>x<L>..:w<k>x<k>..[:s<s>x..][:d<d>x..]\n"
    "  [:c<0|1 per axis>][:p<0|1 per axis>][:q<offset>+<length>x..][:k<offset>+<length>x..]\n"
    "  [:x<M>][:scale<number>][:rpb][:det][:tf32][:clamp][:zfill][:unaligned]\n"
    "  op      fwd, bwd: attention and its gradients; pn, nn, in: the unfused operators\n"
    "  dtype   f64, f32, f16, bf16\n"
    "  b h k   batch, heads, key/value heads      d v   head dim, and that of the values\n"
    "  L w     length and window of each axis     s d   stride and dilation of the windows\n"
    "          or r<Lk>w<k> (k of Lk keys around the nearest), z<k> (cut at borders), b<m>+<o>\n"
    "          (blocks, shifted by o), each with v<n> if only n keys are valid\n"
    "  c       which axes are causal              x     extra tokens that every query attends\n"
    "  p       which axes are periodic            q k   boxes of the grid that queries, keys "
    "cover\n"
    "  rpb     relative bias    det  bit-equal results    tf32  products may be rounded to TF32\n"
    "  clamp   windows larger than their axis shrink      zfill  pn: 0 in unused slots\n"
    "  unaligned  tensors may start at any element (CUDA)\n"
    "A group has a head and members: <op>:<dtype>:b<B>h<H>..d<D>..;<member>;<member>;.., each the "
    "rest of a\n"
    "problem, or all of it behind the dtype. verify and bench run it in one call; plan, simulate, "
    "kernel and\n"
    "tune look at its members.\n"
    "for example fwd:f32:b1h4d64:128x128:w13x13 or bwd:bf16:b1h8k2d128:4096:w512:c1\n";

static void print_help(void) {
    printf("usage: nhood <command> [options] [problems]\n"
           "       nhood <command> --help | nhood --version\n\n"
           "Neighborhood attention on 1-D, 2-D and 3-D grids.\n\ncommands:\n");
    for (const struct command *command = commands; command->name; command++)
        printf("  %-12s%s\n", command->name, command->summary);
    printf("\n%s\n"
           "Exit status: 0 done, 1 failed, 2 wrong command line or problem, 130 interrupted.\n",
           problem_help);
}

static int run(int argc, char **argv) {
    const char *name = argc > 1 ? argv[1] : "";
    if (!*name) {
        print_help();
        return EXIT_USAGE;
    }
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0 || strcmp(name, "help") == 0) {
        print_help();
        return EXIT_SUCCESS;
    }
    if (strcmp(name, "--version") == 0) {
        printf("nhood %s\n", nhood_version());
        return EXIT_SUCCESS;
    }
    for (const struct command *command = commands; command->name; command++)
        if (strcmp(name, command->name) == 0) return command->run(argc - 2, argv + 2);
    return complain(EXIT_USAGE, "unknown command '%s'; see 'nhood --help'", name);
}

int main(int argc, char **argv) {
    interrupt_start();
    int status = run(argc, argv);
    /* Output that could not be written, for example to a full disk, is a failure, too. */
    if (fflush(stdout) || ferror(stdout)) return complain(EXIT_FAILURE, "cannot write the output");
    return status;
}
