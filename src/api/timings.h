/* The measured times of a CUDA device in wisdom, as input of a calibration. */
#ifndef NH_TIMINGS_H
#define NH_TIMINGS_H

#include "calibrate.h"
#include "wisdom.h"

struct nh_timings {
    const struct nh_host *host;
    struct nh_timed *timing;
    int64_t count, capacity, problems;
};

/* Reads the timings of a device from wisdom's text, whose lines are sorted, so that the same wisdom always gives the same
 * timings. Leaves out configs that their solver does not propose, as wisdom may name any, and problems with fewer than two
 * candidates, which leave no choice. Changes the text. MEMORY; *timings must be freed even then. */
nhood_status nh_timings_read(const struct nh_device *device, char *wisdom,
                             struct nh_timings *timings);
void nh_timings_free(struct nh_timings *timings);

#endif
