/* Relative bias of scores. A pair of tiles needs no more than a small box of its head's table: an entry for every distance
 * between an owned row and a walked one. The warps that fetch nothing lay that box down in shared memory as f32, a slot
 * of a ring for each walked tile; an owned row and a walked column find their entry there at the place of the column
 * minus that of the row, of which the former is known when the kernel is compiled. The table goes from query to key: where
 * owned rows are keys, the box is laid down backwards. */
#pragma once
#include "fused90.cuh"

#define BIAS_X (NH_OWN_X + NH_WALK_X - 1)
#define BIAS_Y (NH_OWN_Y + NH_WALK_Y - 1)
#define BIAS_Z (NH_OWN_Z + NH_WALK_Z - 1)
#define BIAS_ENTRIES (BIAS_X * BIAS_Y * BIAS_Z)
#define BIAS_BYTES ((4 * BIAS_ENTRIES + 15) / 16 * 16)
#define BIAS_WARPS 3

/* Lanes of the block's two parts. At barriers for what lanes read and write on their own they all arrive: one lane that
 * does for its warp takes a __syncwarp before, which is slower, and compute-sanitizer's racecheck cannot follow it. */
#define BIAS_LANES (32 * BIAS_WARPS)
#define CONSUMER_LANES (128 * NH_WARPGROUPS)
#if NH_BIASED && NH_OWN_HEADS > 1
#error "heads that share a tile have tables of their own"
#endif

__device__ __forceinline__ void init_bias_ring(unsigned full, unsigned free) {
    for (int i = 0; i < NH_STAGES; i++) {
        nh_barrier_init(full + 8 * i, BIAS_LANES);
        nh_barrier_init(free + 8 * i, CONSUMER_LANES);
    }
}

/* The box of a pair of tiles: whose table, and which entry a place of the box has, first[a] + place on each axis. */
struct bias_box {
    int head, first[3];
};

__device__ __forceinline__ bias_box bias_box_of(const nh_cuda_args &args, const nh_item &item, int head,
                                                const int tile[3]) {
    const int own[3] = NH_OWN_TILE, extent[3] = NH_WALK_TILE;
    bias_box box = {head, {0, 0, 0}};
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        box.first[a] = item.walk[a] + tile[a] * extent[a] - (item.own[a] + own[a] - 1) + (int)args.axis[a].window - 1;
    return box;
}

/* The entry of a head's table at a place of the box, of BIAS_ENTRIES with z fastest; negative if the table lacks it. */
__device__ __forceinline__ int bias_entry(const nh_cuda_args &args, const bias_box &box, int place) {
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

__device__ __forceinline__ long long bias_entries(const nh_cuda_args &args) {
    long long entries = 1;
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        entries *= 2 * args.axis[a].window - 1;
    return entries;
}

/* By BIAS_WARPS warps, from the second of the block on. Entries that the table lacks belong to pairs that are masked. */
__device__ __forceinline__ void lay_bias(const nh_cuda_args &args, const bias_box &box, unsigned to) {
    const elem *table = (const elem *)args.tensor[NH_BIAS].data + box.head * bias_entries(args);
    for (int i = (int)threadIdx.x - 32; i < BIAS_ENTRIES; i += BIAS_LANES) {
        int entry = bias_entry(args, box, i);
        float bias = entry >= 0 ? nh_load(table[entry]) : 0;
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + 4 * i), "f"(bias) : "memory");
    }
}

/* All boxes of this block's items, in the order in which they are walked. then(box, seen): after each; seen: it is of a
 * tile of the window, not of extra tokens, which have no bias. */
template <class Then>
__device__ __forceinline__ void lay_biases(const nh_cuda_args &args, unsigned ring, unsigned full, unsigned free,
                                           Then then) {
    int walks = NH_INVERSE ? (int)(args.heads / args.kv_heads) : 1;
    unsigned n = 0;
    nh_item item;
    for (int round = 0, index; (index = nh_item_index(round)) < args.tiling.items; round++) {
        nh_item_at(args, index, item);
        int window_tiles = item.tiles[0] * item.tiles[1] * item.tiles[2];
        int tiles = window_tiles + (NH_EXTRA && !NH_INVERSE ? args.tiling.extra_tiles : 0);
        for (int head = item.head * walks; head < (item.head + 1) * walks; head++) {
            int tile[3] = {0, 0, 0};
            for (int t = 0; t < tiles; t++, n++) {
                bias_box box = bias_box_of(args, item, head, tile);
                nh_barrier_wait(free + 8 * SLOT(n), PHASE(n) ^ 1);
                if (t < window_tiles) lay_bias(args, box, ring + SLOT(n) * BIAS_BYTES);
                nh_barrier_arrive(full + 8 * SLOT(n));
                then(box, t < window_tiles);
                next_tile(item, tile);
            }
        }
    }
}

/* Where in a box the entry of a row is for this thread's first column, in bytes. */
__device__ __forceinline__ unsigned bias_place_of(int row) {
    int at[3];
    nh_row_position(row, at);
    int entry = ((NH_OWN_X - 1 - at[0]) * BIAS_Y + NH_OWN_Y - 1 - at[1]) * BIAS_Z + NH_OWN_Z - 1 - at[2];
    return 4 * (entry + 2 * (threadIdx.x & 3));
}

__device__ __forceinline__ float bias_at(unsigned address) {
    float bias;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(bias) : "r"(address));
    return bias;
}

/* Products become scores. first, second: addresses of the entries of this thread's two rows for its first column. */
__device__ __forceinline__ void add_bias(float *score, float scale, unsigned first, unsigned second) {
#pragma unroll
    for (int j = 0; j < NH_WALK_ROWS / 8; j++) {
        const int line = 8 * j / NH_WALK_Z, z = 8 * j % NH_WALK_Z;
        const unsigned column = 4 * ((line / NH_WALK_Y * BIAS_Y + line % NH_WALK_Y) * BIAS_Z + z);
        score[4 * j + 0] = fmaf(score[4 * j + 0], scale, bias_at(first + column));
        score[4 * j + 1] = fmaf(score[4 * j + 1], scale, bias_at(first + column + 4));
        score[4 * j + 2] = fmaf(score[4 * j + 2], scale, bias_at(second + column));
        score[4 * j + 3] = fmaf(score[4 * j + 3], scale, bias_at(second + column + 4));
    }
}

/* Products of tile n become scores, for a layout with members bias, bias_full and bias_free. Without a bias they stay
 * what they are. */
template <class Layout>
__device__ __forceinline__ void bias_scores(const nh_cuda_args &args, const Layout &s, const walk &w, unsigned n,
                                            const unsigned place[2], float *score) {
    if (!NH_BIASED) return;
    unsigned box = s.bias + SLOT(n) * BIAS_BYTES;
    nh_barrier_wait(s.bias_full + 8 * SLOT(n), PHASE(n));
    if (w.t < w.window_tiles) {
        add_bias(score, (float)args.scale, box + place[0], box + place[1]);
    } else {
#pragma unroll
        for (int i = 0; i < NH_WALK_ROWS / 2; i++)
            score[i] *= (float)args.scale;
    }
    nh_barrier_arrive(s.bias_free + 8 * SLOT(n));
}
