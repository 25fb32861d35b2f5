/* Writing whole files, and folders. */
#ifndef NH_FILE_IO_H
#define NH_FILE_IO_H

#include <stdbool.h>
#include <stddef.h>

/* All leave the reason of a failure in errno. */
bool nh_file_write(int file, const void *data, size_t bytes);
/* Closes; true if all went well so far and closing, too: some file systems report a full disk only there. */
bool nh_file_close(int file, bool whole);
/* Puts what `write` writes in place of a file, or of none: a reader sees one or the other, whole. Written under a name of
 * its own in the same folder, unique also among hosts that share it, then renamed. */
bool nh_file_replace(const char *path, bool (*write)(int file, const void *content),
                     const void *content);
/* Makes those of the path's folders that are not there, the last one included, for this user alone. */
bool nh_folder_make(const char *path);

#endif
