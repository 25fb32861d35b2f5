/* Boxes of positions on the grid. */
#ifndef NH_BOX_H
#define NH_BOX_H

#include <stdint.h>

/* The number of positions in a box with these extents. */
static inline int64_t nh_box_volume(const int32_t box[3]) {
    return (int64_t)box[0] * box[1] * box[2];
}

#endif
