/* A progress bar with the time left, on stderr: only on a terminal, and only for work of more than a second. */
#ifndef PROGRESS_H
#define PROGRESS_H

void progress_start(void);
/* done in [0, 1]; what is shown beside the bar. Cheap enough to call often. */
void progress_show(double done, const char *what);
/* Removes the bar, to print something; the next progress_show brings it back. */
void progress_hide(void);

#endif
