/* The configuration that a kernel of this family is compiled with, and what files in kernels/common, which other
 * families have too, ask of it. */
#pragma once
#include "row_config.h"
#include "wgmma90_config.h"

constexpr wgmma90_config C = NH_CONFIG;

#define NH_POSITION int /* window.h */

/* region.cuh */
#define NH_REGION_AXES C.region_axes
#define NH_STRIDED C.strided
#define NH_DILATED C.dilated
#define NH_CAUSAL C.causal

/* naive.cuh repairs rows that are not finite, a warp per row. It is rare: a small kernel matters more than speed. */
constexpr row_config ROW = {.threads = ROW_THREADS,
                            .group = 32,
                            .vector = 8,
                            .vectors = 1,
                            .resident = 1,
                            .keys = 1,
                            .delta_at = 1,
                            .extra = C.extra,
                            .biased = C.biased};
