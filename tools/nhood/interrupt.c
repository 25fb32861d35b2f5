#include "interrupt.h"

#include "progress.h"
#include "system.h"

#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t interrupted; /* the signal's number */

/* What the program's starter ignores stays ignored: interrupts in the background of a script, for example. */
static void handle(int number, void (*handler)(int)) {
    if (signal(number, handler) == SIG_IGN) signal(number, SIG_IGN);
}

static void end(int number) {
    progress_erase();
    system_end_by_signal(number);
}

static void record(int number) {
    interrupted = number;
    handle(number, end);
}

void interrupt_start(void) {
    handle(SIGINT, end);
    handle(SIGTERM, end);
}

void interrupt_catch(void) {
    handle(SIGINT, record);
    handle(SIGTERM, record);
}

bool interrupt_came(void) {
    return interrupted != 0;
}

void interrupt_end(void) {
    if (!interrupted || fflush(stdout) || ferror(stdout)) return;
    system_end_by_signal(interrupted);
}
