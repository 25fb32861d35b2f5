#include "file_io.h"

#include "os.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

bool nh_file_write(int file, const void *data, size_t bytes) {
    for (const char *at = data; bytes;) {
        /* Systems write at most 2 GiB at once. */
        unsigned part = bytes < 1u << 30 ? (unsigned)bytes : 1u << 30;
        ssize_t count = write(file, at, part);
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
    char unfinished[NH_PATH_BYTES];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int size = snprintf(unfinished, sizeof unfinished, "%s.%lx-%llx-%lx.unfinished", path,
                        (long)getpid(), (long long)now.tv_sec, now.tv_nsec);
    if (size >= (int)sizeof unfinished) {
        errno = ENAMETOOLONG;
        return false;
    }
    int file = nh_os_open(NH_NO_FOLDER, unfinished, NH_OPEN_NEW);
    if (file < 0) return false;
    bool whole = write(file, content) && nh_os_flush(file);
    if (nh_file_close(file, whole) && nh_os_rename(NH_NO_FOLDER, unfinished, path)) return true;
    int reason = errno;
    nh_os_remove(NH_NO_FOLDER, unfinished);
    errno = reason;
    return false;
}

bool nh_folder_make(const char *path) {
    char part[NH_PATH_BYTES];
    size_t length = strlen(path);
    if (length >= sizeof part) {
        errno = ENAMETOOLONG;
        return false;
    }
    for (size_t i = 1; i <= length; i++) {
        if (path[i] && !nh_os_is_separator(path[i])) continue;
        memcpy(part, path, i);
        part[i] = '\0';
        if (!nh_os_make_folder(part)) return false;
    }
    return true;
}
