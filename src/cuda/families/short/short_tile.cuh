/* The part of a work tile that a block of the backward pass needs, and its layout in shared memory. */
#pragma once

#include "short_products.cuh"

namespace nh_short {

/* A query: what it sees, as in nh_visibility, LSE in base 2, and delta = rowsum(dO * O) - dLSE. */
struct alignas(16) nh_query {
    unsigned begin, last;
    float lse, delta;
};

/* With C.dense, everything that is multiplied with a query is of its group, and padding rows are zeros. */
NH_DEVICE bool nh_query_sees(const nh_query &query, unsigned column) {
    return C.dense || nh_sees({query.begin, query.last, 0, 0}, column);
}

/* Rows [begin, end). */
struct nh_reach {
    int begin, end;
};

/* A work tile in shared memory, row by row. */
struct nh_tile {
    char *queries, *d_outputs, *outputs, *keys, *values;
    nh_query *query;
    unsigned *column;   /* each row as a key, for nh_query_sees */
    nh_reach *reach[2]; /* per warp tile: keys that its queries see; queries that see its keys */
    nh_group *groups;
    char *tensors; /* the rows of all, in whose place sums of warps lie at the end */
};
static_assert(sizeof(nh_query) == SHORT_QUERY_BYTES && sizeof(nh_reach) == SHORT_REACH_BYTES,
              "the host's count of shared memory");

/* A block's share of its work tile: warp tiles [begin, end), those of queries numbered before those of keys, and the
 * rows of queries and keys that these need. Blocks that share a work tile have warp tiles of one kind each. */
struct nh_part {
    nh_reach warp_tiles, queries, keys;
};

NH_DEVICE nh_part nh_part_of(const nh_short_args &args, int rows) {
    const int warp_tiles = rows / 16, half = args.tiling.parts / 2;
    const nh_reach all = {0, rows};
    if (half == 0) return {{0, 2 * warp_tiles}, all, all};
    const int part = (int)blockIdx.y, each = short_part_warp_tiles(&args.tiling, rows);
    const int number = part < half ? part : part - half;
    const nh_reach own = {min(number * each, warp_tiles), min((number + 1) * each, warp_tiles)};
    const nh_reach own_rows = {16 * own.begin, 16 * own.end};
    if (part < half) return {own, own_rows, all};
    return {{warp_tiles + own.begin, warp_tiles + own.end}, all, own_rows};
}

/* Reserves the rows of a tensor at `free`. Returns where row 0 would be. */
template <int WIDTH> NH_DEVICE char *nh_rows_at(char *&free, nh_reach rows) {
    char *at = free - nh_unit_offset(WIDTH, rows.begin, 0);
    free = at + nh_unit_offset(WIDTH, rows.end, 0);
    return at;
}

/* The layout of shared memory. */
NH_DEVICE nh_tile nh_tile_at(const nh_short_args &args, int rows, const nh_part &part) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_tile tile;
    const short_backward_layout at = short_backward_layout_of(&C, &args.tiling, rows);
    tile.query = (nh_query *)nh_shared_memory;
    tile.column = (unsigned *)(nh_shared_memory + at.columns);
    tile.reach[0] = (nh_reach *)(nh_shared_memory + at.reach);
    tile.reach[1] = tile.reach[0] + rows / 16;
    tile.groups = (nh_group *)(nh_shared_memory + at.groups);
    tile.tensors = nh_shared_memory + at.tensors;
    char *free = tile.tensors;
    tile.queries = nh_rows_at<C.dim>(free, part.queries);
    tile.d_outputs = nh_rows_at<C.dim_v>(free, part.queries);
    tile.outputs = nh_rows_at<C.dim_v>(free, part.queries);
    tile.keys = nh_rows_at<C.dim>(free, part.keys);
    tile.values = nh_rows_at<C.dim_v>(free, part.keys);
    return tile;
}

/* A block's work tile, as all its functions need it. */
struct nh_block {
    const nh_short_args &args;
    nh_extents extents;
    int rows; /* of the work tile */
    nh_part part;
    nh_tile tile;
};

NH_DEVICE nh_block nh_block_of(const nh_short_args &args) {
    const nh_extents extents = nh_extents_of(args, (int)NH_OWN_BLOCK);
    const int rows = nh_rows_of(extents);
    const nh_part part = nh_part_of(args, rows);
    return {args, extents, rows, part, nh_tile_at(args, rows, part)};
}

NH_DEVICE nh_token nh_token_at(const nh_block &block, int row) {
    return nh_token_of(block.extents, block.tile.groups, row);
}

/* Offset of a token in a tensor, in elements, for the member-th of the query heads that share keys. */
NH_DEVICE long long nh_offset(const nh_block &block, int tensor, int member, const nh_token &token) {
    const bool of_keys = tensor == NH_K || tensor == NH_V || tensor == NH_D_K || tensor == NH_D_V;
    return nh_token_offset(block.args, block.tile.groups, tensor, token) +
           (of_keys ? 0 : member * block.args.tensor[tensor].head);
}

/* Repair in the backward pass: a whole warp computes the gradient of one query, or of one key and value, pair by pair,
 * for rows that a NaN or infinity outside their windows has reached. Everything but the windows is read from memory. */

/* Points to a token's row in a tensor, for the member-th of the query heads that share keys. */
NH_DEVICE elem *nh_token_row(const nh_block &block, int tensor, int member, const nh_token &token) {
    return (elem *)block.args.tensor[tensor].data + nh_offset(block, tensor, member, token);
}

NH_DEVICE nh_lane_rows nh_query_rows(const nh_block &block, int member, const nh_token &token) {
    return nh_lane_rows_load(nh_token_row(block, NH_Q, member, token), nh_token_row(block, NH_D_O, member, token));
}

NH_DEVICE nh_lane_rows nh_key_rows(const nh_block &block, const nh_token &token) {
    return nh_lane_rows_load(nh_token_row(block, NH_K, 0, token), nh_token_row(block, NH_V, 0, token));
}

/* -LSE in base 2 and delta of a query with these rows, computed again: shared memory has those of one member only. */
NH_DEVICE float2 nh_repair_statistics(const nh_block &block, int member, const nh_token &token,
                                      const nh_lane_rows &query) {
    const elem *output = nh_token_row(block, NH_O, member, token);
    const float *lse = (const float *)block.args.tensor[NH_LSE].data,
                *d_lse = (const float *)block.args.tensor[NH_D_LSE].data;
    const nh_lane_rows outputs = nh_lane_rows_load(output, output);
    float delta = nh_lanes_dot(query.second, outputs.second);
    if (d_lse) delta -= d_lse[nh_offset(block, NH_D_LSE, member, token)];
    return make_float2(lse[nh_offset(block, NH_LSE, member, token)] * -(float)NH_LOG2E, delta);
}

template <int WIDTH>
NH_DEVICE void nh_lane_row_store(const nh_block &block, int tensor, int member, const nh_token &token,
                                 const float (&row)[NH_LANE_ELEMENTS], float factor) {
    if (!block.args.tensor[tensor].data) return;
    elem *to = nh_token_row(block, tensor, member, token);
    for (int i = 0; i < NH_LANE_ELEMENTS; i++) {
        const int element = (int)threadIdx.x % 32 + 32 * i;
        if (element < WIDTH) to[element] = nh_store(row[i] * factor);
    }
}

/* member: the query's head among those that share a key head; a key's gradient is a sum over all of them. */
template <bool BY_KEYS>
static __device__ __noinline__ void nh_repair_gradient(const nh_short_args &args, int member, int row) {
    const nh_block block = nh_block_of(args);
    const nh_token own = nh_token_at(block, row);
    if (!own.exists) return;
    const int group = block.extents.group.base, first = own.slot * group, members = BY_KEYS ? args.tiling.heads : 1;
    const nh_lane_rows own_rows = BY_KEYS ? nh_key_rows(block, own) : nh_query_rows(block, member, own);
    float2 statistics = {};
    if (!BY_KEYS) statistics = nh_repair_statistics(block, member, own, own_rows);
    nh_lane_rows gradient = {};
    for (int i = 0; i < members; i++)
        for (int other = first; other < first + group; other++) {
            const nh_token column = nh_token_at(block, other);
            const nh_query &query = block.tile.query[BY_KEYS ? other : row];
            if (!column.exists || !nh_query_sees(query, block.tile.column[BY_KEYS ? row : other])) continue;
            const nh_lane_rows rows = BY_KEYS ? nh_query_rows(block, i, column) : nh_key_rows(block, column);
            if (BY_KEYS) statistics = nh_repair_statistics(block, i, column, rows);
            nh_repair_pair(own_rows, rows, statistics, (float)(args.scale * NH_LOG2E), 0.f, gradient);
        }
    nh_lane_row_store<C.dim>(block, BY_KEYS ? NH_D_K : NH_D_Q, member, own, gradient.first, (float)args.scale);
    if (BY_KEYS) nh_lane_row_store<C.dim_v>(block, NH_D_V, member, own, gradient.second, 1.f);
}

} // namespace nh_short
