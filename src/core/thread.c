#include "thread.h"

#include "os.h"

#include <stdatomic.h>

void nh_thread_team(int most, void *(*body)(void *argument), void *argument) {
    pthread_t thread[NH_MOST_TEAM];
    int started = 0;
    while (started + 1 < most && started < NH_MOST_TEAM &&
           !nh_thread_create(&thread[started], body, argument))
        started++;
    body(argument);
    while (started)
        pthread_join(thread[--started], NULL);
}

/* ---- cancellation ---- */

int nh_cancel_hold(void) {
    int before = PTHREAD_CANCEL_ENABLE;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
    return before;
}

void nh_cancel_allow(const int *before) {
    int held;
    pthread_setcancelstate(*before, &held);
}

/* ---- fork ---- */

static struct {
    pthread_mutex_t lock; /* guards the list */
    struct nh_fork_guard *first, *last;
    atomic_uint forks;
    pthread_once_t once;
    int error; /* what pthread_atfork returned */
} guards = {.lock = PTHREAD_MUTEX_INITIALIZER, .once = PTHREAD_ONCE_INIT};

static void before_fork(void) {
    pthread_mutex_lock(&guards.lock);
    for (struct nh_fork_guard *guard = guards.first; guard; guard = guard->next)
        if (guard->lock) pthread_mutex_lock(guard->lock);
}

static void unlock_all(void) {
    for (struct nh_fork_guard *guard = guards.last; guard; guard = guard->previous)
        if (guard->lock) pthread_mutex_unlock(guard->lock);
    pthread_mutex_unlock(&guards.lock);
}

static void in_child(void) {
    atomic_fetch_add(&guards.forks, 1);
    for (struct nh_fork_guard *guard = guards.first; guard; guard = guard->next)
        if (guard->child) guard->child(guard->owner);
    unlock_all();
}

/* The C library removes the handlers when this library is unloaded. */
static void watch_forks(void) {
    guards.error = nh_os_at_fork(before_fork, unlock_all, in_child);
}

nhood_status nh_fork_watch(void) {
    pthread_once(&guards.once, watch_forks);
    if (!guards.error) return NHOOD_OK;
    return nh_error(NHOOD_ERR_MEMORY, "pthread_atfork failed: no memory for its handlers");
}

nhood_status nh_fork_guard_add(struct nh_fork_guard *guard) {
    nhood_status status = nh_fork_watch();
    if (status) return status;
    pthread_mutex_lock(&guards.lock);
    guard->next = NULL;
    guard->previous = guards.last;
    *(guards.last ? &guards.last->next : &guards.first) = guard;
    guards.last = guard;
    pthread_mutex_unlock(&guards.lock);
    return NHOOD_OK;
}

void nh_fork_guard_remove(struct nh_fork_guard *guard) {
    pthread_mutex_lock(&guards.lock);
    if (guard->previous || guard == guards.first) {
        *(guard->previous ? &guard->previous->next : &guards.first) = guard->next;
        *(guard->next ? &guard->next->previous : &guards.last) = guard->previous;
    }
    guard->next = guard->previous = NULL;
    pthread_mutex_unlock(&guards.lock);
}

nhood_status nh_guarded_lock_start(pthread_mutex_t *lock, struct nh_fork_guard *guard) {
    pthread_mutex_init(lock, NULL);
    *guard = (struct nh_fork_guard){.lock = lock};
    return nh_fork_guard_add(guard);
}

void nh_guarded_lock_end(pthread_mutex_t *lock, struct nh_fork_guard *guard) {
    nh_fork_guard_remove(guard);
    pthread_mutex_destroy(lock);
}

unsigned nh_fork_count(void) {
    return atomic_load_explicit(&guards.forks, memory_order_relaxed);
}
