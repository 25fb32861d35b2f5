#include "file_io.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
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

bool nh_folder_make(const char *path) {
    char part[4096];
    size_t length = strlen(path);
    if (length >= sizeof part) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != '\0') continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (mkdir(part, 0700) && errno != EEXIST && access(part, X_OK)) return false;
    }
    return true;
}
