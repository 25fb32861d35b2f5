/* One function per command. argv has the arguments after the command's name. It returns the exit status. */
#ifndef COMMANDS_H
#define COMMANDS_H

/* All commands; the last one has no name. */
struct command {
    const char *name, *summary;
    int (*run)(int argc, char **argv);
};
extern const struct command commands[];

int cmd_info(int argc, char **argv);
int cmd_plan(int argc, char **argv);
int cmd_simulate(int argc, char **argv);
int cmd_verify(int argc, char **argv);
int cmd_bench(int argc, char **argv);
int cmd_suite(int argc, char **argv);
int cmd_tune(int argc, char **argv);
int cmd_calibrate(int argc, char **argv);
int cmd_bundle(int argc, char **argv);
int cmd_kernel(int argc, char **argv);
int cmd_wisdom(int argc, char **argv);
int cmd_completion(int argc, char **argv);

#endif
