/* dK and dV of small windows: rows are keys, columns the queries that attend them (a box of varying size), so that
 * nothing is added atomically and results are bit-equal every run. Weights come from the given LSE, delta from
 * small_backward_query.cu. A warp owns one subtile: its sums stay in registers while the query heads that share the
 * key head pass by. See small.cuh. */
#define NH_INVERSE 1
#include "small_exact_gradient.cuh"

static_assert(NH_STAGES || NH_SUBTILES == NH_WARPS, "one subtile of an item per warp");

/* What is fetched for an item and one query head. */
struct nh_stage {
    alignas(NH_STAGE_ALIGNMENT) char queries[NH_HALO_ROWS * nh_row_bytes(NH_DIM)];
    alignas(NH_STAGE_ALIGNMENT) char d_outputs[NH_HALO_ROWS * nh_row_bytes(NH_DIM_V)];
    /* and, once a warp has taken its rows, their gradients */
    alignas(NH_STAGE_ALIGNMENT) char keys[NH_ROWS * nh_row_bytes(NH_DIM)];
    alignas(NH_STAGE_ALIGNMENT) char values[NH_ROWS * nh_row_bytes(NH_DIM_V)];
    /* of the halo's queries */
    alignas(NH_STAGE_ALIGNMENT) float4 statistics[NH_HALO_ROWS];
};

struct nh_shared {
#if NH_STAGES
    nh_stage stage[NH_STAGES];
    nh_ring ring;
#else
    nh_stage stage;
    nh_scene scene[2];
#endif
    nh_tables tables;
    nh_penalties penalties;
};
static_assert(sizeof(nh_shared) <= NH_SHARED_BYTES, "the host's count of shared memory");

struct nh_key_rows {
    unsigned keys[NH_STEPS][4], values[NH_STEPS_V][4];
    float d_keys[2 * NH_STEPS][4], d_values[2 * NH_STEPS_V][4];
};

NH_DEVICE void nh_key_rows_load(nh_key_rows &rows, const nh_stage &stage, int subtile) {
    nh_load_rows<NH_DIM, NH_STEPS>(rows.keys, stage.keys, subtile);
    nh_load_rows<NH_DIM_V, NH_STEPS_V>(rows.values, stage.values, subtile);
    nh_clear(rows.d_keys);
    nh_clear(rows.d_values);
}

/* Weights and score gradients of the 16 queries of a pair, transposed: a thread's columns are 2t and 2t + 1 of each 8.
 * statistics: of the box's first query. */
NH_DEVICE void nh_weigh(const nh_tables &tables, const float4 *statistics, int chunk, int pair,
                        const unsigned (&seen)[2], const float *const (&bias)[2],
                        float (&weights)[2][4], float (&d_scores)[2][4]) {
    const int t = (int)(threadIdx.x % 4);
    const uint4 rows = tables.columns.quad[chunk * NH_PAIRS + pair][t];
    const unsigned row[4] = {rows.x, rows.y, rows.z, rows.w};
#pragma unroll
    for (int c = 0; c < 4; c++) {
        int column = chunk * NH_CHUNK + 16 * pair + c / 2 * 8 + 2 * t + c % 2;
        float2 query = *(const float2 *)&statistics[row[c]];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            float &weight = weights[c / 2][2 * half + c % 2], &d_score = d_scores[c / 2][2 * half + c % 2];
            bool visible = NH_PENALTY || seen[half] >> (4 * pair + c) & 1;
            float bent = query.x;
            if (NH_BIAS_COUNT && visible) bent += *(bias[half] - tables.columns.bias[column]);
            weight = visible ? nh_exp2(fmaf(weight, tables.scale, bent)) : 0.f;
            d_score = weight * (d_score - query.y);
        }
    }
}

NH_DEVICE void nh_differentiate(const nh_cuda_args &args, const nh_scene &scene, const nh_tables &tables,
                                const nh_penalties &penalties, const nh_stage &stage, int subtile,
                                nh_key_rows &rows) {
    unsigned queries[NH_STEPS], queries_across[NH_STEPS];
    unsigned d_outputs[NH_STEPS_V], d_outputs_across[NH_STEPS_V], places[NH_STEPS_PLACES][4];
    int first = nh_box_row(scene.sight, subtile), reach = nh_sight_reach(scene.sight, subtile);
    nh_gather_start<NH_AS_LAID, NH_DIM, NH_STEPS>(queries, stage.queries, first);
    nh_gather_start<NH_TRANSPOSED, NH_DIM, NH_STEPS>(queries_across, stage.queries, first);
    nh_gather_start<NH_AS_LAID, NH_DIM_V, NH_STEPS_V>(d_outputs, stage.d_outputs, first);
    nh_gather_start<NH_TRANSPOSED, NH_DIM_V, NH_STEPS_V>(d_outputs_across, stage.d_outputs, first);
    if (NH_PENALTY) nh_sight_penalty_rows(places, scene.sight, subtile);
    const float *bias[2] = {scene.bias, scene.bias};
    if (NH_BIAS_COUNT)
        for (int half = 0; half < 2; half++)
            bias[half] += nh_bias_row(args, scene, subtile, (int)(threadIdx.x % 32) / 4 + 8 * half);
#pragma unroll 1
    for (int chunk = 0; chunk < NH_CHUNKS; chunk++) {
        unsigned seen[2];
        int row[4 * NH_GATHERS], row_across[4 * NH_GATHERS];
        if (!NH_PENALTY) nh_chunk_bits(seen, scene.sight, subtile, chunk);
        nh_gather_rows(row, tables.columns, chunk, nh_lane_column<NH_AS_LAID>());
        nh_gather_rows(row_across, tables.columns, chunk, nh_lane_column<NH_TRANSPOSED>());
#pragma unroll
        for (int p = 0; p < NH_PAIRS; p++) {
            if (chunk * NH_CHUNK + 16 * p >= reach) break;
            float weights[2][4] = {}, d_scores[2][4] = {};
            unsigned operand[4];
            if (NH_PENALTY) nh_penalize(weights, places, penalties, chunk * NH_PAIRS + p, true);
            nh_multiply_columns<NH_DIM, NH_STEPS>(weights, rows.keys, queries, row[p], true);
            nh_multiply_columns<NH_DIM_V, NH_STEPS_V>(d_scores, rows.values, d_outputs, row[p], true);
            nh_weigh(tables, stage.statistics + first, chunk, p, seen, bias, weights, d_scores);
            nh_pack_weights(operand, weights, true);
            nh_add_columns<NH_DIM_V, NH_STEPS_V>(rows.d_values, operand, d_outputs_across,
                                                 row_across[p]);
            nh_pack_weights(operand, d_scores, true);
            nh_add_columns<NH_DIM, NH_STEPS>(rows.d_keys, operand, queries_across, row_across[p]);
        }
    }
}

/* The gradients into shared memory. */
NH_DEVICE void nh_finish(const nh_cuda_args &args, const nh_item &item, int subtile, const nh_key_rows &rows,
                         char *keys, char *values) {
    __syncwarp();
    nh_stage_rows<NH_DIM, NH_STEPS>(keys, rows.d_keys, (float)args.scale, (float)args.scale,
                                    subtile);
    nh_stage_rows<NH_DIM_V, NH_STEPS_V>(values, rows.d_values, 1.f, 1.f, subtile);
    const bool spoilt[2] = {nh_spoilt(rows.d_keys, 0) | nh_spoilt(rows.d_values, 0),
                            nh_spoilt(rows.d_keys, 1) | nh_spoilt(rows.d_values, 1)};
    if (!__any_sync(~0u, spoilt[0] | spoilt[1])) return;
    __syncwarp();
    nh_for_spoilt_rows(spoilt[0], spoilt[1], [&](int row) {
        nh_exact_gradient(args, item, subtile, row, make_float2(0.f, 0.f), keys, values);
    });
}

#if NH_STAGES

struct nh_maps {
    nh_tensor_map q, k, v, d_o, d_k, d_v, statistics;
};

NH_DEVICE void nh_fetch_statistics(const nh_cuda_args &args, const nh_item &item, const nh_tensor_map &map,
                                   unsigned barrier, float4 *to, int head) {
    int at[5];
    nh_box_at<3>(at, args, item, item.column, head, (int)args.heads);
    nh_copy_box(nh_shared_address(to), &map, barrier, at);
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_backward_key(const __grid_constant__ nh_cuda_args args, const __grid_constant__ nh_maps maps) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    const int heads = (int)args.heads, kv_heads = (int)args.kv_heads, share = heads / kv_heads;
    if (threadIdx.x == 0) nh_ring_start(shared.ring);
    if (NH_PENALTY) nh_penalties_fill(shared.penalties);
    nh_tables_start(args, shared.tables, shared.ring.scene);
    __syncthreads();
    if (threadIdx.x / 32 >= NH_WARPS) {
        const auto fetch = [&](const nh_item &item, int turn, int member, unsigned barrier) {
            nh_stage &stage = shared.stage[turn];
            int head = item.head * share + member;
            nh_fetch_rows<NH_K_MAP>(args, item, maps.k, barrier, stage.keys, item.head, kv_heads);
            nh_fetch_rows<NH_V_MAP>(args, item, maps.v, barrier, stage.values, item.head, kv_heads);
            if (threadIdx.x % 32) return;
            nh_fetch_halo<NH_Q_MAP>(args, item, maps.q, barrier, stage.queries, head, heads);
            nh_fetch_halo<NH_D_O_MAP>(args, item, maps.d_o, barrier, stage.d_outputs, head, heads);
            nh_fetch_statistics(args, item, maps.statistics, barrier, stage.statistics, head);
        };
        nh_fetch_items<(2 * NH_HALO_ROWS + 2 * NH_ROWS) * nh_row_bytes(NH_DIM) +
                       NH_HALO_ROWS * (int)sizeof(float4)>(args, shared.tables, shared.ring, (unsigned)share, fetch);
    } else {
        nh_key_rows rows;
        const auto work = [&](const nh_scene &scene, int turn, int subtile, int member) {
            nh_stage &stage = shared.stage[turn];
            char *keys = stage.keys + 16 * subtile * nh_row_bytes(NH_DIM);
            char *values = stage.values + 16 * subtile * nh_row_bytes(NH_DIM_V);
            if (member == 0) nh_key_rows_load(rows, stage, subtile);
            nh_differentiate(args, scene, shared.tables, shared.penalties, stage, subtile, rows);
            if (member + 1 < share) return;
            nh_finish(args, scene.item, subtile, rows, keys, values);
            if (args.tensor[NH_D_K].data)
                nh_store_results<NH_D_K_MAP>(args, scene.item, maps.d_k, NH_D_K, subtile, keys,
                                             scene.item.head, kv_heads);
            if (args.tensor[NH_D_V].data)
                nh_store_results<NH_D_V_MAP>(args, scene.item, maps.d_v, NH_D_V, subtile, values,
                                             scene.item.head, kv_heads);
            nh_results_free();
        };
        nh_work_items(args, shared.ring, (unsigned)share, work);
    }
}

#else

/* Of the item's halo, for the head `member` of those that share the keys. */
NH_DEVICE void nh_copy_statistics(const nh_cuda_args &args, const nh_item &item, int member,
                                  float4 *statistics) {
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

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_backward_key(const __grid_constant__ nh_cuda_args args) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_stage &stage = shared.stage;
    const int share = (int)(args.heads / args.kv_heads);
    int turn = 0;
    if (NH_PENALTY) nh_penalties_fill(shared.penalties);
    nh_tables_start(args, shared.tables, shared.scene);
    if (threadIdx.x / 32 == 0) nh_item_locate(args, (int)blockIdx.x, shared.scene[0].item);
    __syncthreads();
    for (int index = (int)blockIdx.x; index < args.tiling.items; index += (int)gridDim.x) {
        nh_scene &scene = shared.scene[turn];
        const nh_item &item = scene.item;
        nh_key_rows rows;
        turn ^= 1;
        nh_copy_rows<NH_DIM, NH_DIM>(args, item, NH_K, stage.keys);
        nh_copy_rows<NH_DIM_V, NH_DIM_V>(args, item, NH_V, stage.values);
        nh_item_locate_next(args, index + (int)gridDim.x, shared.scene[turn].item);
#pragma unroll 1
        for (int member = 0; member < share; member++) {
            nh_copy_halo<NH_DIM>(args, item, NH_Q, member * args.tensor[NH_Q].head, stage.queries);
            nh_copy_halo<NH_DIM_V>(args, item, NH_D_O, member * args.tensor[NH_D_O].head,
                                   stage.d_outputs);
            nh_copy_statistics(args, item, member, stage.statistics);
            nh_scene_fill(args, shared.tables, scene, item.head * share + member, (int)nh_thread_again(),
                          NH_THREADS);
            nh_copy_wait();
            __syncthreads();
            nh_for_subtiles(args, item, [&](int subtile) {
                if (member == 0) nh_key_rows_load(rows, stage, subtile);
                nh_differentiate(args, scene, shared.tables, shared.penalties, stage, subtile, rows);
                if (member + 1 < share) return;
                nh_finish(args, item, subtile, rows, stage.keys, stage.values);
                __syncwarp();
                if (args.tensor[NH_D_K].data)
                    nh_store_rows<NH_DIM, NH_DIM>(args, item, NH_D_K, stage.keys, subtile);
                if (args.tensor[NH_D_V].data)
                    nh_store_rows<NH_DIM_V, NH_DIM_V>(args, item, NH_D_V, stage.values, subtile);
            });
            __syncthreads();
        }
    }
}

#endif
