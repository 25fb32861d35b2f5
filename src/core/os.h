/* What differs between operating systems, in os_posix.c and os_windows.c. All other code is C11, pthreads, and the POSIX
 * calls that mingw-w64 has, too (read, write, close, fstat, clock_gettime). Paths and environment values are UTF-8 on
 * Windows. Functions on files, folders and locks leave the reason of a failure in errno. */
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

/* Memory aligned to NH_ALIGNMENT, of which `bytes` must be a multiple; NULL if there is not enough. */
void *nh_os_allocate(size_t bytes);
void nh_os_release(void *memory);

/* How many processors there are, and how many of them this process may run on; 1 if the system does not tell. */
int32_t nh_os_cpus(void);
int32_t nh_os_usable_cpus(void);
/* Whether the process may run on fewer of them than the one that started it: it has CPUs of its own. */
bool nh_os_is_bound(void);
/* Writes the processor's name; leaves the text unchanged if the system does not tell. */
void nh_os_cpu_name(char *name, size_t bytes);

/* ---- processes ---- */

/* As pthread_atfork. Does nothing on Windows, which has no fork. */
int nh_os_at_fork(void (*before)(void), void (*parent)(void), void (*child)(void));

/* ---- environment ---- */

/* The variable's value, which may lie in `room`; NULL if it is not set. A program that runs with more rights than its user
 * (setuid, capabilities) finds no variables: that user must not choose its libraries, folders or threads. */
const char *nh_os_environment(const char *variable, char room[NH_PATH_BYTES]);
/* Writes the path of this user's folder for caches of nhood, "" if it is not known. Returns the length, as snprintf does. */
int nh_os_cache_folder(char path[NH_PATH_BYTES]);
/* Why it is not known, as a part of a sentence. */
const char *nh_os_no_cache_folder(void);
/* The path of this user's home folder, which may lie in `room`; NULL if it is not known. */
const char *nh_os_home(char room[NH_PATH_BYTES]);

/* ---- shared libraries ---- */

/* Loads a library. A name without a folder is searched for where the system keeps libraries. NULL if it cannot be loaded. */
void *nh_os_library_open(const char *path);
/* The same for a library that the process has loaded already; NULL if it has not. */
void *nh_os_library_loaded(const char *path);
/* The symbol's address. Copy the bytes of this object pointer to a function pointer, since ISO C forbids the cast. */
void *nh_os_library_symbol(void *library, const char *name);
void nh_os_library_close(void *library);
/* Why this thread's last call of these functions failed; NULL if that is not known. */
const char *nh_os_library_error(void);
/* Writes the path, with slashes, of the library that holds the address. */
bool nh_os_library_path(const void *address, char *path, size_t bytes);

/* ---- files ---- */

enum { NH_NO_FOLDER = -1 };

enum nh_open_mode {
    NH_OPEN_READ,     /* follows links; does not block if the file is a pipe */
    NH_OPEN_READ_OWN, /* the same without following links */
    NH_OPEN_NEW,      /* to write; fails if it exists */
    NH_OPEN_NEW_OWN   /* the same with access for this user only */
};

/* Opens a file by its name in an open folder or, with NH_NO_FOLDER, by its path. Returns a file descriptor or -1. Programs
 * that the process starts do not inherit it. */
int nh_os_open(int folder, const char *name, enum nh_open_mode mode);
/* Reads at an offset, as pread does, so that any number of threads may share the descriptor. */
int64_t nh_os_read_at(int file, void *data, size_t bytes, uint64_t offset);
/* Returns once everything written is on the disk. */
bool nh_os_flush(int file);
/* Sets the time of modification to now. */
bool nh_os_touch(int file);
/* Renames a file and replaces `to` atomically: others find the old file or the new one. */
bool nh_os_rename(int folder, const char *from, const char *to);
bool nh_os_remove(int folder, const char *name);

/* Creates a folder with access for this user only. True if it was created or exists. */
bool nh_os_make_folder(const char *path);
bool nh_os_is_separator(char byte);
/* Returns a descriptor or -1. */
int nh_os_open_folder(const char *path);
/* False, and the reason, if others own the folder or may write to it. */
bool nh_os_folder_is_own(int folder, char *reason, size_t bytes);

struct nh_folder_entry {
    const char *name;
    int64_t bytes, modified_ns; /* modified_ns counts from a fixed time */
};

/* Calls visit for every file of the folder. */
bool nh_os_scan_folder(int folder, void (*visit)(void *arg, const struct nh_folder_entry *entry),
                       void *arg);
int64_t nh_os_file_clock_ns(void); /* the current time on the scale of modified_ns */

/* Tries to lock a file for this process alone, and creates the file if it is missing. Returns a descriptor, or -1 with
 * errno = EWOULDBLOCK while another process has the lock. The system releases the lock when the process ends or crashes. */
int nh_os_lock(const char *name);
/* Releases the lock; does nothing for -1. */
void nh_os_unlock(int lock, const char *name);

#endif
