/* A list of problems, from the command line or from a file. */
#ifndef SUITE_H
#define SUITE_H

#include "nhood.h"
#include "output.h"

#include <stddef.h>

struct suite_problem {
    nhood_problem problem;
    /* as the library prints it */
    char text[PROBLEM_BYTES];
    /* The members of a group follow each other: of its first one, how many there are; of the others 0. Of a problem that is no
     * member, 1. */
    size_t members;
};

struct suite {
    struct suite_problem *problem;
    size_t count, capacity;
};

/* Adds a problem, or the members of a group: <op>:<dtype>:<b..h..d..>;<member>;.., where a member is the rest of a problem's text,
 * or all of it behind the dtype. Returns 0, or the exit status after a message, which names `origin`. */
int suite_add(struct suite *suite, const char *text, const char *origin);
/* Calls the function for a problem's text, or for each member of a group's with the whole text that the member stands for, until a
 * call does not return 0. Returns its result, or the exit status after a message. */
typedef int suite_line_fn(void *argument, const char *text, const char *origin);
int suite_members(const char *text, const char *origin, suite_line_fn *take, void *argument);
/* The text of the group that begins with a problem, or the problem's own, which must be freed; NULL without memory. */
char *suite_group_text(const struct suite_problem *first);
/* Takes out members that are equal to earlier ones of their group. */
void suite_drop_equal(struct suite *suite);
/* Calls the function for the problem or group on each line of a list, as suite_members does. */
int suite_lines(const char *path, suite_line_fn *take, void *argument);
/* Reads one problem per line, from stdin if the path is "-". Blank lines and text after a '#' are left out. */
int suite_read(struct suite *suite, const char *path);
/* Adds the problems of a command line and of its --suite (NULL: none). There must be at least one. */
int suite_load(struct suite *suite, const char *command, int count, char **texts, const char *path);
void suite_free(struct suite *suite);

#endif
