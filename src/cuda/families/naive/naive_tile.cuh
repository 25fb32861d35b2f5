/* Tiles in the naive family: a block takes a tile of queries, one per thread, and copies the rows of the keys that they
 * see to shared memory. Memory is then read once per tile and not once per query, and, as a thread holds whole rows,
 * products need no shuffles. Windows and head dims must be small. With NH_INVERSE, keys are owned and the queries that
 * attend them are staged.
 *
 * The tile is the owned tile of boxes.cuh; loop tiles are single rows. */
#pragma once
#include "mma.cuh"
#include "naive.cuh"

#include "boxes.cuh"

#ifndef NH_INVERSE
#define NH_INVERSE 0
#endif
/* A kernel of this family has no warpgroups, but rows of a tile are numbered as if it had. */
constexpr int TILES_OF_64 = (NH_OWN_X * NH_OWN_Y * NH_OWN_Z + 63) / 64;
constexpr nh_tiles TILES = {.rank = NH_RANK,
                            .inverse = NH_INVERSE,
                            .own = {NH_OWN_X, NH_OWN_Y, NH_OWN_Z},
                            .own_heads = 1,
                            .loop = {1, 1, 1},
                            .loop_boxes = 1,
                            .stack = NH_OWN_X > 1 && NH_OWN_X % TILES_OF_64 == 0   ? 0
                                     : NH_OWN_Y > 1 && NH_OWN_Y % TILES_OF_64 == 0 ? 1
                                                                                   : 2,
                            .run_axis = 2,
                            .outside_sees = 1,
                            .cluster = 1,
                            .head_parts = 1};
static_assert(nh_tiles_are_cut<TILES>, "the owned tile cannot be cut into warpgroup tiles of at most 64 rows");

#if NH_GROUP != 1 || !NH_RESIDENT
#error "a thread holds whole rows"
#endif

/* Elements from one staged row to the next: an odd number of vectors, so that the rows of neighboring queries fall into
 * different banks. */
#define NH_STAGED_ROW ((NH_VECTORS | 1) * NH_VECTOR)

__device__ __forceinline__ int nh_staged_rows(const nh_work_tile &work_tile) {
    return work_tile.tiles[0] * work_tile.tiles[1] * work_tile.tiles[2];
}

/* Starts to copy the halo's rows of one head of a tensor and, unless OTHER is -1, of another tensor, after those of the
 * first. SLOT: NH_Q or NH_K; OTHER: NH_V or NH_D_O. */
template <int SLOT, int OTHER>
__device__ __forceinline__ void nh_stage(const nh_cuda_args &args, const nh_work_tile &work_tile, int head,
                                         elem *staged) {
    const int slot[2] = {SLOT, OTHER};
    int rows = nh_staged_rows(work_tile);
    for (int i = (int)threadIdx.x; i < rows * NH_VECTORS; i += NH_THREADS) {
        unsigned rest = (unsigned)i / NH_VECTORS;
        int place = (int)rest * NH_STAGED_ROW, column = i % NH_VECTORS * NH_VECTOR;
        long long at[3] = {0, 0, 0};
#pragma unroll
        for (int a = 2; a >= nh_first_axis<TILES>; a--)
            at[a] =
                (work_tile.halo[a] + nh_digit(&rest, work_tile.tiles[a])) * args.axis[a].dilation + work_tile.group[a];
#pragma unroll
        for (int t = 0; t < 2 && slot[t] >= 0; t++)
            if (NH_WHOLE || column < (slot[t] == NH_Q || slot[t] == NH_K ? args.dim : args.dim_v))
                nh_copy16(staged + t * rows * NH_STAGED_ROW + place + column,
                          nh_row(args.tensor[slot[t]], work_tile.batch, at, head) + column, true);
    }
}

/* Waits until everything that the block has staged is visible to all its threads. */
__device__ __forceinline__ void nh_staged(void) {
    nh_copy_wait();
    __syncthreads();
}

/* Sets the tile's i-th query (or key); false if it is beyond the end of the dilation group. */
__device__ __forceinline__ bool nh_tile_query(const nh_cuda_args &args, const nh_work_tile &work_tile, int i,
                                              nh_query &query) {
    bool exists = true;
    int at[3];
    nh_row_position<TILES>(i, at);
    query.batch = work_tile.batch;
    query.head = work_tile.head;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        exists = exists && work_tile.own[a] + at[a] < work_tile.length[a];
        query.at[a] = (work_tile.own[a] + at[a]) * args.axis[a].dilation + work_tile.group[a];
    }
    return exists;
}

/* The rows of a box among the staged ones. */
__device__ __forceinline__ nh_box_rows nh_staged_box_rows(const nh_work_tile &work_tile, const nh_box &box,
                                                          const elem *staged) {
    int line = work_tile.tiles[2], plane = work_tile.tiles[1] * line;
    int first = ((int)box.position[0] - work_tile.halo[0]) * plane + ((int)box.position[1] - work_tile.halo[1]) * line +
                (int)box.position[2] - work_tile.halo[2];
    return {staged + first * NH_STAGED_ROW, {plane * NH_STAGED_ROW, line * NH_STAGED_ROW, NH_STAGED_ROW}};
}

/* Moves the tile's rows of A between memory and an array in shared memory, a warp per row. */
template <bool TO_MEMORY>
__device__ __forceinline__ void nh_move_weights(const nh_cuda_args &args, const nh_work_tile &work_tile,
                                                elem *weights) {
    int slots = (int)args.window_count;
    for (int i = (int)threadIdx.x / 32; i < NH_THREADS; i += NH_THREADS / 32) {
        nh_query query;
        if (!nh_tile_query(args, work_tile, i, query)) continue;
        elem *row = nh_row(args.tensor[NH_A], query.batch, query.at, query.head), *staged = weights + i * slots;
        for (int n = (int)threadIdx.x % 32; n < slots; n += 32)
            (TO_MEMORY ? row : staged)[n] = (TO_MEMORY ? staged : row)[n];
    }
}
