/* Reading and writing whole files, and folders. */
#ifndef NH_FILE_IO_H
#define NH_FILE_IO_H

#include "base.h"

#include <stddef.h>

/* Reads a file into zero-terminated memory, which the caller releases with nh_release. CACHE_MISS if there is no such
 * file; ARGUMENT if it is larger than 256 MiB, not a regular file or cannot be read; MEMORY. */
nhood_status nh_file_read(const struct nh_host *host, const char *path, char **text);

/* The functions below leave the reason of a failure in errno. */
bool nh_file_write(int file, const void *data, size_t bytes);
/* Closes the file. Returns whether `whole` is set and closing succeeded: some file systems report a full disk only then. */
bool nh_file_close(int file, bool whole);
/* Creates or replaces a file with what `write` writes. A reader sees the whole old file or the whole new one: the new one
 * is written under another name in the same folder and then renamed. */
bool nh_file_replace(const char *path, bool (*write)(int file, const void *content),
                     const void *content);
/* Creates the missing folders of the path, the last one included, with access for this user only. */
bool nh_folder_make(const char *path);

#endif
