/* Forward pass of small windows. A work tile's keys and values lie in shared memory, and a warp tile of 16 queries is
 * multiplied with groups of 16 keys. Several blocks, or stages of one, share a multiprocessor, so that the copies of
 * one overlap with the products of the others. See small.cuh. */
#define NH_INVERSE 0
#define NH_PASSES (NH_PLANES && NH_DTYPE != NH_F16)
#define NH_ARRIVALS 1
#include "small_repair.cuh"
#include "small_state.cuh"
#if NH_STAGES
#include "small_boxes.cuh"
#endif

struct nh_rows {
    /* where threads copy, outputs overwrite queries that have been read */
    alignas(NH_STAGE_ALIGNMENT) char queries[NH_ROWS * nh_row_bytes(NH_WIDEST)];
};

struct nh_shared {
    nh_key_halo halo[NH_HALOS];
    nh_rows rows[NH_STAGES ? NH_STAGES : 1];
#if NH_STAGES
    alignas(1024) char results[NH_WARPS][16 * nh_row_bytes(NH_WIDEST)];
    nh_ring ring;
#else
    nh_tile_info info[2];
#endif
    nh_tables tables;
    nh_additive_masks additive_masks;
    float *volatile lse; /* the output; here because the compiler would keep an argument in registers */
};
static_assert(sizeof(nh_shared) <= NH_SHARED_BYTES, "the host's count of shared memory");

typedef nh_row_operand<NH_DIM> nh_queries;

/* A warp tile and all that its scores depend on. */
struct nh_warp_tile {
    const nh_tiled_args &args;
    const nh_tile_info &info;
    const nh_tables &tables;
    const nh_additive_masks &additive_masks;
    const nh_key_halo &halo;
    int number;
    const nh_queries &queries;
};

/* Whether the scores of a pair are multiplied ahead of the softmax of the pair before. This is done in chunks of other
 * sizes. */
#define NH_AHEAD (NH_CHUNK_BLOCKS != NH_MASK_BLOCKS)
#if NH_AHEAD && !NH_ADDITIVE_MASK
#error "chunks of other sizes have additive masks"
#endif

/* The pair of the chunk with the first plane's last column after which that plane is free. If there are several chunks
 * it is the last pair, as a branch in the middle of a chunk would hinder the compiler. */
enum { NH_PASSING_PAIR = NH_CHUNKS == 1 && NH_AHEAD ? (NH_K1 * NH_K2 - 1) / 16 : NH_PAIRS - 1 };

/* Operands that are the same for all pairs of a warp tile's scores. */
struct nh_score_start {
    unsigned keys[NH_STEPS], places[NH_STEPS_PLACES][4];
    const float *table;
};

/* Scores of the p-th pair of a chunk; row: halo row of this lane's column of the pair; seen: bits, if masks are
 * bits. */
NH_DEVICE void nh_pair_scores(float (&scores)[2][4], const nh_warp_tile &warp_tile, const nh_score_start &start,
                              const unsigned (&seen)[2], int row, int chunk, int p) {
    const nh_tables &tables = warp_tile.tables;
    const bool both = 2 * p + 1 < NH_BLOCKS;
    float bias[2][4] = {};
    nh_clear(scores);
    if (NH_ADDITIVE_MASK) nh_add_mask(scores, start.places, warp_tile.additive_masks, chunk * NH_PAIRS + p, both);
    nh_multiply_columns(scores, warp_tile.queries, start.keys, row, both);
    if (NH_BIAS_COUNT) nh_bias_pair(bias, tables.columns, start.table, chunk * NH_CHUNK + 16 * p, both);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float &score = scores[i / 4][i % 4];
        if (NH_BIAS_COUNT) score = fmaf(score, tables.scale, bias[i / 4][i % 4]);
        if (!NH_ADDITIVE_MASK && !(seen[i / 2 % 2] >> (4 * p + i / 4 * 2 + i % 2) & 1)) score = NH_MINUS_INFINITY;
    }
}

/* Visits the scores of a chunk, the first pair of which are given. The scores of the next pair, at the end those of the
 * next chunk's first, are multiplied ahead of visit() for a pair. row: halo rows of the chunk's pairs; set to those of
 * the next chunk. */
template <bool LAST, typename Visit, typename Passed>
NH_DEVICE void nh_visit_chunk(const nh_warp_tile &warp_tile, const nh_score_start &start, int wrap, int chunk,
                              int (&row)[4 * NH_GATHERS], float (&scores)[2][4], const Visit &visit,
                              const Passed &passed) {
    const nh_column_tables &columns = warp_tile.tables.columns;
    const unsigned seen[2] = {};
    nh_across_rows across;
    int row_after[4 * NH_GATHERS];
    nh_gather_across(across, columns, wrap, chunk, 0);
    if (!LAST) nh_gather_rows(row_after, columns, wrap, chunk + 1, nh_lane_column<NH_AS_LAID>());
#pragma unroll
    for (int p = 0; p < NH_PAIRS; p++) {
        const bool last = p + 1 == NH_PAIRS;
        float ahead[2][4];
        if (!last)
            nh_pair_scores(ahead, warp_tile, start, seen, row[p + 1], chunk, p + 1);
        else if (!LAST)
            nh_pair_scores(ahead, warp_tile, start, seen, row_after[0], chunk + 1, 0);
        visit(scores, 2 * p + 1 < NH_BLOCKS, nh_rows_of_pair(across, p));
        if (NH_PASSES && p == NH_PASSING_PAIR && chunk == NH_PASSING_CHUNK) passed();
#pragma unroll
        for (int i = 0; i < (last && LAST ? 0 : 8); i++)
            scores[i / 4][i % 4] = ahead[i / 4][i % 4];
    }
#pragma unroll
    for (int p = 0; p < (LAST ? 0 : NH_PAIRS); p++)
        row[p] = row_after[p];
}

/* Calls visit(scores, both, rows) for each 16 columns of the warp tile. Scores are scaled if there is a bias, and minus
 * infinity or less where a row does not see a column. The second eight columns count only if `both`; rows: halo rows of
 * this lane's columns in products that run over them. Calls passed() when the first plane is no longer needed
 * (NH_PASSES). */
template <typename Visit, typename Passed>
NH_DEVICE void nh_for_scores(const nh_warp_tile &warp_tile, const Visit &visit, const Passed &passed) {
    const nh_tile_info &info = warp_tile.info;
    const nh_tables &tables = warp_tile.tables;
    const int first = nh_box_row(info.visibility, warp_tile.number),
              wrap = nh_box_wrap(info.visibility, warp_tile.number);
    nh_score_start start;
    nh_gather_start<NH_AS_LAID, NH_DIM, NH_STEPS>(start.keys, warp_tile.halo.keys, first);
    if (NH_ADDITIVE_MASK) nh_visibility_additive_mask_rows(start.places, info.visibility, warp_tile.number);
    start.table = info.bias;
    if (NH_BIAS_COUNT)
        start.table += nh_bias_row(warp_tile.args, info, warp_tile.number, (int)(threadIdx.x % 32) / 4);
#if NH_AHEAD
    int row[4 * NH_GATHERS];
    float scores[2][4];
    nh_gather_rows(row, tables.columns, wrap, 0, nh_lane_column<NH_AS_LAID>());
    nh_pair_scores(scores, warp_tile, start, {}, row[0], 0, 0);
#pragma unroll 1
    for (int chunk = 0; chunk < NH_CHUNKS - 1; chunk++)
        nh_visit_chunk<false>(warp_tile, start, wrap, chunk, row, scores, visit, passed);
    nh_visit_chunk<true>(warp_tile, start, wrap, NH_CHUNKS - 1, row, scores, visit, passed);
#else
#pragma unroll 1
    for (int chunk = 0; chunk < NH_CHUNKS; chunk++) {
        int row[4 * NH_GATHERS];
        nh_across_rows across;
        unsigned seen[2];
        nh_gather_rows(row, tables.columns, wrap, chunk, nh_lane_column<NH_AS_LAID>());
        if (!NH_ADDITIVE_MASK) nh_chunk_bits(seen, info.visibility, warp_tile.number, chunk);
#pragma unroll
        for (int p = 0; p < NH_PAIRS; p++) {
            float scores[2][4];
            nh_pace(p);
            nh_gather_across(across, tables.columns, wrap, chunk, p);
            nh_pair_scores(scores, warp_tile, start, seen, row[p], chunk, p);
            visit(scores, 2 * p + 1 < NH_BLOCKS, nh_rows_of_pair(across, p));
        }
        if (NH_PASSES && chunk == NH_PASSING_CHUNK) passed();
    }
#endif
}

NH_DEVICE float nh_score_scale(const nh_warp_tile &warp_tile) {
    return NH_BIAS_COUNT ? 1.f : warp_tile.tables.scale;
}

/* Sets the reference of weights to the largest score of each row, which takes a pass over all scores. */
NH_DEVICE void nh_refer_to_largest(const nh_warp_tile &warp_tile, nh_state &state) {
    float top[2] = {NH_MINUS_INFINITY, NH_MINUS_INFINITY};
    nh_for_scores(warp_tile, [&](const float (&scores)[2][4], bool both, const nh_pair_rows &) {
#pragma unroll
        for (int i = 0; i < (both ? 8 : 4); i++)
            top[i / 2 % 2] = fmaxf(top[i / 2 % 2], scores[i / 4][i % 4]);
    }, [] {});
    const float scale = nh_score_scale(warp_tile);
    const nh_visibility &visibility = warp_tile.info.visibility;
    state.reference[0] = nh_reference(visibility, warp_tile.number, 0, nh_quad_max(top[0]) * scale);
    state.reference[1] = nh_reference(visibility, warp_tile.number, 1, nh_quad_max(top[1]) * scale);
}

/* Multiplies the warp tile's weights with the values, and adds up the weights. */
template <typename Passed>
NH_DEVICE void nh_weigh_values(const nh_warp_tile &warp_tile, nh_state &state, float (&output)[NH_SUMS_V][4],
                               const Passed &passed) {
    const float scale = nh_score_scale(warp_tile);
    nh_across<NH_DIM_V> values;
    nh_across_start(values, warp_tile.halo.values, nh_box_row(warp_tile.info.visibility, warp_tile.number));
    nh_clear(output);
    state.sum[0] = state.sum[1] = 0.f;
    nh_for_scores(warp_tile, [&](float (&scores)[2][4], bool both, const nh_pair_rows &rows) {
        nh_weights weights;
#pragma unroll
        for (int i = 0; i < (both ? 8 : 4); i++) {
            float &score = scores[i / 4][i % 4];
            score = nh_exp2(fmaf(score, scale, -state.reference[i / 2 % 2]));
            state.sum[i / 2 % 2] += score;
        }
        nh_pack_weights(weights, scores, both);
        nh_add_columns(output, weights, values, rows, both);
    }, passed);
    nh_finish_sums(state);
}

/* Writes outputs to shared memory; returns LSE of rows g and g + 8. */
NH_DEVICE float2 nh_finish(int warp_tile, char *results, const nh_state &state,
                           const float (&output)[NH_SUMS_V][4]) {
#if NH_STAGES
    nh_results_free();
#else
    __syncwarp();
#endif
    nh_stage_rows<NH_WIDEST>(results, output, nh_factor(state, 0), nh_factor(state, 1), warp_tile);
    return nh_lse_of(state);
}

/* Reads a warp tile's queries from memory as the first operand; padding rows are zeros. */
template <int WIDTH>
NH_DEVICE void nh_read_queries(nh_row_operand<WIDTH, true> &queries, const nh_tiled_args &args,
                               const nh_work_tile &work_tile, int warp_tile, const char *) {
    const int lane = (int)(threadIdx.x % 32);
#pragma unroll
    for (int s = 0; s < NH_STEPS; s++) {
        unsigned word[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int row = lane / 4 + i % 2 * 8;
            const int element = NH_STEP * s + i / 2 * NH_PER_UNIT + lane % 4 * (NH_PER_UNIT / 4);
            if (element < NH_DIM && nh_row_exists(work_tile, warp_tile, row))
                word[i] = *(const unsigned *)((const elem *)args.tensor[NH_Q].data +
                                              nh_row_offset(work_tile, NH_Q, warp_tile, row) + element);
        }
        nh_keep_step(queries, s, word);
    }
}
/* Queries that registers do not hold are in shared memory until outputs overwrite them. */
template <int WIDTH>
NH_DEVICE void nh_read_queries(nh_row_operand<WIDTH, false> &queries, const nh_tiled_args &, const nh_work_tile &,
                               int warp_tile, const char *places) {
    nh_load_rows<NH_WIDEST>(queries, places, warp_tile);
}

/* The fallback if nh_attend fails: weights relative to their row's largest score, and pair by pair for rows that are
 * not finite even so. With stages, the queries' places may hold others by now. This is a function of its own so that it
 * takes no registers from the common case. */
static __device__ __noinline__ float2 nh_repair_attention(const nh_tiled_args &args, const nh_tile_info &info,
                                                      const nh_tables &tables, const nh_additive_masks &additive_masks,
                                                      const nh_key_halo &halo, int number, char *results) {
    nh_queries queries;
    nh_read_queries(queries, args, info.work_tile, number, results);
    const nh_warp_tile warp_tile = {args, info, tables, additive_masks, halo, number, queries};
    nh_state state;
    nh_refer_to_largest(warp_tile, state);
    float output[NH_SUMS_V][4];
    nh_weigh_values(warp_tile, state, output, [] {});
    float2 lse = nh_finish(number, results, state, output);
    const bool repair[2] = {nh_needs_repair(output, 0), nh_needs_repair(output, 1)};
    nh_repair_rows(args, info, number, repair, lse, [=](int row, int i, elem element) {
        nh_result_element<NH_WIDEST>(results, number, row, i) = element;
    });
    return lse;
}

/* The fallback if planes may be overwritten by now: computes the rows that failed, of rows g and g + 8, key by key. */
static __device__ __noinline__ float2 nh_repair_passed(const nh_tiled_args &args, const nh_tile_info &info, int number,
                                                   char *results, bool first, bool second, float2 lse) {
    const bool repair[2] = {first, second};
    nh_repair_rows(args, info, number, repair, lse, [=](int row, int i, elem element) {
        nh_result_element<NH_WIDEST>(results, number, row, i) = element;
    });
    return lse;
}

/* Whether this thread's sums are all finite: one test without branches for both rows, as it is true almost always. */
NH_DEVICE bool nh_all_finite(const float (&output)[NH_SUMS_V][4]) {
    float first = output[0][0] + output[0][1], second = output[0][2] + output[0][3];
#pragma unroll
    for (int u = 1; u < NH_SUMS_V; u++) {
        first += output[u][0] + output[u][1];
        second += output[u][2] + output[u][3];
    }
    const float total = first + second;
    return total - total == 0.f;
}

/* Computes the sums of a warp tile with weights relative to 1. Calls taken() when the queries may be overwritten (where
 * threads copy, this warp tile's are still used for its results), and passed() when its first plane may be.
 *
 * Returns false if the sum of weights is out of range for some row, or some sum is not finite. */
template <typename Taken, typename Passed>
NH_DEVICE bool nh_attend(const nh_tiled_args &args, const nh_tile_info &info, const nh_tables &tables,
                         const nh_additive_masks &additive_masks, const nh_key_halo &halo, const nh_rows &rows,
                         int number, nh_state &state, float (&output)[NH_SUMS_V][4], const Taken &taken,
                         const Passed &passed) {
    nh_queries queries;
    nh_load_rows<NH_WIDEST>(queries, rows.queries, number);
    taken();
    const nh_warp_tile warp_tile = {args, info, tables, additive_masks, halo, number, queries};
    state.reference[0] = state.reference[1] = 0.f;
    nh_weigh_values(warp_tile, state, output, passed);
#if NH_REGIONS
    const bool held = nh_sum_held(info.visibility, state, number, 0) && nh_sum_held(info.visibility, state, number, 1);
#else
    const bool held = state.sum[0] > NH_LEAST_SUM && state.sum[0] < NH_MOST_SUM && state.sum[1] > NH_LEAST_SUM &&
                      state.sum[1] < NH_MOST_SUM;
#endif
    /* With && the compiler would branch, and spill more. */
    return __all_sync(~0u, held & nh_all_finite(output));
}

#if NH_STAGES

struct nh_maps {
    nh_tensor_map q, k, v, o;
#if NH_SEAM_LINES
    nh_tensor_map lines[2];
#endif
};

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_forward(const __grid_constant__ nh_tiled_args args, const __grid_constant__ nh_maps maps) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    const int heads = (int)args.heads, kv_heads = (int)args.kv_heads;
    if (threadIdx.x == 0) nh_ring_start(args, shared.ring);
    if (threadIdx.x == 0) shared.lse = (float *)args.tensor[NH_LSE].data;
    if (NH_ADDITIVE_MASK) nh_additive_masks_fill(shared.additive_masks);
    nh_tables_start(args, shared.tables, shared.ring.info);
    __syncthreads();
    if (threadIdx.x / 32 >= NH_WARPS) {
        const auto fetch = [&](const nh_work_tile &work_tile, int turn, int, unsigned barrier) {
            nh_key_halo &halo = shared.halo[turn % NH_HALOS];
            nh_fetch_rows<NH_Q_MAP>(args, work_tile, maps.q, barrier, shared.rows[turn].queries, work_tile.head, heads);
            nh_fetch_halo<NH_K_MAP>(args, work_tile, maps.k, barrier, halo.keys, work_tile.column_head, kv_heads);
            nh_fetch_halo<NH_V_MAP>(args, work_tile, maps.v, barrier, halo.values, work_tile.column_head, kv_heads);
        };
        nh_fetch_work_tiles<2 * NH_FETCHED_ROWS * nh_row_bytes(NH_DIM), NH_ROWS * nh_row_bytes(NH_DIM)>(
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
        const auto work = [&](const nh_tile_info &info, int stage, int warp_tile, int) {
            nh_state state;
            float output[NH_SUMS_V][4];
            const bool held = nh_attend(args, info, shared.tables, shared.additive_masks, shared.halo[stage % NH_HALOS],
                                        shared.rows[stage], warp_tile, state, output,
                                        [&] { nh_rows_taken(shared.ring, stage); },
                                        [&] { nh_plane_passed(shared.ring, nh_place_again(shared.ring).done); });
            const nh_place now = nh_place_again(shared.ring);
            const nh_tile_info &same = shared.ring.info[now.info];
            char *results = shared.results[nh_thread_again() / 32];
#if NH_PASSES
            float2 lse = nh_finish(now.warp_tile, results, state, output);
            if (!held)
                lse = nh_repair_passed(
                    args, same, now.warp_tile, results,
                    !nh_sum_held(same.visibility, state, now.warp_tile, 0) || nh_needs_repair(output, 0),
                    !nh_sum_held(same.visibility, state, now.warp_tile, 1) || nh_needs_repair(output, 1), lse);
#else
            const float2 lse =
                held ? nh_finish(now.warp_tile, results, state, output)
                     : nh_repair_attention(args, same, shared.tables, shared.additive_masks,
                                           shared.halo[now.number / NH_WARP_TILES % NH_STAGES % NH_HALOS],
                                           now.warp_tile, results);
#endif
            /* Between the two halves of nh_results_ready, so that its fence does not wait for LSE. */
            if (!NH_DILATED) nh_show_shared();
            nh_store_lse(shared.lse, same.work_tile, now.warp_tile, lse);
            __syncwarp();
            nh_store_results<NH_O_MAP, true>(args, same.work_tile, maps.o, NH_O, now.warp_tile, results,
                                             same.work_tile.head, heads, now.done);
            return now.number;
        };
        nh_do_work_tiles<true>(args, shared.ring, 1, work);
    }
}

#else

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    small_forward(const __grid_constant__ nh_tiled_args args) {
    extern __shared__ __align__(1024) char nh_shared_memory[];
    nh_shared &shared = *(nh_shared *)nh_shared_memory;
    nh_key_halo &halo = shared.halo[0];
    nh_rows &rows = shared.rows[0];
    int warp = (int)(threadIdx.x / 32), turn = 0;
    if (threadIdx.x == 0) shared.lse = (float *)args.tensor[NH_LSE].data;
    if (NH_ADDITIVE_MASK) nh_additive_masks_fill(shared.additive_masks);
    nh_tables_start(args, shared.tables, shared.info);
    __syncthreads();
    if (warp == 0) nh_work_tile_locate(args, shared.tables.digits, (int)blockIdx.x, false, shared.info[0].work_tile);
    __syncthreads();
    for (int index = (int)blockIdx.x; index < args.tiling.work_tiles; index += (int)gridDim.x) {
        nh_tile_info &info = shared.info[turn];
        turn ^= 1;
        nh_copy_halo<NH_DIM>(args, info.work_tile, NH_K, 0, halo.keys);
        nh_copy_halo<NH_DIM_V>(args, info.work_tile, NH_V, 0, halo.values);
        nh_copy_rows<NH_DIM, NH_WIDEST>(args, info.work_tile, NH_Q, rows.queries);
        nh_tile_info_fill(args, shared.tables, info, info.work_tile.head, (int)nh_thread_again(), NH_THREADS);
        nh_work_tile_locate_next(args, shared.tables, index + (int)gridDim.x, shared.info[turn].work_tile);
        nh_copy_wait();
        __syncthreads();
        nh_for_warp_tiles(args, info.work_tile, [&](int warp_tile) {
            nh_state state;
            float output[NH_SUMS_V][4];
            const bool held = nh_attend(args, info, shared.tables, shared.additive_masks, halo, rows, warp_tile, state,
                                        output, [] {}, [] {});
            const float2 lse = held ? nh_finish(warp_tile, rows.queries, state, output)
                                    : nh_repair_attention(args, info, shared.tables, shared.additive_masks, halo,
                                                          warp_tile, rows.queries);
            nh_store_lse(shared.lse, info.work_tile, warp_tile, lse);
            __syncwarp();
            nh_store_rows<NH_DIM_V, NH_WIDEST>(args, info.work_tile, NH_O, rows.queries, warp_tile);
        });
        __syncthreads();
    }
}

#endif
