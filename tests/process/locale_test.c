/* Problem text and wisdom have a '.' in every locale, also where the decimal point is a comma or takes several bytes. Locales
 * are made by localedef, if the machine has it. */
#include "case.h"

#include <locale.h>
#include <stdbool.h>
#include <unistd.h>

enum { SKIPPED = 77 };
static const char problem[] = "fwd:f32:b1h1d8:9:w3:scale0.30000000000000004";

static void check(const char *name) {
    nhood_problem parsed;
    char text[200], wisdom[400], line[300], half[16];
    snprintf(half, sizeof half, "%.1f", 0.5);
    CHECK(strcmp(half, "0.5") != 0, "%s has a point like any other", name);
    CHECK(!nhood_problem_parse(problem, &parsed) && parsed.scale == 0.30000000000000004,
          "%s: %s, %.17g", name, nhood_last_error(), parsed.scale);
    CHECK(!nhood_problem_format(&parsed, text, sizeof text, NULL) && !strcmp(text, problem),
          "%s: %s", name, text);
    const double scales[] = {1e300, -2.5e-300, 12, -0.125, 1e22};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++) {
        nhood_problem again;
        parsed.scale = scales[i];
        CHECK(!nhood_problem_format(&parsed, text, sizeof text, NULL) &&
                  !nhood_problem_parse(text, &again) && again.scale == scales[i],
              "%s: %s", name, text);
    }
    snprintf(line, sizeof line, "fwd:f32:b1h1d8:9:w3:scale%s", half);
    CHECK(nhood_problem_parse(line, &parsed) == NHOOD_ERR_ARGUMENT, "%s is read", line);
    nhood_context_options options = {.struct_size = sizeof options, .threads = 1, .cache = ""};
    nhood_context *context = NULL;
    int64_t accepted = 0;
    snprintf(wisdom, sizeof wisdom, "nhood-wisdom 1\nA_machine %s a.solver - 12 3\n", problem);
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    CHECK(!nhood_wisdom_import(context, wisdom, &accepted) && accepted == 1, "%s", name);
    char exported[400] = "";
    CHECK(!nhood_wisdom_export(context, exported, sizeof exported, NULL) &&
              !strcmp(exported, wisdom),
          "%s: %s", name, exported);
    nhood_context_destroy(context);
}

/* Makes a locale of nothing but its numbers. */
static bool make(const char *folder, const char *name, const char *point) {
    char path[80], command[300];
    snprintf(path, sizeof path, "%s/source", folder);
    FILE *file = fopen(path, "w");
    if (!file) return false;
    fprintf(file,
            "LC_NUMERIC\ndecimal_point \"%s\"\nthousands_sep \"\"\ngrouping -1\nEND LC_NUMERIC\n",
            point);
    fclose(file);
    snprintf(command, sizeof command, "localedef -c -i %s -f UTF-8 %s/%s >/dev/null 2>&1", path,
             folder, name);
    return system(command) != -1 && setlocale(LC_NUMERIC, name);
}

int main(void) {
    static const struct {
        const char *name, *point;
    } locales[] = {{"comma", "<U002C>"}, {"momayyez", "<U066B>"}};
    char folder[] = "/tmp/nhood-locale-XXXXXX", command[300];
    int found = 0;
    if (!mkdtemp(folder)) exit(EXIT_FAILURE);
    setenv("LOCPATH", folder, 1);
    for (size_t i = 0; i < sizeof locales / sizeof locales[0]; i++) {
        const char *name = locales[i].name;
        if (!make(folder, name, locales[i].point)) continue;
        printf("%s: %zu bytes\n", name, strlen(localeconv()->decimal_point));
        found++;
        check(name);
        /* The same where only this thread has the locale. */
        setlocale(LC_NUMERIC, "C");
        locale_t own = newlocale(LC_NUMERIC_MASK, name, (locale_t)0);
        locale_t before = uselocale(own);
        check(name);
        uselocale(before);
        freelocale(own);
    }
    snprintf(command, sizeof command, "rm -rf %s", folder);
    CHECK(!system(command), "%s", command);
    if (found || test_failed) return test_result();
    printf("skipped: there is no localedef, or it makes no locales\n");
    return SKIPPED;
}
