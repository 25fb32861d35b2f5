/* Sums of rows weighted by a band of A, as products of a gathered block of weights with chunks of rows on tensor
 * cores: nn, O[i] = scale * sum over n of A[i, n] V[N(i, n)]; with NH_INVERSE in, the sum over the queries i of all
 * heads of the group that attend key j of A[i, n] V[i]. NH_V names the rows, NH_O the sums, whichever they are.
 *
 * Weights of the next chunk are read into registers, lanes along the slots, while this chunk is multiplied: 16-bit
 * weights start at any even address, which asynchronous copies cannot read. Weights outside a window are zero.
 *
 * Zero times NaN is NaN, so a row that is not finite spoils sums that do not contain it. Such tiles are seen by
 * their sums and made again one product at a time. */
#include "gemm_fragment.cuh"
#include "gemm_tile.cuh"

#define STRIDE (NH_WIDTH + NH_PAD_DOWN)
#define WEIGHT_STRIDE (NH_COLUMNS + NH_PAD_ALONG)
#define LANE_WEIGHTS (NH_COLUMNS / 2)

static __shared__ nh_tile tile;
static __shared__ long long sum_offset[NH_ROWS];
/* Two in turn: the next chunk's are written while this chunk's are read. */
static __shared__ long long row_offset[2][NH_COLUMNS];
#if NH_INVERSE
static __shared__ nh_key keys[NH_ROWS];
static __shared__ nh_query queries[2][NH_COLUMNS];
#else
static __shared__ nh_key keys[2][NH_COLUMNS];
static __shared__ nh_query queries[NH_ROWS];
#endif
extern __shared__ __align__(16) char matrices[];

/* The query heads of a key head. */
NH_DEVICE int group_of(const nh_cuda_args &args) {
    return (int)(args.heads / args.kv_heads);
}

NH_DEVICE void set_rows(const nh_cuda_args &args) {
    for (int row = (int)threadIdx.x; row < NH_ROWS; row += NH_THREADS) {
        int position[3];
        bool exists = nh_tile_row(&tile, row, position);
#if NH_INVERSE
        nh_key_set(&keys[row], &tile, &args, position, exists);
#else
        nh_query_set(&queries[row], &tile, &args, position, tile.head, exists);
#endif
        sum_offset[row] =
            exists ? nh_tile_offset(&tile, &args, NH_O, position, tile.head) : NH_NONE;
    }
}

/* Chunk number `turn` of all: with NH_INVERSE every head of the group in turn walks the box. */
NH_DEVICE void set_columns(const nh_cuda_args &args, int turn, int chunks) {
    int chunk = turn % chunks;
    int head = NH_INVERSE ? tile.head * group_of(args) + turn / chunks : tile.head / group_of(args);
    for (int column = (int)threadIdx.x; column < NH_COLUMNS; column += NH_THREADS) {
        int position[3];
        bool exists = nh_tile_column(&tile, chunk * NH_COLUMNS + column, position);
#if NH_INVERSE
        nh_query_set(&queries[turn % 2][column], &tile, &args, position, head, exists);
#else
        nh_key_set(&keys[turn % 2][column], &tile, &args, position, exists);
#endif
        row_offset[turn % 2][column] =
            exists ? nh_tile_offset(&tile, &args, NH_V, position, head) : NH_NONE;
    }
}

/* Place of a lane's weight number i in the warp's 16 x NH_COLUMNS block: consecutive lanes at consecutive keys. */
NH_DEVICE int weight_row(int lane, int i) {
    return NH_INVERSE ? lane % 16 : i % 16;
}

NH_DEVICE int weight_column(int lane, int i) {
    return NH_INVERSE ? lane / 16 + 2 * i : lane + i / 16 * 32;
}

NH_DEVICE void gather(const nh_cuda_args &args, int turn, int warp, int lane,
                      elem weight[LANE_WEIGHTS]) {
    const elem *a = (const elem *)args.tensor[NH_A].data;
#pragma unroll
    for (int i = 0; i < LANE_WEIGHTS; i++) {
        int row = 16 * warp + weight_row(lane, i), column = weight_column(lane, i);
#if NH_INVERSE
        const nh_query *query = &queries[turn % 2][column];
        const nh_key *key = &keys[row];
#else
        const nh_query *query = &queries[row];
        const nh_key *key = &keys[turn % 2][column];
#endif
        weight[i] = nh_attends(query, key) ? a[query->weights + key->slot] : (elem)0;
    }
}

NH_DEVICE void multiply(float sum[NH_WIDTH / 8][4], const elem *weights, const elem *rows,
                        int lane) {
#pragma unroll 2
    for (int step = 0; step < NH_COLUMNS; step += NH_STEP) {
        nh_left left;
        nh_left_load(&left, weights + step, WEIGHT_STRIDE, lane);
#pragma unroll
        for (int n = 0; n < NH_WIDTH / 16; n++) {
            nh_right right;
            nh_right_load_columns(&right, rows + step * STRIDE + n * 16, STRIDE, lane);
            nh_multiply(sum + 2 * n, &left, &right);
        }
    }
}

/* One sum, product by product, over exactly the pairs in a window. */
NH_DEVICE float exact_sum(const nh_cuda_args &args, const int position[3], int c) {
    const elem *a = (const elem *)args.tensor[NH_A].data, *rows = (const elem *)args.tensor[NH_V].data;
    nh_range range[3];
    for (int d = 0; d < 3; d++)
        range[d] = nh_tile_reach(&args.axis[d], tile.axis[d].length, position[d]);
    int heads = NH_INVERSE ? group_of(args) : 1;
    float sum = 0;
    for (int h = 0; h < heads; h++)
        for (int x = (int)range[0].begin; x < range[0].end; x++)
            for (int y = (int)range[1].begin; y < range[1].end; y++)
                for (int z = (int)range[2].begin; z < range[2].end; z++) {
                    int other[3] = {x, y, z};
                    int head = NH_INVERSE ? tile.head * heads + h : tile.head / group_of(args);
                    nh_query query;
                    nh_key key;
                    nh_query_set(&query, &tile, &args, NH_INVERSE ? other : position,
                                 NH_INVERSE ? head : tile.head, true);
                    nh_key_set(&key, &tile, &args, NH_INVERSE ? position : other, true);
                    sum = fmaf(nh_load(a[query.weights + key.slot]),
                               nh_load(rows[nh_tile_offset(&tile, &args, NH_V, other, head) + c]),
                               sum);
                }
    return sum;
}

/* The tile's sums, rounded, in shared memory. */
NH_DEVICE void finish(const nh_cuda_args &args, float sum[NH_WIDTH / 8][4], elem *sums, int warp, int lane) {
    float scale = (float)args.scale;
    bool finite = true;
#pragma unroll
    for (int n = 0; n < NH_WIDTH / 8; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            finite = finite && fabsf(sum[n][i]) <= 3.402823466e38f;
    if (__syncthreads_or(!finite)) {
        for (int i = (int)threadIdx.x; i < NH_ROWS * (int)args.dim_v; i += NH_THREADS) {
            int row = i / (int)args.dim_v, c = i % (int)args.dim_v, position[3];
            if (nh_tile_row(&tile, row, position))
                sums[row * STRIDE + c] = nh_store(scale * exact_sum(args, position, c));
        }
    } else {
#pragma unroll
        for (int n = 0; n < NH_WIDTH / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sums[(16 * warp + lane / 4 + i / 2 * 8) * STRIDE + n * 8 + lane % 4 * 2 + i % 2] =
                    nh_store(scale * sum[n][i]);
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    gemm_band(const __grid_constant__ nh_cuda_args args) {
    if (!nh_tile_set(&tile, &args, (unsigned)(NH_INVERSE ? args.kv_heads : args.heads))) return;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, dim = (int)args.dim_v;
    elem *rows[2] = {(elem *)matrices, (elem *)matrices + NH_COLUMNS * STRIDE};
    elem *weights = (elem *)matrices + 2 * NH_COLUMNS * STRIDE + warp * 16 * WEIGHT_STRIDE;
    const elem *data = (const elem *)args.tensor[NH_V].data;
    int chunks = (nh_tile_columns(&tile) + NH_COLUMNS - 1) / NH_COLUMNS;
    int turns = chunks * (NH_INVERSE ? group_of(args) : 1);
    elem weight[LANE_WEIGHTS];
    float sum[NH_WIDTH / 8][4] = {};
    set_rows(args);
    set_columns(args, 0, chunks);
    __syncthreads();
    nh_rows_load(rows[0], STRIDE, data, row_offset[0], NH_COLUMNS, dim);
    gather(args, 0, warp, lane, weight);
    for (int turn = 0; turn < turns; turn++) {
        if (turn + 1 < turns) set_columns(args, turn + 1, chunks);
#pragma unroll
        for (int i = 0; i < LANE_WEIGHTS; i++)
            weights[weight_row(lane, i) * WEIGHT_STRIDE + weight_column(lane, i)] = weight[i];
        nh_copy_wait();
        __syncthreads();
        if (turn + 1 < turns) {
            nh_rows_load(rows[(turn + 1) % 2], STRIDE, data, row_offset[(turn + 1) % 2], NH_COLUMNS,
                         dim);
            gather(args, turn + 1, warp, lane, weight);
        }
        multiply(sum, weights, rows[turn % 2], lane);
        __syncwarp();
    }
    __syncthreads();
    finish(args, sum, (elem *)matrices, warp, lane);
    nh_rows_store((elem *)args.tensor[NH_O].data, sum_offset, (elem *)matrices, STRIDE, NH_ROWS, dim);
}
