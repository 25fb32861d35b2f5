/* The kernels' source texts, embedded at build time by cmake/embed.cmake. */
#ifndef NH_KERNEL_SOURCES_H
#define NH_KERNEL_SOURCES_H

#include "nvrtc.h"

extern const struct nh_source nh_kernel_sources[];
extern const int nh_kernel_source_count;

#endif
