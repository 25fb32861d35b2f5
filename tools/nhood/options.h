/* Command lines: each command has a table of its options, from which they are parsed, checked and explained. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

enum option_kind { OPTION_FLAG, OPTION_TEXT, OPTION_INTEGER, OPTION_NUMBER };

struct option {
    /* without the dashes; NULL ends a table */
    const char *name;
    enum option_kind kind;
    /* bool *, const char **, int64_t * or double *, by kind; holds the default before */
    void *value;
    /* legal range of INTEGER and NUMBER */
    double low, high;
    /* what the help calls the value; NULL for a flag */
    const char *argument;
    const char *help;
};

struct usage {
    const char *command, *synopsis, *details;
    const struct option *options;
};

/* Sets the options' values and moves the other arguments to the front of argv; returns how many these are.
 * If there is nothing left to do, because help was printed or the line is wrong, the result is -1 and
 * *exit_status is what the program shall return. */
int options_parse(const struct usage *usage, int argc, char **argv, int *exit_status);

#endif
