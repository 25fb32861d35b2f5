/* O[i] = sum over n of P[i, n] V[N(i, n)], part by part of the tile's box (gemm_part.cuh). The weights of 16 queries
 * are put into a block with the columns that these need, with zeros outside windows; each warp of a team then
 * multiplies it with some of the columns of V.
 *
 * Zero times NaN is NaN, so a row that is not finite spoils sums that do not contain it. Such tiles are recognized by
 * their sums, which are then computed again one product at a time. */
#include "gemm_part.cuh"
#include "gemm_sums.cuh"
#include "overlap.cuh"

#define STRIDE NH_SUM_STRIDE
/* Wide sums need more registers, so that fewer blocks are resident. */
#define LEAST_BLOCKS (NH_SUM_WIDTH > 64 ? 1 : NH_LEAST_BLOCKS)
/* Slots of a row per lane. */
#define SHARES ((NH_SLOTS + 31) / 32)

static __shared__ nh_tile tile;
static __shared__ long long sum_offset[NH_ROWS];
static __shared__ nh_query queries[NH_ROWS];
static __shared__ unsigned short place[NH_SLOTS];
extern __shared__ __align__(16) char matrices[];

NH_DEVICE void set_rows(const nh_cuda_args &args) {
    int row = (int)threadIdx.x, position[3];
    if (row >= NH_ROWS) return;
    bool exists = nh_tile_row(tile, row, position);
    nh_query_set(&queries[row], tile, args, position, tile.head, exists);
    sum_offset[row] = exists ? nh_tile_offset(tile, args, NH_O, position, tile.head) : NH_NONE;
}

/* Starts to copy the weights of the warp's rows in a part to shared memory. */
NH_DEVICE void gather(elem *weights, const nh_cuda_args &args, int head, int part) {
    const elem *a = (const elem *)args.tensor[NH_A].data + head * args.tensor[NH_A].head;
#pragma unroll 2
    for (int i = (int)threadIdx.x % 32; i < NH_OWN_ROWS * NH_PART_PIECES; i += 32) {
        int row = (int)threadIdx.x / 32 * NH_OWN_ROWS + i / NH_PART_PIECES;
        int slot = i % NH_PART_PIECES * NH_PIECE_SLOTS;
        const nh_query &query = queries[row];
        int own = part - nh_first_part(query);
        bool here = nh_has_part(query, args, own);
        nh_copy16(weights + row * NH_PART_ROW + slot,
                  here ? a + query.weights + own * NH_PART_ROW + slot : a, here);
    }
}

/* Writes each weight of the warp's rows to the column of its key. */
NH_DEVICE void deposit(const elem *weights, const int column[SHARES], elem *blocks,
                       int block_stride, nh_warp_range range) {
    const nh_spans spans = nh_spans_of(tile);
#pragma unroll 4
    for (int i = 0; i < NH_OWN_ROWS; i++) {
        int row = (int)threadIdx.x / 32 * NH_OWN_ROWS + i;
        const nh_query &query = queries[row];
        if (query.begin[0] == NH_NOWHERE) continue;
        const elem *from = weights + row * NH_PART_ROW + threadIdx.x % 32;
        elem *to = blocks + row * block_stride + nh_part_begin(query, spans) - range.column;
#pragma unroll
        for (int share = 0; share < SHARES; share++)
            if ((int)threadIdx.x % 32 + 32 * share < NH_SLOTS) to[column[share]] = from[32 * share];
    }
}

/* Clears the blocks. Once is enough, as a query's columns are the same in every part and head. */
NH_DEVICE void clear(elem *blocks, int block_stride) {
    nh_vector<16 / sizeof(elem)> *zeros = (nh_vector<16 / sizeof(elem)> *)blocks;
    const nh_vector<16 / sizeof(elem)> zero = {};
    for (int i = (int)threadIdx.x; i < NH_ROWS * block_stride / (int)(16 / sizeof(elem));
         i += NH_THREADS)
        zeros[i] = zero;
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, LEAST_BLOCKS)
    gemm_part_nn(const __grid_constant__ nh_gemm_part_args args) {
    nh_follow_launches();
    int heads = args.part.block_heads;
    if (!nh_tile_set(&tile, args, (unsigned)args.heads / (unsigned)heads, heads)) return;
    int group = (int)threadIdx.x / 32 / NH_TEAM, member = (int)threadIdx.x / 32 % NH_TEAM;
    int lane = (int)threadIdx.x % 32, dim = (int)args.dim_v;
    const nh_part_bounds bounds = nh_part_bounds_of(tile, args);
    int block_stride = bounds.columns + NH_PAD_ALONG, parts = nh_parts(tile), first = tile.head;
    long long *row_offset = (long long *)matrices;
    elem *rows = (elem *)(row_offset + bounds.rows);
    elem *blocks = rows + (NH_PLANES ? 2 : 1) * bounds.rows * STRIDE;
    elem *weights = blocks + NH_ROWS * block_stride;
    set_rows(args);
    nh_part_places(place, args, tile.axis[1].span, tile.axis[2].span);
    nh_part_rows(row_offset, tile, args, NH_V, bounds.rows);
    __syncthreads();
    const nh_warp_range range = nh_warp_range_of(queries + group * 16, place, tile, args);
    int column[SHARES];
#pragma unroll
    for (int share = 0; share < SHARES; share++)
        column[share] = place[min(lane + 32 * share, NH_SLOTS - 1)];
    clear(blocks, block_stride);
#pragma unroll 1
    for (int head = 0; head < heads; head++) {
        const elem *data = nh_part_data(args, NH_V, first, head, 0);
        float sum[NH_SUM_WIDTH / 8][4] = {};
        gather(weights, args, head, 0);
        nh_rows_load(bounds.rows, rows, STRIDE, data, row_offset, dim);
#pragma unroll 1
        for (int part = 0; part < parts; part++) {
            bool here = range.first <= part && part < range.end;
            nh_copy_wait();
            __syncthreads();
            if (here) deposit(weights, column, blocks, block_stride, range);
            __syncthreads();
            if (NH_PLANES && part + 1 < parts) {
                gather(weights, args, head, part + 1);
                nh_rows_load(bounds.rows, rows + (part + 1) % 2 * bounds.rows * STRIDE, STRIDE,
                             data + (part + 1) * nh_part_step(args, NH_V), row_offset, dim);
            }
            const elem *of_range =
                rows + ((NH_PLANES ? part % 2 * bounds.rows : 0) + range.column) * STRIDE +
                member * NH_SUM_WIDTH;
            for (int from = 0; here && from < range.columns; from += NH_COLUMNS)
                nh_sums_add(
                    sum, blocks + group * 16 * block_stride + from, block_stride,
                    of_range + from * STRIDE,
                    min(NH_COLUMNS, (range.columns - from + NH_STEP - 1) / NH_STEP * NH_STEP),
                    lane);
        }
        /* Sums overwrite rows that other warps may still read. */
        __syncthreads();
        nh_sums_finish(tile, args, sum, rows);
        nh_rows_store((elem *)args.tensor[NH_O].data + head * args.tensor[NH_O].head, sum_offset,
                      rows, STRIDE, dim);
        __syncthreads();
        if (threadIdx.x == 0) tile.head++;
    }
}
