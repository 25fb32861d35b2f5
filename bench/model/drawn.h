/* Problems drawn from a text with ranges, for programs that time groups of them. */
#ifndef NH_BENCH_DRAWN_H
#define NH_BENCH_DRAWN_H

#include <nhood.h>

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now_us(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

/* Park and Miller's generator. */
static int64_t draw(int64_t least, int64_t most) {
    static uint64_t seed = 1;
    seed = seed * 16807 % 2147483647;
    return least + (int64_t)(seed % (uint64_t)(most - least + 1));
}

/* Writes the text with a number of each of its ranges a..b. */
static void draw_text(const char *text, char *to) {
    while (*text) {
        char *end;
        const long least = *text >= '0' && *text <= '9' ? strtol(text, &end, 10) : -1;
        if (least < 0) {
            *to++ = *text++;
            continue;
        }
        text = end;
        if (strncmp(text, "..", 2) != 0) {
            to += sprintf(to, "%ld", least);
            continue;
        }
        to += sprintf(to, "%lld", (long long)draw(least, strtol(text + 2, &end, 10)));
        text = end;
    }
    *to = '\0';
}

/* Draws a problem. w0 is a window as long as its axis. */
static nhood_status draw_given(const char *text, nhood_problem *given) {
    char drawn[512];
    draw_text(text, drawn);
    char *whole = strstr(drawn, ":w0");
    if (whole) whole[2] = '1';
    const nhood_status status = nhood_problem_parse(drawn, given);
    for (int a = 0; whole && !status && a < given->rank; a++)
        given->axis[a].window = given->axis[a].length;
    return status;
}

#endif
