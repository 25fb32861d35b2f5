/* PNG through libpng: grey and colour of 8 or 16 bits as they are stored, no gamma applied; palettes are looked up and
 * what says how transparent a pixel is gets left out. Written with 8 bits. */
#include "grid.h"

#include <errno.h>
#include <png.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SIGNATURE = 8 };

/* Whatever a reading holds: libpng leaves it by longjmp, so nothing of it is in local variables. */
struct reading {
    const char *path;
    FILE *file;
    png_structp png;
    png_infop info;
    png_byte *bytes;
    size_t row_bytes;
    int depth, passes;
};

static void on_error(png_structp png, png_const_charp message) {
    const struct reading *reading = png_get_error_ptr(png);
    fail("%s: %s", reading->path, message);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp message) {
    (void)png;
    (void)message;
}

static void on_read(png_structp png, png_bytep bytes, size_t count) {
    FILE *file = png_get_io_ptr(png);
    if (fread(bytes, 1, count, file) != count)
        png_error(png, ferror(file) ? strerror(errno) : "ends before the picture is complete");
}

/* What libpng shall deliver: one or three channels of 8 or 16 bits, the latter in big-endian order. */
static void ask_for_samples(struct reading *reading, struct grid *grid) {
    png_structp png = reading->png;
    png_set_expand(png);
    png_set_strip_alpha(png);
    reading->passes = png_set_interlace_handling(png);
    png_read_update_info(png, reading->info);
    const int64_t extent[3] = {1, png_get_image_height(png, reading->info),
                               png_get_image_width(png, reading->info)};
    reading->depth = png_get_bit_depth(png, reading->info);
    reading->row_bytes = png_get_rowbytes(png, reading->info);
    reading->bytes = malloc(reading->row_bytes * (size_t)extent[1]);
    if (!reading->bytes || !grid_create(grid, 2, extent, png_get_channels(png, reading->info)))
        png_error(png, "out of memory for the picture");
}

static bool decode(struct reading *reading, struct grid *grid) {
    if (setjmp(png_jmpbuf(reading->png))) return false;
    png_set_read_fn(reading->png, reading->file, on_read);
    png_set_sig_bytes(reading->png, SIGNATURE);
    png_read_info(reading->png, reading->info);
    ask_for_samples(reading, grid);
    /* An interlaced picture comes in passes, each of which fills in some pixels of the rows. */
    for (int pass = 0; pass < reading->passes; pass++)
        for (int64_t y = 0; y < grid->extent[1]; y++)
            png_read_row(reading->png, reading->bytes + (size_t)y * reading->row_bytes, NULL);
    return true;
}

static void keep_samples(const struct reading *reading, struct grid *grid) {
    int64_t line = grid->extent[2] * grid->channels;
    for (int64_t y = 0; y < grid->extent[1]; y++) {
        const png_byte *row = reading->bytes + (size_t)y * reading->row_bytes;
        for (int64_t i = 0; i < line; i++)
            grid->sample[y * line + i] = reading->depth == 8
                                             ? (float)row[i]
                                             : (float)((row[2 * i] * 256 + row[2 * i + 1]) / 257.0);
    }
}

static bool read_file(struct reading *reading, struct grid *grid) {
    png_byte signature[SIGNATURE];
    size_t got = fread(signature, 1, SIGNATURE, reading->file);
    if (ferror(reading->file)) return fail("%s: %s", reading->path, strerror(errno));
    if (got != SIGNATURE || png_sig_cmp(signature, 0, SIGNATURE))
        return fail("%s: not a PNG file", reading->path);
    reading->png = png_create_read_struct(PNG_LIBPNG_VER_STRING, reading, on_error, on_warning);
    reading->info = reading->png ? png_create_info_struct(reading->png) : NULL;
    if (!reading->info) return fail("%s: out of memory", reading->path);
    if (!decode(reading, grid)) return false;
    keep_samples(reading, grid);
    return true;
}

bool png_read(const char *path, struct grid *grid) {
    struct reading reading = {.path = path, .file = open_file(path, "rb")};
    if (!reading.file) return false;
    bool read = read_file(&reading, grid);
    png_destroy_read_struct(&reading.png, &reading.info, NULL);
    free(reading.bytes);
    fclose(reading.file);
    if (!read) grid_destroy(grid);
    return read;
}

bool png_write(const char *path, const struct grid *grid) {
    png_image image;
    memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    image.width = (png_uint_32)grid->extent[2];
    image.height = (png_uint_32)grid->extent[1];
    image.format = grid->channels == 3 ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
    int64_t count = grid->extent[1] * grid->extent[2] * grid->channels;
    png_byte *bytes = malloc((size_t)count);
    if (!bytes) return fail("%s: out of memory", path);
    for (int64_t i = 0; i < count; i++) {
        float value = grid->sample[i] + 0.5f;
        bytes[i] = (png_byte)(value > 255 ? 255 : value > 0 ? value : 0);
    }
    bool written = png_image_write_to_file(&image, path, 0, bytes, 0, NULL);
    free(bytes);
    return written ? true : fail("%s: %s", path, image.message);
}
