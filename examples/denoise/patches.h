/* Patches around every token, their principal components, and pictures put together from patches again. */
#ifndef PATCHES_H
#define PATCHES_H

#include "grid.h"

enum { MOST_PATCH = 256 }; /* samples in a patch */

struct patches {
    int64_t size[3]; /* odd, per axis */
    int length;      /* samples: size 0 * size 1 * size 2 * channels */
};

/* Copies the patch around token `at`, mirrored at borders without repeating the edge. */
void patch_take(const struct grid *grid, const struct patches *patches, const int64_t at[3],
                float *patch);

struct components {
    int length, count;
    float mean[MOST_PATCH];
    float *vector; /* [count][length], by falling variance, orthonormal */
};

/* Principal components of all patches; keeps the first `count`. */
bool components_create(const struct grid *grid, const struct patches *patches, int count,
                       struct components *components);
void components_destroy(struct components *components);

/* coefficient[token][count] of every token's patch. */
void components_project(const struct grid *grid, const struct patches *patches,
                        const struct components *components, float *coefficient);

/* Rebuilds each token's patch from its coefficients and averages, at every sample, all patches that cover it. */
bool components_assemble(const struct patches *patches, const struct components *components,
                         const float *coefficient, struct grid *grid);

#endif
