/* Sums of rows weighted by a band of A, as products of a gathered block of weights with chunks of rows on tensor
 * cores: nn, O[i] = scale * sum over n of A[i, n] V[N(i, n)]; with NH_INVERSE in, the sum over the queries i of all
 * heads of the group that attend key j of A[i, n] V[i]. NH_V names the rows, NH_O the sums, whichever they are.
 *
 * Weights of the next chunk are read into registers, lanes along the slots, while this chunk is multiplied: 16-bit
 * weights start at any even address, which asynchronous copies cannot read. Weights outside a window are zero.
 *
 * Zero times NaN is NaN, so a row that is not finite spoils sums that do not contain it. Such tiles are seen by
 * their sums and made again one product at a time. */
#include "gemm_tile.cuh"
#include "gemm_fragment.cuh"

#define STRIDE (NH_WIDTH + NH_PAD_DOWN)
#define WEIGHT_STRIDE (NH_COLUMNS + NH_PAD_ALONG)
#define LANE_WEIGHTS (NH_COLUMNS / 2)

static __shared__ nh_tile tile;
static __shared__ long long sum_offset[NH_ROWS];
/* Two in turn: the next chunk's are written while this chunk's are read. */
static __shared__ long long row_offset[2][NH_COLUMNS];
#if NH_INVERSE
static __shared__ nh_query queries[2][NH_COLUMNS];
#else
static __shared__ nh_query queries[NH_ROWS];
#endif
extern __shared__ __align__(16) char matrices[];

/* The query heads of a key head. */
NH_DEVICE int group_of(const nh_cuda_args &args) {
    return (int)args.heads / (int)args.kv_heads;
}

NH_DEVICE void set_rows(const nh_cuda_args &args) {
    int row = (int)threadIdx.x, position[3];
    if (row >= NH_ROWS) return;
    bool exists = nh_tile_row(tile, row, position);
#if !NH_INVERSE
    nh_query_set(&queries[row], tile, args, position, tile.head, exists);
#endif
    sum_offset[row] = exists ? nh_tile_offset(tile, args, NH_O, position, tile.head) : NH_NONE;
}

/* Chunk number `turn` of all: with NH_INVERSE every head of the group in turn walks the box. */
NH_DEVICE void set_columns(const nh_cuda_args &args, int turn, int chunks) {
    int chunk = turn % chunks;
    int head = NH_INVERSE ? tile.head * group_of(args) + turn / chunks : tile.head / group_of(args);
#pragma unroll 1
    for (int column = (int)threadIdx.x; column < NH_COLUMNS; column += NH_THREADS) {
        int position[3];
        bool exists = nh_tile_opposite(tile, chunk * NH_COLUMNS + column, position);
#if NH_INVERSE
        nh_query_set(&queries[turn % 2][column], tile, args, position, head, exists);
#endif
        row_offset[turn % 2][column] =
            exists ? nh_tile_offset(tile, args, NH_V, position, head) : NH_NONE;
    }
}

/* One chunk's weights of the warp's 16 rows, on their way from A to shared memory. */
struct weights {
    elem weight[LANE_WEIGHTS];
    bool any; /* of the warp */
#if NH_INVERSE
    /* of row lane % 16: its key, and the columns from its first query to its last */
    nh_key key;
    int first, end;
#else
    /* of query lane % 16, the keys number first to end are in the chunk */
    int first, end;
    nh_divisor divisor[3];
#endif
};

NH_DEVICE void weights_init(weights *w, const nh_cuda_args &args) {
#if NH_INVERSE
    int position[3];
    bool exists = nh_tile_row(tile, (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 16, position);
    nh_key_set(&w->key, tile, args, position, exists);
    w->first = w->end = 0;
    for (int a = 0; exists && a < 3; a++) {
        nh_range reach = nh_tile_reach(args.axis[a], tile.axis[a].length, position[a]);
        w->first = w->first * tile.axis[a].span + (int)reach.begin - tile.axis[a].low;
        w->end = w->end * tile.axis[a].span + (int)reach.end - 1 - tile.axis[a].low;
    }
    w->end += exists;
#else
    w->end = 0;
    for (int a = 0; a < 3; a++)
        w->divisor[a] = nh_divisor_of((int)args.axis[a].window);
#endif
}

#if NH_INVERSE

/* Lanes run along keys: lane % 16 names the row, and half a warp each the even and odd columns. */
NH_DEVICE void gather(weights *w, const nh_cuda_args &args, int turn, int chunks) {
    const elem *a = (const elem *)args.tensor[NH_A].data;
    int column = turn % chunks * NH_COLUMNS, half = (int)threadIdx.x % 32 / 16;
    w->any = __any_sync(0xffffffffu, w->first < column + NH_COLUMNS && column < w->end);
    if (!w->any) return;
#pragma unroll
    for (int i = 0; i < LANE_WEIGHTS; i++) {
        const nh_query &query = queries[turn % 2][half + 2 * i];
        w->weight[i] = nh_attends(query, w->key, args) ? a[query.weights + w->key.slot] : (elem)0;
    }
}

NH_DEVICE void deposit(const weights *w, const nh_cuda_args &args, elem *block, int turn) {
    int lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < LANE_WEIGHTS; i++)
        block[lane % 16 * WEIGHT_STRIDE + lane / 16 + 2 * i] = w->weight[i];
    __syncwarp();
}

#else

/* Some of the queries' weights, 32 of each at most: lanes run along the slots, which are consecutive. */
NH_DEVICE void gather_some(elem *weight, const weights &w, const nh_cuda_args &args, int some,
                           int share) {
    const elem *a = (const elem *)args.tensor[NH_A].data;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < NH_TOGETHER; i++) {
        int n = __shfl_sync(0xffffffffu, w.first, some + i) + lane + 32 * share;
        bool exists = n < __shfl_sync(0xffffffffu, w.end, some + i);
        const nh_query &query = queries[16 * warp + some + i];
        int slot = nh_slot_of(query, args, n, nh_key_digits(query, w.divisor, n));
        if (exists) weight[i] = a[query.weights + slot];
    }
}

NH_DEVICE void deposit_some(const elem *weight, const weights &w, const nh_cuda_args &args,
                            elem *block, nh_spans spans, int turn, int some, int share) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < NH_TOGETHER; i++) {
        int n = __shfl_sync(0xffffffffu, w.first, some + i) + lane + 32 * share;
        bool exists = n < __shfl_sync(0xffffffffu, w.end, some + i);
        const nh_query &query = queries[16 * warp + some + i];
        int column = nh_column_of(query, args, spans, n, nh_key_digits(query, w.divisor, n)) -
                     turn * NH_COLUMNS;
        if (exists) block[(some + i) * WEIGHT_STRIDE + column] = weight[i];
    }
}

NH_DEVICE void gather(weights *w, const nh_cuda_args &args, int turn, int chunks) {
    int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 16;
    w->first = w->end;
    w->end = nh_keys_before(queries[row], tile, args, (turn + 1) * NH_COLUMNS);
    w->any = __any_sync(0xffffffffu, w->first < w->end);
#pragma unroll
    for (int i = 0; i < LANE_WEIGHTS; i += NH_TOGETHER)
        if (nh_rows_have(w->first, w->end, i / 16, i % 16))
            gather_some(w->weight + i, *w, args, i % 16, i / 16);
}

NH_DEVICE void deposit(const weights *w, const nh_cuda_args &args, elem *block, int turn) {
    nh_vector<16 / sizeof(elem)> *zeros = (nh_vector<16 / sizeof(elem)> *)block;
    const nh_vector<16 / sizeof(elem)> zero = {};
    for (int i = (int)threadIdx.x % 32; i < 16 * WEIGHT_STRIDE / (int)(16 / sizeof(elem)); i += 32)
        zeros[i] = zero;
    __syncwarp();
    const nh_spans spans = nh_spans_of(tile);
#pragma unroll
    for (int i = 0; i < LANE_WEIGHTS; i += NH_TOGETHER)
        if (nh_rows_have(w->first, w->end, i / 16, i % 16))
            deposit_some(w->weight + i, *w, args, block, spans, turn, i % 16, i / 16);
    __syncwarp();
}

#endif

NH_DEVICE void multiply(float sum[NH_WIDTH / 8][4], const elem *block, const elem *rows,
                        int lane) {
#if NH_SHORT_CHAINS
    static_assert(NH_COLUMNS <= NH_CHAIN, "one chunk, one chain");
#pragma unroll
    for (int n = 0; n < NH_WIDTH / 16; n++) {
        float part[2][4] = {};
#pragma unroll 2
        for (int step = 0; step < NH_COLUMNS; step += NH_STEP) {
            nh_left left;
            nh_right right;
            nh_left_load(&left, block + step, WEIGHT_STRIDE, lane);
            nh_right_load_columns(&right, rows + step * STRIDE + n * 16, STRIDE, lane);
            nh_multiply(part, &left, &right);
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[2 * n + i / 4][i % 4] += part[i / 4][i % 4];
    }
#else
#pragma unroll 2
    for (int step = 0; step < NH_COLUMNS; step += NH_STEP) {
        nh_left left;
        nh_left_load(&left, block + step, WEIGHT_STRIDE, lane);
#pragma unroll
        for (int n = 0; n < NH_WIDTH / 16; n++) {
            nh_right right;
            nh_right_load_columns(&right, rows + step * STRIDE + n * 16, STRIDE, lane);
            nh_multiply(sum + 2 * n, &left, &right);
        }
    }
#endif
}

/* One sum, product by product, over exactly the pairs in a window. Not inlined: rare, and long. */
static __device__ __noinline__ float exact_sum(const nh_cuda_args &args, const int position[3], int c) {
    const elem *a = (const elem *)args.tensor[NH_A].data, *rows = (const elem *)args.tensor[NH_V].data;
    nh_range range[3];
    for (int d = 0; d < 3; d++)
        range[d] = nh_tile_reach(args.axis[d], tile.axis[d].length, position[d]);
    int heads = NH_INVERSE ? group_of(args) : 1;
    float sum = 0;
    for (int h = 0; h < heads; h++)
        for (int x = (int)range[0].begin; x < range[0].end; x++)
            for (int y = (int)range[1].begin; y < range[1].end; y++)
                for (int z = (int)range[2].begin; z < range[2].end; z++) {
                    int other[3] = {x, y, z};
                    int head = NH_INVERSE ? tile.head * heads + h : tile.head / group_of(args);
                    const int *key = NH_INVERSE ? position : other;
                    nh_query query;
                    nh_query_set(&query, tile, args, NH_INVERSE ? other : position,
                                 NH_INVERSE ? head : tile.head, true);
                    int slot = 0;
                    for (int d = 0; d < 3; d++)
                        slot = slot * (int)args.axis[d].window + key[d] - tile.axis[d].base -
                               (NH_INVERSE ? 0 : query.begin[d]);
                    sum = fmaf(nh_load(a[query.weights + slot]),
                               nh_load(rows[nh_tile_offset(tile, args, NH_V, other, head) + c]),
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
            if (nh_tile_row(tile, row, position))
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
    if (!nh_tile_set(&tile, args, (unsigned)(NH_INVERSE ? args.kv_heads : args.heads))) return;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, dim = (int)args.dim_v;
    elem *rows = (elem *)matrices;
    elem *block = rows + 2 * NH_COLUMNS * STRIDE + warp * 16 * WEIGHT_STRIDE;
    const elem *data = (const elem *)args.tensor[NH_V].data;
    int chunks = (nh_tile_columns(tile) + NH_COLUMNS - 1) / NH_COLUMNS;
    int turns = chunks * (NH_INVERSE ? group_of(args) : 1);
    weights w;
    bool any = false;
    float sum[NH_WIDTH / 8][4] = {};
    weights_init(&w, args);
    set_rows(args);
    /* Three stages, a turn apart: where a chunk's rows are, copying them and their weights, their products. */
    for (int turn = -1; turn <= turns; turn++) {
        bool here = turn >= 0 && turn < turns;
        if (here) {
            nh_rows_load<NH_COLUMNS>(rows + turn % 2 * NH_COLUMNS * STRIDE, STRIDE, data,
                                     row_offset[turn % 2], dim);
            gather(&w, args, turn, chunks);
        }
        if (any) multiply(sum, block, rows + (turn - 1) % 2 * NH_COLUMNS * STRIDE, lane);
        __syncwarp();
        any = here && w.any;
        if (any) deposit(&w, args, block, turn);
        if (turn + 1 < turns) set_columns(args, turn + 1, chunks);
        nh_copy_wait();
        __syncthreads();
    }
    finish(args, sum, (elem *)matrices, warp, lane);
    nh_rows_store((elem *)args.tensor[NH_O].data, sum_offset, (elem *)matrices, STRIDE, dim);
}
