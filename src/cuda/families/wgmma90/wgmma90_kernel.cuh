/* The configuration that a kernel of this family is compiled with, and what files in kernels/common, which other
 * families have too, ask of it by macros. */
#pragma once
#include "wgmma90_config.h"

constexpr wgmma90_config C = NH_CONFIG;

#define NH_POSITION int /* window.h */

/* region.cuh */
#define NH_REGION_AXES C.region_axes
#define NH_UNIT_STEPS C.unit_steps
#define NH_PLAIN_WINDOWS C.plain_windows

/* naive.cuh, which repairs rows that are not finite: a warp shares a row. Repair is rare: a small kernel matters more
 * than its speed. */
#define NH_GROUP 32
#define NH_VECTOR 8
#define NH_VECTORS 1
#define NH_RESIDENT 1
#define NH_KEYS 1
#define NH_DELTA_AT 1 /* place of delta in the statistics */
#define NH_EXTRA C.extra
#define NH_BIASED C.biased
