#include "options.h"

#include "message.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int help_width(const struct option *option) {
    return (int)strlen(option->name) + (option->argument ? (int)strlen(option->argument) + 1 : 0);
}

static int widest(const struct option *options) {
    int width = 0;
    for (; options->name; options++)
        if (help_width(options) > width) width = help_width(options);
    return width;
}

static void print_rows(const struct option *options, int width) {
    for (const struct option *o = options; o->name; o++)
        printf("  --%s%s%s%*s  %s\n", o->name, o->argument ? " " : "",
               o->argument ? o->argument : "", width - help_width(o), "", o->help);
}

static void print_help(const struct usage *usage) {
    int own = widest(usage->own), shared = widest(usage->shared);
    int width = own > shared ? own : shared;
    printf("usage: nhood %s %s\n\n%s\n\noptions:\n", usage->command, usage->synopsis,
           usage->details);
    print_rows(usage->own, width);
    print_rows(usage->shared, width);
    printf("  --%-*s  print this and exit\n", width, "help");
}

static const struct option *find(const struct option *options, const char *name, size_t length) {
    for (; options->name; options++)
        if (strlen(options->name) == length && strncmp(options->name, name, length) == 0)
            return options;
    return NULL;
}

static int bad_value(const struct usage *usage, const struct option *option, const char *text,
                     const char *kind) {
    return complain(EXIT_USAGE, "%s: --%s = '%s' is not %s in [%.15g, %.15g]", usage->command,
                    option->name, text, kind, option->low, option->high);
}

static int set_value(const struct usage *usage, const struct option *option, const char *text) {
    char *end;
    errno = 0;
    if (option->text) {
        *option->text = text;
    } else if (option->integer) {
        long long value = strtoll(text, &end, 10);
        if (!*text || *end || errno || (double)value < option->low || (double)value > option->high)
            return bad_value(usage, option, text, "an integer");
        *option->integer = value;
    } else {
        double value = strtod(text, &end);
        if (!*text || *end || !(value >= option->low && value <= option->high))
            return bad_value(usage, option, text, "a number");
        *option->number = value;
    }
    return 0;
}

/* Takes the option at argv[*at], and its value if it has one. */
static int take_option(const struct usage *usage, int argc, char **argv, int *at) {
    const char *name = argv[*at] + 2, *equals = strchr(name, '=');
    size_t length = equals ? (size_t)(equals - name) : strlen(name);
    const struct option *option = find(usage->own, name, length);
    if (!option) option = find(usage->shared, name, length);
    if (!option || strncmp(argv[*at], "--", 2) != 0)
        return complain(EXIT_USAGE, "%s: unknown option '%s'; see 'nhood %s --help'",
                        usage->command, argv[*at], usage->command);
    if (option->flag) {
        if (equals)
            return complain(EXIT_USAGE, "%s: --%s takes no value", usage->command, option->name);
        *option->flag = true;
        return 0;
    }
    if (equals) return set_value(usage, option, equals + 1);
    if (*at + 1 == argc)
        return complain(EXIT_USAGE, "%s: --%s needs a value: %s", usage->command, option->name,
                        option->argument);
    return set_value(usage, option, argv[++*at]);
}

static usage_visitor *visitor;

void options_visit(usage_visitor *visit) {
    visitor = visit;
}

int options_parse(const struct usage *usage, int argc, char **argv, int *exit_status) {
    int count = 0;
    bool options_end = false;
    if (visitor) {
        visitor(usage);
        *exit_status = EXIT_SUCCESS;
        return -1;
    }
    for (int i = 0; i < argc; i++) {
        if (options_end || argv[i][0] != '-' || argv[i][1] == '\0') {
            argv[count++] = argv[i];
        } else if (strcmp(argv[i], "--") == 0) {
            options_end = true;
        } else if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            print_help(usage);
            *exit_status = EXIT_SUCCESS;
            return -1;
        } else if ((*exit_status = take_option(usage, argc, argv, &i))) {
            return -1;
        }
    }
    return count;
}

int options_parse_problems(const struct usage *usage, int argc, char **argv, int *exit_status) {
    int count = options_parse(usage, argc, argv, exit_status);
    if (count) return count;
    *exit_status = complain(EXIT_USAGE, "%s: no problem given; see 'nhood %s --help'",
                            usage->command, usage->command);
    return -1;
}
