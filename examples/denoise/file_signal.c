/* Signals as text: one number per line; empty lines and lines that start with '#' are skipped. */
#include "grid.h"

#include <errno.h>

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

struct samples {
    float *sample;
    int64_t count, capacity;
};

static bool append(struct samples *samples, float value) {
    if (samples->count == samples->capacity) {
        int64_t capacity = samples->capacity ? 2 * samples->capacity : 4096;
        float *more = realloc(samples->sample, (size_t)capacity * sizeof *more);
        if (!more) return fail("out of memory for %lld samples", (long long)capacity);
        samples->sample = more;
        samples->capacity = capacity;
    }
    samples->sample[samples->count++] = value;
    return true;
}

/* Whether a line of `length` bytes is one finite number, with nothing but white space around it. A NUL is no white
 * space, though strtod stops at it. */
static bool is_number(const char *line, size_t length, double *value) {
    char *end;
    *value = strtod(line, &end);
    if (end == line) return false;
    while (end < line + length && isspace((unsigned char)*end))
        end++;
    return end == line + length && isfinite(*value);
}

static bool read_lines(FILE *file, const char *path, struct samples *samples) {
    char *line = NULL;
    size_t capacity = 0;
    ssize_t length;
    bool ok = true;
    errno = 0;
    for (int64_t number = 1; ok && (length = getline(&line, &capacity, file)) >= 0; number++) {
        const char *at = line, *end = line + length;
        while (at < end && isspace((unsigned char)*at))
            at++;
        if (at == end || *at == '#') continue;
        double value;
        if (is_number(at, (size_t)(end - at), &value))
            ok = append(samples, (float)value);
        else
            ok = fail("%s: line %lld is not a number", path, (long long)number);
        errno = 0;
    }
    if (ok && !feof(file)) ok = fail("%s: cannot be read: %s", path, strerror(errno));
    free(line);
    return ok && !samples->count ? fail("%s: holds no numbers", path) : ok;
}

bool signal_read(const char *path, struct grid *grid) {
    FILE *file = open_file(path, "r");
    if (!file) return false;
    struct samples samples = {0};
    bool ok = read_lines(file, path, &samples);
    fclose(file);
    if (ok)
        *grid = (struct grid){
            .rank = 1, .extent = {1, 1, samples.count}, .channels = 1, .sample = samples.sample};
    else
        free(samples.sample);
    return ok;
}

bool signal_write(const char *path, const struct grid *grid) {
    FILE *file = open_file(path, "w");
    if (!file) return false;
    bool ok = true;
    for (int64_t i = 0; ok && i < grid_samples(grid); i++)
        ok = fprintf(file, "%.6g\n", (double)grid->sample[i]) > 0;
    ok = fclose(file) == 0 && ok;
    return ok ? true : fail("%s: could not be written", path);
}
