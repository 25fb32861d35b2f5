/* O[i] = sum over n of P[i, n] V[N(i, n)], part by part of the tile's box (gemm_part.cuh). A warp's weights go into a
 * block of its 16 queries and the columns that they meet, zero outside windows.
 *
 * Zero times NaN is NaN, so a row that is not finite spoils sums that do not contain it. Such tiles are seen by
 * their sums and made again one product at a time. */
#include "gemm_part.cuh"
#include "gemm_sums.cuh"

#define STRIDE NH_SUM_STRIDE
/* Slots of a row that a lane takes. */
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

/* Copies the weights of the warp's queries in a part to shared memory, asynchronously. */
NH_DEVICE void gather(elem *weights, const nh_cuda_args &args, int part) {
    const nh_query *of_warp = queries + (int)threadIdx.x / 32 * 16;
    const elem *a = (const elem *)args.tensor[NH_A].data;
#pragma unroll 4
    for (int i = (int)threadIdx.x % 32; i < 16 * NH_PART_PIECES; i += 32) {
        int row = i / NH_PART_PIECES, slot = i % NH_PART_PIECES * NH_PIECE_SLOTS;
        const nh_query &query = of_warp[row];
        int own = part - nh_first_part(query);
        bool here = nh_has_part(query, args, own);
        const elem *from = here ? a + query.weights + own * NH_PART_ROW + slot : a;
        elem *to = weights + i * NH_PIECE_SLOTS;
        nh_copy16(to, from, here);
    }
}

/* Puts each weight into the column of its key. */
NH_DEVICE void deposit(const elem *weights, const int column[SHARES], elem *block, int block_stride,
                       nh_warp_range range) {
    const nh_query *of_warp = queries + (int)threadIdx.x / 32 * 16;
    const nh_spans spans = nh_spans_of(tile);
#pragma unroll 4
    for (int row = 0; row < 16; row++) {
        const nh_query &query = of_warp[row];
        if (query.begin[0] == NH_NOWHERE) continue;
        const elem *from = weights + row * NH_PART_ROW + threadIdx.x % 32;
        elem *to = block + row * block_stride + nh_part_begin(query, spans) - range.column;
#pragma unroll
        for (int share = 0; share < SHARES; share++)
            if ((int)threadIdx.x % 32 + 32 * share < NH_SLOTS) to[column[share]] = from[32 * share];
    }
}

/* Zeros once: a query's columns are the same in every part. */
NH_DEVICE void clear(elem *block, int block_stride) {
    nh_vector<16 / sizeof(elem)> *zeros = (nh_vector<16 / sizeof(elem)> *)block;
    const nh_vector<16 / sizeof(elem)> zero = {};
    for (int i = (int)threadIdx.x % 32; i < 16 * block_stride / (int)(16 / sizeof(elem)); i += 32)
        zeros[i] = zero;
    __syncwarp();
}

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    gemm_part_nn(const __grid_constant__ nh_cuda_args args) {
    if (!nh_tile_set(&tile, args, (unsigned)args.heads)) return;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, dim = (int)args.dim_v;
    const nh_part_bounds bounds = nh_part_bounds_of(tile, args);
    int block_stride = bounds.columns + NH_PAD_ALONG, parts = nh_parts(tile);
    long long *row_offset = (long long *)matrices;
    elem *rows = (elem *)(row_offset + bounds.rows);
    elem *blocks = rows + (NH_PLANES ? 2 : 1) * bounds.rows * STRIDE,
         *block = blocks + warp * 16 * block_stride;
    elem *weights = blocks + NH_ROWS * block_stride + warp * 16 * NH_PART_ROW;
    const elem *data = (const elem *)args.tensor[NH_V].data;
    set_rows(args);
    nh_part_places(place, args, tile.axis[1].span, tile.axis[2].span);
    nh_part_rows(row_offset, tile, args, NH_V, tile.head / nh_group_heads(args), bounds.rows);
    __syncthreads();
    gather(weights, args, 0);
    nh_rows_load(bounds.rows, rows, STRIDE, data, row_offset, dim);
    const nh_warp_range range = nh_warp_range_of(queries + warp * 16, place, tile, args);
    int column[SHARES];
#pragma unroll
    for (int share = 0; share < SHARES; share++)
        column[share] = place[min(lane + 32 * share, NH_SLOTS - 1)];
    float sum[NH_WIDTH / 8][4] = {};
    clear(block, block_stride);
#pragma unroll 1
    for (int part = 0; part < parts; part++) {
        bool here = range.first <= part && part < range.end;
        nh_copy_wait();
        __syncthreads();
        if (here) deposit(weights, column, block, block_stride, range);
        __syncwarp();
        if (NH_PLANES && part + 1 < parts) {
            gather(weights, args, part + 1);
            nh_rows_load(bounds.rows, rows + (part + 1) % 2 * bounds.rows * STRIDE, STRIDE,
                         data + (part + 1) * nh_part_step(args, NH_V), row_offset, dim);
        }
        const elem *of_warp =
            rows + ((NH_PLANES ? part % 2 * bounds.rows : 0) + range.column) * STRIDE;
        for (int column = 0; here && column < range.columns; column += NH_COLUMNS)
            nh_sums_add(sum, block + column, block_stride, of_warp + column * STRIDE,
                        min(NH_COLUMNS, (range.columns - column + NH_STEP - 1) / NH_STEP * NH_STEP),
                        lane);
        __syncwarp();
    }
    /* Sums take the place of rows that others may still read. */
    __syncthreads();
    nh_sums_finish(tile, args, sum, rows);
    nh_rows_store((elem *)args.tensor[NH_O].data, sum_offset, rows, STRIDE, dim);
}
