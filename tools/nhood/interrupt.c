#include "interrupt.h"

#include <signal.h>
#include <stdio.h>

static volatile sig_atomic_t interrupted; /* the signal's number */

static void interrupt(int number) {
    interrupted = number;
    signal(number, SIG_DFL);
}

void interrupt_catch(void) {
    signal(SIGINT, interrupt);
    signal(SIGTERM, interrupt);
}

bool interrupt_came(void) {
    return interrupted != 0;
}

void interrupt_end(void) {
    if (!interrupted || fflush(stdout) || ferror(stdout)) return;
    signal(interrupted, SIG_DFL);
    raise(interrupted);
}
