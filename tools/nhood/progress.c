#include "progress.h"

#include "clock.h"

#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

enum { BAR_WIDTH = 24 };

static struct {
    bool terminal, visible;
    double start_ns, drawn_ns;
} bar;

void progress_start(void) {
    bar.terminal = isatty(STDERR_FILENO) == 1;
    bar.start_ns = clock_ns();
    bar.drawn_ns = 0;
}

void progress_show(double done, const char *what) {
    double now = clock_ns(), elapsed_s = (now - bar.start_ns) * 1e-9;
    if (!bar.terminal || elapsed_s < 1 || now - bar.drawn_ns < 1e8) return;
    char cells[BAR_WIDTH + 1];
    for (int i = 0; i < BAR_WIDTH; i++)
        cells[i] = (double)i < done * BAR_WIDTH ? '#' : '.';
    cells[BAR_WIDTH] = '\0';
    fprintf(stderr, "\r\033[K[%s] %3.0f %%", cells, done * 100);
    if (done > 0) {
        long left_s = (long)(elapsed_s * (1 - done) / done + 0.5);
        fprintf(stderr, "  %ld:%02ld left", left_s / 60, left_s % 60);
    }
    fprintf(stderr, "  %.60s", what);
    fflush(stderr);
    bar.drawn_ns = now;
    bar.visible = true;
}

void progress_hide(void) {
    if (!bar.visible) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    bar.visible = false;
    bar.drawn_ns = 0;
}
