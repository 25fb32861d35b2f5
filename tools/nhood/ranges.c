#include "ranges.h"

#include "message.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Reads low..high[/step] at `at`. False if there is only a number, or none. */
static bool read_range(const char *text, size_t at, struct ranges *ranges) {
    char *end;
    int64_t low = strtoll(text + at, &end, 10), step = 1;
    if (strncmp(end, "..", 2) != 0 || !isdigit((unsigned char)end[2])) return false;
    int64_t high = strtoll(end + 2, &end, 10);
    if (*end == '/' && isdigit((unsigned char)end[1])) step = strtoll(end + 1, &end, 10);
    ranges->range[ranges->count].start = at;
    ranges->range[ranges->count].end = (size_t)(end - text);
    ranges->range[ranges->count].low = ranges->range[ranges->count].value = low;
    ranges->range[ranges->count].high = high;
    ranges->range[ranges->count].step = step;
    ranges->count++;
    return true;
}

int ranges_parse(struct ranges *ranges, const char *text, const char *origin) {
    *ranges = (struct ranges){.count = 0};
    if (!(ranges->text = malloc(strlen(text) + 1)))
        return complain(EXIT_FAILURE, "no memory for %s", origin);
    strcpy(ranges->text, text);
    errno = 0;
    for (size_t at = 0; text[at];) {
        if (isdigit((unsigned char)text[at])) {
            if (ranges->count == MOST_RANGES)
                return complain(EXIT_USAGE, "%s: more than %d ranges", origin, MOST_RANGES - 1);
            if (read_range(text, at, ranges)) {
                at = ranges->range[ranges->count - 1].end;
            } else {
                at += strspn(text + at, "0123456789");
            }
        } else {
            at++;
        }
    }
    for (int i = 0; i < ranges->count; i++)
        if (errno || ranges->range[i].high < ranges->range[i].low || ranges->range[i].step < 1)
            return complain(EXIT_USAGE,
                            "%s: '%.*s' is not a range low..high or low..high/step with low <= "
                            "high and step >= 1",
                            origin, (int)(ranges->range[i].end - ranges->range[i].start),
                            text + ranges->range[i].start);
    return 0;
}

double ranges_total(const struct ranges *ranges) {
    double total = 1;
    for (int i = 0; i < ranges->count; i++)
        total *=
            1 + (double)((ranges->range[i].high - ranges->range[i].low) / ranges->range[i].step);
    return total;
}

/* Advances to the next combination. The last range changes fastest. */
static void advance(struct ranges *ranges) {
    for (int i = ranges->count - 1; i >= 0; i--) {
        int64_t left = ranges->range[i].high - ranges->range[i].value;
        if (left >= ranges->range[i].step) {
            ranges->range[i].value += ranges->range[i].step;
            return;
        }
        ranges->range[i].value = ranges->range[i].low;
    }
    ranges->finished = true;
}

void ranges_free(struct ranges *ranges) {
    free(ranges->text);
    ranges->text = NULL;
}

bool ranges_next(struct ranges *ranges, char *problem) {
    size_t from = 0, used = 0;
    if (ranges->finished) return false;
    for (int i = 0; i < ranges->count; i++) {
        /* A value has no more digits than the end of its range, so the problem fits. */
        used += (size_t)sprintf(problem + used, "%.*s%lld", (int)(ranges->range[i].start - from),
                                ranges->text + from, (long long)ranges->range[i].value);
        from = ranges->range[i].end;
    }
    strcpy(problem + used, ranges->text + from);
    advance(ranges);
    return true;
}
