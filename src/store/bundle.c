#include "bundle.h"

#include "entry.h"
#include "file_io.h"
#include "os.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char first_key[] = "nhood bundle";
#define NAMED "bundle '%s' of %s: "

static const char *origin_of(const struct nh_bundle *bundle) {
    return bundle->host->from_environment.bundle ? "NHOOD_BUNDLE" : "options.bundle";
}

struct nh_bundle_row {
    uint64_t key_hash, offset;
    struct nh_entry_header header;
};

static int compare_rows(const void *a, const void *b) {
    const struct nh_bundle_row *left = a, *right = b;
    return (left->key_hash > right->key_hash) - (left->key_hash < right->key_hash);
}

static uint64_t entry_bytes(const struct nh_entry_header *header) {
    return sizeof *header + header->key_bytes + header->payload_bytes;
}

static nhood_status read_origin(struct nh_bundle *bundle, uint64_t file_bytes, uint64_t *end) {
    struct nh_entry_header header;
    void *origin;
    size_t bytes;
    if (!nh_entry_read_header(bundle->file, 0, file_bytes, &header) ||
        !nh_entry_read(bundle->host, bundle->file, 0, &header, first_key, &origin, &bytes))
        return nh_error(NHOOD_ERR_ARGUMENT, NAMED "not a bundle that nhood wrote", bundle->path,
                        origin_of(bundle));
    bundle->origin = origin;
    *end = entry_bytes(&header);
    return NHOOD_OK;
}

/* Reads the headers of entries from `offset` on into bundle->row or, if that is NULL, only counts them. Returns where the
 * entries end. */
static uint64_t scan(struct nh_bundle *bundle, uint64_t offset, uint64_t file_bytes) {
    struct nh_bundle_row row;
    for (bundle->count = 0; nh_entry_read_header(bundle->file, offset, file_bytes, &row.header) &&
                            nh_entry_key_hash(bundle->file, offset, &row.header, &row.key_hash);
         bundle->count++) {
        row.offset = offset;
        if (bundle->row) bundle->row[bundle->count] = row;
        offset += entry_bytes(&row.header);
    }
    return offset;
}

static nhood_status read_index(struct nh_bundle *bundle) {
    struct stat facts;
    if (fstat(bundle->file, &facts) || !S_ISREG(facts.st_mode))
        return nh_error(NHOOD_ERR_ARGUMENT, NAMED "not a regular file", bundle->path,
                        origin_of(bundle));
    uint64_t start = 0, file_bytes = (uint64_t)facts.st_size;
    nhood_status status = read_origin(bundle, file_bytes, &start);
    if (status) return status;
    uint64_t end = scan(bundle, start, file_bytes);
    bundle->row = nh_allocate(bundle->host, (size_t)bundle->count * sizeof *bundle->row);
    if (!bundle->row) return NHOOD_ERR_MEMORY;
    /* Reads only up to `end`, so that the rows suffice even if another program has changed the file meanwhile. */
    end = scan(bundle, start, end);
    qsort(bundle->row, (size_t)bundle->count, sizeof *bundle->row, compare_rows);
    if (end != file_bytes)
        nh_log(bundle->host, NHOOD_LOG_WARNING,
               "bundle '%s' is damaged at byte %llu of %llu: its first %lld kernels are used",
               bundle->path, (unsigned long long)end, (unsigned long long)file_bytes,
               (long long)bundle->count);
    return NHOOD_OK;
}

nhood_status nh_bundle_open(struct nh_bundle *bundle, const struct nh_host *host,
                            const char *path) {
    *bundle = (struct nh_bundle){.host = host, .file = -1};
    if (!(bundle->path = nh_copy_text(host, path))) return NHOOD_ERR_MEMORY;
    bundle->file = nh_os_open(NH_NO_FOLDER, path, NH_OPEN_READ);
    if (bundle->file < 0)
        return nh_error(NHOOD_ERR_ARGUMENT, NAMED "%s", path, origin_of(bundle), strerror(errno));
    return read_index(bundle);
}

void nh_bundle_close(struct nh_bundle *bundle) {
    if (!bundle->host) return;
    if (bundle->file >= 0) close(bundle->file);
    nh_release(bundle->host, bundle->row);
    nh_release(bundle->host, bundle->origin);
    nh_release(bundle->host, bundle->path);
    *bundle = (struct nh_bundle){.file = -1};
}

bool nh_bundle_read(const struct nh_bundle *bundle, const char *key, void **payload,
                    size_t *bytes) {
    uint64_t hash = nh_entry_hash(key, strlen(key));
    int64_t low = 0, high = bundle->count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (bundle->row[middle].key_hash < hash) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    bool here = false;
    for (; low < bundle->count && bundle->row[low].key_hash == hash; low++) {
        const struct nh_bundle_row *row = &bundle->row[low];
        here = true;
        if (nh_entry_read(bundle->host, bundle->file, row->offset, &row->header, key, payload,
                          bytes))
            return true;
    }
    if (here)
        nh_log(bundle->host, NHOOD_LOG_WARNING,
               "bundle '%s' is damaged: kernel '%.200s' is not used", bundle->path, key);
    return false;
}

struct content {
    const char *origin;
    const struct nh_bundle_item *first;
};

static bool write_content(int file, const void *argument) {
    const struct content *content = argument;
    bool good = nh_entry_write(file, first_key, content->origin, strlen(content->origin));
    for (const struct nh_bundle_item *item = content->first; good && item; item = item->next)
        good = nh_entry_write(file, item->key, item->payload, item->bytes);
    return good;
}

nhood_status nh_bundle_write(const char *path, const char *origin,
                             const struct nh_bundle_item *first) {
    const struct content content = {origin, first};
    if (nh_file_replace(path, write_content, &content)) return NHOOD_OK;
    return nh_error(NHOOD_ERR_ARGUMENT, "path = '%s' cannot be written: %s", path, strerror(errno));
}
