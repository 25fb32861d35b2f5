/* One entry of a store or a bundle: a header, the key, the payload, and a hash of both. */
#ifndef NH_ENTRY_H
#define NH_ENTRY_H

#include "base.h"

struct nh_entry_header {
    char magic[8];
    uint32_t schema;
    uint32_t key_bytes;
    uint64_t payload_bytes;
    /* over the key and then the payload */
    uint64_t hash;
};

uint64_t nh_entry_hash(const void *data, size_t bytes);

/* Appends an entry to a file. Leaves the reason of a failure in errno. */
bool nh_entry_write(int file, const char *key, const void *payload, size_t bytes);

/* Reads the header at `offset` of a file of file_bytes: false if none is there, or if the entry would end beyond the file. */
bool nh_entry_read_header(int file, uint64_t offset, uint64_t file_bytes,
                          struct nh_entry_header *header);

/* Hash of the key at `offset`; the key is unchecked: the entry's hash covers it together with the payload. */
bool nh_entry_key_hash(int file, uint64_t offset, const struct nh_entry_header *header,
                       uint64_t *hash);

/* The payload of an entry, for nh_release, in *payload, a zero behind it; false if the entry is damaged, of another key, or does not fit
 * into memory. */
bool nh_entry_read(const struct nh_host *host, int file, uint64_t offset,
                   const struct nh_entry_header *header, const char *key, void **payload,
                   size_t *bytes);

#endif
