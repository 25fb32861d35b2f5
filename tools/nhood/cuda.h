/* The tool's own use of the CUDA driver, as any application has: memory, copies and events of one device. The driver
 * is looked for at run time; nothing here is called for a CPU device. */
#ifndef CUDA_H
#define CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Makes the device's primary context current on this thread. False after a message. */
bool cuda_open(int32_t ordinal);

double cuda_room(void);
void *cuda_allocate(size_t bytes); /* NULL if there is not enough */
void cuda_free(void *data);
bool cuda_write(void *to, const void *host, size_t bytes);
bool cuda_read(const void *from, void *host, size_t bytes);

/* Waits for everything enqueued; false, after a message, if something went wrong on the device. */
bool cuda_wait(void);

/* Time on the device between begin and end on the default stream; end waits. */
void cuda_timer_begin(void);
bool cuda_timer_end(double *ns);

/* Replaces what the caches hold, by writing a buffer larger than them. */
void cuda_flush(void);

#endif
