#include "progress.h"

#include "clock.h"
#include "system.h"

#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_CELLS = 24, FEWEST_CELLS = 4, TIME_BYTES = 32, MOST_COLUMNS = 160 };

static const char erase[] = "\r\033[K";

static struct {
    bool terminal;
    volatile sig_atomic_t visible; /* which a signal's handler reads */
    double start_ns, drawn_ns;
} bar;

void progress_start(void) {
    const char *kind = getenv("TERM");
    bar.terminal = isatty(STDERR_FILENO) == 1 && !(kind && strcmp(kind, "dumb") == 0);
    bar.start_ns = clock_ns();
    bar.drawn_ns = 0;
}

/* The line, in less than `columns`, as the last one of a terminal may start a new line. What does not fit is left out: first of
 * what is done, then of the bar. */
static void format(char line[MOST_COLUMNS], int columns, double done, double elapsed_s,
                   const char *what) {
    char left[TIME_BYTES] = "", cells[MOST_CELLS + 1];
    if (done > 0) {
        long left_s = (long)(elapsed_s * (1 - done) / done + 0.5);
        snprintf(left, sizeof left, "  %ld:%02ld left", left_s / 60, left_s % 60);
    }
    int count = columns / 3 < MOST_CELLS ? columns / 3 : MOST_CELLS;
    for (int i = 0; i < count; i++)
        cells[i] = i < done * count ? '#' : '.';
    cells[count] = '\0';
    snprintf(line, (size_t)(columns < MOST_COLUMNS ? columns : MOST_COLUMNS), "[%s] %3.0f %%%s  %s",
             cells, done * 100, left, what);
}

void progress_show(double done, const char *what) {
    double now = clock_ns(), elapsed_s = (now - bar.start_ns) * 1e-9;
    if (!bar.terminal || elapsed_s < 1 || now - bar.drawn_ns < 1e8) return;
    int columns = system_columns(); /* each time: terminals are resized */
    if (columns < 3 * FEWEST_CELLS) return;
    char line[MOST_COLUMNS];
    format(line, columns, done, elapsed_s, what);
    bar.visible = true;
    fprintf(stderr, "%s%s", erase, line);
    fflush(stderr);
    bar.drawn_ns = now;
}

void progress_hide(void) {
    if (!bar.visible) return;
    fputs(erase, stderr);
    fflush(stderr);
    bar.visible = false;
    bar.drawn_ns = 0;
}

void progress_erase(void) {
    if (bar.visible && write(STDERR_FILENO, erase, strlen(erase)) > 0) bar.visible = false;
}
