/* Reads wisdom from texts and files, and saves it. */
#include "file_io.h"
#include "os.h"
#include "wisdom.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char header[] = NH_WISDOM_HEADER;

/* ---- reading ---- */

enum { FIELDS = 6, REASON_BYTES = 256 };

/* The fields of a line: their names, and the most bytes of each with its terminating zero. */
static const struct {
    const char *name;
    size_t bytes;
} fields[FIELDS] = {{"device", NH_WISDOM_DEVICE_BYTES},
                    {"problem", NH_WISDOM_PROBLEM_BYTES},
                    {"solver", NH_WISDOM_SOLVER_BYTES},
                    {"config", NH_CONFIG_BYTES},
                    {"median", 20},
                    {"samples", 20}};

/* Splits the line at its blanks, in place. Returns false and the reason if it is not well formed. */
static bool split(char *line, char *field[FIELDS], char reason[REASON_BYTES]) {
    int count = 0;
    for (char *at = line;; at++) {
        size_t length = strcspn(at, " ");
        if (count < FIELDS) field[count] = at;
        if (count < FIELDS && length >= fields[count].bytes) {
            snprintf(reason, REASON_BYTES, "its %s has %zu bytes, at most %zu are legal",
                     fields[count].name, length, fields[count].bytes - 1);
            return false;
        }
        count++;
        at += length;
        if (!*at) break;
        *at = '\0';
    }
    if (count != FIELDS) {
        snprintf(reason, REASON_BYTES, "it has %d fields, not %d", count, FIELDS);
        return false;
    }
    for (int i = 0; i < FIELDS; i++)
        for (const char *at = field[i]; *at || at == field[i]; at++)
            if (*at <= ' ' || *at > '~') {
                snprintf(reason, REASON_BYTES,
                         "its %s is empty or has a byte that is not ASCII text", fields[i].name);
                return false;
            }
    return true;
}

static bool read_count(const char *name, const char *text, int64_t *value,
                       char reason[REASON_BYTES]) {
    char *end;
    long long number = strtoll(text, &end, 10);
    if (*end || *text < '1' || *text > '9' || number > 1000000000000000) {
        snprintf(reason, REASON_BYTES, "its %s = '%s' is not an integer in [1, 10^15]", name, text);
        return false;
    }
    *value = number;
    return true;
}

/* If a problem's text names a window table, "t<keys>#<hash>", writes a text with other windows in the place of all: no problem can
 * be made of a hash, but all else can be checked. False: it names none, or there is no room. */
static bool without_tables(const char *text, char *other, size_t capacity) {
    enum { HASH_DIGITS = 16 };
    bool any = false;
    size_t used = 0;
    while (*text && used < capacity) {
        const size_t keys = *text == 't' ? strspn(text + 1, "0123456789") : 0;
        const char *hash = text + 1 + keys;
        if (keys && *hash == '#' && strspn(hash + 1, "0123456789abcdef") == HASH_DIGITS) {
            used += (size_t)snprintf(other + used, capacity - used, "r%.*sw1", (int)keys, text + 1);
            text = hash + 1 + HASH_DIGITS;
            any = true;
        } else {
            other[used++] = *text++;
        }
    }
    if (used >= capacity) return false;
    other[used] = '\0';
    return any;
}

/* Returns false and the reason if the line is not well formed. Else adds it; *status is MEMORY if that fails. */
static bool read_line(struct nh_wisdom *wisdom, char *line, char reason[REASON_BYTES],
                      nhood_status *status) {
    char *field[FIELDS], problem[NH_WISDOM_PROBLEM_BYTES], other[2 * NH_WISDOM_PROBLEM_BYTES];
    nhood_problem parsed;
    struct nh_wisdom_record record;
    if (!split(line, field, reason)) return false;
    const bool tables = without_tables(field[1], other, sizeof other);
    if (nhood_problem_parse(tables ? other : field[1], &parsed) ||
        nhood_problem_format(&parsed, problem, sizeof problem, NULL)) {
        snprintf(reason, REASON_BYTES, "%.*s", REASON_BYTES - 1, nhood_last_error());
        return false;
    }
    record.device = field[0];
    record.problem = tables ? field[1] : problem; /* such a text is as nh_problem_text wrote it */
    record.solver = field[2];
    record.config = strcmp(field[3], "-") != 0 ? field[3] : "";
    if (!read_count("median", field[4], &record.median_ns, reason) ||
        !read_count("samples", field[5], &record.samples, reason))
        return false;
    *status = nh_wisdom_add(wisdom, &record);
    return true;
}

nhood_status nh_wisdom_read(struct nh_wisdom *wisdom, const char *text, const char *origin,
                            int64_t *accepted) {
    /* More than the longest legal line, so that a longer one is recognized although it is cut. */
    enum { LINE_BYTES = 1200 };
    char line[LINE_BYTES], reason[REASON_BYTES];
    *accepted = 0;
    if (strncmp(text, header, sizeof header - 1) != 0)
        return nh_error(NHOOD_ERR_ARGUMENT, "%s does not start with the line 'nhood-wisdom 1'",
                        origin);
    nhood_status status = NHOOD_OK;
    int64_t number = 2, left_out = 0, first_left_out = 0;
    char first_reason[REASON_BYTES] = "";
    for (const char *at = text + sizeof header - 1; *at && !status; number++) {
        size_t length = strcspn(at, "\n"), kept = length;
        if (kept && at[kept - 1] == '\r') kept--;
        snprintf(line, sizeof line, "%.*s", (int)nh_min((int64_t)kept, LINE_BYTES - 1), at);
        if (!kept) {
            /* a blank line */
        } else if (read_line(wisdom, line, reason, &status)) {
            *accepted += status == NHOOD_OK;
        } else if (left_out++ == 0) {
            first_left_out = number;
            memcpy(first_reason, reason, sizeof first_reason);
        }
        at += length + (at[length] == '\n');
    }
    if (left_out == 1)
        nh_log(wisdom->host, NHOOD_LOG_WARNING, "%s, line %lld left out: %s", origin,
               (long long)first_left_out, first_reason);
    if (left_out > 1)
        nh_log(wisdom->host, NHOOD_LOG_WARNING, "%s: %lld lines left out, line %lld first: %s",
               origin, (long long)left_out, (long long)first_left_out, first_reason);
    return status;
}

/* ---- files ---- */

/* Saving takes milliseconds, or a second on a busy disk. A process that holds the lock for longer than this is stopped. */
static const double patience_s = 30;

nhood_status nh_wisdom_load(struct nh_wisdom *wisdom, const char *path, int64_t *accepted) {
    const struct nh_host *host = wisdom->host;
    char *text = NULL;
    *accepted = 0;
    nhood_status status = nh_file_read(host, path, &text);
    if (!status) status = nh_wisdom_read(wisdom, text, path, accepted);
    nh_release(host, text);
    return status;
}

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
    if (!status && !nh_file_replace(path, write_text, text))
        status = nh_error(NHOOD_ERR_ARGUMENT, "%s: %s", path, strerror(errno));
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
