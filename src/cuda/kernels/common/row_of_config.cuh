/* For kernels whose configuration is how lanes share rows, and no more: what naive.cuh asks of it. */
#pragma once
#include "row_config.h"

constexpr row_config ROW = NH_CONFIG;
