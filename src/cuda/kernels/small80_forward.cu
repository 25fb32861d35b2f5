/* Forward of small windows, sm_80 and later: a block keeps the keys and values of its whole halo in shared memory.
 *
 * Each warp takes boxes of 16 queries, one after the other. The windows of such a box lie in a box of keys hardly
 * larger than one window, which matrix loads gather out of the halo by the address of each row; what is multiplied
 * in vain stays small. A box of up to 128 keys is met at once, a larger one in chunks with a running maximum. Several
 * blocks per multiprocessor overlap the copies of one with the products of another.
 *
 * In the halo, rows of an axis are spaced so that consecutive columns of a box are consecutive rows modulo 8 also
 * where a line of the box ends: the eight rows of a matrix load then fall into different banks.
 *
 * Knobs: NH_DTYPE (16 bits), NH_DIM, NH_DIM_V, NH_VECTOR, NH_WARPS, NH_MIN_BLOCKS, NH_TILE_Q0 .. (the block's queries),
 * NH_SUB0 .. (16 queries), NH_TILE_K0 .. (their keys), NH_COLUMNS and NH_CHUNKS (of those), NH_HALO0 .. (the block's
 * keys), NH_LINE and NH_PLANE (rows from one to the next position of axis 1 and 0), NH_BIASED, NH_PRESCALE,
 * NH_SHARED_BYTES. */
#define NH_WARP_ROWS 16
#define NH_TF32 0
#define NH_INVERSE 0
#include "tile_mask.cuh"
#include "tile_output.cuh"
#include "tile_scores.cuh"

enum { NH_HALO_ROWS = (NH_HALO0 - 1) * NH_PLANE + (NH_HALO1 - 1) * NH_LINE + NH_HALO2 };

struct nh_shared {
    elem queries[NH_ROWS * NH_PITCH_Q];
    elem keys[NH_HALO_ROWS * NH_PITCH_K];
    elem values[NH_HALO_ROWS * NH_PITCH_V];
    long long bias[NH_CHUNKS * NH_COLUMNS];
    struct nh_mask_tables masks;
    /* halo row of each column of a box, counted from that of the first */
    int gather[NH_CHUNKS * NH_COLUMNS];
};
static_assert(sizeof(struct nh_shared) == NH_SHARED_BYTES, "the host's count of shared memory");
static_assert(NH_SUB_ROWS == 16 && NH_ELEMENT_BYTES == 2, "16 queries of 16 bits");

/* Columns past the box repeat its last key; they are masked. */
NH_DEVICE void nh_column_tables_fill(const nh_cuda_args &args, struct nh_shared &shared) {
    for (int c = (int)threadIdx.x; c < NH_CHUNKS * NH_COLUMNS; c += NH_THREADS) {
        int column = c < NH_BOX ? c : NH_BOX - 1;
        shared.gather[c] = nh_column_axis(column, 0) * NH_PLANE +
                           nh_column_axis(column, 1) * NH_LINE + nh_column_axis(column, 2);
        if (NH_BIASED) shared.bias[c] = nh_bias_of_column(args, column);
    }
}

/* Keys and values of the halo, one line of axis 2 after the other; zeros where it is shorter than its room. */
NH_DEVICE void nh_copy_halo(const nh_cuda_args &args, const struct nh_block &block,
                            const struct nh_halo &halo, struct nh_shared &shared) {
    const nh_cuda_tensor &k = args.tensor[NH_K], &v = args.tensor[NH_V];
    const elem *keys = (const elem *)k.data + block.batch * k.batch + block.kv_head * k.head;
    const elem *values = (const elem *)v.data + block.batch * v.batch + block.kv_head * v.head;
    const int units_k = NH_DIM / NH_UNIT, units_v = NH_DIM_V / NH_UNIT;
    long long key_step = args.axis[2].dilation * k.axis[2];
    long long value_step = args.axis[2].dilation * v.axis[2];
    for (int line = (int)threadIdx.x / 32; line < NH_HALO0 * NH_HALO1; line += NH_WARPS) {
        int x = line / NH_HALO1, y = line % NH_HALO1, row = x * NH_PLANE + y * NH_LINE;
        bool inside = halo.begin[0] + x < halo.end[0] && halo.begin[1] + y < halo.end[1];
        int count = inside ? halo.end[2] - halo.begin[2] : 0;
        const elem *key = keys, *value = values;
#pragma unroll
        for (int a = 0; a < 3; a++) {
            int at = halo.begin[a] + (a == 0 ? x : a == 1 ? y : 0);
            key += nh_position_offset(args, block, k, a, at);
            value += nh_position_offset(args, block, v, a, at);
        }
        for (int i = (int)threadIdx.x % 32; i < NH_HALO2 * units_k; i += 32) {
            int z = i / units_k, column = i % units_k * NH_UNIT;
            nh_copy_unit(shared.keys + (row + z) * NH_PITCH_K + column, key + z * key_step + column,
                         z < count);
        }
        for (int i = (int)threadIdx.x % 32; i < NH_HALO2 * units_v; i += 32) {
            int z = i / units_v, column = i % units_v * NH_UNIT;
            nh_copy_unit(shared.values + (row + z) * NH_PITCH_V + column,
                         value + z * value_step + column, z < count);
        }
    }
}

/* Where 16 queries' box of keys starts; `row` is that in the halo. */
struct nh_place {
    struct nh_cursor box;
    int row;
    /* every query attends the whole box */
    bool dense;
};

NH_DEVICE constexpr int nh_halo_room(int axis) {
    return axis == 0 ? NH_HALO0 : axis == 1 ? NH_HALO1 : NH_HALO2;
}

/* Near the halo's end the box moves back to stay inside the room; the windows still lie in it. */
NH_DEVICE struct nh_place nh_place_of(const struct nh_mask_tables &tables,
                                      const struct nh_halo &halo, int first_row) {
    struct nh_place place = {{}, 0, true};
#pragma unroll
    for (int a = 0; a < 3; a++) {
        int first = nh_rows_before(a) + nh_row_axis(first_row, a), last = first + nh_sub(a) - 1;
        int furthest = halo.begin[a] + nh_halo_room(a) - nh_tile_k(a);
        int at = tables.begin[first] < furthest ? tables.begin[first] : furthest;
        place.box.at[a] = at;
        place.row += (at - halo.begin[a]) * (a == 0 ? NH_PLANE : a == 1 ? NH_LINE : 1);
        place.dense =
            place.dense && tables.begin[last] == at && tables.end[first] == at + nh_tile_k(a);
    }
    return place;
}

NH_DEVICE void nh_gather_rows(const struct nh_shared &shared, int chunk, int first,
                              int (&row)[NH_COLUMNS / 16]) {
#pragma unroll
    for (int n = 0; n < NH_COLUMNS / 16; n++)
        row[n] = first + shared.gather[chunk * NH_COLUMNS + 16 * n + (int)threadIdx.x % 16];
}

/* As nh_multiply, keys gathered: lanes 16 .. 31 name the second half of a step for the same rows. */
NH_DEVICE void nh_score_gathered(nh_scores &scores, const elem *queries, const elem *keys,
                                 const int (&row)[NH_COLUMNS / 16]) {
    int lane = (int)threadIdx.x % 32;
    queries += lane % 16 * NH_PITCH_Q + lane / 16 * NH_QUARTER;
    keys += lane / 16 * NH_QUARTER;
    unsigned a[NH_DIM_PADDED / NH_STEP][4];
#pragma unroll
    for (int d = 0; d < NH_DIM_PADDED / NH_STEP; d++)
        nh_load_matrices(a[d], queries + d * NH_STEP);
#pragma unroll
    for (int n = 0; n < NH_COLUMNS / 16; n++) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            scores[0][2 * n + i / 4][i % 4] = 0.f;
#pragma unroll
        for (int d = 0; d < NH_DIM_PADDED / NH_STEP; d++) {
            unsigned b[4];
            nh_load_matrices(b, keys + row[n] * NH_PITCH_K + d * NH_STEP);
            unsigned first[2] = {b[0], b[2]}, second[2] = {b[1], b[3]};
            nh_product(scores[0][2 * n], a[d], first);
            nh_product(scores[0][2 * n + 1], a[d], second);
        }
    }
}

/* As nh_accumulate. */
NH_DEVICE void nh_value_gathered(nh_output &output, const nh_scores &weights, const elem *values,
                                 const int (&row)[NH_COLUMNS / 16]) {
    values += (int)threadIdx.x % 32 / 16 * NH_QUARTER;
#pragma unroll
    for (int k = 0; k < NH_COLUMNS / 16; k++) {
        unsigned a[4];
        nh_weight_operand(a, weights[0], k);
#pragma unroll
        for (int n = 0; n < NH_DIM_V_PADDED / 16; n++) {
            unsigned b[4];
            nh_load_matrices_transposed(b, values + row[k] * NH_PITCH_V + n * 16);
            nh_product(output[0][2 * n], a, b);
            nh_product(output[0][2 * n + 1], a, b + 2);
        }
    }
}

NH_DEVICE void nh_mask_chunk(const nh_cuda_args &args, const struct nh_block &block,
                             const struct nh_shared &shared, const struct nh_place &place,
                             int chunk, int first_row, float scale, nh_scores &scores) {
    if (!NH_PRESCALE && place.dense && NH_BOX == NH_CHUNKS * NH_COLUMNS) return;
    int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = first_row + 8 * half + (int)threadIdx.x % 32 / 4;
        /* the prefix of a whole axis is the whole box */
        unsigned mask = shared.masks.columns.prefix[chunk][NH_TILE_K0][t];
        if (!place.dense) mask &= nh_row_mask(shared.masks, place.box, chunk, row);
        const elem *row_bias = 0;
        if (NH_BIASED) row_bias = nh_bias_row(args, block, place.box, row);
        nh_finish_score_row(scores, 0, half, mask, scale, row_bias,
                            shared.bias + chunk * NH_COLUMNS);
    }
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small80_forward(const __grid_constant__ nh_cuda_args args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    struct nh_shared &shared = *(struct nh_shared *)nh_shared_memory;
    struct nh_block block;
    if (!nh_block_locate(args, args.heads, block)) return;

    nh_mask_tables_fill(args, block, shared.masks);
    nh_column_tables_fill(args, shared);
    nh_zero_padding(shared.queries, NH_ROWS, NH_PITCH_Q, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.keys, NH_HALO_ROWS, NH_PITCH_K, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.values, NH_HALO_ROWS, NH_PITCH_V, NH_DIM_V, NH_DIM_V_PADDED);
    __syncthreads();
    const struct nh_halo halo = nh_halo_of(shared.masks);
    nh_copy_halo(args, block, halo, shared);
    nh_copy_rows<NH_DIM, NH_PITCH_Q>(args, block, args.tensor[NH_Q], block.head, shared.queries);
    nh_copy_commit();
    nh_copy_wait_groups<0>();
    __syncthreads();

    const float scale = (float)(args.scale * NH_LOG2E);
#pragma unroll 1
    for (int first_row = (int)threadIdx.x / 32 * 16; first_row < NH_ROWS;
         first_row += 16 * NH_WARPS) {
        if (!nh_row_exists(block, first_row)) continue;
        struct nh_place place = nh_place_of(shared.masks, halo, first_row);
        elem *queries = shared.queries + first_row * NH_PITCH_Q;
        nh_output output = {};
        struct nh_softmax state;
        nh_softmax_start(state);
#pragma unroll 1
        for (int chunk = 0; chunk < NH_CHUNKS; chunk++) {
            nh_scores scores;
            int row[NH_COLUMNS / 16];
            nh_gather_rows(shared, chunk, place.row, row);
            nh_score_gathered(scores, queries, shared.keys, row);
            nh_mask_chunk(args, block, shared, place, chunk, first_row, scale, scores);
            float shrink[2];
            nh_softmax_raise(state, scores, NH_PRESCALE ? 1.f : scale, shrink);
            if (chunk > 0) nh_softmax_shrink(state, output, shrink);
            nh_softmax_weights(state, scores, NH_PRESCALE ? 1.f : scale);
            nh_value_gathered(output, scores, shared.values, row);
        }
        __syncwarp();
        nh_finish_rows(args, block, state, output, first_row, queries);
        __syncwarp();
        nh_store_rows(args, block, first_row, queries);
    }
}
