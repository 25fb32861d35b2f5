/* Processes that measure side by side and save into one file: nothing is lost, whoever dies meanwhile. */
#include "case.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { PROCESSES = 16, ROUNDS = 5 };

static double *released_s; /* when a holder of the lock let go, in memory that processes share */
static char folder[] = "/tmp/nhood-lock-XXXXXX", path[64], lock_path[80], last_log[512];

static void keep_log(void *user, int32_t level, const char *line) {
    (void)user;
    (void)level;
    snprintf(last_log, sizeof last_log, "%s", line);
}

static nhood_context *create(void) {
    nhood_context_options options = {
        .struct_size = sizeof options, .threads = 1, .cache = folder, .log = keep_log};
    nhood_context *context = NULL;
    if (nhood_context_create(&options, &context)) exit(EXIT_FAILURE);
    return context;
}

static double now_s(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static nhood_status plan(nhood_context *context, int number, int32_t effort) {
    nhood_problem problem;
    nhood_plan_options options = {
        .struct_size = sizeof options, .effort = effort, .budget_s = 0.002};
    nhood_plan *made = NULL;
    nhood_problem_init(&problem, NHOOD_OP_FWD, NHOOD_DTYPE_F32, 1);
    problem.axis[0].length = 10 + number;
    nhood_status status = nhood_plan_create(context, 0, &problem, &options, &made);
    nhood_plan_release(made);
    return status;
}

/* Measures problem `number`, and saves when the pipe is closed, as all others do. */
static int tune(int number, int start) {
    char byte;
    nhood_context *context = create();
    nhood_status status = plan(context, number, NHOOD_EFFORT_MEASURE);
    if (read(start, &byte, 1) != 0) return 3;
    if (!status) status = nhood_wisdom_save(context, NULL, 0);
    nhood_context_destroy(context);
    return status ? 2 : 0;
}

static int known(void) {
    nhood_context *context = create();
    int count = 0;
    for (int i = 0; i < PROCESSES; i++)
        count += !plan(context, i, NHOOD_EFFORT_WISDOM_ONLY);
    nhood_context_destroy(context);
    return count;
}

static void side_by_side(void) {
    int start[2], failed = 0;
    if (pipe(start)) exit(EXIT_FAILURE);
    for (int i = 0; i < PROCESSES; i++) {
        pid_t child = fork();
        if (child == 0) {
            close(start[1]);
            _exit(tune(i, start[0]));
        }
    }
    close(start[0]);
    usleep(100000); /* most have measured by now; the others just come later */
    close(start[1]);
    for (int i = 0, status; i < PROCESSES; i++)
        failed += wait(&status) < 0 || !WIFEXITED(status) || WEXITSTATUS(status);
    CHECK(failed == 0, "%d processes failed", failed);
    CHECK(known() == PROCESSES, "%d of %d results are there", known(), PROCESSES);
    CHECK(access(lock_path, F_OK), "%s is left", lock_path);
    unlink(path);
}

/* Takes the lock in another process, which holds it for some milliseconds, or until it is killed. */
static pid_t hold(int milliseconds) {
    int held[2];
    char byte;
    if (pipe(held)) exit(EXIT_FAILURE);
    pid_t child = fork();
    if (child == 0) {
        int file = open(lock_path, O_RDWR | O_CREAT, 0600);
        if (file < 0 || flock(file, LOCK_EX)) _exit(2);
        if (write(held[1], "1", 1) != 1) _exit(3);
        usleep((useconds_t)milliseconds * 1000);
        *released_s = now_s();
        _exit(0);
    }
    if (read(held[0], &byte, 1) != 1) exit(EXIT_FAILURE);
    close(held[0]);
    close(held[1]);
    return child;
}

static void holders(void) {
    nhood_context *context = create();
    CHECK(!plan(context, 1, NHOOD_EFFORT_MEASURE), "%s", nhood_last_error());
    pid_t child = hold(300);
    CHECK(!nhood_wisdom_save(context, NULL, 0), "%s", nhood_last_error());
    CHECK(*released_s > 0, "saved while another process held the lock");
    waitpid(child, NULL, 0);
    child = hold(60000);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    CHECK(!access(lock_path, F_OK), "the killed holder's file");
    double start = now_s();
    CHECK(!nhood_wisdom_save(context, NULL, 0), "%s", nhood_last_error());
    CHECK(now_s() - start < 10, "waited %g s for a process that is gone", now_s() - start);
    CHECK(access(lock_path, F_OK), "%s is left", lock_path);
    /* Where there can be no lock, there is a warning, and the result is saved. */
    unlink(path);
    *last_log = '\0';
    CHECK(!mkdir(lock_path, 0700), "%s", lock_path);
    CHECK(!nhood_wisdom_save(context, NULL, 0) && strstr(last_log, "saved without a lock: "), "%s",
          last_log);
    CHECK(!access(path, F_OK) && !rmdir(lock_path), "the file, and what was in the lock's place");
    nhood_context_destroy(context);
}

int main(void) {
    released_s =
        mmap(NULL, sizeof *released_s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (released_s == MAP_FAILED || !mkdtemp(folder)) exit(EXIT_FAILURE);
    snprintf(path, sizeof path, "%s/wisdom", folder);
    snprintf(lock_path, sizeof lock_path, "%s.lock", path);
    for (int round = 0; round < ROUNDS; round++)
        side_by_side();
    holders();
    unlink(path);
    CHECK(!rmdir(folder), "files are left in %s", folder);
    return test_result();
}
