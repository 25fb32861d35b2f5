/* Writing whole files, and folders. */
#ifndef NH_FILE_IO_H
#define NH_FILE_IO_H

#include <stdbool.h>
#include <stddef.h>

/* All leave the reason of a failure in errno. */
bool nh_file_write(int file, const void *data, size_t bytes);
/* Closes; true if all went well so far and closing, too: some file systems report a full disk only there. */
bool nh_file_close(int file, bool whole);
/* Makes those of the path's folders that are not there, the last one included, for this user alone. */
bool nh_folder_make(const char *path);

#endif
