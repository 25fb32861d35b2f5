#include "buffers.h"

#include "cuda.h"
#include "message.h"
#include "output.h"
#include "system.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { ALIGNMENT = 64, HUGE_PAGE = 2 << 20, LARGE = 4 << 20 };

/* The number after `key` in a file, or the first number if `key` is ""; negative if there is none. */
static double number_in_file(const char *path, const char *key) {
    FILE *file = fopen(path, "r");
    if (!file) return -1;
    char line[128];
    double value = -1;
    while (value < 0 && fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 && sscanf(line + strlen(key), "%lf", &value) != 1)
            value = -1;
    fclose(file);
    return value;
}

/* Free memory of the host. Linux grants more memory than it has, so malloc does not tell, and containers may have less. */
static double host_room(void) {
    double room = number_in_file("/proc/meminfo", "MemAvailable:") * 1024;
    double limit = number_in_file("/sys/fs/cgroup/memory.max", "");
    double used = number_in_file("/sys/fs/cgroup/memory.current", "");
    double cache = number_in_file("/sys/fs/cgroup/memory.stat", "inactive_file ");
    if (room < 0) room = 0;
    if (limit < 0 || used < 0) return room;
    double left = limit - used + (cache > 0 ? cache : 0);
    return room == 0 || left < room ? left : room;
}

bool buffer_open(const nhood_device_info *device) {
    return device->kind != NHOOD_DEVICE_CUDA || cuda_open(device->ordinal);
}

double buffer_room(const nhood_device_info *device) {
    return device->kind == NHOOD_DEVICE_CUDA ? cuda_room() : host_room();
}

/* Allocates large memory on huge pages if the system gives them on request, as numpy does for arrays from LARGE on. */
static void *host_allocate(size_t bytes) {
    size_t alignment = bytes >= LARGE ? HUGE_PAGE : ALIGNMENT;
    size_t rounded = (bytes + alignment - 1) / alignment * alignment;
    if (rounded < bytes) return NULL;
    void *data = system_allocate(alignment, rounded ? rounded : alignment);
#if defined(MADV_HUGEPAGE)
    if (data && bytes >= LARGE) (void)madvise(data, rounded, MADV_HUGEPAGE); /* may fail */
#endif
    return data;
}

bool buffer_allocate(struct buffer *buffer, const nhood_device_info *device, size_t bytes,
                     const char *purpose) {
    *buffer = (struct buffer){.device_kind = device->kind};
    buffer->data = device->kind == NHOOD_DEVICE_CUDA ? cuda_allocate(bytes) : host_allocate(bytes);
    if (!buffer->data) {
        char size[UNIT_BYTES];
        complain(EXIT_FAILURE, "no memory for %s: %s on %s", purpose,
                 size_text((double)bytes, size), device->name);
        return false;
    }
    buffer->bytes = bytes;
    return true;
}

void buffer_free(struct buffer *buffer) {
    if (buffer->device_kind == NHOOD_DEVICE_CUDA) {
        cuda_free(buffer->data);
    } else {
        system_free(buffer->data);
    }
    *buffer = (struct buffer){.bytes = 0};
}

void buffer_write(const struct buffer *buffer, size_t offset, const void *host, size_t bytes) {
    if (!bytes) return; /* an empty batch has no memory on the host */
    char *to = (char *)buffer->data + offset;
    if (buffer->device_kind == NHOOD_DEVICE_CUDA) {
        cuda_write(to, host, bytes);
    } else {
        memcpy(to, host, bytes);
    }
}

void buffer_read(const struct buffer *buffer, size_t offset, void *host, size_t bytes) {
    if (!bytes) return;
    const char *from = (const char *)buffer->data + offset;
    if (buffer->device_kind == NHOOD_DEVICE_CUDA) {
        cuda_read(from, host, bytes);
    } else {
        memcpy(host, from, bytes);
    }
}

bool buffer_wait(const nhood_device_info *device) {
    return device->kind != NHOOD_DEVICE_CUDA || cuda_wait();
}
