/* The tool's own use of the CUDA driver, like that of any application: memory, copies and events of one device. The driver is
 * loaded at run time. Nothing here is called for a CPU device. */
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

/* Waits until all enqueued work is done. False, after a message, if something failed on the device. */
bool cuda_wait(void);

/* Measure the time on the device between begin and end, on the default stream. The end waits for the work. */
void cuda_timer_begin(void);
bool cuda_timer_end(double *ns);

/* Evicts everything from the caches by writing a buffer that is larger than them. */
void cuda_flush(void);

#endif
