/* Memory of a device. Only buffers.c knows whether that is host or CUDA memory. */
#ifndef BUFFERS_H
#define BUFFERS_H

#include "nhood.h"

#include <stdbool.h>
#include <stddef.h>

struct buffer {
    int32_t device_kind; /* NHOOD_DEVICE_* */
    /* the address on the device, aligned to 64 bytes */
    void *data;
    size_t bytes;
};

/* Prepares this thread for memory of the device. False after a message. */
bool buffer_open(const nhood_device_info *device);

/* Bytes that can be allocated on the device without displacing other data; 0 if unknown. */
double buffer_room(const nhood_device_info *device);

/* Contents are undefined. False, after a message that says what the memory was for. */
bool buffer_allocate(struct buffer *buffer, const nhood_device_info *device, size_t bytes,
                     const char *purpose);
void buffer_free(struct buffer *buffer);

/* If a copy of CUDA memory fails, a message is printed, and all further work on the device fails, too. */
void buffer_write(const struct buffer *buffer, size_t offset, const void *host, size_t bytes);
void buffer_read(const struct buffer *buffer, size_t offset, void *host, size_t bytes);

/* Waits until the device has done everything; false, after a message, if something went wrong. */
bool buffer_wait(const nhood_device_info *device);

#endif
