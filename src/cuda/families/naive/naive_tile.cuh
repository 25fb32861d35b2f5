/* Tiles in the naive family: a block takes a tile of queries, one a thread, and lays the rows of the keys that they see
 * down in shared memory. A row of memory is then read once a tile and not once for each query, and, as a thread holds
 * whole rows, a product takes no shuffle. Windows and head dims must be small. With NH_INVERSE it is the keys that are
 * owned and the queries that attend them that are staged.
 *
 * The tile is the owned one of boxes.cuh; what is walked are single rows. */
#pragma once
#include "mma.cuh"
#include "naive.cuh"

#define NH_WALK_X 1
#define NH_WALK_Y 1
#define NH_WALK_Z 1
#include "boxes.cuh"

#if NH_GROUP != 1 || !NH_RESIDENT
#error "a thread holds whole rows"
#endif

/* Between staged rows, in elements: an odd number of vectors, so that the rows of neighboring queries fall into
 * different banks. */
#define NH_STAGED_ROW ((NH_VECTORS | 1) * NH_VECTOR)

__device__ __forceinline__ int nh_staged_rows(const nh_item &item) {
    return item.tiles[0] * item.tiles[1] * item.tiles[2];
}

/* The walked rows of one head of a tensor and of another, or of one alone (OTHER -1), asynchronously: those of the
 * second behind those of the first. Slots: NH_Q or NH_K, NH_V or NH_D_O. */
template <int SLOT, int OTHER>
__device__ __forceinline__ void nh_stage(const nh_cuda_args &args, const nh_item &item, int head, elem *staged) {
    const int slot[2] = {SLOT, OTHER};
    int rows = nh_staged_rows(item);
    for (int i = (int)threadIdx.x; i < rows * NH_VECTORS; i += NH_THREADS) {
        unsigned rest = (unsigned)i / NH_VECTORS;
        int place = (int)rest * NH_STAGED_ROW, column = i % NH_VECTORS * NH_VECTOR;
        long long at[3] = {0, 0, 0};
#pragma unroll
        for (int a = 2; a >= NH_FIRST_AXIS; a--)
            at[a] = (item.walk[a] + nh_digit(&rest, item.tiles[a])) * args.axis[a].dilation + item.group[a];
#pragma unroll
        for (int t = 0; t < 2 && slot[t] >= 0; t++)
            if (NH_WHOLE || column < (slot[t] == NH_Q || slot[t] == NH_K ? args.dim : args.dim_v))
                nh_copy16(staged + t * rows * NH_STAGED_ROW + place + column,
                          nh_row(args.tensor[slot[t]], item.batch, at, head) + column, true);
    }
}

/* What all of the block staged is there for all of it. */
__device__ __forceinline__ void nh_staged(void) {
    nh_copy_wait();
    __syncthreads();
}

/* The tile's i-th query (or key); false if the tile reaches beyond the dilation group there. */
__device__ __forceinline__ bool nh_tile_query(const nh_cuda_args &args, const nh_item &item, int i, nh_query &query) {
    bool exists = true;
    int at[3];
    nh_row_position(i, at);
    query.batch = item.batch;
    query.head = item.head;
#pragma unroll
    for (int a = 0; a < 3; a++) {
        exists = exists && item.own[a] + at[a] < item.length[a];
        query.at[a] = (item.own[a] + at[a]) * args.axis[a].dilation + item.group[a];
    }
    return exists;
}

/* The rows under a box, among those staged. */
__device__ __forceinline__ nh_walk nh_staged_walk(const nh_item &item, const nh_box &box, const elem *staged) {
    int line = item.tiles[2], plane = item.tiles[1] * line;
    int first = ((int)box.position[0] - item.walk[0]) * plane + ((int)box.position[1] - item.walk[1]) * line +
                (int)box.position[2] - item.walk[2];
    return {staged + first * NH_STAGED_ROW, {plane * NH_STAGED_ROW, line * NH_STAGED_ROW, NH_STAGED_ROW}};
}

/* The tile's rows of A, between memory and an array in shared memory, a warp a row. */
template <bool TO_MEMORY>
__device__ __forceinline__ void nh_move_weights(const nh_cuda_args &args, const nh_item &item, elem *weights) {
    int slots = (int)args.window_count;
    for (int i = (int)threadIdx.x / 32; i < NH_THREADS; i += NH_THREADS / 32) {
        nh_query query;
        if (!nh_tile_query(args, item, i, query)) continue;
        elem *row = nh_row(args.tensor[NH_A], query.batch, query.at, query.head), *staged = weights + i * slots;
        for (int n = (int)threadIdx.x % 32; n < slots; n += 32)
            (TO_MEMORY ? row : staged)[n] = (TO_MEMORY ? staged : row)[n];
    }
}
