/* Wisdom: the measured times of candidates, for any number of problems and devices.
 *
 * Its text has one record per line after a header line:
 *     <device> <problem text> <solver> <config, - for none> <median ns> <samples>
 * The device is its description with '_' for blanks, so one file can hold records of several machines. Records of devices,
 * solvers and configs that this library does not know are never used, but kept, so that saving loses nothing. Of two
 * records of one candidate, the one with more samples is kept or, if they are equal, the faster one; so the result of a
 * merge does not depend on its order. */
#ifndef NH_WISDOM_H
#define NH_WISDOM_H

#include "solver.h"
#include "thread.h"

/* The most bytes of each field, with the terminating zero. */
enum { NH_WISDOM_DEVICE_BYTES = 160, NH_WISDOM_PROBLEM_BYTES = 512, NH_WISDOM_SOLVER_BYTES = 64 };

/* What a record is about: a problem on a device, without strides. */
struct nh_wisdom_key {
    char device[NH_WISDOM_DEVICE_BYTES], problem[NH_WISDOM_PROBLEM_BYTES];
};

#define NH_WISDOM_HEADER "nhood-wisdom 1\n"

struct nh_wisdom_record {
    const char *device, *problem, *solver;
    const char *config; /* "" for none */
    int64_t median_ns, samples;
};

/* Any thread may use it; it has its own lock. The members are for wisdom.c and wisdom_text.c. */
struct nh_wisdom {
    const struct nh_host *host;
    pthread_mutex_t lock;
    struct nh_fork_guard guard;
    /* The first `sorted` records are in the order of their names, each candidate once; those added since follow them. The
     * texts of a record lie behind it. */
    struct nh_wisdom_record **record;
    size_t sorted, count, capacity;
    uint64_t version;
};

nhood_status nh_wisdom_create(const struct nh_host *host, struct nh_wisdom **wisdom);
void nh_wisdom_destroy(struct nh_wisdom *wisdom); /* does nothing for NULL */

/* If `problem` is NULL, key->problem is "". */
void nh_wisdom_key(const struct nh_device *device, const struct nh_problem *problem,
                   struct nh_wisdom_key *key);

/* Whether there are any records. This is cheaper than a look-up, and most contexts have none. */
bool nh_wisdom_has_any(struct nh_wisdom *wisdom);

/* Whether there are records of the problem on the device. */
bool nh_wisdom_knows(struct nh_wisdom *wisdom, const struct nh_device *device,
                     const struct nh_problem *problem);

/* A number that differs after every change. */
uint64_t nh_wisdom_version(struct nh_wisdom *wisdom);

/* Adds a copy of the record, or merges it into the known record of this candidate. MEMORY. */
nhood_status nh_wisdom_add(struct nh_wisdom *wisdom, const struct nh_wisdom_record *record);

/* Adds all records of `other`, which must be another table. MEMORY. */
nhood_status nh_wisdom_merge(struct nh_wisdom *wisdom, struct nh_wisdom *other);

/* Visits every record of the key, in any order. `visit` must not call back into wisdom. */
void nh_wisdom_visit(struct nh_wisdom *wisdom, const struct nh_wisdom_key *key,
                     void (*visit)(void *user, const struct nh_wisdom_record *record), void *user);

/* Returns false and leaves the outputs unchanged if the candidate is not known. */
bool nh_wisdom_look_up(struct nh_wisdom *wisdom, const struct nh_wisdom_key *key,
                       const char *solver, const char *config, int64_t *median_ns,
                       int64_t *samples);

/* Removes the records of a device and a problem; NULL means any. Returns how many were removed. */
int64_t nh_wisdom_forget(struct nh_wisdom *wisdom, const char *device, const char *problem);

/* Writes all records as sorted text, which the caller releases with nh_release. MEMORY. */
nhood_status nh_wisdom_text(struct nh_wisdom *wisdom, char **text, size_t *length);

/* Adds every well-formed line, and logs each other one with `origin`, its number and the reason. ARGUMENT if the header
 * line is missing or of another format, MEMORY. */
nhood_status nh_wisdom_read(struct nh_wisdom *wisdom, const char *text, const char *origin,
                            int64_t *accepted);

/* Reads a file. CACHE_MISS if there is none; ARGUMENT if it is not wisdom or cannot be read; MEMORY. */
nhood_status nh_wisdom_load(struct nh_wisdom *wisdom, const char *path, int64_t *accepted);

/* Replaces the file by these records, merged with those of the file unless `replace` is set. Readers see the whole old file
 * or the whole new one. Writers take turns by a lock on <path>.lock, which the system releases if they crash. Where files
 * cannot be locked, a warning is logged, and the last of several simultaneous writers wins. ARGUMENT if the file is not
 * wisdom or cannot be written; MEMORY. */
nhood_status nh_wisdom_save(struct nh_wisdom *wisdom, const char *path, bool replace);

#endif
