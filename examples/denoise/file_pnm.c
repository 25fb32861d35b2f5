/* Netpbm pictures: P5 and P6 (8 or 16 bits) are read, PFM (floats, not clipped) is read and written. */
#include "grid.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MOST_PIXELS 1000000 /* along an axis, as libpng's limit for PNG */

static int skip_comment(FILE *file) {
    int c = getc(file);
    while (c != '\n' && c != EOF)
        c = getc(file);
    return c;
}

/* The next token of a Netpbm header; '#' starts a comment to the end of the line, of any length. The white space or
 * comment that ends the token is consumed: after the last token, data begin. False for none or one that is too long. */
static bool header_token(FILE *file, char *token, size_t capacity) {
    int c = getc(file);
    while (isspace(c) || c == '#')
        c = c == '#' ? skip_comment(file) : getc(file);
    size_t length = 0;
    for (; c != EOF && !isspace(c) && c != '#'; c = getc(file)) {
        if (length + 1 == capacity) return false;
        token[length++] = (char)c;
    }
    if (c == '#') skip_comment(file);
    token[length] = '\0';
    return length > 0;
}

/* A whole number in [1, high], in digits and nothing else. */
static bool header_integer(FILE *file, const char *path, const char *name, int64_t high,
                           int64_t *value) {
    char token[32] = "";
    bool read = header_token(file, token, sizeof token);
    char *end = token;
    errno = 0;
    *value = isdigit((unsigned char)token[0]) ? strtoll(token, &end, 10) : 0;
    if (!read || end == token || *end || errno || *value < 1 || *value > high)
        return fail("%s: %s '%s' is not a whole number in [1, %lld]", path, name, token,
                    (long long)high);
    return true;
}

/* The scale of a PFM picture, of which only the sign is used: it tells the order of bytes. */
static bool header_scale(FILE *file, const char *path, double *scale) {
    char token[64] = "", *end = token;
    if (header_token(file, token, sizeof token)) *scale = strtod(token, &end);
    if (end == token || *end || !isfinite(*scale) || !(*scale < 0 || *scale > 0))
        return fail("%s: scale '%s' is not a finite number other than 0", path, token);
    return true;
}

static float sample_at(const unsigned char *bytes, int64_t index, char kind, double top) {
    if (kind != 'F' && kind != 'f' && top < 256) return (float)(bytes[index] * 255.0 / top);
    if (kind != 'F' && kind != 'f')
        return (float)((bytes[2 * index] * 256 + bytes[2 * index + 1]) * 255.0 / top);
    unsigned char order[4]; /* a negative scale means little-endian */
    for (int i = 0; i < 4; i++)
        order[i] = bytes[4 * index + (top < 0 ? i : 3 - i)];
    uint32_t bits = (uint32_t)order[0] | (uint32_t)order[1] << 8 | (uint32_t)order[2] << 16 |
                    (uint32_t)order[3] << 24;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static bool read_body(FILE *file, const char *path, char kind, double top, struct grid *grid) {
    bool floats = kind == 'F' || kind == 'f';
    int64_t line = grid->extent[2] * grid->channels, size = floats ? 4 : top < 256 ? 1 : 2;
    unsigned char *bytes = malloc((size_t)(line * size));
    if (!bytes) return fail("%s: out of memory", path);
    for (int64_t y = 0; y < grid->extent[1]; y++) {
        if (fread(bytes, (size_t)size, (size_t)line, file) != (size_t)line) {
            free(bytes);
            return fail("%s: ends in row %lld of %lld", path, (long long)y,
                        (long long)grid->extent[1]);
        }
        int64_t row = floats ? grid->extent[1] - 1 - y : y; /* PFM stores the bottom row first */
        for (int64_t i = 0; i < line; i++)
            grid->sample[row * line + i] = sample_at(bytes, i, kind, top);
    }
    free(bytes);
    return true;
}

bool pnm_read(const char *path, struct grid *grid) {
    FILE *file = open_file(path, "rb");
    if (!file) return false;
    char magic[4];
    bool ok = header_token(file, magic, sizeof magic) && strlen(magic) == 2 && magic[0] == 'P' &&
              strchr("56Ff", magic[1]);
    if (!ok) fail("%s: not a P5, P6 or PFM picture", path);
    bool floats = ok && (magic[1] == 'F' || magic[1] == 'f');
    int64_t extent[3] = {1, 0, 0}, largest = 0;
    double top = 0;
    ok = ok && header_integer(file, path, "width", MOST_PIXELS, &extent[2]) &&
         header_integer(file, path, "height", MOST_PIXELS, &extent[1]);
    ok = ok && (floats ? header_scale(file, path, &top)
                       : header_integer(file, path, "largest sample", 65535, &largest));
    if (!floats) top = (double)largest;
    ok = ok && grid_create(grid, 2, extent, magic[1] == '6' || magic[1] == 'F' ? 3 : 1) &&
         read_body(file, path, magic[1], top, grid);
    fclose(file);
    if (!ok) grid_destroy(grid);
    return ok;
}

bool pfm_write(const char *path, const struct grid *grid) {
    FILE *file = open_file(path, "wb");
    if (!file) return false;
    const uint16_t probe = 1; /* PFM states its byte order: write the machine's own */
    fprintf(file, "P%c\n%lld %lld\n%s\n", grid->channels == 3 ? 'F' : 'f',
            (long long)grid->extent[2], (long long)grid->extent[1],
            *(const char *)&probe ? "-1.0" : "1.0");
    size_t line = (size_t)(grid->extent[2] * grid->channels);
    bool ok = true;
    for (int64_t y = grid->extent[1] - 1; ok && y >= 0; y--)
        ok = fwrite(grid->sample + (size_t)y * line, sizeof(float), line, file) == line;
    ok = fclose(file) == 0 && ok;
    return ok ? true : fail("%s: could not be written", path);
}
