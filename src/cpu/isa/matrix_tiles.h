/* The tile instructions of AMX, which has eight tile registers of 16 rows of 64 bytes. */
#ifndef NH_MATRIX_TILES_H
#define NH_MATRIX_TILES_H

#include <stdint.h>

enum { TILE_ROWS = 16, TILE_BYTES = 1024 };

/* Load tile n from 16 rows of 64 bytes, `pitch` bytes apart, and store it. */
#define TILE_LOAD(n, from, pitch) tile_load_##n(from, pitch)
#define TILE_STORE(n, to, pitch) tile_store_##n(to, pitch)
#define TILE_ZERO(n) tile_zero_##n()
/* c[i][j] += sum over k in [0, 32) of a[i][k] * b[k / 2][2 j + k % 2]: c is f32, a and b are bf16. Subnormal numbers count as zeros. */
#define TILE_MULTIPLY(c, a, b) tile_multiply_##c##_##a##_##b()

/* Configures all tile registers with 16 rows of 64 bytes. Each thread has its own configuration, which lasts until
 * tile_close. */
static inline void tile_open(void) {
    struct {
        uint8_t palette, start_row, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int n = 0; n < 8; n++) {
        config.bytes[n] = 64;
        config.rows[n] = TILE_ROWS;
    }
    __asm__ volatile("ldtilecfg %0" ::"m"(config));
}

static inline void tile_close(void) {
    __asm__ volatile("tilerelease");
}

/* The compiler's intrinsics for tiles do not declare that they read or write memory, so inline assembly is used. */
#define DEFINE_TILE(n)                                                                             \
    static inline void tile_load_##n(const void *from, int64_t pitch) {                            \
        __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #n ::"r"(from), "r"(pitch) : "memory");      \
    }                                                                                              \
    static inline void tile_store_##n(void *to, int64_t pitch) {                                   \
        __asm__ volatile("tilestored %%tmm" #n ", (%0,%1,1)" ::"r"(to), "r"(pitch) : "memory");    \
    }                                                                                              \
    static inline void tile_zero_##n(void) {                                                       \
        __asm__ volatile("tilezero %%tmm" #n ::);                                                  \
    }
#define DEFINE_MULTIPLY(c, a, b)                                                                   \
    static inline void tile_multiply_##c##_##a##_##b(void) {                                       \
        __asm__ volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::);                       \
    }

DEFINE_TILE(0)
DEFINE_TILE(1)
DEFINE_TILE(2)
DEFINE_TILE(3)
DEFINE_TILE(4)
DEFINE_TILE(5)
DEFINE_TILE(6)
DEFINE_TILE(7)
/* The products of two tiles of rows (4, 5) with two tiles of columns (6, 7) are summed up in four tiles (0 to 3). */
DEFINE_MULTIPLY(0, 4, 6)
DEFINE_MULTIPLY(1, 4, 7)
DEFINE_MULTIPLY(2, 5, 6)
DEFINE_MULTIPLY(3, 5, 7)

#endif
