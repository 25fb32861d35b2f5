/* A picture, volume or signal: samples on a 1-, 2- or 3-D grid, channels last, as floats. */
#ifndef GRID_H
#define GRID_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

enum { NIFTI_HEADER = 348 };

struct grid {
    int rank;          /* axes in use */
    int64_t extent[3]; /* the last `rank` entries; 1 before */
    int channels;
    float *sample; /* [extent 0][extent 1][extent 2][channels] */
    unsigned char
        nifti[NIFTI_HEADER]; /* of a volume: its file's header, for those of the results */
};

/* Records what went wrong for error_text(); returns false, so that callers can `return fail(..)`. */
bool fail(const char *format, ...) __attribute__((format(printf, 1, 2)));
const char *error_text(void);

/* fopen that says why it failed: NULL then. */
FILE *open_file(const char *path, const char *mode);

bool grid_create(struct grid *grid, int rank, const int64_t extent[3], int channels);
void grid_destroy(struct grid *grid);
int64_t grid_tokens(const struct grid *grid);
int64_t grid_samples(const struct grid *grid);
bool grid_copy(const struct grid *from, struct grid *to);

/* Keeps rows [row, row + height) and columns [column, column + width) of a picture. */
bool grid_crop(struct grid *grid, int64_t row, int64_t column, int64_t height, int64_t width);

/* Adds sigma times the reproducible Gaussian sequence of `seed`, in storage order. */
void grid_add_noise(struct grid *grid, double sigma, uint64_t seed);

double grid_mean_square_error(const struct grid *a, const struct grid *b);
double grid_variance(const struct grid *grid);

/* Noise level from the samples alone: the median of |second differences along every axis|, scaled to the
 * standard deviation of white noise. Second differences cancel smooth content; the median ignores edges. */
bool grid_estimate_sigma(const struct grid *grid, double *sigma);

/* Files by their ending: .png .ppm .pgm .pnm .pfm (pictures), .nii .nii.gz (volumes), .txt .csv (one number
 * per line). Pictures come as 0..255, volumes scaled to a maximum of 255, signals and .pfm as they are. */
bool grid_read(const char *path, struct grid *grid);
bool grid_write(const char *path, const struct grid *grid);

bool png_read(const char *path, struct grid *grid);
bool png_write(const char *path, const struct grid *grid);
bool pnm_read(const char *path, struct grid *grid);
bool pfm_write(const char *path, const struct grid *grid);
bool nifti_read(const char *path, struct grid *grid);
bool nifti_write(const char *path, const struct grid *grid);
void nifti_drop_units(struct grid *grid); /* for samples that are no values of what was read */
bool signal_read(const char *path, struct grid *grid);
bool signal_write(const char *path, const struct grid *grid);

#endif
