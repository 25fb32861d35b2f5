#include "entry.h"

#include "file_io.h"
#include "hash.h"
#include "os.h"

#include <errno.h>
#include <string.h>

/* Increase it when the meaning of a field changes: older entries are then ignored and overwritten. */
enum { SCHEMA = 1 };

static const char magic[8] = "nhoodent";

/* Detects damage, not forgery: against that, the owner and the rights of the store's folder are checked. */
uint64_t nh_entry_hash(const void *data, size_t bytes) {
    return nh_hash(NH_HASH_START, data, bytes);
}

static bool read_at(int file, uint64_t offset, void *data, size_t bytes) {
    for (char *at = data; bytes;) {
        int64_t count = nh_os_read_at(file, at, bytes, offset);
        if (count < 0 && errno == EINTR) continue;
        if (count <= 0) return false;
        at += count;
        offset += (uint64_t)count;
        bytes -= (size_t)count;
    }
    return true;
}

bool nh_entry_write(int file, const char *key, const void *payload, size_t bytes) {
    size_t key_bytes = strlen(key);
    struct nh_entry_header header = {.schema = SCHEMA,
                                     .key_bytes = (uint32_t)key_bytes,
                                     .payload_bytes = bytes,
                                     .hash =
                                         nh_hash(nh_entry_hash(key, key_bytes), payload, bytes)};
    memcpy(header.magic, magic, sizeof magic);
    return nh_file_write(file, &header, sizeof header) && nh_file_write(file, key, key_bytes) &&
           nh_file_write(file, payload, bytes);
}

bool nh_entry_read_header(int file, uint64_t offset, uint64_t file_bytes,
                          struct nh_entry_header *header) {
    if (offset > file_bytes || file_bytes - offset < sizeof *header) return false;
    uint64_t room = file_bytes - offset - sizeof *header;
    return read_at(file, offset, header, sizeof *header) &&
           memcmp(header->magic, magic, sizeof magic) == 0 && header->schema == SCHEMA &&
           header->key_bytes <= room && header->payload_bytes <= room - header->key_bytes;
}

bool nh_entry_key_hash(int file, uint64_t offset, const struct nh_entry_header *header,
                       uint64_t *hash) {
    char part[512];
    offset += sizeof *header;
    *hash = nh_entry_hash(NULL, 0);
    for (uint64_t left = header->key_bytes; left;) {
        size_t bytes = (size_t)(left < sizeof part ? left : sizeof part);
        if (!read_at(file, offset, part, bytes)) return false;
        *hash = nh_hash(*hash, part, bytes);
        offset += bytes;
        left -= bytes;
    }
    return true;
}

bool nh_entry_read(const struct nh_host *host, int file, uint64_t offset,
                   const struct nh_entry_header *header, const char *key, void **payload,
                   size_t *bytes) {
    size_t key_bytes = strlen(key);
    if (header->key_bytes != key_bytes) return false;
    size_t body_bytes = key_bytes + (size_t)header->payload_bytes;
    char *body = nh_allocate(host, body_bytes + 1);
    if (!body) return false;
    if (!read_at(file, offset + sizeof *header, body, body_bytes) ||
        memcmp(body, key, key_bytes) != 0 || nh_entry_hash(body, body_bytes) != header->hash) {
        nh_release(host, body);
        return false;
    }
    *bytes = (size_t)header->payload_bytes;
    memmove(body, body + key_bytes, *bytes);
    body[*bytes] = '\0';
    *payload = body;
    return true;
}
