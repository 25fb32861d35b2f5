/* Included ahead of every source when a wheel is built (scripts/wheel): the library then runs with glibc 2.28,
 * the oldest that the tag manylinux_2_28 admits, whatever newer glibc it was built with. auditwheel checks the
 * outcome and names a function that needs a line here.
 *
 * glibc 2.29 gave the functions of libm below versions that no longer set errno the old way, 2.34 moved those of
 * libdl and libpthread into libc. Each is bound to its first version, which all later ones still have. */
#ifndef NHOOD_GLIBC_2_28_H
#define NHOOD_GLIBC_2_28_H

#if defined(__x86_64__)
#define FIRST_VERSION "GLIBC_2.2.5"
#elif defined(__aarch64__)
#define FIRST_VERSION "GLIBC_2.17"
#else
#error "the versions of this machine's glibc are not known here"
#endif
#define USE_FIRST(name) __asm__(".symver " #name "," #name "@" FIRST_VERSION)

USE_FIRST(exp); /* 2.29 */
USE_FIRST(log);
USE_FIRST(log2);
USE_FIRST(pow);
USE_FIRST(hypot);  /* 2.35 */
USE_FIRST(dladdr); /* 2.34 */
USE_FIRST(dlclose);
USE_FIRST(dlerror);
USE_FIRST(dlopen);
USE_FIRST(dlsym);
USE_FIRST(pthread_create);
USE_FIRST(pthread_detach);
USE_FIRST(pthread_getspecific);
USE_FIRST(pthread_join);
USE_FIRST(pthread_key_create);
USE_FIRST(pthread_key_delete);
USE_FIRST(pthread_mutex_trylock);
USE_FIRST(pthread_once);
USE_FIRST(pthread_setspecific);
USE_FIRST(pthread_sigmask);

/* These were no symbols before glibc 2.33. On 64-bit machines the kernel fills the same struct stat. */
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

static inline int fstat_by_kernel(int file, struct stat *facts) {
    return (int)syscall(SYS_fstat, file, facts);
}

static inline int fstatat_by_kernel(int folder, const char *name, struct stat *facts, int flags) {
    return (int)syscall(SYS_newfstatat, folder, name, facts, flags);
}

#define stat(name, facts)                                                                          \
    fstatat_by_kernel(AT_FDCWD, name, facts, 0) /* not the struct of that name */
#define fstat(file, facts) fstat_by_kernel(file, facts)
#define fstatat(folder, name, facts, flags) fstatat_by_kernel(folder, name, facts, flags)

#endif
