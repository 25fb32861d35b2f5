/* Command lines. Each command has a table of its options, by which they are parsed, checked and explained. */
#ifndef OPTIONS_H
#define OPTIONS_H

#include <stdbool.h>
#include <stdint.h>

/* An option. Exactly one of flag, text, integer and number is set. It tells the type of the value and points to where it goes,
 * which has the default before. */
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
    /* for completion: the words between spaces that are legal, where they are known; of the row that ends a table, those that the
     * command takes beside options (and argument is FILE if it takes files) */
    const char *values;
};

struct usage {
    const char *command, *synopsis, *details;
    /* the command's own options, and those it shares with other commands */
    const struct option *own, *shared;
};

/* Sets the options' values, moves the other arguments to the front of argv and returns their number. If there is nothing left
 * to do, because help was printed or the command line is wrong, returns -1 and sets *exit_status. */
int options_parse(const struct usage *usage, int argc, char **argv, int *exit_status);

/* Until it is called with NULL, options_parse reads nothing but calls `visit`, and returns as if help had been printed. */
typedef void usage_visitor(const struct usage *usage);
void options_visit(usage_visitor *visit);

/* The same as options_parse for commands that need at least one problem. */
int options_parse_problems(const struct usage *usage, int argc, char **argv, int *exit_status);

#endif
