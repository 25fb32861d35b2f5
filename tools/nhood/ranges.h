/* Problems with ranges in place of numbers: fwd:bf16:b1..4h24d128:64..512/64:w9 stands for every combination. */
#ifndef RANGES_H
#define RANGES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MOST_RANGES = 16 };

/* The text of a problem or of a group whose numbers may be low..high, which stands for all from low to high, or low..high/step, which stands for
 * every step-th from low on. */
struct ranges {
    char *text;
    int count;
    struct {
        size_t start, end; /* of the range in the text */
        int64_t low, high, step, value;
    } range[MOST_RANGES];
    bool finished;
};

/* Returns 0, or the exit status after a message, which names `origin`. Must be freed in either case. */
int ranges_parse(struct ranges *ranges, const char *text, const char *origin);

/* How many problems the text stands for. */
double ranges_total(const struct ranges *ranges);

void ranges_free(struct ranges *ranges);

/* Writes the next of them, which is no longer than the text; false after the last. */
bool ranges_next(struct ranges *ranges, char *problem);

#endif
