/* Backward of whole dilation groups, in one launch and without atomics: a block holds Q, K, V and dO of its item in shared
 * memory, makes delta of its queries, and works for strips of 16 queries, for dQ, and strips of 16 keys, for dK and dV. Scores
 * are computed twice: see short_strip.cuh. An item may be shared by blocks, the strips of queries and then those of keys
 * in `parts` equal parts; each loads what its strips have to do with.
 *
 * Knobs, besides those of short.cuh: NH_SPLIT (warps that share a strip; more than 1 only if every strip of a block has its
 * own), NH_SHARED_HEADS (query heads share key heads: each warp has at most one strip of keys). */
#define NH_TENSORS                                                                                                     \
    (1 << NH_Q | 1 << NH_K | 1 << NH_V | 1 << NH_O | 1 << NH_LSE | 1 << NH_D_O | 1 << NH_D_LSE | 1 << NH_D_Q | 1 << NH_D_K | \
     1 << NH_D_V)
#define NH_ORIGINS (NH_D_V + 1)
#include "short_exact_gradient.cuh"

enum { NH_TEAMS = NH_WARPS / NH_SPLIT };

/* A block's share of its item: strips [begin, end), those of queries numbered before those of keys, and the rows of queries and
 * of keys that these have to do with. */
struct nh_part {
    nh_reach strips, queries, keys;
};

NH_DEVICE nh_part nh_part_of(const nh_cuda_args &args) {
    const int strips = args.tiling.rows / 16, each = (2 * strips + args.tiling.parts - 1) / args.tiling.parts;
    nh_part part;
    part.strips.begin = (int)blockIdx.x % args.tiling.parts * each;
    part.strips.end = min(part.strips.begin + each, 2 * strips);
    const nh_reach all = {0, args.tiling.rows};
    part.queries = part.strips.end > strips ? all : nh_reach{16 * part.strips.begin, 16 * part.strips.end};
    part.keys = part.strips.begin < strips ? all : nh_reach{16 * (part.strips.begin - strips), 16 * (part.strips.end - strips)};
    return part;
}

/* LSE and delta of queries, by lanes that hold 8 elements each. Rows that do not exist weigh nothing. */
NH_DEVICE void nh_statistics_fill(const nh_cuda_args &args, const nh_extents &extents, const nh_group *groups, int member, nh_reach rows,
                                  nh_query *query) {
    enum { UNITS = NH_DIM_V / 8, LANES = UNITS <= 1 ? 1 : UNITS <= 2 ? 2 : UNITS <= 4 ? 4 : UNITS <= 8 ? 8 : 16 };
    const int unit = (int)threadIdx.x % LANES;
#pragma unroll 2
    for (int first = rows.begin; first < rows.end; first += NH_THREADS / LANES) {
        const int row = first + (int)threadIdx.x / LANES;
        const nh_token token = nh_token_of(extents, groups, min(row, rows.end - 1));
        float delta = 0.f, lse = -NH_MINUS_INFINITY;
        if (token.exists && unit < UNITS) {
            float output[8], d_output[8];
            nh_load_vector<8>((const elem *)args.tensor[NH_O].data + nh_lane_offset(args, groups, NH_O, member, token) + 8 * unit, output);
            nh_load_vector<8>((const elem *)args.tensor[NH_D_O].data + nh_lane_offset(args, groups, NH_D_O, member, token) + 8 * unit,
                              d_output);
            if (unit == 0)
                lse = ((const float *)args.tensor[NH_LSE].data)[nh_lane_offset(args, groups, NH_LSE, member, token)] * (float)NH_LOG2E;
            if (unit == 0 && args.tensor[NH_D_LSE].data)
                delta = -((const float *)args.tensor[NH_D_LSE].data)[nh_lane_offset(args, groups, NH_D_LSE, member, token)];
#pragma unroll
            for (int i = 0; i < 8; i++)
                delta = fmaf(output[i], d_output[i], delta);
        }
        delta = nh_lanes_sum<LANES>(delta);
        if (unit == 0 && row < rows.end) {
            query[row].lse = lse;
            query[row].delta = delta;
        }
    }
}

/* The queries that see a row as a key, if it has a token: the first of them and the last. */
NH_DEVICE nh_reach nh_seeing_rows(const nh_cuda_args &args, const nh_extents &extents, const nh_group *groups, const nh_token &token) {
    nh_reach seeing = {0, 0};
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        const nh_range range = nh_inverse_range(groups[token.slot].length[a], (int)args.axis[a].window,
                                                NH_STRIDED ? (int)args.axis[a].stride : 1, args.axis[a].causal, token.at[a]);
        seeing.begin = seeing.begin * args.tiling.tiles[a] + range.begin;
        seeing.end = seeing.end * args.tiling.tiles[a] + range.end - 1;
    }
    const int first = token.slot * extents.group.base;
    return {first + seeing.begin, first + seeing.end + 1};
}

/* From the first to the last of the reaches of a strip's rows, which 16 lanes have. */
NH_DEVICE void nh_reach_set(nh_reach &to, nh_reach row) {
#pragma unroll
    for (int distance = 8; distance > 0; distance /= 2) {
        row.begin = min(row.begin, __shfl_xor_sync(~0u, row.begin, distance));
        row.end = max(row.end, __shfl_xor_sync(~0u, row.end, distance));
    }
    if (threadIdx.x % 16 == 0) to = row;
}

/* Windows of all rows, and what strips meet. */
NH_DEVICE void nh_tables_fill(const nh_cuda_args &args, const nh_extents &extents, const nh_group *groups, const nh_tile &tile) {
    const int rows = args.tiling.rows;
    nh_columns_fill(args, extents, groups, tile.column);
    for (int first = 0; first < rows; first += NH_THREADS) {
        const int row = min(first + (int)threadIdx.x, rows - 16 + (int)threadIdx.x % 16), strip = row / 16;
        const nh_token token = nh_token_of(extents, groups, row);
        nh_reach keys = {rows, 0}, queries = {rows, 0};
        if (token.exists) {
            const nh_sight sight = nh_sight_of(args, extents, groups, row);
            tile.query[row].begin = sight.begin;
            tile.query[row].last = sight.last;
            keys = {sight.first_row, sight.last_row + 1};
            queries = nh_seeing_rows(args, extents, groups, token);
        } else {
            tile.query[row].last = ~0u; /* no key's guards are left over */
        }
        nh_reach_set(tile.reach[0][strip], keys);
        nh_reach_set(tile.reach[1][strip], queries);
    }
}

/* Four lanes hold two neighboring elements of each of four 16-byte units: afterwards each has a unit, lane t the t-th. */
NH_DEVICE void nh_gather_unit(unsigned (&word)[4]) {
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int distance = 1; distance < 4; distance *= 2)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (i & distance) continue;
            const bool upper = t & distance;
            const unsigned got = __shfl_xor_sync(~0u, upper ? word[i] : word[i + distance], distance);
            (upper ? word[i] : word[i + distance]) = got;
        }
}

/* Rows g and g + 8 of a strip's gradient to memory, if somebody wants it. */
template <int WIDTH, int BLOCKS>
NH_DEVICE void nh_store_gradient(const nh_cuda_args &args, const nh_extents &extents, const nh_group *groups, int tensor, int member, int strip,
                                 const float (&sums)[BLOCKS][4], float factor) {
    if (!args.tensor[tensor].data) return;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const nh_token token = nh_token_of(extents, groups, 16 * strip + 8 * half + (int)threadIdx.x % 32 / 4);
        elem *to = (elem *)args.tensor[tensor].data + nh_lane_offset(args, groups, tensor, member, token);
#pragma unroll
        for (int i = 0; i < WIDTH / 8; i += 4) {
            const int unit = i + (int)threadIdx.x % 4;
            unsigned word[4];
#pragma unroll
            for (int k = 0; k < 4; k++)
                word[k] = i + k < BLOCKS ? nh_pack(sums[i + k][2 * half] * factor, sums[i + k][2 * half + 1] * factor) : 0u;
            nh_gather_unit(word);
            if (token.exists && unit < WIDTH / 8) *(uint4 *)(to + 8 * unit) = make_uint4(word[0], word[1], word[2], word[3]);
        }
    }
}

template <bool BY_KEYS>
NH_DEVICE void nh_finish(const nh_cuda_args &args, const nh_extents &extents, const nh_group *groups, const nh_tile &tile, int member,
                         int strip, const nh_sums &sums, const nh_sums_v &sums_v) {
    nh_store_gradient<NH_DIM>(args, extents, groups, BY_KEYS ? NH_D_K : NH_D_Q, member, strip, sums, (float)args.scale);
    if (BY_KEYS) nh_store_gradient<NH_DIM_V>(args, extents, groups, NH_D_V, member, strip, sums_v, 1.f);
    const bool spoilt[2] = {nh_spoilt(sums, 0) || (BY_KEYS && nh_spoilt(sums_v, 0)),
                            nh_spoilt(sums, 1) || (BY_KEYS && nh_spoilt(sums_v, 1))};
    if (!__any_sync(~0u, spoilt[0] || spoilt[1])) return;
    nh_for_spoilt_rows(spoilt[0], spoilt[1], [&](int row) {
        nh_exact_gradient<BY_KEYS>(args, groups, tile, member, 16 * strip + row);
    });
}

/* Where shared memory has what. */
NH_DEVICE nh_tile nh_tile_at(const nh_cuda_args &args, char *memory) {
    const int rows = args.tiling.rows;
    nh_tile tile;
    tile.queries = memory;
    tile.keys = tile.queries + nh_unit_offset(NH_DIM, rows, 0);
    tile.d_outputs = tile.keys + nh_unit_offset(NH_DIM, rows, 0);
    tile.values = tile.d_outputs + nh_unit_offset(NH_DIM_V, rows, 0);
    tile.query = (nh_query *)(tile.values + nh_unit_offset(NH_DIM_V, rows, 0));
    tile.column = (unsigned *)(tile.query + rows);
    tile.reach[0] = (nh_reach *)(tile.column + rows);
    tile.reach[1] = tile.reach[0] + rows / 16;
    return tile;
}

NH_DEVICE nh_group *nh_groups_at(const nh_cuda_args &args, const nh_tile &tile) {
    return (nh_group *)(tile.reach[1] + args.tiling.rows / 16);
}

/* What the warps of a strip have summed up, added in a fixed order by the first of them. By all threads: the tile is no longer
 * needed. */
template <int BLOCKS> NH_DEVICE void nh_add_turns(float (&sums)[BLOCKS][4], float4 *exchange, int turn) {
    const int lane = (int)threadIdx.x % 32, team = (int)threadIdx.x / 32 / NH_SPLIT;
    float4 *own = exchange + team * (NH_SPLIT - 1) * BLOCKS * 32 + lane;
    __syncthreads();
    for (int i = 0; i < BLOCKS && turn > 0; i++)
        own[((turn - 1) * BLOCKS + i) * 32] = make_float4(sums[i][0], sums[i][1], sums[i][2], sums[i][3]);
    __syncthreads();
#pragma unroll
    for (int other = 0; other < (NH_SPLIT - 1) * BLOCKS; other++) {
        if (turn > 0) break;
        const float4 more = own[other * 32];
        float(&sum)[4] = sums[other % BLOCKS];
        sum[0] += more.x;
        sum[1] += more.y;
        sum[2] += more.z;
        sum[3] += more.w;
    }
}

/* Starts the copies of a tensor's rows. */
template <int WIDTH>
NH_DEVICE void nh_copy_reach(const nh_cuda_args &args, const nh_extents &extents, const nh_group *groups, int tensor, int member,
                             nh_reach rows, char *to) {
    nh_copy_rows<WIDTH, WIDTH>(args, extents, groups, tensor, nh_ahead(args, tensor, member), rows.begin, rows.end,
                        to + nh_unit_offset(WIDTH, rows.begin, 0));
}

/* Of the member-th of the query heads that share keys; all is there when it returns. */
NH_DEVICE void nh_load_item(const nh_cuda_args &args, const nh_extents &extents, const nh_group *groups, const nh_part &part, int member,
                            const nh_tile &tile) {
    if (member == 0) {
        nh_copy_reach<NH_DIM>(args, extents, groups, NH_K, member, part.keys, tile.keys);
        nh_copy_reach<NH_DIM_V>(args, extents, groups, NH_V, member, part.keys, tile.values);
    }
    nh_copy_reach<NH_DIM>(args, extents, groups, NH_Q, member, part.queries, tile.queries);
    nh_copy_reach<NH_DIM_V>(args, extents, groups, NH_D_O, member, part.queries, tile.d_outputs);
    nh_statistics_fill(args, extents, groups, member, part.queries, tile.query);
    if (member == 0) nh_tables_fill(args, extents, groups, tile);
    nh_copy_wait();
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    short_backward(const __grid_constant__ nh_cuda_args args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    const nh_tile tile = nh_tile_at(args, nh_shared_memory);
    nh_group *groups = nh_groups_at(args, tile);
    nh_groups_fill(args, (int)blockIdx.x / args.tiling.parts, groups);
    const nh_extents extents = nh_extents_of(args);
    const nh_part part = nh_part_of(args);
    const int query_strips = args.tiling.rows / 16, members = NH_SHARED_HEADS ? (int)(args.heads / args.kv_heads) : 1;
    const int team = (int)threadIdx.x / 32 / NH_SPLIT, turn = (int)threadIdx.x / 32 % NH_SPLIT;
    nh_sums sums;
    nh_sums_v sums_v;
#pragma unroll 1
    for (int member = 0; member < members; member++) {
        __syncthreads();
        nh_load_item(args, extents, groups, part, member, tile);
#pragma unroll 1
        for (int strip = part.strips.begin + team; strip < part.strips.end; strip += NH_TEAMS) {
            const bool by_keys = strip >= query_strips;
            if (!by_keys || member == 0) {
                nh_clear(sums);
                nh_clear(sums_v);
            }
            const float scale = (float)(args.scale * NH_LOG2E);
            if (by_keys) {
                nh_differentiate<true>(tile, strip - query_strips, turn, scale, sums, sums_v);
                if (NH_SPLIT == 1 && member + 1 == members)
                    nh_finish<true>(args, extents, groups, tile, member, strip - query_strips, sums, sums_v);
            } else {
                nh_differentiate<false>(tile, strip, turn, scale, sums, sums_v);
                if (NH_SPLIT == 1) nh_finish<false>(args, extents, groups, tile, member, strip, sums, sums_v);
            }
        }
    }
#if NH_SPLIT > 1
    const int strip = part.strips.begin + team;
    nh_add_turns(sums, (float4 *)nh_shared_memory, turn);
    if (part.strips.end > query_strips) nh_add_turns(sums_v, (float4 *)nh_shared_memory, turn);
    if (turn > 0 || strip >= part.strips.end) return;
    if (strip < query_strips) {
        nh_finish<false>(args, extents, groups, tile, 0, strip, sums, sums_v);
    } else {
        nh_finish<true>(args, extents, groups, tile, 0, strip - query_strips, sums, sums_v);
    }
#endif
}
