/* Forward pass of whole dilation groups that the copy engine fetches: see short90.cuh. */
#include "short90.cuh"

#include "row_config.h"
/* A warp repairs a row. Repair is rare: a small kernel matters more than its speed. */
constexpr row_config ROW = {.threads = ROW_THREADS, .group = 32, .vector = 8, .vectors = 1, .resident = 1, .keys = 1};
#include "naive_forward.cuh"

namespace nh_short {

/* A warp tile: 16 queries of a group in a stage, from `row` of its part on, with their rows as operands; which of the
 * rows have tokens (bits); and the offsets in O and LSE from the group's first token to that of row lane % 16. */
struct nh_warp_tile : nh_queries {
    nh_left operand[NH_STEPS];
    int row, kind;
    unsigned exist;
    int to_output, to_lse;
};

/* Locates the warp tile at `row` of a part. The result is the same for all groups of a kind. */
NH_DEVICE void nh_warp_tile_locate(nh_warp_tile &warp_tile, const nh_short_args &args, int row, int part, int kind) {
    const nh_extents extents = nh_extents_of(args, 0);
    const nh_group group = nh_group_of_kind(args, kind);
    const int queries = args.tiling.queries, own_row = row + (int)(threadIdx.x % 16);
    const int group_row = part * queries + (own_row < queries ? own_row : queries - 1);
    const nh_token own = nh_token_of(extents, &group, group_row);
    nh_queries_locate(warp_tile, args, extents, &group, group_row);
    warp_tile.row = row;
    warp_tile.kind = kind;
    warp_tile.exist = __ballot_sync(~0u, own.exists && own_row < queries) & 0xffff;
    warp_tile.to_output = warp_tile.to_lse = 0; /* nh_short_offsets_fit makes sure that 32 bits are enough */
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        const int step = own.at[a] * (C.dilated ? (int)args.axis[a].dilation : 1);
        warp_tile.to_output += step * (int)args.tensor[NH_O].axis[a];
        warp_tile.to_lse += step * (int)args.tensor[NH_LSE].axis[a];
    }
}

NH_DEVICE void nh_warp_tile_load(const nh_ring &ring, int stage, nh_warp_tile &warp_tile) {
    const int lane = (int)(threadIdx.x % 32);
    const unsigned first = nh_unit_at<C.dim>(nh_queries_at(ring, stage), warp_tile.row + lane % 16, lane / 16);
    NH_UNROLL for (int s = 0; s < NH_STEPS; s++)
        nh_load_matrices_at(warp_tile.operand[s].x, nh_step_at<C.dim>(ring.own_rows, first, s));
}

/* Address of a lane's elements in the first rows of a group. */
template <nh_order ORDER, int WIDTH> NH_DEVICE unsigned nh_first_at(unsigned rows) {
    return nh_unit_at<WIDTH>(rows, nh_lane_column<ORDER>(), nh_lane_half<ORDER>());
}

/* products[0] and [1] += the warp tile times 16 rows. */
NH_DEVICE void nh_multiply_keys(const nh_ring &ring, const nh_warp_tile &warp_tile, unsigned first,
                                float (*products)[4]) {
    NH_UNROLL for (int s = 0; s < NH_STEPS; s++) {
        nh_right keys;
        nh_load_matrices_at(keys.x, nh_step_at<C.dim>(ring.rows, first, s));
        nh_multiply(products, &warp_tile.operand[s], &keys);
    }
}

/* output += weights times 16 rows. */
NH_DEVICE void nh_add_values(const nh_ring &ring, const nh_left &weights, unsigned first,
                             float (&output)[NH_SUMS_V][4]) {
    NH_UNROLL for (int s = 0; s < NH_STEPS_V; s++) {
        nh_right values;
        nh_load_matrices_transposed_at(values.x, nh_step_at<C.dim_v>(ring.rows, first, s));
        nh_multiply(output + 2 * s, &weights, &values);
    }
}

/* Calls visit(scores, row, both) for the rows that the warp tile sees, 32 or, at the end without `both`, 16. */
template <typename Visit>
NH_DEVICE void nh_for_scores(const nh_short_args &args, const nh_ring &ring, int stage, const nh_warp_tile &warp_tile,
                             const float (&reference)[2], const Visit &visit) {
    const float scale = (float)(args.scale * NH_LOG2E);
    const unsigned keys = nh_first_at<NH_AS_LAID, C.dim>(nh_keys_at(ring, stage));
    int row = warp_tile.begin;
    const auto take = [&](bool both) {
        float scores[4][4];
        nh_clear(scores);
        NH_UNROLL for (int pair = 0; pair < (both ? 2 : 1); pair++)
            nh_multiply_keys(ring, warp_tile, keys + (row + 16 * pair) * short_line_bytes(C.dim), scores + 2 * pair);
        nh_weigh_scores(warp_tile, ring.columns, row, both, scale, reference, scores);
        visit(scores, row, both);
    };
    NH_UNROLL_1 for (; row + 16 < warp_tile.end; row += 32)
        take(true);
    if (row < warp_tile.end) take(false);
}

NH_DEVICE void nh_refer_to_largest(const nh_short_args &args, const nh_ring &ring, int stage,
                                   const nh_warp_tile &warp_tile, nh_state &state) {
    const float zero[2] = {0.f, 0.f};
    float top[2] = {NH_MINUS_INFINITY, NH_MINUS_INFINITY};
    nh_for_scores(args, ring, stage, warp_tile, zero,
                  [&](const float(&scores)[4][4], int, bool both) { nh_raise_tops(top, scores, both); });
    state.reference[0] = nh_quad_max(top[0]);
    state.reference[1] = nh_quad_max(top[1]);
}

/* Multiplies the warp tile's weights with the values, and adds up the weights. */
NH_DEVICE void nh_weigh_values(const nh_short_args &args, const nh_ring &ring, int stage, const nh_warp_tile &warp_tile,
                               nh_state &state, float (&output)[NH_SUMS_V][4]) {
    const unsigned values = nh_first_at<NH_TRANSPOSED, C.dim_v>(nh_values_at(ring, stage));
    nh_clear(output);
    state.sum[0] = state.sum[1] = 0.f;
    nh_for_scores(args, ring, stage, warp_tile, state.reference, [&](float(&scores)[4][4], int row, bool both) {
        nh_weigh(scores, both, state);
        NH_UNROLL for (int pair = 0; pair < (both ? 2 : 1); pair++) {
            nh_weights weights;
            nh_left operand;
            nh_pack_weights(weights, scores + 2 * pair, true);
            nh_left_set(&operand, weights.word);
            nh_add_values(ring, operand, values + (row + 16 * pair) * short_line_bytes(C.dim_v), output);
        }
    });
    nh_finish_sums(state);
}

/* Writes outputs over the warp tile's queries; returns LSE of rows g and g + 8. */
NH_DEVICE float2 nh_finish(const nh_ring &ring, int stage, const nh_warp_tile &warp_tile, const nh_state &state,
                           const float (&output)[NH_SUMS_V][4]) {
    const int lane = (int)(threadIdx.x % 32);
    const float inverse[2] = {nh_reciprocal(state.sum[0]), nh_reciprocal(state.sum[1])};
    const unsigned first = nh_unit_at<C.dim_v>(nh_queries_at(ring, stage), warp_tile.row + lane % 16, lane / 16);
    __syncwarp();
    NH_UNROLL for (int s = 0; s < NH_STEPS_V; s++) {
        unsigned word[4];
        NH_UNROLL for (int i = 0; i < 4; i++) {
            const float *two = output[2 * s + i / 2] + 2 * (i % 2);
            word[i] = nh_pack(two[0] * inverse[i % 2], two[1] * inverse[i % 2]);
        }
        nh_store_matrices_at(nh_step_at<C.dim_v>(ring.own_rows, first, s), word);
    }
    return nh_lse_of(state);
}

/* A thread's rows g and g + 8: LSE, and whether sums are out of range with weights relative to the largest score. */
struct nh_weighed {
    float2 lse;
    bool repair[2];
};

/* Computes the warp tile again with such weights. Not inlined, so that it takes no registers from the common case. */
static __device__ __noinline__ nh_weighed nh_weigh_by_largest(const nh_short_args &args, int stage, int row) {
    const nh_ring ring = nh_ring_of(args);
    nh_warp_tile warp_tile;
    nh_warp_tile_locate(warp_tile, args, row, ring.places[stage].part, ring.places[stage].kind);
    nh_warp_tile_load(ring, stage, warp_tile);
    nh_state state;
    float output[NH_SUMS_V][4];
    nh_refer_to_largest(args, ring, stage, warp_tile, state);
    nh_weigh_values(args, ring, stage, warp_tile, state, output);
    return {nh_finish(ring, stage, warp_tile, state, output), {!nh_held(state, output, 0), !nh_held(state, output, 1)}};
}

/* Repairs a row as cuda.naive computes it, from exactly its window. Called by the whole warp. */
static __device__ __noinline__ void nh_repair_query(const nh_short_args &args, int stage, int row) {
    const nh_place place = nh_ring_of(args).places[stage];
    const nh_group group = nh_group_of_kind(args, place.kind);
    const nh_token token = nh_token_of(nh_extents_of(args, 0), &group, place.part * args.tiling.queries + row);
    nh_query query;
    query.batch = place.batch;
    query.head = place.head;
    NH_UNROLL for (int a = 0; a < 3; a++)
        query.at[a] = place.residue[a] + token.at[a] * args.axis[a].dilation;
    nh_attend(args, query);
}

/* Stores the warp tile's outputs, which are in shared memory, and LSE. */
NH_DEVICE void nh_store(const nh_short_args &args, const nh_ring &ring, int stage, const nh_warp_tile &warp_tile,
                        float2 lse) {
    const int lane = (int)(threadIdx.x % 32), units = C.dim_v / 8;
    const nh_cuda_tensor &o = args.tensor[NH_O], &sums = args.tensor[NH_LSE];
    elem *output = (elem *)o.data + ring.places[stage].output;
    unsigned word[units / 2][4]; /* all loads come first, so that none waits for a store */
    __syncwarp();
    NH_UNROLL for (int i = 0; i < units / 2; i++) {
        const int row = (lane + 32 * i) / units, unit = (lane + 32 * i) % units;
        const unsigned plane = nh_queries_at(ring, stage) + unit / 8 * nh_plane_bytes(ring.own_rows, C.dim_v);
        nh_load_words_at(word[i], nh_unit_at<C.dim_v>(plane, warp_tile.row + row, unit % 8));
    }
    NH_UNROLL for (int i = 0; i < units / 2; i++) {
        const int row = (lane + 32 * i) / units, unit = (lane + 32 * i) % units;
        const int offset = __shfl_sync(~0u, warp_tile.to_output, row);
        if (warp_tile.exist >> row & 1) nh_store_words(output + offset + 8 * unit, word[i]);
    }
    if (!sums.data) return;
    const float own_lse = nh_lse_of_lane(lse);
    if (warp_tile.exist >> lane & 1) /* 16 rows */
        ((float *)sums.data)[ring.places[stage].lse + warp_tile.to_lse] = own_lse;
}

/* Computes and stores a warp tile. Padding rows may have any result, as they are not stored. */
NH_DEVICE void nh_attend_warp_tile(const nh_short_args &args, const nh_ring &ring, int stage, nh_warp_tile &warp_tile) {
    const unsigned exist = warp_tile.exist >> (int)(threadIdx.x % 32) / 4;
    const bool upper = exist & 1, lower = exist >> 8 & 1;
    nh_state state = {{0.f, 0.f}, {}};
    float output[NH_SUMS_V][4];
    nh_warp_tile_load(ring, stage, warp_tile);
    nh_weigh_values(args, ring, stage, warp_tile, state, output);
    const bool held = (nh_held(state, output, 0) || !upper) && (nh_held(state, output, 1) || !lower);
    const bool all_held = __all_sync(~0u, held);
    nh_weighed made = {};
    if (all_held) {
        made.lse = nh_finish(ring, stage, warp_tile, state, output);
    } else {
        made = nh_weigh_by_largest(args, stage, warp_tile.row);
    }
    nh_store(args, ring, stage, warp_tile, made.lse);
    if (all_held) return;
    __syncwarp();
    nh_for_rows_to_repair(made.repair[0] && upper, made.repair[1] && lower,
                          [&](int repair) { nh_repair_query(args, stage, warp_tile.row + repair); });
}

/* The loop of a consumer warp over its share of the block's warp tiles, which are numbered through all work tiles. */
NH_DEVICE void nh_consume(const nh_short_args &args, const nh_ring &ring, int warp) {
    const int parts = args.tiling.parts, work_tiles = args.tiling.work_tiles, blocks = (int)NH_OWN_BLOCKS;
    const nh_ratio warp_tiles = nh_ratio_of(ring.own_rows / 16); /* warp tiles per work tile */
    /* whether the warp's warp tile lies elsewhere in the next work tile */
    const bool moves = nh_quotient(C.warps, warp_tiles) * warp_tiles.base != C.warps || blocks % parts;
    int stage = nh_quotient(warp, warp_tiles), own = warp - stage * warp_tiles.base, parity = 0;
    bool located = false;
    nh_warp_tile warp_tile;
    NH_UNROLL_1 for (int number = (int)NH_OWN_BLOCK + stage * blocks; number < work_tiles;) {
        if (C.order == SHORT_EVEN && !located) nh_warp_tile_locate(warp_tile, args, 16 * own, number % parts, 0);
        /* A parity tells a round from the next one, but not from the one after that. Other warps may still be at the
         * stage's previous round. Once they have released it, the barrier of copies is at this round, and not further
         * behind: the previous round was fetched no later than the warp's last work tile (`useful` in short90.c). */
        nh_barrier_wait(ring.free + 8 * stage, parity ^ 1);
        nh_barrier_wait(ring.full + 8 * stage, parity);
        const int kind = ring.places[stage].kind;
        if (C.order == SHORT_BOXES && (!located || warp_tile.kind != kind))
            nh_warp_tile_locate(warp_tile, args, 16 * own, number % parts, kind);
        located = !moves;
        if (warp_tile.exist) nh_attend_warp_tile(args, ring, stage, warp_tile);
        nh_barrier_arrive(ring.free + 8 * stage); /* every lane: see fused90_bias.cuh */
        const int on = nh_quotient(own + C.warps, warp_tiles);
        own += C.warps - on * warp_tiles.base;
        number += on * blocks;
        stage += on; /* at most once around the ring */
        if (stage >= ring.count) {
            stage -= ring.count;
            parity ^= 1;
        }
    }
}

/* Clears the values of padding rows: they are multiplied with weights of zero, so they have to be finite. */
NH_DEVICE void nh_clear_values(const nh_short_args &args, const nh_ring &ring) {
    const int line = short_line_bytes(C.dim_v), units = (ring.rows - args.tiling.tokens) * line / 16;
    const int all = ring.count * short_planes(C.dim_v) * units;
    NH_UNROLL_1 for (int i = (int)threadIdx.x; i < all; i += 32 * C.warps) {
        const int plane = i / units;
        const unsigned first = nh_values_at(ring, plane / short_planes(C.dim_v)) +
                               plane % short_planes(C.dim_v) * nh_plane_bytes(ring.rows, C.dim_v);
        *(uint4 *)nh_shared_pointer(first + args.tiling.tokens * line + 16 * (i - plane * units)) =
            make_uint4(0, 0, 0, 0);
    }
}

} // namespace nh_short

using namespace nh_short;

extern "C" __global__ void __launch_bounds__(32 * C.warps + 32) short90_forward(NH_PARAMETERS(nh_short_args, nh_maps)) {
    NH_TAKE_MEMBER_AND_MAPS(nh_short_args, nh_maps)
    const nh_ring ring = nh_ring_of(args);
    const int warp = __shfl_sync(~0u, (int)threadIdx.x / 32, 0);
    nh_producer producer;
    if (threadIdx.x == 32 * C.warps) {
        nh_prefetch_map(&maps.k);
        nh_prefetch_map(&maps.q);
        nh_prefetch_map(&maps.v);
        for (int i = 0; i < ring.count; i++) {
            nh_barrier_init(ring.full + 8 * i, 1);
            nh_barrier_init(ring.free + 8 * i, 32 * (ring.own_rows / 16));
        }
        nh_barrier_init_done();
        producer.place = nh_place_of(args, producer.number);
        nh_fetch(args, maps, ring, producer);
    } else if (warp < C.warps) {
        nh_clear_values(args, ring);
        const nh_group longest = nh_group_of_kind(args, 0);
        nh_columns_fill(nh_extents_of(args, 0), &longest, ring.columns);
    }
    __syncthreads();
    if (warp < C.warps) {
        nh_consume(args, ring, warp);
    } else if (threadIdx.x == 32 * C.warps) {
        nh_fetch_rest(args, maps, ring, producer);
    }
}
