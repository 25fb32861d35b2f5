/* A progress bar with the remaining time, on stderr, only on a terminal that can take it back and only for work of more than a
 * second. It fits into the terminal as wide as that is now. */
#ifndef PROGRESS_H
#define PROGRESS_H

void progress_start(void);
/* `done` is in [0, 1]; `what` is shown beside the bar. The call is cheap enough to be made often. */
void progress_show(double done, const char *what);
/* Removes the bar, to print something; the next progress_show brings it back. */
void progress_hide(void);
/* The same in the handler of a signal that ends the program. */
void progress_erase(void);

#endif
