/* Shared memory of the kernels of wgmma90, for random configurations: parts follow each other without overlap, where the
 * copy engine, wgmma and barriers can use them, and are as large as the kernels fill them, which is counted here from the
 * tiles. */
#include "test.h"
#include "wgmma90_config.h"

#include <string.h>

enum { CONFIGS = 10000, FIELDS = sizeof(struct wgmma90_layout) / sizeof(unsigned) };

static uint64_t state = 1;

static struct wgmma90_config random_config(void) {
    static const int dims[] = {32, 48, 64, 80, 96, 128, 192, 256};
    static const int own[][3] = {{1, 1, 128}, {1, 16, 8}, {8, 4, 4}, {1, 24, 8}, {12, 4, 4}};
    static const int loop[][3] = {{1, 1, 64}, {1, 8, 8}, {1, 10, 8}, {2, 4, 8}, {1, 4, 16}};
    struct wgmma90_config c = {.own_heads = 1, .loop_boxes = 1, .cluster = 1, .head_parts = 1};
    const uint64_t bits = test_random(&state);
    c.kernel = (int)(bits % 5);
    const int shape = (int)((bits >> 8) % (c.kernel == WGMMA90_FORWARD ? 5 : 3));
    c.dim = dims[(bits >> 16) % 8];
    c.dim_v = dims[(bits >> 24) % 8];
    memcpy(c.own, own[shape], sizeof c.own);
    memcpy(c.loop, loop[(bits >> 32) % 5], sizeof c.loop);
    c.warpgroups = shape > 2 ? 3 : 2;
    c.stack = c.own[0] > 1 ? 0 : c.own[1] > 1 ? 1 : 2;
    c.stages = 2 + (int)((bits >> 40) % 5);
    c.own_places = c.kernel == WGMMA90_QUERY || c.kernel == WGMMA90_KEY ? 1 + (bits >> 48) % 2 : 1;
    c.biased = c.kernel < WGMMA90_EXTRA && c.own[2] >= 8 && (bits >> 50) % 2;
    c.mask = c.kernel == WGMMA90_FORWARD ? (int)((bits >> 52) % 3) : WGMMA90_MASK_BITS;
    c.sum_d_k = c.kernel != WGMMA90_EXTRA || (bits >> 54) % 2;
    c.sum_d_v = 1;
    return c;
}

/* Bytes of a row of 16-bit elements in whole swizzle atoms of 64 or 128 bytes. */
static int row_bytes(int dim) {
    return dim == 32 ? 64 : (2 * dim + 127) / 128 * 128;
}

/* The bytes of all tiles: own rows, and stages. */
static int tiles_bytes(const struct wgmma90_config *c) {
    const int own = 64 * c->warpgroups * c->own_places;
    const int rows = c->loop[0] * c->loop[1] * c->loop[2] * c->stages;
    const int q = row_bytes(c->dim), v = row_bytes(c->dim_v);
    switch (c->kernel) {
    case WGMMA90_FORWARD: return own * q + rows * (q + v);
    case WGMMA90_QUERY: return own * (q + v) + rows * (q + v);
    case WGMMA90_EXTRA:
    case WGMMA90_KEY: return own * (q + c->sum_d_k * v) + rows * (q + v + 16);
    default: /* dS of two tiles and dQ in f32 besides */
        return own * (q + v) + rows * (q + v + 16) + rows / c->stages * (2 * 2 * own + 2 * q);
    }
}

static void check(const struct wgmma90_config *c) {
    const unsigned base = 1024 * (unsigned)(1 + test_random(&state) % 8);
    const struct wgmma90_layout at = wgmma90_layout_at(c, base), from_0 = wgmma90_layout_at(c, 0);
    unsigned field[FIELDS], zero[FIELDS];
    memcpy(field, &at, sizeof at);
    memcpy(zero, &from_0, sizeof from_0);
    for (int i = 0; i < FIELDS; i++) {
        CHECK(field[i] == 0 || (field[i] >= base && field[i] <= at.end), "kernel %d, field %d: %u",
              c->kernel, i, field[i]);
        CHECK(field[i] == 0 || field[i] == zero[i] + base, "kernel %d, field %d moves", c->kernel,
              i);
        CHECK(field[i] % 8 == 0, "kernel %d, field %d: %u", c->kernel, i, field[i]);
    }
    const unsigned first_barrier = at.own_full - base, period = c->dim == 32 ? 512 : 1024;
    const int more = c->kernel == WGMMA90_QUERY && c->biased
                         ? wgmma90_parts_bytes(c) + 2 * wgmma90_lines_bytes(c)
                         : 0;
    const int biases = wgmma90_owns_keys(c) ? 0 : c->stages * wgmma90_bias_bytes(c);
    const int masks = c->mask == WGMMA90_MASK_PRODUCT ? 64 * wgmma90_loop_columns(c) : 0;
    CHECK((int)first_barrier == tiles_bytes(c) + biases + masks + more,
          "kernel %d: tiles end at %u, not %d", c->kernel, first_barrier,
          tiles_bytes(c) + biases + masks + more);
    CHECK((at.k - base) % period == 0 && (c->dim_v == 32 || (at.v - base) % 1024 == 0),
          "kernel %d: K at %u, V at %u", c->kernel, at.k, at.v);
    CHECK(wgmma90_shared_bytes(c) == 1024 + (int)from_0.end, "kernel %d", c->kernel);
    const int registers =
        wgmma90_producer_registers(c) + c->warpgroups * wgmma90_consumer_registers(c);
    CHECK(registers <= 512 && wgmma90_producer_registers(c) % 8 == 0, "%d registers", registers);
}

int main(void) {
    for (int i = 0; i < CONFIGS; i++) {
        const struct wgmma90_config config = random_config();
        check(&config);
    }
    return test_result();
}
