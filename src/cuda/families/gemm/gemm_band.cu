/* Sums of rows weighted by a band of A, as products of a gathered block of weights with chunks of rows on tensor cores:
 * nn O[i] = scale * sum over n of A[i, n] V[N(i, n)]; in, BY_KEYS, the sum of A[i, n] V[i] over the queries i that
 * attend key j, of all heads of its group. The rows are NH_V, and the sums NH_O, in either case.
 *
 * Weights of the next chunk are read into registers, with lanes along the slots, while this chunk is multiplied: 16-bit
 * weights start at any even address, from which asynchronous copies cannot read. Weights outside a window are zero.
 * Zero times NaN is NaN, so tiles whose sums are not finite are computed again, one product at a time. */
#include "gemm_sums.cuh"
#include "overlap.cuh"

namespace nh_gemm {

enum { STRIDE = SUM_STRIDE, WEIGHT_STRIDE = gemm_stride_along(&C, C.columns), LANE_WEIGHTS = C.columns / 2 };

static __shared__ nh_tile tile;
static __shared__ long long sum_offset[NH_ROWS];
/* Double buffers: the next chunk's entries are written while this chunk's are read. */
static __shared__ long long row_offset[2][C.columns];
/* Those of the tile's rows or, BY_KEYS, of two chunks of columns. */
static __shared__ nh_query queries[BY_KEYS ? 2 * C.columns : NH_ROWS];
extern __shared__ __align__(16) char matrices[];

NH_DEVICE void set_rows(const nh_cuda_args &args) {
    int row = (int)threadIdx.x, position[3];
    if (row >= NH_ROWS) return;
    bool exists = nh_tile_row(tile, row, position);
    if (!BY_KEYS) nh_query_set(&queries[row], tile, args, position, tile.head, exists);
    sum_offset[row] = exists ? nh_tile_offset(tile, args, NH_O, position, tile.head) : NH_NONE;
}

/* Fills in the columns of chunk number `step`. BY_KEYS, every head of the group goes over the box in turn. */
NH_DEVICE void set_columns(const nh_cuda_args &args, int step, int chunks) {
    int chunk = step % chunks;
    int head = BY_KEYS ? tile.head * nh_group_heads(args) + step / chunks : nh_key_head(args, tile.head);
    NH_UNROLL_1 for (int column = (int)threadIdx.x; column < C.columns; column += NH_THREADS) {
        int position[3];
        bool exists = nh_tile_opposite(tile, chunk * C.columns + column, position);
        if (BY_KEYS) nh_query_set(&queries[step % 2 * C.columns + column], tile, args, position, head, exists);
        row_offset[step % 2][column] = exists ? nh_tile_offset(tile, args, NH_V, position, head) : NH_NONE;
    }
}

/* One chunk's weights of the warp's 16 rows, on their way from A to shared memory. */
struct weights {
    elem weight[LANE_WEIGHTS];
    bool any; /* whether the warp has keys in the chunk */
    /* For query lane % 16: the numbers of the keys that are in the chunk, [first, end). BY_KEYS, for row lane % 16: its
     * key, and the range of columns from its first query to its last. */
    int first, end;
    nh_divisor divisor[3];
    nh_key key;
};

NH_DEVICE void weights_init(weights *w, const nh_cuda_args &args) {
    w->end = 0;
    for (int a = 0; a < 3 && !BY_KEYS; a++)
        w->divisor[a] = nh_divisor_of((int)args.axis[a].window);
    if (!BY_KEYS) return;
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
}

/* ---- by keys ---- */

/* Reads weights with lanes along keys: lane % 16 is the row; half of a warp reads even columns, the other odd ones. */
NH_DEVICE void gather_by_keys(weights *w, const nh_cuda_args &args, int step, int chunks) {
    const elem *a = (const elem *)args.tensor[NH_A].data;
    int column = step % chunks * C.columns, half = (int)threadIdx.x % 32 / 16;
    w->any = __any_sync(0xffffffffu, w->first < column + C.columns && column < w->end);
    if (!w->any) return;
    NH_UNROLL for (int i = 0; i < LANE_WEIGHTS; i++) {
        const nh_query &query = queries[step % 2 * C.columns + half + 2 * i];
        w->weight[i] = nh_attends(query, w->key, args) ? a[query.weights + w->key.slot] : (elem)0;
    }
}

NH_DEVICE void deposit_by_keys(const weights *w, elem *block) {
    int lane = (int)threadIdx.x % 32;
    NH_UNROLL for (int i = 0; i < LANE_WEIGHTS; i++)
        block[lane % 16 * WEIGHT_STRIDE + lane / 16 + 2 * i] = w->weight[i];
    __syncwarp();
}

/* ---- by queries ---- */

/* Reads weights of some of the queries, at most 32 of each, with lanes along the slots, which are consecutive. */
NH_DEVICE void gather_some(elem *weight, const weights &w, const nh_cuda_args &args, int some, int share) {
    const elem *a = (const elem *)args.tensor[NH_A].data;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    NH_UNROLL for (int i = 0; i < NH_TOGETHER; i++) {
        int n = __shfl_sync(0xffffffffu, w.first, some + i) + lane + 32 * share;
        bool exists = n < __shfl_sync(0xffffffffu, w.end, some + i);
        const nh_query &query = queries[16 * warp + some + i];
        int slot = nh_slot_of(query, args, n, nh_key_digits(query, w.divisor, n));
        if (exists) weight[i] = a[query.weights + slot];
    }
}

NH_DEVICE void deposit_some(const elem *weight, const weights &w, const nh_cuda_args &args, elem *block, nh_spans spans,
                            int step, int some, int share) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    NH_UNROLL for (int i = 0; i < NH_TOGETHER; i++) {
        int n = __shfl_sync(0xffffffffu, w.first, some + i) + lane + 32 * share;
        bool exists = n < __shfl_sync(0xffffffffu, w.end, some + i);
        const nh_query &query = queries[16 * warp + some + i];
        int column = nh_column_of(query, args, spans, n, nh_key_digits(query, w.divisor, n)) - step * C.columns;
        if (exists) block[(some + i) * WEIGHT_STRIDE + column] = weight[i];
    }
}

NH_DEVICE void gather(weights *w, const nh_cuda_args &args, int step, int chunks) {
    if (BY_KEYS) return gather_by_keys(w, args, step, chunks);
    int row = (int)threadIdx.x / 32 * 16 + (int)threadIdx.x % 16;
    w->first = w->end;
    w->end = nh_keys_before(queries[row], tile, args, (step + 1) * C.columns);
    w->any = __any_sync(0xffffffffu, w->first < w->end);
    NH_UNROLL for (int i = 0; i < LANE_WEIGHTS; i += NH_TOGETHER)
        if (nh_rows_have(w->first, w->end, i / 16, i % 16)) gather_some(w->weight + i, *w, args, i % 16, i / 16);
}

NH_DEVICE void deposit(const weights *w, const nh_cuda_args &args, elem *block, int step) {
    if (BY_KEYS) return deposit_by_keys(w, block);
    nh_vector<16 / sizeof(elem)> *zeros = (nh_vector<16 / sizeof(elem)> *)block;
    const nh_vector<16 / sizeof(elem)> zero = {};
    for (int i = (int)threadIdx.x % 32; i < 16 * WEIGHT_STRIDE / (int)(16 / sizeof(elem)); i += 32)
        zeros[i] = zero;
    __syncwarp();
    const nh_spans spans = nh_spans_of(tile);
    NH_UNROLL for (int i = 0; i < LANE_WEIGHTS; i += NH_TOGETHER)
        if (nh_rows_have(w->first, w->end, i / 16, i % 16))
            deposit_some(w->weight + i, *w, args, block, spans, step, i % 16, i / 16);
    __syncwarp();
}

} // namespace nh_gemm

using namespace nh_gemm;

extern "C" __global__ void __launch_bounds__(NH_THREADS) gemm_band(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    nh_follow_launches();
    if (!nh_tile_set(&tile, args, (unsigned)(BY_KEYS ? args.kv_heads : args.heads))) return;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, dim = (int)args.dim_v;
    elem *rows = (elem *)matrices;
    elem *block = rows + 2 * C.columns * STRIDE + warp * 16 * WEIGHT_STRIDE;
    const elem *data = (const elem *)args.tensor[NH_V].data;
    int chunks = (nh_tile_columns(tile) + C.columns - 1) / C.columns;
    int steps = chunks * (BY_KEYS ? nh_group_heads(args) : 1);
    weights w;
    bool any = false;
    float sum[C.width / 8][4] = {};
    weights_init(&w, args);
    set_rows(args);
    /* A software pipeline of three stages, one step apart: rows are located, copied with their weights, multiplied. */
    for (int step = -1; step <= steps; step++) {
        bool here = step >= 0 && step < steps;
        if (here) {
            nh_rows_load(C.columns, rows + step % 2 * C.columns * STRIDE, STRIDE, data, row_offset[step % 2], dim);
            gather(&w, args, step, chunks);
        }
        if (any) nh_sums_add(sum, block, WEIGHT_STRIDE, rows + (step - 1) % 2 * C.columns * STRIDE, lane);
        __syncwarp();
        any = here && w.any;
        if (any) deposit(&w, args, block, step);
        if (step + 1 < steps) set_columns(args, step + 1, chunks);
        nh_copy_wait();
        __syncthreads();
    }
    nh_sums_finish(tile, args, sum, (elem *)matrices);
    nh_rows_store((elem *)args.tensor[NH_O].data, sum_offset, (elem *)matrices, STRIDE, dim);
}
