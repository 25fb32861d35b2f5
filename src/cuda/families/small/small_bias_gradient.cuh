/* Gradient of the relative bias, from the score gradients of small_backward_query.cuh, without atomics. A warp writes
 * the score gradients of its warp tile to shared memory and gathers them by entries of the bias table: away from
 * borders by tensor cores (see below); at borders each lane owns some entries, and adds up over the 16
 * rows the columns at that distance. A warp keeps its sums per head and writes them when the head changes: so heads are
 * the slowest digit of this kernel's work tiles. bias_sum.cu adds up the warps' sums. Orders are fixed: results are
 * bit-equal in every run. */
#pragma once

#include "small_visibility.cuh"

namespace nh_small {

/* The bias gradient of warp tiles away from the borders, on tensor cores, in 16 bits. There, the number of a column in
 * the box less the row's own number, which is fixed, too, tells the entry of the table to which the pair belongs. If
 * each row of the score gradients were shifted by its number, sums down the columns would be the entries' sums. Matrix
 * loads shift by whole units of 8 columns, each row by as many as it needs. The rest of a row's shift, 0 .. 7, is
 * resolved later: sum[x][rest] adds up, at x, the rows with that rest, by a product with ones. The entries are
 * diagonals of this matrix, which are added up when the head changes. */

/* A row's number in the box: relative to row 0, the column at a distance is this much further. */
NH_DEVICE constexpr int nh_row_shift(int row) {
    const int line = row / C.warp_tile[2], plane = line / C.warp_tile[1];
    return (plane * C.columns[1] + line % C.warp_tile[1]) * C.columns[2] + row % C.warp_tile[2];
}

enum {
    /* the x of the last entry plus the largest rest */
    NH_BIAS_LAST =
        C.bias_count ? ((C.window[0] - 1) * C.columns[1] + C.window[1] - 1) * C.columns[2] + C.window[2] - 1 + 7 : 0,
    NH_BIAS_STEPS = NH_BIAS_LAST / 16 + 1,
    /* whether the second unit of the last step has no entries and, in the last row, lies beyond what is allocated */
    NH_BIAS_BEHIND = NH_BIAS_LAST % 16 < 8 && nh_row_shift(15) / 8 * 8 + 16 * NH_BIAS_STEPS > NH_COLUMNS + 8,
    /* units up to the last one that is read of the last row */
    NH_BIAS_UNITS = nh_row_shift(15) / 8 + 2 * NH_BIAS_STEPS - NH_BIAS_BEHIND,
    /* Only few sums fit registers. With no more than one window, or fewer columns than all rows need (an axis shorter
     * than the warp tile), no warp tile is away from the borders. */
    NH_BIAS_PRODUCTS = NH_DTYPE != NH_F32 && C.bias_count && NH_BIAS_STEPS <= 6 &&
                       16 * NH_BIAS_STEPS <= NH_COLUMNS && 8 * NH_BIAS_UNITS <= NH_COLUMNS + 8
};

struct nh_bias_products {
    float sum[NH_BIAS_PRODUCTS ? NH_BIAS_STEPS : 1][4];
};

NH_DEVICE void nh_bias_products_clear(nh_bias_products &products) {
    if (NH_BIAS_PRODUCTS) nh_clear(products.sum);
}

/* Two ones or zeros: whether row and row + 1 have this rest. */
NH_DEVICE unsigned nh_rest_ones(int row, int rest) {
    const unsigned one = NH_DTYPE == NH_F16 ? 0x3c00 : 0x3f80;
    return (nh_row_shift(row) % 8 == rest ? one : 0u) | (nh_row_shift(row + 1) % 8 == rest ? one << 16 : 0u);
}

/* Adds a warp tile's gradients, which its warp has written with `pitch` bytes from row to row. */
NH_DEVICE void nh_bias_multiply(nh_bias_products &products, const void *laid, int pitch) {
    const int lane = (int)(nh_thread_again() % 32), row = lane % 8 + lane / 16 * 8;
    const unsigned ones[2] = {nh_rest_ones(lane % 4 * 2, lane / 4), nh_rest_ones(lane % 4 * 2 + 8, lane / 4)};
    const unsigned from =
        nh_shared_address(laid) + (unsigned)(row * pitch + 16 * (nh_row_shift(row) / 8 + lane / 8 % 2));
    NH_UNROLL for (int i = 0; i < NH_BIAS_STEPS; i++) {
        unsigned rows[4], unit = from + 32 * i;
        /* sums of that unit are not used: the first unit is read instead */
        if (NH_BIAS_BEHIND && i == NH_BIAS_STEPS - 1) unit -= 16 * (lane / 8 % 2);
        nh_load_matrices_transposed_at(rows, unit);
        if (NH_DTYPE == NH_F16) {
            nh_mma_f16(products.sum[i], rows, ones);
        } else {
            nh_mma_bf16(products.sum[i], rows, ones);
        }
    }
}

/* Adds the sums to the entries of a head's table, from the entry of the window's first key on, and clears them.
 * scratch: shared memory of the warp, 8 numbers per x, which is no more than 16 rows of score gradients take. */
NH_DEVICE void nh_bias_products_flush(nh_bias_products &products, float *scratch, float *table) {
    if (!NH_BIAS_PRODUCTS) return;
    const int lane = (int)(threadIdx.x % 32), count = C.window[0] * C.window[1] * C.window[2];
    __syncwarp();
    NH_UNROLL for (int i = 0; i < NH_BIAS_STEPS; i++)
        NH_UNROLL for (int c = 0; c < 4; c++)
            scratch[(16 * i + lane / 4 + c / 2 * 8) * 8 + lane % 4 * 2 + c % 2] = products.sum[i][c];
    __syncwarp();
    for (int i = lane; i < count; i += 32) {
        const int x = i / (C.window[1] * C.window[2]), y = i / C.window[2] % C.window[1], z = i % C.window[2];
        const float *first = scratch + 8 * ((x * C.columns[1] + y) * C.columns[2] + z);
        float total = 0.f;
        for (int rest = 0; rest < 8; rest++)
            total += first[9 * rest];
        table[x * nh_bias_step(0) + y * nh_bias_step(1) + z] += total;
    }
    __syncwarp();
    nh_bias_products_clear(products);
}

/* ---- by lanes, and what both have in common ---- */

/* Without a bias, these structs take nearly no memory. */
enum {
    NH_LAID_COLUMNS = small_laid_columns(&C),
    NH_BIAS_SUMS = C.bias_count ? C.bias_count : 1,
    NH_BIAS_WARPS = C.bias_count ? C.warps : 1
};

static_assert(!NH_BIAS_PRODUCTS || 8 * NH_BIAS_UNITS <= NH_LAID_COLUMNS,
              "products would read score gradients of the next warp, which may be writing them");

struct nh_bias_sums {
    alignas(16) elem d_scores[NH_BIAS_WARPS][16][NH_LAID_COLUMNS];
    float sum[NH_BIAS_WARPS][NH_BIAS_SUMS];
};
static_assert(sizeof(nh_bias_sums) == small_bias_sums_bytes(&C), "the host's count");

NH_DEVICE bool nh_bias_wanted(const nh_tiled_args &args) {
    return C.bias_count && args.tensor[NH_D_BIAS].data;
}

/* By all threads that compute; nh_sync_tables must follow. */
NH_DEVICE void nh_bias_clear(nh_bias_sums &sums) {
    float *sum = &sums.sum[0][0];
    for (int i = (int)threadIdx.x; i < C.warps * NH_BIAS_SUMS; i += NH_CONSUMERS)
        sum[i] = 0.f;
    /* columns to which no gradient is written, but which are multiplied by zeros and so must be finite */
    for (int i = (int)threadIdx.x; i < C.warps * 16 * 4; i += NH_CONSUMERS)
        *(unsigned *)&sums.d_scores[i / 64][i / 4 % 16][NH_COLUMNS + i % 4 * 2] = 0u;
}

/* Writes a pair's score gradients as packed for a product; zeros, for products only, of the second unless `both`. */
NH_DEVICE void nh_bias_lay(nh_bias_sums &sums, int column, const auto &packed, bool both) {
    const int lane = (int)(threadIdx.x % 32);
    elem(*rows)[NH_LAID_COLUMNS] = sums.d_scores[threadIdx.x / 32];
    if constexpr (C.stages && NH_DTYPE != NH_F32)
        if (both || NH_BIAS_PRODUCTS) {
            nh_store_matrices(&rows[lane % 16][column + lane / 16 * 8], packed.word);
            return;
        }
    NH_UNROLL for (int i = 0; i < (both || NH_BIAS_PRODUCTS ? 4 : 2); i++)
        nh_lay_two(&rows[lane / 4 + i % 2 * 8][column + i / 2 * 8 + lane % 4 * 2], packed, i);
}

/* The range of distances, per axis, from the warp tile's rows to the columns that they see. */
NH_DEVICE void nh_seen_distances(const nh_tiled_args &args, const nh_work_tile &work_tile, int warp_tile, int (&low)[3],
                                 int (&count)[3]) {
    NH_UNROLL for (int a = 0; a < 3; a++) {
        low[a] = 0;
        count[a] = 1;
        if (a < NH_FIRST_AXIS) continue;
        const int window = nh_axis_window(a), first = work_tile.row[a] + nh_row_at(warp_tile, 0, a);
        const int last = nh_least(first + nh_axis_warp_tile(a), work_tile.length[a]) - 1;
        nh_range of_first = nh_columns_of(args.axis[a], nh_group_of(work_tile, a), first, nh_axis_wraps(a));
        nh_range of_last = nh_columns_of(args.axis[a], nh_group_of(work_tile, a), last, nh_axis_wraps(a));
        if (NH_REGIONS) {
            /* tensors may lack some of what rows see, or all */
            const int left = window / 2;
            const bool whole = !C.strided && of_first.begin == first - left &&
                               of_first.end == of_first.begin + window && of_last.begin == last - left &&
                               of_last.end == of_last.begin + window;
            low[a] = whole ? -left : 1 - window;
            count[a] = whole ? window : 2 * window - 1;
        } else {
            low[a] = C.strided ? 1 - window : of_last.begin - last;
            count[a] = C.strided ? 2 * window - 1 : of_first.end - first - low[a];
        }
    }
}

/* Adds the warp tile's gradients to the warp's sums. */
NH_DEVICE void nh_bias_gather(const nh_tiled_args &args, const nh_tile_info &info, int warp_tile, nh_bias_sums &sums,
                              nh_bias_products &products) {
    const nh_work_tile &work_tile = info.work_tile;
    const int warp = (int)(threadIdx.x / 32);
    const elem(*rows)[NH_LAID_COLUMNS] = sums.d_scores[warp];
    int low[3], count[3];
    nh_seen_distances(args, work_tile, warp_tile, low, count);
    bool inside = NH_BIAS_PRODUCTS;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        const int row = nh_row_at(warp_tile, 0, a),
                  begin = work_tile.column[a] + info.visibility.begin[nh_rows_before(a) + row];
        inside = inside && count[a] == nh_axis_window(a) && low[a] == -(nh_axis_window(a) / 2) &&
                 low[a] + work_tile.row[a] + row == begin;
    }
    __syncwarp();
    if (inside) {
        nh_bias_multiply(products, rows, sizeof rows[0]);
        __syncwarp();
        return;
    }
    for (int i = (int)(threadIdx.x % 32); i < count[0] * count[1] * count[2]; i += 32) {
        /* the column at this distance from row 0, and its entry in the table */
        int at[3], entry = 0;
        unsigned rest = (unsigned)i;
        NH_UNROLL for (int a = 2; a >= 0; a--) {
            at[a] = 0;
            if (a < NH_FIRST_AXIS) continue;
            int distance = low[a] + (int)(rest % (unsigned)count[a]), row = nh_row_at(warp_tile, 0, a);
            rest /= (unsigned)count[a];
            entry += (distance + nh_axis_window(a) - 1) * nh_bias_step(a);
            at[a] = distance + work_tile.row[a] + row - work_tile.column[a] -
                    info.visibility.begin[nh_rows_before(a) + row];
        }
        float sum = 0.f;
        NH_UNROLL for (int r = 0; r < 16; r++) {
            int x = at[0] + nh_row_at(0, r, 0), y = at[1] + nh_row_at(0, r, 1), z = at[2] + nh_row_at(0, r, 2);
            if ((unsigned)x < C.columns[0] && (unsigned)y < C.columns[1] && (unsigned)z < C.columns[2])
                sum += nh_load(rows[r][(x * C.columns[1] + y) * C.columns[2] + z]);
        }
        sums.sum[warp][entry] += sum;
    }
    __syncwarp();
}

/* Writes the warp's sums for heads head .. next - 1; only the first has sums that are not zero. */
NH_DEVICE void nh_bias_flush(const nh_tiled_args &args, int head, int next, nh_bias_sums &sums,
                             nh_bias_products &products) {
    const nh_cuda_tensor &partial = args.tensor[NH_D_S];
    const int warp = (int)(threadIdx.x / 32);
    const long long share = (long long)NH_OWN_BLOCK * C.warps + warp;
    int entry_inside = 0;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
        entry_inside += (nh_axis_window(a) - 1 - nh_axis_window(a) / 2) * nh_bias_step(a);
    nh_bias_products_flush(products, (float *)sums.d_scores[warp], sums.sum[warp] + entry_inside);
    for (int h = head; h < next; h++) {
        float *to = (float *)partial.data + h * partial.head + share * C.bias_count;
        for (int entry = (int)(threadIdx.x % 32); entry < C.bias_count; entry += 32) {
            to[entry] = sums.sum[warp][entry];
            sums.sum[warp][entry] = 0.f;
        }
    }
}

/* Called before a warp's work tile of `head`; `summed_head` is the head whose gradient the warp has been adding up. */
NH_DEVICE void nh_bias_head(const nh_tiled_args &args, int &summed_head, int head, nh_bias_sums &sums,
                            nh_bias_products &products) {
    if (!nh_bias_wanted(args) || head == summed_head) return;
    nh_bias_flush(args, summed_head, head, sums, products);
    summed_head = head;
}

} // namespace nh_small
