/* What a launch of cuda.split80 needs: shared memory, registers, blocks. */
#include "split80_launch.h"

#include "rates.h"
#include "tile_count.h"

enum { MOST_DIMS_AT_ONCE = 384 };
const struct nh_knob nh_split80_knobs[] = {
#define KNOB NH_KNOB_AS_ROW
#include "split80_knobs.def"
#undef KNOB
    {NULL, NULL}};

bool nh_split80_apart(const struct nh_problem *problem) {
    return problem->dim + problem->dim_v > MOST_DIMS_AT_ONCE;
}

/* struct nh_shared of the kernel, which asserts that this is its size. */
int64_t nh_split80_shared_bytes(const struct nh_problem *problem, const int32_t *side,
                                bool inverse) {
    const int32_t *row = side + SPLIT80_ROW, *column = side + SPLIT80_COLUMN;
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    int64_t rows = nh_box_volume(row), columns = nh_box_volume(column);
    int64_t pair = (w.dim + w.dim_v) * w.element_bytes + 32;
    int64_t tensors = inverse ? 3 : 2, loop = tensors * (columns + 4) * 8, bias = columns * 8;
    int64_t stats = SPLIT80_STAGES * columns * 8, dense = (int64_t)side[SPLIT80_WARPS] * 24;
    int64_t masks = nh_tiled80_mask_bytes(row, column);
    int64_t bias_tile = problem->has_bias && !inverse ? rows * (columns + 8) * 4 : 8;
    int64_t bytes =
        (rows + SPLIT80_STAGES * columns) * pair + loop + bias + stats + masks + dense + bias_tile;
    return nh_ceil_div(bytes, 8) * 8;
}

/* Gradients, scores and their gradients of a thread, and what addresses and operands take. */
static int64_t registers_of(const struct nh_problem *problem, const int32_t *side, bool inverse) {
    struct nh_tiled80_widths w = nh_tiled80_widths(problem);
    int64_t blocks = nh_box_volume(side + SPLIT80_ROW) / side[SPLIT80_WARPS] / 16;
    int64_t sums = !inverse                    ? w.dim
                   : nh_split80_apart(problem) ? nh_max(w.dim, w.dim_v)
                                               : w.dim + w.dim_v;
    return blocks * (sums / 2 + nh_box_volume(side + SPLIT80_COLUMN)) + 64;
}

int64_t nh_split80_residents(const struct nh_problem *problem, const struct nh_cuda_device *device,
                             const int32_t *side, bool inverse) {
    enum { SPILLED = 32 };
    int64_t registers = registers_of(problem, side, inverse);
    if (registers > NH_TILED80_MOST_REGISTERS + SPILLED) return 0;
    return nh_tiled80_residents(device, nh_split80_shared_bytes(problem, side, inverse),
                                side[SPLIT80_WARPS], registers);
}

int64_t nh_split80_head_tiles(const struct nh_problem *problem, const int32_t *side, bool inverse) {
    int64_t tiles = problem->batch;
    for (int a = 0; a < NH_AXES; a++)
        tiles *= nh_row_tiles(&problem->axis[a], side[SPLIT80_ROW + a], inverse);
    return tiles;
}

int64_t nh_split80_bias_shares(const struct nh_problem *problem,
                               const struct nh_cuda_device *device, const int32_t *side) {
    const int64_t most_table_bytes = (int64_t)256 << 20, rounds = 4;
    int64_t blocks =
        rounds * device->multiprocessors * nh_split80_residents(problem, device, side, false);
    int64_t by_memory = most_table_bytes / (problem->heads * problem->bias_count * 4);
    int64_t wanted = nh_min(nh_ceil_div(blocks, problem->heads), by_memory);
    return nh_max(1, nh_min(wanted, nh_split80_head_tiles(problem, side, false)));
}

void nh_split80_extra_side(const struct nh_problem *problem, const int32_t *keys,
                           int32_t side[SPLIT80_SIDE]) {
    for (int i = 0; i < SPLIT80_SIDE; i++)
        side[i] = keys[i];
    int32_t rows = (int32_t)nh_box_volume(keys + SPLIT80_ROW);
    for (; side[SPLIT80_WARPS] % 2 == 0 && rows / 2 >= problem->extra_tokens; rows /= 2)
        side[SPLIT80_WARPS] /= 2;
    side[SPLIT80_ROW] = side[SPLIT80_ROW + 1] = 1;
    side[SPLIT80_ROW + 2] = rows;
}
