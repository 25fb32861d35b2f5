/* How many threads a process should compute on by default. */
#ifndef NH_CPU_SHARE_H
#define NH_CPU_SHARE_H

#include "base.h"

enum { NH_ORIGIN_BYTES = 160 };

/* The CPUs that the quota of the process's cgroup and of those above it allows, version 1 or 2; 0: any number. root: where /proc
 * and /sys are, "" but in tests. */
double nh_cgroup_cpus(const char *root);

/* The least of the CPUs that the process may run on, its cgroup's quota and OMP_NUM_THREADS; processes that torchrun has started
 * (LOCAL_WORLD_SIZE) share the CPUs unless each is bound to its own. Writes in words where the number comes from. */
int32_t nh_default_threads(char origin[NH_ORIGIN_BYTES]);

#endif
