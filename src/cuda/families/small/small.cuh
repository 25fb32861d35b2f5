/* Neighborhoods that fit shared memory: what the kernels of this family share. Tensor cores of sm_80 and later.
 *
 * Rows are what a kernel computes, columns what each row is multiplied with: queries and their keys, or by keys
 * (NH_INVERSE) keys and the queries that attend them. A block computes one box of rows (a work tile) after the other.
 * All columns that these rows see lie in a box too, the halo, which is copied to shared memory as a whole. A warp takes
 * 16 rows at a time, again a box (a warp tile), and gathers the box of their columns out of the halo by the row
 * addresses of its matrix loads: hardly more is multiplied than what the rows see. All positions are those of one
 * dilation group. Lines of the halo are spaced so that consecutive columns of a warp tile's box are consecutive rows
 * modulo 8, also from one line to the next: with the swizzle, the eight rows of a matrix load fall into different
 * banks.
 *
 * C.pipeline says how halos get there: threads copy them (SMALL_COPIES, SMALL_TURNS), or on sm_90 the copy engine
 * fetches them as boxes (SMALL_BOXES: see small_boxes.cuh). A block may then take work tiles that follow each other
 * along the first axis, and fetch only what of each halo the one before did not have (SMALL_LINES, SMALL_PLANES: see
 * small_roll.cuh). */
#pragma once

#include "lanes.cuh"
#include "small_products.cuh"

#include "tma.cuh"

namespace nh_small {

/* ---- copies ---- */

/* Copies a box of X x Y x Z rows of WIDTH elements to lines of shared rows with room for ROOM elements; rows from
 * `count` on are zeros. A thread keeps its place in a line and goes from line to line. */
template <int WIDTH, int ROOM, int X, int Y, int Z, int LINE, int PLANE>
NH_DEVICE void nh_copy_box(const elem *from, const long long (&step)[3], const int (&count)[3], char *to) {
    const unsigned units = nh_units(WIDTH), span = Z * units;
    const int teams = span < NH_THREADS ? NH_THREADS / span : 1, lines = X * Y;
    const unsigned thread = nh_thread_again(), team = teams > 1 ? thread / span : 0;
    if (team >= teams) return;
    long long line_step = NH_FIRST_AXIS < 2 ? teams * step[1] : 0;
    NH_UNROLL for (unsigned first = 0; first < span; first += NH_THREADS) {
        unsigned place = first + thread - team * span;
        if (place >= span) return;
        int z = (int)(place / units), unit = (int)(place % units);
        bool inside = z < count[2] && NH_PER_UNIT * unit < WIDTH;
        const elem *line = from + z * step[2] + NH_PER_UNIT * unit;
        if (X == 1 && teams > 1) line += team * step[1];
        NH_UNROLL for (int i = 0; i < lines; i += teams) {
            int number = i + (int)team, x = number / Y, y = number % Y;
            const elem *source = X == 1 ? line : line + x * step[0] + y * step[1];
            if (lines % teams == 0 || number < lines)
                nh_copy16(to + nh_unit_offset(ROOM, x * PLANE + y * LINE + z, unit), source,
                          inside && x < count[0] && y < count[1]);
            if (X == 1) line += line_step;
        }
    }
}

/* Copies a work tile's halo with a seam, `ahead` elements from its first head: all threads look up each position. */
template <int WIDTH>
NH_DEVICE void nh_copy_seam(const nh_tiled_args &args, const nh_work_tile &work_tile, int tensor, long long ahead,
                            char *to) {
    const unsigned units = nh_units(WIDTH);
    const elem *from = (const elem *)args.tensor[tensor].data + work_tile.origin[tensor] + ahead;
    NH_UNROLL_1 for (unsigned i = nh_thread_again(); i < C.halo[0] * C.halo[1] * C.halo[2] * units; i += NH_THREADS) {
        const int unit = (int)(i % units), number = (int)(i / units);
        int at[3] = {number / (C.halo[1] * C.halo[2]), number / C.halo[2] % C.halo[1], number % C.halo[2]}, row = 0;
        bool there = NH_PER_UNIT * unit < WIDTH;
        long long offset = NH_PER_UNIT * unit;
        NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
            row += at[a] * nh_axis_pitch(a);
            there = nh_halo_position(work_tile, a, at[a]) && there;
            offset += at[a] * work_tile.step[tensor][a];
        }
        nh_copy16(to + nh_unit_offset(WIDTH, row, unit), from + offset, there);
    }
}

/* Copies any halo, by all threads. */
template <int WIDTH>
NH_DEVICE void nh_copy_halo(const nh_tiled_args &args, const nh_work_tile &work_tile, int tensor, long long ahead,
                            char *to) {
    int count[3];
    if (NH_PERIODIC && nh_has_seam(work_tile)) {
        nh_copy_seam<WIDTH>(args, work_tile, tensor, ahead, to);
        return;
    }
    NH_UNROLL for (int a = 0; a < 3; a++)
        count[a] = nh_halo_count(work_tile, a);
    nh_copy_box<WIDTH, WIDTH, C.halo[0], C.halo[1], C.halo[2], NH_LINE, NH_PLANE>(
        (const elem *)args.tensor[tensor].data + work_tile.origin[tensor] + ahead, work_tile.step[tensor], count, to);
}

template <int WIDTH, int ROOM>
NH_DEVICE void nh_copy_rows(const nh_tiled_args &args, const nh_work_tile &work_tile, int tensor, char *to) {
    int count[3];
    NH_UNROLL for (int a = 0; a < 3; a++)
        count[a] = work_tile.length[a] - work_tile.row[a];
    nh_copy_box<WIDTH, ROOM, C.rows[0], C.rows[1], C.rows[2], C.rows[2], C.rows[1] * C.rows[2]>(
        (const elem *)args.tensor[tensor].data + work_tile.origin[tensor], work_tile.step[tensor], count, to);
}

/* ---- results ---- */

/* An element of a row's result in shared memory. */
template <int WIDTH> NH_DEVICE elem &nh_result_element(char *results, int warp_tile, int row, int i) {
    char *unit = results + nh_unit_offset(WIDTH, nh_result_number(warp_tile, row), i / NH_PER_UNIT);
    return ((elem *)unit)[i % NH_PER_UNIT];
}

/* A warp stores its warp tile's shared rows to memory. */
template <int WIDTH, int ROOM>
NH_DEVICE void nh_store_rows(const nh_tiled_args &args, const nh_work_tile &work_tile, int tensor, const char *rows,
                             int warp_tile) {
    const int units = WIDTH / NH_PER_UNIT;
    elem *to = (elem *)args.tensor[tensor].data;
    const int lane = (int)(nh_thread_again() % 32);
    NH_UNROLL for (int first = 0; first < 16 * units; first += 32) {
        int i = first + lane, row = i / units, unit = i % units;
        if (i < 16 * units && nh_row_exists(work_tile, warp_tile, row))
            *(uint4 *)(to + nh_row_offset(work_tile, tensor, warp_tile, row) + NH_PER_UNIT * unit) =
                *(const uint4 *)(rows + nh_unit_offset(ROOM, nh_result_number(warp_tile, row), unit));
    }
}

/* Where the copy engine stores results: waits until it has read a warp's last ones. */
NH_DEVICE void nh_results_free() {
    if (threadIdx.x % 32 == 0) nh_add_boxes_done();
    __syncwarp();
}

/* Makes the results that a warp has written visible to all of it and to the copy engine. */
NH_DEVICE void nh_results_ready() {
    if (!C.dilated) nh_show_shared();
    __syncwarp();
}

/* Called before a warp's place for results is written. */
NH_DEVICE void nh_results_begin() {
    if constexpr (C.stages > 0)
        nh_results_free();
    else
        __syncwarp();
}

} // namespace nh_small
