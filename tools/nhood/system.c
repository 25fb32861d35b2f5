#include "system.h"

#include <errno.h>
#include <stdlib.h>

enum { USUAL_COLUMNS = 80 };

#if defined(_WIN32)

#include <direct.h>
#include <malloc.h>
#include <process.h>
#include <string.h>
#include <windows.h>

void *system_allocate(size_t alignment, size_t bytes) {
    return _aligned_malloc(bytes, alignment);
}

void system_free(void *memory) {
    _aligned_free(memory);
}

int64_t system_cpus(void) {
    return (int64_t)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS);
}

bool system_make_folder(const char *path) {
    return !_mkdir(path) || errno == EEXIST;
}

bool system_run(char *const argument[], const char *output) {
    (void)argument, (void)output;
    return false;
}

void system_end_by_signal(int number) {
    _exit(128 + number);
}

int system_columns(void) {
    CONSOLE_SCREEN_BUFFER_INFO screen;
    HANDLE terminal = GetStdHandle(STD_ERROR_HANDLE);
    if (!GetConsoleScreenBufferInfo(terminal, &screen)) return USUAL_COLUMNS;
    return screen.srWindow.Right - screen.srWindow.Left + 1;
}

const char system_cuda_driver[] = "nvcuda.dll";

void *system_library(const char *name) {
    return LoadLibraryExA(name, NULL, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS);
}

void *system_symbol(void *library, const char *name) {
    FARPROC found = GetProcAddress(library, name);
    void *address;
    memcpy(&address, &found, sizeof address);
    return address;
}

#else

#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

void *system_allocate(size_t alignment, size_t bytes) {
    return aligned_alloc(alignment, bytes);
}

void system_free(void *memory) {
    free(memory);
}

int64_t system_cpus(void) {
    return sysconf(_SC_NPROCESSORS_ONLN);
}

bool system_make_folder(const char *path) {
    return !mkdir(path, 0777) || errno == EEXIST;
}

bool system_run(char *const argument[], const char *output) {
    posix_spawn_file_actions_t actions;
    pid_t child;
    int status = -1;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, output, O_WRONLY | O_CREAT | O_TRUNC,
                                     0666);
    bool started = !posix_spawnp(&child, argument[0], &actions, NULL, argument, environ);
    posix_spawn_file_actions_destroy(&actions);
    return started && waitpid(child, &status, 0) == child && status == 0;
}

/* The signal comes once its handler has returned. The first process of a container does not end by it. */
void system_end_by_signal(int number) {
    if (getpid() == 1) _exit(128 + number);
    signal(number, SIG_DFL);
    raise(number);
}

int system_columns(void) {
    struct winsize size;
    bool known = !ioctl(STDERR_FILENO, TIOCGWINSZ, &size) && size.ws_col > 0;
    return known ? size.ws_col : USUAL_COLUMNS;
}

const char system_cuda_driver[] = "libcuda.so.1";

void *system_library(const char *name) {
    return dlopen(name, RTLD_NOW | RTLD_LOCAL);
}

void *system_symbol(void *library, const char *name) {
    return dlsym(library, name);
}

#endif
