/* Finds the oldest entry by scanning the folder again for each removal: no list to allocate, and a store holds
 * tens of entries. */
#include "store_prune.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { ABANDONED_SECONDS = 3600 };

struct scan {
    int64_t bytes;
    struct timespec oldest_time;
    char oldest[256];
};

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static bool earlier(struct timespec a, struct timespec b) {
    return a.tv_sec != b.tv_sec ? a.tv_sec < b.tv_sec : a.tv_nsec < b.tv_nsec;
}

static bool scan_folder(int folder, struct scan *scan) {
    memset(scan, 0, sizeof *scan);
    /* A fresh descriptor: the position of a shared one would be shared by all threads. */
    int opened = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = opened < 0 ? NULL : fdopendir(opened);
    if (!entries) {
        if (opened >= 0) close(opened);
        return false;
    }
    time_t now = time(NULL);
    for (struct dirent *entry; (entry = readdir(entries));) {
        struct stat facts;
        if (fstatat(folder, entry->d_name, &facts, AT_SYMLINK_NOFOLLOW)) continue;
        if (ends_with(entry->d_name, NH_STORE_UNFINISHED) &&
            now - facts.st_mtim.tv_sec > ABANDONED_SECONDS)
            unlinkat(folder, entry->d_name, 0);
        if (!ends_with(entry->d_name, NH_STORE_ENTRY)) continue;
        scan->bytes += facts.st_size;
        if (*scan->oldest && !earlier(facts.st_mtim, scan->oldest_time)) continue;
        scan->oldest_time = facts.st_mtim;
        snprintf(scan->oldest, sizeof scan->oldest, "%s", entry->d_name);
    }
    closedir(entries);
    return true;
}

void nh_store_prune(int folder, int64_t most_bytes) {
    struct scan scan;
    while (scan_folder(folder, &scan) && scan.bytes > most_bytes && *scan.oldest)
        if (unlinkat(folder, scan.oldest, 0)) return;
}
