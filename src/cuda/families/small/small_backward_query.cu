/* dQ of small windows, and LSE and delta for small_backward_key.cu. It is like the forward pass, with weights from the
 * given LSE; scores are needed only once, so the columns of a warp tile are processed in groups of 16. See
 * small.cuh. */
#define NH_INVERSE 0
#define NH_STOPS 1
#define NH_HEAD_SLOWEST (NH_BIAS_COUNT > 0)
#define NH_BIAS_STARTS 1
#define NH_LSE_ROWS (NH_Q0 * NH_Q1 * NH_Q2)
#define NH_PASSES NH_PLANES
#define NH_BORDERS_TAKE_LONGER (NH_BIAS_COUNT > 0)
#include "small_bias_gradient.cuh"
#include "overlap.cuh"
#include "small_repair_gradient.cuh"
#include "small_row_statistics.cuh"
#if NH_STAGES
#include "small_boxes.cuh"
#endif

struct nh_rows {
    /* where threads copy, gradients overwrite queries that have been read */
    alignas(NH_STAGE_ALIGNMENT) char queries[NH_ROWS * nh_row_bytes(NH_DIM)];
    alignas(NH_STAGE_ALIGNMENT) char outputs[NH_ROWS * nh_row_bytes(NH_DIM_V)];
    alignas(NH_STAGE_ALIGNMENT) char d_outputs[NH_ROWS * nh_row_bytes(NH_DIM_V)];
};

struct nh_shared {
    nh_key_halo halo[NH_HALOS];
    nh_rows rows[NH_STAGES ? NH_STAGES : 1];
#if NH_STAGES
    alignas(1024) char results[NH_WARPS][16 * nh_row_bytes(NH_DIM)];
    nh_ring ring;
#else
    nh_tile_info info[2];
#endif
    nh_tables tables;
    nh_additive_masks additive_masks;
    nh_bias_sums sums;
};
static_assert(sizeof(nh_shared) <= NH_SHARED_BYTES, "the host's count of shared memory");

/* rowsum(dO * O) of rows g and g + 8: the diagonal of dO times O transposed, by the tensor cores. */
NH_DEVICE void nh_dot_rows(float (&sum)[2], const nh_row_operand<NH_DIM_V> &d_outputs,
                           const char *outputs, int warp_tile) {
    const int lane = (int)(threadIdx.x % 32), g = lane / 4;
    const int row = nh_row_number(warp_tile, nh_lane_column<NH_AS_LAID>());
    float c[2][4] = {};
    unsigned start[NH_STEPS_V];
#pragma unroll
    for (int s = 0; s < NH_STEPS_V; s++)
        start[s] = nh_shared_address(outputs + nh_unit_offset(NH_DIM_V, row, 2 * s + nh_lane_half<NH_AS_LAID>()));
    nh_multiply_columns(c, d_outputs, start, 0, true);
    const int holder = lane - lane % 4 + g / 2;
    sum[0] = __shfl_sync(~0u, g % 2 ? c[0][1] : c[0][0], holder);
    sum[1] = __shfl_sync(~0u, g % 2 ? c[1][3] : c[1][2], holder);
}

/* Turns the scores of a pair, of its first block only unless `both`, into their gradients. d_weights: gradients of
 * weights, less delta. */
NH_DEVICE void nh_score_gradients(float (&scores)[2][4], const float (&d_weights)[2][4], float scale,
                                  const float (&lse)[2], const unsigned (&seen)[2], int pair, bool both) {
#pragma unroll
    for (int i = 0; i < (both ? 8 : 4); i++) {
        int half = i / 2 % 2;
        bool visible = NH_ADDITIVE_MASK || seen[half] >> (4 * pair + i / 4 * 2 + i % 2) & 1;
        float &score = scores[i / 4][i % 4];
        float weight = nh_exp2(fmaf(score, scale, lse[half]));
        score = visible ? weight * d_weights[i / 4][i % 4] : 0.f;
    }
}

/* Computes dQ of a warp tile. Calls taken() when the rows may be overwritten (where threads copy, the queries' places
 * are still used for results), and passed() when its first plane may be. */
template <typename Taken, typename Passed>
NH_DEVICE void nh_differentiate(const nh_tiled_args &args, const nh_tile_info &info, const nh_tables &tables,
                                const nh_additive_masks &additive_masks, const nh_key_halo &halo, const nh_rows &rows,
                                nh_bias_sums &sums, nh_bias_products &products, int warp_tile, char *results,
                                const Taken &taken, const Passed &passed) {
    nh_row_operand<NH_DIM> queries;
    nh_row_operand<NH_DIM_V> d_outputs;
    unsigned places[NH_STEPS_PLACES][4];
    nh_load_rows<NH_DIM>(queries, rows.queries, warp_tile);
    nh_load_rows<NH_DIM_V>(d_outputs, rows.d_outputs, warp_tile);
    float lse[2], delta[2], d_queries[NH_SUMS][4] = {};
    uint4 statistics[2];
    float start[4] = {};
    nh_dot_rows(delta, d_outputs, rows.outputs, warp_tile);
    nh_row_statistics(args, info, tables.shift, warp_tile, lse, delta, statistics);
    nh_start_at_deltas(start, statistics);
    taken();
    unsigned keys[NH_STEPS], values[NH_STEPS_V];
    nh_across<NH_DIM> keys_across;
    const int first = nh_box_row(info.visibility, warp_tile), wrap = nh_box_wrap(info.visibility, warp_tile);
    const int reach = nh_visibility_reach(info.visibility, warp_tile);
    nh_gather_start<NH_AS_LAID, NH_DIM, NH_STEPS>(keys, halo.keys, first);
    nh_across_start(keys_across, halo.keys, first);
    nh_gather_start_beside<NH_AS_LAID, NH_DIM_V, NH_STEPS_V>(values, keys, (int)(halo.values - halo.keys), halo.values,
                                                             first);
    if (NH_ADDITIVE_MASK) nh_visibility_additive_mask_rows(places, info.visibility, warp_tile);
    const bool bias_wanted = nh_bias_wanted(args);
    const float scale = tables.scale;
    const float *table = info.bias;
    if (NH_BIAS_COUNT) table += nh_bias_row(args, info, warp_tile, (int)(threadIdx.x % 32) / 4);
    const int chunks = nh_chunks_of(reach);
    if (NH_PASSES && chunks <= NH_PASSING_CHUNK) passed();
#pragma unroll 1
    for (int chunk = 0; chunk < chunks; chunk++) {
        unsigned seen[2];
        int row[4 * NH_GATHERS];
        nh_across_rows across;
        if (!NH_ADDITIVE_MASK) nh_chunk_bits(seen, info.visibility, warp_tile, chunk);
        nh_gather_rows(row, tables.columns, wrap, chunk, nh_lane_column<NH_AS_LAID>());
#pragma unroll
        for (int p = 0; p < NH_PAIRS; p++) {
            /* keeps the compiler from loading so far ahead that registers spill */
            if (NH_BIAS_COUNT || NH_DTYPE == NH_F32 ? p : p == NH_PAIRS / 2) __syncwarp();
            const int column = chunk * NH_CHUNK + 16 * p;
            const bool both = 2 * p + 1 < NH_BLOCKS;
            nh_gather_across(across, tables.columns, wrap, chunk, p);
            if (!NH_PLANE_CHUNKS && p >= NH_LEAST_PAIRS && column >= reach) {
                const nh_weights none = {};
                if (bias_wanted) nh_bias_lay(sums, column, none, both);
                continue;
            }
            float scores[2][4] = {};
            float d_weights[2][4] = {{start[0], start[1], start[2], start[3]},
                                     {start[0], start[1], start[2], start[3]}};
            nh_weights d_scores;
            if (NH_BIAS_COUNT) nh_bias_pair(scores, tables.columns, table, column, both);
            if (NH_ADDITIVE_MASK) nh_add_mask(scores, places, additive_masks, nh_mask_pair(chunk, p), both);
            nh_multiply_pair(scores, queries, keys, row[p], both);
            nh_multiply_pair(d_weights, d_outputs, values, row[p], both);
            nh_score_gradients(scores, d_weights, scale, lse, seen, p, both);
            nh_pack_weights(d_scores, scores, both);
            if (bias_wanted) nh_bias_lay(sums, column, d_scores, both);
            nh_add_pair(d_queries, d_scores, keys_across, nh_rows_of_pair(across, p), keys, row[p], both);
        }
        if (NH_PASSES && chunk == NH_PASSING_CHUNK) passed();
    }
    if (bias_wanted) nh_bias_gather(args, info, warp_tile, sums, products);
#if NH_STAGES
    nh_results_free();
#else
    __syncwarp();
#endif
    nh_stage_rows<NH_DIM>(results, d_queries, (float)args.scale, (float)args.scale,
                                    warp_tile);
    const bool repair[2] = {nh_needs_repair(d_queries, 0), nh_needs_repair(d_queries, 1)};
    if (!__any_sync(~0u, repair[0] | repair[1])) return;
    nh_for_rows_to_repair(repair[0], repair[1], [&](int row) {
        float2 own = make_float2(__shfl_sync(~0u, row < 8 ? lse[0] : lse[1], row % 8 * 4),
                                 -__shfl_sync(~0u, row < 8 ? start[0] : start[2], row % 8 * 4));
        nh_repair_gradient(
            args, info.work_tile, warp_tile, row, own,
            [=](int at, int i, elem x) { nh_result_element<NH_DIM>(results, warp_tile, at, i) = x; },
            [](int, int, elem) {});
    });
}

#if NH_STAGES

struct nh_maps {
    nh_tensor_map q, k, v, o, d_o, d_q;
#if NH_SEAM_LINES
    nh_tensor_map lines[2];
#endif
};

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_backward_query(const __grid_constant__ nh_tiled_args args, const __grid_constant__ nh_maps maps) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_let_next_begin();
    const int heads = (int)args.heads, kv_heads = (int)args.kv_heads;
    if (threadIdx.x == 0) nh_ring_start(args, shared.ring);
    if (NH_ADDITIVE_MASK) nh_additive_masks_fill(shared.additive_masks);
    if (nh_bias_wanted(args)) nh_bias_clear(shared.sums);
    nh_tables_start(args, shared.tables, shared.ring.info);
    __syncthreads();
    if (threadIdx.x / 32 >= NH_WARPS) {
        const auto fetch = [&](const nh_work_tile &work_tile, int turn, int, unsigned barrier) {
            nh_key_halo &halo = shared.halo[turn % NH_HALOS];
            nh_rows &rows = shared.rows[turn];
            nh_fetch_rows<NH_Q_MAP>(args, work_tile, maps.q, barrier, rows.queries, work_tile.head, heads);
            nh_fetch_rows<NH_O_MAP>(args, work_tile, maps.o, barrier, rows.outputs, work_tile.head, heads);
            nh_fetch_rows<NH_D_O_MAP>(args, work_tile, maps.d_o, barrier, rows.d_outputs, work_tile.head, heads);
            nh_fetch_halo<NH_K_MAP>(args, work_tile, maps.k, barrier, halo.keys, work_tile.column_head, kv_heads);
            nh_fetch_halo<NH_V_MAP>(args, work_tile, maps.v, barrier, halo.values, work_tile.column_head, kv_heads);
        };
        nh_fetch_work_tiles<2 * NH_FETCHED_ROWS * nh_row_bytes(NH_DIM), 3 * NH_ROWS * nh_row_bytes(NH_DIM)>(
            args, shared.tables, shared.ring, 1, fetch,
            [&](const nh_work_tile &work_tile, int turn, int, int lane, nh_boxes_landed landed) {
#if NH_SEAM_LINES
                nh_key_halo &halo = shared.halo[turn % NH_HALOS];
                nh_fetch_lines(args, work_tile, maps.lines, landed.barrier, halo.keys, halo.values,
                               work_tile.column_head, lane);
#else
                nh_copy_key_seam(args, work_tile, shared.halo[turn % NH_HALOS], lane, landed);
#endif
            });
    } else {
        int bias_turn = 0;
        nh_bias_products products;
        nh_bias_products_clear(products);
        char *results = shared.results[threadIdx.x / 32];
        const auto work = [&](const nh_tile_info &info, int stage, int warp_tile, int) {
            nh_bias_head(args, bias_turn, info.work_tile.head, shared.sums, products);
            nh_differentiate(args, info, shared.tables, shared.additive_masks, shared.halo[stage % NH_HALOS],
                             shared.rows[stage], shared.sums, products, warp_tile, results,
                             [&] { nh_rows_taken(shared.ring, stage); },
                             [&] { nh_plane_passed(shared.ring, nh_place_again(shared.ring).done); });
            nh_results_ready();
            if (args.tensor[NH_D_Q].data)
                nh_store_results<NH_D_Q_MAP>(args, info.work_tile, maps.d_q, NH_D_Q, warp_tile, results,
                                             info.work_tile.head, heads);
        };
        nh_do_work_tiles(args, shared.ring, 1, work);
        nh_bias_head(args, bias_turn, heads, shared.sums, products);
    }
}

#else

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_backward_query(const __grid_constant__ nh_tiled_args args) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_let_next_begin();
    nh_key_halo &halo = shared.halo[0];
    nh_rows &rows = shared.rows[0];
    int warp = (int)(threadIdx.x / 32), turn = 0, bias_turn = 0;
    nh_bias_products products;
    nh_bias_products_clear(products);
    if (NH_ADDITIVE_MASK) nh_additive_masks_fill(shared.additive_masks);
    if (nh_bias_wanted(args)) nh_bias_clear(shared.sums);
    nh_tables_start(args, shared.tables, shared.info);
    __syncthreads();
    if (warp == 0) nh_work_tile_locate(args, shared.tables.digits, (int)blockIdx.x, false, shared.info[0].work_tile);
    __syncthreads();
    for (int index = (int)blockIdx.x; index < args.tiling.work_tiles; index += (int)gridDim.x) {
        nh_tile_info &info = shared.info[turn];
        const nh_work_tile &work_tile = info.work_tile;
        turn ^= 1;
        nh_copy_halo<NH_DIM>(args, work_tile, NH_K, 0, halo.keys);
        nh_copy_halo<NH_DIM_V>(args, work_tile, NH_V, 0, halo.values);
        nh_copy_rows<NH_DIM, NH_DIM>(args, work_tile, NH_Q, rows.queries);
        nh_copy_rows<NH_DIM_V, NH_DIM_V>(args, work_tile, NH_O, rows.outputs);
        nh_copy_rows<NH_DIM_V, NH_DIM_V>(args, work_tile, NH_D_O, rows.d_outputs);
        nh_bias_head(args, bias_turn, work_tile.head, shared.sums, products);
        nh_tile_info_fill(args, shared.tables, info, work_tile.head, (int)nh_thread_again(), NH_THREADS);
        nh_work_tile_locate_next(args, shared.tables, index + (int)gridDim.x, shared.info[turn].work_tile);
        nh_copy_wait();
        __syncthreads();
        nh_for_warp_tiles(args, work_tile, [&](int warp_tile) {
            nh_differentiate(args, info, shared.tables, shared.additive_masks, halo, rows, shared.sums, products,
                             warp_tile, rows.queries, [] {}, [] {});
            __syncwarp();
            if (args.tensor[NH_D_Q].data)
                nh_store_rows<NH_DIM, NH_DIM>(args, work_tile, NH_D_Q, rows.queries, warp_tile);
        });
        __syncthreads();
    }
    nh_bias_head(args, bias_turn, (int)args.heads, shared.sums, products);
}

#endif
