#include "suite.h"

#include "message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int suite_add(struct suite *suite, const char *text, const char *origin) {
    if (suite->count == suite->capacity) {
        size_t capacity = suite->capacity ? 2 * suite->capacity : 16;
        struct suite_problem *problem = realloc(suite->problem, capacity * sizeof *problem);
        if (!problem) return complain(EXIT_FAILURE, "no memory for %zu problems", capacity);
        suite->problem = problem;
        suite->capacity = capacity;
    }
    struct suite_problem *added = &suite->problem[suite->count];
    nhood_status status = nhood_problem_parse(text, &added->problem);
    if (!status) status = nhood_problem_format(&added->problem, added->text, PROBLEM_BYTES, NULL);
    if (status) return complain_library(status, origin);
    suite->count++;
    return 0;
}

/* The line without its comment and without blanks around it. */
static char *trim(char *line) {
    line[strcspn(line, "#\r\n")] = '\0';
    line += strspn(line, " \t");
    size_t length = strlen(line);
    while (length && (line[length - 1] == ' ' || line[length - 1] == '\t'))
        line[--length] = '\0';
    return line;
}

int suite_lines(const char *path, suite_line_fn *take, void *argument) {
    bool from_stdin = strcmp(path, "-") == 0;
    FILE *file = from_stdin ? stdin : fopen(path, "r");
    if (!file) return complain(EXIT_USAGE, "cannot read %s: %s", path, strerror(errno));
    char line[4096];
    int failed = 0;
    for (int number = 1; !failed && fgets(line, sizeof line, file); number++) {
        char origin[PROBLEM_BYTES];
        snprintf(origin, sizeof origin, "%s:%d", path, number);
        if (strlen(line) == sizeof line - 1) {
            failed = complain(EXIT_USAGE, "%s: the line has more than %zu bytes", origin,
                              sizeof line - 2);
            break;
        }
        const char *text = trim(line);
        if (*text) failed = take(argument, text, origin);
    }
    if (!failed && ferror(file))
        failed = complain(EXIT_USAGE, "cannot read %s: %s", path, strerror(errno));
    if (!from_stdin) fclose(file);
    return failed;
}

static int add_line(void *argument, const char *text, const char *origin) {
    return suite_add(argument, text, origin);
}

int suite_read(struct suite *suite, const char *path) {
    return suite_lines(path, add_line, suite);
}

int suite_load(struct suite *suite, const char *command, int count, char **texts,
               const char *path) {
    int failed = 0;
    for (int i = 0; !failed && i < count; i++)
        failed = suite_add(suite, texts[i], texts[i]);
    if (!failed && path) failed = suite_read(suite, path);
    if (!failed && suite->count == 0)
        failed =
            complain(EXIT_USAGE, "%s: no problem given; see 'nhood %s --help'", command, command);
    return failed;
}

void suite_free(struct suite *suite) {
    free(suite->problem);
    *suite = (struct suite){.count = 0};
}
