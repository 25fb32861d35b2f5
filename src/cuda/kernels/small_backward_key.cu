/* dK and dV of small windows: rows are keys, columns the queries that attend them (a box of varying size), so that
 * nothing is added atomically and results are bit-equal every run. Weights come from the given LSE, delta from
 * small_backward_query.cu. A warp owns one subtile: its sums stay in registers while the query heads that share the
 * key head pass by. See small.cuh. */
#define NH_INVERSE 1
#include "small_gradient.cuh"

static_assert(NH_SUBTILES == NH_WARPS, "one subtile per warp");

struct nh_shared {
    alignas(128) char queries[NH_HALO_ROWS * nh_row_bytes(NH_DIM)];
    alignas(128) char d_outputs[NH_HALO_ROWS * nh_row_bytes(NH_DIM_V)];
    /* and, once a warp has taken its rows, their gradients */
    alignas(128) char keys[NH_ROWS * nh_row_bytes(NH_DIM)], values[NH_ROWS * nh_row_bytes(NH_DIM_V)];
    /* of the halo's queries: -LSE in base 2, and delta */
    float2 statistics[NH_HALO_ROWS];
    nh_tables tables;
};
static_assert(sizeof(nh_shared) <= NH_SHARED_BYTES, "the host's count of shared memory");

/* Of the item's halo, for the head `member` of those that share the keys. */
NH_DEVICE void nh_copy_statistics(const nh_cuda_args &args, const nh_item &item, int member,
                                  float2 *statistics) {
    const nh_cuda_tensor &tensor = args.tensor[NH_DELTA];
    const float *from = (const float *)tensor.data + item.origin[NH_DELTA] + member * tensor.head;
    for (int i = (int)nh_thread_again(); i < NH_H0 * NH_H1 * NH_H2; i += NH_THREADS) {
        const int at[3] = {i / (NH_H1 * NH_H2), i / NH_H2 % NH_H1, i % NH_H2};
        long long offset = 0;
        bool inside = true;
        int row = 0;
#pragma unroll
        for (int a = NH_FIRST_AXIS; a < 3; a++) {
            inside = inside && item.column[a] + at[a] < item.length[a];
            offset += at[a] * item.step[NH_DELTA][a];
            row += at[a] * nh_axis_pitch(a);
        }
        nh_copy8(&statistics[row], from + offset, inside);
    }
}

struct nh_key_rows {
    unsigned keys[NH_STEPS][4], values[NH_STEPS_V][4];
    float d_keys[2 * NH_STEPS][4], d_values[2 * NH_STEPS_V][4];
};

/* Weights and score gradients of 16 queries, transposed: a thread's columns are 2t and 2t + 1 of each 8. */
NH_DEVICE void nh_weigh(const nh_cuda_args &args, const nh_shared &shared, int first, int column,
                        int pair, const unsigned (&seen)[2], const float *const (&bias)[2],
                        float (&weights)[2][4], float (&d_scores)[2][4]) {
    const float scale = shared.tables.scale;
#pragma unroll
    for (int c = 0; c < 4; c++) {
        int at = column + c / 2 * 8 + (int)(threadIdx.x % 4) * 2 + c % 2;
        float2 query = shared.statistics[first + shared.tables.columns.row[at]];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float &weight = weights[c / 2][2 * half + c % 2], &d_score = d_scores[c / 2][2 * half + c % 2];
            bool visible = seen[half] >> (4 * pair + c) & 1;
            float bent = query.x;
            if (NH_BIAS_COUNT && visible) bent += *(bias[half] - shared.tables.columns.bias[at]);
            weight = visible ? nh_exp2(fmaf(weight, scale, bent)) : 0.f;
            d_score = weight * (d_score - query.y);
        }
    }
}

NH_DEVICE void nh_differentiate(const nh_cuda_args &args, const nh_item &item, const nh_shared &shared,
                                int subtile, nh_key_rows &rows) {
    const char *queries[NH_STEPS], *queries_across[NH_STEPS];
    const char *d_outputs[NH_STEPS_V], *d_outputs_across[NH_STEPS_V];
    int first = nh_box_row(shared.tables.sight, subtile);
    nh_gather_start<NH_AS_LAID, NH_DIM, NH_STEPS>(queries, shared.queries, first);
    nh_gather_start<NH_TRANSPOSED, NH_DIM, NH_STEPS>(queries_across, shared.queries, first);
    nh_gather_start<NH_AS_LAID, NH_DIM_V, NH_STEPS_V>(d_outputs, shared.d_outputs, first);
    nh_gather_start<NH_TRANSPOSED, NH_DIM_V, NH_STEPS_V>(d_outputs_across, shared.d_outputs, first);
    const float *bias[2] = {shared.tables.bias, shared.tables.bias};
    if (NH_BIAS_COUNT)
        for (int half = 0; half < 2; half++)
            bias[half] += nh_bias_row(args, item, shared.tables.sight, subtile,
                                      (int)(threadIdx.x % 32) / 4 + 8 * half);
#pragma unroll 1
    for (int chunk = 0; chunk < NH_CHUNKS; chunk++) {
        unsigned seen[2];
        nh_chunk_bits(seen, shared.tables.sight, subtile, chunk);
#pragma unroll
        for (int p = 0; p < NH_PAIRS; p++) {
            if (nh_pair_unseen(seen, p)) continue;
            int column = chunk * NH_CHUNK + 16 * p;
            const unsigned short *rows_of = shared.tables.columns.row + column;
            int row = rows_of[nh_lane_column<NH_AS_LAID>()];
            int row_across = rows_of[nh_lane_column<NH_TRANSPOSED>()];
            float weights[2][4] = {}, d_scores[2][4] = {};
            nh_multiply_columns<NH_DIM, NH_STEPS>(weights, rows.keys, queries, row, true);
            nh_multiply_columns<NH_DIM_V, NH_STEPS_V>(d_scores, rows.values, d_outputs, row, true);
            nh_weigh(args, shared, first, column, p, seen, bias, weights, d_scores);
            unsigned operand[4];
            nh_pack_weights(operand, weights, true);
            nh_add_columns<NH_DIM_V, NH_STEPS_V>(rows.d_values, operand, d_outputs_across,
                                                 row_across);
            nh_pack_weights(operand, d_scores, true);
            nh_add_columns<NH_DIM, NH_STEPS>(rows.d_keys, operand, queries_across, row_across);
        }
    }
}

NH_DEVICE void nh_finish(const nh_cuda_args &args, const nh_item &item, nh_shared &shared, int subtile,
                         const nh_key_rows &rows) {
    nh_stage_rows<NH_DIM, NH_STEPS>(shared.keys, rows.d_keys, (float)args.scale, (float)args.scale,
                                    subtile);
    nh_stage_rows<NH_DIM_V, NH_STEPS_V>(shared.values, rows.d_values, 1.f, 1.f, subtile);
    __syncwarp();
    if (args.tensor[NH_D_K].data)
        nh_store_rows<NH_DIM, NH_DIM>(args, item, NH_D_K, shared.keys, subtile);
    if (args.tensor[NH_D_V].data)
        nh_store_rows<NH_DIM_V, NH_DIM_V>(args, item, NH_D_V, shared.values, subtile);
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_backward_key(const __grid_constant__ nh_cuda_args args) {
    extern __shared__ __align__(128) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    const int subtile = (int)(threadIdx.x / 32), share = (int)(args.heads / args.kv_heads);
    int turn = 0;
    nh_tables_start(args, shared.tables);
    for (int index = (int)blockIdx.x; index < args.tiling.items; index += (int)gridDim.x) {
        const nh_item &item = shared.tables.item[turn];
        nh_key_rows rows;
        turn ^= 1;
        nh_copy_rows<NH_DIM, NH_DIM>(args, item, NH_K, shared.keys);
        nh_copy_rows<NH_DIM_V, NH_DIM_V>(args, item, NH_V, shared.values);
        nh_tables_turn(args, item, index + (int)gridDim.x, shared.tables, turn);
        bool exists = nh_subtile_exists(item, subtile);
#pragma unroll 1
        for (int member = 0; member < share; member++) {
            nh_copy_halo<NH_DIM>(args, item, NH_Q, member * args.tensor[NH_Q].head, shared.queries);
            nh_copy_halo<NH_DIM_V>(args, item, NH_D_O, member * args.tensor[NH_D_O].head,
                                   shared.d_outputs);
            nh_copy_statistics(args, item, member, shared.statistics);
            if (NH_BIAS_COUNT) nh_bias_fill(args, item.head * share + member, shared.tables.bias);
            nh_copy_wait();
            __syncthreads();
            if (member == 0) {
                nh_load_rows<NH_DIM, NH_STEPS>(rows.keys, shared.keys, subtile);
                nh_load_rows<NH_DIM_V, NH_STEPS_V>(rows.values, shared.values, subtile);
                nh_clear(rows.d_keys);
                nh_clear(rows.d_values);
            }
            if (exists) nh_note_subtile(args, index, subtile);
            if (exists) nh_differentiate(args, item, shared, subtile, rows);
            if (member + 1 == share && exists) nh_finish(args, item, shared, subtile, rows);
            __syncthreads();
        }
    }
}
