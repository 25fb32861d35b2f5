#include "file_io.h"

#include <errno.h>
#include <unistd.h>

bool nh_file_write(int file, const void *data, size_t bytes) {
    for (const char *at = data; bytes;) {
        ssize_t count = write(file, at, bytes);
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) return false;
        at += count;
        bytes -= (size_t)count;
    }
    return true;
}

bool nh_file_close(int file, bool whole) {
    int reason = errno;
    if (close(file) && whole) return false;
    errno = reason;
    return whole;
}
