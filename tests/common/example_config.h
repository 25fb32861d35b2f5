/* A configuration of no kernel, which tests compile on the host and by NVRTC. */
#ifndef EXAMPLE_CONFIG_H
#define EXAMPLE_CONFIG_H

#include "kernel_config.h"

#define EXAMPLE_CONFIG(ONE, MANY) ONE(pipeline) MANY(rows, 3) ONE(warps)
NH_KERNEL_CONFIG(example_config, EXAMPLE_CONFIG);

NH_CONFIG_FN int example_row_count(const struct example_config *config) {
    return config->rows[0] * config->rows[1] * config->rows[2];
}

#endif
