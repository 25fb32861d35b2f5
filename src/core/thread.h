/* How the library behaves in the application's process: its threads do not take signals, its calls are not cancelled
 * halfway, and a forked child can use its locks. */
#ifndef NH_THREAD_H
#define NH_THREAD_H

#include "base.h"

#include <pthread.h>

/* As pthread_create with default attributes, but with signals blocked, so that those sent to the process go to the
 * application's threads. Signals of the thread's own faults are not blocked, as the application may handle them. Returns 0
 * or the error number. Defined in os_posix.c and os_windows.c. */
int nh_thread_create(pthread_t *thread, void *(*body)(void *argument), void *argument);

/* Calls body(argument) on this thread and, at the same time, on `most` - 1 new ones, or as many of them as can be started.
 * Returns when all calls have. */
enum { NH_MOST_TEAM = 8 };
void nh_thread_team(int most, void *(*body)(void *argument), void *argument);

/* ---- cancellation ---- */

int nh_cancel_hold(void);
void nh_cancel_allow(const int *before);

/* The first line of a function that pthread_cancel must not end before it returns: a thread that ended inside would keep its
 * locks, or leave the workers of a pool with a job that lies on its stack. */
#define NH_NOT_CANCELLED                                                                           \
    __attribute__((cleanup(nh_cancel_allow), unused)) const int nh_cancel_before = nh_cancel_hold()

/* ---- fork ---- */

/* Each structure that threads share has one. A fork waits for `lock`, so that the child finds the lock free and what it
 * guards consistent. Then `child` runs in the child process and repairs what other threads left unfinished. */
struct nh_fork_guard {
    struct nh_fork_guard *next, *previous;
    pthread_mutex_t *lock;      /* NULL: none */
    void (*child)(void *owner); /* NULL: nothing to do */
    void *owner;
};

/* A fork takes the locks in the order in which guards were added, so a thread that needs two of them must take the older
 * one first. None may be held for long, nor while a guard is added or removed. MEMORY. */
nhood_status nh_fork_guard_add(struct nh_fork_guard *guard);
void nh_fork_guard_remove(struct nh_fork_guard *guard); /* does nothing for a zeroed guard */

/* Starts a lock and adds its guard, whose child has nothing to do; and ends both, also if the guard was not added. MEMORY. */
nhood_status nh_guarded_lock_start(pthread_mutex_t *lock, struct nh_fork_guard *guard);
void nh_guarded_lock_end(pthread_mutex_t *lock, struct nh_fork_guard *guard);

/* Starts to count forks; nh_fork_guard_add does so, too. MEMORY. */
nhood_status nh_fork_watch(void);

/* The number of forks between the process that loaded the library and this one. Threads that were started at another count
 * do not exist in this process. */
unsigned nh_fork_count(void);

#endif
