/* Shared memory of the kernels of cuda.short and cuda.short90, for random configurations and extents: parts follow each
 * other without overlap where their rows can be read, and all of it is as large as the kernels fill it, which is counted
 * here from the rows of each tensor. */
#include "short_config.h"
#include "test.h"

enum { CONFIGS = 10000 };

static uint64_t state = 1;

static int random_below(int count) {
    return (int)(test_random(&state) >> 33) % count;
}

static int up_to(int number, int step) {
    return (number + step - 1) / step * step;
}

/* Bytes of a row in memory, filled up to whole products, and a unit more. */
static int row_bytes(int width, int element_bytes) {
    return up_to(width, element_bytes == 4 ? 32 : 16) * element_bytes + 16;
}

static struct short_config random_config(void) {
    struct short_config c = {.pass = random_below(3), .element_bytes = 2 << random_below(2)};
    if (c.pass == SHORT_RING) c.element_bytes = 2;
    c.dim = 8 * (1 + random_below(16));
    c.dim_v = random_below(2) ? c.dim : 8 * (1 + random_below(16));
    if (c.pass == SHORT_RING) c.dim = c.dim_v = 16 * (2 + random_below(7));
    c.split = 1 << random_below(3);
    c.warps = c.split * (1 + random_below(4));
    c.stages = c.pass == SHORT_FORWARD ? 1 + random_below(2) : 1;
    return c;
}

static struct nh_short_tiling random_tiling(const struct short_config *c) {
    struct nh_short_tiling t = {.tokens = 1 + random_below(256), .groups = 1 + random_below(4)};
    if (c->pass == SHORT_RING) t.groups = 1;
    t.rows = up_to(t.tokens * t.groups, 16);
    t.parts = 1 << random_below(4);
    t.queries = (t.tokens + t.parts - 1) / t.parts;
    t.stages = 1 + random_below(32);
    return t;
}

/* The first 16 rows of ceil(rows / 16 / parts) warp tiles. */
static int rows_of_part(int rows, int parts) {
    return 16 * ((rows / 16 + parts - 1) / parts);
}

static void check_forward(const struct short_config *c, const struct nh_short_tiling *t) {
    const struct short_forward_layout at = short_forward_layout_of(c, t);
    const int key = row_bytes(c->dim, c->element_bytes), v = row_bytes(c->dim_v, c->element_bytes);
    const int own = rows_of_part(t->rows, t->parts), widest = key > v ? key : v;
    const int stage = t->rows * (key + v + 4) + own * widest;
    const int sums = up_to(c->dim_v, c->element_bytes == 4 ? 32 : 16) / 8 + 1;
    const int shares = c->warps / c->split * (c->split - 1) * 32 * 16 * sums;
    const int group = 4 * 3 + 4 + 8 * 5; /* lengths, and offsets of Q, K, V, O and LSE */
    CHECK(at.shares == 80 * (c->stages + 1) && at.shares % 16 == 0, "shares at %d", at.shares);
    CHECK(at.stages == at.shares + shares, "stages at %d, not %d", at.stages, at.shares + shares);
    CHECK(at.values == t->rows * key && at.queries == at.values + t->rows * v, "a stage's tensors");
    CHECK(at.columns == at.queries + own * widest && at.stage_bytes == stage, "a stage of %d bytes",
          at.stage_bytes);
    CHECK(at.groups == at.stages + c->stages * stage && at.groups % 8 == 0, "groups at %d",
          at.groups);
    CHECK(short_shared_bytes(c, t) == at.groups + (c->stages + 1) * t->groups * group, "%d bytes",
          short_shared_bytes(c, t));
}

static void check_backward(const struct short_config *c, const struct nh_short_tiling *t) {
    const struct short_backward_layout at = short_backward_layout_of(c, t, t->rows);
    const int key = row_bytes(c->dim, c->element_bytes), v = row_bytes(c->dim_v, c->element_bytes);
    const int own = t->parts == 1 ? t->rows : rows_of_part(t->rows, t->parts / 2);
    const int tables = t->rows * (16 + 4) + 2 * (t->rows / 16) * 8;
    const int of_queries = own * (key + 2 * v) + t->rows * (key + v),
              of_keys = t->rows * (key + 2 * v) + own * (key + v);
    CHECK(at.columns == 16 * t->rows && at.reach == 20 * t->rows && at.groups == tables, "tables");
    CHECK(at.tensors == tables + t->groups * (16 + 8 * 14) && at.tensors % 16 == 0, "tensors at %d",
          at.tensors);
    CHECK(short_shared_bytes(c, t) == at.tensors + (of_queries > of_keys ? of_queries : of_keys),
          "%d bytes", short_shared_bytes(c, t));
    CHECK(short_part_warp_tiles(t, t->rows) == (t->parts == 1 ? t->rows / 8 : own / 16),
          "%d warp tiles", short_part_warp_tiles(t, t->rows));
}

static void check_ring(const struct short_config *c, const struct nh_short_tiling *t) {
    const struct short_ring_layout at = short_ring_layout_of(c, t);
    const int line = c->dim == 32 ? 64 : 128, row = (c->dim + 63) / 64 * line;
    const int stage = (2 * t->rows + up_to(t->queries, 16)) * row;
    CHECK(at.free == 8 * t->stages && at.places == 16 * t->stages, "barriers");
    CHECK(at.columns == at.places + 48 * t->stages && at.stages == at.columns + 4 * t->rows,
          "tables");
    CHECK(at.values == t->rows * row && at.queries == 2 * at.values && at.stage_bytes == stage,
          "a stage of %d bytes", at.stage_bytes);
    CHECK(at.stage_bytes % 1024 == 0, "a stage of %d bytes is no multiple of the swizzle's period",
          at.stage_bytes);
    CHECK(short_shared_bytes(c, t) == at.stages + 1024 + t->stages * stage, "%d bytes",
          short_shared_bytes(c, t));
}

int main(void) {
    for (int i = 0; i < CONFIGS && !test_failed; i++) {
        const struct short_config c = random_config();
        const struct nh_short_tiling t = random_tiling(&c);
        if (c.pass == SHORT_FORWARD) check_forward(&c, &t);
        if (c.pass == SHORT_BACKWARD) check_backward(&c, &t);
        if (c.pass == SHORT_RING) check_ring(&c, &t);
    }
    return test_result();
}
