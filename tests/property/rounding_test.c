/* Results of 2-byte types are rounded alike by every instruction set: `rounding_test ISA`. */
#include "case.h"

#include <stdbool.h>

enum { HALVES = 1 << 16, HALVES_WIDTH = 64 };

/* Whether bits of a 2-byte type stand for the same: NaN is NaN, and zero may have either sign, as products that are rounded before
 * they are added to 0 lose it. */
static bool same_number(int32_t dtype, uint16_t a, uint16_t b) {
    const int32_t infinity = dtype == NHOOD_DTYPE_F16 ? 0x7c00 : 0x7f80;
    const int32_t size_a = a & 0x7fff, size_b = b & 0x7fff;
    return a == b || (size_a == 0 && size_b == 0) || (size_a > infinity && size_b > infinity);
}

/* Every number of a 2-byte type times some number: a product that f32 holds, or rounds as f64 does, is stored with the same bits
 * by the reference and by each instruction set, ties, subnormal and infinite results included. */
static void halves_round_alike(nhood_context *context, const char *text) {
    static uint16_t value[HALVES], result[2][HALVES], weight[HALVES / HALVES_WIDTH];
    static const char *const solvers[] = {"reference", "cpu.unfused"};
    uint64_t state = 88172645463325252u;
    struct test_case c = {.io = {.struct_size = sizeof c.io}};
    CHECK(!nhood_problem_parse(text, &c.problem), "%s", nhood_last_error());
    for (int i = 0; i < HALVES; i++)
        value[i] = (uint16_t)i;
    for (int i = 0; i < HALVES / HALVES_WIDTH; i++) /* up to 32 as f16, 2^33 as bf16 */
        weight[i] = (uint16_t)(0x5000 * (test_uniform(&state) + 1) / 2);
    c.io.data[NHOOD_A] = weight;
    c.io.data[NHOOD_V] = value;
    for (int i = 0; i < 2; i++) {
        c.io.data[NHOOD_O] = result[i];
        CHECK(!case_run(context, &c, solvers[i]), "%s", nhood_last_error());
    }
    for (int i = 0; i < HALVES; i++)
        CHECK(same_number(c.problem.dtype, result[0][i], result[1][i]),
              "%s: %04x times %04x is %04x, not %04x", text, (unsigned)i,
              (unsigned)weight[i / HALVES_WIDTH], (unsigned)result[1][i], (unsigned)result[0][i]);
}

int main(int argc, char **argv) {
    const nhood_context_options options = {
        .struct_size = sizeof options, .threads = 1, .isa = argc == 2 ? argv[1] : "none"};
    nhood_context *context = NULL;
    CHECK(!nhood_context_create(&options, &context), "%s", nhood_last_error());
    if (!context) return test_result();
    halves_round_alike(context, "nn:f16:b1h1d64:1024:w1");
    halves_round_alike(context, "nn:bf16:b1h1d64:1024:w1");
    nhood_context_destroy(context);
    return test_result();
}
