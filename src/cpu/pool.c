/* The thread that calls nh_pool_run publishes a job and takes part in it. An atomic counter hands out indices in runs that
 * become shorter, so a slow core takes fewer. A thread without work spins for a while before it sleeps on a condition
 * variable, because a backward pass publishes two jobs a round, and waking a thread takes as long as a short job. */
#include "pool.h"

#include "interruption.h"
#include "thread.h"

#include <sched.h>
#include <stdatomic.h>
#include <string.h>

struct nh_pool {
    const struct nh_host *host;
    pthread_mutex_t owner; /* held by the thread whose job runs */
    pthread_mutex_t lock;  /* held to go to sleep, and to change what others may wait for */
    pthread_cond_t start, done;
    atomic_uint_fast64_t job; /* number of the current job, set after the fields of the job below */
    atomic_int busy;          /* workers that have not finished it */
    atomic_bool stop;
    atomic_int limit; /* of threads for a job; 0: none */
    int32_t most;     /* threads of the job */
    int64_t count;
    nhood_parallel_body body;
    void *arg;
    struct nh_interruption *call; /* that the job belongs to */
    atomic_llong next;
    unsigned forks;  /* nh_fork_count() when the workers were started */
    int32_t workers; /* does not include the caller */
    struct worker {
        struct nh_pool *pool;
        pthread_t thread;
        int32_t index;
        uint64_t seen; /* number of the last job that the worker took part in */
    } worker[];
};

/* A thread takes a run of indices, a quarter of its share of those left, because neighboring tiles read the same memory and
 * each prefetches for the next. Returns the first index of the run; `count` or more if none is left. */
static int64_t take_run(struct nh_pool *pool, int64_t *end) {
    long long first = atomic_load(&pool->next);
    do
        *end = first + nh_max((pool->count - first) / (4 * pool->most), 1);
    while (first < pool->count && !atomic_compare_exchange_weak(&pool->next, &first, *end));
    return first;
}

static void take_part(struct nh_pool *pool, int32_t worker) {
    int64_t end;
    for (int64_t index; (index = take_run(pool, &end)) < pool->count;)
        for (; index < end; index++) {
            if (nh_interrupted(pool->call)) {
                atomic_store(&pool->next, pool->count);
                return;
            }
            pool->body(pool->arg, index, worker);
        }
}

/* How often a thread checks for work before it sleeps. This takes 20 to 50 us, about as long as waking a thread. It yields the
 * core between checks. */
enum { LOOKS = 100 };

static bool has_news(const void *arg) {
    const struct worker *self = arg;
    return atomic_load(&self->pool->job) != self->seen || atomic_load(&self->pool->stop);
}

static bool is_done(const void *arg) {
    const struct nh_pool *pool = arg;
    return !atomic_load(&pool->busy);
}

/* Waits until over(arg) is true. The thread that makes it true signals `told`. */
static void await(struct nh_pool *pool, pthread_cond_t *told, bool (*over)(const void *arg),
                  const void *arg) {
    for (int look = 0; look < LOOKS; look++) {
        if (over(arg)) return;
        sched_yield();
    }
    pthread_mutex_lock(&pool->lock);
    while (!over(arg))
        pthread_cond_wait(told, &pool->lock);
    pthread_mutex_unlock(&pool->lock);
}

static void *worker_main(void *argument) {
    struct worker *self = argument;
    struct nh_pool *pool = self->pool;
    for (;;) {
        await(pool, &pool->start, has_news, self);
        if (atomic_load(&pool->stop)) return NULL;
        self->seen = atomic_load(&pool->job);
        if (self->index < pool->most) take_part(pool, self->index);
        if (atomic_fetch_sub(&pool->busy, 1) > 1) continue;
        pthread_mutex_lock(&pool->lock); /* the caller has not yet read busy, or sleeps */
        pthread_cond_signal(&pool->done);
        pthread_mutex_unlock(&pool->lock);
    }
}

/* Starts the workers, or as many as the system allows. */
static void start_workers(struct nh_pool *pool, int32_t wanted) {
    while (pool->workers < wanted) {
        struct worker *worker = &pool->worker[pool->workers];
        worker->pool = pool;
        worker->index = pool->workers + 1; /* the caller is worker 0 */
        int error = nh_thread_create(&worker->thread, worker_main, worker);
        if (error) {
            nh_log(pool->host, NHOOD_LOG_WARNING,
                   "CPU thread %d of %d could not be started (%s): the context does with %d",
                   (int)pool->workers + 2, (int)wanted + 1, strerror(error),
                   (int)pool->workers + 1);
            return;
        }
        pool->workers++;
    }
}

nhood_status nh_pool_create(const struct nh_host *host, int32_t threads, struct nh_pool **created) {
    *created = NULL;
    size_t workers = (size_t)threads - 1;
    nhood_status status = nh_fork_watch();
    if (status) return status;
    struct nh_pool *pool = nh_allocate(host, sizeof *pool + workers * sizeof pool->worker[0]);
    if (!pool) return NHOOD_ERR_MEMORY;
    pool->host = host;
    pool->forks = nh_fork_count();
    pthread_mutex_init(&pool->owner, NULL);
    pthread_mutex_init(&pool->lock, NULL);
    pthread_cond_init(&pool->start, NULL);
    pthread_cond_init(&pool->done, NULL);
    start_workers(pool, threads - 1);
    *created = pool;
    return NHOOD_OK;
}

int32_t nh_pool_threads(const struct nh_pool *pool) {
    return pool->workers + 1;
}

void nh_pool_limit(struct nh_pool *pool, int32_t threads) {
    atomic_store(&pool->limit, threads);
}

void nh_pool_destroy(struct nh_pool *pool) {
    if (!pool) return;
    if (nh_fork_count() == pool->forks) {
        pthread_mutex_lock(&pool->lock);
        atomic_store(&pool->stop, true);
        pthread_cond_broadcast(&pool->start);
        pthread_mutex_unlock(&pool->lock);
        for (int32_t i = 0; i < pool->workers; i++)
            pthread_join(pool->worker[i].thread, NULL);
        pthread_cond_destroy(&pool->start);
        pthread_cond_destroy(&pool->done);
        pthread_mutex_destroy(&pool->lock);
        pthread_mutex_destroy(&pool->owner);
    }
    nh_release(pool->host, pool);
}

void nh_run_alone(int64_t count, nhood_parallel_body body, void *arg) {
    struct nh_interruption *call = nh_interruption_current();
    for (int64_t index = 0; index < count && !nh_interrupted(call); index++)
        body(arg, index, 0);
}

void nh_pool_run(struct nh_pool *pool, int64_t count, nhood_parallel_body body, void *arg) {
    const int32_t limit = atomic_load(&pool->limit);
    const int32_t most = limit && limit <= pool->workers ? limit : pool->workers + 1;
    if (most == 1 || count <= 1 || nh_fork_count() != pool->forks ||
        pthread_mutex_trylock(&pool->owner)) {
        nh_run_alone(count, body, arg);
        return;
    }
    pool->count = count;
    pool->most = most;
    pool->body = body;
    pool->arg = arg;
    pool->call = nh_interruption_current();
    atomic_store(&pool->next, 0);
    atomic_store(&pool->busy, pool->workers);
    pthread_mutex_lock(&pool->lock);
    atomic_fetch_add(&pool->job, 1);
    pthread_cond_broadcast(&pool->start);
    pthread_mutex_unlock(&pool->lock);
    take_part(pool, 0);
    await(pool, &pool->done, is_done, pool);
    pthread_mutex_unlock(&pool->owner);
}
