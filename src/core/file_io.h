/* Reading and writing whole files, and folders. */
#ifndef NH_FILE_IO_H
#define NH_FILE_IO_H

#include "base.h"

#include <stddef.h>

/* Reads a text, with a zero behind it, which the caller releases with nh_release. CACHE_MISS if there is no such file; ARGUMENT if it is
 * larger than 256 MiB, no regular file or cannot be read; MEMORY. */
nhood_status nh_file_read(const struct nh_host *host, const char *path, char **text);

/* All of these leave the reason of a failure in errno. */
bool nh_file_write(int file, const void *data, size_t bytes);
/* Closes the file. Returns whether `whole` is set and closing went well: some file systems report a full disk only there. */
bool nh_file_close(int file, bool whole);
/* Replaces or makes a file with what `write` writes: a reader sees the old file or the new one, whole. The new one is written under
 * another name in the same folder, unique also among hosts that share it, and then renamed. */
bool nh_file_replace(const char *path, bool (*write)(int file, const void *content),
                     const void *content);
/* Makes the missing folders of the path, the last one included, with rights for this user alone. */
bool nh_folder_make(const char *path);

#endif
