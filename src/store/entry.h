/* One entry of a store or a bundle: a header, the key, the payload, and a hash of both. */
#ifndef NH_ENTRY_H
#define NH_ENTRY_H

#include "base.h"

struct nh_entry_header {
    char magic[8];
    uint32_t schema;
    uint32_t key_bytes;
    uint64_t payload_bytes;
    /* of the key followed by the payload */
    uint64_t hash;
};

uint64_t nh_entry_hash(const void *data, size_t bytes);

/* Appends an entry to a file. Leaves the reason of a failure in errno. */
bool nh_entry_write(int file, const char *key, const void *payload, size_t bytes);

/* Reads the header at `offset` of a file of file_bytes. False if there is none, or if the entry would exceed the file. */
bool nh_entry_read_header(int file, uint64_t offset, uint64_t file_bytes,
                          struct nh_entry_header *header);

/* Hashes the key of the entry at `offset`. The key is not checked, because the entry's hash covers it with the payload. */
bool nh_entry_key_hash(int file, uint64_t offset, const struct nh_entry_header *header,
                       uint64_t *hash);

/* Reads an entry's payload into zero-terminated memory, which the caller releases with nh_release. False if the entry is
 * damaged or has another key, or without memory. */
bool nh_entry_read(const struct nh_host *host, int file, uint64_t offset,
                   const struct nh_entry_header *header, const char *key, void **payload,
                   size_t *bytes);

#endif
