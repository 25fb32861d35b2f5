/* Small windows on sm_90: the copy engine fetches halos and rows as boxes, and stores results. SMALL_BOXES, SMALL_LINES
 * and SMALL_PLANES are one kernel, which differs in what of a halo is fetched. Keys and values have the same head dim.
 *
 * The block is a pipeline of C.stages stages, one work tile each. A barrier per stage tells that its boxes have landed.
 * Another tells that the stage is free: all its warp tiles are done or, if the halo rolls and more work tiles are held
 * than there are stages, have loaded their rows. The last C.fetchers warps of a block are producers, and take work
 * tiles in turn. Preparing one, its tile info (position, visibility), takes a warp longer than the others take to
 * compute one. So several producers prepare work tiles in parallel, before a stage is free. The other warps, any number
 * of them, are consumers, and take the warp tiles of all work tiles in turn.
 *
 * At barriers every lane arrives for what it has read or written itself; in the forward pass, one lane of a consumer
 * warp for all of them, behind a __syncwarp. Phases of a barrier are told apart by parity, so nobody may be two phases
 * ahead. A stage becomes full only after the one before: who has seen one work tile full knows that all before it have
 * been. */
#pragma once
#include "small_seam.cuh"
#include "small_visibility.cuh"
#include "tma.cuh"

namespace nh_small {

enum {
    /* Arrivals of a consumer warp at a barrier: 1 or 32. One was faster in the forward pass, but not in the backward
     * pass, where it takes another __syncwarp (docs/log/small.md, 2026-11-27). */
    NH_ARRIVALS = C.pass == SMALL_FORWARD ? 1 : 32,
    NH_TILE_INFOS = small_infos(&C),
    /* whether warps load a warp tile's rows into registers first and free the stage then */
    NH_EARLY = C.held > C.stages || NH_PLANES,
    /* Whether a producer sets the tile info of its first work tile while the boxes are under way; it sets the others
     * before their stage is free. In the backward pass the code for both orders took longer than it gained
     * (docs/log/small.md, 2026-11-30). */
    NH_FETCHES_FIRST = C.pass == SMALL_FORWARD
};

/* A warp tile of a consumer warp. */
struct alignas(16) nh_current {
    unsigned number; /* among the warp tiles of all work tiles of the block */
    unsigned done;   /* address of the barrier at which the warp arrives when it is done with the warp tile */
    int warp_tile;   /* in the work tile */
    int info;        /* the index of the work tile's info */
};

struct nh_ring {
    nh_tile_info info[NH_TILE_INFOS];
    unsigned long long full[C.stages], free[C.stages];
    unsigned long long asked[NH_TILE_INFOS]; /* where halos roll: the work tile's boxes have been asked for */
    /* all warp tiles of the work tile are done; for stages that are freed earlier, when rows are taken */
    unsigned long long done[C.held];
    unsigned long long passed[NH_PLANES ? C.held : 1]; /* all its warp tiles are past their first plane */
    /* for each producer warp: boxes of a halo with a seam have landed */
    unsigned long long landed[NH_PERIODIC ? C.fetchers : 1];
    unsigned warp_tiles;       /* of all work tiles of this block */
    unsigned own, dealt, rest; /* the block's share: nh_deal, or nh_deal_sweeps where planes roll */
    nh_current at[C.warps];    /* the warp tile that each warp computes */
};
static_assert(sizeof(nh_ring) == small_ring_bytes(&C), "the host's count");

NH_DEVICE nh_tile_info &nh_tile_info_of(nh_ring &ring, unsigned n) {
    return ring.info[n % NH_TILE_INFOS];
}

/* Where halos roll: the first work tile of this block, or of the one `ahead` blocks later, among those of one head. */
NH_DEVICE unsigned nh_roll_start(const nh_tiled_args &args, unsigned ahead) {
    const unsigned block = NH_OWN_BLOCK / C.near_heads + ahead, blocks = NH_OWN_BLOCKS / C.near_heads;
    return (unsigned)((unsigned long long)args.tiling.work_tiles / C.near_heads * block / blocks);
}

static_assert(!NH_PLANES || C.near_heads == 1, "blocks next to each other work for neighboring sweeps of one head");

/* Deals out sweeps: adjacent blocks take adjacent sweeps at the same time, to share in the L2 what their halos have in
 * common. The last sweeps, fewer than blocks, are divided evenly among all. Sets the number of the block's work tiles,
 * of those in whole sweeps, and where its share of the last sweeps begins. Called by one thread. */
NH_DEVICE void nh_deal_sweeps(const nh_tiled_args &args, nh_ring &ring) {
    const unsigned length = (unsigned)args.tiling.tiles[NH_FIRST_AXIS], blocks = NH_OWN_BLOCKS;
    const unsigned tiles = (unsigned)args.tiling.work_tiles, rounds = tiles / (length * blocks);
    const unsigned long long rest = tiles - rounds * length * blocks, block = NH_OWN_BLOCK;
    ring.dealt = rounds * length;
    ring.rest = (unsigned)(rest * block / blocks);
    ring.own = ring.dealt + (unsigned)(rest * (block + 1) / blocks) - ring.rest;
}

/* The index of the n-th work tile of this block. Sets its number for the ring of slots, and whether a halo begins. */
NH_DEVICE int nh_own_plane(const nh_tiled_args &args, const nh_digits &digits, const nh_ring &ring, unsigned n,
                           int &number, bool &first) {
    const unsigned length = (unsigned)args.tiling.tiles[NH_FIRST_AXIS], blocks = NH_OWN_BLOCKS;
    unsigned at = n;
    first = n == 0 || n == ring.dealt;
    number = (int)n;
    if (n < ring.dealt) {
        const unsigned round = nh_quotient(n, digits.tiles[NH_FIRST_AXIS]);
        at += round * (length * blocks - length) + NH_OWN_BLOCK * length;
    } else {
        at += ring.dealt * blocks - ring.dealt + ring.rest;
        number += (int)(ring.rest - nh_quotient(ring.rest, digits.tiles[NH_FIRST_AXIS]) * length);
    }
    return (int)at;
}

/* Sets the number of the block's work tiles and, where halos roll, the first of them (`rest`). Called by one thread. */
NH_DEVICE void nh_deal(const nh_tiled_args &args, nh_ring &ring) {
    if (C.slots && !NH_DEALS) {
        ring.rest = nh_roll_start(args, 0);
        ring.own = nh_roll_start(args, 1) - ring.rest;
    } else {
        ring.own = ((unsigned)args.tiling.work_tiles - NH_OWN_BLOCK + NH_OWN_BLOCKS - 1) / NH_OWN_BLOCKS;
    }
}

NH_DEVICE int nh_own_work_tile(const nh_ring &ring, unsigned n) {
    return (int)(C.slots && !NH_DEALS ? (ring.rest + n) * C.near_heads + NH_OWN_BLOCK % C.near_heads
                                      : NH_OWN_BLOCK + n * NH_OWN_BLOCKS);
}

/* Called by one thread; a barrier must follow. */
NH_DEVICE void nh_ring_start(const nh_tiled_args &args, nh_ring &ring) {
    if (NH_PLANES)
        nh_deal_sweeps(args, ring);
    else
        nh_deal(args, ring);
    ring.warp_tiles = ring.own * NH_WARP_TILES;
    for (int i = 0; i < C.stages; i++) {
        nh_barrier_init(nh_shared_address(&ring.full[i]), 1 + 32);
        nh_barrier_init(nh_shared_address(&ring.free[i]), NH_ARRIVALS * NH_WARP_TILES);
    }
    for (int i = 0; i < NH_TILE_INFOS; i++)
        nh_barrier_init(nh_shared_address(&ring.asked[i]), 1);
    for (int i = 0; NH_PERIODIC && i < C.fetchers; i++)
        nh_barrier_init(nh_shared_address(&ring.landed[i]), 1);
    for (int i = 0; i < C.held; i++)
        nh_barrier_init(nh_shared_address(&ring.done[i]), NH_ARRIVALS * NH_WARP_TILES);
    for (int i = 0; NH_PLANES && i < C.held; i++)
        nh_barrier_init(nh_shared_address(&ring.passed[i]), NH_ARRIVALS * NH_WARP_TILES);
    nh_barrier_init_done();
}

/* Sets what producers need to begin; the other threads fill the block's tables while the first boxes are under way.
 * Called by all threads. */
NH_DEVICE void nh_pipeline_start(const nh_tiled_args &args, const auto &maps, nh_ring &ring, nh_tables &tables) {
    const int producer = (int)threadIdx.x - NH_CONSUMERS;
    if (producer == 0) nh_ring_start(args, ring);
    if (producer >= 0 && producer < (int)(sizeof maps / sizeof(nh_tensor_map)))
        nh_prefetch_map((const nh_tensor_map *)&maps + producer);
    nh_tables_start(args, tables, ring.info);
    __syncthreads();
}

/* Ends a barrier that nobody uses any more, so that its memory may be given to another one. */
NH_DEVICE void nh_barrier_end(unsigned barrier) {
    asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier) : "memory");
}

/* Ends the pipeline of one member: the block may begin another one for the next (NH_DEALS). Called by all threads. */
NH_DEVICE void nh_ring_end(nh_ring &ring) {
    static_assert(!NH_DEALS || !C.slots || NH_GROUP_ROLLS, "runs of work tiles begin anywhere in a sweep");
    if constexpr (NH_DEALS) {
        const auto end = [](const unsigned long long *barrier, int count) {
            for (int i = 0; i < count; i++)
                nh_barrier_end(nh_shared_address(&barrier[i]));
        };
        __syncthreads();
        if (threadIdx.x) return;
        end(ring.full, C.stages);
        end(ring.free, C.stages);
        end(ring.asked, NH_TILE_INFOS);
        end(ring.done, C.held);
        if (NH_PERIODIC) end(ring.landed, C.fetchers);
    }
}

/* A warp arrives at a barrier for what lanes have read: one lane for all behind a __syncwarp, or each for itself. */
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
    const unsigned ahead = nh_shared_address(&ring.passed[0]) - nh_shared_address(&ring.done[0]);
    if (NH_PASSES) nh_warp_arrive(done + ahead);
}

/* Sets the coordinates of the box at a position of the work tile's dilation group, in a tensor of rows or columns. */
template <int LAYOUT>
NH_DEVICE void nh_box_at(int (&at)[5], const auto &args, const nh_work_tile &work_tile, const int (&position)[3],
                         int head, int heads, bool columns) {
    int token[3];
    NH_UNROLL for (int a = 0; a < 3; a++) {
        token[a] = a < NH_FIRST_AXIS ? 0 : position[a] * nh_dilation(args, a) + (C.dilated ? work_tile.group[a] : 0);
        if constexpr (NH_REGIONS) {
            const nh_cuda_region &region = args.region[a];
            if (a >= NH_FIRST_AXIS) token[a] -= (int)(columns == (NH_INVERSE != 0) ? region.query : region.key).offset;
        }
    }
    place<LAYOUT>(at, 0, head, heads, C.dim, token, work_tile.batch);
}

/* The position at which a slot begins; on a periodic axis within the group. */
NH_DEVICE int nh_slot_position(const auto &work_tile, int slot) {
    int position = nh_roll_base(nh_group_of(work_tile, NH_FIRST_AXIS)) + slot * NH_SLOT_LINES;
    if constexpr (NH_PERIODIC != 0) {
        const int length = work_tile.covered[NH_FIRST_AXIS].grid;
        while (nh_axis_wraps(NH_FIRST_AXIS) && position < 0)
            position += length;
        while (nh_axis_wraps(NH_FIRST_AXIS) && position >= length)
            position -= length;
    }
    return position;
}

/* Fetches the part of the work tile's halo in a tensor that is not in shared memory yet. BYTES: of a slot. */
template <int LAYOUT, int BYTES = NH_SLOT_ROWS *nh_row_bytes(C.dim)>
NH_DEVICE void nh_fetch_halo(const nh_tiled_args &args, const auto &work_tile, const nh_tensor_map &map,
                             unsigned barrier, char *to, int head, int heads) {
    if (C.seam_lines && nh_has_seam(work_tile)) return;
    int at[5], position[3] = {work_tile.column[0], work_tile.column[1], work_tile.column[2]};
    if constexpr (NH_PERIODIC != 0)
        NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
            position[a] = work_tile.covered[a].columns.begin + work_tile.span[a].boxed;
    const int slots = C.slots ? work_tile.roll.fresh.end : 1;
    NH_UNROLL_1 for (int slot = C.slots ? work_tile.roll.fresh.begin : 0; slot < slots; slot++) {
        unsigned in_ring = 0;
        if (C.slots) {
            position[NH_FIRST_AXIS] = nh_slot_position(work_tile, slot);
            in_ring = (unsigned)(work_tile.roll.first + slot) % (C.slots + !C.slots);
        }
        nh_box_at<LAYOUT>(at, args, work_tile, position, head, heads, true);
        nh_copy_box(nh_shared_address(to) + in_ring * BYTES, &map, barrier, at);
    }
}

/* Boxes that are fetched per tensor for a work tile's halo. */
NH_DEVICE int nh_fetches(const nh_work_tile &work_tile) {
    return C.slots ? work_tile.roll.fresh.end - work_tile.roll.fresh.begin : 1;
}

/* The index, among the columns that tensors have, of the column `ahead` after the first. Columns beyond the ends of an
 * axis that is not periodic, which no row sees, are replaced by the last ones there. */
NH_DEVICE int nh_column_around(const auto &work_tile, int a, int ahead) {
    const nh_range &columns = work_tile.covered[a].columns;
    const int length = columns.end - columns.begin;
    if (!nh_axis_wraps(a)) return ahead < 0 ? 0 : nh_least(ahead, length - 1);
    while (ahead >= length)
        ahead -= length;
    return ahead < 0 ? ahead + length : ahead;
}

/* A line along the last axis of the fetched part of a halo with a seam. */
struct nh_halo_line {
    int box, within[2]; /* box of its slot, and position in that box on the first two axes */
    int at[3];         /* indices of its first column in the tensors */
};

NH_DEVICE int nh_halo_lines(const nh_work_tile &work_tile) {
    return nh_fetches(work_tile) * C.halo[0] * C.halo[1];
}

NH_DEVICE nh_halo_line nh_halo_line_of(const auto &work_tile, int number) {
    const int lines = C.halo[0] * C.halo[1], slot = C.slots ? work_tile.roll.fresh.begin + number / lines : 0;
    nh_halo_line line = {C.slots ? (work_tile.roll.first + slot) % (C.slots + !C.slots) : 0,
                         {number % lines / C.halo[1], number % C.halo[1]},
                         {0, 0, 0}};
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int ahead = work_tile.span[a].ahead;
        if (C.slots && a == NH_FIRST_AXIS)
            ahead = nh_slot_position(work_tile, slot) - work_tile.covered[a].columns.begin;
        line.at[a] = nh_column_around(work_tile, a, ahead + (a < 2 ? line.within[a] : 0));
    }
    return line;
}

/* A warp fetches two tensors' halos with a seam by lines, along which the copy engine goes around the last axis. */
NH_DEVICE void nh_fetch_lines(const auto &args, const auto &work_tile, const nh_tensor_map (&maps)[2], unsigned barrier,
                              char *first, char *second, int head, int lane) {
    const nh_cuda_region &region = args.region[0];
    const int planes = C.rank == 3 ? (int)(NH_INVERSE ? region.query : region.key).length : 1;
    NH_UNROLL_1 for (int i = lane; i < 2 * nh_halo_lines(work_tile); i += 32) {
        const nh_halo_line line = nh_halo_line_of(work_tile, i / 2);
        const int row = line.box * NH_SLOT_ROWS + line.within[0] * NH_PLANE + line.within[1] * NH_LINE;
        const int at[5] = {head * C.dim, line.at[2], 0, line.at[1], work_tile.batch * planes + line.at[0]};
        nh_copy_pixels(nh_shared_address(i % 2 ? second : first) + row * nh_row_bytes(C.dim), &maps[i % 2], barrier,
                       at);
    }
}
static_assert(!C.seam_lines || C.halo[2] * nh_row_bytes(C.dim) % 128 == 0,
              "the copy engine writes to multiples of 128 bytes");

/* The maps of a kernel; with C.seam_lines also those by which lines of the two tensors of columns are fetched. */
template <typename ROWS> struct nh_with_line_maps : ROWS { nh_tensor_map lines[2]; };
template <typename ROWS> using nh_maps_with = nh_choose<C.seam_lines != 0, nh_with_line_maps<ROWS>, ROWS>::type;

/* Fetches the keys and values that the boxes of a halo with a seam lack. */
NH_DEVICE void nh_fetch_key_seam(const nh_tiled_args &args, const auto &work_tile, const auto &maps, nh_key_halo &halo,
                                 int lane, nh_boxes_landed landed) {
    if constexpr (C.seam_lines > 0)
        nh_fetch_lines(args, work_tile, maps.lines, landed.barrier, halo.keys, halo.values, work_tile.column_head,
                       lane);
    else if constexpr (NH_PERIODIC != 0)
        nh_copy_key_seam(args, work_tile, halo, lane, landed);
}

template <int LAYOUT>
NH_DEVICE void nh_fetch_rows(const nh_tiled_args &args, const nh_work_tile &work_tile, const nh_tensor_map &map,
                             unsigned barrier, char *to, int head, int heads) {
    int at[5];
    nh_box_at<LAYOUT>(at, args, work_tile, work_tile.row, head, heads, false);
    nh_copy_box(nh_shared_address(to), &map, barrier, at);
}

/* A warp stores its warp tile's results, which are ready. Dilated rows have gaps between them, and threads store them:
 * a tensor map with element strides can only fetch. Threads also store warp tiles that begin before the first row, as
 * stores of the copy engine must not, and those of which another work tile has rows. LAST: nothing else is
 * left to do for the warp tile, whose barrier is `done`. */
template <int LAYOUT, bool LAST = false>
NH_DEVICE void nh_store_results(const nh_tiled_args &args, const nh_work_tile &work_tile, const nh_tensor_map &map,
                                int tensor, int warp_tile, const char *results, int heads, unsigned done = 0) {
    if (C.dilated || nh_begins_before(work_tile, warp_tile) || nh_ends_within(work_tile, warp_tile)) {
        nh_store_rows<C.dim, C.dim>(args, work_tile, tensor, results, warp_tile);
        if (LAST) nh_warp_arrive(done);
        return;
    }
    if (threadIdx.x % 32) return;
    int at[5], position[3];
    NH_UNROLL for (int a = 0; a < 3; a++)
        position[a] = work_tile.row[a] + nh_row_at(warp_tile, 0, a);
    nh_box_at<LAYOUT>(at, args, work_tile, position, work_tile.head, heads, false);
    nh_store_box(&map, at, nh_shared_address(results));
    if (LAST) nh_barrier_arrive(done);
}

/* Locates the n-th work tile of this block. Called by one warp. */
NH_DEVICE void nh_locate_own(const nh_tiled_args &args, const nh_tables &tables, const nh_ring &ring, unsigned n,
                             nh_tile_info &info) {
    if (NH_PLANES) {
        bool begins;
        int number, index = nh_own_plane(args, tables.digits, ring, n, number, begins);
        nh_work_tile_locate(args, tables.digits, index, begins, info.work_tile, number);
    } else {
        nh_work_tile_locate(args, tables.digits, nh_own_work_tile(ring, n), n == 0, info.work_tile);
    }
    __syncwarp();
}

/* Waits until there is room for the work tile that is fetched `n`-th. */
NH_DEVICE void nh_wait_for_room(nh_ring &ring, const auto &roll, unsigned n) {
    const unsigned stage = n % C.stages, before = n - 1;
    /* Producers ask in order: before the previous work tile is asked for, other barriers may be phases behind. */
    if (C.slots && n)
        nh_barrier_wait(nh_shared_address(&ring.asked[before % NH_TILE_INFOS]), before / NH_TILE_INFOS & 1);
    nh_barrier_wait(nh_shared_address(&ring.free[stage]), ~(n / C.stages) & 1);
    if (NH_EARLY) nh_barrier_wait(nh_shared_address(&ring.done[n % C.held]), ~(n / C.held) & 1);
    unsigned older = n + 1 - C.held;
    if constexpr (NH_PLANES || NH_GROUP_ROLLS) {
        const unsigned late = roll.late;
        unsigned passing = 0;
        if constexpr (NH_PASSES) passing = roll.passing;
        for (unsigned bit = 1; bit <= (late | passing); bit <<= 1, older++) {
            if (!((late | passing) & bit) || (int)older < 0) continue;
            nh_barrier_wait(nh_shared_address(late & bit ? &ring.done[older % C.held] : &ring.passed[older % C.held]),
                            older / C.held & 1);
        }
    } else if (NH_EARLY && !roll.room && n + 1 >= C.held) {
        nh_barrier_wait(nh_shared_address(&ring.done[older % C.held]), older / C.held & 1);
    }
    __syncwarp();
}

/* The loop of a producer warp. A work tile is fetched for each of `members` heads that share its rows. fetch(work_tile,
 * stage, member, barrier) is called by one lane, and starts all copies to the stage: HALO_BYTES per box of the halo,
 * and ROWS_BYTES for the rows. What the boxes of a halo with a seam lack the warp copies: copy_seam(work tile, stage,
 * member, lane, landed). With C.seam_lines, lines are fetched; lanes copy only LANES_BYTES of each box. */
template <int HALO_BYTES, int ROWS_BYTES, int LANES_BYTES = 0, typename Fetch, typename CopySeam>
NH_DEVICE void nh_fetch_work_tiles(const nh_tiled_args &args, const nh_tables &tables, nh_ring &ring, unsigned members,
                                   const Fetch &fetch, const CopySeam &copy_seam) {
    const int lane = (int)(threadIdx.x % 32);
    const unsigned count = ring.own * members, first = threadIdx.x / 32 - C.warps;
    unsigned landed = 0, seams = 0;
    if (NH_PERIODIC) landed = nh_shared_address(&ring.landed[first]);
    NH_UNROLL_1 for (unsigned n = first; n < count; n += C.fetchers) {
        const unsigned stage = n % C.stages, before = n - 1;
        unsigned own = n;
        const int member = members > 1 ? nh_digit(&own, tables.digits.share) : 0;
        const unsigned full = nh_shared_address(&ring.full[stage]);
        nh_tile_info &info = nh_tile_info_of(ring, n);
        const auto fill = [&] {
            nh_tile_info_fill(args, tables, info, info.work_tile.head * (int)members + member, lane, 32);
        };
        const bool late = NH_FETCHES_FIRST && n < C.fetchers;
        nh_locate_own(args, tables, ring, own, info);
        if (!late) fill();
        nh_wait_for_room(ring, info.work_tile.roll, n);
        const bool seam = NH_PERIODIC && nh_has_seam(info.work_tile);
        if (lane == 0) {
            unsigned boxes = full;
            if (seam && !C.seam_lines) {
                nh_barrier_arrive(full);
                boxes = landed;
            }
            const int halo_bytes = C.seam_lines && seam ? HALO_BYTES - LANES_BYTES : HALO_BYTES;
            /* Lanes have written here for earlier work tiles with a seam; the copy engine has to see that. */
            if (LANES_BYTES) nh_show_shared();
            nh_barrier_expect(boxes, (unsigned)(nh_fetches(info.work_tile) * halo_bytes + ROWS_BYTES));
            fetch(info.work_tile, (int)stage, member, boxes);
            if (C.slots) nh_barrier_arrive(nh_shared_address(&ring.asked[n % NH_TILE_INFOS]));
        }
        __syncwarp();
        if (late) fill();
        if (seam) {
            const nh_boxes_landed boxes = {C.seam_lines ? full : landed, seams & 1};
            copy_seam(info.work_tile, (int)stage, member, lane, boxes);
            seams++;
        }
        if (n) nh_barrier_wait(nh_shared_address(&ring.full[before % C.stages]), before / C.stages & 1);
        if (NH_LSE_ROWS) nh_copy_wait();
        if (LANES_BYTES)
            nh_barrier_arrive_copied(full);
        else
            nh_barrier_arrive(full);
    }
}

static_assert(C.warps <= C.stages * NH_WARP_TILES, "a warp would be two phases ahead of the first stage");
static_assert(C.slots || C.fetchers <= C.stages, "a fetching warp would wait for the phase after the next");

/* The warp tile that this warp computes. Each call reads it from shared memory, so that the compiler does not keep what
 * depends on it in registers through a warp tile, where it would be spilled to local memory. */
NH_DEVICE nh_current nh_current_again(const nh_ring &ring) {
    unsigned word[4];
    nh_load_words_at(word, nh_shared_address(&ring.at[nh_thread_again() / 32]));
    return {word[0], word[1], (int)word[2], (int)word[3]};
}

/* Whether a warp's warp tiles, which would all be at the same position in their work tiles, move on by one from
 * one of its work tiles to the next. With a gradient of the bias, warp tiles at a border take longer, and a whole sweep
 * of work tiles is at the same border: the other warps would wait for the same one each time. */
enum { NH_ROTATES = C.pass == SMALL_BY_QUERY && C.bias_count && NH_WARP_TILES > 1 && C.warps % NH_WARP_TILES == 0 };

/* The loop of a consumer warp: calls work(info, stage, warp_tile, member) for each of its warp tiles and each member.
 * ENDS: work() itself arrives at the warp tile's barrier when it is done, and returns the warp tile's number. */
template <bool ENDS = false, typename Work>
NH_DEVICE void nh_do_work_tiles(const nh_tiled_args &args, nh_ring &ring, unsigned members, const Work &work) {
    unsigned number = threadIdx.x / 32, rotated = number % NH_WARP_TILES;
    NH_UNROLL_1 while (number < ring.warp_tiles) {
        const unsigned work_tile = number / NH_WARP_TILES;
        const int warp_tile = (int)(NH_ROTATES ? rotated : number % NH_WARP_TILES);
        for (unsigned member = 0; member < members; member++) {
            const unsigned n = work_tile * members + member, stage = n % C.stages;
            const nh_tile_info &info = nh_tile_info_of(ring, n);
            const unsigned done = nh_shared_address(NH_EARLY ? &ring.done[n % C.held] : &ring.free[stage]);
            /* If one lane arrives for all, they have read the warp tile before this one by then. */
            if (NH_ARRIVALS == 32) __syncwarp();
            if (threadIdx.x % 32 == 0) ring.at[threadIdx.x / 32] = {number, done, warp_tile, (int)(n % NH_TILE_INFOS)};
            nh_barrier_wait(nh_shared_address(&ring.full[stage]), n / C.stages & 1);
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
            const nh_current now = nh_current_again(ring);
            number = now.number;
            if (NH_ROTATES) rotated = (unsigned)now.warp_tile;
            nh_warp_arrive(now.done);
        }
        number += C.warps;
        if (NH_ROTATES) rotated = rotated + 1 < NH_WARP_TILES ? rotated + 1 : 0;
    }
    nh_results_free();
}

} // namespace nh_small
