/* What operating systems do differently: os_posix.c and os_windows.c. All else is C11, pthreads, and the calls of POSIX that
 * mingw-w64 has, too (read, write, close, fstat, clock_gettime). Paths and values of the environment are UTF-8 on Windows.
 * What fails leaves the reason in errno. */
#ifndef NH_OS_H
#define NH_OS_H

#include "base.h"

#include <stdio.h>

enum { NH_PATH_BYTES = 4096 };

#if defined(_WIN32)
#define NH_PATH_LIST_SEPARATOR ";" /* drives have colons */
#else
#define NH_PATH_LIST_SEPARATOR ":"
#endif

/* ---- memory and processors ---- */

/* Memory of NH_ALIGNMENT, of which `bytes` is a multiple; NULL if there is none. */
void *nh_os_allocate(size_t bytes);
void nh_os_release(void *memory);

/* How many processors there are, and how many this process may run on; 1 where the system does not tell. */
int32_t nh_os_cpus(void);
int32_t nh_os_usable_cpus(void);
/* The processor's name; the text is left alone where the system does not tell. */
void nh_os_cpu_name(char *name, size_t bytes);

/* ---- processes ---- */

/* As pthread_atfork. Windows has no fork. */
int nh_os_at_fork(void (*before)(void), void (*parent)(void), void (*child)(void));

/* ---- environment ---- */

/* The variable's value, perhaps in `room`; NULL if it is not set. A program that runs with more rights than its user (setuid,
 * capabilities) finds none: it takes no libraries, folders or threads from that user. */
const char *nh_os_environment(const char *variable, char room[NH_PATH_BYTES]);
/* Writes where caches of this user belong, "" if that is not known. Returns the length, as snprintf. */
int nh_os_cache_folder(char path[NH_PATH_BYTES]);

/* ---- shared libraries ---- */

/* A name without a folder is searched for where the system keeps libraries. NULL if it cannot be loaded. */
void *nh_os_library_open(const char *path);
/* The same for a library that the process has already: NULL if it has not. */
void *nh_os_library_loaded(const char *path);
/* An object pointer, to be copied to a function's: ISO C forbids the cast. */
void *nh_os_library_symbol(void *library, const char *name);
void nh_os_library_close(void *library);
/* Why this thread's last call of these functions failed; NULL if that is not known. */
const char *nh_os_library_error(void);
/* Writes the path, with slashes, of the library that holds the address. */
bool nh_os_library_path(const void *address, char *path, size_t bytes);

/* ---- files ---- */

enum { NH_NO_FOLDER = -1 };

enum nh_open_mode {
    NH_OPEN_READ, /* follows links; does not wait for a pipe, should something have put one there */
    NH_OPEN_READ_OWN, /* the same without following links */
    NH_OPEN_NEW,      /* to write; fails if it exists */
    NH_OPEN_NEW_OWN   /* the same with rights for this user alone */
};

/* The name is that of a file in the open folder, or with NH_NO_FOLDER a path. Returns a file descriptor or -1. Processes that are
 * started do not inherit it. */
int nh_os_open(int folder, const char *name, enum nh_open_mode mode);
/* Reads at an offset, as pread: any number of threads. */
int64_t nh_os_read_at(int file, void *data, size_t bytes, uint64_t offset);
/* Returns when what was written is on the disk. */
bool nh_os_flush(int file);
/* Sets the time of modification to now. */
bool nh_os_touch(int file);
/* Replaces what is called `to`: others find the old file or the new one. */
bool nh_os_rename(int folder, const char *from, const char *to);
bool nh_os_remove(int folder, const char *name);

/* True if the folder exists or was made, with rights for this user alone. */
bool nh_os_make_folder(const char *path);
bool nh_os_is_separator(char byte);
/* Returns a descriptor or -1. */
int nh_os_open_folder(const char *path);
/* False, and the reason, if others own the folder or may write to it. */
bool nh_os_folder_is_own(int folder, char *reason, size_t bytes);

struct nh_folder_entry {
    const char *name;
    int64_t bytes, modified_ns; /* since a fixed time */
};

/* Calls visit for every file of the folder. */
bool nh_os_scan_folder(int folder, void (*visit)(void *arg, const struct nh_folder_entry *entry),
                       void *arg);
int64_t nh_os_file_clock_ns(void); /* now, as modified_ns counts */

/* Tries to lock a file, which is made where it is missing, for this process alone. Returns a descriptor, or -1: errno is EWOULDBLOCK
 * while others have the lock. It ends with the process, however that ends. */
int nh_os_lock(const char *name);
/* Ends it. -1 is fine. */
void nh_os_unlock(int lock, const char *name);

#endif
