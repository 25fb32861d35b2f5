/* Wisdom: what was measured, every candidate of every problem, for any number of devices.
 *
 * As text, one record a line after a header line:
 *     <device> <problem text> <solver> <config, - for none> <median ns> <samples>
 * The device is its description with '_' for blanks, so records of several machines live in one file. Records
 * of devices, solvers and configs that this library does not know are kept, so that saving loses nothing, and
 * never used. Of two records of one candidate that with more samples stays, at equal samples the faster: the
 * outcome of a merge does not depend on its order. */
#ifndef NH_WISDOM_H
#define NH_WISDOM_H

#include "solver.h"

/* Has a lock of its own: any thread may use it. */
struct nh_wisdom;

/* The longest fields, with the terminating zero. */
enum { NH_WISDOM_DEVICE_BYTES = 160, NH_WISDOM_PROBLEM_BYTES = 512, NH_WISDOM_SOLVER_BYTES = 64 };

/* The subject of a record: a problem on a device. Strides are no part of it. */
struct nh_wisdom_key {
    char device[NH_WISDOM_DEVICE_BYTES], problem[NH_WISDOM_PROBLEM_BYTES];
};

struct nh_wisdom_record {
    const char *device, *problem, *solver;
    const char *config; /* "" for none */
    int64_t median_ns, samples;
};

nhood_status nh_wisdom_create(const struct nh_host *host, struct nh_wisdom **wisdom);
void nh_wisdom_destroy(struct nh_wisdom *wisdom); /* NULL is fine */

/* problem NULL: only the device is set. */
void nh_wisdom_key(const struct nh_device *device, const struct nh_problem *problem,
                   struct nh_wisdom_key *key);

/* A cheap question, as most contexts have none. */
bool nh_wisdom_has_any(struct nh_wisdom *wisdom);

/* A number that differs after every change. */
uint64_t nh_wisdom_version(struct nh_wisdom *wisdom);

/* Copies the record, or merges it into the one it has of this candidate. MEMORY. */
nhood_status nh_wisdom_add(struct nh_wisdom *wisdom, const struct nh_wisdom_record *record);

/* Adds all records of the other. MEMORY. */
nhood_status nh_wisdom_merge(struct nh_wisdom *wisdom, struct nh_wisdom *other);

/* Visits every record of the key, in any order. `visit` must not call back into wisdom. */
void nh_wisdom_visit(struct nh_wisdom *wisdom, const struct nh_wisdom_key *key,
                     void (*visit)(void *user, const struct nh_wisdom_record *record), void *user);

/* Returns false and leaves the outputs as they were if the candidate is not known. */
bool nh_wisdom_look_up(struct nh_wisdom *wisdom, const struct nh_wisdom_key *key,
                       const char *solver, const char *config, int64_t *median_ns,
                       int64_t *samples);

/* Drops the records of a device and a problem, NULL: of every one; returns how many. */
int64_t nh_wisdom_forget(struct nh_wisdom *wisdom, const char *device, const char *problem);

/* Writes all records as sorted text, which the caller releases with nh_release. MEMORY. */
nhood_status nh_wisdom_text(struct nh_wisdom *wisdom, char **text, size_t *length);

/* Adds every line that is well formed; each other one is logged with the reason, after `origin`.
 * ARGUMENT if the header line is missing or of another format, MEMORY. */
nhood_status nh_wisdom_read(struct nh_wisdom *wisdom, const char *text, const char *origin,
                            int64_t *accepted);

/* Reads a file. CACHE_MISS if there is none; ARGUMENT if it is not wisdom or cannot be read; MEMORY. */
nhood_status nh_wisdom_load(struct nh_wisdom *wisdom, const char *path, int64_t *accepted);

/* Replaces the file by a merge of its records (but not if `replace`) and these. The new file is complete before
 * it takes the old one's name: readers see one or the other. Writers take turns, by a lock on <path>.lock that lasts no
 * longer than they do; where files cannot be locked (a warning), of writers at the same time the last one wins.
 * ARGUMENT if the file there is not wisdom or cannot be written; MEMORY. */
nhood_status nh_wisdom_save(struct nh_wisdom *wisdom, const char *path, bool replace);

#endif
