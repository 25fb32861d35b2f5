/* Taking patches from a grid and laying them back. */
#include "patches.h"

#include <stdlib.h>
#include <string.h>

static int64_t mirrored(int64_t index, int64_t extent) {
    if (extent == 1) return 0;
    while (index < 0 || index >= extent)
        index = index < 0 ? -index : 2 * (extent - 1) - index;
    return index;
}

void patch_take(const struct grid *grid, const struct patches *patches, const int64_t at[3],
                float *patch) {
    const int channels = grid->channels;
    for (int64_t i = 0; i < patches->size[0]; i++)
        for (int64_t j = 0; j < patches->size[1]; j++)
            for (int64_t k = 0; k < patches->size[2]; k++) {
                int64_t z = mirrored(at[0] + i - patches->size[0] / 2, grid->extent[0]);
                int64_t y = mirrored(at[1] + j - patches->size[1] / 2, grid->extent[1]);
                int64_t x = mirrored(at[2] + k - patches->size[2] / 2, grid->extent[2]);
                const float *from =
                    grid->sample + ((z * grid->extent[1] + y) * grid->extent[2] + x) * channels;
                for (int c = 0; c < channels; c++)
                    *patch++ = from[c];
            }
}

void components_project(const struct grid *grid, const struct patches *patches,
                        const struct components *components, float *coefficient) {
    const int length = components->length;
    float patch[MOST_PATCH];
    for (int64_t z = 0; z < grid->extent[0]; z++)
        for (int64_t y = 0; y < grid->extent[1]; y++)
            for (int64_t x = 0; x < grid->extent[2]; x++) {
                patch_take(grid, patches, (const int64_t[3]){z, y, x}, patch);
                for (int c = 0; c < length; c++)
                    patch[c] -= components->mean[c];
                for (int i = 0; i < components->count; i++) {
                    const float *vector = components->vector + (int64_t)i * length;
                    float sum = 0;
                    for (int c = 0; c < length; c++)
                        sum += vector[c] * patch[c];
                    *coefficient++ = sum;
                }
            }
}

/* Adds one patch around `at` to the sums of the samples it covers. */
static void lay(const struct patches *patches, const int64_t at[3], const float *patch,
                struct grid *sum, float *covered) {
    for (int64_t i = 0; i < patches->size[0]; i++)
        for (int64_t j = 0; j < patches->size[1]; j++)
            for (int64_t k = 0; k < patches->size[2]; k++, patch += sum->channels) {
                int64_t z = at[0] + i - patches->size[0] / 2, y = at[1] + j - patches->size[1] / 2;
                int64_t x = at[2] + k - patches->size[2] / 2;
                if (z < 0 || y < 0 || x < 0 || z >= sum->extent[0] || y >= sum->extent[1] ||
                    x >= sum->extent[2])
                    continue;
                int64_t token = (z * sum->extent[1] + y) * sum->extent[2] + x;
                for (int c = 0; c < sum->channels; c++)
                    sum->sample[token * sum->channels + c] += patch[c];
                covered[token] += 1;
            }
}

bool components_assemble(const struct patches *patches, const struct components *components,
                         const float *coefficient, struct grid *grid) {
    float patch[MOST_PATCH], *covered = calloc((size_t)grid_tokens(grid), sizeof *covered);
    if (!covered) return fail("out of memory");
    memset(grid->sample, 0, (size_t)grid_samples(grid) * sizeof(float));
    for (int64_t z = 0; z < grid->extent[0]; z++)
        for (int64_t y = 0; y < grid->extent[1]; y++)
            for (int64_t x = 0; x < grid->extent[2]; x++, coefficient += components->count) {
                memcpy(patch, components->mean, (size_t)components->length * sizeof(float));
                for (int i = 0; i < components->count; i++) {
                    const float *vector = components->vector + (int64_t)i * components->length;
                    for (int c = 0; c < components->length; c++)
                        patch[c] += coefficient[i] * vector[c];
                }
                lay(patches, (const int64_t[3]){z, y, x}, patch, grid, covered);
            }
    for (int64_t i = 0; i < grid_samples(grid); i++)
        grid->sample[i] /= covered[i / grid->channels];
    free(covered);
    return true;
}
