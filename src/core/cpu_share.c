#include "cpu_share.h"

#include "os.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static bool read_line(const char *path, char *line, int bytes) {
    FILE *file = fopen(path, "r");
    if (!file) return false;
    const bool read = fgets(line, bytes, file);
    fclose(file);
    if (read) line[strcspn(line, "\n")] = '\0';
    return read;
}

/* The CPUs of one group, by its folder; INFINITY if that says nothing. */
static double quota_of(const char *folder, bool second) {
    char path[NH_PATH_BYTES + 32], line[64];
    double quota = 0, period = 0;
    if (second) {
        snprintf(path, sizeof path, "%s/cpu.max", folder);
        if (!read_line(path, line, sizeof line) ||
            sscanf(line, "%lf %lf", &quota, &period) != 2) /* "max 100000" is no quota */
            return INFINITY;
    } else {
        snprintf(path, sizeof path, "%s/cpu.cfs_quota_us", folder);
        if (!read_line(path, line, sizeof line)) return INFINITY;
        quota = atof(line); /* -1: none */
        snprintf(path, sizeof path, "%s/cpu.cfs_period_us", folder);
        if (!read_line(path, line, sizeof line)) return INFINITY;
        period = atof(line);
    }
    return quota > 0 && period > 0 ? quota / period : INFINITY;
}

/* The least quota of a group and of all above it. A container may not see the folders of its own path, but always the last one,
 * which is the root of what it sees. */
static double least_quota(const char *mount, const char *group, bool second) {
    char folder[NH_PATH_BYTES];
    double cpus = INFINITY;
    if (snprintf(folder, sizeof folder, "%s%s", mount, group) >= (int)sizeof folder) return cpus;
    const size_t shortest = strlen(mount);
    for (;;) {
        cpus = fmin(cpus, quota_of(folder, second));
        char *slash = strrchr(folder, '/');
        if (!slash || strlen(folder) <= shortest) return cpus;
        *slash = '\0';
    }
}

/* Whether a list such as "cpu,cpuacct" has "cpu". */
static bool has_cpu(const char *controllers, size_t length) {
    for (size_t at = 0; at < length;) {
        const size_t word = strcspn(controllers + at, ",:");
        if (word == 3 && !strncmp(controllers + at, "cpu", 3)) return true;
        at += word + 1;
    }
    return false;
}

double nh_cgroup_cpus(const char *root) {
    char path[NH_PATH_BYTES], line[NH_PATH_BYTES], mount[NH_PATH_BYTES];
    double cpus = INFINITY;
    snprintf(path, sizeof path, "%s/proc/self/cgroup", root);
    FILE *file = fopen(path, "r");
    /* number:controllers:/path/of/the/group; version 2 has no controllers in its line */
    while (file && fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = '\0';
        const char *controllers = strchr(line, ':');
        const char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group) continue;
        const size_t length = (size_t)(group - controllers - 1);
        if (length && !has_cpu(controllers + 1, length)) continue;
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup%s%.*s", root, length ? "/" : "",
                 (int)length, controllers + 1);
        cpus = fmin(cpus, least_quota(mount, group + 1, !length));
        snprintf(mount, sizeof mount, "%s/sys/fs/cgroup/cpu", root);
        if (length) cpus = fmin(cpus, least_quota(mount, group + 1, false));
    }
    if (file) fclose(file);
    return isinf(cpus) ? 0 : cpus;
}

/* A variable's value, of which only the first number of a list counts; 0 if it is none. */
static int32_t number_from_environment(const char *variable) {
    char room[NH_PATH_BYTES];
    const char *text = nh_os_environment(variable, room);
    const long value = text ? strtol(text, NULL, 10) : 0;
    return value > 0 && value <= INT32_MAX ? (int32_t)value : 0;
}

int32_t nh_default_threads(char origin[NH_ORIGIN_BYTES]) {
    int32_t threads = nh_os_usable_cpus();
    const double quota = nh_cgroup_cpus("");
    const int32_t processes = number_from_environment("LOCAL_WORLD_SIZE"),
                  asked = number_from_environment("OMP_NUM_THREADS");
    snprintf(origin, NH_ORIGIN_BYTES, "the CPUs that the process may run on");
    if (quota > 0 && ceil(quota) < threads) {
        threads = (int32_t)ceil(quota);
        snprintf(origin, NH_ORIGIN_BYTES, "the cgroup's quota of %.3g CPUs", quota);
    }
    if (processes > 1 && !nh_os_is_bound()) {
        threads /= processes;
        const size_t used = strlen(origin);
        snprintf(origin + used, NH_ORIGIN_BYTES - used,
                 ", shared by the %d processes of LOCAL_WORLD_SIZE", (int)processes);
    }
    if (asked && asked < threads) {
        threads = asked;
        snprintf(origin, NH_ORIGIN_BYTES, "OMP_NUM_THREADS");
    }
    return (int32_t)nh_max(1, nh_min(threads, 1024));
}
