#include "file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

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

/* The name's uniqueness: process and time. */
bool nh_file_replace(const char *path, bool (*write)(int file, const void *content),
                     const void *content) {
    char unfinished[PATH_BYTES];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int size = snprintf(unfinished, sizeof unfinished, "%s.%lx-%llx-%lx.unfinished", path,
                        (long)getpid(), (long long)now.tv_sec, now.tv_nsec);
    if (size >= (int)sizeof unfinished) {
        errno = ENAMETOOLONG;
        return false;
    }
    int file = open(unfinished, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) return false;
    bool whole = write(file, content) && fsync(file) == 0;
    if (nh_file_close(file, whole) && rename(unfinished, path) == 0) return true;
    int reason = errno;
    unlink(unfinished);
    errno = reason;
    return false;
}

bool nh_folder_make(const char *path) {
    char part[PATH_BYTES];
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
