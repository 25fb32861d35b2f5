/* dQ of small windows, and LSE and delta for small_backward_key.cu: as the forward, with weights from the given LSE. Scores are
 * needed only once, so the columns of a subtile pass by in groups of 16. See small.cuh. */
#define NH_INVERSE 0
#define NH_HEAD_SLOWEST (NH_BIAS_COUNT > 0)
#include "small_bias_gradient.cuh"

struct nh_shared {
    alignas(128) char keys[NH_HALO_ROWS * nh_row_bytes(NH_DIM)];
    alignas(128) char values[NH_HALO_ROWS * nh_row_bytes(NH_DIM_V)];
    /* and, once a subtile has taken its queries, its gradients */
    alignas(128) char queries[NH_ROWS * nh_row_bytes(NH_DIM)];
    alignas(128) char outputs[NH_ROWS * nh_row_bytes(NH_DIM_V)], d_outputs[NH_ROWS * nh_row_bytes(NH_DIM_V)];
    nh_tables tables;
    nh_bias_sums sums;
};
static_assert(sizeof(nh_shared) <= NH_SHARED_BYTES, "the host's count of shared memory");

/* Sum of the products of two operands' elements, for row g (half 0) or g + 8 of the subtile. */
NH_DEVICE float nh_dot_rows(const unsigned (&a)[NH_STEPS_V][4], const unsigned (&b)[NH_STEPS_V][4],
                            int half) {
    float sum = 0.f;
#pragma unroll
    for (int s = 0; s < NH_STEPS_V; s++)
#pragma unroll
        for (int i = half; i < 4; i += 2) {
            sum += nh_load((elem)(a[s][i] & 0xffff)) * nh_load((elem)(b[s][i] & 0xffff));
            sum += nh_load((elem)(a[s][i] >> 16)) * nh_load((elem)(b[s][i] >> 16));
        }
    return nh_row_sum(sum);
}

/* -LSE in base 2 and delta of rows g and g + 8; both go to memory, too, next to each other. */
NH_DEVICE void nh_row_statistics(const nh_cuda_args &args, const nh_item &item, int subtile,
                                 const nh_shared &shared, const unsigned (&d_outputs)[NH_STEPS_V][4],
                                 float (&lse)[2], float (&delta)[2]) {
    const nh_cuda_tensor &from = args.tensor[NH_LSE], &d_lse = args.tensor[NH_D_LSE];
    unsigned outputs[NH_STEPS_V][4];
    nh_load_rows<NH_DIM_V, NH_STEPS_V>(outputs, shared.outputs, subtile);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = (int)(nh_thread_again() % 32) / 4 + 8 * half;
        lse[half] = 0.f;
        delta[half] = nh_dot_rows(outputs, d_outputs, half);
        if (!nh_row_exists(item, subtile, row)) continue;
        lse[half] = ((const float *)from.data)[nh_row_offset(item, NH_LSE, subtile, row)] *
                    -(float)NH_LOG2E;
        if (d_lse.data)
            delta[half] -=
                ((const float *)d_lse.data)[nh_row_offset(item, NH_D_LSE, subtile, row)];
        if (threadIdx.x % 4 == 0)
            *(float2 *)((float *)args.tensor[NH_DELTA].data +
                        nh_row_offset(item, NH_DELTA, subtile, row)) =
                make_float2(lse[half], delta[half]);
    }
}

NH_DEVICE void nh_differentiate(const nh_cuda_args &args, const nh_item &item, nh_shared &shared,
                                int subtile) {
    const float scale = shared.tables.scale;
    unsigned queries[NH_STEPS][4], d_outputs[NH_STEPS_V][4];
    nh_load_rows<NH_DIM, NH_STEPS>(queries, shared.queries, subtile);
    nh_load_rows<NH_DIM_V, NH_STEPS_V>(d_outputs, shared.d_outputs, subtile);
    float lse[2], delta[2], d_queries[2 * NH_STEPS][4] = {};
    nh_row_statistics(args, item, subtile, shared, d_outputs, lse, delta);
    const char *keys[NH_STEPS], *keys_across[NH_STEPS], *values[NH_STEPS_V];
    int first = nh_box_row(shared.tables.sight, subtile);
    nh_gather_start<NH_AS_LAID, NH_DIM, NH_STEPS>(keys, shared.keys, first);
    nh_gather_start<NH_TRANSPOSED, NH_DIM, NH_STEPS>(keys_across, shared.keys, first);
    nh_gather_start<NH_AS_LAID, NH_DIM_V, NH_STEPS_V>(values, shared.values, first);
    const bool bias_wanted = nh_bias_wanted(args);
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
            int column = chunk * NH_CHUNK + 16 * p;
            if (nh_pair_unseen(seen, p)) {
                const unsigned none[4] = {0, 0, 0, 0};
                if (bias_wanted) nh_bias_lay(shared.sums, column, none);
                continue;
            }
            const unsigned short *rows_of = shared.tables.columns.row + column;
            int row = rows_of[nh_lane_column<NH_AS_LAID>()];
            int row_across = rows_of[nh_lane_column<NH_TRANSPOSED>()];
            float scores[2][4] = {}, d_weights[2][4] = {};
            nh_multiply_columns<NH_DIM, NH_STEPS>(scores, queries, keys, row, true);
            nh_multiply_columns<NH_DIM_V, NH_STEPS_V>(d_weights, d_outputs, values, row, true);
#pragma unroll
            for (int i = 0; i < 8; i++) {
                int half = i / 2 % 2, c = i / 4 * 8 + (int)(threadIdx.x % 4) * 2 + i % 2;
                bool visible = seen[half] >> (4 * p + i / 4 * 2 + i % 2) & 1;
                float bent = lse[half];
                if (NH_BIAS_COUNT && visible) bent += bias[half][shared.tables.columns.bias[column + c]];
                float weight = nh_exp2(fmaf(scores[i / 4][i % 4], scale, bent));
                scores[i / 4][i % 4] =
                    visible ? weight * (d_weights[i / 4][i % 4] - delta[half]) : 0.f;
            }
            unsigned d_scores[4];
            nh_pack_weights(d_scores, scores, true);
            if (bias_wanted) nh_bias_lay(shared.sums, column, d_scores);
            nh_add_columns<NH_DIM, NH_STEPS>(d_queries, d_scores, keys_across, row_across);
        }
    }
    if (bias_wanted) nh_bias_gather(item, shared.tables.sight, subtile, shared.sums);
    if (!args.tensor[NH_D_Q].data) return;
    __syncwarp();
    nh_stage_rows<NH_DIM, NH_STEPS>(shared.queries, d_queries, (float)args.scale, (float)args.scale,
                                    subtile);
    __syncwarp();
    nh_store_rows<NH_DIM, NH_DIM>(args, item, NH_D_Q, shared.queries, subtile);
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_backward_query(const __grid_constant__ nh_cuda_args args) {
    extern __shared__ __align__(128) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    int warp = (int)(threadIdx.x / 32), turn = 0;
    int head = 0; /* whose bias gradient is being added up */
    const bool bias_wanted = nh_bias_wanted(args);
    if (bias_wanted) nh_bias_clear(shared.sums);
    nh_tables_start(args, shared.tables);
    for (int index = (int)blockIdx.x; index < args.tiling.items; index += (int)gridDim.x) {
        const nh_item &item = shared.tables.item[turn];
        nh_copy_halo<NH_DIM>(args, item, NH_K, 0, shared.keys);
        nh_copy_halo<NH_DIM_V>(args, item, NH_V, 0, shared.values);
        nh_copy_rows<NH_DIM, NH_DIM>(args, item, NH_Q, shared.queries);
        nh_copy_rows<NH_DIM_V, NH_DIM_V>(args, item, NH_O, shared.outputs);
        nh_copy_rows<NH_DIM_V, NH_DIM_V>(args, item, NH_D_O, shared.d_outputs);
        if (bias_wanted && item.head > head) {
            nh_bias_flush(args, head, item.head, shared.sums);
            head = item.head;
        }
        turn ^= 1;
        nh_tables_turn(args, item, index + (int)gridDim.x, shared.tables, turn);
        if (NH_BIAS_COUNT) nh_bias_fill(args, item.head, shared.tables.bias);
        nh_copy_wait();
        __syncthreads();
#pragma unroll 1
        for (int subtile = warp; subtile < NH_SUBTILES; subtile += NH_WARPS)
            if (nh_subtile_exists(item, subtile)) {
                nh_note_subtile(args, index, subtile);
                nh_differentiate(args, item, shared, subtile);
            }
        __syncthreads();
    }
    if (bias_wanted) nh_bias_flush(args, head, (int)args.heads, shared.sums);
}
