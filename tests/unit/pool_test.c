/* The thread pool: every index once, workers never shared, competing callers, loops in loops, use after fork. */
#include "pool.h"
#include "test.h"

#include <pthread.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

enum { COUNT = 1000, THREADS = 4 };

struct job {
    atomic_int seen[COUNT];
    atomic_int busy[THREADS];
    atomic_int clashes;
};

static void body(void *arg, int64_t index, int32_t worker) {
    struct job *job = arg;
    if (atomic_fetch_add(&job->busy[worker], 1)) atomic_fetch_add(&job->clashes, 1);
    atomic_fetch_add(&job->seen[index], 1);
    atomic_fetch_sub(&job->busy[worker], 1);
}

static void count_workers(void *arg, int64_t index, int32_t worker) {
    struct job *job = arg;
    (void)index;
    atomic_fetch_add(&job->busy[worker], 1);
    usleep(100);
}

static int wrong(struct nh_pool *pool, int64_t count) {
    struct job *job = calloc(1, sizeof *job);
    nh_pool_run(pool, count, body, job);
    int bad = atomic_load(&job->clashes);
    for (int64_t i = 0; i < COUNT; i++)
        bad += atomic_load(&job->seen[i]) != (i < count);
    free(job);
    return bad;
}

static void *compete(void *pool) {
    intptr_t bad = 0;
    for (int i = 0; i < 200; i++)
        bad += wrong(pool, 1 + i * 4);
    return (void *)bad;
}

/* A loop inside a loop finds the pool held, and waits for nobody. */
static void nest(void *arg, int64_t index, int32_t worker) {
    struct nh_pool *pool = arg;
    CHECK(!wrong(pool, 20), "in index %lld, by worker %d", (long long)index, (int)worker);
}

int main(void) {
    struct nh_host host = {0};
    struct nh_pool *pool = NULL;
    CHECK(!nh_pool_create(&host, THREADS, &pool), "%s", nhood_last_error());
    for (int64_t count = 0; count <= COUNT; count += 50)
        CHECK(!wrong(pool, count), "%lld indices", (long long)count);
    for (int limit = THREADS + 1; limit >= 0; limit--) { /* 0, the last, is none */
        struct job *job = calloc(1, sizeof *job);
        nh_pool_limit(pool, limit);
        nh_pool_run(pool, COUNT, count_workers, job);
        const int most = limit && limit < THREADS ? limit : THREADS;
        for (int i = 0; i < THREADS; i++)
            CHECK(i < most || !atomic_load(&job->busy[i]), "limit %d: worker %d worked", limit, i);
        CHECK(!wrong(pool, COUNT), "limit %d", limit);
        free(job);
    }
    pthread_t thread[3];
    for (int i = 0; i < 3; i++)
        pthread_create(&thread[i], NULL, compete, pool);
    for (int i = 0; i < 3; i++) {
        void *bad = NULL;
        pthread_join(thread[i], &bad);
        CHECK(!bad, "competing thread %d", i);
    }
    nh_pool_run(pool, 2, nest, pool);
    pid_t child = fork();
    if (child == 0) {
        int bad = wrong(pool, COUNT); /* a child has no workers: the caller does it all */
        nh_pool_destroy(pool);
        _exit(bad != 0);
    }
    int status = 1;
    waitpid(child, &status, 0);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "in a forked child");
    nh_pool_destroy(pool);
    nh_pool_destroy(NULL);
    return test_result();
}
