/* Neighborhoods that fit shared memory: what the kernels of this family share. Tensor cores of sm_80 and later, 16 bits.
 *
 * Rows are what a kernel works for, columns what each row meets: queries and their keys, or with NH_INVERSE keys and
 * the queries that attend them. A block takes one box of rows (an item) after the other. All columns that the box
 * meets lie in a box too, the halo, which is copied to shared memory as a whole. A warp takes 16 rows at a time, again
 * a box (a subtile), and gathers the box of their columns out of the halo by the row addresses of its matrix loads:
 * hardly more is multiplied than what the rows see. All positions are inside one dilation group.
 *
 * Lines of the halo are spaced so that consecutive columns of a subtile's box are consecutive rows modulo 8 across the
 * ends of lines, too: with the swizzle, the eight rows of a matrix load fall into different banks.
 *
 * On sm_90 the copy engine fetches halos and rows as boxes (NH_STAGES > 0: see small_boxes.cuh), else threads copy them.
 * Then a block may take items that follow each other along the first axis, and fetch of each halo what the one before did
 * not have (NH_SLOTS > 0: see small_roll.cuh).
 *
 * Knobs: NH_DTYPE, NH_RANK, NH_DIM, NH_DIM_V (multiples of 8 up to 128), NH_Q0.. (rows of an item), NH_S0.. (of a
 * subtile), NH_K0.. (columns of a subtile), NH_H0.. (of an item), NH_WARPS, NH_MIN_BLOCKS, NH_INVERSE, NH_STRIDED (some
 * stride is not 1), NH_DENSE (every row sees all columns of its subtile's box), NH_PENALTY (see small_penalty.cuh),
 * NH_W0.. (windows, with NH_PENALTY or a bias), NH_BIAS_COUNT (entries of a head's bias table, 0: none), NH_SHARED_BYTES. */
#pragma once
#define NH_POSITION int
#include "prelude.cuh"
#include "tile_note.cuh"

#include "mma.cuh"

/* Of the copy engine's boxes that are under way or in use at a time; 0: threads copy. */
#ifndef NH_STAGES
#define NH_STAGES 0
#endif

/* Of the rolling halo; 0: an item's halo is fetched as a whole. */
#ifndef NH_SLOTS
#define NH_SLOTS 0
#endif

#define NH_LOG2E 1.4426950408889634
#define NH_LN2 0.6931471805599453

#ifndef NH_HEAD_SLOWEST
#define NH_HEAD_SLOWEST 0
#endif

/* The least number of rows from `rows` on that is congruent to `residue` modulo 8. */
#define NH_CONGRUENT(rows, residue) ((rows) + (((residue) - (rows)) % 8 + 8) % 8)

enum {
    NH_FETCHERS = NH_STAGES < 3 ? NH_STAGES : 3, /* of a block's warps, the last */
    NH_THREADS = 32 * (NH_WARPS + NH_FETCHERS),
    NH_FIRST_AXIS = 3 - NH_RANK, /* axes in front of it have length 1 */
    NH_ROWS = NH_Q0 * NH_Q1 * NH_Q2,
    NH_SUBTILES = NH_ROWS / 16,
    NH_AXIS_ROWS = NH_Q0 + NH_Q1 + NH_Q2,
    NH_BOX = NH_K0 * NH_K1 * NH_K2,
    /* A product has 8 columns, a matrix load 16, and a thread's masks of a chunk are 32 bits. */
    NH_BOX_BLOCKS = (NH_BOX + 7) / 8,
    NH_CHUNKS = (NH_BOX_BLOCKS + 15) / 16,
    NH_PAIRS = ((NH_BOX_BLOCKS + NH_CHUNKS - 1) / NH_CHUNKS + 1) / 2,
    NH_BLOCKS = NH_CHUNKS == 1 ? NH_BOX_BLOCKS : 2 * NH_PAIRS,
    NH_CHUNK = 16 * NH_PAIRS,
    NH_COLUMNS = NH_CHUNKS * NH_CHUNK,
    NH_LINE = NH_H0 * NH_H1 == 1 ? NH_H2 : NH_CONGRUENT(NH_H2, NH_K2),
    NH_PLANE = NH_H0 == 1 ? NH_H1 * NH_LINE : NH_CONGRUENT(NH_H1 *NH_LINE, NH_K1 *NH_K2),
    /* what is fetched at a time: with NH_SLOTS as far along the first axis as an item's rows */
    NH_FETCHED_ROWS = NH_SLOTS ? NH_H0 * NH_PLANE : (NH_H0 - 1) * NH_PLANE + (NH_H1 - 1) * NH_LINE + NH_H2,
    NH_HALO_ROWS = NH_SLOTS ? NH_SLOTS * NH_FETCHED_ROWS : NH_FETCHED_ROWS,
    /* statistics of columns: the copy engine's boxes start at multiples of 128 bytes, so a slot of lines has whole ones */
    NH_STATISTICS_LINE = NH_SLOTS && NH_RANK == 2 ? (NH_LINE + 1) / 2 * 2 : NH_LINE,
    NH_FETCHED_STATISTICS = NH_RANK == 2 && NH_SLOTS ? NH_H1 * NH_STATISTICS_LINE : NH_FETCHED_ROWS,
    NH_STATISTICS = NH_SLOTS ? NH_SLOTS * NH_FETCHED_STATISTICS : NH_FETCHED_STATISTICS,
    /* where threads copy, and where it rolls, there is only one */
    NH_HALOS = NH_STAGES == 0 || NH_SLOTS ? 1 : NH_STAGES,
    NH_STEPS = (NH_DIM + 15) / 16,
    NH_STEPS_V = (NH_DIM_V + 15) / 16,
    NH_WIDEST = NH_DIM > NH_DIM_V ? NH_DIM : NH_DIM_V,
    NH_STAGE_ALIGNMENT = NH_STAGES ? 1024 : 128 /* boxes start where the copy engine's swizzle does */
};
static_assert(NH_STAGES || NH_SUBTILES % NH_WARPS == 0, "every warp has as many subtiles");

/* ---- rows in shared memory: units of 16 bytes ---- */

NH_DEVICE constexpr int nh_units(int width) {
    return (width + 15) / 16 * 2;
}

/* An even number of units that is no power of two gets one more: then no swizzle is needed. */
NH_DEVICE constexpr bool nh_swizzled(int width) {
    return (nh_units(width) & (nh_units(width) - 1)) == 0;
}
NH_DEVICE constexpr int nh_row_bytes(int width) {
    return 16 * (nh_units(width) + !nh_swizzled(width));
}

NH_DEVICE int nh_swizzle(int width, int row) {
    return !nh_swizzled(width)    ? 0
           : nh_units(width) == 2 ? row >> 2 & 1
           : nh_units(width) == 4 ? row >> 1 & 3
                                  : row & 7;
}

NH_DEVICE int nh_unit_offset(int width, int row, int unit) {
    return row * nh_row_bytes(width) + ((unit ^ nh_swizzle(width, row)) << 4);
}

/* ---- boxes ---- */

NH_DEVICE constexpr int nh_axis_rows(int axis) {
    return axis == 0 ? NH_Q0 : axis == 1 ? NH_Q1 : NH_Q2;
}
NH_DEVICE constexpr int nh_axis_subtile(int axis) {
    return axis == 0 ? NH_S0 : axis == 1 ? NH_S1 : NH_S2;
}
NH_DEVICE constexpr int nh_axis_columns(int axis) {
    return axis == 0 ? NH_K0 : axis == 1 ? NH_K1 : NH_K2;
}
NH_DEVICE constexpr int nh_axis_halo(int axis) {
    return axis == 0 ? NH_H0 : axis == 1 ? NH_H1 : NH_H2;
}
/* Halo rows from one position to the next. */
NH_DEVICE constexpr int nh_axis_pitch(int axis) {
    return axis == 0 ? NH_PLANE : axis == 1 ? NH_LINE : 1;
}
NH_DEVICE constexpr int nh_statistics_pitch(int axis) {
    return axis == 1 ? NH_STATISTICS_LINE : nh_axis_pitch(axis);
}
NH_DEVICE constexpr int nh_rows_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? NH_Q0 : NH_Q0 + NH_Q1;
}
NH_DEVICE constexpr int nh_prefixes_before(int axis) {
    return axis == 0 ? 0 : axis == 1 ? NH_K0 + 1 : NH_K0 + NH_K1 + 2;
}

/* Coordinate of a column in its subtile's box; the last axis is fastest. */
NH_DEVICE int nh_column_at(int column, int axis) {
    return axis == 2 ? column % NH_K2 : axis == 1 ? column / NH_K2 % NH_K1 : column / (NH_K2 * NH_K1);
}

/* Coordinate in the item of row 0 .. 15 of a subtile. */
NH_DEVICE int nh_row_at(unsigned subtile, unsigned row, int axis) {
    const unsigned across = NH_Q2 / NH_S2, down = NH_Q1 / NH_S1;
    return (int)(axis == 2   ? subtile % across * NH_S2 + row % NH_S2
                 : axis == 1 ? subtile / across % down * NH_S1 + row / NH_S2 % NH_S1
                             : subtile / (across * down) * NH_S0 + row / (NH_S2 * NH_S1));
}

/* Where shared memory has that row of the item: the last axis is fastest; a box of the copy engine is a subtile. */
NH_DEVICE int nh_row_number(int subtile, int row) {
    if (NH_STAGES) return 16 * subtile + row;
    return (nh_row_at(subtile, row, 0) * NH_Q1 + nh_row_at(subtile, row, 1)) * NH_Q2 +
           nh_row_at(subtile, row, 2);
}

/* ---- items ---- */

NH_DEVICE int nh_least(int a, int b) {
    return a < b ? a : b;
}

NH_DEVICE int nh_digit(unsigned *index, int base) {
    unsigned quotient = *index / (unsigned)base;
    int digit = (int)(*index - quotient * (unsigned)base);
    *index = quotient;
    return digit;
}

/* Columns of the row at a position. */
NH_DEVICE nh_range nh_columns_of(const nh_cuda_axis &axis, int length, int position) {
    const int stride = NH_STRIDED ? (int)axis.stride : 1;
    if (NH_INVERSE)
        return nh_inverse_range(length, (int)axis.window, stride, axis.causal, position);
    return nh_window_range(length, (int)axis.window, stride, axis.causal, position);
}

#include "small_roll.cuh"

struct nh_item {
    int number, batch, head; /* of the rows */
    /* dilation group and its tokens, first positions of rows and halo */
    int group[3], length[3], row[3], column[3];
    nh_roll roll;
    /* Of each tensor: offset of the first row, or of the halo's first column; elements from one position to the next.
     * (In shared memory because the compiler would keep products of strides in registers across items.) */
    long long origin[NH_CUDA_TENSORS], step[NH_CUDA_TENSORS][3];
};

/* By one warp; lane i works out the origin in tensor i. A group may be too short for its last box of rows: that item
 * has no rows that exist. first: of those that a block takes. */
NH_DEVICE void nh_item_locate(const nh_cuda_args &args, int index, bool first, nh_item &item) {
    const unsigned keys = 1u << NH_K | 1u << NH_V | 1u << NH_D_K | 1u << NH_D_V;
    int lane = (int)(threadIdx.x % 32), row[3] = {0, 0, 0}, column[3] = {0, 0, 0}, group[3] = {0, 0, 0};
    int length[3] = {1, 1, 1};
    unsigned rest = (unsigned)index;
    const int near_head = NH_SLOTS ? nh_digit(&rest, NH_NEAR_HEADS) : 0, line = (int)rest;
    if (NH_SLOTS) row[NH_FIRST_AXIS] = nh_digit(&rest, args.tiling.tiles[NH_FIRST_AXIS]) * nh_axis_rows(NH_FIRST_AXIS);
#pragma unroll
    for (int a = 2; a >= NH_FIRST_AXIS + (NH_SLOTS > 0); a--)
        row[a] = nh_digit(&rest, args.tiling.tiles[a]) * nh_axis_rows(a);
#pragma unroll
    for (int a = 2; a >= NH_FIRST_AXIS; a--) {
        const nh_cuda_axis &axis = args.axis[a];
        if (axis.dilation > 1) group[a] = nh_digit(&rest, (int)axis.dilation);
        length[a] = nh_axis_group_length((int)axis.length, (int)axis.dilation, group[a]);
        column[a] = nh_columns_of(axis, length[a], nh_least(row[a], length[a] - 1)).begin;
    }
    nh_roll roll = {0, {0, 0}};
    if (NH_SLOTS) {
        roll = nh_roll_of(args, length[NH_FIRST_AXIS], row[NH_FIRST_AXIS], line, first);
        column[NH_FIRST_AXIS] = nh_roll_begin(args, column[NH_FIRST_AXIS]);
    }
    int share = (int)(args.heads / args.kv_heads);
    int heads = (int)(NH_INVERSE ? args.kv_heads : args.heads), row_head;
    if (NH_HEAD_SLOWEST || NH_SLOTS) {
        int batch = nh_digit(&rest, (int)args.batch);
        row_head = (int)rest * (NH_SLOTS ? NH_NEAR_HEADS : 1) + near_head;
        rest = (unsigned)batch;
    } else {
        row_head = nh_digit(&rest, heads);
    }
    if (lane < NH_CUDA_TENSORS) {
        const nh_cuda_tensor &t = args.tensor[lane];
        bool of_keys = keys >> lane & 1;
        int head = NH_INVERSE ? (of_keys ? row_head : row_head * share)
                              : (of_keys ? row_head / share : row_head);
        long long origin = rest * t.batch + head * t.head;
#pragma unroll
        for (int a = NH_FIRST_AXIS; a < 3; a++) {
            int at = of_keys == (NH_INVERSE != 0) ? row[a] : column[a];
            origin += (at * args.axis[a].dilation + group[a]) * t.axis[a];
            item.step[lane][a] = args.axis[a].dilation * t.axis[a];
        }
        item.origin[lane] = origin;
    }
    if (lane == 0) {
        item.number = index;
        item.batch = (int)rest;
        item.head = row_head;
        item.roll = roll;
#pragma unroll
        for (int a = 0; a < 3; a++) {
            item.group[a] = group[a];
            item.row[a] = row[a];
            item.column[a] = column[a];
            item.length[a] = length[a];
        }
    }
}

/* In the counting build a subtile and its box are one pair of tiles. By all lanes of a warp. */
NH_DEVICE void nh_note_subtile(const nh_cuda_args &args, int index, int subtile) {
    if (NH_NOTED && threadIdx.x % 32 == 0) nh_note_tile(args, index, subtile, true, !NH_DENSE);
}

NH_DEVICE bool nh_subtile_exists(const nh_item &item, int subtile) {
    bool exists = true;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        exists = exists && item.row[a] + nh_row_at(subtile, 0, a) < item.length[a];
    return exists;
}

/* Calls work(subtile) for each that is the warp's and exists. */
template <typename Work>
NH_DEVICE void nh_for_subtiles(const nh_cuda_args &args, const nh_item &item, const Work &work) {
#pragma unroll 1
    for (int subtile = (int)(threadIdx.x / 32); subtile < NH_SUBTILES; subtile += NH_WARPS)
        if (nh_subtile_exists(item, subtile)) {
            nh_note_subtile(args, item.number, subtile);
            work(subtile);
        }
}

NH_DEVICE bool nh_row_exists(const nh_item &item, int subtile, int row) {
    bool exists = true;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        exists = exists && item.row[a] + nh_row_at(subtile, row, a) < item.length[a];
    return exists;
}

/* Elements from a tensor's start to a row. */
NH_DEVICE long long nh_row_offset(const nh_item &item, int slot, int subtile, int row) {
    long long offset = item.origin[slot];
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        offset += nh_row_at(subtile, row, a) * item.step[slot][a];
    return offset;
}

/* ---- copies ---- */

/* A box of X x Y x Z rows of WIDTH elements to lines of shared rows for ROOM elements; zeros where count ends. Threads
 * own a place in a line and go from line to line. */
template <int WIDTH, int ROOM, int X, int Y, int Z, int LINE, int PLANE>
NH_DEVICE void nh_copy_box(const elem *from, const long long (&step)[3], const int (&count)[3],
                           char *to) {
    const unsigned units = nh_units(WIDTH), span = Z * units;
    const int teams = span < NH_THREADS ? NH_THREADS / span : 1, lines = X * Y;
    const unsigned thread = nh_thread_again(), team = teams > 1 ? thread / span : 0;
    if (team >= teams) return;
    long long line_step = NH_FIRST_AXIS < 2 ? teams * step[1] : 0;
#pragma unroll
    for (unsigned first = 0; first < span; first += NH_THREADS) {
        unsigned place = first + thread - team * span;
        if (place >= span) return;
        int z = (int)(place / units), unit = (int)(place % units);
        bool inside = z < count[2] && 8 * unit < WIDTH;
        const elem *line = from + z * step[2] + 8 * unit;
        if (X == 1 && teams > 1) line += team * step[1];
#pragma unroll
        for (int i = 0; i < lines; i += teams) {
            int number = i + (int)team, x = number / Y, y = number % Y;
            const elem *source = X == 1 ? line : line + x * step[0] + y * step[1];
            if (lines % teams == 0 || number < lines)
                nh_copy16(to + nh_unit_offset(ROOM, x * PLANE + y * LINE + z, unit), source,
                          inside && x < count[0] && y < count[1]);
            if (X == 1) line += line_step;
        }
    }
}

/* The item's halo in a column tensor; `ahead` elements from its first head. */
template <int WIDTH>
NH_DEVICE void nh_copy_halo(const nh_cuda_args &args, const nh_item &item, int slot, long long ahead,
                            char *to) {
    int count[3];
#pragma unroll
    for (int a = 0; a < 3; a++)
        count[a] = item.length[a] - item.column[a];
    nh_copy_box<WIDTH, WIDTH, NH_H0, NH_H1, NH_H2, NH_LINE, NH_PLANE>(
        (const elem *)args.tensor[slot].data + item.origin[slot] + ahead, item.step[slot], count, to);
}

/* The item's rows. */
template <int WIDTH, int ROOM>
NH_DEVICE void nh_copy_rows(const nh_cuda_args &args, const nh_item &item, int slot, char *to) {
    int count[3];
#pragma unroll
    for (int a = 0; a < 3; a++)
        count[a] = item.length[a] - item.row[a];
    nh_copy_box<WIDTH, ROOM, NH_Q0, NH_Q1, NH_Q2, NH_Q2, NH_Q1 * NH_Q2>(
        (const elem *)args.tensor[slot].data + item.origin[slot], item.step[slot], count, to);
}

/* ---- operands ---- */

/* Rows of a subtile as the first operand of products. */
template <int ROOM, int STEPS>
NH_DEVICE void nh_load_rows(unsigned (&operand)[STEPS][4], const char *rows, int subtile) {
    int lane = (int)(nh_thread_again() % 32), row = nh_row_number(subtile, lane % 16);
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        nh_load_matrices(operand[s], rows + nh_unit_offset(ROOM, row, 2 * s + lane / 16));
}

/* Which of 16 columns, and which half of a step of 16 elements, a lane names in matrix loads. Columns are the second
 * operand of a product as they lie if it runs over their elements, transposed if it runs over columns. */
enum nh_order { NH_AS_LAID, NH_TRANSPOSED };
template <nh_order ORDER> NH_DEVICE int nh_lane_column() {
    int lane = (int)(threadIdx.x % 32);
    return ORDER == NH_TRANSPOSED ? lane % 16 : lane % 8 + lane / 16 * 8;
}
template <nh_order ORDER> NH_DEVICE int nh_lane_half() {
    int lane = (int)(threadIdx.x % 32);
    return ORDER == NH_TRANSPOSED ? lane / 16 : lane / 8 % 2;
}

/* Where in shared memory a lane finds its elements of the column in halo row `first`, step after step; for columns whose
 * numbers are congruent to the lane's modulo 8. */
template <nh_order ORDER, int WIDTH, int STEPS>
NH_DEVICE void nh_gather_start(unsigned (&start)[STEPS], const char *halo, int first) {
    int swizzle = nh_swizzle(WIDTH, first + (int)(threadIdx.x % 8));
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        start[s] = nh_shared_address(halo) + first * nh_row_bytes(WIDTH) +
                   (((2 * s + nh_lane_half<ORDER>()) ^ swizzle) << 4);
}

NH_DEVICE void nh_product(float (&c)[4], const unsigned (&a)[4], unsigned b0, unsigned b1) {
    const unsigned b[2] = {b0, b1};
    if (NH_DTYPE == NH_F16) {
        nh_mma_f16(c, a, b);
    } else {
        nh_mma_bf16(c, a, b);
    }
}

/* c[0] and c[1] += rows times the 16 columns `ahead` rows from the start; the second eight only if `both`. */
template <int WIDTH, int STEPS>
NH_DEVICE void nh_multiply_columns(float (*c)[4], const unsigned (&rows)[STEPS][4],
                                   const unsigned (&start)[STEPS], int ahead, bool both) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        unsigned b[4];
        nh_load_matrices_at(b, start[s] + ahead * nh_row_bytes(WIDTH));
        nh_product(c[0], rows[s], b[0], b[1]);
        if (both) nh_product(c[1], rows[s], b[2], b[3]);
    }
}

/* sum += weights times the 16 columns' elements. */
template <int WIDTH, int STEPS>
NH_DEVICE void nh_add_columns(float (&sum)[2 * STEPS][4], const unsigned (&weights)[4],
                              const unsigned (&start)[STEPS], int ahead) {
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        unsigned b[4];
        nh_load_matrices_transposed_at(b, start[s] + ahead * nh_row_bytes(WIDTH));
        nh_product(sum[2 * s], weights, b[0], b[1]);
        nh_product(sum[2 * s + 1], weights, b[2], b[3]);
    }
}

NH_DEVICE unsigned nh_pack(float low, float high) {
    unsigned both;
#if NH_DTYPE == NH_F16
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#else
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
#endif
    return both;
}

/* Weights of 16 columns as the first operand of a product. */
NH_DEVICE void nh_pack_weights(unsigned (&operand)[4], const float (*c)[4], bool both) {
    operand[0] = nh_pack(c[0][0], c[0][1]);
    operand[1] = nh_pack(c[0][2], c[0][3]);
    operand[2] = both ? nh_pack(c[1][0], c[1][1]) : 0u;
    operand[3] = both ? nh_pack(c[1][2], c[1][3]) : 0u;
}

template <int COUNT> NH_DEVICE void nh_clear(float (&sum)[COUNT][4]) {
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        sum[i][0] = sum[i][1] = sum[i][2] = sum[i][3] = 0.f;
}

/* Over the four lanes that share a row. */
NH_DEVICE float nh_row_max(float value) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, 1));
    return fmaxf(value, __shfl_xor_sync(~0u, value, 2));
}
NH_DEVICE float nh_row_sum(float value) {
    value += __shfl_xor_sync(~0u, value, 1);
    return value + __shfl_xor_sync(~0u, value, 2);
}

/* ---- rows that come out not finite ---- */

/* Whether the sums of row g (half 0) or g + 8 that this thread has are not all finite. */
template <int COUNT> NH_DEVICE bool nh_spoilt(const float (&sum)[COUNT][4], int half) {
    float total = 0.f;
#pragma unroll
    for (int u = 0; u < COUNT; u++)
        total += sum[u][2 * half] + sum[u][2 * half + 1];
    return total - total != 0.f;
}

/* Calls redo(row), by the whole warp, for rows g (`first`) and g + 8 (`second`) of threads that say so. */
template <typename Redo> NH_DEVICE void nh_for_spoilt_rows(bool first, bool second, const Redo &redo) {
    unsigned lanes[2] = {__ballot_sync(~0u, first), __ballot_sync(~0u, second)};
#pragma unroll 1
    for (int row = 0; row < 16; row++)
        if ((row < 8 ? lanes[0] : lanes[1]) >> row % 8 * 4 & 15) redo(row);
}

/* ---- results ---- */

/* Where shared memory has results of that row: the copy engine takes them subtile by subtile, else they replace rows. */
NH_DEVICE int nh_result_number(int subtile, int row) {
    return NH_STAGES ? row : nh_row_number(subtile, row);
}

/* A subtile's sums, times one factor per row, into shared rows. */
template <int ROOM, int STEPS>
NH_DEVICE void nh_stage_rows(char *rows, const float (&sum)[2 * STEPS][4], float first, float second,
                             int subtile) {
    int lane = (int)(nh_thread_again() % 32), t = lane % 4;
    int row = nh_result_number(subtile, lane / 4), below = nh_result_number(subtile, lane / 4 + 8);
#pragma unroll
    for (int u = 0; u < 2 * STEPS; u++) {
        *(unsigned *)(rows + nh_unit_offset(ROOM, row, u) + 4 * t) =
            nh_pack(sum[u][0] * first, sum[u][1] * first);
        *(unsigned *)(rows + nh_unit_offset(ROOM, below, u) + 4 * t) =
            nh_pack(sum[u][2] * second, sum[u][3] * second);
    }
}

/* A subtile's shared rows to memory, by its warp. */
template <int WIDTH, int ROOM>
NH_DEVICE void nh_store_rows(const nh_cuda_args &args, const nh_item &item, int slot, const char *rows,
                             int subtile) {
    const int units = WIDTH / 8;
    elem *to = (elem *)args.tensor[slot].data;
    const int lane = (int)(nh_thread_again() % 32);
#pragma unroll
    for (int first = 0; first < 16 * units; first += 32) {
        int i = first + lane, row = i / units, unit = i % units;
        if (i < 16 * units && nh_row_exists(item, subtile, row))
            *(uint4 *)(to + nh_row_offset(item, slot, subtile, row) + 8 * unit) =
                *(const uint4 *)(rows + nh_unit_offset(ROOM, nh_result_number(subtile, row), unit));
    }
}
