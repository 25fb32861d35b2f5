/* Interrupts: at once or, for long work, after the current piece of it. */
#ifndef INTERRUPT_H
#define INTERRUPT_H

#include <stdbool.h>

/* From now on SIGINT and SIGTERM remove the progress bar and end the program, so that shells and scripts see the signal (exit
 * status 130 for SIGINT), also in a container whose first process it is. */
void interrupt_start(void);

/* From now on the first SIGINT or SIGTERM is only recorded, and the second one ends the program. */
void interrupt_catch(void);
bool interrupt_came(void);

/* Ends the program by the signal that was received. Call it when everything is saved. Returns if there was no signal, or if the output cannot be written, which main reports. */
void interrupt_end(void);

#endif
