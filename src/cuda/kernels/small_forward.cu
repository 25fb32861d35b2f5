/* Forward of small windows: the item's keys and values lie in shared memory, a subtile of 16 queries meets all its keys
 * at once (up to 128, otherwise in chunks with a running maximum). Several blocks share a multiprocessor, so that the
 * copies of one run under the products of the others. See small.cuh. */
#define NH_INVERSE 0
#include "small_exact.cuh"
#include "small_penalty.cuh"

struct nh_shared {
    alignas(128) char keys[NH_HALO_ROWS * nh_row_bytes(NH_DIM)];
    alignas(128) char values[NH_HALO_ROWS * nh_row_bytes(NH_DIM_V)];
    /* and, once a subtile has taken its queries, its outputs */
    alignas(128) char queries[NH_ROWS * nh_row_bytes(NH_WIDEST)];
    nh_tables tables;
    nh_penalties penalties;
};
static_assert(sizeof(nh_shared) <= NH_SHARED_BYTES, "the host's count of shared memory");

typedef float nh_scores[2 * NH_PAIRS][4];

/* Rows g and g + 8 of the subtile. */
struct nh_state {
    float top[2], sum[2];
};

/* Masks a chunk's scores and turns them into weights. */
NH_DEVICE void nh_softmax_chunk(const nh_cuda_args &args, const nh_item &item, const nh_shared &shared,
                                int subtile, int chunk, nh_scores &scores, nh_state &state,
                                float (&output)[2 * NH_STEPS_V][4]) {
    const float scale = shared.tables.scale;
    int lane = (int)(threadIdx.x % 32);
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int row = lane / 4 + 8 * half;
        unsigned bits = NH_PENALTY ? ~0u : nh_sight_bits(shared.tables.sight, subtile, row, chunk);
        float top = NH_MINUS_INFINITY, sum = 0.f;
        const float *table = shared.tables.bias;
        if (NH_BIAS_COUNT) table += nh_bias_row(args, item, shared.tables.sight, subtile, row);
#pragma unroll
        for (int b = 0; b < 2 * NH_BLOCKS; b++) {
            float &score = scores[b / 2][2 * half + b % 2];
            bool seen = bits >> b & 1;
            if (NH_BIAS_COUNT && seen)
                score = fmaf(score, scale,
                             table[shared.tables.columns.bias[chunk * NH_CHUNK + b / 2 * 8 + lane % 4 * 2 +
                                                       b % 2]]);
            score = seen ? score : NH_MINUS_INFINITY;
            top = fmaxf(top, score);
        }
        float factor = NH_BIAS_COUNT ? 1.f : scale;
        top = nh_row_max(top) * factor;
        if (NH_CHUNKS > 1) top = fmaxf(top, state.top[half]);
#pragma unroll
        for (int b = 0; b < 2 * NH_BLOCKS; b++) {
            float &score = scores[b / 2][2 * half + b % 2];
            score = nh_exp2(fmaf(score, factor, -top));
            sum += score;
        }
        if (NH_CHUNKS > 1) {
            float shrink = nh_exp2(state.top[half] - top);
            sum += state.sum[half] * shrink;
#pragma unroll
            for (int u = 0; u < 2 * NH_STEPS_V; u++) {
                output[u][2 * half] *= shrink;
                output[u][2 * half + 1] *= shrink;
            }
        }
        state.top[half] = top;
        state.sum[half] = sum;
    }
}

/* Outputs into the place of the queries, LSE to memory. */
NH_DEVICE void nh_finish(const nh_cuda_args &args, const nh_item &item, nh_shared &shared, int subtile,
                         const nh_state &state, const float (&output)[2 * NH_STEPS_V][4]) {
    int lane = (int)(nh_thread_again() % 32);
    float inverse[2], lse[2], total = 0.f;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = nh_row_sum(state.sum[half]);
        inverse[half] = __fdividef(1.f, sum);
        lse[half] = (state.top[half] + __log2f(sum)) * (float)NH_LN2;
#pragma unroll
        for (int u = 0; u < 2 * NH_STEPS_V; u++)
            total += output[u][2 * half] + output[u][2 * half + 1];
    }
    __syncwarp();
    nh_stage_rows<NH_WIDEST, NH_STEPS_V>(shared.queries, output, inverse[0], inverse[1], subtile);
    __syncwarp();
    /* not finite */
    if (__any_sync(~0u, total - total != 0.f))
        nh_exact_rows(args, item, shared.keys, shared.values, shared.tables.bias, subtile,
                      shared.queries, output, lse);
    const nh_cuda_tensor &to = args.tensor[NH_LSE];
    if (to.data && lane % 4 == 0)
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (nh_row_exists(item, subtile, lane / 4 + 8 * half))
                ((float *)to.data)[nh_row_offset(item, NH_LSE, subtile, lane / 4 + 8 * half)] =
                    lse[half];
    __syncwarp();
    nh_store_rows<NH_DIM_V, NH_WIDEST>(args, item, NH_O, shared.queries, subtile);
}

NH_DEVICE void nh_attend(const nh_cuda_args &args, const nh_item &item, nh_shared &shared, int subtile) {
    unsigned queries[NH_STEPS][4];
    nh_load_rows<NH_WIDEST, NH_STEPS>(queries, shared.queries, subtile);
    const char *keys[NH_STEPS], *values[NH_STEPS_V];
    int first = nh_box_row(shared.tables.sight, subtile);
    nh_gather_start<NH_AS_LAID, NH_DIM, NH_STEPS>(keys, shared.keys, first);
    nh_gather_start<NH_TRANSPOSED, NH_DIM_V, NH_STEPS_V>(values, shared.values, first);
    unsigned starts[2];
    if (NH_PENALTY) nh_penalty_rows(starts, shared.tables.sight, subtile);
    nh_state state = {{-1e30f, -1e30f}, {0.f, 0.f}};
    float output[2 * NH_STEPS_V][4] = {};
#pragma unroll 1
    for (int chunk = 0; chunk < NH_CHUNKS; chunk++) {
        const unsigned short *row = shared.tables.columns.row + chunk * NH_CHUNK;
        nh_scores scores = {};
        if (NH_PENALTY) nh_penalize(scores, starts, shared.penalties, chunk);
#pragma unroll
        for (int p = 0; p < NH_PAIRS; p++)
            nh_multiply_columns<NH_DIM, NH_STEPS>(scores + 2 * p, queries, keys,
                                                  row[16 * p + nh_lane_column<NH_AS_LAID>()],
                                                  2 * p + 1 < NH_BLOCKS);
        nh_softmax_chunk(args, item, shared, subtile, chunk, scores, state, output);
#pragma unroll
        for (int p = 0; p < NH_PAIRS; p++) {
            unsigned weights[4];
            nh_pack_weights(weights, scores + 2 * p, 2 * p + 1 < NH_BLOCKS);
            nh_add_columns<NH_DIM_V, NH_STEPS_V>(output, weights, values,
                                                 row[16 * p + nh_lane_column<NH_TRANSPOSED>()]);
        }
    }
    nh_finish(args, item, shared, subtile, state, output);
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_forward(const __grid_constant__ nh_cuda_args args) {
    extern __shared__ __align__(128) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    int warp = (int)(threadIdx.x / 32), turn = 0;
    if (NH_PENALTY) nh_penalties_fill(shared.penalties);
    nh_tables_start(args, shared.tables);
    for (int index = (int)blockIdx.x; index < args.tiling.items; index += (int)gridDim.x) {
        const nh_item &item = shared.tables.item[turn];
        nh_copy_halo<NH_DIM>(args, item, NH_K, 0, shared.keys);
        nh_copy_halo<NH_DIM_V>(args, item, NH_V, 0, shared.values);
        nh_copy_rows<NH_DIM, NH_WIDEST>(args, item, NH_Q, shared.queries);
        turn ^= 1;
        nh_tables_turn(args, item, index + (int)gridDim.x, shared.tables, turn);
        if (NH_BIAS_COUNT) nh_bias_fill(args, item.head, shared.tables.bias);
        nh_copy_wait();
        __syncthreads();
#pragma unroll 1
        for (int subtile = warp; subtile < NH_SUBTILES; subtile += NH_WARPS)
            if (nh_subtile_exists(item, subtile)) {
                nh_note_subtile(args, index, subtile);
                nh_attend(args, item, shared, subtile);
            }
        __syncthreads();
    }
}
