#include "file_io.h"

#include "os.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { MOST_FILE_BYTES = 1 << 28 };

static nhood_status refuse(const char *path, const char *what) {
    return nh_error(NHOOD_ERR_ARGUMENT, "%s: %s", path, what);
}

static nhood_status read_open(const struct nh_host *host, int file, const char *path, char **text) {
    struct stat facts;
    if (fstat(file, &facts)) return refuse(path, strerror(errno));
    if (!S_ISREG(facts.st_mode)) return refuse(path, "not a regular file");
    if (facts.st_size > MOST_FILE_BYTES) return refuse(path, "larger than 256 MiB");
    size_t bytes = (size_t)facts.st_size, used = 0;
    char *content = nh_allocate(host, bytes + 1);
    if (!content) return NHOOD_ERR_MEMORY;
    while (used < bytes) {
        ssize_t count = read(file, content + used, (unsigned)(bytes - used));
        if (count < 0 && errno == EINTR) continue;
        if (count < 0) {
            nhood_status status = refuse(path, strerror(errno));
            nh_release(host, content);
            return status;
        }
        if (count == 0) break;
        used += (size_t)count;
    }
    content[used] = '\0';
    *text = content;
    return NHOOD_OK;
}

nhood_status nh_file_read(const struct nh_host *host, const char *path, char **text) {
    *text = NULL;
    int file = nh_os_open(NH_NO_FOLDER, path, NH_OPEN_READ);
    if (file < 0 && (errno == ENOENT || errno == ENOTDIR))
        return nh_error(NHOOD_ERR_CACHE_MISS, "%s: there is no such file", path);
    if (file < 0) return refuse(path, strerror(errno));
    nhood_status status = read_open(host, file, path, text);
    close(file);
    return status;
}

bool nh_file_write(int file, const void *data, size_t bytes) {
    for (const char *at = data; bytes;) {
        /* Operating systems write at most 2 GiB per call. */
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

/* The name of the unfinished file is unique by process and time. */
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
