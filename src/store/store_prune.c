/* Scans the folder again for each removal to find the oldest entry. This needs no list, and a store holds only tens of
 * entries. */
#include "store_prune.h"

#include "os.h"

#include <string.h>

static const int64_t abandoned_ns = 3600 * (int64_t)1000000000;

struct scan {
    int folder;
    int64_t now_ns, bytes, oldest_ns;
    char oldest[256];
};

static bool ends_with(const char *text, const char *end) {
    size_t length = strlen(text), end_length = strlen(end);
    return length >= end_length && strcmp(text + length - end_length, end) == 0;
}

static void visit(void *arg, const struct nh_folder_entry *entry) {
    struct scan *scan = arg;
    if (ends_with(entry->name, NH_STORE_UNFINISHED) &&
        scan->now_ns - entry->modified_ns > abandoned_ns)
        nh_os_remove(scan->folder, entry->name);
    if (!ends_with(entry->name, NH_STORE_ENTRY)) return;
    scan->bytes += entry->bytes;
    if (*scan->oldest && entry->modified_ns >= scan->oldest_ns) return;
    scan->oldest_ns = entry->modified_ns;
    snprintf(scan->oldest, sizeof scan->oldest, "%s", entry->name);
}

void nh_store_prune(int folder, int64_t most_bytes) {
    for (;;) {
        struct scan scan = {.folder = folder, .now_ns = nh_os_file_clock_ns()};
        if (!nh_os_scan_folder(folder, visit, &scan) || scan.bytes <= most_bytes || !*scan.oldest ||
            !nh_os_remove(folder, scan.oldest))
            return;
    }
}
