/* Relative bias of scores. A pair of tiles needs no more than a small box of its head's table: an entry for every
 * distance between an owned row and one of the loop. The warps that fetch nothing lay that box down in shared memory as
 * f32, a slot of a ring for each loop tile; an owned row and a column of that find their entry there at the place of
 * the column minus that of the row, of which the former is known when the kernel is compiled. The table goes from query
 * to key: where owned rows are keys, the box is laid down backwards. Heads that share a tile have a box each, one after
 * the other. */
#pragma once
#include "fused90_kv_loop.cuh"

#define BIAS_X (NH_OWN_X + NH_LOOP_X - 1)
#define BIAS_Y (NH_OWN_Y + NH_LOOP_Y - 1)
#define BIAS_Z (NH_OWN_Z + NH_LOOP_Z - 1)
#define BIAS_ENTRIES (BIAS_X * BIAS_Y * BIAS_Z)
#define BIAS_WARPS 3

/* Lanes of the block's two parts. At barriers for what lanes read and write on their own they all arrive: one lane that
 * does for its warp takes a __syncwarp before, which is slower, and compute-sanitizer's racecheck cannot follow it. */
#define BIAS_LANES (32 * BIAS_WARPS)
#define CONSUMER_LANES (128 * NH_WARPGROUPS)

/* Entries of a thread, and how many it asks for before it writes the first. */
#ifndef BIAS_MOST_BATCH
#define BIAS_MOST_BATCH (NH_OWN_HEADS > 1 ? 4 : 1)
#endif
#define BIAS_ROUNDS ((NH_OWN_HEADS * BIAS_ENTRIES + BIAS_LANES - 1) / BIAS_LANES)
#define BIAS_BATCHES(most) ((BIAS_ROUNDS + (most) - 1) / (most))
#define BIAS_BATCH(most) ((BIAS_ROUNDS + BIAS_BATCHES(most) - 1) / BIAS_BATCHES(most))
/* A thread's two rows are of one head, and find most of their entries at the same places. */
#define BIAS_PAIRED (NH_OWN_HEADS == 1)
#if NH_BIASED && BIAS_PAIRED && (WARPGROUP_Z != 8 && WARPGROUP_Z % 16 || WARPGROUP_Z == 8 && WARPGROUP_Y % 2)
#error "a warp's rows are two runs of 8 along z, a step apart along z or y"
#endif

/* A box twice, the second time one place further, so that two entries in a row can be loaded at once wherever they
 * start; lines are even and copies half of the banks apart, boxes of several heads a quarter. */
#define BIAS_LINE (BIAS_Z + 1)
#define BIAS_COPY ((BIAS_X * BIAS_Y * BIAS_LINE + 16) / 32 * 32 + 16)
#define BIAS_HEAD_BYTES (4 * (2 * BIAS_COPY + (NH_OWN_HEADS > 1 ? 8 : 0)))
#define BIAS_BYTES (NH_OWN_HEADS * BIAS_HEAD_BYTES)

/* Rows and columns are runs of 8 along z, and entries depend on the distance of runs. A warp's second run of rows is a
 * step from the first, along z or y: what is at one distance from it is at the next from the first, so that instead of
 * twice the runs of columns there are PARTS, one more along that axis. Where heads share a tile, the two are as far
 * from all. */
#define PAIRED_Z (BIAS_PAIRED && WARPGROUP_Z > 8)
#define PAIRED_Y (BIAS_PAIRED && !PAIRED_Z)
#define PART_Y (NH_LOOP_Y + PAIRED_Y)
#define PART_Z (NH_RUNS + PAIRED_Z)
#define PARTS (NH_LOOP_X * PART_Y * PART_Z)

/* The run of columns that is at a part's distance from the first (half 0) or second run of rows; -1: there is none. */
__device__ __forceinline__ constexpr int part_columns(int part, int half) {
    int x = part / (PART_Y * PART_Z), y = part / PART_Z % PART_Y, z = part % PART_Z;
    if (!half) {
        y -= PAIRED_Y;
        z -= PAIRED_Z;
    }
    bool inside = y >= 0 && y < NH_LOOP_Y && z >= 0 && z < NH_RUNS;
    return inside ? (x * NH_LOOP_Y + y) * NH_RUNS + z : -1;
}

__device__ __forceinline__ void init_bias_ring(unsigned full, unsigned free) {
    for (int i = 0; i < NH_STAGES; i++) {
        nh_barrier_init(full + 8 * i, BIAS_LANES);
        nh_barrier_init(free + 8 * i, CONSUMER_LANES);
    }
}

/* The box of a pair of tiles: whose table (the first head's), and which entry a place of the box has, first[a] + place
 * on each axis. */
struct bias_box {
    int head, first[3];
};

__device__ __forceinline__ bias_box bias_box_of(const nh_tiled_args &args, const nh_work_tile &work_tile, int head,
                                                const int tile[3]) {
    const int own[3] = NH_OWN_TILE, extent[3] = NH_LOOP_TILE;
    bias_box box = {head, {0, 0, 0}};
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        box.first[a] =
            work_tile.halo[a] + tile[a] * extent[a] - (work_tile.own[a] + own[a] - 1) + (int)args.axis[a].window - 1;
    return box;
}

/* The entry of a head's table at a place of the box, of BIAS_ENTRIES with z fastest; negative if the table lacks it. */
__device__ __forceinline__ int bias_entry(const nh_tiled_args &args, const bias_box &box, int place) {
    const int at[3] = {place / (BIAS_Z * BIAS_Y), place / BIAS_Z % BIAS_Y, place % BIAS_Z};
    bool inside = true;
    int entry = 0;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int entries = 2 * (int)args.axis[a].window - 1, distance = box.first[a] + at[a];
        inside = inside && (unsigned)distance < (unsigned)entries;
        entry = entry * entries + (NH_INVERSE ? entries - 1 - distance : distance);
    }
    return inside ? entry : -1;
}

__device__ __forceinline__ long long bias_entries(const nh_tiled_args &args) {
    long long entries = 1;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        entries *= 2 * args.axis[a].window - 1;
    return entries;
}

__device__ __forceinline__ void store_bias(unsigned to, float bias) {
    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to), "f"(bias) : "memory");
}

/* The head of a place, of the places of all boxes of a pair of tiles. */
__device__ __forceinline__ int head_of_place(int index) {
    return NH_OWN_HEADS > 1 ? index / BIAS_ENTRIES : 0;
}

/* By BIAS_WARPS warps, from the second of the block on. Entries that the table lacks belong to masked pairs. */
__device__ __forceinline__ void lay_bias(const nh_tiled_args &args, const bias_box &box, unsigned to) {
    enum { BATCH = BIAS_BATCH(BIAS_MOST_BATCH) };
    const elem *table = (const elem *)args.tensor[NH_BIAS].data + box.head * bias_entries(args);
#pragma unroll 1
    for (int first = (int)threadIdx.x - 32; first < NH_OWN_HEADS * BIAS_ENTRIES; first += BATCH * BIAS_LANES) {
        float bias[BATCH];
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int index = first + i * BIAS_LANES, head = head_of_place(index), place = index - head * BIAS_ENTRIES;
            int entry = bias_entry(args, box, place);
            bool inside = entry >= 0 && index < NH_OWN_HEADS * BIAS_ENTRIES;
            bias[i] = inside ? nh_load(table[head * bias_entries(args) + entry]) : 0;
        }
#pragma unroll
        for (int i = 0; i < BATCH; i++) {
            int index = first + i * BIAS_LANES, head = head_of_place(index), place = index - head * BIAS_ENTRIES;
            unsigned at = to + head * BIAS_HEAD_BYTES + 4 * (place + place / BIAS_Z);
            if (index >= NH_OWN_HEADS * BIAS_ENTRIES) continue;
            store_bias(at, bias[i]);
            store_bias(at + 4 * (BIAS_COPY + 1), bias[i]);
        }
    }
}

/* All boxes of this block's work tiles, in the order of their loops. then(box, seen): after each; seen: it is of a tile
 * of the window, not of extra tokens, which have no bias. */
template <class Then>
__device__ __forceinline__ void lay_biases(const nh_tiled_args &args, unsigned ring, unsigned full, unsigned free,
                                           Then then) {
    int group_heads = NH_INVERSE ? (int)(args.heads / args.kv_heads) : 1;
    unsigned n = 0;
    nh_work_tile work_tile;
    for (int round = 0, index; (index = nh_work_tile_index(round)) < args.tiling.work_tiles; round++) {
        nh_work_tile_at(args, index, work_tile);
        int window_tiles = window_tiles_of(work_tile);
        int tiles = window_tiles + (NH_EXTRA && !NH_INVERSE ? args.tiling.extra_tiles : 0);
        for (int head = work_tile.head * group_heads; head < (work_tile.head + 1) * group_heads; head++) {
            int tile[3] = {0, 0, 0};
            for (int t = 0; t < tiles; t++, n = NEXT(n)) {
                bias_box box = bias_box_of(args, work_tile, head, tile);
                nh_barrier_wait(free + 8 * SLOT(n), PHASE(n) ^ 1);
                if (t < window_tiles) lay_bias(args, box, ring + SLOT(n) * BIAS_BYTES);
                nh_barrier_arrive(full + 8 * SLOT(n));
                then(box, t < window_tiles);
                next_tile(work_tile, tile);
            }
        }
    }
}

/* Where the entries of a row are for this thread's first two columns, in bytes from the first box. */
__device__ __forceinline__ unsigned bias_place_of_row(int row) {
    int at[3];
    nh_row_position(row, at);
    int line = (NH_OWN_X - 1 - at[0]) * BIAS_Y + NH_OWN_Y - 1 - at[1], z = NH_OWN_Z - 1 - at[2];
    return row % NH_OWN_HEADS * BIAS_HEAD_BYTES +
           4 * (line * BIAS_LINE + z + z % 2 * (BIAS_COPY + 1) + 2 * (threadIdx.x & 3));
}

/* The same for a thread's two rows; pairs need the first's only. */
struct bias_places {
    unsigned row[2];
};

__device__ __forceinline__ bias_places bias_places_of(int row) {
    return {bias_place_of_row(row), bias_place_of_row(row + 8)};
}

__device__ __forceinline__ float2 load_pair(unsigned from) {
    float2 pair;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(pair.x), "=f"(pair.y) : "r"(from));
    return pair;
}

/* Products become scores, by the entries of the boxes at `box`. */
__device__ __forceinline__ void add_bias(float *score, float scale, unsigned box, const bias_places &place) {
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        int x = part / (PART_Y * PART_Z), y = part / PART_Z % PART_Y - PAIRED_Y, z = part % PART_Z - PAIRED_Z;
        unsigned from = box + 4 * ((x * BIAS_Y + y) * BIAS_LINE + 8 * z);
        float2 bias = load_pair(from + place.row[0]);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int run = part_columns(part, half);
            if (run < 0) continue;
            if (!BIAS_PAIRED && half) bias = load_pair(from + place.row[1]);
            float *s = score + 4 * run + 2 * half;
            s[0] = fmaf(s[0], scale, bias.x);
            s[1] = fmaf(s[1], scale, bias.y);
        }
    }
}

/* Lets go of a box that is not needed; it must have been laid down. */
template <class Layout> __device__ __forceinline__ void pass_over_bias(const Layout &s, unsigned n) {
    if (!NH_BIASED) return;
    nh_barrier_wait(s.bias_full + 8 * SLOT(n), PHASE(n));
    nh_barrier_arrive(s.bias_free + 8 * SLOT(n));
}

/* Products of tile n become scores, for a layout with members bias, bias_full and bias_free. Without a bias they stay
 * what they are. */
template <class Layout>
__device__ __forceinline__ void bias_scores(const nh_tiled_args &args, const Layout &s, const kv_loop &loop, unsigned n,
                                            const bias_places &place, float *score) {
    if (!NH_BIASED) return;
    unsigned box = s.bias + SLOT(n) * BIAS_BYTES;
    nh_barrier_wait(s.bias_full + 8 * SLOT(n), PHASE(n));
    if (of_window(loop)) {
        add_bias(score, (float)args.scale, box, place);
    } else {
#pragma unroll
        for (int i = 0; i < NH_LOOP_ROWS / 2; i++)
            score[i] *= (float)args.scale;
    }
    nh_barrier_arrive(s.bias_free + 8 * SLOT(n));
}
