/* Windows of an axis that are not by formula (nhood_windows of nhood.h). */
#ifndef NH_WINDOW_TABLE_H
#define NH_WINDOW_TABLE_H

#include "problem.h"

/* Checks windows of an axis of `length` queries, and makes them canonical; errors name `where` and the field. ARGUMENT. */
nhood_status nh_windows_canonical(const char *where, const nhood_windows *given, int64_t length,
                                  struct nh_windows *windows);

/* Whether windows of so many queries are what a formula says, with as many keys as queries and no stride, dilation, causality or
 * period: each query attends `most` keys. */
bool nh_windows_are_formula(const struct nh_windows *windows, int64_t length);

/* Copies the tables of the axes, which belong to the caller, into one allocation, and points the axes there. *kept is what
 * nh_release gets, NULL without tables. MEMORY. */
nhood_status nh_windows_keep(const struct nh_host *host, struct nh_axis axis[NH_AXES],
                             nhood_range **kept);

/* The ranges of keys of all `length` queries; and from them, of all keys, the ranges of queries that attend them. */
void nh_windows_ranges(const struct nh_windows *windows, int64_t length, nhood_range *range);
void nh_windows_inverse(const nhood_range *range, int64_t queries, int64_t keys,
                        nhood_range *inverse);

#endif
