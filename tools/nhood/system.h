/* Functions of the operating system beyond C and the calls that POSIX and mingw-w64 share. */
#ifndef SYSTEM_H
#define SYSTEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Memory, to be released with system_free. `bytes` must be a multiple of the alignment. NULL if there is not enough. */
void *system_allocate(size_t alignment, size_t bytes);
void system_free(void *memory);

int64_t system_cpus(void);

/* Makes a folder, unless there is one. Leaves the reason of a failure in errno. */
bool system_make_folder(const char *path);

/* Runs a program, which is searched for in $PATH, with what it prints in a file, and waits for it. False if there is no such
 * program, if it fails, and on Windows. argument: the program's name and its arguments, up to NULL. */
bool system_run(char *const argument[], const char *output);

/* Ends the program as a signal does by default. It may be called in the signal's handler. */
void system_end_by_signal(int number);

/* The width of the terminal that stderr is, now; 80 if it does not say. */
int system_columns(void);

/* The file name of the CUDA driver, and libraries and their symbols, which are NULL if they do not exist. */
extern const char system_cuda_driver[];
void *system_library(const char *name);
void *system_symbol(void *library, const char *name);

#endif
