/* Layouts of cuda.small for random configurations: the host's compiler and that of the kernels have the same numbers,
 * rows of a halo are where matrix loads find them in different banks, and shared memory has room for every tensor's
 * rows, which are counted here. */
#include "small_numbers.h"
#include "test.h"

#include <stdbool.h>

enum { CONFIGS = 10000 };

static const char *const names[] = {
#define NAME(name) #name,
    SMALL_NUMBERS(NAME)};

static SMALL_NUMBERS_FUNCTION(numbers_of_host)

    static uint64_t state = 1;

static int random_below(int count) {
    return (int)(test_random(&state) >> 33) % count;
}

static struct small_config random_config(void) {
    static const int warp_tiles[][3] = {{1, 1, 16}, {1, 4, 4}, {1, 2, 8}, {2, 2, 4}, {1, 1, 16}};
    struct small_config c = {.pass = random_below(3),
                             .pipeline = random_below(5),
                             .mask = random_below(5),
                             .element_bytes = 2 << random_below(2),
                             .warps = 1 + random_below(14),
                             .near_heads = 1,
                             .chunk_blocks = 16};
    const int *warp_tile = warp_tiles[random_below(5)];
    const bool fetched = c.pipeline >= SMALL_BOXES;
    c.rank = warp_tile[0] > 1 ? 3 : warp_tile[1] > 1 ? 2 + random_below(2) : 1 + random_below(3);
    if (c.pipeline == SMALL_PLANES) c.rank = 3;
    if (c.pipeline == SMALL_LINES && c.rank == 1) c.rank = 2;
    c.dim = (c.element_bytes == 4 ? 32 : 8) * (1 + random_below(4));
    c.dim_v = (c.element_bytes == 4 ? 32 : 8) * (1 + random_below(4));
    c.regions = random_below(2);
    c.stages = fetched ? 1 + random_below(4) : 0;
    c.fetchers = fetched ? 1 + random_below(2) : 0;
    c.held = fetched ? 1 + random_below(4) : 0;
    for (int a = 0; a < 3; a++) {
        c.warp_tile[a] = warp_tile[a];
        c.window[a] = a < 3 - c.rank ? 1 : 1 + random_below(7);
        c.rows[a] = warp_tile[a] * (a < 3 - c.rank ? 1 : 1 + random_below(3));
        c.columns[a] = c.warp_tile[a] + c.window[a] - 1;
        c.halo[a] = c.rows[a] + c.window[a] - 1;
    }
    c.plane_chunks = c.pipeline == SMALL_PLANES;
    if (c.plane_chunks) c.rows[0] = c.warp_tile[0];
    if (fetched && !c.regions && random_below(2)) c.ends[2] = c.rows[2];
    c.grouped = random_below(2);
    if (c.pipeline >= SMALL_LINES) c.slots = c.halo[3 - c.rank] + 2;
    if (c.pass != SMALL_BY_KEY && random_below(2))
        c.bias_count = (2 * c.window[0] - 1) * (2 * c.window[1] - 1) * (2 * c.window[2] - 1);
    return c;
}

/* Consecutive columns of a warp tile's box are consecutive rows of the halo modulo 8, also from line to line and, unless
 * each plane is a chunk of its own, from plane to plane. */
static void check_banks(const struct small_config *c) {
    const long long line = small_line(c), plane = small_plane(c);
    for (int x = 0; x < (c->plane_chunks ? 1 : c->columns[0]); x++)
        for (int y = 0; y < c->columns[1]; y++) {
            const long long row = x * plane + y * line;
            const long long column = ((long long)x * c->columns[1] + y) * c->columns[2];
            CHECK((row - column) % 8 == 0 || c->halo[0] * c->halo[1] == 1,
                  "line %d of plane %d begins at row %lld, column %lld", y, x, row, column);
        }
    CHECK(line >= c->halo[2] &&
              plane >= c->halo[1] * line - (line - c->halo[2]) * (c->halo[0] == 1),
          "lines of %lld rows, planes of %lld", line, plane);
}

/* Rows of all tensors that the pass keeps: halos of two, those of the work tile, and outputs of the backward. */
static long long least_bytes(const struct small_config *c) {
    const long long key = c->dim * c->element_bytes, value = c->dim_v * c->element_bytes;
    const long long halo = (long long)c->halo[0] * c->halo[1] * c->halo[2];
    const long long rows = (long long)c->rows[0] * c->rows[1] * c->rows[2];
    const long long halos = c->stages && !c->slots ? c->stages : 1;
    if (c->pipeline == SMALL_TURNS) return halo * (key > value ? key : value);
    return halos * halo * (key + value) +
           (c->pass == SMALL_FORWARD ? rows * (key > value ? key : value) : rows * (key + value));
}

int main(void) {
    for (int i = 0; i < CONFIGS && !test_failed; i++) {
        const struct small_config c = random_config();
        long long host[SMALL_NUMBER_COUNT], kernel[SMALL_NUMBER_COUNT];
        numbers_of_host(&c, host);
        small_numbers_of_kernels(&c, kernel);
        for (int n = 0; n < SMALL_NUMBER_COUNT; n++)
            CHECK(host[n] == kernel[n], "%s: %lld for the host, %lld for kernels", names[n],
                  host[n], kernel[n]);
        check_banks(&c);
        CHECK(small_shared_bytes(&c) >= least_bytes(&c), "%lld bytes for %lld of rows",
              small_shared_bytes(&c), least_bytes(&c));
        CHECK(small_shared_bytes(&c) % (c.stages ? 1024 : 128) == 0, "%lld bytes",
              small_shared_bytes(&c));
    }
    return test_result();
}
