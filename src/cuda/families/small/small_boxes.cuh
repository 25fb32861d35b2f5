/* Small windows on sm_90: the copy engine fetches halos and rows as boxes, and stores results.
 *
 * The block is a pipeline of NH_STAGES stages, one work tile each, with warp specialization. A barrier per stage tells
 * that its boxes have landed. Another tells that the stage is free: all its warp tiles are done or, if the halo rolls
 * and more work tiles are held than there are stages, have loaded their rows. The last NH_FETCHERS warps of a block are
 * producers, and take work tiles in turn. Finding out where a work tile is and what its rows see, its tile info, takes
 * one warp longer than the others need for the work tile; it is done before there is room for the boxes. The other
 * warps, any number of them, are consumers, and take the warp tiles of all work tiles in turn.
 *
 * At barriers every lane arrives for what it has read or written itself. In the forward pass, one lane of a consumer
 * warp arrives for all of them, behind a __syncwarp.
 *
 * Phases of a barrier are told apart by parity, so nobody may be two phases ahead. A stage becomes full only after the
 * one before: whoever has seen one work tile full knows that all before it have been.
 *
 * Knobs: NH_Q_MAP, .. (layouts of tensor maps). Keys and values have the same head dim. */
#pragma once
#include "small_seam.cuh"
#include "small_visibility.cuh"
#include "tma.cuh"

/* Arrivals of a consumer warp at a barrier: 1 or 32. One was faster in the forward pass, but not in the backward pass,
 * where it takes another __syncwarp (docs/log/small.md, 2026-11-27). */
#ifndef NH_ARRIVALS
#define NH_ARRIVALS 32
#endif

/* 1 in kernels whose warp tiles take clearly longer at borders than elsewhere. */
#ifndef NH_BORDERS_TAKE_LONGER
#define NH_BORDERS_TAKE_LONGER 0
#endif

enum { NH_TILE_INFOS = NH_HELD + NH_FETCHERS };

/* A warp tile of a consumer warp. */
struct alignas(16) nh_place {
    unsigned number; /* among the warp tiles of all work tiles of the block */
    unsigned done;   /* address of the barrier at which the warp arrives when it is done with the warp tile */
    int warp_tile;   /* in the work tile */
    int info;        /* the index of the work tile's info */
};

struct nh_ring {
    nh_tile_info info[NH_TILE_INFOS];
    unsigned long long full[NH_STAGES], free[NH_STAGES];
    unsigned long long asked[NH_TILE_INFOS]; /* where halos roll: the work tile's boxes have been asked for */
    /* all warp tiles of the work tile are done; for stages that are freed earlier, when rows are taken */
    unsigned long long done[NH_HELD];
    unsigned warp_tiles;     /* of all work tiles of this block */
#if NH_PLANES
    unsigned long long passed[NH_HELD]; /* all warp tiles of the work tile are past their first plane */
    unsigned own, dealt, rest; /* set by nh_deal_chains */
#endif
    nh_place at[NH_WARPS]; /* the warp tile that each warp computes */
#if NH_PERIODIC
    unsigned long long landed[NH_FETCHERS]; /* for each producer warp: boxes of a halo with a seam have landed */
#endif
};
/* Whether warps load a warp tile's rows into registers first and free the stage then. */
enum { NH_EARLY = NH_HELD > NH_STAGES || NH_PLANES };

NH_DEVICE nh_tile_info &nh_tile_info_of(nh_ring &ring, unsigned turn) {
    return ring.info[turn % NH_TILE_INFOS];
}

/* Where halos roll: the first work tile of this block, or of the one `ahead` blocks later, counted among those of one
 * head. */
NH_DEVICE unsigned nh_roll_start(const nh_tiled_args &args, unsigned ahead) {
    const unsigned block = blockIdx.x / NH_NEAR_HEADS + ahead, blocks = gridDim.x / NH_NEAR_HEADS;
    return (unsigned)((unsigned long long)args.tiling.work_tiles / NH_NEAR_HEADS * block / blocks);
}

#if NH_PLANES
static_assert(NH_NEAR_HEADS == 1, "blocks next to each other work for neighboring chains of one head");

/* Deals out chains: adjacent blocks take adjacent chains at the same time, so that they share in the L2 what their
 * halos have in common. The last chains, fewer than there are blocks, are divided evenly among all blocks. Sets the
 * number of the block's work tiles, the number of those in whole chains, and where its share of the last chains begins.
 * Called by one thread. */
NH_DEVICE void nh_deal_chains(const nh_tiled_args &args, nh_ring &ring) {
    const unsigned length = (unsigned)args.tiling.tiles[NH_FIRST_AXIS], blocks = gridDim.x;
    const unsigned tiles = (unsigned)args.tiling.work_tiles, rounds = tiles / (length * blocks);
    const unsigned long long rest = tiles - rounds * length * blocks, block = blockIdx.x;
    ring.dealt = rounds * length;
    ring.rest = (unsigned)(rest * block / blocks);
    ring.own = ring.dealt + (unsigned)(rest * (block + 1) / blocks) - ring.rest;
}

/* The index of the turn-th work tile of this block. Sets its number for the block's ring of slots, and whether the halo
 * begins anew with it. */
NH_DEVICE int nh_own_plane(const nh_tiled_args &args, const nh_digits &digits, const nh_ring &ring, unsigned turn,
                           int &number, bool &first) {
    const unsigned length = (unsigned)args.tiling.tiles[NH_FIRST_AXIS], blocks = gridDim.x;
    unsigned at = turn;
    first = turn == 0 || turn == ring.dealt;
    number = (int)turn;
    if (turn < ring.dealt) {
        const unsigned round = nh_quotient(turn, digits.tiles[NH_FIRST_AXIS]);
        at += round * (length * blocks - length) + blockIdx.x * length;
    } else {
        at += ring.dealt * blocks - ring.dealt + ring.rest;
        number += (int)(ring.rest - nh_quotient(ring.rest, digits.tiles[NH_FIRST_AXIS]) * length);
    }
    return (int)at;
}

#endif

/* The number of work tiles of this block. */
NH_DEVICE unsigned nh_own_work_tiles(const nh_tiled_args &args) {
    if (NH_SLOTS) return nh_roll_start(args, 1) - nh_roll_start(args, 0);
    return ((unsigned)args.tiling.work_tiles - blockIdx.x + gridDim.x - 1) / gridDim.x;
}

NH_DEVICE int nh_own_work_tile(const nh_tiled_args &args, unsigned turn) {
    return (int)(NH_SLOTS ? (nh_roll_start(args, 0) + turn) * NH_NEAR_HEADS + blockIdx.x % NH_NEAR_HEADS
                          : blockIdx.x + turn * gridDim.x);
}

/* Called by one thread; a barrier must follow. */
NH_DEVICE void nh_ring_start(const nh_tiled_args &args, nh_ring &ring) {
#if NH_PLANES
    nh_deal_chains(args, ring);
    ring.warp_tiles = ring.own * NH_WARP_TILES;
#else
    ring.warp_tiles = nh_own_work_tiles(args) * NH_WARP_TILES;
#endif
    for (int i = 0; i < NH_STAGES; i++) {
        nh_barrier_init(nh_shared_address(&ring.full[i]), 1 + 32);
        nh_barrier_init(nh_shared_address(&ring.free[i]), NH_ARRIVALS * NH_WARP_TILES);
    }
    for (int i = 0; i < NH_TILE_INFOS; i++)
        nh_barrier_init(nh_shared_address(&ring.asked[i]), 1);
#if NH_PERIODIC
    for (int i = 0; i < NH_FETCHERS; i++)
        nh_barrier_init(nh_shared_address(&ring.landed[i]), 1);
#endif
    for (int i = 0; i < NH_HELD; i++)
        nh_barrier_init(nh_shared_address(&ring.done[i]), NH_ARRIVALS * NH_WARP_TILES);
#if NH_PLANES
    for (int i = 0; i < NH_HELD; i++)
        nh_barrier_init(nh_shared_address(&ring.passed[i]), NH_ARRIVALS * NH_WARP_TILES);
#endif
    nh_barrier_init_done();
}

/* A warp arrives at a barrier for what all its lanes have read: one lane for all of them behind a __syncwarp, or each
 * lane for itself. */
NH_DEVICE void nh_warp_arrive(unsigned barrier) {
    if (NH_ARRIVALS == 1) __syncwarp();
    if (NH_ARRIVALS == 32 || threadIdx.x % 32 == 0) nh_barrier_arrive(barrier);
}

/* Called by a warp that has loaded its warp tile's rows. */
NH_DEVICE void nh_rows_taken(nh_ring &ring, int stage) {
    if (NH_EARLY) nh_warp_arrive(nh_shared_address(&ring.free[stage]));
}

/* Called by a warp whose warp tile is past the first plane of its box. done: the warp tile's barrier. */
NH_DEVICE void nh_plane_passed(nh_ring &ring, unsigned done) {
#if NH_PLANES
    const unsigned ahead = nh_shared_address(&ring.passed[0]) - nh_shared_address(&ring.done[0]);
    if (NH_PASSES) nh_warp_arrive(done + ahead);
#endif
}

/* Sets the five coordinates of the box at a position of the work tile's dilation group, in a tensor of rows or of
 * columns. */
template <int LAYOUT>
NH_DEVICE void nh_box_at(int (&at)[5], const nh_tiled_args &args, const nh_work_tile &work_tile,
                         const int (&position)[3], int head, int heads, bool columns) {
    int token[3];
#pragma unroll
    for (int a = 0; a < 3; a++) {
        token[a] = a < NH_FIRST_AXIS ? 0 : position[a] * nh_dilation(args, a) + (NH_DILATED ? work_tile.group[a] : 0);
#if NH_REGIONS
        const nh_cuda_region &region = args.region[a];
        if (a >= NH_FIRST_AXIS) token[a] -= (int)(columns == (NH_INVERSE != 0) ? region.query : region.key).offset;
#endif
    }
    place<LAYOUT>(at, 0, head, heads, NH_DIM, token, work_tile.batch);
}

/* The position at which a slot begins; on a periodic axis within the group. */
NH_DEVICE int nh_slot_position(const nh_work_tile &work_tile, int slot) {
    int position = nh_roll_base(nh_group_of(work_tile, NH_FIRST_AXIS)) + slot * NH_SLOT_LINES;
#if NH_PERIODIC
    const int length = work_tile.covered[NH_FIRST_AXIS].grid;
    while (nh_wraps(NH_FIRST_AXIS) && position < 0)
        position += length;
    while (nh_wraps(NH_FIRST_AXIS) && position >= length)
        position -= length;
#endif
    return position;
}

/* Fetches the part of the work tile's halo in a tensor that is not in shared memory yet. BYTES: of a slot. */
template <int LAYOUT, int BYTES = NH_SLOT_ROWS *nh_row_bytes(NH_DIM)>
NH_DEVICE void nh_fetch_halo(const nh_tiled_args &args, const nh_work_tile &work_tile, const nh_tensor_map &map,
                             unsigned barrier, char *to, int head, int heads) {
    if (NH_SEAM_LINES && nh_has_seam(work_tile)) return;
    int at[5], position[3] = {work_tile.column[0], work_tile.column[1], work_tile.column[2]};
#if NH_PERIODIC
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        position[a] = work_tile.covered[a].columns.begin + work_tile.span[a].boxed;
#endif
    const int slots = NH_SLOTS ? work_tile.roll.fresh.end : 1;
#pragma unroll 1
    for (int slot = NH_SLOTS ? work_tile.roll.fresh.begin : 0; slot < slots; slot++) {
        unsigned place = 0;
        if (NH_SLOTS) {
            position[NH_FIRST_AXIS] = nh_slot_position(work_tile, slot);
            place = (unsigned)(work_tile.roll.place + slot) % (NH_SLOTS + !NH_SLOTS);
        }
        nh_box_at<LAYOUT>(at, args, work_tile, position, head, heads, true);
        nh_copy_box(nh_shared_address(to) + place * BYTES, &map, barrier, at);
    }
}

/* Boxes that are fetched per tensor for a work tile's halo. */
NH_DEVICE int nh_fetches(const nh_work_tile &work_tile) {
    return NH_SLOTS ? work_tile.roll.fresh.end - work_tile.roll.fresh.begin : 1;
}

#if NH_SEAM_LINES

/* The index, among the columns that tensors have, of the column `ahead` after the first. Columns beyond the ends of an
 * axis that is not periodic, which no row sees, are replaced by the last ones there. */
NH_DEVICE int nh_column_around(const nh_work_tile &work_tile, int a, int ahead) {
    const nh_range &columns = work_tile.covered[a].columns;
    const int length = columns.end - columns.begin;
    if (!nh_wraps(a)) return ahead < 0 ? 0 : nh_least(ahead, length - 1);
    while (ahead >= length)
        ahead -= length;
    return ahead < 0 ? ahead + length : ahead;
}

/* A line along the last axis of the fetched part of a halo with a seam. */
struct nh_halo_line {
    int box, place[2]; /* box of its slot, and position in that box on the first two axes */
    int at[3];         /* indices of its first column in the tensors */
};

NH_DEVICE int nh_halo_lines(const nh_work_tile &work_tile) {
    return nh_fetches(work_tile) * NH_H0 * NH_H1;
}

NH_DEVICE nh_halo_line nh_halo_line_of(const nh_work_tile &work_tile, int number) {
    const int lines = NH_H0 * NH_H1, slot = NH_SLOTS ? work_tile.roll.fresh.begin + number / lines : 0;
    nh_halo_line line = {NH_SLOTS ? (work_tile.roll.place + slot) % (NH_SLOTS + !NH_SLOTS) : 0,
                         {number % lines / NH_H1, number % NH_H1},
                         {0, 0, 0}};
#pragma unroll
    for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int ahead = work_tile.span[a].ahead;
        if (NH_SLOTS && a == NH_FIRST_AXIS)
            ahead = nh_slot_position(work_tile, slot) - work_tile.covered[a].columns.begin;
        line.at[a] = nh_column_around(work_tile, a, ahead + (a < 2 ? line.place[a] : 0));
    }
    return line;
}

/* A warp fetches the halos of two tensors that have a seam, line by line: along a line, the copy engine goes around the
 * last axis. */
NH_DEVICE void nh_fetch_lines(const nh_tiled_args &args, const nh_work_tile &work_tile, const nh_tensor_map (&maps)[2],
                              unsigned barrier, char *first, char *second, int head, int lane) {
    static_assert(NH_H2 * nh_row_bytes(NH_DIM) % 128 == 0, "the copy engine writes to multiples of 128 bytes");
    const nh_cuda_region &region = args.region[0];
    const int planes = NH_RANK == 3 ? (int)(NH_INVERSE ? region.query : region.key).length : 1;
#pragma unroll 1
    for (int i = lane; i < 2 * nh_halo_lines(work_tile); i += 32) {
        const nh_halo_line line = nh_halo_line_of(work_tile, i / 2);
        const int row = line.box * NH_SLOT_ROWS + line.place[0] * NH_PLANE + line.place[1] * NH_LINE;
        const int at[5] = {head * NH_DIM, line.at[2], 0, line.at[1], work_tile.batch * planes + line.at[0]};
        nh_copy_pixels(nh_shared_address(i % 2 ? second : first) + row * nh_row_bytes(NH_DIM), &maps[i % 2], barrier,
                       at);
    }
}

#endif

/* Fetches the work tile's rows. */
template <int LAYOUT>
NH_DEVICE void nh_fetch_rows(const nh_tiled_args &args, const nh_work_tile &work_tile, const nh_tensor_map &map,
                             unsigned barrier, char *to, int head, int heads) {
    int at[5];
    nh_box_at<LAYOUT>(at, args, work_tile, work_tile.row, head, heads, false);
    nh_copy_box(nh_shared_address(to), &map, barrier, at);
}

/* Waits until the copy engine has read a warp's last results; called before they are overwritten. */
NH_DEVICE void nh_results_free() {
    if (threadIdx.x % 32 == 0) nh_add_boxes_done();
    __syncwarp();
}

/* Makes the results that a warp has written visible to all of it and to the copy engine. */
NH_DEVICE void nh_results_ready() {
    if (!NH_DILATED) nh_show_shared();
    __syncwarp();
}

/* A warp stores its warp tile's results, which are ready. Where axes are dilated, rows have gaps between them and
 * threads store them: a tensor map with element strides can only be used for fetching. Threads also store warp tiles
 * that begin before the first row, as stores of the copy engine must not. LAST: nothing else is left to do for the warp
 * tile, whose barrier is `done`. */
template <int LAYOUT, bool LAST = false>
NH_DEVICE void nh_store_results(const nh_tiled_args &args, const nh_work_tile &work_tile, const nh_tensor_map &map,
                                int slot, int warp_tile, const char *results, int head, int heads, unsigned done = 0) {
    if (NH_DILATED || nh_begins_before(work_tile, warp_tile)) {
        nh_store_rows<NH_DIM, NH_DIM>(args, work_tile, slot, results, warp_tile);
        if (LAST) nh_warp_arrive(done);
        return;
    }
    if (threadIdx.x % 32) return;
    int at[5], position[3];
#pragma unroll
    for (int a = 0; a < 3; a++)
        position[a] = work_tile.row[a] + nh_row_at(warp_tile, 0, a);
    nh_box_at<LAYOUT>(at, args, work_tile, position, head, heads, false);
    nh_store_box(&map, at, nh_shared_address(results));
    if (LAST) nh_barrier_arrive(done);
}

/* The loop of a producer warp. A work tile is fetched for each of `members` heads that share its rows. fetch(work_tile,
 * stage, member, barrier) is called by one lane, and starts all copies to the stage: HALO_BYTES per box of the halo,
 * and ROWS_BYTES for the rows. If the halo has a seam, the warp copies what its boxes lack itself: copy_seam(work tile,
 * stage, member, lane, landed). With NH_SEAM_LINES, copy_seam has lines fetched instead; only LANES_BYTES of each box
 * are then copied by lanes. */
template <int HALO_BYTES, int ROWS_BYTES, int LANES_BYTES = 0, typename Fetch, typename CopySeam>
NH_DEVICE void nh_fetch_work_tiles(const nh_tiled_args &args, const nh_tables &tables, nh_ring &ring, unsigned members,
                                   const Fetch &fetch, const CopySeam &copy_seam) {
    const int lane = (int)(threadIdx.x % 32);
#if NH_PLANES
    const unsigned turns = ring.own * members;
#else
    const unsigned turns = nh_own_work_tiles(args) * members;
#endif
#if NH_PERIODIC
    const unsigned landed = nh_shared_address(&ring.landed[threadIdx.x / 32 - NH_WARPS]);
    unsigned seams = 0;
#endif
#pragma unroll 1
    for (unsigned turn = threadIdx.x / 32 - NH_WARPS; turn < turns; turn += NH_FETCHERS) {
        const unsigned stage = turn % NH_STAGES, before = turn - 1;
        unsigned own = turn;
        const int member = members > 1 ? nh_digit(&own, tables.digits.share) : 0;
        const unsigned full = nh_shared_address(&ring.full[stage]);
        nh_tile_info &info = nh_tile_info_of(ring, turn);
#if NH_PLANES
        bool begins;
        int number, index = nh_own_plane(args, tables.digits, ring, own, number, begins);
        nh_work_tile_locate(args, tables.digits, index, begins, info.work_tile, number);
#else
        nh_work_tile_locate(args, tables.digits, nh_own_work_tile(args, own), turn == 0, info.work_tile);
#endif
        __syncwarp();
        nh_tile_info_fill(args, tables, info, info.work_tile.head * (int)members + member, lane, 32);
        /* Producers ask in order: before the previous work tile is asked for, other barriers may be phases behind. */
        if (NH_SLOTS && turn)
            nh_barrier_wait(nh_shared_address(&ring.asked[before % NH_TILE_INFOS]), before / NH_TILE_INFOS & 1);
        nh_barrier_wait(nh_shared_address(&ring.free[stage]), ~(turn / NH_STAGES) & 1);
        if (NH_EARLY) nh_barrier_wait(nh_shared_address(&ring.done[turn % NH_HELD]), ~(turn / NH_HELD) & 1);
#if NH_PLANES
        const unsigned late = info.work_tile.roll.late, passing = NH_PASSES ? info.work_tile.roll.passing : 0;
        unsigned older = turn + 1 - NH_HELD;
        for (unsigned bit = 1; bit <= (late | passing); bit <<= 1, older++) {
            if (!((late | passing) & bit) || (int)older < 0) continue;
            nh_barrier_wait(nh_shared_address(late & bit ? &ring.done[older % NH_HELD] : &ring.passed[older % NH_HELD]),
                            older / NH_HELD & 1);
        }
#else
        if (NH_EARLY && !info.work_tile.roll.room && turn + 1 >= NH_HELD) {
            const unsigned oldest = turn + 1 - NH_HELD;
            nh_barrier_wait(nh_shared_address(&ring.done[oldest % NH_HELD]), oldest / NH_HELD & 1);
        }
#endif
        __syncwarp();
        if (lane == 0) {
            unsigned boxes = full;
#if NH_PERIODIC
            if (info.work_tile.seam && !NH_SEAM_LINES) {
                nh_barrier_arrive(full);
                boxes = landed;
            }
#endif
            const int halo_bytes = NH_SEAM_LINES && nh_has_seam(info.work_tile) ? HALO_BYTES - LANES_BYTES : HALO_BYTES;
            /* Lanes have written here for earlier work tiles with a seam; the copy engine has to see that. */
            if (LANES_BYTES) nh_show_shared();
            nh_barrier_expect(boxes, (unsigned)(nh_fetches(info.work_tile) * halo_bytes + ROWS_BYTES));
            fetch(info.work_tile, (int)stage, member, boxes);
            if (NH_SLOTS) nh_barrier_arrive(nh_shared_address(&ring.asked[turn % NH_TILE_INFOS]));
        }
        __syncwarp();
#if NH_PERIODIC
        if (info.work_tile.seam) {
            copy_seam(info.work_tile, (int)stage, member, lane,
                      nh_boxes_landed{NH_SEAM_LINES ? full : landed, seams & 1});
            seams++;
        }
#endif
        if (turn)
            nh_barrier_wait(nh_shared_address(&ring.full[before % NH_STAGES]), before / NH_STAGES & 1);
        if (NH_LSE_ROWS) nh_copy_wait();
        if (LANES_BYTES)
            nh_barrier_arrive_copied(full);
        else
            nh_barrier_arrive(full);
    }
}

static_assert(NH_WARPS <= NH_STAGES * NH_WARP_TILES, "a warp would be two phases ahead of the first stage");
static_assert(NH_SLOTS || NH_FETCHERS <= NH_STAGES, "a fetching warp would wait for the phase after the next");

/* The warp tile that this warp computes. Each call reads it from shared memory, so that the compiler does not keep what
 * depends on it in registers through a warp tile, where it would be spilled to local memory. */
NH_DEVICE nh_place nh_place_again(const nh_ring &ring) {
    unsigned word[4];
    nh_load_words_at(word, nh_shared_address(&ring.at[nh_thread_again() / 32]));
    return {word[0], word[1], (int)word[2], (int)word[3]};
}

/* Whether a warp's warp tiles, which would all be at the same place of their work tiles, move on by one place from
 * one of its work tiles to the next. A whole chain of work tiles is at the same border: the other warps would wait
 * for the same one each time. */
enum { NH_ROTATES = NH_BORDERS_TAKE_LONGER && NH_WARP_TILES > 1 && NH_WARPS % NH_WARP_TILES == 0 };

/* The loop of a consumer warp: calls work(info, stage, warp_tile, member) for each of its warp tiles and each member.
 * ENDS: work() itself arrives at the warp tile's barrier when it is done, and returns the warp tile's number. */
template <bool ENDS = false, typename Work>
NH_DEVICE void nh_do_work_tiles(const nh_tiled_args &args, nh_ring &ring, unsigned members, const Work &work) {
    unsigned number = threadIdx.x / 32, rotated = number % NH_WARP_TILES;
#pragma unroll 1
    while (number < ring.warp_tiles) {
        const unsigned work_tile = number / NH_WARP_TILES;
        const int warp_tile = (int)(NH_ROTATES ? rotated : number % NH_WARP_TILES);
        for (unsigned member = 0; member < members; member++) {
            const unsigned turn = work_tile * members + member, stage = turn % NH_STAGES;
            const nh_tile_info &info = nh_tile_info_of(ring, turn);
            const unsigned done = nh_shared_address(NH_EARLY ? &ring.done[turn % NH_HELD] : &ring.free[stage]);
            /* If one lane arrives for all, they have read the place before this one by then. */
            if (NH_ARRIVALS == 32) __syncwarp();
            if (threadIdx.x % 32 == 0)
                ring.at[threadIdx.x / 32] = {number, done, warp_tile, (int)(turn % NH_TILE_INFOS)};
            nh_barrier_wait(nh_shared_address(&ring.full[stage]), turn / NH_STAGES & 1);
            __syncwarp();
            if (nh_warp_tile_exists(info.work_tile, warp_tile)) {
                nh_note_warp_tile(args, info.work_tile.number, warp_tile);
                if constexpr (ENDS) {
                    number = work(info, (int)stage, warp_tile, (int)member);
                    continue;
                } else {
                    work(info, (int)stage, warp_tile, (int)member);
                }
            } else {
                nh_rows_taken(ring, (int)stage);
                nh_plane_passed(ring, done);
            }
            const nh_place place = nh_place_again(ring);
            number = place.number;
            if (NH_ROTATES) rotated = (unsigned)place.warp_tile;
            nh_warp_arrive(place.done);
        }
        number += NH_WARPS;
        if (NH_ROTATES) rotated = rotated + 1 < NH_WARP_TILES ? rotated + 1 : 0;
    }
    nh_results_free();
}
