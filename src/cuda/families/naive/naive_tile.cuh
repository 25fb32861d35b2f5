/* Tiles in the naive family: a block takes a tile of queries, one per thread, and copies the rows of the keys that they
 * see to shared memory. Memory is then read once per tile, and products need no shuffles, as a thread holds whole rows.
 * Windows and head dims must be small. With ROW.by_keys, keys are owned and the queries that attend them are staged.
 * Without tiles (ROW.tiled) a group of lanes has a row, and nothing is staged. The tile is the owned tile of boxes.cuh;
 * loop tiles are single rows. */
#pragma once
#include "row_of_config.cuh"

#include "boxes.cuh"
#include "mma.cuh"
#include "naive.cuh"

namespace nh_naive {

/* A kernel of this family has no warpgroups, but rows of a tile are numbered as if it had. */
constexpr int TILES_OF_64 = (ROW.tile[0] * ROW.tile[1] * ROW.tile[2] + 63) / 64;
constexpr nh_tiles TILES = {.rank = ROW.rank,
                            .inverse = ROW.by_keys,
                            .own = {ROW.tile[0], ROW.tile[1], ROW.tile[2]},
                            .own_heads = 1,
                            .loop = {1, 1, 1},
                            .loop_boxes = 1,
                            .stack = ROW.tile[0] > 1 && ROW.tile[0] % TILES_OF_64 == 0   ? 0
                                     : ROW.tile[1] > 1 && ROW.tile[1] % TILES_OF_64 == 0 ? 1
                                                                                         : 2,
                            .run_axis = 2,
                            .outside_sees = 1,
                            .cluster = 1,
                            .head_parts = 1};
static_assert(nh_tiles_are_cut<TILES>, "the owned tile cannot be cut into warpgroup tiles of at most 64 rows");
static_assert(!ROW.tiled || (ROW.group == 1 && ROW.resident), "a thread holds whole rows");

constexpr int ROW_STAGED = row_staged(&ROW);

template <bool TILED> struct nh_args_of { typedef nh_cuda_args type; };
template <> struct nh_args_of<true> { typedef nh_tiled_args type; };
typedef nh_args_of<ROW.tiled>::type naive_args;

NH_DEVICE int nh_staged_rows(const nh_work_tile &work_tile) {
    return work_tile.tiles[0] * work_tile.tiles[1] * work_tile.tiles[2];
}

/* Starts to copy the halo's rows of one head of a tensor and, unless OTHER is -1, of another tensor, after those of the
 * first. SLOT: NH_Q or NH_K; OTHER: NH_V or NH_D_O. */
template <int SLOT, int OTHER>
NH_DEVICE void nh_stage(const nh_cuda_args &args, const nh_work_tile &work_tile, int head, elem *staged) {
    const int slot[2] = {SLOT, OTHER};
    int rows = nh_staged_rows(work_tile);
    for (int i = (int)threadIdx.x; i < rows * ROW.vectors; i += ROW.threads) {
        unsigned rest = (unsigned)i / ROW.vectors;
        int place = (int)rest * ROW_STAGED, column = i % ROW.vectors * ROW.vector;
        long long at[3] = {0, 0, 0};
        NH_UNROLL for (int a = 2; a >= nh_first_axis<TILES>; a--)
            at[a] =
                (work_tile.halo[a] + nh_digit(&rest, work_tile.tiles[a])) * args.axis[a].dilation + work_tile.group[a];
        NH_UNROLL for (int t = 0; t < 2 && slot[t] >= 0; t++)
            if (ROW.whole || column < (slot[t] == NH_Q || slot[t] == NH_K ? args.dim : args.dim_v))
                nh_copy16(staged + t * rows * ROW_STAGED + place + column,
                          nh_row(args.tensor[slot[t]], work_tile.batch, at, head) + column, true);
    }
}

/* Waits until everything that the block has staged is visible to all its threads. */
NH_DEVICE void nh_staged(void) {
    nh_copy_wait();
    __syncthreads();
}

/* Sets the tile's i-th query (or key); false if it is beyond the end of the dilation group. */
NH_DEVICE bool nh_tile_query(const nh_cuda_args &args, const nh_work_tile &work_tile, int i, nh_query &query) {
    bool exists = true;
    int at[3];
    nh_row_position<TILES>(i, at);
    query.batch = work_tile.batch;
    query.head = work_tile.head;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        exists = exists && work_tile.own[a] + at[a] < work_tile.length[a];
        query.at[a] = (work_tile.own[a] + at[a]) * args.axis[a].dilation + work_tile.group[a];
    }
    return exists;
}

NH_DEVICE nh_box_rows nh_staged_box_rows(const nh_work_tile &work_tile, const nh_box &box, const elem *staged) {
    int line = work_tile.tiles[2], plane = work_tile.tiles[1] * line;
    int first = ((int)box.position[0] - work_tile.halo[0]) * plane + ((int)box.position[1] - work_tile.halo[1]) * line +
                (int)box.position[2] - work_tile.halo[2];
    return {staged + first * ROW_STAGED, {plane * ROW_STAGED, line * ROW_STAGED, ROW_STAGED}};
}

/* Moves the tile's rows of A between memory and an array in shared memory, a warp per row. */
template <bool TO_MEMORY>
NH_DEVICE void nh_move_weights(const nh_cuda_args &args, const nh_work_tile &work_tile, elem *weights) {
    int slots = (int)args.window_count;
    for (int i = (int)threadIdx.x / 32; i < ROW.threads; i += ROW.threads / 32) {
        nh_query query;
        if (!nh_tile_query(args, work_tile, i, query)) continue;
        elem *row = nh_row(args.tensor[NH_A], query.batch, query.at, query.head), *staged = weights + i * slots;
        for (int n = (int)threadIdx.x % 32; n < slots; n += 32)
            (TO_MEMORY ? row : staged)[n] = (TO_MEMORY ? staged : row)[n];
    }
}

/* ---- the queries of a block or group ---- */

/* How a kernel uses a query's row of A. */
enum nh_weights_use { NO_WEIGHTS, READS_WEIGHTS, WRITES_WEIGHTS };

/* A query's window or its first piece, the rows of two tensors in it, and its row of A. */
struct nh_seen {
    nh_box box;
    nh_box_rows first, second;
    elem *weights;
};

/* Calls visit(query, seen) for the queries of the block's tile. staged: whether the tensors' rows are needed. Behind
 * those of the first tensor, shared memory has those of the second one or rows of A. */
template <int FIRST, int SECOND, nh_weights_use USE, class Args, class Visit>
NH_DEVICE void nh_for_tile(const Args &args, bool staged, const Visit &visit) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_work_tile work_tile;
    nh_work_tile_at<TILES>(args, (int)NH_OWN_BLOCK, work_tile);
    elem *first = (elem *)nh_shared_memory, *second = first + nh_staged_rows(work_tile) * ROW_STAGED;
    if (staged) nh_stage<FIRST, SECOND>(args, work_tile, work_tile.kv_head, first);
    if (USE == READS_WEIGHTS) nh_move_weights<false>(args, work_tile, second);
    nh_staged();
    nh_query query;
    if (nh_tile_query(args, work_tile, (int)threadIdx.x, query)) {
        const nh_box box = nh_window_box(args, query.at);
        visit(query, nh_seen{box, nh_staged_box_rows(work_tile, box, first), nh_staged_box_rows(work_tile, box, second),
                             second + threadIdx.x * args.window_count});
    }
    if (USE != WRITES_WEIGHTS) return;
    __syncthreads();
    nh_move_weights<true>(args, work_tile, second);
}

/* The same for the queries of a group of lanes or, with tiles, of the block. FIRST, SECOND: of key heads; -1: none. */
template <int FIRST, int SECOND, nh_weights_use USE, class Args, class Visit>
NH_DEVICE void nh_for_queries(const Args &args, bool staged, const Visit &visit) {
    if constexpr (ROW.tiled) {
        nh_for_tile<FIRST, SECOND, USE>(args, staged, visit);
    } else {
        nh_for_rows(args, [&](const nh_query &query) {
            const long long kv_head = query.head / (args.heads / args.kv_heads);
            nh_seen seen = {nh_window_box(args, query.at)};
            seen.first = nh_box_rows_of(args.tensor[FIRST], seen.box, query.batch, kv_head);
            if (SECOND >= 0) seen.second = nh_box_rows_of(args.tensor[SECOND], seen.box, query.batch, kv_head);
            if (USE != NO_WEIGHTS) seen.weights = nh_row(args.tensor[NH_A], query.batch, query.at, query.head);
            visit(query, seen);
        });
    }
}

} // namespace nh_naive
