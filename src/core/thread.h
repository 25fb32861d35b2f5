/* What the library owes the process it runs in: threads that leave its signals alone, calls that are not cancelled halfway,
 * and locks that a forked child can use. */
#ifndef NH_THREAD_H
#define NH_THREAD_H

#include "base.h"

#include <pthread.h>

/* As pthread_create with default attributes, but with every signal blocked, so that signals of the process go to the
 * application's threads. Signals of the thread's own faults stay open, as the application may have a handler for them.
 * Returns 0 or the error number. os_posix.c, os_windows.c */
int nh_thread_create(pthread_t *thread, void *(*body)(void *argument), void *argument);

/* ---- cancellation ---- */

int nh_cancel_hold(void);
void nh_cancel_allow(const int *before);

/* The first line of a function that pthread_cancel must not end before it returns: a thread that ended inside would keep its
 * locks, or leave the workers of a pool with a job that lies on its stack. */
#define NH_NOT_CANCELLED                                                                           \
    __attribute__((cleanup(nh_cancel_allow), unused)) const int nh_cancel_before = nh_cancel_hold()

/* ---- fork ---- */

/* Part of everything that threads share. A fork waits for `lock`, so that the child finds what it guards whole and the lock
 * free. In the child, after that, `child` repairs what another thread was doing. */
struct nh_fork_guard {
    struct nh_fork_guard *next, *previous;
    pthread_mutex_t *lock;      /* NULL: none */
    void (*child)(void *owner); /* NULL: nothing to do */
    void *owner;
};

/* Guards are locked in the order in which they were added: whoever holds two of these locks took the older one first. None may
 * be held for long, nor while guards are added or removed. MEMORY. */
nhood_status nh_fork_guard_add(struct nh_fork_guard *guard);
void nh_fork_guard_remove(struct nh_fork_guard *guard); /* fine for one of zeros */

/* Counts forks from here on; guards do that, too. MEMORY. */
nhood_status nh_fork_watch(void);

/* How many forks lie between the process that loaded the library and this one: threads that were started at another count
 * are not here. */
unsigned nh_fork_count(void);

#endif
