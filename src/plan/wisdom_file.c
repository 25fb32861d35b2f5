/* Loads wisdom from files and saves it to them. */
#include "file_io.h"
#include "os.h"
#include "wisdom_table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

/* Saving takes milliseconds, or a second on a busy disk. A process that holds the lock for longer than this is stopped. */
static const double patience_s = 30;

static nhood_status refuse(const char *path, const char *what) {
    return nh_error(NHOOD_ERR_ARGUMENT, "%s: %s", path, what);
}

nhood_status nh_wisdom_load(struct nh_wisdom *wisdom, const char *path, int64_t *accepted) {
    const struct nh_host *host = wisdom->host;
    char *text = NULL;
    *accepted = 0;
    nhood_status status = nh_file_read(host, path, &text);
    if (!status) status = nh_wisdom_read(wisdom, text, path, accepted);
    nh_release(host, text);
    return status;
}

/* ---- saving ---- */

static bool write_text(int file, const void *text) {
    return nh_file_write(file, text, strlen(text));
}

/* Locks a file beside the one to be replaced, because each save replaces that one by another file. Returns the lock, or -1
 * and the reason if it cannot be locked: simultaneous writers may then lose each other's records, but not damage the file. */
static int lock_file(const char *path, char name[NH_PATH_BYTES], int *error) {
    const double deadline_s = nh_steady_s() + patience_s;
    struct timespec pause = {.tv_nsec = 1000000};
    *error = ENAMETOOLONG;
    if (snprintf(name, NH_PATH_BYTES, "%s.lock", path) >= NH_PATH_BYTES) return -1;
    for (;;) {
        int lock = nh_os_lock(name);
        *error = errno;
        if (lock >= 0 || (*error != EWOULDBLOCK && *error != EINTR)) return lock;
        *error = ETIMEDOUT;
        if (nh_steady_s() > deadline_s) return -1;
        nanosleep(&pause, NULL);
        pause.tv_nsec = pause.tv_nsec < 32000000 ? 2 * pause.tv_nsec : pause.tv_nsec;
    }
}

static nhood_status save_alone(struct nh_wisdom *wisdom, const char *path, bool replace) {
    const struct nh_host *host = wisdom->host;
    struct nh_wisdom *merged = NULL;
    char *text = NULL;
    size_t length = 0;
    int64_t accepted;
    /* The merge uses a separate table, as saving must not change the wisdom from which plans are made. */
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
    char name[NH_PATH_BYTES];
    int error, lock = lock_file(path, name, &error);
    nhood_status status = save_alone(wisdom, path, replace);
    if (lock < 0 && !status)
        nh_log(wisdom->host, NHOOD_LOG_WARNING, "%s: saved without a lock: %s", path,
               strerror(error));
    nh_os_unlock(lock, name);
    return status;
}
