/* Reproducible Gaussian noise, and an estimate of the noise in a grid. */
#include "grid.h"

#include <math.h>
#include <stdlib.h>

/* splitmix64: Steele, Lea, Flood, "Fast splittable pseudorandom number generators" (2014). */
static uint64_t draw(uint64_t *state) {
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
    return z ^ (z >> 31);
}

/* Box-Muller: each pair of draws gives two normal numbers. */
void grid_add_noise(struct grid *grid, double sigma, uint64_t seed) {
    const double two_pi = 6.283185307179586476925;
    int64_t samples = grid_samples(grid);
    for (int64_t i = 0; i < samples; i += 2) {
        double u1 = (double)((draw(&seed) >> 11) + 1) * 0x1p-53,
               u2 = (double)(draw(&seed) >> 11) * 0x1p-53;
        double radius = sqrt(-2 * log(u1));
        grid->sample[i] = (float)((double)grid->sample[i] + sigma * radius * cos(two_pi * u2));
        if (i + 1 < samples)
            grid->sample[i + 1] =
                (float)((double)grid->sample[i + 1] + sigma * radius * sin(two_pi * u2));
    }
}

static int ascending(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Second difference along every axis of length >= 3 around one token and channel, with weights 1 -2 1. */
static float difference(const struct grid *grid, const int64_t at[3], int channel, int axis) {
    int64_t step[3] = {grid->extent[1] * grid->extent[2], grid->extent[2], 1};
    if (axis == 3)
        return grid->sample[(at[0] * step[0] + at[1] * step[1] + at[2]) * grid->channels + channel];
    if (grid->extent[axis] < 3) return difference(grid, at, channel, axis + 1);
    int64_t before[3] = {at[0], at[1], at[2]}, after[3] = {at[0], at[1], at[2]};
    before[axis]--;
    after[axis]++;
    return difference(grid, before, channel, axis + 1) -
           2 * difference(grid, at, channel, axis + 1) + difference(grid, after, channel, axis + 1);
}

bool grid_estimate_sigma(const struct grid *grid, double *sigma) {
    double gain =
        1; /* standard deviation of the difference of unit white noise: sqrt(6) per axis */
    int64_t low[3], high[3], count = 0;
    for (int a = 0; a < 3; a++) {
        bool used = grid->extent[a] >= 3;
        if (used) gain *= sqrt(6.0);
        low[a] = used ? 1 : 0;
        high[a] = used ? grid->extent[a] - 1 : grid->extent[a];
    }
    if (gain == 1) return fail("too few samples to estimate the noise level: give --sigma");
    float *values = malloc((size_t)grid_samples(grid) * sizeof *values);
    if (!values) return fail("out of memory for the noise estimate");
    for (int64_t z = low[0]; z < high[0]; z++)
        for (int64_t y = low[1]; y < high[1]; y++)
            for (int64_t x = low[2]; x < high[2]; x++)
                for (int c = 0; c < grid->channels; c++) {
                    const int64_t at[3] = {z, y, x};
                    values[count++] = fabsf(difference(grid, at, c, 0));
                }
    qsort(values, (size_t)count, sizeof *values, ascending);
    *sigma = (double)values[count / 2] / 0.6744897501960817 / gain; /* median of |normal| */
    free(values);
    return true;
}
