/* Backward pass of whole dilation groups, in one launch and without atomics. A block holds Q, K, V, O and dO of its
 * work tile, or its share of one (short_tile.cuh), in shared memory, computes delta of its queries, and then warp tiles
 * of 16 queries, for dQ, and of 16 keys, for dK and dV. Scores are computed twice, and sums are in a fixed order. */
#include "short_tile.cuh"
#include "short_shares.cuh"

namespace nh_short {

/* The backward pass of one warp tile: 16 rows of a work tile, queries or, by keys, keys, and the columns that they see,
 * 16 at a time.
 *
 *     P = exp(scale a b^T - LSE)   dS = P (a' b'^T - delta)   gradient of a += dS b   of a', by keys, += P b'
 *
 * with rows a and a' and columns b and b': Q and dO with K and V or, by keys, K and V with Q and dO. P and dS go from
 * accumulators to operands without leaving registers. C.split warps share a warp tile and take its columns alternately;
 * more than one only if every warp tile of a block has warps of its own. */

/* Whether registers hold the warp tile's own rows as operands; otherwise its sums need the room. */
enum { NH_HELD = NH_DTYPE != NH_F32 && C.dim + C.dim_v <= (C.warps > 8 ? 64 : 128) };

/* Gradients of a warp tile: of queries, or of keys and values. */
typedef float nh_sums[NH_SUMS][4];
typedef float nh_sums_v[NH_SUMS_V][4];

/* The thread's rows g and g + 8, as queries and as keys. */
struct nh_own {
    nh_query query[2];
    unsigned column[2];
};

/* Turns scores into weights, and gradients of weights into those of scores: 0 for pairs not seen, be they NaN. */
template <bool BY_KEYS>
NH_DEVICE void nh_weigh(const nh_tile &tile, const nh_own &own, int first_column, float scale, float (&weights)[2][4],
                        float (&d_scores)[2][4]) {
    NH_UNROLL for (int i = 0; i < 4; i++) {
        const int at = first_column + 8 * (i / 2) + 2 * ((int)threadIdx.x % 4) + i % 2;
        nh_query column_query = {};
        unsigned column = 0;
        if (BY_KEYS) {
            column_query = tile.query[at];
        } else {
            column = tile.column[at];
        }
        NH_UNROLL for (int half = 0; half < 2; half++) {
            const nh_query &query = BY_KEYS ? column_query : own.query[half];
            const bool seen = nh_query_sees(query, BY_KEYS ? own.column[half] : column);
            float &weight = weights[i / 2][2 * half + i % 2], &d_score = d_scores[i / 2][2 * half + i % 2];
            weight = seen ? nh_exp2(fmaf(weight, scale, -query.lse)) : 0.f;
            d_score = seen ? weight * (d_score - query.delta) : 0.f;
        }
    }
}

/* sums += weights of 16 columns times their elements. */
template <int WIDTH, int SUMS>
NH_DEVICE void nh_add_weighted(float (&sums)[SUMS][4], const float (&weights)[2][4], const nh_across<WIDTH> &across,
                               int column) {
    nh_weights operand;
    nh_pack_weights(operand, weights, true);
    nh_add_columns(sums, operand, across, nh_rows_of_pair(column), true);
}

/* Adds what the warp tile's columns contribute; sums_v only by keys. turn: of the C.split warps that share it. */
template <bool BY_KEYS>
NH_DEVICE void nh_differentiate(const nh_block &block, int warp_tile, int turn, nh_sums &sums, nh_sums_v &sums_v) {
    const nh_tile &tile = block.tile;
    const int first = 16 * warp_tile;
    const float scale = (float)(block.args.scale * NH_LOG2E);
    const char *columns = BY_KEYS ? tile.queries : tile.keys, *columns_v = BY_KEYS ? tile.d_outputs : tile.values;
    nh_row_operand<C.dim, NH_HELD> rows;
    nh_row_operand<C.dim_v, NH_HELD> rows_v;
    nh_own own;
    unsigned laid[NH_STEPS], laid_v[NH_STEPS_V];
    nh_across<C.dim> across;
    nh_across<C.dim_v> across_v;
    nh_load_rows<C.dim>(rows, BY_KEYS ? tile.keys : tile.queries, first);
    nh_load_rows<C.dim_v>(rows_v, BY_KEYS ? tile.values : tile.d_outputs, first);
    nh_columns_start<NH_AS_LAID, C.dim>(laid, columns);
    nh_columns_start<NH_AS_LAID, C.dim_v>(laid_v, columns_v);
    nh_across_start(across, columns);
    nh_across_start(across_v, columns_v);
    NH_UNROLL for (int half = 0; half < 2; half++) {
        const int row = first + 8 * half + (int)threadIdx.x % 32 / 4;
        own.query[half] = tile.query[row];
        own.column[half] = tile.column[row];
    }
    const nh_reach reach = tile.reach[BY_KEYS][warp_tile];
    NH_UNROLL_1 for (int column = reach.begin / 16 * 16 + 16 * turn; column < reach.end; column += 16 * C.split) {
        float weights[2][4] = {}, d_scores[2][4] = {};
        nh_multiply_columns(weights, rows, laid, column, true);
        nh_multiply_columns(d_scores, rows_v, laid_v, column, true);
        nh_weigh<BY_KEYS>(tile, own, column, scale, weights, d_scores);
        if (BY_KEYS) nh_add_weighted(sums_v, weights, across_v, column);
        nh_add_weighted(sums, d_scores, across, column);
    }
}

/* ---- a block ---- */

enum { NH_TEAMS = short_warp_tiles(&C) };

/* The rows from the first to the last query that see the token as a key. */
NH_DEVICE nh_reach nh_seeing_rows(const nh_block &block, const nh_token &token) {
    const nh_extents &extents = block.extents;
    nh_reach seeing = {0, 0};
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        const nh_cuda_axis &axis = block.args.axis[a];
        const int length = nh_length_of(extents, block.tile.groups, token, a);
        const nh_range range =
            nh_inverse_range(length, (int)axis.window, C.strided ? (int)axis.stride : 1, axis.causal, token.at[a]);
        seeing.begin = seeing.begin * extents.at[a] + range.begin;
        seeing.end = seeing.end * extents.at[a] + range.end - 1;
    }
    const int first = token.slot * extents.group.base;
    return {first + seeing.begin, first + seeing.end + 1};
}

/* The range from the first to the last row that any of the warp's rows reaches. */
NH_DEVICE nh_reach nh_reach_of_all(nh_reach row) {
    return {__reduce_min_sync(~0u, row.begin), __reduce_max_sync(~0u, row.end)};
}

/* Fills in the windows of all rows, and the columns of each warp tile. Two lanes of a warp have the same row. */
NH_DEVICE void nh_tables_fill(const nh_block &block) {
    const nh_tile &tile = block.tile;
    nh_columns_fill(block.extents, tile.groups, tile.column);
    NH_UNROLL_1 for (int warp_tile = (int)threadIdx.x / 32; warp_tile < block.rows / 16; warp_tile += C.warps) {
        const int row = 16 * warp_tile + (int)threadIdx.x % 16;
        const nh_token token = nh_token_at(block, row);
        nh_reach keys = {block.rows, 0}, queries = keys;
        if (token.exists) {
            const nh_visibility visibility = nh_visibility_of(block.args, block.extents, tile.groups, row);
            tile.query[row].begin = visibility.begin;
            tile.query[row].last = visibility.last;
            keys = {visibility.first_row, visibility.last_row + 1};
            queries = nh_seeing_rows(block, token);
        } else {
            tile.query[row].last = ~0u; /* so that the guard bits of no key survive: it sees nothing */
        }
        keys = nh_reach_of_all(keys);
        queries = nh_reach_of_all(queries);
        if (threadIdx.x % 32 > 0) continue;
        tile.reach[0][warp_tile] = keys;
        tile.reach[1][warp_tile] = queries;
    }
}

/* Stores rows g and g + 8 of a warp tile's gradient, if it is asked for. */
template <int WIDTH, int SUMS>
NH_DEVICE void nh_store_gradient(const nh_block &block, int tensor, int member, int warp_tile,
                                 const float (&sums)[SUMS][4], float factor) {
    elem *to = (elem *)block.args.tensor[tensor].data;
    if (!to) return;
    NH_UNROLL for (int half = 0; half < 2; half++) {
        const nh_token token = nh_token_at(block, 16 * warp_tile + 8 * half + (int)(threadIdx.x % 32) / 4);
        nh_store_row<WIDTH>(to + nh_offset(block, tensor, member, token) + nh_lane_elements(), token.exists, sums, half,
                            factor);
    }
}

template <bool BY_KEYS>
NH_DEVICE void nh_finish(const nh_block &block, int member, int warp_tile, const nh_sums &sums,
                         const nh_sums_v &sums_v) {
    nh_store_gradient<C.dim>(block, BY_KEYS ? NH_D_K : NH_D_Q, member, warp_tile, sums, (float)block.args.scale);
    if (BY_KEYS) nh_store_gradient<C.dim_v>(block, NH_D_V, member, warp_tile, sums_v, 1.f);
    const bool repair[2] = {nh_needs_repair(sums, 0) || (BY_KEYS && nh_needs_repair(sums_v, 0)),
                            nh_needs_repair(sums, 1) || (BY_KEYS && nh_needs_repair(sums_v, 1))};
    if (!__any_sync(~0u, repair[0] || repair[1])) return;
    nh_for_rows_to_repair(repair[0], repair[1],
                          [&](int row) { nh_repair_gradient<BY_KEYS>(block.args, member, 16 * warp_tile + row); });
}

/* Adds the other warps' sums of a warp tile to the first's. Called by all threads when tensors are no longer needed. */
template <int SUMS> NH_DEVICE void nh_add_turns(float (&sums)[SUMS][4], float4 *shares, int turn) {
    __syncthreads();
    if (turn > 0) nh_share_write(nh_share_at(shares, SUMS, turn), sums);
    __syncthreads();
    for (int other = 1; other < C.split && turn == 0; other++)
        nh_share_add(sums, nh_share_at(shares, SUMS, other));
}

/* Starts this lane's share of the copy of a token to its row in a tensor of the tile. */
template <int WIDTH>
NH_DEVICE void nh_copy_token(const nh_block &block, int tensor, int member, const nh_token &token, int row, char *to) {
    const elem *from = (const elem *)block.args.tensor[tensor].data + nh_offset(block, tensor, member, token);
    nh_copy_row<WIDTH>(from, to + nh_unit_offset(WIDTH, row, 0), token.exists);
}

/* Copies LSE and its gradient. The weights of a padding row are 0. */
NH_DEVICE void nh_copy_statistics(const nh_block &block, int member, const nh_token &token, nh_query &query) {
    const float *lse = (const float *)block.args.tensor[NH_LSE].data;
    const float *d_lse = (const float *)block.args.tensor[NH_D_LSE].data;
    if (token.exists) {
        nh_copy4(&query.lse, lse + nh_offset(block, NH_LSE, member, token), true);
    } else {
        query.lse = -NH_MINUS_INFINITY;
    }
    nh_copy4(&query.delta, d_lse ? d_lse + nh_offset(block, NH_D_LSE, member, token) : lse, d_lse && token.exists);
}

NH_DEVICE bool nh_within(nh_reach rows, int row) {
    return row >= rows.begin && row < rows.end;
}

/* Starts the copies of all rows that the part needs, for the member-th of the query heads that share keys. */
NH_DEVICE void nh_copy_work_tile(const nh_block &block, int member) {
    const nh_tile &tile = block.tile;
    NH_UNROLL_1 for (int row = (int)threadIdx.x / NH_ROW_LANES; row < block.rows; row += NH_THREADS / NH_ROW_LANES) {
        const nh_token token = nh_token_at(block, row);
        if (nh_within(block.part.queries, row)) {
            nh_copy_token<C.dim>(block, NH_Q, member, token, row, tile.queries);
            nh_copy_token<C.dim_v>(block, NH_D_O, member, token, row, tile.d_outputs);
            nh_copy_token<C.dim_v>(block, NH_O, member, token, row, tile.outputs);
            if (threadIdx.x % NH_ROW_LANES == 0) nh_copy_statistics(block, member, token, tile.query[row]);
        }
        if (member == 0 && nh_within(block.part.keys, row)) {
            nh_copy_token<C.dim>(block, NH_K, member, token, row, tile.keys);
            nh_copy_token<C.dim_v>(block, NH_V, member, token, row, tile.values);
        }
    }
}

/* Computes LSE in base 2 and delta of a warp tile's queries. rowsum(dO * O) is the diagonal of dO times O transposed,
 * on tensor cores; one lane of four has the diagonal's elements in rows g and g + 8. */
NH_DEVICE void nh_statistics_finish(const nh_tile &tile, int warp_tile) {
    const int g = (int)threadIdx.x % 32 / 4;
    nh_row_operand<C.dim_v, NH_HELD> d_outputs;
    unsigned outputs[NH_STEPS_V];
    float product[2][4] = {};
    nh_load_rows<C.dim_v>(d_outputs, tile.d_outputs, 16 * warp_tile);
    nh_columns_start<NH_AS_LAID, C.dim_v>(outputs, tile.outputs);
    nh_multiply_columns(product, d_outputs, outputs, 16 * warp_tile, true);
    if ((int)threadIdx.x % 4 != g / 2) return;
    NH_UNROLL for (int half = 0; half < 2; half++) {
        nh_query &query = tile.query[16 * warp_tile + 8 * half + g];
        query.lse = nh_near_lse(query.lse * (float)NH_LOG2E);
        query.delta = (g % 2 ? product[half][2 * half + 1] : product[half][2 * half]) - query.delta;
    }
}

/* Loads everything that the part needs; it is there on return. */
NH_DEVICE void nh_load_work_tile(const nh_block &block, int member) {
    const nh_reach rows = block.part.queries;
    nh_copy_work_tile(block, member);
    if (member == 0) nh_tables_fill(block);
    nh_copy_wait();
    __syncthreads();
    NH_UNROLL_1 for (int row = rows.begin + (int)threadIdx.x / 32 * 16; row < rows.end; row += 16 * C.warps)
        nh_statistics_finish(block.tile, row / 16);
    __syncthreads();
}

} // namespace nh_short

using namespace nh_short;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks) short_backward(NH_PARAMETER(nh_short_args)) {
    NH_TAKE_MEMBER(nh_short_args)
    const nh_block block = nh_block_of(args);
    const nh_reach warp_tiles = block.part.warp_tiles;
    const int first_of_keys = block.rows / 16, members = C.shared_heads ? args.tiling.heads : 1;
    const int team = (int)threadIdx.x / 32 / C.split, turn = (int)threadIdx.x / 32 % C.split;
    nh_sums sums;
    nh_sums_v sums_v;
    nh_groups_fill(args, block.extents, block.tile.groups);
    NH_UNROLL_1 for (int member = 0; member < members; member++) {
        __syncthreads();
        nh_load_work_tile(block, member);
        NH_UNROLL_1 for (int warp_tile = warp_tiles.begin + team; warp_tile < warp_tiles.end; warp_tile += NH_TEAMS) {
            const bool by_keys = warp_tile >= first_of_keys;
            if (!by_keys || member == 0) nh_clear(sums);
            if (by_keys) {
                if (member == 0) nh_clear(sums_v);
                nh_differentiate<true>(block, warp_tile - first_of_keys, turn, sums, sums_v);
                if (C.split == 1 && member + 1 == members)
                    nh_finish<true>(block, member, warp_tile - first_of_keys, sums, sums_v);
            } else {
                nh_differentiate<false>(block, warp_tile, turn, sums, sums_v);
                if (C.split == 1) nh_finish<false>(block, member, warp_tile, sums, sums_v);
            }
        }
    }
    if constexpr (C.split == 1) return;
    const int warp_tile = warp_tiles.begin + team;
    float4 *shares = (float4 *)block.tile.tensors;
    nh_add_turns(sums, shares, turn);
    if (warp_tiles.end > first_of_keys) nh_add_turns(sums_v, shares, turn);
    if (turn > 0 || warp_tile >= warp_tiles.end) return;
    if (warp_tile < first_of_keys) {
        nh_finish<false>(block, 0, warp_tile, sums, sums_v);
    } else {
        nh_finish<true>(block, 0, warp_tile - first_of_keys, sums, sums_v);
    }
}
