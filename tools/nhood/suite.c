#include "suite.h"

#include "message.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int add_problem(void *argument, const char *text, const char *origin) {
    struct suite *suite = argument;
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
    added->members = 1;
    suite->count++;
    return 0;
}

/* Writes a member's whole text. `dtype_end` and `head_end` are where these end in the text of the group. */
static void write_member(const char *group, size_t dtype_end, size_t head_end, const char *member,
                         size_t length, char *text, size_t capacity) {
    const bool grid_first = *member >= '0' && *member <= '9';
    const size_t head = grid_first ? head_end : dtype_end;
    snprintf(text, capacity, "%.*s:%.*s", (int)head, group, (int)length, member);
}

static int each_member(const char *group, const char *origin, suite_line_fn *take, void *argument) {
    const size_t head_end = strcspn(group, ";"), op_end = strcspn(group, ":");
    const size_t dtype_end = op_end + 1 + strcspn(group + op_end + 1, ":;");
    if (op_end >= head_end || dtype_end >= head_end ||
        memchr(group + dtype_end + 1, ':', head_end - dtype_end - 1))
        return complain(
            EXIT_USAGE,
            "%s: the head of a group is <op>:<dtype>:b<B>h<H>[k<Hkv>]d<D>[v<Dv>], before "
            "the first ';'",
            origin);
    int failed = 0;
    const char *at = group + head_end;
    for (size_t index = 0; !failed && *at; index++) {
        char text[PROBLEM_BYTES], name[PROBLEM_BYTES];
        at += 1 + strspn(at + 1, " \t\n");
        const size_t length = strcspn(at, "; \t\n");
        snprintf(name, sizeof name, "%.300s%s: member %zu", origin,
                 strlen(origin) > 300 ? ".." : "", index);
        if (length + head_end + 2 > sizeof text)
            return complain(EXIT_USAGE, "%s has more than %zu bytes", name, sizeof text - head_end);
        write_member(group, dtype_end, head_end, at, length, text, sizeof text);
        at += length;
        at += strspn(at, " \t\n");
        failed = take(argument, text, name);
        if (!failed && *at && *at != ';')
            failed = complain(EXIT_USAGE, "%s ends with '%s', expected ';'", name, at);
    }
    return failed;
}

int suite_members(const char *text, const char *origin, suite_line_fn *take, void *argument) {
    return strchr(text, ';') ? each_member(text, origin, take, argument)
                             : take(argument, text, origin);
}

int suite_add(struct suite *suite, const char *text, const char *origin) {
    const size_t first = suite->count;
    const int failed = suite_members(text, origin, add_problem, suite);
    for (size_t i = first; !failed && i < suite->count; i++)
        suite->problem[i].members = i == first ? suite->count - first : 0;
    return failed;
}

/* Where the text goes on behind so many of its fields. */
static const char *behind(const char *text, int fields) {
    for (; fields > 0; fields--)
        text += strcspn(text, ":") + 1;
    return text;
}

char *suite_group_text(const struct suite_problem *first) {
    const size_t head = (size_t)(behind(first->text, 3) - first->text);
    char *text = malloc(first->members * (PROBLEM_BYTES + 2) + PROBLEM_BYTES);
    if (!text || first->members == 1) return text ? strcpy(text, first->text) : NULL;
    size_t used = (size_t)sprintf(text, "%.*s", (int)head - 1, first->text);
    for (size_t i = 0; i < first->members; i++) {
        const bool same = !strncmp(first[i].text, first->text, head);
        used += (size_t)sprintf(text + used, "; %s", behind(first[i].text, same ? 3 : 2));
    }
    return text;
}

void suite_drop_equal(struct suite *suite) {
    size_t kept = 0, first = 0;
    for (size_t i = 0; i < suite->count; i++) {
        const struct suite_problem problem = suite->problem[i];
        bool known = false;
        if (problem.members) first = kept;
        for (size_t j = first; !known && j < kept; j++)
            known = !strcmp(suite->problem[j].text, problem.text);
        if (known)
            suite->problem[first].members--;
        else
            suite->problem[kept++] = problem;
    }
    suite->count = kept;
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
