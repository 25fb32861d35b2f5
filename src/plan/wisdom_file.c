/* Wisdom in files. */
#include "file_io.h"
#include "wisdom_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MOST_FILE_BYTES = 1 << 28 };

/* Saving takes milliseconds, on a busy disk a second: a process that holds the lock for longer than this has been stopped. */
static const double patience_s = 30;

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
        ssize_t count = read(file, content + used, bytes - used);
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

nhood_status nh_wisdom_load(struct nh_wisdom *wisdom, const char *path, int64_t *accepted) {
    const struct nh_host *host = wisdom->host;
    char *text = NULL;
    *accepted = 0;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* does not wait for a pipe */
    if (file < 0 && (errno == ENOENT || errno == ENOTDIR))
        return nh_error(NHOOD_ERR_CACHE_MISS, "%s: there is no such file", path);
    if (file < 0) return refuse(path, strerror(errno));
    nhood_status status = read_open(host, file, path, &text);
    close(file);
    if (!status) status = nh_wisdom_read(wisdom, text, path, accepted);
    nh_release(host, text);
    return status;
}

/* ---- saving ---- */

static bool write_text(int file, const void *text) {
    return nh_file_write(file, text, strlen(text));
}

/* ---- one at a time ---- */

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Waits until this process alone has locked the open file. Returns 0, or the number of an error. The lock ends with the process,
 * however that ends. */
static int wait_for_lock(int file, double deadline_s) {
    struct timespec pause = {.tv_nsec = 1000000};
    while (flock(file, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR) return errno;
        if (now_s() > deadline_s) return ETIMEDOUT;
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec < 32000000 ? 2 * pause.tv_nsec : pause.tv_nsec;
    }
    return 0;
}

/* Whether the name still means the open file: the process that held the lock before has removed it. */
static bool is_current(int file, const char *name) {
    struct stat opened, named;
    return !fstat(file, &opened) && !stat(name, &named) && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

/* Locks a file beside the one to be replaced, as that one is another after each save. Returns it open, or -1 and the reason
 * where files cannot be locked: then writers at the same time may lose what others wrote, but never harm the file. */
static int lock_file(const char *path, char name[PATH_BYTES], int *error) {
    const double deadline_s = now_s() + patience_s;
    *error = ENAMETOOLONG;
    if (snprintf(name, PATH_BYTES, "%s.lock", path) >= PATH_BYTES) return -1;
    for (;;) {
        int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        *error = file < 0 ? errno : wait_for_lock(file, deadline_s);
        if (!*error && is_current(file, name)) return file;
        if (file >= 0) close(file);
        if (*error) return -1;
    }
}

/* The name goes first: a process that has it open and waits sees that it is gone, and makes another. */
static void unlock_file(int file, const char *name) {
    if (file < 0) return;
    unlink(name);
    close(file);
}

static nhood_status save_alone(struct nh_wisdom *wisdom, const char *path, bool replace) {
    const struct nh_host *host = wisdom->host;
    struct nh_wisdom *merged = NULL;
    char *text = NULL;
    size_t length = 0;
    int64_t accepted;
    /* The merge goes into a table of its own: saving must not change the wisdom from which plans are made. */
    nhood_status status = nh_wisdom_create(host, &merged);
    if (!status && !replace) status = nh_wisdom_load(merged, path, &accepted);
    if (status == NHOOD_ERR_CACHE_MISS) status = NHOOD_OK;
    if (!status) status = nh_wisdom_merge(merged, wisdom);
    if (!status) status = nh_wisdom_text(merged, &text, &length);
    if (!status && !nh_file_replace(path, write_text, text)) status = refuse(path, strerror(errno));
    nh_release(host, text);
    nh_wisdom_destroy(merged);
    return status;
}

nhood_status nh_wisdom_save(struct nh_wisdom *wisdom, const char *path, bool replace) {
    char name[PATH_BYTES];
    int error, lock = lock_file(path, name, &error);
    nhood_status status = save_alone(wisdom, path, replace);
    if (lock < 0 && !status)
        nh_log(wisdom->host, NHOOD_LOG_WARNING, "%s: saved without a lock: %s", path,
               strerror(error));
    unlock_file(lock, name);
    return status;
}
