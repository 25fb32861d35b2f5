/* The search for the tiles with which a backward kernel of sm_90 is fastest. */
#ifndef NH_BACKWARD90_SEARCH_H
#define NH_BACKWARD90_SEARCH_H

#include "backward90.h"

enum { NH_BACKWARD90_KEPT = 5 };

/* An owned tile, a loop tile, and the work of the launches with them. */
struct nh_backward90_pair {
    int32_t own[3];
    const int32_t *loop;
    struct nh_work work;
};

/* Adds the launches of a kernel with these tiles to the work; false if it cannot run with them. */
typedef bool nh_backward90_work(const struct nh_backward90_kernel *kernel,
                                const struct nh_backward90_loops *loops, struct nh_work *work);

struct nh_backward90_search {
    struct nh_backward90_kernel kernel; /* its tiles are what is searched */
    nh_backward90_work *work;
    enum nh_operation_kind operation;
    int64_t least_rows; /* the least number of rows of an owned tile */
};

/* Writes the pairs with the fewest predicted clocks, fewest first. Returns how many. */
int nh_backward90_best(const struct nh_backward90_search *search,
                       struct nh_backward90_pair best[NH_BACKWARD90_KEPT]);

/* Whether some pair of tiles runs whose loops can go around the problem's periodic axes (nh_tiling_laps_fit). */
bool nh_backward90_goes_around(const struct nh_backward90_search *search);

#endif
