/* Command lines: each command has a table of its options, from which they are parsed, checked and explained. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* One option. The one of flag, text, integer and number that is set says what it takes and where its value goes,
 * which holds the default before. */
struct option {
    /* without the dashes; NULL ends a table */
    const char *name;
    bool *flag;
    const char **text;
    int64_t *integer;
    double *number;
    /* legal range of an integer or a number */
    double low, high;
    /* what the help calls the value; NULL for a flag */
    const char *argument;
    const char *help;
};

struct usage {
    const char *command, *synopsis, *details;
    /* the command's own options, and those it shares with other commands */
    const struct option *own, *shared;
};

/* Sets the options' values and moves the other arguments to the front of argv; returns how many these are.
 * If there is nothing left to do, because help was printed or the line is wrong, the result is -1 and
 * *exit_status is what the program shall return. */
int options_parse(const struct usage *usage, int argc, char **argv, int *exit_status);

/* The same for commands that need a problem: without one the line is wrong. */
int options_parse_problems(const struct usage *usage, int argc, char **argv, int *exit_status);

#endif
