/* Windows that are not by formula, from their definitions in nhood.h without any rounding trick. */
#ifndef WINDOWS_ATTEND_H
#define WINDOWS_ATTEND_H

#include "nhood.h"

#include <stdbool.h>

/* Whether query i of `length` attends key j of `keys`; the windows have no table. */
static inline bool windows_attend(const nhood_windows *w, int64_t length, int64_t keys, int64_t i,
                                  int64_t j) {
    const int64_t k = w->window;
    if (j >= keys - w->padding) return false;
    if (w->kind == NHOOD_WINDOWS_CUT) return j >= i - k / 2 && j < i - k / 2 + k;
    if (w->kind == NHOOD_WINDOWS_BLOCKS) return (i + w->shift) / k == (j + w->shift) / k;
    int64_t centre = 0;
    while ((centre + 1) * 2 * length <= (2 * i + 1) * keys)
        centre++;
    int64_t first = centre - k / 2;
    if (first > keys - k) first = keys - k;
    if (first < 0) first = 0;
    return j >= first && j < first + k;
}

#endif
