/* Any file is read or refused with a text, whatever it claims to be: the denoiser's readers. The first byte chooses the
 * ending of the file's name, the others are its contents. What is read holds finite samples on a grid of its size. */
#include "grid.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Headers may claim any size: let memory for it be refused as a small machine would. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=256";
}

static char folder[] = "/tmp/nhood-fuzz-XXXXXX";

static void remove_folder(void) {
    rmdir(folder);
}

static void make_folder(void) {
    static bool made;
    if (made) return;
    if (!mkdtemp(folder) || atexit(remove_folder)) abort();
    made = true;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char *const ending[] = {".png", ".ppm", ".pfm", ".nii", ".nii.gz", ".txt"};
    struct grid grid;
    char path[64];
    if (!size) return 0;
    make_folder();
    snprintf(path, sizeof path, "%s/x%s", folder,
             ending[data[0] % (sizeof ending / sizeof ending[0])]);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(data + 1, 1, size - 1, file) != size - 1 || fclose(file)) abort();
    bool read = grid_read(path, &grid);
    for (int64_t i = 0; read && i < grid_samples(&grid); i++)
        if (!isfinite(grid.sample[i])) abort();
    if (read ? grid.rank < 1 || grid.rank > 3 : !error_text()[0]) abort();
    grid_destroy(&grid);
    remove(path);
    return 0;
}
