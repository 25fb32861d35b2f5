/* Random problems for tests of choices and estimates, which do not compute them. */
#ifndef RANDOM_PROBLEM_H
#define RANDOM_PROBLEM_H

#include "test.h"

#include <string.h>

/* Writes the text of a small or large forward or backward problem, with windows, strides, dilations and causal axes of all
 * kinds. */
static inline void random_problem(uint64_t *state, char *text, size_t capacity) {
    static const char *const dtypes[] = {"f16", "bf16", "f32"};
    static const int dims[] = {32, 64, 128, 200};
    int rank = (int)test_between(state, 1, 3), most = rank == 1 ? 5000 : rank == 2 ? 200 : 40;
    char length[64] = "", window[64] = "", stride[64] = "", dilation[64] = "", causal[8] = "";
    for (int a = 0; a < rank; a++) {
        int l = (int)test_between(state, 4, most), d = (int)test_between(state, 1, l > 12 ? 3 : 1);
        int w = (int)test_between(state, 2, l / d), s = (int)test_between(state, 1, w);
        const char *x = a ? "x" : "";
        if (test_between(state, 0, 1)) s = 1;
        snprintf(length + strlen(length), 20, "%s%d", x, l);
        snprintf(window + strlen(window), 20, "%s%d", x, w);
        snprintf(stride + strlen(stride), 20, "%s%d", x, s);
        snprintf(dilation + strlen(dilation), 20, "%s%d", x, d);
        snprintf(causal + strlen(causal), 2, "%d", test_between(state, 0, 4) == 0);
    }
    int kv_heads = (int)test_between(state, 1, 3);
    snprintf(text, capacity, "%s:%s:b%dh%dk%dd%d:%s:w%s:s%s:d%s:c%s%s",
             test_between(state, 0, 1) ? "fwd" : "bwd", dtypes[test_between(state, 0, 2)],
             (int)test_between(state, 1, 20), kv_heads * (int)test_between(state, 1, 4), kv_heads,
             dims[test_between(state, 0, 3)], length, window, stride, dilation, causal,
             test_between(state, 0, 5) ? "" : ":x50");
}

#endif
