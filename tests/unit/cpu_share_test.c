/* The quota of CPUs that a cgroup has, from folders as Linux shows them, and the default number of threads. */
#include "cpu_share.h"
#include "os.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[256];

static void put(const char *name, const char *text) {
    char path[512];
    snprintf(path, sizeof path, "%s/%s", root, name);
    for (char *slash = path + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
        *slash = '\0';
        mkdir(path, 0700);
        *slash = '/';
    }
    FILE *file = fopen(path, "w");
    CHECK(file && fputs(text, file) >= 0 && !fclose(file), "%s", path);
}

static void expect(double cpus, const char *what) {
    const double got = nh_cgroup_cpus(root);
    CHECK(got == cpus, "%s: %g, expected %g", what, got, cpus);
    char command[300];
    snprintf(command, sizeof command, "rm -rf %s/*", root);
    CHECK(!system(command), "%s", command);
}

static void quotas(void) {
    expect(0, "nothing");
    put("proc/self/cgroup", "0::/\n");
    expect(0, "no group");
    put("proc/self/cgroup", "0::/user.slice/job.scope\n");
    put("sys/fs/cgroup/user.slice/job.scope/cpu.max", "max 100000\n");
    expect(0, "version 2 without a quota");
    put("proc/self/cgroup", "0::/user.slice/job.scope\n");
    put("sys/fs/cgroup/user.slice/job.scope/cpu.max", "250000 100000\n");
    expect(2.5, "version 2");
    put("proc/self/cgroup", "0::/a/b/c\n");
    put("sys/fs/cgroup/a/b/c/cpu.max", "max 100000\n");
    put("sys/fs/cgroup/a/b/cpu.max", "300000 100000\n");
    put("sys/fs/cgroup/a/cpu.max", "800000 100000\n");
    expect(3, "version 2, in the middle of nested groups");
    put("proc/self/cgroup", "0::/a\n");
    put("sys/fs/cgroup/a/cpu.max", "400000 100000\n");
    put("sys/fs/cgroup/cpu.max", "150000 100000\n");
    expect(1.5, "version 2, a container's root");
    put("proc/self/cgroup", "0::/not/visible/here\n");
    put("sys/fs/cgroup/cpu.max", "50000 100000\n");
    expect(0.5, "version 2, a path of the host");
    put("proc/self/cgroup", "12:memory:/m\n4:cpu,cpuacct:/docker/x\n1:name=systemd:/y\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_quota_us", "200000\n");
    put("sys/fs/cgroup/cpu,cpuacct/docker/x/cpu.cfs_period_us", "50000\n");
    expect(4, "version 1");
    put("proc/self/cgroup", "4:cpuacct,cpu:/docker/x\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
    put("sys/fs/cgroup/cpuacct,cpu/docker/x/cpu.cfs_quota_us", "-1\n");
    put("sys/fs/cgroup/cpuacct,cpu/docker/x/cpu.cfs_period_us", "100000\n");
    expect(1, "version 1, above the group, by another name");
    put("proc/self/cgroup", "7:cpuset:/x\n");
    put("sys/fs/cgroup/cpuset/x/cpu.cfs_quota_us", "100000\n");
    put("sys/fs/cgroup/cpuset/x/cpu.cfs_period_us", "100000\n");
    expect(0, "another controller");
    put("proc/self/cgroup", "garbage\n::\n0:\n");
    put("sys/fs/cgroup/cpu.max", "what\n");
    expect(0, "garbage");
}

static void defaults(void) {
    char origin[NH_ORIGIN_BYTES];
    unsetenv("OMP_NUM_THREADS");
    unsetenv("LOCAL_WORLD_SIZE");
    const int32_t all = nh_default_threads(origin);
    CHECK(all >= 1 && all <= nh_os_usable_cpus() && *origin, "%d threads: %s", (int)all, origin);
    setenv("OMP_NUM_THREADS", "100000", 1);
    CHECK(nh_default_threads(origin) == all && !strstr(origin, "OMP"), "more: %s", origin);
    setenv("OMP_NUM_THREADS", "many", 1);
    CHECK(nh_default_threads(origin) == all, "no number: %s", origin);
    setenv("OMP_NUM_THREADS", "1,4", 1);
    CHECK(nh_default_threads(origin) == 1 && (all == 1 || !strcmp(origin, "OMP_NUM_THREADS")),
          "1: %s", origin);
    unsetenv("OMP_NUM_THREADS");
    setenv("LOCAL_WORLD_SIZE", "2", 1);
    const int32_t half = nh_default_threads(origin);
    CHECK(nh_os_is_bound() || half == (all > 1 ? all / 2 : 1), "%d of %d: %s", (int)half, (int)all,
          origin);
    setenv("LOCAL_WORLD_SIZE", "100000", 1);
    CHECK(nh_os_is_bound() || nh_default_threads(origin) == 1, "at least one: %s", origin);
}

int main(void) {
    snprintf(root, sizeof root, "/tmp/nhood-cgroup-XXXXXX");
    CHECK(mkdtemp(root), "no folder");
    quotas();
    defaults();
    rmdir(root);
    return test_result();
}
