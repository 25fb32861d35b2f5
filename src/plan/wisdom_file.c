/* Wisdom in files. */
#include "file_io.h"
#include "wisdom_table.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, MOST_FILE_BYTES = 1 << 28 };

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

/* Writes under a name of its own in the same folder, then renames. The name is unique also among hosts that
 * share the folder: process and time. */
static nhood_status replace_file(const char *path, const char *text, size_t length) {
    char unfinished[PATH_BYTES];
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    int size = snprintf(unfinished, sizeof unfinished, "%s.%lx-%llx-%lx.unfinished", path,
                        (long)getpid(), (long long)now.tv_sec, now.tv_nsec);
    if (size >= (int)sizeof unfinished) return refuse(path, strerror(ENAMETOOLONG));
    int file = open(unfinished, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0) return refuse(path, strerror(errno));
    bool whole = nh_file_write(file, text, length) && fsync(file) == 0;
    if (nh_file_close(file, whole) && rename(unfinished, path) == 0) return NHOOD_OK;
    int reason = errno;
    unlink(unfinished);
    return refuse(path, strerror(reason));
}

nhood_status nh_wisdom_save(struct nh_wisdom *wisdom, const char *path, bool replace) {
    const struct nh_host *host = wisdom->host;
    struct nh_wisdom *merged = NULL;
    char *text = NULL;
    size_t length = 0;
    int64_t accepted;
    /* Into a table of its own: saving must not change what this one's plans are made from. */
    nhood_status status = nh_wisdom_create(host, &merged);
    if (!status && !replace) status = nh_wisdom_load(merged, path, &accepted);
    if (status == NHOOD_ERR_CACHE_MISS) status = NHOOD_OK;
    if (!status) status = nh_wisdom_merge(merged, wisdom);
    if (!status) status = nh_wisdom_text(merged, &text, &length);
    if (!status) status = replace_file(path, text, length);
    nh_release(host, text);
    nh_wisdom_destroy(merged);
    return status;
}
