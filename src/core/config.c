/* Text form of a solver's config. */
#include "solver.h"

#include <stdio.h>

void nh_config_text(const struct nh_solver *solver, const struct nh_config *config, char *text,
                    size_t capacity) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; solver->knob && solver->knob[i]; i++) {
        int written = snprintf(text + used, capacity - used, "%s%s=%d", i ? "," : "",
                               solver->knob[i], config->value[i]);
        if (written < 0 || (size_t)written >= capacity - used) return;
        used += (size_t)written;
    }
}
