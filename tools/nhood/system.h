/* Functions of the operating system beyond C and the calls that POSIX and mingw-w64 share. */
#ifndef SYSTEM_H
#define SYSTEM_H

#include <stddef.h>
#include <stdint.h>

/* Memory, to be released with system_free. `bytes` must be a multiple of the alignment. NULL if there is not enough. */
void *system_allocate(size_t alignment, size_t bytes);
void system_free(void *memory);

int64_t system_cpus(void);

/* The file name of the CUDA driver, and libraries and their symbols, which are NULL if they do not exist. */
extern const char system_cuda_driver[];
void *system_library(const char *name);
void *system_symbol(void *library, const char *name);

#endif
