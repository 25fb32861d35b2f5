/* Grids: memory, error text, comparison, files by their ending. */
#include "grid.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Squares of samples, and sums of some of them, must be floats. */
#define LARGEST_SAMPLE 1e9f

static char text[512];

bool fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text, sizeof text, format, arguments);
    va_end(arguments);
    return false;
}

const char *error_text(void) {
    return text;
}

FILE *open_file(const char *path, const char *mode) {
    FILE *file = fopen(path, mode);
    if (!file)
        fail("%s: cannot be %s: %s", path, *mode == 'r' ? "opened" : "created", strerror(errno));
    return file;
}

bool grid_create(struct grid *grid, int rank, const int64_t extent[3], int channels) {
    memset(grid, 0, sizeof *grid);
    int64_t samples = channels;
    for (int a = 0; a < 3; a++) {
        if (extent[a] < 1 || extent[a] > INT32_MAX ||
            __builtin_mul_overflow(samples, extent[a], &samples) || samples > INT64_C(1) << 36)
            return fail("a grid of %lld x %lld x %lld is empty or too large", (long long)extent[0],
                        (long long)extent[1], (long long)extent[2]);
        grid->extent[a] = extent[a];
    }
    grid->rank = rank;
    grid->channels = channels;
    grid->sample = calloc((size_t)samples, sizeof(float));
    return grid->sample ? true : fail("out of memory for %lld samples", (long long)samples);
}

void grid_destroy(struct grid *grid) {
    free(grid->sample);
    memset(grid, 0, sizeof *grid);
}

int64_t grid_tokens(const struct grid *grid) {
    return grid->extent[0] * grid->extent[1] * grid->extent[2];
}

int64_t grid_samples(const struct grid *grid) {
    return grid_tokens(grid) * grid->channels;
}

bool grid_copy(const struct grid *from, struct grid *to) {
    if (!grid_create(to, from->rank, from->extent, from->channels)) return false;
    memcpy(to->sample, from->sample, (size_t)grid_samples(from) * sizeof(float));
    memcpy(to->nifti, from->nifti, sizeof to->nifti);
    return true;
}

bool grid_crop(struct grid *grid, int64_t row, int64_t column, int64_t height, int64_t width) {
    if (grid->rank != 2) return fail("only pictures can be cropped");
    if (row < 0 || column < 0 || height < 1 || width < 1 || row + height > grid->extent[1] ||
        column + width > grid->extent[2])
        return fail("crop %lld,%lld,%lld,%lld does not lie in the %lld x %lld picture",
                    (long long)row, (long long)column, (long long)height, (long long)width,
                    (long long)grid->extent[1], (long long)grid->extent[2]);
    struct grid part;
    const int64_t extent[3] = {1, height, width};
    if (!grid_create(&part, 2, extent, grid->channels)) return false;
    size_t line = (size_t)(width * grid->channels);
    for (int64_t y = 0; y < height; y++)
        memcpy(part.sample + (size_t)y * line,
               grid->sample + ((row + y) * grid->extent[2] + column) * grid->channels,
               line * sizeof(float));
    grid_destroy(grid);
    *grid = part;
    return true;
}

double grid_mean_square_error(const struct grid *a, const struct grid *b) {
    double sum = 0;
    int64_t samples = grid_samples(a);
    for (int64_t i = 0; i < samples; i++) {
        double difference = (double)a->sample[i] - (double)b->sample[i];
        sum += difference * difference;
    }
    return sum / (double)samples;
}

double grid_variance(const struct grid *grid) {
    double sum = 0, squares = 0, samples = (double)grid_samples(grid);
    for (int64_t i = 0; i < grid_samples(grid); i++)
        sum += (double)grid->sample[i];
    for (int64_t i = 0; i < grid_samples(grid); i++)
        squares +=
            ((double)grid->sample[i] - sum / samples) * ((double)grid->sample[i] - sum / samples);
    return squares / samples;
}

static bool has_ending(const char *path, const char *ending) {
    size_t length = strlen(path), wanted = strlen(ending);
    return length > wanted && strcasecmp(path + length - wanted, ending) == 0;
}

static bool read_by_ending(const char *path, struct grid *grid) {
    if (has_ending(path, ".png")) return png_read(path, grid);
    if (has_ending(path, ".ppm") || has_ending(path, ".pgm") || has_ending(path, ".pnm") ||
        has_ending(path, ".pfm"))
        return pnm_read(path, grid);
    if (has_ending(path, ".nii") || has_ending(path, ".nii.gz")) return nifti_read(path, grid);
    if (has_ending(path, ".txt") || has_ending(path, ".csv")) return signal_read(path, grid);
    return fail("%s: the file name must end in .png .ppm .pgm .pnm .pfm .nii .nii.gz .txt or .csv",
                path);
}

bool grid_read(const char *path, struct grid *grid) {
    memset(grid, 0, sizeof *grid);
    if (!read_by_ending(path, grid)) return false;
    for (int64_t i = 0; i < grid_samples(grid); i++) {
        float value = grid->sample[i];
        if (fabsf(value) <= LARGEST_SAMPLE) continue;
        grid_destroy(grid);
        return isfinite(value) ? fail("%s: sample %lld, %g, is beyond %g", path, (long long)i,
                                      (double)value, (double)LARGEST_SAMPLE)
                               : fail("%s: sample %lld is not a finite number", path, (long long)i);
    }
    return true;
}

bool grid_write(const char *path, const struct grid *grid) {
    if (has_ending(path, ".png")) return png_write(path, grid);
    if (has_ending(path, ".pfm")) return pfm_write(path, grid);
    if (has_ending(path, ".nii.gz")) return nifti_write(path, grid);
    return signal_write(path, grid);
}
