/* A program with more rights than its user takes nothing from the environment: a copy of this one that belongs to root and is
 * setuid, run by another user. */
#include "case.h"

#include <fcntl.h>
#include <stdbool.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SKIPPED = 77, NOBODY = 65534, THREADS = 7 };
enum { NOT_SECURE = 10, TAKES_THREADS = 1, TAKES_CACHE = 2 };

/* What a context takes from the environment. */
static int taken(void) {
    nhood_context *context = NULL;
    nhood_device_info info = {.struct_size = sizeof info};
    if (nhood_context_create(NULL, &context)) return 20;
    nhood_device_query(context, 0, &info);
    int found = info.workers == THREADS ? TAKES_THREADS : 0;
    if (nhood_wisdom_load(context, NULL, NULL) != NHOOD_ERR_CACHE_MISS ||
        !strstr(nhood_last_error(), "the context has no cache folder"))
        found |= TAKES_CACHE;
    nhood_context_destroy(context);
    return found;
}

static bool copy(const char *from, const char *to) {
    char block[65536];
    ssize_t count = 0;
    int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_EXCL, 0755);
    while (in >= 0 && out >= 0 && (count = read(in, block, sizeof block)) > 0)
        if (write(out, block, (size_t)count) != count) count = -1;
    if (in >= 0) close(in);
    if (out >= 0) close(out);
    return in >= 0 && out >= 0 && count == 0;
}

/* Exit status of the copy, run as a user without rights. */
static int run(const char *program) {
    pid_t child = fork();
    if (child == 0) {
        if (setgid(NOBODY) || setuid(NOBODY)) _exit(30);
        execl(program, program, "child", (char *)NULL);
        _exit(31);
    }
    int status = 0;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 32;
}

int main(int argc, char **argv) {
    (void)argv;
    if (argc > 1) return getauxval(AT_SECURE) ? taken() : NOT_SECURE;
    char folder[] = "/tmp/nhood-secure-XXXXXX", program[64];
    setenv("NHOOD_THREADS", "7", 1);
    setenv("NHOOD_CACHE", "/tmp/nhood-of-the-user", 1);
    setenv("XDG_CACHE_HOME", "/tmp", 1);
    CHECK(taken() == (TAKES_THREADS | TAKES_CACHE), "an ordinary program takes both: %d", taken());
    rmdir(getenv("NHOOD_CACHE"));
    if (geteuid() != 0) {
        printf("skipped: only root can make a setuid copy\n");
        return test_failed ? EXIT_FAILURE : SKIPPED;
    }
    if (!mkdtemp(folder) || chmod(folder, 0755)) exit(EXIT_FAILURE);
    snprintf(program, sizeof program, "%s/program", folder);
    int status = 40;
    if (copy("/proc/self/exe", program) && !chmod(program, 04755)) status = run(program);
    unlink(program);
    rmdir(folder);
    if (status == NOT_SECURE || status >= 30) {
        printf("skipped: a setuid copy does not run here (%d)\n", status);
        return test_failed ? EXIT_FAILURE : SKIPPED;
    }
    CHECK(status == 0, "a setuid program takes from its user's environment: %s%s%s",
          status & TAKES_THREADS ? "NHOOD_THREADS " : "", status & TAKES_CACHE ? "NHOOD_CACHE" : "",
          status >= 20 ? "?" : "");
    return test_result();
}
