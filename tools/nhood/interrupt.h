/* Interrupts long work after the current piece of it. */
#ifndef INTERRUPT_H
#define INTERRUPT_H

#include <stdbool.h>

/* From now on the first SIGINT or SIGTERM is only recorded, and the second one ends the program. */
void interrupt_catch(void);
bool interrupt_came(void);

/* Ends the program by the signal that was received, so that shells and scripts see it (exit status 130 for SIGINT). Call it
 * when everything is saved. Returns if there was no signal, or if the output cannot be written, which main reports. */
void interrupt_end(void);

#endif
