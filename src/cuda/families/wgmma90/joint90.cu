/* dQ, dK and dV of the backward pass for sm_90 with five products: those of fused90_key.cuh, and from the same dS dQ +=
 * dS K for the queries of the loop. Each warpgroup writes dS of its keys to shared memory; the tile's dQ, a sum over
 * the keys of both, is divided between them. dQ goes through shared memory to the copy engine, which adds it to f32
 * sums of all blocks, in no fixed order, so that results differ in rounding from run to run. In one dimension sums are
 * stored first (joint90_sums.cuh).
 *
 * Sums: [B H, X', Y', Z', columns]. An axis holds the queries of one dilation group after the other, each as long as
 * the longest, so that a loop tile is a box; it may reach into the groups beside, to which it adds zeros. A loop that
 * goes around a periodic axis may start before it. There the axis has additional room for a tile less one row, since
 * boxes that the copy engine adds must not start at negative coordinates, unlike boxes that it fetches. Columns of a
 * row are permuted (store_d_q): see joint90_convert.cu. */
#include "joint90_sums.cuh"
#include "overlap.cuh"

namespace nh_wgmma90 {

/* Columns of dQ that are computed, and D_Q_PARTS: whether the two warpgroups share 64 queries, or have 64 each. */
constexpr int D_Q_COLUMNS = wgmma90_d_q_columns(&C), D_Q_PARTS = 128 / LOOP_ROWS, D_Q_N = D_Q_COLUMNS / D_Q_PARTS;
static_assert(C.warpgroups == 2 && LOOP_ROWS % 64 == 0, "64 or 128 queries between two warpgroups");

/* dS: rows are queries, chunks the 64 keys of one warpgroup. One buffer is read while the other is written. */
constexpr int D_S_BYTES = wgmma90_d_s_bytes(&C), D_S_CHUNK = D_S_BYTES / C.warpgroups;
/* dQ: rows are queries, chunks are 32 columns. */
constexpr int D_Q_CHUNK = LOOP_ROWS * 128, D_Q_CHUNKS = D_Q_COLUMNS / 32;
constexpr int MAP_D_Q = KEY_MAPS * MAP_VARIANTS;

struct maps {
    nh_tensor_map map[MAP_D_Q + 1];
};

NH_DEVICE unsigned d_s_at(const layout &s, unsigned n) {
    return s.d_s + n % 2 * D_S_BYTES;
}

NH_DEVICE unsigned d_s_full(const layout &s, unsigned n) {
    return s.d_s_full + n % 2 * 8;
}

NH_DEVICE void init_barriers(const layout &s) {
    init_key_barriers(s);
    nh_barrier_init(d_s_full(s, 0), 4 * C.warpgroups);
    nh_barrier_init(d_s_full(s, 1), 4 * C.warpgroups);
    nh_barrier_init(s.d_q_full, 4 * C.warpgroups);
    nh_barrier_init(s.d_q_free, 1);
    init_queue(s, 128 * C.warpgroups + 1);
}

/* ---- the thread that adds dQ to the sums ---- */

/* The start of the loop along an axis of the sums or, for a part of a grid, what to add to positions of its group. */
template <class Args, class WorkTile>
NH_DEVICE int sums_start(const Args &args, const WorkTile &work_tile, int a) {
    const nh_cuda_axis &axis = args.axis[a];
    if (a < FIRST_AXIS) return 0;
    if constexpr (NH_REGIONS) {
        const int extent[3] = {C.loop[0], C.loop[1], C.loop[2]}, before = nh_wraps(a) ? extent[a] - 1 : 0;
        const int longest = nh_axis_group_length((int)args.region[a].query.length, (int)NH_DILATION(axis), 0);
        return before + work_tile.group[a] * longest - (int)work_tile.columns[a].begin;
    } else {
        return work_tile.group[a] * nh_axis_group_length((int)axis.length, (int)axis.dilation, 0) + work_tile.halo[a];
    }
}

/* The coordinate in the sums of the n-th tile of the loop along an axis; start: sums_start of the axis. */
NH_DEVICE int place_in_sums(const nh_work_tile &work_tile, int start, int a, int n) {
    const int extent[3] = {C.loop[0], C.loop[1], C.loop[2]};
    if (!NH_REGIONS) return start + n * extent[a];
    return start + nh_wrapped(work_tile, a, n, work_tile.halo[a] + n * extent[a]);
}

NH_DEVICE void write_out(const nh_tiled_args &args, const maps &maps, const layout &s) {
    int share = (int)(args.heads / args.kv_heads);
    unsigned n = 0;
    nh_work_tile work_tile;
    for (int round = 0, index; (index = take_work_tile(s, round, work_tile)) < args.tiling.work_tiles; round++) {
        if (!TWO_PLACES) locate(args, index, work_tile);
        const int first_tile = work_tile.halo[2] / C.loop[2], stored = STORES_FIRST ? stored_tiles(args, work_tile) : 0;
        int x = sums_start(args, work_tile, 0), y = sums_start(args, work_tile, 1), z = sums_start(args, work_tile, 2);
        int head = (work_tile.batch * (int)args.kv_heads + work_tile.head) * share, tile[3] = {0, 0, 0};
#pragma unroll 1
        for (int left = share * work_tile.tiles[0] * work_tile.tiles[1] * work_tile.tiles[2]; left > 0; left--, n++) {
            const bool store = STORES_FIRST && tile[2] < stored;
            unsigned *const is_stored = STORES_FIRST ? stored_word(args, head, first_tile + tile[2]) : nullptr;
            if (STORES_FIRST && !store) wait_for_store(is_stored);
            nh_barrier_wait(s.d_q_full, n & 1);
            NH_UNROLL for (int chunk = 0; chunk < D_Q_CHUNKS; chunk++) {
                const int at[5] = {32 * chunk, place_in_sums(work_tile, z, 2, tile[2]),
                                   place_in_sums(work_tile, y, 1, tile[1]), place_in_sums(work_tile, x, 0, tile[0]),
                                   head};
                if (store) {
                    nh_store_box(&maps.map[MAP_D_Q], at, s.d_q + chunk * D_Q_CHUNK);
                } else {
                    nh_add_box(&maps.map[MAP_D_Q], s.d_q + chunk * D_Q_CHUNK, at);
                }
            }
            nh_add_boxes_done();
            nh_barrier_arrive(s.d_q_free);
            if (store) tell_stored(is_stored);
            next_tile(work_tile, tile);
            if (tile[0] < work_tile.tiles[0]) continue;
            tile[0] = 0;
            head++;
        }
    }
}

NH_DEVICE void produce(const nh_tiled_args &args, const maps &maps, const layout &s) {
    if (threadIdx.x == 0) {
        nh_work_tile located;
        fetch_work_tiles(
            args, maps, s,
            [&](int n) {
                if constexpr (TWO_PLACES) return claim_and_locate(args, s, n, located);
                return STORES_FIRST ? claim_last(args, s, n) : claim_work_tile(args, s, n);
            },
            [&](int index, nh_work_tile &work_tile) {
                if constexpr (TWO_PLACES) {
                    work_tile = located;
                } else {
                    locate(args, index, work_tile);
                }
            });
    } else {
        write_out(args, maps, s);
    }
}

/* ---- consumers ---- */

/* Stores dS of this warp's 16 keys, transposed: lane l addresses row l % 8 of the 8x8 matrix l / 8. */
NH_DEVICE void store_d_s(unsigned to, unsigned *d_s) {
    int lane = threadIdx.x & 31, warp = threadIdx.x / 32 & 3;
    int query = lane / 16 * 8 + lane % 8, unit = 2 * warp + lane / 8 % 2;
    to += query * 128 + ((unit ^ (query & 7)) << 4);
    NH_UNROLL for (int i = 0; i < LOOP_ROWS / 16; i++)
        nh_store_matrices_across(to + i * 16 * 128, d_s + 4 * i);
}

/* dQ = dS K: 64 x D_Q_N. */
NH_DEVICE void issue_d_q(float *d_q, unsigned long long d_s, unsigned long long k) {
    NH_UNROLL for (int i = 0; i < OWN_ROWS / 16; i++) {
        unsigned long long a = d_s + i / 4 * (D_S_CHUNK >> 4) + i % 4 * 2, b = k + i * (16 * chunk_bytes(C.dim) >> 4);
        if (i == 0) {
            nh_wgmma_shared<D_Q_N, 0, 1>(d_q, a, b);
        } else {
            nh_wgmma_shared<D_Q_N, 1, 1>(d_q, a, b);
        }
    }
    nh_wgmma_commit();
}

/* Stores dQ to shared memory. Of 16 columns, lane t of four holds 2t, 2t + 1, 2t + 8 and 2t + 9. They are written to
 * unit 2t of 8 units of 16 bytes, and those of the next 16 columns to unit 2t + 1. */
NH_DEVICE void store_d_q(unsigned to, const float *d_q, int warpgroup) {
    int row = 64 * (warpgroup / D_Q_PARTS) + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    int part = warpgroup % D_Q_PARTS, t = threadIdx.x & 3;
    NH_UNROLL for (int i = 0; i < D_Q_N / 16; i++) {
        int run = part * (D_Q_N / 16) + i;
        unsigned at = to + run / 2 * D_Q_CHUNK + row * 128 + (((2 * t + run % 2) ^ (row & 7)) << 4);
        nh_store_shared(at, d_q[8 * i], d_q[8 * i + 1], d_q[8 * i + 4], d_q[8 * i + 5]);
        nh_store_shared(at + 8 * 128, d_q[8 * i + 2], d_q[8 * i + 3], d_q[8 * i + 6], d_q[8 * i + 7]);
    }
}

/* Passes the n-th tile's dQ to the thread that adds it to the sums. */
NH_DEVICE void pass_on_d_q(const layout &s, const float *d_q, int warpgroup, unsigned n) {
    nh_barrier_wait(s.d_q_free, n & 1 ^ 1);
    store_d_q(s.d_q, d_q, warpgroup);
    nh_show_shared();
    release_warp(s.d_q_full);
}

/* A descriptor of the columns of K from which this warpgroup computes its part of dQ. */
NH_DEVICE unsigned long long keys_across(const layout &s, int warpgroup) {
    int column = warpgroup % D_Q_PARTS * D_Q_N, chunk = chunk_columns(C.dim);
    unsigned at = s.k + column / chunk * (OWN_ROWS * chunk_bytes(C.dim)) + column % chunk * 2;
    return nh_descriptor(at, chunk_bytes(C.dim), OWN_ROWS * chunk_bytes(C.dim));
}

/* With TWO_PLACES, a warpgroup's own rows are in registers, which products would read from shared memory once more for
 * every tile: so many steps of 16 columns. */
constexpr int HELD_K = TWO_PLACES ? C.dim / 16 : 0, HELD_V = TWO_PLACES ? C.dim_v / 16 : 0;

struct held_rows {
    unsigned k[HELD_K ? 4 * HELD_K : 1], v[HELD_V ? 4 * HELD_V : 1];
};

/* Loads the first steps of a warpgroup's rows of a tile. Lane l addresses row l % 8 of the 8x8 matrix l / 8: rows 0-7
 * and 8-15 of 8 columns, twice. */
template <int DIM, int STEPS> NH_DEVICE void hold_rows(unsigned *held, unsigned tile, int warpgroup) {
    const int lane = threadIdx.x & 31, row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (lane & 15);
    const int turn = chunk_bytes(DIM) == 128 ? row & 7 : row >> 1 & 3; /* of the swizzle */
    constexpr int per_chunk = chunk_columns(DIM) / 16;
    NH_UNROLL for (int i = 0; i < STEPS; i++) {
        const int part = i % per_chunk * 2 + lane / 16;
        const unsigned chunk = tile + i / per_chunk * (OWN_ROWS * chunk_bytes(DIM));
        nh_load_matrices_at(held + 4 * i, chunk + row * chunk_bytes(DIM) + ((part ^ turn) << 4));
    }
}

/* issue_rows with the first steps of A in registers. */
template <int DIM, int STEPS>
NH_DEVICE void issue_held_rows(float *to, unsigned *held, unsigned long long a, unsigned long long b) {
    constexpr int per_chunk = chunk_columns(DIM) / 16;
    NH_UNROLL for (int i = 0; i < DIM / 16; i++) {
        const int chunk = i / per_chunk, step = i % per_chunk * 2;
        const unsigned long long ai = a + chunk * (OWN_ROWS * chunk_bytes(DIM) >> 4) + step,
                                 bi = b + chunk * (LOOP_COLUMNS * chunk_bytes(DIM) >> 4) + step;
        if (i == 0 && STEPS > 0) {
            nh_wgmma_held<LOOP_COLUMNS, 0, 0>(to, held, bi);
        } else if (i == 0) {
            nh_wgmma_shared<LOOP_COLUMNS, 0, 0>(to, ai, bi);
        } else if (i < STEPS) {
            nh_wgmma_held<LOOP_COLUMNS, 1, 0>(to, held + 4 * i, bi);
        } else {
            nh_wgmma_shared<LOOP_COLUMNS, 1, 0>(to, ai, bi);
        }
    }
    nh_wgmma_commit();
}

/* In three dimensions, masks need so many registers that none are left for weights before they are rounded. So dS is
 * computed from rounded weights, which are needed for dV in any case, and dV can start before dP is there. */
constexpr bool ROUNDED_WEIGHTS = C.rank == 3;

NH_DEVICE float2 unpack(unsigned both) {
    return make_float2(nh_load((elem)both), nh_load((elem)(both >> 16)));
}

/* Like pack_d_s of fused90_key.cuh, but from rounded weights. */
NH_DEVICE void pack_d_s(unsigned *packed, const unsigned *weight, const float *d_p, unsigned own) {
    NH_UNROLL for (int j = 0; j < LOOP_ROWS / 8; j++) {
        float even = stats_of_column(own, 8 * j).y, odd = stats_of_column(own, 8 * j + 1).y;
        NH_UNROLL for (int half = 0; half < 2; half++) {
            float2 p = unpack(weight[2 * j + half]);
            const float *pair = d_p + 4 * j + 2 * half;
            packed[2 * j + half] = nh_pack(p.x * (pair[0] - even), p.y * (pair[1] - odd));
        }
    }
}

/* A warpgroup, the factor from its products to scores in base 2, the columns of K for its part of dQ, and the barrier
 * that releases the owned tiles. */
struct consumer {
    int warpgroup;
    float scale;
    unsigned long long k_across;
    unsigned own_free;
};

/* Processes tile n of this block's loops; after the last of a work tile the owned tiles are released. */
template <class StoreDV>
NH_DEVICE void take_tile(const nh_tiled_args &args, const layout &s, const kv_loop &loop, unsigned n, bool last,
                         const consumer &my, key_rows &r, held_rows &held, StoreDV store_d_v) {
    unsigned q_tile = stage_at(s, n), d_o_tile = q_tile + Q_BYTES, stats = own_stats(stats_at(s, n));
    unsigned long long d_o = nh_descriptor(d_o_tile, chunk_bytes(C.dim_v), LOOP_ROWS * chunk_bytes(C.dim_v));
    unsigned weight[SCORES / 2], d_s[SCORES / 2];
    float score[SCORES], d_p[SCORES], d_q[D_Q_N / 2];
    nh_barrier_wait(s.full + 8 * slot(n), phase(n));
    nh_wgmma_fence();
    issue_held_rows<C.dim, HELD_K>(score, held.k, r.k, nh_descriptor(q_tile, chunk_bytes(C.dim), 16));
    issue_held_rows<C.dim_v, HELD_V>(d_p, held.v, r.v, nh_descriptor(d_o_tile, chunk_bytes(C.dim_v), 16));
    nh_wgmma_wait<1>();
    mask_tile(args, loop, score);
    weigh(score, stats, my.scale);
    pack_weights(weight, score);
    if (ROUNDED_WEIGHTS) {
        nh_wgmma_fence();
        issue_d_v(r.d_v, weight, d_o);
    }
    nh_wgmma_wait<ROUNDED_WEIGHTS>();
    if (ROUNDED_WEIGHTS) {
        pack_d_s(d_s, weight, d_p, stats);
    } else {
        pack_d_s(d_s, score, d_p, stats);
    }
    store_d_s(d_s_at(s, n) + my.warpgroup * D_S_CHUNK, d_s);
    nh_show_shared();
    release_warp(d_s_full(s, n));
    if (!ROUNDED_WEIGHTS) {
        nh_wgmma_fence();
        issue_d_v(r.d_v, weight, d_o);
    }
    nh_barrier_wait(d_s_full(s, n), n / 2 & 1);
    nh_wgmma_fence();
    issue_d_q(d_q, nh_descriptor(d_s_at(s, n) + my.warpgroup / D_Q_PARTS * 64 * 128, 128, 16), my.k_across);
    issue_d_k(r.d_k, d_s, nh_descriptor(q_tile, chunk_bytes(C.dim), LOOP_ROWS * chunk_bytes(C.dim)));
    nh_wgmma_wait<1>();
    if (last) release(my.own_free);
    pass_on_d_q(s, d_q, my.warpgroup, n);
    if (TWO_PLACES && last) store_d_v();
    nh_wgmma_wait<0>();
    release_warp(s.free + 8 * slot(n));
}

/* Points at the place of a block's n-th work tile, waits for it and loads what is held. */
NH_DEVICE void begin_own(const layout &s, unsigned n, consumer &my, key_rows &r, held_rows &held) {
    const unsigned place = own_place(n), k = place * K_BYTES, v = place * V_BYTES;
    if (C.own_places > 1) {
        key_rows_set(r, s, my.warpgroup);
        r.k += k >> 4;
        r.v += v >> 4;
        my.k_across = keys_across(s, my.warpgroup) + (k >> 4);
        my.own_free = s.own_free + 8 * place;
    }
    nh_barrier_wait(s.own_full + 8 * place, own_phase(n));
    hold_rows<C.dim, HELD_K>(held.k, s.k + k, my.warpgroup);
    hold_rows<C.dim_v, HELD_V>(held.v, s.v + v, my.warpgroup);
}

NH_DEVICE void consume(const nh_tiled_args &args, const layout &s, int warpgroup) {
    int row = 64 * warpgroup + (threadIdx.x / 32 & 3) * 16 + (threadIdx.x & 31) / 4;
    int group_heads = (int)(args.heads / args.kv_heads);
    consumer my = {warpgroup, (float)(args.scale * NH_LOG2E), keys_across(s, warpgroup), s.own_free};
    unsigned n = 0;
    nh_work_tile work_tile;
    kv_loop loop;
    key_rows r;
    key_rows_set(r, s, warpgroup);
    for (int round = 0, index; (index = take_work_tile(s, round, work_tile)) < args.tiling.work_tiles; round++) {
        if (!TWO_PLACES) locate(args, index, work_tile);
        float zero = 0; /* or NaN, if a sum is not finite */
        held_rows held;
        kv_loop_begin(args, work_tile, warpgroup, row, loop);
        key_rows_clear(r);
        begin_own(s, (unsigned)round, my, r, held);
        for (int left = group_heads * (loop.last + 1); left > 0; left--, n++) {
            take_tile(args, s, loop, n, left == 1, my, r, held, [&] {
                finish_rows<C.dim_v>(args, work_tile, NH_D_V, row, r.d_v, 1);
                zero = doubt<C.dim_v / 2>(r.d_v);
            });
            advance(loop, work_tile);
            if (loop.t > loop.last) kv_loop_restart(loop);
        }
        if (TWO_PLACES) {
            finish_rows<C.dim>(args, work_tile, NH_D_K, row, r.d_k, (float)args.scale);
            zero += doubt<C.dim / 2>(r.d_k);
        } else {
            zero = finish_keys(args, work_tile, row, r);
        }
        if (zero != 0) note_repair(args);
    }
}

} // namespace nh_wgmma90

using namespace nh_wgmma90;

extern "C" __global__ void __launch_bounds__(THREADS, 1)
    joint90(NH_PARAMETERS(nh_tiled_args, struct maps)) {
    NH_TAKE_MEMBER_AND_MAPS(nh_tiled_args, struct maps)
    nh_follow_launches();
    run_block<2>(args, maps);
}
