/* PNG through libpng's simplified interface. */
#include "grid.h"

#include <png.h>
#include <stdlib.h>
#include <string.h>

bool png_read(const char *path, struct grid *grid) {
    png_image image;
    memset(&image, 0, sizeof image);
    image.version = PNG_IMAGE_VERSION;
    if (!png_image_begin_read_from_file(&image, path)) return fail("%s: %s", path, image.message);
    bool color = image.format & PNG_FORMAT_FLAG_COLOR;
    image.format = color ? PNG_FORMAT_RGB : PNG_FORMAT_GRAY;
    const int64_t extent[3] = {1, image.height, image.width};
    png_byte *bytes = malloc(PNG_IMAGE_SIZE(image));
    if (!bytes || !grid_create(grid, 2, extent, color ? 3 : 1)) {
        png_image_free(&image);
        free(bytes);
        return fail("%s: out of memory for %u x %u pixels", path, image.width, image.height);
    }
    const png_color black = {0, 0, 0};
    bool read = png_image_finish_read(&image, &black, bytes, 0, NULL);
    for (int64_t i = 0; read && i < grid_samples(grid); i++)
        grid->sample[i] = (float)bytes[i];
    free(bytes);
    if (read) return true;
    grid_destroy(grid);
    return fail("%s: %s", path, image.message);
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
