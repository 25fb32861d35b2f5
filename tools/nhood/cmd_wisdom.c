/* nhood wisdom: shows, merges and edits wisdom, as text and in files. */
#include "commands.h"
#include "message.h"
#include "output.h"
#include "suite.h"
#include "target.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct wisdom {
    struct target target;
    const char *file;
    bool all, json;
};

/* ---- files ---- */

/* The context's wisdom as text, which must be freed; NULL after a message. */
static char *export_text(nhood_context *context) {
    size_t length = 0;
    nhood_wisdom_export(context, NULL, 0, &length);
    char *text = malloc(length + 1);
    if (!text) {
        complain(EXIT_FAILURE, "no memory for %zu bytes of wisdom", length);
        return NULL;
    }
    nhood_status status = nhood_wisdom_export(context, text, length + 1, NULL);
    if (!status) return text;
    complain_library(status, "export");
    free(text);
    return NULL;
}

/* The text of stdin, which must be freed; NULL after a message. */
static char *read_stdin(void) {
    char *text = NULL;
    size_t capacity = 0, length = 0;
    for (;;) {
        if (length + 1 >= capacity) {
            capacity = capacity ? 2 * capacity : 1 << 16;
            char *grown = realloc(text, capacity);
            if (!grown) {
                complain(EXIT_FAILURE, "no memory for %zu bytes of wisdom", capacity);
                break;
            }
            text = grown;
        }
        size_t count = fread(text + length, 1, capacity - 1 - length, stdin);
        length += count;
        if (count) continue;
        text[length] = '\0';
        if (!ferror(stdin)) return text;
        complain(EXIT_FAILURE, "cannot read stdin: %s", strerror(errno));
        break;
    }
    free(text);
    return NULL;
}

/* Adds a file's lines to the context; "-" is stdin. */
static int add_file(struct wisdom *wisdom, const char *path, int64_t *lines) {
    nhood_status status;
    if (strcmp(path, "-") != 0) {
        status = nhood_wisdom_load(wisdom->target.context, path, lines);
    } else {
        char *text = read_stdin();
        if (!text) return EXIT_FAILURE;
        status = nhood_wisdom_import(wisdom->target.context, text, lines);
        free(text);
    }
    if (status == NHOOD_ERR_CACHE_MISS) return complain(EXIT_USAGE, "%s", nhood_last_error());
    return status ? complain_library(status, path) : 0;
}

static int save(struct wisdom *wisdom, const char *path, bool replace) {
    nhood_status status = nhood_wisdom_save(wisdom->target.context, path, replace);
    return status ? complain_library(status, "wisdom was not saved") : 0;
}

/* ---- show ---- */

/* A line of wisdom, split at its blanks. */
struct record {
    char *device, *problem, *solver, *config;
    double median_ns;
    long long samples;
};

/* Returns *rest, ended at its first byte `at`, and moves *rest behind that byte or, if there is none, sets it to NULL. */
static char *cut(char **rest, char at) {
    char *text = *rest, *end = text ? strchr(text, at) : NULL;
    *rest = end ? end + 1 : NULL;
    if (end) *end = '\0';
    return text;
}

static bool next_record(char **rest, struct record *record) {
    char *line = cut(rest, '\n');
    record->device = cut(&line, ' ');
    record->problem = cut(&line, ' ');
    record->solver = cut(&line, ' ');
    record->config = cut(&line, ' ');
    return line && sscanf(line, "%lf %lld", &record->median_ns, &record->samples) == 2;
}

static void show_record(const struct wisdom *wisdom, const struct record *record, bool fastest) {
    char time[UNIT_BYTES];
    const char *config = strcmp(record->config, "-") != 0 ? record->config : "";
    if (wisdom->json) {
        json_begin();
        json_text("device", record->device);
        json_text("problem", record->problem);
        json_text("solver", record->solver);
        json_text("config", config);
        json_number("median_ns", record->median_ns);
        json_integer("samples", record->samples);
        json_flag("fastest", fastest);
        json_end();
        return;
    }
    printf("%c %-12s %10s %4lld  %s\n", fastest ? '*' : ' ', record->solver,
           time_text(record->median_ns, time), record->samples, config);
}

static bool wanted(const char *text, const struct suite *only) {
    for (size_t i = 0; i < only->count; i++)
        if (strcmp(only->problem[i].text, text) == 0) return true;
    return only->count == 0;
}

/* The text is sorted by device, then problem, then time. */
static int show(const struct wisdom *wisdom, const struct suite *only) {
    char *text = export_text(wisdom->target.context);
    if (!text) return EXIT_FAILURE;
    char *rest = text;
    const char *device = "", *problem = "";
    struct record record;
    size_t problems = 0, records = 0;
    cut(&rest, '\n');
    while (rest && next_record(&rest, &record)) {
        bool other_device = strcmp(record.device, device) != 0;
        bool fastest = other_device || strcmp(record.problem, problem) != 0;
        device = record.device;
        problem = record.problem;
        if (!wanted(problem, only)) continue;
        records++;
        problems += fastest;
        if (fastest && !wisdom->json) printf("%s on %s\n", problem, device);
        if (fastest || wisdom->target.verbose || wisdom->json)
            show_record(wisdom, &record, fastest);
    }
    if (!wisdom->json) printf("%zu problems, %zu candidates\n", problems, records);
    free(text);
    return 0;
}

/* ---- commands ---- */

static int parse_all(struct suite *suite, int count, char **texts) {
    int failed = 0;
    for (int i = 0; !failed && i < count; i++)
        failed = suite_add(suite, texts[i], texts[i]);
    return failed;
}

static int run_show(struct wisdom *wisdom, int count, char **arguments) {
    struct suite only = {.count = 0};
    int failed = parse_all(&only, count, arguments);
    if (!failed) failed = show(wisdom, &only);
    suite_free(&only);
    return failed;
}

static int run_export(struct wisdom *wisdom, int count, char **arguments) {
    if (count) return complain(EXIT_USAGE, "wisdom export: takes no '%s'", arguments[0]);
    char *text = export_text(wisdom->target.context);
    if (!text) return EXIT_FAILURE;
    fputs(text, stdout);
    free(text);
    return 0;
}

static int add_files(struct wisdom *wisdom, int count, char **paths) {
    int failed = 0;
    for (int i = 0; !failed && i < count; i++) {
        int64_t lines = 0;
        failed = add_file(wisdom, paths[i], &lines);
        if (!failed) printf("%s: %lld lines\n", paths[i], (long long)lines);
    }
    return failed;
}

static int run_import(struct wisdom *wisdom, int count, char **arguments) {
    if (!count) return complain(EXIT_USAGE, "wisdom import: name the files, - for stdin");
    int failed = add_files(wisdom, count, arguments);
    return failed ? failed : save(wisdom, wisdom->file, false);
}

static int run_merge(struct wisdom *wisdom, int count, char **arguments) {
    if (count < 2)
        return complain(EXIT_USAGE, "wisdom merge: name the file to write, then those to read");
    int failed = add_files(wisdom, count - 1, arguments + 1);
    return failed ? failed : save(wisdom, arguments[0], false);
}

static int run_forget(struct wisdom *wisdom, int count, char **arguments) {
    nhood_context *context = wisdom->target.context;
    struct suite suite = {.count = 0};
    int64_t lines = 0, all = 0;
    if (wisdom->all == (count > 0))
        return complain(EXIT_USAGE, "wisdom forget: name the problems, or --all");
    int failed = parse_all(&suite, count, arguments);
    if (!failed && wisdom->all) nhood_wisdom_forget(context, NHOOD_ANY_DEVICE, NULL, &all);
    for (size_t i = 0; !failed && i < suite.count; i++) {
        nhood_wisdom_forget(context, NHOOD_ANY_DEVICE, &suite.problem[i].problem, &lines);
        all += lines;
    }
    if (!failed) failed = save(wisdom, wisdom->file, true);
    if (!failed) printf("%lld lines forgotten\n", (long long)all);
    suite_free(&suite);
    return failed;
}

static const struct {
    const char *name;
    int (*run)(struct wisdom *wisdom, int count, char **arguments);
    /* begins with the wisdom of --file or of the cache folder */
    bool reads;
} actions[] = {
    {"show", run_show, true},    {"export", run_export, true}, {"import", run_import, false},
    {"merge", run_merge, false}, {"forget", run_forget, true},
};

static int run(struct wisdom *wisdom, int count, char **arguments) {
    size_t action = 0, most = sizeof actions / sizeof actions[0];
    while (count && action < most && strcmp(actions[action].name, arguments[0]) != 0)
        action++;
    if (!count || action == most)
        return complain(EXIT_USAGE, "wisdom: say one of show, export, import, merge, forget");
    int64_t lines;
    bool from_cache = actions[action].reads && !wisdom->file;
    bool to_cache = actions[action].run == run_import && !wisdom->file;
    wisdom->target.cache = from_cache || to_cache ? NULL : "";
    int failed = target_open(&wisdom->target);
    if (!failed && actions[action].reads && wisdom->file)
        failed = add_file(wisdom, wisdom->file, &lines);
    return failed ? failed : actions[action].run(wisdom, count - 1, arguments + 1);
}

int cmd_wisdom(int argc, char **argv) {
    struct wisdom wisdom = {.all = false};
    target_init(&wisdom.target);
    const struct option options[] = {
        {.name = "file",
         .text = &wisdom.file,
         .argument = "FILE",
         .help = "this file instead of the cache folder's"},
        {.name = "all", .flag = &wisdom.all, .help = "forget: everything"},
        {.name = "json", .flag = &wisdom.json, .help = "show: print one object per candidate"},
        {.name = NULL, .argument = "FILE", .values = "show export import merge forget"}};
    const struct usage usage = {"wisdom",
                                "[options] show [problem...] | export | import FILE... | merge OUT "
                                "FILE... | forget problem...",
                                "show: the fastest candidate of each problem, with --verbose all "
                                "of them. export: the text,\n"
                                "on stdout. import: adds the lines of files (- for stdin). merge: "
                                "joins files into OUT, and\n"
                                "leaves the cache folder alone. forget: drops what is known of "
                                "problems. Lines that are not\n"
                                "well formed are left out, each with its reason.",
                                options, wisdom.target.options};
    int status, count = options_parse(&usage, argc, argv, &status);
    if (count < 0) return status;
    status = run(&wisdom, count, argv);
    target_close(&wisdom.target);
    return status;
}
