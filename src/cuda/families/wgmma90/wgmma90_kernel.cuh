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

/* naive.cuh repairs rows that are not finite, a warp per row. It is rare: a small kernel matters more than speed.
 * NH_WIDE_VALUES: the kernel makes dQ or dK alone, of values of more columns than a lane holds in one vector. */
#if NH_WIDE_VALUES
#define NH_ROW_VECTORS ((C.dim_v + 255) / 256)
#else
#define NH_ROW_VECTORS 1
#endif
constexpr row_config ROW = {.threads = ROW_THREADS,
                            .group = 32,
                            .vector = 8,
                            .vectors = NH_ROW_VECTORS,
                            .resident = 1,
                            .keys = 1,
                            .delta_at = 1,
                            .extra = C.extra,
                            .biased = C.biased};
