/* What wisdom knows of a CUDA device, as timings for a calibration. */
#ifndef NH_TIMINGS_H
#define NH_TIMINGS_H

#include "calibrate.h"
#include "wisdom.h"

struct nh_timings {
    const struct nh_host *host;
    struct nh_timed *timing;
    int64_t count, capacity, problems;
};

/* Reads the timings of a device from wisdom's text, whose lines are sorted by problem, and so that the same wisdom gives the same timings
 * however it came about. Left out are configs that their solver does not propose, as wisdom may name any, and problems with one candidate, which
 * leave no choice. MEMORY. To be freed in any case. */
nhood_status nh_timings_read(const struct nh_device *device, char *wisdom,
                             struct nh_timings *timings);
void nh_timings_free(struct nh_timings *timings);

#endif
