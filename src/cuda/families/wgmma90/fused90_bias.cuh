/* Relative bias of scores. A pair of tiles only needs a small box of its head's table: an entry for every distance
 * between an owned row and a row of the loop. The helper warps copy that box to shared memory as f32, into a stage of a
 * ring for each loop tile. The entry of a pair is at the column's place, a compile-time constant, less the row's.
 * Tables go from query to key: if owned rows are keys, boxes are reversed. Heads that share a tile have one each. */
#pragma once
#include "fused90_kv_loop.cuh"

namespace nh_wgmma90 {

constexpr int BIAS_X = wgmma90_bias_extent(&C, 0), BIAS_Y = wgmma90_bias_extent(&C, 1),
              BIAS_Z = wgmma90_bias_extent(&C, 2), BIAS_ENTRIES = BIAS_X * BIAS_Y * BIAS_Z, BIAS_WARPS = 3;

/* Lanes of the helpers and of the consumers. At barriers for what lanes read and write on their own, all arrive: one
 * for its warp after a __syncwarp would be slower, and compute-sanitizer's racecheck could not follow it. */
constexpr int BIAS_LANES = 32 * BIAS_WARPS, CONSUMER_LANES = 128 * C.warpgroups;

/* Entries that a thread copies, and how many of them it loads before it stores the first. */
constexpr int BIAS_MOST_BATCH = C.kernel != WGMMA90_FORWARD || C.own_heads > 1 ? 4 : 1;
constexpr int BIAS_ROUNDS = (C.own_heads * BIAS_ENTRIES + BIAS_LANES - 1) / BIAS_LANES;
__device__ constexpr int bias_batch(int most) {
    const int batches = (BIAS_ROUNDS + most - 1) / most;
    return (BIAS_ROUNDS + batches - 1) / batches;
}

/* Unless heads share a tile, a thread's two rows are of one head and have most of their entries at the same places. */
constexpr bool BIAS_PAIRED = C.own_heads == 1;
static_assert(!C.biased || !BIAS_PAIRED || WARPGROUP_Z % 16 == 0 || (WARPGROUP_Z == 8 && WARPGROUP_Y % 2 == 0),
              "a warp's rows are two runs of 8 along z, a step apart along z or y");

/* A box is stored twice, the second time shifted by one place: any two consecutive entries can be loaded at once. */
constexpr int BIAS_LINE = wgmma90_bias_line(&C), BIAS_COPY = wgmma90_bias_copy(&C),
              BIAS_HEAD_BYTES = wgmma90_bias_head_bytes(&C), BIAS_BYTES = wgmma90_bias_bytes(&C);

/* Rows and columns are runs of 8 along z, and entries depend on the distance of runs. A warp's second run of rows is a
 * step from the first, along z or y, so its distances are the first's shifted by one: instead of twice the runs of
 * columns there are PARTS, one more along that axis than runs. If heads share a tile, both have the same. */
constexpr int PAIRED_Z = wgmma90_paired_z(&C), PAIRED_Y = wgmma90_paired_y(&C), PART_Y = C.loop[1] + PAIRED_Y,
              PART_Z = RUNS + PAIRED_Z, PARTS = C.loop[0] * PART_Y * PART_Z;

/* The run of columns at a part's distance from the first (half 0) or second run of rows; -1: there is none. */
NH_DEVICE constexpr int part_columns(int part, int half) {
    int x = part / (PART_Y * PART_Z), y = part / PART_Z % PART_Y, z = part % PART_Z;
    if (!half) {
        y -= PAIRED_Y;
        z -= PAIRED_Z;
    }
    bool inside = y >= 0 && y < C.loop[1] && z >= 0 && z < RUNS;
    return inside ? (x * C.loop[1] + y) * RUNS + z : -1;
}

NH_DEVICE void init_bias_ring(unsigned full, unsigned free) {
    for (int i = 0; i < C.stages; i++) {
        nh_barrier_init(full + 8 * i, BIAS_LANES);
        nh_barrier_init(free + 8 * i, CONSUMER_LANES);
    }
}

/* The bias box of a pair of tiles: the (first) head of its table, and the table's entry at a place of the box, which is
 * first[a] + place along each axis. */
struct bias_box {
    int head, first[3];
};

NH_DEVICE bias_box bias_box_of(const nh_tiled_args &args, const nh_work_tile &work_tile, int head, const int tile[3]) {
    const int own[3] = {C.own[0], C.own[1], C.own[2]}, extent[3] = {C.loop[0], C.loop[1], C.loop[2]};
    bias_box box = {head, {0, 0, 0}};
    NH_UNROLL for (int a = FIRST_AXIS; a < 3; a++)
        box.first[a] =
            work_tile.halo[a] + tile[a] * extent[a] - (work_tile.own[a] + own[a] - 1) + (int)args.axis[a].window - 1;
    return box;
}

/* The entry of a head's table at a place of the box (of BIAS_ENTRIES, z fastest); negative if there is none. */
NH_DEVICE int bias_entry(const nh_tiled_args &args, const bias_box &box, int place) {
    const int at[3] = {place / (BIAS_Z * BIAS_Y), place / BIAS_Z % BIAS_Y, place % BIAS_Z};
    bool inside = true;
    int entry = 0;
    NH_UNROLL for (int a = FIRST_AXIS; a < 3; a++) {
        int entries = 2 * (int)args.axis[a].window - 1, distance = box.first[a] + at[a];
        inside = inside && (unsigned)distance < (unsigned)entries;
        entry = entry * entries + (T.inverse ? entries - 1 - distance : distance);
    }
    return inside ? entry : -1;
}

NH_DEVICE long long bias_entries(const nh_tiled_args &args) {
    long long entries = 1;
    NH_UNROLL for (int a = FIRST_AXIS; a < 3; a++)
        entries *= 2 * args.axis[a].window - 1;
    return entries;
}

NH_DEVICE void store_bias(unsigned to, float bias) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(bias) : "memory");
}

/* The head of a place among those of all boxes of a pair of tiles. */
NH_DEVICE int head_of_place(int index) {
    return C.own_heads > 1 ? index / BIAS_ENTRIES : 0;
}

/* Copies the boxes of a pair of tiles; called by BIAS_WARPS warps, from the second of the block on. Entries that the
 * table does not have belong to masked pairs. */
NH_DEVICE void lay_bias(const nh_tiled_args &args, const bias_box &box, unsigned to) {
    enum { BATCH = bias_batch(BIAS_MOST_BATCH) };
    const elem *table = (const elem *)args.tensor[NH_BIAS].data + box.head * bias_entries(args);
#pragma unroll 1
    for (int first = (int)threadIdx.x - 32; first < C.own_heads * BIAS_ENTRIES; first += BATCH * BIAS_LANES) {
        float bias[BATCH];
        NH_UNROLL for (int i = 0; i < BATCH; i++) {
            int index = first + i * BIAS_LANES, head = head_of_place(index), place = index - head * BIAS_ENTRIES;
            int entry = bias_entry(args, box, place);
            bool inside = entry >= 0 && index < C.own_heads * BIAS_ENTRIES;
            bias[i] = inside ? nh_load(table[head * bias_entries(args) + entry]) : 0;
        }
        NH_UNROLL for (int i = 0; i < BATCH; i++) {
            int index = first + i * BIAS_LANES, head = head_of_place(index), place = index - head * BIAS_ENTRIES;
            unsigned at = to + head * BIAS_HEAD_BYTES + 4 * (place + place / BIAS_Z);
            if (index >= C.own_heads * BIAS_ENTRIES) continue;
            store_bias(at, bias[i]);
            store_bias(at + 4 * (BIAS_COPY + 1), bias[i]);
        }
    }
}

/* Copies the boxes of all this block's work tiles, in the order of their loops. Calls then(box, seen) after each; seen:
 * the tile is one of the window, and not of extra tokens, which have no bias. */
template <class Then> NH_DEVICE void lay_biases(const nh_tiled_args &args, const layout &s, Then then) {
    int group_heads = T.inverse ? (int)(args.heads / args.kv_heads) : 1;
    unsigned n = 0;
    nh_work_tile work_tile;
    for (int round = 0, index; (index = nh_work_tile_index<T>(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at<T>(args, index, work_tile);
        int window_tiles = window_tiles_of(work_tile);
        int tiles = window_tiles + (C.extra && !T.inverse ? args.tiling.extra_tiles : 0);
        for (int head = work_tile.head * group_heads; head < (work_tile.head + 1) * group_heads; head++) {
            int tile[3] = {0, 0, 0};
            for (int t = 0; t < tiles; t++, n = next(n)) {
                bias_box box = bias_box_of(args, work_tile, head, tile);
                nh_barrier_wait(s.bias_free + 8 * slot(n), phase(n) ^ 1);
                if (t < window_tiles) lay_bias(args, box, s.bias + slot(n) * BIAS_BYTES);
                nh_barrier_arrive(s.bias_full + 8 * slot(n));
                then(box, t < window_tiles);
                next_tile(work_tile, tile);
            }
        }
    }
}

/* Byte offset, from the first box, of the entries of a row for this thread's first two columns. */
NH_DEVICE unsigned bias_place_of_row(int row) {
    int at[3];
    nh_row_position<T>(row, at);
    int line = (C.own[0] - 1 - at[0]) * BIAS_Y + C.own[1] - 1 - at[1], z = C.own[2] - 1 - at[2];
    return row % C.own_heads * BIAS_HEAD_BYTES +
           4 * (line * BIAS_LINE + z + z % 2 * (BIAS_COPY + 1) + 2 * (threadIdx.x & 3));
}

/* The same for a thread's two rows; with BIAS_PAIRED only the first is needed. */
struct bias_places {
    unsigned row[2];
};

NH_DEVICE bias_places bias_places_of(int row) {
    return {bias_place_of_row(row), bias_place_of_row(row + 8)};
}

NH_DEVICE float2 load_pair(unsigned from) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(from));
    return pair;
}

/* Turns products into scores with the entries of the boxes at `box`. */
NH_DEVICE void add_bias(float *score, float scale, unsigned box, const bias_places &place) {
    NH_UNROLL for (int part = 0; part < PARTS; part++) {
        int x = part / (PART_Y * PART_Z), y = part / PART_Z % PART_Y - PAIRED_Y, z = part % PART_Z - PAIRED_Z;
        unsigned from = box + 4 * ((x * BIAS_Y + y) * BIAS_LINE + 8 * z);
        float2 bias = load_pair(from + place.row[0]);
        NH_UNROLL for (int half = 0; half < 2; half++) {
            int run = part_columns(part, half);
            if (run < 0) continue;
            if (!BIAS_PAIRED && half) bias = load_pair(from + place.row[1]);
            float *s = score + 4 * run + 2 * half;
            s[0] = fmaf(s[0], scale, bias.x);
            s[1] = fmaf(s[1], scale, bias.y);
        }
    }
}

/* Releases a box that is not needed, as soon as it has been written. */
NH_DEVICE void pass_over_bias(const layout &s, unsigned n) {
    if (!C.biased) return;
    nh_barrier_wait(s.bias_full + 8 * slot(n), phase(n));
    nh_barrier_arrive(s.bias_free + 8 * slot(n));
}

/* Turns the products of tile n into scores. Without a bias it does nothing. */
NH_DEVICE void bias_scores(const nh_tiled_args &args, const layout &s, const kv_loop &loop, unsigned n,
                           const bias_places &place, float *score) {
    if (!C.biased) return;
    unsigned box = s.bias + slot(n) * BIAS_BYTES;
    nh_barrier_wait(s.bias_full + 8 * slot(n), phase(n));
    if (of_window(loop)) {
        add_bias(score, (float)args.scale, box, place);
    } else {
        NH_UNROLL for (int i = 0; i < LOOP_ROWS / 2; i++)
            score[i] *= (float)args.scale;
    }
    nh_barrier_arrive(s.bias_free + 8 * slot(n));
}

} // namespace nh_wgmma90
