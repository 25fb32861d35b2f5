/* Which columns of its warp tile's box a row sees, as bits, and the bias between the two. A thread holds columns 2t and
 * 2t + 1 of each block of 8 columns (t = lane % 4): bits 2j and 2j + 1 for block j of a chunk. What a row sees is a
 * box, so its bits are the AND of one word per axis, which depends on the row's coordinate on that axis alone. These
 * words are computed once per work tile and coordinate, from prefixes that a block makes once, for borders, strides and
 * causal axes alike. */
#pragma once

#include "small_masks.cuh"

namespace nh_small {

/* bits[..][n]: columns whose coordinate on the axis is below n. */
struct nh_prefixes {
    unsigned bits[NH_BITS ? C.columns[0] + C.columns[1] + C.columns[2] + 3 : 1][NH_CHUNKS][4];
};

struct nh_visibility {
    /* Per coordinate of a work tile's rows on an axis: where its warp tile's box begins in the halo; and what the row
     * sees of the box, as places of additive masks or as the warp tile's kind, and below as bits. */
    int begin[NH_AXIS_ROWS];
    nh_places places[NH_AXIS_ROWS];
    /* per coordinate on the first axis: columns of the warp tile's box up to the last line that any of its rows sees */
    int reach[NH_AXIS_ROWS];
    int seen[NH_REGIONS ? NH_AXIS_ROWS : 1]; /* the number of columns that the row sees on the axis */
    /* per coordinate on the rolling axis: the line of the ring at which the warp tile's box begins, and its tables */
    int line[C.slots ? NH_SLOT_LINES : 1], wrap[C.slots ? NH_SLOT_LINES : 1];
    unsigned bits[NH_BITS ? NH_AXIS_ROWS : 1][NH_CHUNKS][4];
};
static_assert(sizeof(nh_visibility) == small_visibility_bytes(&C), "the host's count");

enum {
    /* whether accumulators of scores start with the bias */
    NH_BIAS_STARTS = C.pass != SMALL_FORWARD,
    /* the number of rows whose LSE the kernel needs */
    NH_LSE_ROWS = C.pass == SMALL_BY_QUERY ? NH_ROWS : 0,
    NH_BIAS_MARGIN = small_bias_margin(&C)
};

/* What is known of a work tile before its rows arrive. */
struct nh_tile_info {
    nh_work_tile work_tile;
    nh_visibility visibility;
    /* the head's bias, in base 2 unless NH_BIAS_STARTS, and which head that is, or -1 */
    float bias[C.bias_count ? C.bias_count + 2 * NH_BIAS_MARGIN : 1];
    int bias_head;
    /* LSE of its rows and, where one is given, LSE's gradient */
    float lse[NH_LSE_ROWS ? NH_LSE_ROWS : 1], d_lse[NH_LSE_ROWS ? NH_LSE_ROWS : 1];
};
static_assert(sizeof(nh_tile_info) == small_info_bytes(&C), "the host's count");

enum { NH_GATHERS = small_gathers(&C) };

/* What depends on a column of the box alone: its row in the halo and its bias entry, relative to the first column's. */
struct nh_column_tables {
    /* Rows by column of a pair and by pair, in the order in which matrix loads need them, for boxes with 1 .. NH_WRAPS
     * lines before the end of the ring; with C.plane_chunks for any plane. */
    uint4 gather[NH_TABLE_WRAPS][NH_TABLE_CHUNKS][16][NH_GATHERS];
    /* byte offset of a column's entry */
    alignas(8) int bias[C.bias_count ? NH_COLUMNS : 1];
    /* byte offset of a column's statistics */
    unsigned statistics[NH_INVERSE ? NH_TABLE_WRAPS : 1][NH_INVERSE ? NH_TABLE_CHUNKS * NH_CHUNK : 1];
};

/* With C.plane_chunks: how far a chunk is from the box's first in a ring of `count` rows, `pitch` rows per plane. */
NH_DEVICE int nh_plane_ahead(int wrap, int chunk, int pitch, int count) {
    return C.plane_chunks ? chunk * pitch - (chunk > wrap ? count : 0) : 0;
}
/* Four entries of a table of one plane, `ahead` rows further. */
NH_DEVICE uint4 nh_rows_further(uint4 four, int ahead) {
    if (!C.plane_chunks) return four;
    const unsigned by = (unsigned)ahead;
    return make_uint4(four.x + by, four.y + by, four.z + by, four.w + by);
}

/* Rows of one lane's columns in all pairs of a chunk. */
NH_DEVICE void nh_gather_rows(int (&row)[4 * NH_GATHERS], const nh_column_tables &columns, int wrap, int chunk,
                              int column) {
    const int ahead = nh_plane_ahead(wrap, chunk, NH_PLANE, NH_HALO_ROWS);
    NH_UNROLL for (int i = 0; 4 * i < NH_PAIRS; i++) {
        uint4 four = nh_rows_further(columns.gather[C.plane_chunks ? 0 : wrap][C.plane_chunks ? 0 : chunk][column][i],
                                     ahead);
        row[4 * i] = (int)four.x;
        row[4 * i + 1] = (int)four.y;
        row[4 * i + 2] = (int)four.z;
        row[4 * i + 3] = (int)four.w;
    }
}

/* Halo rows of a lane's columns in products that run over columns: of a chunk's pairs, or in f32 of four of them. */
struct nh_across_rows {
    uint4 column[4];          /* in f32 */
    int pair[4 * NH_GATHERS]; /* in 16 bits */
};

/* Called before a pair's products: loads the rows that this pair and the next ones need. */
NH_DEVICE void nh_gather_across(nh_across_rows &rows, const nh_column_tables &columns, int wrap, int chunk, int pair) {
    if (NH_DTYPE == NH_F32) {
        const int t = (int)(nh_thread_again() % 4), ahead = nh_plane_ahead(wrap, chunk, NH_PLANE, NH_HALO_ROWS);
        NH_UNROLL for (int i = 0; i < (pair % 4 ? 0 : 4); i++)
            rows.column[i] = nh_rows_further(columns.gather[C.plane_chunks ? 0 : wrap][C.plane_chunks ? 0 : chunk]
                                                           [2 * t + i % 2 + i / 2 * 8][pair / 4],
                                             ahead);
    } else if (pair == 0) {
        nh_gather_rows(rows.pair, columns, wrap, chunk, nh_lane_column<NH_TRANSPOSED>());
    }
}

NH_DEVICE nh_pair_rows nh_rows_of_pair(const nh_across_rows &rows, int pair) {
    nh_pair_rows own;
    NH_UNROLL for (int i = 0; i < (int)(sizeof own / sizeof(int)); i++)
        own.at[i] = NH_DTYPE != NH_F32  ? rows.pair[pair]
                    : pair % 4 == 0     ? (int)rows.column[i].x
                    : pair % 4 == 1     ? (int)rows.column[i].y
                    : pair % 4 == 2     ? (int)rows.column[i].z
                                        : (int)rows.column[i].w;
    return own;
}

/* ---- one block's tables ---- */

struct nh_tables {
    nh_digits digits;
    nh_prefixes prefixes;
    nh_column_tables columns;
    float scale; /* converts scores to base 2 */
    float shift; /* -1 / scale, by which LSE is multiplied to be added to scores before these are scaled */
};
static_assert(sizeof(nh_tables) == small_tables_bytes(&C), "the host's count");

/* By all threads that compute; nh_sync_tables must follow. */
NH_DEVICE void nh_tables_fill(nh_tables &tables) {
    nh_prefixes &prefixes = tables.prefixes;
    nh_column_tables &columns = tables.columns;
    NH_UNROLL for (int a = NH_BITS ? NH_FIRST_AXIS : 3; a < 3; a++)
        for (int i = (int)threadIdx.x; i < 4 * NH_CHUNKS * (nh_axis_columns(a) + 1); i += NH_CONSUMERS) {
            int t = i % 4, chunk = i / 4 % NH_CHUNKS, below = i / (4 * NH_CHUNKS);
            unsigned bits = 0;
            for (int b = 0; b < 2 * NH_BLOCKS; b++) {
                int column = chunk * NH_CHUNK + b / 2 * 8 + 2 * t + b % 2;
                bits |= (unsigned)(column < NH_BOX && nh_column_at(column, a) < below) << b;
            }
            prefixes.bits[nh_prefixes_before(a) + below][chunk][t] = bits;
        }
    const int table_columns = NH_TABLE_CHUNKS * NH_CHUNK;
    for (int i = (int)threadIdx.x; i < table_columns * NH_TABLE_WRAPS; i += NH_CONSUMERS) {
        /* Columns beyond the box, which no row sees, repeat earlier ones that are congruent modulo 8. */
        int c = i % table_columns, wrap = i / table_columns;
        int column = c < NH_TABLE_BOX ? c : NH_TABLE_BOX - 8 + (c - NH_TABLE_BOX) % 8;
        int row = 0, statistics = 0, bias = 0;
        if (column < 0) column = 0;
        NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
            row += nh_column_at(column, a) * nh_axis_pitch(a);
            statistics += nh_column_at(column, a) * nh_statistics_pitch(a);
            if (C.slots && a == NH_FIRST_AXIS && nh_column_at(column, a) > wrap) {
                row -= NH_HALO_ROWS;
                statistics -= NH_STATISTICS;
            }
            if (C.bias_count) bias += nh_column_at(column, a) * (NH_INVERSE ? -nh_bias_step(a) : nh_bias_step(a));
        }
        if (NH_INVERSE) columns.statistics[wrap][c] = (unsigned)statistics * (unsigned)sizeof(uint4);
        ((unsigned *)columns.gather[wrap][c / NH_CHUNK][c % 16])[c % NH_CHUNK / 16] = (unsigned)row;
        if (C.bias_count) columns.bias[c] = bias * (int)sizeof(float);
    }
}

/* The axis of a coordinate among those of a work tile's rows on all axes. With one axis the compiler must know it: else
 * it divides by the warp tile's extent, and each coordinate takes 101 instructions instead of 46. */
NH_DEVICE int nh_axis_of_place(int place) {
    if (NH_FIRST_AXIS < 1 && place < nh_rows_before(1)) return 0;
    return NH_FIRST_AXIS < 2 && place < nh_rows_before(2) ? 1 : 2;
}

/* Called by `threads` threads for each work tile; a barrier must follow. A box ends with the halo, if not before. */
NH_DEVICE void nh_visibility_fill(const nh_tiled_args &args, const nh_work_tile &work_tile, const nh_prefixes &prefixes,
                                  nh_visibility &visibility, int thread, int threads) {
    const int copies = NH_BITS ? 4 : 1, before = nh_rows_before(NH_FIRST_AXIS);
    for (int i = thread; i < copies * (NH_AXIS_ROWS - before); i += threads) {
        const int t = i % copies, place = before + i / copies;
        const int a = nh_axis_of_place(place), at = place - nh_rows_before(a);
        const nh_cuda_axis &axis = args.axis[a];
        const bool wraps = nh_axis_wraps(a);
        const auto &group = nh_group_of(work_tile, a);
        const int length = work_tile.length[a], last = length - 1, shift = nh_axis_shift(a);
        const int position = work_tile.row[a] + at, first = position - at % nh_axis_warp_tile(a);
        const bool rolls = C.slots && a == NH_FIRST_AXIS;
        int begin = nh_columns_of(axis, group, nh_shifted_row(a, nh_least(first, last)), wraps).begin -
                    work_tile.column[a];
        begin = rolls ? nh_roll_box(args, group, length, first).begin - work_tile.column[a]
                      : nh_least(begin, nh_axis_halo(a) - nh_axis_columns(a));
        const nh_range own = nh_columns_of(axis, group, nh_shifted_row(a, nh_least(position, last)), wraps);
        const int from = own.begin - work_tile.column[a] - begin, to = own.end - work_tile.column[a] - begin;
        if (NH_STOPS && t == 0 && a == NH_FIRST_AXIS) {
            const int end = nh_columns_of(axis, group, nh_least(first + nh_axis_warp_tile(a) - 1, last), wraps).end;
            visibility.reach[place] = (end - work_tile.column[a] - begin) * (NH_BOX / nh_axis_columns(a));
        }
        if (rolls && t == 0) {
            visibility.line[at] = nh_roll_line(work_tile.roll, work_tile.column[a] + begin - nh_roll_base(group));
            visibility.wrap[at] = nh_least(NH_ROLL_LINES - visibility.line[at], NH_WRAPS) - 1;
        }
        if (t == 0) {
            visibility.begin[place] = begin;
            if (NH_REGIONS) visibility.seen[place] = to - from;
            visibility.places[place] = nh_additive_mask_places(a, from, to);
            const int before_rows = nh_first_row(work_tile, a);
            if (C.mask == SMALL_KINDS)
                visibility.places[place].word[0] =
                    (unsigned)(nh_axis_ends(a) && args.tiling.tiles[a] > 1
                                   ? nh_kind_with_end(a, first, length,
                                                      nh_last_work_tile(a, length, args.tiling.tiles[a]))
                                   : nh_kind_of(a, (first - before_rows + shift) / nh_axis_warp_tile(a),
                                                nh_warp_tile_count(a, length - before_rows + shift)));
        }
        for (int c = 0; c < (NH_BITS ? NH_CHUNKS : 0); c++)
            visibility.bits[place][c][t] = prefixes.bits[nh_prefixes_before(a) + to][c][t] &
                                      ~prefixes.bits[nh_prefixes_before(a) + from][c][t];
    }
}

/* Whether the row sees any column: always, unless tensors lack some of what windows reach. */
NH_DEVICE bool nh_row_sees(const nh_visibility &visibility, int warp_tile, int row) {
    bool sees = true;
#pragma unroll
    for (int a = NH_REGIONS && C.mask != SMALL_NO_MASK && C.mask != SMALL_STARTS ? NH_FIRST_AXIS : 3; a < 3; a++)
        sees = sees && visibility.seen[nh_rows_before(a) + nh_row_at(warp_tile, row, a)];
    return sees;
}

/* Coordinate in the halo of a warp tile's first column. */
NH_DEVICE int nh_box_at_axis(const nh_visibility &visibility, int warp_tile, int axis) {
    const int at = nh_row_at(warp_tile, 0, axis);
    return C.slots && axis == NH_FIRST_AXIS ? visibility.line[at] : visibility.begin[nh_rows_before(axis) + at];
}

/* Halo row of a warp tile's first column, and the place of its statistics. */
NH_DEVICE int nh_box_row(const nh_visibility &visibility, int warp_tile) {
    int row = 0;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
        row += nh_box_at_axis(visibility, warp_tile, a) * nh_axis_pitch(a);
    return row;
}
NH_DEVICE int nh_box_statistics(const nh_visibility &visibility, int warp_tile) {
    int place = 0;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
        place += nh_box_at_axis(visibility, warp_tile, a) * nh_statistics_pitch(a);
    return place;
}

/* The index of the tables for the warp tile's box, by how the ring's end splits it. */
NH_DEVICE int nh_box_wrap(const nh_visibility &visibility, int warp_tile) {
    return C.slots ? visibility.wrap[nh_row_at(warp_tile, 0, NH_FIRST_AXIS)] : 0;
}

NH_DEVICE int nh_visibility_reach(const nh_visibility &visibility, int warp_tile) {
    return visibility.reach[nh_rows_before(NH_FIRST_AXIS) + nh_row_at(warp_tile, 0, NH_FIRST_AXIS)];
}

/* This lane's word of a row's places. */
NH_DEVICE unsigned nh_visibility_places(const nh_visibility &visibility, int warp_tile, int row) {
    unsigned places = 0;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
        if (nh_axis_places(a))
            places |= visibility.places[nh_rows_before(a) + nh_row_at(warp_tile, row, a)]
                          .word[C.mask == SMALL_STARTS ? threadIdx.x % 4 : 0];
    return places;
}

/* The rows' operand of the warp tile's additive masks. */
NH_DEVICE void nh_visibility_additive_mask_rows(unsigned (&operand)[NH_STEPS_PLACES][4],
                                                const nh_visibility &visibility, int warp_tile) {
    const int row = (int)(threadIdx.x % 32) / 4;
    nh_additive_mask_rows(operand, nh_visibility_places(visibility, warp_tile, row),
                          nh_visibility_places(visibility, warp_tile, row + 8));
}

NH_DEVICE unsigned nh_visibility_bits(const nh_visibility &visibility, int warp_tile, int row, int chunk) {
    unsigned bits = C.mask == SMALL_NO_MASK ? 0u : ~0u;
    int t = (int)(threadIdx.x % 4);
    if (C.mask == SMALL_NO_MASK) {
        NH_UNROLL for (int b = 0; b < 2 * NH_BLOCKS; b++)
            bits |= (unsigned)(chunk * NH_CHUNK + b / 2 * 8 + 2 * t + b % 2 < NH_BOX) << b;
    } else {
        NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
            bits &= visibility.bits[nh_rows_before(a) + nh_row_at(warp_tile, row, a)][chunk][t];
    }
    return bits;
}

NH_DEVICE void nh_chunk_bits(unsigned (&seen)[2], const nh_visibility &visibility, int warp_tile, int chunk) {
    NH_UNROLL for (int half = 0; half < 2; half++)
        seen[half] = nh_visibility_bits(visibility, warp_tile, (int)(threadIdx.x % 32) / 4 + 8 * half, chunk);
}

/* ---- bias ---- */

/* Copies a head's table, in base 2, or divided by the scale if scores begin with it. A barrier must follow. */
NH_DEVICE void nh_bias_fill(const nh_tiled_args &args, int head, float *table, int thread, int threads) {
    const elem *from = (const elem *)args.tensor[NH_BIAS].data + (long long)head * C.bias_count;
    for (int i = thread; i < C.bias_count; i += threads)
        table[i] = nh_load(from[i]) * (NH_BIAS_STARTS ? (float)(1 / args.scale) : (float)NH_LOG2E);
}

/* The entry of the box's first column for a row, in a tile info's bias; a column adds its own offset. Entries are
 * indexed from the query to the key: with NH_INVERSE columns are queries. */
NH_DEVICE int nh_bias_row(const nh_tiled_args &args, const nh_tile_info &info, int warp_tile, int row) {
    const nh_work_tile &work_tile = info.work_tile;
    int entry = NH_BIAS_MARGIN;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        int column = work_tile.column[a] + info.visibility.begin[nh_rows_before(a) + nh_row_at(warp_tile, 0, a)];
        int difference = column - (work_tile.row[a] + nh_row_at(warp_tile, row, a));
        entry += ((NH_INVERSE ? -difference : difference) + (int)args.axis[a].window - 1) * nh_bias_step(a);
    }
    return entry;
}

/* The difference between the entries of rows 8 apart in one warp tile. */
NH_DEVICE int nh_bias_lower() {
    int entry = 0;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
        entry += (NH_INVERSE ? nh_row_at(0, 8, a) : -nh_row_at(0, 8, a)) * nh_bias_step(a);
    return entry;
}

/* The bias of a pair of blocks from `column` on, of the first block only unless `both`, in the layout of a product's
 * scores. table: points to the entry of row g and the box's first column. */
NH_DEVICE void nh_bias_pair(float (&bias)[2][4], const nh_column_tables &columns, const float *table, int column,
                            bool both) {
    NH_UNROLL for (int block = 0; block < (both ? 2 : 1); block++) {
        const int *offset = &columns.bias[column + 8 * block + (int)(threadIdx.x % 4) * 2];
        const char *first = (const char *)table + offset[0];
        /* In lines of even length, two columns of a thread are in the same line. */
        const char *second = C.columns[2] % 2 ? (const char *)table + offset[1]
                                       : first + (NH_INVERSE ? -1 : 1) * (int)sizeof(float);
        NH_UNROLL for (int i = 0; i < 4; i++)
            bias[block][i] = ((const float *)(i % 2 ? second : first))[i / 2 * nh_bias_lower()];
    }
}

struct nh_block {
    const nh_tiled_args &args;
    const nh_tables &tables;
    const nh_additive_masks &additive_masks;
};

/* Called by all threads before the first work tile is prepared, which takes no more than this where there are no masks
 * of bits; a barrier must follow. */
template <int TILE_INFOS>
NH_DEVICE void nh_tables_start(const nh_tiled_args &args, nh_tables &tables, nh_tile_info (&info)[TILE_INFOS]) {
    for (int i = (int)threadIdx.x; i < 2 * NH_BIAS_MARGIN * TILE_INFOS; i += NH_CONSUMERS) {
        int place = i % (2 * NH_BIAS_MARGIN + !NH_BIAS_MARGIN);
        info[i / (2 * NH_BIAS_MARGIN + !NH_BIAS_MARGIN)]
            .bias[place < NH_BIAS_MARGIN ? place : place + C.bias_count] = 0.f;
    }
    for (int i = (int)threadIdx.x; C.bias_count && i < TILE_INFOS; i += NH_CONSUMERS)
        info[i].bias_head = -1;
    nh_digits_start(args, tables.digits);
    if (threadIdx.x == 0) {
        tables.scale = (float)(args.scale * NH_LOG2E);
        tables.shift = (float)(-1 / args.scale);
    }
}

/* Copies one number per row of a work tile, the last axis fastest; zeros for padding rows. `threads` is a multiple of
 * 32; as many of them as a line has rows, or the next power of two, go from line to line. */
NH_DEVICE void nh_scalars_fill(const nh_tiled_args &args, const nh_work_tile &work_tile, int tensor, float *to,
                               int thread, int threads) {
    const int span = C.rows[2] > 16 ? 32 : C.rows[2] > 8 ? 16 : C.rows[2] > 4 ? 8 : 4;
    const long long step[3] = {work_tile.step[tensor][0], work_tile.step[tensor][1], work_tile.step[tensor][2]};
    const int row[3] = {work_tile.row[0], work_tile.row[1], work_tile.row[2]};
    const int length[3] = {work_tile.length[0], work_tile.length[1], work_tile.length[2]};
    const float *first = (const float *)args.tensor[tensor].data + work_tile.origin[tensor];
    NH_UNROLL for (int z = thread % span; z < C.rows[2]; z += span) {
        const float *column = first + z * step[2];
        if (C.rank < 3) {
            const int lines = C.whole ? C.rows[1] : row[2] + z >= length[2] ? 0 : C.rank == 1 ? 1 : length[1] - row[1];
            if (C.rank > 1) column += thread / span * step[1];
#pragma unroll 4
            for (int line = thread / span; line < C.rows[1]; line += threads / span) {
                const bool exists = C.whole || line < lines;
                nh_copy4(&to[line * C.rows[2] + z], exists ? column : first, exists);
                if (C.rank > 1) column += threads / span * step[1];
            }
        } else {
            NH_UNROLL_1 for (int line = thread / span; line < C.rows[0] * C.rows[1]; line += threads / span) {
                const int x = line / C.rows[1], y = line % C.rows[1];
                const bool exists = row[2] + z < length[2] && row[1] + y < length[1] && row[0] + x < length[0];
                const long long offset = y * step[1] + x * step[0];
                nh_copy4(&to[line * C.rows[2] + z], exists ? column + offset : first, exists);
            }
        }
    }
}

/* Fills all of a tile info but its work tile, by `threads` threads; head: of the bias. The threads must then wait for
 * their copies, and a barrier must follow. */
NH_DEVICE void nh_tile_info_fill(const nh_tiled_args &args, const nh_tables &tables, nh_tile_info &info, int head,
                                 int thread, int threads) {
    nh_visibility_fill(args, info.work_tile, tables.prefixes, info.visibility, thread, threads);
    /* Most work tiles of a block are of one head. Where threads copy, bias_head is read and written without barrier. */
    if (C.bias_count && (!C.stages || info.bias_head != head)) {
        nh_bias_fill(args, head, info.bias + NH_BIAS_MARGIN, thread, threads);
        if (C.stages) __syncwarp();
        if (C.stages && thread == 0) info.bias_head = head;
    }
    if (NH_LSE_ROWS) nh_scalars_fill(args, info.work_tile, NH_LSE, info.lse, thread, threads);
    if (NH_LSE_ROWS && args.tensor[NH_D_LSE].data)
        nh_scalars_fill(args, info.work_tile, NH_D_LSE, info.d_lse, thread, threads);
}

/* One warp locates work tile number `next` while the threads' copies are under way. A barrier must follow. */
NH_DEVICE void nh_work_tile_locate_next(const nh_tiled_args &args, const nh_tables &tables, int next,
                                        nh_work_tile &work_tile) {
    if (threadIdx.x / 32 == C.warps - 1 && next < args.tiling.work_tiles)
        nh_work_tile_locate(args, tables.digits, next, false, work_tile);
}

} // namespace nh_small
