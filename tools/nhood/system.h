/* What the tool asks of the operating system beyond C and the calls that POSIX and mingw-w64 share. */
#ifndef SYSTEM_H
#define SYSTEM_H

#include <stddef.h>
#include <stdint.h>

/* Memory for system_free; bytes are a multiple of the alignment. NULL if there is none. */
void *system_allocate(size_t alignment, size_t bytes);
void system_free(void *memory);

int64_t system_cpus(void);

/* The CUDA driver's file, and libraries and their symbols: NULL if they are not there. */
extern const char system_cuda_driver[];
void *system_library(const char *name);
void *system_symbol(void *library, const char *name);

#endif
