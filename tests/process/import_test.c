/* Importing wisdom takes time in proportion to its lines, whether they are about one problem or about as many as lines. The time
 * is that of the processor, and what is compared is eight times as many lines. */
#include "case.h"

#include <math.h>
#include <stdbool.h>
#include <time.h>

enum { FEW = 4000, MANY = 8 * FEW, LINE_BYTES = 100, MOST_TIMES = 24 };

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static char *make(int lines, bool one_problem) {
    char *text = malloc((size_t)lines * LINE_BYTES + 100);
    size_t used = (size_t)sprintf(text, "nhood-wisdom 1\n");
    for (int i = 0; i < lines; i++)
        used += (size_t)sprintf(text + used, "A_machine fwd:f32:b1h1d8:%d:w3 a.solver t0=%d %d 3\n",
                                one_problem ? 9 : 9 + i, i, i + 1);
    return text;
}

/* Least of three: importing, exporting, importing again, forgetting. */
static double time_of(int lines, bool one_problem) {
    char *text = make(lines, one_problem), *again = malloc(strlen(text) + 1);
    double best = 1e300;
    for (int turn = 0; turn < 3; turn++) {
        nhood_context_options options = {.struct_size = sizeof options, .threads = 1, .cache = ""};
        nhood_context *context = NULL;
        int64_t accepted = 0, forgotten = 0;
        CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
        double start = seconds();
        CHECK(!nhood_wisdom_import(context, text, &accepted) && accepted == lines, "%lld lines",
              (long long)accepted);
        CHECK(!nhood_wisdom_export(context, again, strlen(text) + 1, NULL), "%s",
              nhood_last_error());
        CHECK(!nhood_wisdom_import(context, again, &accepted) && accepted == lines, "%lld lines",
              (long long)accepted);
        CHECK(!nhood_wisdom_forget(context, NHOOD_ANY_DEVICE, NULL, &forgotten) &&
                  forgotten == lines,
              "%lld forgotten", (long long)forgotten);
        double taken = seconds() - start;
        if (taken < best) best = taken;
        nhood_context_destroy(context);
    }
    free(text);
    free(again);
    return best;
}

int main(void) {
    for (int one_problem = 0; one_problem < 2; one_problem++) {
        double few = time_of(FEW, one_problem), many = time_of(MANY, one_problem);
        /* Whatever else the machine does only adds to a time. */
        for (int turn = 0; turn < 4 && many >= MOST_TIMES * few; turn++)
            many = fmin(many, time_of(MANY, one_problem));
        printf("%s: %d lines %.1f ms, %d lines %.1f ms\n",
               one_problem ? "one problem" : "as many problems", FEW, few * 1e3, MANY, many * 1e3);
        CHECK(many < MOST_TIMES * few, "eight times as many lines take %.0f times as long",
              many / few);
    }
    return test_result();
}
