#include "os.h"

#include "thread.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/auxv.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- memory and processors ---- */

void *nh_os_allocate(size_t bytes) {
    return aligned_alloc(NH_ALIGNMENT, bytes);
}

void nh_os_release(void *memory) {
    free(memory);
}

int32_t nh_os_cpus(void) {
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int32_t)online : 1;
}

int32_t nh_os_usable_cpus(void) {
    cpu_set_t set;
    return sched_getaffinity(0, sizeof set, &set) ? 1 : CPU_COUNT(&set);
}

bool nh_os_is_bound(void) {
    cpu_set_t set;
    return !sched_getaffinity(getppid(), sizeof set, &set) && CPU_COUNT(&set) > nh_os_usable_cpus();
}

void nh_os_cpu_name(char *name, size_t bytes) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return;
    char line[256];
    while (fgets(line, sizeof line, file)) {
        char *colon = strchr(line, ':');
        if (!colon || strncmp(line, "model name", 10) != 0) continue;
        colon[strcspn(colon, "\n")] = '\0';
        snprintf(name, bytes, "%.80s", colon + 2);
        break;
    }
    fclose(file);
}

/* ---- threads and processes ---- */

int nh_thread_create(pthread_t *thread, void *(*body)(void *argument), void *argument) {
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t blocked, before;
    sigfillset(&blocked);
    for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
        sigdelset(&blocked, faults[i]);
    /* A thread starts with the mask of the one that creates it. */
    pthread_sigmask(SIG_SETMASK, &blocked, &before);
    int error = pthread_create(thread, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error;
}

int nh_os_at_fork(void (*before)(void), void (*parent)(void), void (*child)(void)) {
    return pthread_atfork(before, parent, child);
}

/* ---- environment ---- */

const char *nh_os_environment(const char *variable, char room[NH_PATH_BYTES]) {
    (void)room;
    return getauxval(AT_SECURE) ? NULL : getenv(variable);
}

int nh_os_cache_folder(char path[NH_PATH_BYTES]) {
    const char *base = nh_os_environment("XDG_CACHE_HOME", NULL);
    if (base && *base == '/') return snprintf(path, NH_PATH_BYTES, "%s/nhood", base);
    const char *home = nh_os_home(NULL);
    if (home) return snprintf(path, NH_PATH_BYTES, "%s/.cache/nhood", home);
    *path = '\0';
    return 0;
}

const char *nh_os_no_cache_folder(void) {
    return "neither XDG_CACHE_HOME nor HOME is an absolute path";
}

const char *nh_os_home(char room[NH_PATH_BYTES]) {
    const char *home = nh_os_environment("HOME", room);
    return home && *home == '/' ? home : NULL;
}

/* ---- shared libraries ---- */

void *nh_os_library_open(const char *path) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL);
}

void *nh_os_library_loaded(const char *path) {
    return dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
}

void *nh_os_library_symbol(void *library, const char *name) {
    return dlsym(library, name);
}

void nh_os_library_close(void *library) {
    dlclose(library);
}

const char *nh_os_library_error(void) {
    return dlerror();
}

bool nh_os_library_path(const void *address, char *path, size_t bytes) {
    Dl_info info;
    if (!dladdr(address, &info) || !info.dli_fname) return false;
    snprintf(path, bytes, "%s", info.dli_fname);
    return true;
}

/* ---- files ---- */

static int descriptor(int folder) {
    return folder == NH_NO_FOLDER ? AT_FDCWD : folder;
}

int nh_os_open(int folder, const char *name, enum nh_open_mode mode) {
    static const int flags[] = {[NH_OPEN_READ] = O_RDONLY | O_CLOEXEC | O_NONBLOCK,
                                [NH_OPEN_READ_OWN] = O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                                [NH_OPEN_NEW] = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC,
                                [NH_OPEN_NEW_OWN] =
                                    O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW};
    return openat(descriptor(folder), name, flags[mode], mode == NH_OPEN_NEW ? 0666 : 0600);
}

int64_t nh_os_read_at(int file, void *data, size_t bytes, uint64_t offset) {
    return pread(file, data, bytes, (off_t)offset);
}

bool nh_os_flush(int file) {
    return fsync(file) == 0;
}

bool nh_os_touch(int file) {
    return futimens(file, NULL) == 0;
}

bool nh_os_rename(int folder, const char *from, const char *to) {
    return renameat(descriptor(folder), from, descriptor(folder), to) == 0;
}

bool nh_os_remove(int folder, const char *name) {
    return unlinkat(descriptor(folder), name, 0) == 0;
}

/* ---- folders ---- */

bool nh_os_make_folder(const char *path) {
    return !mkdir(path, 0700) || errno == EEXIST || !access(path, X_OK);
}

bool nh_os_is_separator(char byte) {
    return byte == '/';
}

int nh_os_open_folder(const char *path) {
    return open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
}

bool nh_os_folder_is_own(int folder, char *reason, size_t bytes) {
    struct stat facts;
    if (fstat(folder, &facts)) {
        snprintf(reason, bytes, "%s", strerror(errno));
        return false;
    }
    if (facts.st_uid == geteuid() && !(facts.st_mode & (S_IWGRP | S_IWOTH))) return true;
    snprintf(reason, bytes,
             "owner %ld, mode %03o; it must be of user %ld and writable by no one else",
             (long)facts.st_uid, (unsigned)facts.st_mode & 0777u, (long)geteuid());
    return false;
}

static int64_t nanoseconds(struct timespec time) {
    return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

int64_t nh_os_file_clock_ns(void) {
    return (int64_t)time(NULL) * 1000000000;
}

bool nh_os_scan_folder(int folder, void (*visit)(void *arg, const struct nh_folder_entry *entry),
                       void *arg) {
    /* A descriptor of its own, because all threads would share the read position of `folder`. */
    int opened = openat(folder, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = opened < 0 ? NULL : fdopendir(opened);
    if (!entries) {
        if (opened >= 0) close(opened);
        return false;
    }
    for (struct dirent *entry; (entry = readdir(entries));) {
        struct stat facts;
        if (fstatat(folder, entry->d_name, &facts, AT_SYMLINK_NOFOLLOW)) continue;
        visit(arg,
              &(struct nh_folder_entry){entry->d_name, facts.st_size, nanoseconds(facts.st_mtim)});
    }
    closedir(entries);
    return true;
}

/* ---- locks ---- */

/* Whether the name still refers to the open file. It does not if the previous holder of the lock has removed the file. */
static bool is_current(int file, const char *name) {
    struct stat opened, named;
    return !fstat(file, &opened) && !stat(name, &named) && opened.st_dev == named.st_dev &&
           opened.st_ino == named.st_ino;
}

int nh_os_lock(const char *name) {
    for (;;) {
        int file = open(name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        if (file < 0) return -1;
        int error = flock(file, LOCK_EX | LOCK_NB) ? errno : 0;
        if (!error && is_current(file, name)) return file;
        close(file);
        errno = error;
        if (error) return -1;
    }
}

/* The name is removed before the lock is released: a process that has opened the file and then gets the lock sees that the
 * name is gone, and creates another file. */
void nh_os_unlock(int lock, const char *name) {
    if (lock < 0) return;
    unlink(name);
    close(lock);
}
