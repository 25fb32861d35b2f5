#include "cache_folder.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Writes what the caller or $NHOOD_CACHE names, both of which may begin with '~', as shells that expand it are not always
 * there. */
static nhood_status expand(const char *name, const char *given, char path[NH_PATH_BYTES]) {
    char room[NH_PATH_BYTES];
    const char *home = "", *rest = given;
    if (*given == '~') {
        rest++;
        home = nh_os_home(room);
        if (*rest && !nh_os_is_separator(*rest))
            return nh_error(NHOOD_ERR_ARGUMENT,
                            "%s = '%.200s': only '~' alone or before a separator is known", name,
                            given);
        if (!home)
            return nh_error(NHOOD_ERR_ARGUMENT, "%s = '%.200s', but the home folder is not known",
                            name, given);
    }
    const int length = snprintf(path, NH_PATH_BYTES, "%s%s", home, rest);
    if (length >= NH_PATH_BYTES)
        return nh_error(NHOOD_ERR_ARGUMENT, "%s has %d bytes, at most %d are legal", name, length,
                        NH_PATH_BYTES - 1);
    return NHOOD_OK;
}

/* Writes this user's own folder. One that is too long is no reason to fail. */
static void find_own(const struct nh_host *host, char path[NH_PATH_BYTES],
                     char reason[NH_NO_CACHE_BYTES]) {
    const int length = nh_os_cache_folder(path);
    if (length > 0 && length < NH_PATH_BYTES) return;
    *path = '\0';
    if (length == 0) {
        snprintf(reason, NH_NO_CACHE_BYTES, "%s; NHOOD_CACHE may name one",
                 nh_os_no_cache_folder());
        return;
    }
    snprintf(reason, NH_NO_CACHE_BYTES,
             "the path of the user's own has %d bytes, at most %d are "
             "legal; NHOOD_CACHE may name another",
             length, NH_PATH_BYTES - 1);
    nh_log(host, NHOOD_LOG_WARNING, "no cache folder: %s", reason);
}

/* Whether the folder may be used: it does not exist yet, or it can be opened and is the user's own. Whoever else may write to
 * it would decide what runs. */
static bool may_be_used(const char *path, char *reason, size_t bytes) {
    const int folder = nh_os_open_folder(path);
    if (folder < 0) {
        const int error = errno;
        snprintf(reason, bytes, "%s", strerror(error));
        return error == ENOENT ||
               error == ENOTDIR; /* what is written there fails with its own text */
    }
    const bool own = nh_os_folder_is_own(folder, reason, bytes);
    close(folder);
    return own;
}

nhood_status nh_cache_folder_find(const char *given, const struct nh_host *host,
                                  char path[NH_PATH_BYTES], char reason[NH_NO_CACHE_BYTES]) {
    char room[NH_PATH_BYTES], why[160];
    const char *name = given ? "options.cache" : "NHOOD_CACHE";
    *reason = '\0';
    if (!given) given = nh_os_environment("NHOOD_CACHE", room);
    if (given) {
        const nhood_status status = expand(name, given, path);
        if (status) return status;
        if (!*path) snprintf(reason, NH_NO_CACHE_BYTES, "%s is ''", name);
    } else {
        find_own(host, path, reason);
    }
    if (!*path || may_be_used(path, why, sizeof why)) return NHOOD_OK;
    snprintf(reason, NH_NO_CACHE_BYTES, "'%.80s' is not used: %s", path, why);
    nh_log(host, NHOOD_LOG_WARNING, "cache folder '%s' is not used: %s", path, why);
    *path = '\0';
    return NHOOD_OK;
}
