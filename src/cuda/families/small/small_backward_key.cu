/* dK and dV of small windows. Rows are keys, columns the queries that attend them (a box of varying size), so that
 * nothing is added atomically and results are bit-equal in every run. Weights come from the given LSE, delta from
 * small_backward_query.cu. A warp keeps the sums of its warp tile in registers while it loops over the query heads that
 * share the key head. See small.cuh. */
#define NH_INVERSE 1
#define NH_STOPS 1
#define NH_BIAS_STARTS 1
#define NH_PASSES NH_PLANES
#include "overlap.cuh"
#include "small_repair_gradient.cuh"
#include "small_copy_statistics.cuh"
#if NH_STAGES
#include "small_boxes.cuh"
#endif

static_assert(NH_STAGES || NH_WARP_TILES == NH_WARPS, "one warp tile of a work tile per warp");

struct nh_halo {
    alignas(NH_STAGE_ALIGNMENT) char queries[NH_HALO_ROWS * nh_row_bytes(NH_DIM)];
    alignas(NH_STAGE_ALIGNMENT) char d_outputs[NH_HALO_ROWS * nh_row_bytes(NH_DIM_V)];
    alignas(NH_STAGE_ALIGNMENT) uint4 statistics[NH_STATISTICS];
};
struct nh_rows {
    /* where threads copy, gradients overwrite rows that have been read */
    alignas(NH_STAGE_ALIGNMENT) char keys[NH_ROWS * nh_row_bytes(NH_DIM)];
    alignas(NH_STAGE_ALIGNMENT) char values[NH_ROWS * nh_row_bytes(NH_DIM_V)];
};

struct nh_shared {
    /* the halo of one query head */
    nh_halo halo[NH_HALOS];
    nh_rows rows[NH_STAGES ? NH_STAGES : 1];
#if NH_STAGES
    struct {
        alignas(1024) char keys[16 * nh_row_bytes(NH_DIM)], values[16 * nh_row_bytes(NH_DIM_V)];
    } results[NH_WARPS];
    nh_ring ring;
#else
    nh_tile_info info[2];
#endif
    nh_tables tables;
    nh_additive_masks additive_masks;
    nh_kinds kinds;
};
static_assert(sizeof(nh_shared) <= NH_SHARED_BYTES, "the host's count of shared memory");

struct nh_key_sums {
    nh_row_operand<NH_DIM> keys;
    nh_row_operand<NH_DIM_V> values;
    float d_keys[NH_SUMS][4], d_values[NH_SUMS_V][4];
};

NH_DEVICE void nh_key_sums_start(nh_key_sums &sums, const nh_rows &rows, int warp_tile) {
    nh_load_rows<NH_DIM>(sums.keys, rows.keys, warp_tile);
    nh_load_rows<NH_DIM_V>(sums.values, rows.values, warp_tile);
    nh_clear(sums.d_keys);
    nh_clear(sums.d_values);
}

/* Turns the scores of a pair's queries, of its first block only unless `both`, which are shifted by their LSE,
 * into weights, and gradients of weights, less delta, into gradients of scores. Scores are transposed: a thread's
 * columns are 2t and 2t + 1 of each 8. */
NH_DEVICE void nh_weigh(float scale, int pair, const unsigned (&seen)[2], float (&weights)[2][4],
                        float (&d_scores)[2][4], bool both) {
#pragma unroll
    for (int i = 0; i < (both ? 8 : 4); i++) {
        float &weight = weights[i / 4][i % 4];
        bool visible = NH_ADDITIVE_MASK || seen[i / 2 % 2] >> (4 * pair + i / 4 * 2 + i % 2) & 1;
        weight = visible ? nh_exp2(weight * scale) : 0.f;
        d_scores[i / 4][i % 4] *= weight;
    }
}

/* Adds what a warp tile's columns contribute to its sums. Calls passed() when its first plane may be overwritten. */
template <typename Passed>
NH_DEVICE void nh_differentiate(const nh_tiled_args &args, const nh_tile_info &info, const nh_tables &tables,
                                const nh_additive_masks &additive_masks, const nh_kinds &kinds, const nh_halo &halo,
                                int warp_tile, nh_key_sums &sums, const Passed &passed) {
    unsigned queries[NH_STEPS], d_outputs[NH_STEPS_V], places[NH_STEPS_PLACES][4];
    nh_across<NH_DIM> queries_across;
    nh_across<NH_DIM_V> d_outputs_across;
    const int first = nh_box_row(info.visibility, warp_tile), wrap = nh_box_wrap(info.visibility, warp_tile);
    const int reach = nh_visibility_reach(info.visibility, warp_tile);
#if NH_REGIONS && !NH_PASSES
    if (reach <= 0) return; /* these keys are in no window */
#endif
    const float scale = tables.scale;
    /* -LSE / scale is larger than most scores: if it came first, f32 products added to it would lose their lower
     * bits */
    const bool shifts_last = NH_DTYPE == NH_F32;
    const unsigned statistics = nh_shared_address(halo.statistics + nh_box_statistics(info.visibility, warp_tile));
    const int beside = (int)(halo.d_outputs - halo.queries);
    nh_gather_start<NH_AS_LAID, NH_DIM, NH_STEPS>(queries, halo.queries, first);
    nh_across_start(queries_across, halo.queries, first);
    nh_gather_start_beside<NH_AS_LAID, NH_DIM_V, NH_STEPS_V>(d_outputs, queries, beside, halo.d_outputs, first);
    nh_across_start_beside(d_outputs_across, queries_across, beside, halo.d_outputs, first);
    const uint2 *hidden = nh_kind_columns(kinds, info.visibility.places, warp_tile);
    const uint2 own_places = kinds.rows[threadIdx.x % 32];
    if (NH_ADDITIVE_MASK && NH_ADDITIVE_MASK != 3) nh_visibility_additive_mask_rows(places, info.visibility, warp_tile);
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
        const unsigned ahead = (unsigned)nh_plane_ahead(wrap, chunk, NH_SLOT_STATISTICS, NH_STATISTICS) * 16u;
#pragma unroll
        for (int p = 0; p < NH_PAIRS; p++) {
            if (!NH_PLANE_CHUNKS && p >= NH_LEAST_PAIRS && chunk * NH_CHUNK + 16 * p >= reach) break;
            /* keeps the compiler from loading so far ahead that registers spill */
            if ((NH_BIAS_COUNT || NH_DTYPE == NH_F32) && p) __syncwarp();
            const bool both = 2 * p + 1 < NH_BLOCKS;
            float weights[2][4] = {}, d_scores[2][4] = {};
            nh_weights operand;
            unsigned query[2];
            nh_gather_across(across, tables.columns, wrap, chunk, p);
            if (NH_BIAS_COUNT) nh_bias_pair(weights, tables.columns, table, chunk * NH_CHUNK + 16 * p, both);
            const int column = (NH_PLANE_CHUNKS ? 0 : chunk * NH_CHUNK) + 16 * p + (int)(threadIdx.x % 16);
            nh_statistics_load(query, statistics + tables.columns.statistics[NH_PLANE_CHUNKS ? 0 : wrap][column] +
                                          ahead);
            const uint2 hiding = NH_ADDITIVE_MASK == 3 ? hidden[16 * nh_mask_pair(chunk, p)] : uint2{0u, 0u};
#pragma unroll
            for (int block = 0; block < 1 + both; block++) {
                if (!shifts_last) nh_add_shifts(weights[block], query[block], own_places, block ? hiding.y : hiding.x);
                nh_add_deltas(d_scores[block], query[block]);
            }
            if (NH_ADDITIVE_MASK && NH_ADDITIVE_MASK != 3)
                nh_add_mask(weights, places, additive_masks, nh_mask_pair(chunk, p), both);
            nh_multiply_pair(weights, sums.keys, queries, row[p], both);
#pragma unroll
            for (int block = 0; block < 1 + both; block++)
                if (shifts_last) nh_add_shifts(weights[block], query[block], own_places, block ? hiding.y : hiding.x);
            nh_multiply_pair(d_scores, sums.values, d_outputs, row[p], both);
            nh_weigh(scale, p, seen, weights, d_scores, both);
            nh_pack_weights(operand, weights, both);
            nh_add_pair(sums.d_values, operand, d_outputs_across, nh_rows_of_pair(across, p), d_outputs, row[p], both);
            nh_pack_weights(operand, d_scores, both);
            nh_add_pair(sums.d_keys, operand, queries_across, nh_rows_of_pair(across, p), queries, row[p], both);
        }
        if (NH_PASSES && chunk == NH_PASSING_CHUNK) passed();
    }
}

/* Writes the gradients to shared memory. */
NH_DEVICE void nh_finish(const nh_tiled_args &args, const nh_work_tile &work_tile, int warp_tile,
                         const nh_key_sums &sums, char *keys, char *values) {
#if NH_STAGES
    nh_results_free();
#else
    __syncwarp();
#endif
    nh_stage_rows<NH_DIM>(keys, sums.d_keys, (float)args.scale, (float)args.scale,
                                    warp_tile);
    nh_stage_rows<NH_DIM_V>(values, sums.d_values, 1.f, 1.f, warp_tile);
    const bool repair[2] = {nh_needs_repair(sums.d_keys, 0) | nh_needs_repair(sums.d_values, 0),
                            nh_needs_repair(sums.d_keys, 1) | nh_needs_repair(sums.d_values, 1)};
    if (!__any_sync(~0u, repair[0] | repair[1])) return;
    __syncwarp();
    nh_for_rows_to_repair(repair[0], repair[1], [&](int row) {
        nh_repair_gradient(
            args, work_tile, warp_tile, row, make_float2(0.f, 0.f),
            [=](int at, int i, elem x) { nh_result_element<NH_DIM>(keys, warp_tile, at, i) = x; },
            [=](int at, int i, elem x) { nh_result_element<NH_DIM_V>(values, warp_tile, at, i) = x; });
    });
}

#if NH_STAGES

struct nh_maps {
    nh_tensor_map q, k, v, d_o, d_k, d_v, statistics;
#if NH_SEAM_LINES
    nh_tensor_map lines[2];
#endif
};
enum {
    NH_STATISTICS_MAP = 3,
    STATISTICS_BYTES = NH_FETCHED_STATISTICS * (int)sizeof(uint4),
    SLOT_BYTES = NH_SLOT_STATISTICS * (int)sizeof(uint4)
};

#if NH_SEAM_LINES
/* The lanes of a warp copy the statistics of the queries of a halo with a seam: lines of statistics do not start at
 * multiples of 128 bytes, to which the copy engine is limited. */
NH_DEVICE void nh_copy_statistic_lines(const nh_tiled_args &args, const nh_work_tile &work_tile, int member,
                                       nh_halo &halo, int lane) {
    const nh_cuda_tensor &delta = args.tensor[NH_DELTA];
#pragma unroll 1
    for (int i = lane; i < nh_halo_lines(work_tile) * NH_H2; i += 32) {
        const nh_halo_line line = nh_halo_line_of(work_tile, i / NH_H2);
        const int at[3] = {line.at[0], line.at[1], nh_column_around(work_tile, 2, line.at[2] + i % NH_H2)};
        const int row = line.box * NH_SLOT_STATISTICS + line.place[0] * nh_statistics_pitch(0) +
                        line.place[1] * nh_statistics_pitch(1) + i % NH_H2;
        long long offset = work_tile.origin[NH_DELTA] + member * delta.head;
#pragma unroll
        for (int a = NH_FIRST_AXIS; a < 3; a++)
            offset += (at[a] - work_tile.span[a].ahead) * work_tile.step[NH_DELTA][a];
        nh_copy16(&halo.statistics[row], (const float *)delta.data + offset, true);
    }
}
#elif NH_PERIODIC
NH_DEVICE nh_seam_unit nh_seam_statistic(const nh_tiled_args &args, const nh_work_tile &work_tile, int member,
                                         nh_halo &halo, const nh_seam_column &column) {
    const nh_cuda_tensor &delta = args.tensor[NH_DELTA];
    long long offset = work_tile.origin[NH_DELTA] + member * delta.head;
    int row = column.box * NH_SLOT_STATISTICS;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        row += column.place[a] * nh_statistics_pitch(a);
        offset += column.at[a] * work_tile.step[NH_DELTA][a];
    }
    return {(const float *)delta.data + offset, (char *)&halo.statistics[row]};
}
#endif

/* Copies the queries, output gradients and statistics that boxes lack: see small_seam.cuh. */
NH_DEVICE void nh_copy_query_seam(const nh_tiled_args &args, const nh_work_tile &work_tile, int member, nh_halo &halo,
                                  int lane, nh_boxes_landed landed) {
#if NH_PERIODIC && !NH_SEAM_LINES
    const int units = nh_units(NH_DIM);
    nh_copy_seam_units<2 * units + 1>(
        work_tile, lane,
        [&](const nh_seam_column &column, int part) -> nh_seam_unit {
            if (part == 2 * units) return nh_seam_statistic(args, work_tile, member, halo, column);
            const bool gradients = part >= units;
            return nh_seam_unit_of<NH_DIM>(args, work_tile, gradients ? NH_D_O : NH_Q, member,
                                           gradients ? halo.d_outputs : halo.queries, column, part % units);
        },
        landed);
#endif
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_backward_key(const __grid_constant__ nh_tiled_args args, const __grid_constant__ nh_maps maps) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    const int heads = (int)args.heads, kv_heads = (int)args.kv_heads, share = heads / kv_heads;
    if (threadIdx.x == 0) nh_ring_start(args, shared.ring);
    nh_masks_fill(args, shared.additive_masks, shared.kinds);
    nh_tables_start(args, shared.tables, shared.ring.info);
    nh_wait_for_launches();
    __syncthreads();
    if (threadIdx.x / 32 >= NH_WARPS) {
        const auto fetch = [&](const nh_work_tile &work_tile, int turn, int member, unsigned barrier) {
            nh_halo &halo = shared.halo[turn % NH_HALOS];
            nh_rows &rows = shared.rows[turn];
            int head = work_tile.column_head + member;
            nh_fetch_rows<NH_K_MAP>(args, work_tile, maps.k, barrier, rows.keys, work_tile.head, kv_heads);
            nh_fetch_rows<NH_V_MAP>(args, work_tile, maps.v, barrier, rows.values, work_tile.head, kv_heads);
            nh_fetch_halo<NH_Q_MAP>(args, work_tile, maps.q, barrier, halo.queries, head, heads);
            nh_fetch_halo<NH_D_O_MAP>(args, work_tile, maps.d_o, barrier, halo.d_outputs, head, heads);
            nh_fetch_halo<NH_STATISTICS_MAP, SLOT_BYTES>(args, work_tile, maps.statistics, barrier,
                                                         (char *)halo.statistics, head, heads);
        };
        nh_fetch_work_tiles<2 * NH_FETCHED_ROWS * nh_row_bytes(NH_DIM) + STATISTICS_BYTES,
                            2 * NH_ROWS * nh_row_bytes(NH_DIM), NH_SEAM_LINES ? STATISTICS_BYTES : 0>(
            args, shared.tables, shared.ring, (unsigned)share, fetch,
            [&](const nh_work_tile &work_tile, int turn, int member, int lane, nh_boxes_landed landed) {
                nh_halo &halo = shared.halo[turn % NH_HALOS];
#if NH_SEAM_LINES
                nh_fetch_lines(args, work_tile, maps.lines, landed.barrier, halo.queries, halo.d_outputs,
                               work_tile.column_head + member, lane);
                nh_copy_statistic_lines(args, work_tile, member, halo, lane);
#else
                nh_copy_query_seam(args, work_tile, member, halo, lane, landed);
#endif
            });
    } else {
        nh_key_sums sums;
        char *keys = shared.results[threadIdx.x / 32].keys, *values = shared.results[threadIdx.x / 32].values;
        const auto work = [&](const nh_tile_info &info, int turn, int warp_tile, int member) {
            if (member == 0) nh_key_sums_start(sums, shared.rows[turn], warp_tile);
            nh_rows_taken(shared.ring, turn);
            nh_differentiate(args, info, shared.tables, shared.additive_masks, shared.kinds,
                             shared.halo[turn % NH_HALOS], warp_tile, sums,
                             [&] { nh_plane_passed(shared.ring, nh_place_again(shared.ring).done); });
            if (member + 1 < share) return;
            nh_finish(args, info.work_tile, warp_tile, sums, keys, values);
            nh_results_ready();
            if (args.tensor[NH_D_K].data)
                nh_store_results<NH_D_K_MAP>(args, info.work_tile, maps.d_k, NH_D_K, warp_tile, keys,
                                             info.work_tile.head, kv_heads);
            if (args.tensor[NH_D_V].data)
                nh_store_results<NH_D_V_MAP>(args, info.work_tile, maps.d_v, NH_D_V, warp_tile, values,
                                             info.work_tile.head, kv_heads);
        };
        nh_do_work_tiles(args, shared.ring, (unsigned)share, work);
    }
}

#else

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_backward_key(const __grid_constant__ nh_tiled_args args) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_halo &halo = shared.halo[0];
    nh_rows &rows = shared.rows[0];
    const int share = (int)(args.heads / args.kv_heads);
    int turn = 0;
    nh_masks_fill(args, shared.additive_masks, shared.kinds);
    nh_tables_start(args, shared.tables, shared.info);
    nh_wait_for_launches();
    __syncthreads();
    if (threadIdx.x / 32 == 0)
        nh_work_tile_locate(args, shared.tables.digits, (int)blockIdx.x, false, shared.info[0].work_tile);
    __syncthreads();
    for (int index = (int)blockIdx.x; index < args.tiling.work_tiles; index += (int)gridDim.x) {
        nh_tile_info &info = shared.info[turn];
        const nh_work_tile &work_tile = info.work_tile;
        nh_key_sums sums;
        turn ^= 1;
        nh_copy_rows<NH_DIM, NH_DIM>(args, work_tile, NH_K, rows.keys);
        nh_copy_rows<NH_DIM_V, NH_DIM_V>(args, work_tile, NH_V, rows.values);
        nh_work_tile_locate_next(args, shared.tables, index + (int)gridDim.x, shared.info[turn].work_tile);
#pragma unroll 1
        for (int member = 0; member < share; member++) {
            nh_copy_halo<NH_DIM>(args, work_tile, NH_Q, member * args.tensor[NH_Q].head, halo.queries);
            nh_copy_halo<NH_DIM_V>(args, work_tile, NH_D_O, member * args.tensor[NH_D_O].head, halo.d_outputs);
            nh_copy_statistics(args, work_tile, member, halo.statistics);
            nh_tile_info_fill(args, shared.tables, info, work_tile.head * share + member, (int)nh_thread_again(),
                              NH_THREADS);
            nh_copy_wait();
            __syncthreads();
            nh_for_warp_tiles(args, work_tile, [&](int warp_tile) {
                if (member == 0) nh_key_sums_start(sums, rows, warp_tile);
                nh_differentiate(args, info, shared.tables, shared.additive_masks, shared.kinds, halo, warp_tile, sums,
                                 [] {});
                if (member + 1 < share) return;
                nh_finish(args, work_tile, warp_tile, sums, rows.keys, rows.values);
                __syncwarp();
                if (args.tensor[NH_D_K].data)
                    nh_store_rows<NH_DIM, NH_DIM>(args, work_tile, NH_D_K, rows.keys, warp_tile);
                if (args.tensor[NH_D_V].data)
                    nh_store_rows<NH_DIM_V, NH_DIM_V>(args, work_tile, NH_D_V, rows.values, warp_tile);
            });
            __syncthreads();
        }
    }
}

#endif
