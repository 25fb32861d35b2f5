/* Long work in pieces that an interrupt ends after the piece at hand. */
#ifndef INTERRUPT_H
#define INTERRUPT_H

#include <stdbool.h>

/* From now on the first SIGINT or SIGTERM is only noted; the second one ends the program. */
void interrupt_catch(void);
bool interrupt_came(void);

/* Ends the program by the signal that came, so that a shell or a script sees what happened (130 for SIGINT); returns if none came or
 * the output cannot be written, which main complains of. To be called when everything is saved. */
void interrupt_end(void);

#endif
