/* NIfTI-1 volumes, single file, plain or gzipped: the first frame, little-endian. Results keep the place in space
 * and the units of what was read. */
#include "grid.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { AT_DIM = 40, AT_TYPE = 70, AT_BITS = 72, AT_OFFSET = 108, AT_SLOPE = 112 };
enum { AT_INTERCEPT = 116, AT_MAGIC = 344 };
enum { TYPE_U8 = 2, TYPE_I16 = 4, TYPE_F32 = 16, TYPE_U16 = 512 };

static int16_t short_at(const unsigned char *header, int at) {
    return (int16_t)(header[at] | header[at + 1] << 8);
}

static float float_from(const unsigned char *bytes) {
    uint32_t bits = (uint32_t)bytes[0] | (uint32_t)bytes[1] << 8 | (uint32_t)bytes[2] << 16 |
                    (uint32_t)bytes[3] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static void put_float(unsigned char *bytes, float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 4; i++)
        bytes[i] = (unsigned char)(bits >> 8 * i);
}

static void put_short(unsigned char *bytes, int64_t value) {
    bytes[0] = (unsigned char)(value & 255);
    bytes[1] = (unsigned char)(value >> 8 & 255);
}

static float voxel(const unsigned char *bytes, int type) {
    switch (type) {
    case TYPE_U8: return (float)bytes[0];
    case TYPE_I16: return (float)(int16_t)(bytes[0] | bytes[1] << 8);
    case TYPE_U16: return (float)(uint16_t)(bytes[0] | bytes[1] << 8);
    default: return float_from(bytes);
    }
}

static bool read_voxels(gzFile file, const char *path, int type, float offset, struct grid *grid) {
    unsigned size = type == TYPE_U8 ? 1 : type == TYPE_F32 ? 4 : 2;
    unsigned line = (unsigned)grid->extent[2] * size;
    unsigned char *bytes = malloc(line);
    bool ok = bytes && gzseek(file, (z_off_t)offset, SEEK_SET) >= 0;
    float largest = 0;
    for (int64_t row = 0; ok && row < grid->extent[0] * grid->extent[1]; row++) {
        ok = gzread(file, bytes, line) == (int)line;
        for (int64_t x = 0; ok && x < grid->extent[2]; x++) {
            float value = voxel(bytes + (size_t)x * size, type);
            grid->sample[row * grid->extent[2] + x] = value;
            if (value > largest) largest = value;
        }
    }
    free(bytes);
    if (!ok) return fail("%s: ends before its %lld voxels", path, (long long)grid_tokens(grid));
    if (!(largest > 0)) return fail("%s: no voxel is greater than 0", path);
    for (int64_t i = 0; i < grid_tokens(grid); i++)
        grid->sample[i] *= 255 / largest;
    /* A voxel's value in units is slope * what is stored + intercept, unless the slope is 0. */
    float slope = float_from(grid->nifti + AT_SLOPE);
    bool units = isfinite(slope) && slope != 0;
    put_float(grid->nifti + AT_SLOPE, (units ? slope : 1) * largest / 255);
    if (!units) put_float(grid->nifti + AT_INTERCEPT, 0);
    return true;
}

void nifti_drop_units(struct grid *grid) {
    put_float(grid->nifti + AT_SLOPE, 0);
    put_float(grid->nifti + AT_INTERCEPT, 0);
}

bool nifti_read(const char *path, struct grid *grid) {
    gzFile file = gzopen(path, "rb"); /* reads plain files too */
    if (!file) return fail("%s: cannot be opened: %s", path, strerror(errno));
    unsigned char header[NIFTI_HEADER];
    bool ok = gzread(file, header, NIFTI_HEADER) == NIFTI_HEADER &&
              short_at(header, 0) == NIFTI_HEADER && !memcmp(header + AT_MAGIC, "n+1", 4);
    int type = ok ? short_at(header, AT_TYPE) : 0;
    if (!ok || (type != TYPE_U8 && type != TYPE_I16 && type != TYPE_U16 && type != TYPE_F32)) {
        gzclose(file);
        return fail("%s: not a little-endian NIfTI-1 file of uint8, int16, uint16 or float32",
                    path);
    }
    float offset = float_from(header + AT_OFFSET);
    int axes = short_at(header, AT_DIM);
    int64_t extent[3] = {1, 1,
                         1}; /* x is fastest in the file; axes it does not have hold anything */
    for (int a = 0; a < 3 && a < axes; a++)
        extent[2 - a] = short_at(header, AT_DIM + 2 + 2 * a);
    ok = offset >= NIFTI_HEADER && offset < 1e9f && offset == floorf(offset);
    if (!ok) fail("%s: data offset %g is not a whole number in [348, 1e9]", path, (double)offset);
    if (ok && (axes < 1 || axes > 7)) ok = fail("%s: %d axes are not in [1, 7]", path, axes);
    ok = ok && grid_create(grid, 3, extent, 1);
    if (ok) memcpy(grid->nifti, header, NIFTI_HEADER);
    ok = ok && read_voxels(file, path, type, offset, grid);
    gzclose(file);
    if (!ok) grid_destroy(grid);
    return ok;
}

bool nifti_write(const char *path, const struct grid *grid) {
    unsigned char header[NIFTI_HEADER + 4] = {0}; /* and an empty extension */
    memcpy(header, grid->nifti, NIFTI_HEADER);
    const int64_t dim[4] = {3, grid->extent[2], grid->extent[1], grid->extent[0]};
    for (int i = 0; i < 8; i++)
        put_short(header + AT_DIM + 2 * i, i < 4 ? dim[i] : 1);
    put_short(header + AT_TYPE, TYPE_F32);
    put_short(header + AT_BITS, 32);
    put_float(header + AT_OFFSET, NIFTI_HEADER + 4);
    gzFile file = gzopen(path, "wb");
    if (!file) return fail("%s: cannot be created: %s", path, strerror(errno));
    size_t bytes = (size_t)grid_tokens(grid) * sizeof(float);
    bool ok = gzwrite(file, header, sizeof header) == (int)sizeof header &&
              gzfwrite(grid->sample, 1, bytes, file) == bytes;
    ok = gzclose(file) == Z_OK && ok;
    return ok ? true : fail("%s: could not be written", path);
}
