/* Signals as text: one number per line; empty lines and lines that start with '#' are skipped. */
#include "grid.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>

static bool read_lines(FILE *file, const char *path, struct grid *grid) {
    char line[256];
    int64_t count = 0, capacity = 0;
    float *samples = NULL;
    for (int number = 1; fgets(line, sizeof line, file); number++) {
        char *at = line, *end;
        while (isspace((unsigned char)*at))
            at++;
        if (!*at || *at == '#') continue;
        double value = strtod(at, &end);
        bool alone = end != at;
        for (; *end; end++)
            alone = alone && isspace((unsigned char)*end);
        if (!alone || !isfinite(value)) {
            free(samples);
            return fail("%s: line %d is not a number", path, number);
        }
        if (count == capacity) {
            capacity = capacity ? 2 * capacity : 4096;
            float *more = realloc(samples, (size_t)capacity * sizeof *samples);
            if (!more) {
                free(samples);
                return fail("%s: out of memory", path);
            }
            samples = more;
        }
        samples[count++] = (float)value;
    }
    if (!count) {
        free(samples);
        return fail("%s: holds no numbers", path);
    }
    *grid = (struct grid){.rank = 1, .extent = {1, 1, count}, .channels = 1, .sample = samples};
    return true;
}

bool signal_read(const char *path, struct grid *grid) {
    FILE *file = open_file(path, "r");
    if (!file) return false;
    bool ok = read_lines(file, path, grid);
    fclose(file);
    return ok;
}

bool signal_write(const char *path, const struct grid *grid) {
    FILE *file = open_file(path, "w");
    if (!file) return false;
    for (int64_t i = 0; i < grid_samples(grid); i++)
        fprintf(file, "%.6g\n", (double)grid->sample[i]);
    return fclose(file) == 0 ? true : fail("%s: could not be written", path);
}
