/* Writing whole files. */
#ifndef NH_FILE_IO_H
#define NH_FILE_IO_H

#include <stdbool.h>
#include <stddef.h>

/* Both leave the reason of a failure in errno. */
bool nh_file_write(int file, const void *data, size_t bytes);
/* Closes; true if all went well so far and closing, too: some file systems report a full disk only there. */
bool nh_file_close(int file, bool whole);

#endif
