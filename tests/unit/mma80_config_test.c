/* Shared memory of the kernels of mma80, for random configurations: it is as large as what the kernels keep there, which
 * is counted here array by array; rows fall into different banks, and what follows tiles of them is aligned. */
#include "mma80_config.h"
#include "test.h"

#include <string.h>

enum { CONFIGS = 10000, BANK_BYTES = 128, MATRIX_ROWS = 8 };

static uint64_t state = 1;

static int below(int count) {
    return (int)(test_random(&state) % (uint64_t)count);
}

/* A box of a power of two of positions. */
static void random_box(int least, int most, int box[3]) {
    int volume = least;
    while (volume < most && below(2))
        volume *= 2;
    for (int a = 0; a < 2; a++)
        for (box[a] = 1; volume > 1 && below(2); volume /= 2)
            box[a] *= 2;
    box[2] = volume;
}

static struct mma80_config random_config(void) {
    static const int bytes[] = {2, 4}, stages[] = {1, 2};
    struct mma80_config c = {.pass = below(4), .element_bytes = bytes[below(2)], .min_blocks = 1};
    c.dim = 1 + below(256);
    c.dim_v = 1 + below(256);
    c.warps = 1 << below(4);
    c.stages = c.pass == MMA80_FORWARD ? stages[below(2)] : 2;
    random_box(16 * c.warps, 128, c.rows);
    random_box(16, 128, c.columns);
    c.biased = c.pass != MMA80_EXTRA && below(2);
    return c;
}

/* Bytes of a row in shared memory: whole steps of 32 bytes, and 16 more. */
static int row_bytes(const struct mma80_config *c, int dim) {
    int bytes = 0;
    while (bytes < dim * c->element_bytes)
        bytes += 32;
    return bytes + 16;
}

static int counted_bytes(const struct mma80_config *c) {
    const int rows = c->rows[0] * c->rows[1] * c->rows[2];
    const int columns = c->columns[0] * c->columns[1] * c->columns[2];
    const int first = row_bytes(c, c->dim), second = row_bytes(c, c->dim_v);
    const int forward = c->pass == MMA80_FORWARD, queries = c->pass == MMA80_BY_QUERY;
    int bytes = forward ? rows * (first > second ? first : second) : rows * (first + second);
    for (int stage = 0; stage < c->stages; stage++) {
        bytes += columns * (first + second);
        if (!forward) bytes += columns * 2 * 4; /* LSE and delta */
    }
    for (int tensor = 0; tensor < (forward || queries ? 2 : 3); tensor++)
        bytes += (columns + 4) * 8; /* 64-bit offsets of columns, and four ways to go on */
    bytes += columns * 8;           /* entries of the bias table */
    for (int a = 0; a < 3; a++)
        bytes += (c->columns[a] + 1) * 4 * 4 + c->rows[a] * 2 * 4; /* prefixes; begins and ends */
    bytes += c->warps * 6 * 4; /* boxes that all rows of a warp see */
    if (forward) return bytes;
    return bytes + (c->biased && queries ? rows * (columns + 8) * 4 : 8);
}

/* The banks in which the 16 bytes of eight rows, one after the other, begin are all different. */
static void check_banks(int pitch_bytes) {
    unsigned banks = 0;
    for (int row = 0; row < MATRIX_ROWS; row++)
        banks |= 1u << row * pitch_bytes % BANK_BYTES / 16;
    CHECK(banks == 255, "rows of %d bytes", pitch_bytes);
}

static void check(const struct mma80_config *c) {
    CHECK(mma80_shared_bytes(c) == counted_bytes(c),
          "pass %d, head dims %d and %d: %d bytes, not %d", c->pass, c->dim, c->dim_v,
          mma80_shared_bytes(c), counted_bytes(c));
    CHECK(mma80_own_elements(c) * c->element_bytes % 16 == 0, "pass %d", c->pass);
    CHECK(mma80_loop_table_bytes(c) % 8 == 0 && mma80_score_table_bytes(c) % 8 == 0, "tables");
    check_banks(mma80_pitch(c, c->dim) * c->element_bytes);
    check_banks(mma80_own_pitch(c) * c->element_bytes);
    check_banks(mma80_pitch(c, c->dim_v) * c->element_bytes);
    CHECK(mma80_padded(c, c->dim) >= c->dim && mma80_padded(c, c->dim) - c->dim < mma80_step(c),
          "%d padded to %d", c->dim, mma80_padded(c, c->dim));
}

int main(void) {
    for (int i = 0; i < CONFIGS; i++) {
        const struct mma80_config config = random_config();
        check(&config);
    }
    return test_result();
}
