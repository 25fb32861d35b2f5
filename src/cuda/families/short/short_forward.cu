/* Forward pass of whole dilation groups. A block takes one work tile after the other, whose keys and values lie in
 * shared memory. A warp multiplies 16 queries at a time with the rows that these see, 32 or 16 at a time. If there are
 * more multiprocessors than work tiles, each is divided by its queries, with the keys that these see. With two stages,
 * the next work tile is copied while this one is computed. With C.split, warps share 16 queries, each with some of the
 * rows: then every warp has at most one warp tile. See short.cuh. */
#include "short_shares.cuh"
#include "short_queries.cuh"

namespace nh_short {

enum { NH_WARP_TILES = short_warp_tiles(&C), NH_PLACES = short_places(&C) };

/* The work tile of a number, whose fastest digit is the part, and whose next one is the query head among those that
 * share a key head (`member`). Its queries are rows [first, end). */
struct alignas(16) nh_work_tile {
    nh_extents extents;
    int rows, member, first, end;
};

static_assert(sizeof(nh_work_tile) == SHORT_WORK_TILE_BYTES, "the host's count of shared memory");

NH_DEVICE nh_work_tile nh_work_tile_of(const nh_short_args &args, int number) {
    const int parts = args.tiling.parts, share = args.tiling.heads;
    nh_work_tile work_tile;
    int part = 0;
    work_tile.member = 0;
    if (parts > 1) {
        part = number % parts;
        number /= parts;
    }
    if (share > 1) {
        work_tile.member = number % share;
        number /= share;
    }
    work_tile.extents = nh_extents_of(args, number);
    work_tile.rows = nh_rows_of(work_tile.extents);
    work_tile.first = part * short_part_rows(&args.tiling);
    work_tile.end = work_tile.first + short_part_rows(&args.tiling);
    if (work_tile.end > work_tile.rows) work_tile.end = work_tile.rows;
    return work_tile;
}

/* A work tile and its memory: C.stages places for rows, C.stages + 1 for all else. Outputs overwrite queries. */
struct nh_work {
    const nh_short_args &args;
    nh_work_tile work_tile;
    int round;
    char *keys, *values, *queries;
    float4 *shares; /* partial sums of warps that are not the first of their warp tile */
    unsigned *columns;
    nh_group *groups;
};

/* The partial sums of a warp, in units of four per thread: outputs, and two sums of weights. */
enum { NH_SHARE_UNITS = NH_SUMS_V + 1 };

NH_DEVICE nh_work_tile *nh_work_tiles(void) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    return (nh_work_tile *)nh_shared_memory;
}

NH_DEVICE nh_work nh_work_of(const nh_short_args &args, int round) {
    const int stage = round % C.stages, place = round % NH_PLACES;
    const short_forward_layout at = short_forward_layout_of(&C, &args.tiling);
    char *shared = (char *)nh_work_tiles();
    nh_work work = {args, nh_work_tiles()[place], round};
    work.shares = (float4 *)(shared + at.shares);
    work.keys = shared + at.stages + stage * at.stage_bytes;
    work.values = work.keys + at.values;
    work.queries = work.keys + at.queries;
    work.columns = (unsigned *)(work.keys + at.columns);
    work.groups = (nh_group *)(shared + at.groups) + place * args.tiling.groups;
    return work;
}

/* Fills in a round's work tile and groups, if the block has one. Called by all threads; a barrier must follow. */
NH_DEVICE void nh_work_tile_fill(const nh_short_args &args, int round) {
    const int number = (int)NH_OWN_BLOCK + round * (int)NH_OWN_BLOCKS;
    if (number >= args.tiling.work_tiles || (int)threadIdx.x >= args.tiling.groups) return;
    const nh_work_tile work_tile = nh_work_tile_of(args, number);
    if (threadIdx.x == 0) nh_work_tiles()[round % NH_PLACES] = work_tile;
    nh_groups_fill(args, work_tile.extents, nh_work_of(args, round).groups);
}

/* Offset from the first query head of those that share a key head to the block's, in elements. */
NH_DEVICE long long nh_ahead(const nh_work &work, int tensor) {
    return work.work_tile.member * work.args.tensor[tensor].head;
}

/* A warp tile: 16 queries from `row` of the work tile on, and their rows as operands. */
struct nh_warp_tile : nh_queries {
    nh_row_operand<C.dim> operand;
    int row;
};

NH_DEVICE void nh_warp_tile_locate(const nh_work &work, int row, nh_warp_tile &warp_tile) {
    nh_queries_locate(warp_tile, work.args, work.work_tile.extents, work.groups, row + (int)(threadIdx.x % 16));
    warp_tile.row = row;
}

NH_DEVICE void nh_warp_tile_load(const nh_work &work, nh_warp_tile &warp_tile) {
    nh_load_rows<NH_WIDEST>(warp_tile.operand, work.queries, warp_tile.row - work.work_tile.first);
}

/* Computes scores with 32 rows from `row` on, or 16 unless `both`. */
NH_DEVICE void nh_score(const nh_work &work, const nh_warp_tile &warp_tile, const unsigned (&keys)[NH_STEPS], int row,
                        bool both, float scale, const float (&reference)[2], float (&scores)[4][4]) {
    const int pairs = both ? 2 : 1;
    nh_clear(scores);
    NH_UNROLL for (int p = 0; p < pairs; p++)
        nh_multiply_columns(scores + 2 * p, warp_tile.operand, keys, row + 16 * p, true);
    nh_weigh_scores(warp_tile, work.columns, row, both, scale, reference, scores);
}

/* Warps share warp tiles in launches of a few microseconds, whose time depends on loading their code. In f32, taking
 * only 16 rows at a time halves it, which is worth it. */
enum { NH_NARROW = NH_DTYPE == NH_F32 && C.split > 1 };

/* Calls visit(scores, row, both) for the rows that the warp tile sees, 32 at a time; 16, without `both`, at the end and
 * with NH_NARROW. If `shares` warps share the warp tile, each visits its part of them. */
template <typename Visit>
NH_DEVICE void nh_for_scores(const nh_work &work, const nh_warp_tile &warp_tile, int shares,
                             const float (&reference)[2], const Visit &visit) {
    const float scale = (float)(work.args.scale * NH_LOG2E);
    const int share = (int)threadIdx.x / 32 % shares;
    float scores[4][4];
    unsigned keys[NH_STEPS];
    nh_columns_start<NH_AS_LAID, C.dim, NH_STEPS>(keys, work.keys);
    const auto meet = [&](int row, bool both) {
        nh_score(work, warp_tile, keys, row, both, scale, reference, scores);
        visit(scores, row, both);
    };
    if (NH_NARROW) {
        NH_UNROLL_1 for (int row = warp_tile.begin + 16 * share; row < warp_tile.end; row += 16 * shares)
            meet(row, false);
        return;
    }
    int row = warp_tile.begin + 32 * share;
    NH_UNROLL_1 for (; row + 16 < warp_tile.end; row += 32 * shares)
        meet(row, true);
    if (row < warp_tile.end) meet(row, false);
}

NH_DEVICE void nh_refer_to_largest(const nh_work &work, const nh_warp_tile &warp_tile, nh_state &state) {
    const float zero[2] = {0.f, 0.f};
    float top[2] = {NH_MINUS_INFINITY, NH_MINUS_INFINITY};
    nh_for_scores(work, warp_tile, 1, zero,
                  [&](const float(&scores)[4][4], int, bool both) { nh_raise_tops(top, scores, both); });
    state.reference[0] = nh_quad_max(top[0]);
    state.reference[1] = nh_quad_max(top[1]);
}

/* Multiplies the warp tile's weights with the values, and adds up this thread's weights. */
NH_DEVICE void nh_weigh_values(const nh_work &work, const nh_warp_tile &warp_tile, int shares, nh_state &state,
                               float (&output)[NH_SUMS_V][4]) {
    nh_across<C.dim_v> values;
    nh_across_start(values, work.values);
    nh_clear(output);
    state.sum[0] = state.sum[1] = 0.f;
    nh_for_scores(work, warp_tile, shares, state.reference, [&](float(&scores)[4][4], int row, bool both) {
        const int pairs = both ? 2 : 1;
        nh_weigh(scores, both, state);
        NH_UNROLL for (int p = 0; p < pairs; p++) {
            nh_weights weights;
            nh_pack_weights(weights, scores + 2 * p, true);
            nh_add_columns(output, weights, values, nh_rows_of_pair(row + 16 * p), true);
        }
    });
}

/* Adds the other warps' sums of a warp tile to its first's. Called by all threads; `some`: the warp has a warp tile. */
NH_DEVICE void nh_add_shares(const nh_work &work, bool some, nh_state &state, float (&output)[NH_SUMS_V][4]) {
    const int rank = (int)threadIdx.x / 32 % C.split;
    if (some && rank) {
        float4 *own = nh_share_at(work.shares, NH_SHARE_UNITS, rank);
        nh_share_write(own, output);
        own[32 * NH_SUMS_V] = make_float4(state.sum[0], state.sum[1], 0.f, 0.f);
    }
    __syncthreads();
    if (!some || rank) return;
    NH_UNROLL_1 for (int other = 1; other < C.split; other++) {
        const float4 *share = nh_share_at(work.shares, NH_SHARE_UNITS, other), sums = share[32 * NH_SUMS_V];
        nh_share_add(output, share);
        state.sum[0] += sums.x;
        state.sum[1] += sums.y;
    }
}

/* Writes outputs over the warp tile's queries; returns LSE of rows g and g + 8. */
NH_DEVICE float2 nh_finish(const nh_work &work, const nh_warp_tile &warp_tile, const nh_state &state,
                           const float (&output)[NH_SUMS_V][4]) {
    const int lane = (int)(threadIdx.x % 32);
    float lse[2];
    __syncwarp();
    NH_UNROLL for (int half = 0; half < 2; half++) {
        const float inverse = nh_reciprocal(state.sum[half]);
        char *row =
            work.queries + nh_unit_offset(NH_WIDEST, warp_tile.row - work.work_tile.first + lane / 4 + 8 * half, 0);
        nh_lay_row(row, output, half, inverse);
        lse[half] = nh_lse(state, half);
    }
    return make_float2(lse[0], lse[1]);
}

NH_DEVICE elem nh_element(int width, const char *rows, int row, int element) {
    return ((const elem *)(rows + nh_unit_offset(width, row, element / NH_PER_UNIT)))[element % NH_PER_UNIT];
}

/* Repairs a query key by key over exactly its window; returns its LSE. The query is read from memory, as outputs are in
 * its place by now. Called by the whole warp. */
static __device__ __noinline__ float nh_repair_row(const nh_short_args &args, int round, int begin, int end, int row) {
    const nh_work work = nh_work_of(args, round);
    const nh_token token = nh_token_of(work.work_tile.extents, work.groups, row);
    if (!token.exists) return 0.f;
    const elem *query = (const elem *)work.args.tensor[NH_Q].data + nh_ahead(work, NH_Q) +
                        nh_token_offset(work.args, work.groups, NH_Q, token);
    const nh_visibility visibility = nh_visibility_of(work.args, work.work_tile.extents, work.groups, row);
    const float scale = (float)(work.args.scale * NH_LOG2E);
    nh_repair state;
    nh_repair_start(state, query);
    for (int key = begin; key < end; key++)
        if (nh_sees(visibility, work.columns[key]))
            nh_repair_key(
                state, [&](int i) { return nh_element(C.dim, work.keys, key, i); },
                [&](int i) { return nh_element(C.dim_v, work.values, key, i); }, scale, 0.f);
    elem *to = (elem *)(work.queries + nh_unit_offset(NH_WIDEST, row - work.work_tile.first, 0));
    return nh_repair_finish(state, [&](int i, elem element) { to[i] = element; });
}

/* Computes the warp tile again with weights relative to their row's largest score, and rows whose sums are out of range
 * even so key by key. This is a function of its own so that it takes no registers from the common case. */
static __device__ __noinline__ float2 nh_repair_attention(const nh_short_args &args, int round, int row) {
    const nh_work work = nh_work_of(args, round);
    nh_warp_tile warp_tile;
    nh_warp_tile_locate(work, row, warp_tile);
    nh_warp_tile_load(work, warp_tile);
    nh_state state;
    float output[NH_SUMS_V][4];
    nh_refer_to_largest(work, warp_tile, state);
    nh_weigh_values(work, warp_tile, 1, state, output);
    nh_finish_sums(state);
    float2 lse = nh_finish(work, warp_tile, state, output);
    const int g = (int)(threadIdx.x % 32) / 4;
    __syncwarp();
    nh_for_rows_to_repair(!nh_held(state, output, 0), !nh_held(state, output, 1), [&](int repair) {
        const float repaired = nh_repair_row(args, round, warp_tile.begin, warp_tile.end, row + repair);
        if (repair == g) lse.x = repaired;
        if (repair == g + 8) lse.y = repaired;
    });
    return lse;
}

/* Stores LSE. lse: of rows g and g + 8. own: the token of row lane % 16. */
NH_DEVICE void nh_store_lse(const nh_work &work, const nh_token &own, float2 lse) {
    const int lane = (int)(threadIdx.x % 32);
    float *to = (float *)work.args.tensor[NH_LSE].data;
    if (!to) return;
    const float own_lse = nh_lse_of_lane(lse);
    if (own.exists && lane < 16)
        to[nh_ahead(work, NH_LSE) + nh_token_offset(work.args, work.groups, NH_LSE, own)] = own_lse;
}

/* Stores outputs and LSE of the warp tile. */
NH_DEVICE void nh_conclude(const nh_work &work, const nh_warp_tile &warp_tile, nh_state &state,
                           const float (&output)[NH_SUMS_V][4]) {
    nh_finish_sums(state);
    const bool held = nh_held(state, output, 0) && nh_held(state, output, 1);
    const float2 lse = __all_sync(~0u, held) ? nh_finish(work, warp_tile, state, output)
                                             : nh_repair_attention(work.args, work.round, warp_tile.row);
    __syncwarp();
    const nh_token own = nh_token_of(work.work_tile.extents, work.groups, warp_tile.row + (int)threadIdx.x % 16);
    nh_store_warp_tile<C.dim_v, NH_WIDEST>(work.args, work.groups, NH_O, nh_ahead(work, NH_O), own,
                                           work.queries +
                                               nh_unit_offset(NH_WIDEST, warp_tile.row - work.work_tile.first, 0));
    nh_store_lse(work, own, lse);
}

/* Computes the warp's warp tile, or its part of one, if it has one. Called by all threads if warps share warp tiles. */
NH_DEVICE void nh_attend(const nh_work &work, nh_warp_tile &warp_tile, bool some) {
    nh_state state = {{0.f, 0.f}, {}};
    float output[NH_SUMS_V][4];
    if (some) {
        nh_warp_tile_load(work, warp_tile);
        nh_weigh_values(work, warp_tile, C.split, state, output);
    }
    if (C.split > 1) nh_add_shares(work, some, state, output);
    if (some && threadIdx.x / 32 % C.split == 0) nh_conclude(work, warp_tile, state, output);
}

/* The rows [begin, end) that some query of the block sees, rounded to multiples of 16. */
NH_DEVICE void nh_part_columns(const nh_work &work, int &begin, int &end) {
    const int first = nh_visibility_of(work.args, work.work_tile.extents, work.groups, work.work_tile.first).first_row;
    const int last = nh_visibility_of(work.args, work.work_tile.extents, work.groups, work.work_tile.end - 1).last_row;
    const int seen = nh_first_rows(work.work_tile.extents, last) + nh_first_pitch(work.work_tile.extents);
    begin = nh_first_rows(work.work_tile.extents, first) / 16 * 16;
    if (seen < end) end = (seen + 15) / 16 * 16;
}

/* Starts the copies of the work tile's rows. Rows of the block's queries are among those that they see. */
NH_DEVICE void nh_copy_work_tile(const nh_work &work) {
    const nh_short_args &args = work.args;
    const elem *keys = (const elem *)args.tensor[NH_K].data, *values = (const elem *)args.tensor[NH_V].data;
    const elem *queries = (const elem *)args.tensor[NH_Q].data + nh_ahead(work, NH_Q);
    int begin = 0, end = work.work_tile.rows;
    if (args.tiling.parts > 1 && args.tiling.groups == 1 && work.work_tile.first < work.work_tile.end)
        nh_part_columns(work, begin, end);
    NH_UNROLL_1 for (int row = begin + (int)threadIdx.x / NH_ROW_LANES; row < end; row += NH_THREADS / NH_ROW_LANES) {
        const nh_token token = nh_token_of(work.work_tile.extents, work.groups, row);
        nh_copy_row<C.dim>(keys + nh_token_offset(args, work.groups, NH_K, token),
                           work.keys + nh_unit_offset(C.dim, row, 0), token.exists);
        nh_copy_row<C.dim_v>(values + nh_token_offset(args, work.groups, NH_V, token),
                             work.values + nh_unit_offset(C.dim_v, row, 0), token.exists);
        if (row >= work.work_tile.first && row < work.work_tile.end)
            nh_copy_row<C.dim>(queries + nh_token_offset(args, work.groups, NH_Q, token),
                               work.queries + nh_unit_offset(NH_WIDEST, row - work.work_tile.first, 0), token.exists);
    }
}

/* Starts the copies of a round's work tile, if the block has one, and fills in its rows as keys. */
NH_DEVICE void nh_fetch(const nh_short_args &args, int round) {
    if ((int)NH_OWN_BLOCK + round * (int)NH_OWN_BLOCKS < args.tiling.work_tiles) {
        const nh_work work = nh_work_of(args, round);
        nh_copy_work_tile(work);
        if (C.order != SHORT_EVEN || round < C.stages)
            nh_columns_fill(work.work_tile.extents, work.groups, work.columns);
    }
    nh_copy_commit();
}

} // namespace nh_short

using namespace nh_short;

extern "C" __global__ void __launch_bounds__(NH_THREADS, C.min_blocks) short_forward(NH_PARAMETER(nh_short_args)) {
    NH_TAKE_MEMBER(nh_short_args)
    const int own_row = (int)threadIdx.x / 32 / C.split * 16;
    /* What rows see is the same for all work tiles; a warp with a single warp tile keeps it. */
    const bool keeps = C.order == SHORT_EVEN && args.tiling.parts == 1 && args.tiling.rows <= 16 * NH_WARP_TILES;
    nh_warp_tile warp_tile;
    NH_UNROLL_1 for (int round = 0; round < C.stages; round++)
        nh_work_tile_fill(args, round);
    __syncthreads();
    if (C.stages == 2) nh_fetch(args, 0);
    NH_UNROLL_1 for (int round = 0; (int)NH_OWN_BLOCK + round * (int)NH_OWN_BLOCKS < args.tiling.work_tiles; round++) {
        nh_fetch(args, round + C.stages - 1);
        nh_work_tile_fill(args, round + C.stages);
        const nh_work work = nh_work_of(args, round);
        int row = work.work_tile.first + own_row;
        if (row < work.work_tile.end && (!keeps || round == 0)) nh_warp_tile_locate(work, row, warp_tile);
        nh_copy_wait_groups<C.stages - 1>();
        __syncthreads();
        if (C.split > 1) nh_attend(work, warp_tile, row < work.work_tile.end);
        NH_UNROLL_1 for (; C.split == 1 && row < work.work_tile.end; row += 16 * NH_WARP_TILES) {
            if (row != work.work_tile.first + own_row) nh_warp_tile_locate(work, row, warp_tile);
            nh_attend(work, warp_tile, true);
        }
        __syncthreads();
    }
}
