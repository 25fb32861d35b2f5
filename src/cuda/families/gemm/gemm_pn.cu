/* A[i, n] = scale * q_i . k_N(i,n) (+ bias): a tile of queries, 16 per warp, times chunks of the box of all their keys,
 * on tensor cores. A warp's 16 x C.columns scores go through shared memory, so that consecutive lanes write consecutive
 * slots of A. Scores outside windows are ignored, and chunks without keys of the warp's queries are skipped. */
#include "gemm_scores.cuh"
#include "overlap.cuh"

namespace nh_gemm {

enum { STRIDE = SCORE_STRIDE, STAGE_STRIDE = gemm_score_stride(&C) };

static __shared__ nh_tile tile;
static __shared__ nh_query queries[NH_ROWS];
static __shared__ long long query_offset[NH_ROWS];
/* Double buffers: a chunk's offsets are written while the slowest warps still read those of the one before. */
static __shared__ long long key_offset[2][C.columns];
extern __shared__ __align__(16) char matrices[];

NH_DEVICE void set_queries(const nh_cuda_args &args) {
    int row = (int)threadIdx.x, position[3];
    if (row >= NH_ROWS) return;
    bool exists = nh_tile_row(tile, row, position);
    nh_query_set(&queries[row], tile, args, position, tile.head, exists);
    query_offset[row] = exists ? nh_tile_offset(tile, args, NH_Q, position, tile.head) : NH_NONE;
}

NH_DEVICE void set_keys(const nh_cuda_args &args, int chunk) {
    int kv_head = tile.head / ((int)args.heads / (int)args.kv_heads);
    NH_UNROLL_1 for (int column = (int)threadIdx.x; column < C.columns; column += NH_THREADS) {
        int position[3];
        bool exists = nh_tile_opposite(tile, chunk * C.columns + column, position);
        key_offset[chunk % 2][column] = exists ? nh_tile_offset(tile, args, NH_K, position, kv_head) : NH_NONE;
    }
}

/* The result of a product, before it is known whether the key exists: if not, the first bias entry is read. */
NH_DEVICE float score_of(const nh_cuda_args &args, const nh_query &query, int n, nh_digits digits, bool exists,
                         float product) {
    float score = product * (float)args.scale;
    if (!C.biased) return score;
    int extent[3];
    for (int a = 0; a < 3; a++)
        extent[a] = 2 * (int)args.axis[a].window - 1;
    int first = (query.begin[0] * extent[1] + query.begin[1]) * extent[2] + query.begin[2];
    const elem *table =
        (const elem *)args.tensor[NH_BIAS].data + (long long)tile.head * extent[0] * extent[1] * extent[2];
    int entry = query.bias + first + nh_renumber(query, args, n, digits, extent[1], extent[2]);
    return score + nh_load(table[exists ? entry : 0]);
}

/* Fills the slots of causal windows that have no key. */
NH_DEVICE void fill_unused(const nh_cuda_args &args, int warp, int lane) {
    float value = args.flags & NH_ZERO_FILL ? 0.0f : NH_MINUS_INFINITY;
    const int window[3] = {(int)args.axis[0].window, (int)args.axis[1].window, (int)args.axis[2].window};
    for (int row = 16 * warp; row < 16 * warp + 16; row++) {
        const nh_query &query = queries[row];
        const int count[3] = {nh_query_count(query, args, 0), nh_query_count(query, args, 1),
                              nh_query_count(query, args, 2)};
        bool full = count[0] == window[0] && count[1] == window[1] && count[2] == window[2];
        if (full || query_offset[row] == NH_NONE) continue;
        elem *slots = (elem *)args.tensor[NH_A].data + query.weights;
        for (int n = lane; n < (int)args.window_count; n += 32)
            if (n % window[2] >= count[2] || n / window[2] % window[1] >= count[1] ||
                n / window[2] / window[1] >= count[0])
                slots[n] = nh_store(value);
    }
}

/* What a key's number is translated to its column with. */
struct nh_lookup {
    const nh_divisor *divisor;
    nh_spans spans;
    int chunk;
};

/* Writes the scores of some of the warp's queries with keys [first, end), at most 32. Only lanes with a key write. */
NH_DEVICE void write(const nh_cuda_args &args, const nh_lookup &lookup, const float *stage, const elem *q,
                     const elem *k, int some, int first, int end) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float score[NH_TOGETHER];
    elem *at[NH_TOGETHER];
    bool exists[NH_TOGETHER];
    NH_UNROLL for (int i = 0; i < NH_TOGETHER; i++) {
        int n = __shfl_sync(0xffffffffu, first, some + i) + lane;
        exists[i] = n < __shfl_sync(0xffffffffu, end, some + i);
        const nh_query &query = queries[16 * warp + some + i];
        nh_digits digits = nh_key_digits(query, lookup.divisor, n);
        int column = nh_column_of(query, args, lookup.spans, n, digits) - lookup.chunk * C.columns;
        if (!exists[i]) column = 0;
        float product = nh_repair_if_not_finite(stage[(some + i) * STAGE_STRIDE + column], q + (some + i) * STRIDE,
                                                k + column * STRIDE, C.width);
        score[i] = score_of(args, query, n, digits, exists[i], product);
        at[i] = (elem *)args.tensor[NH_A].data + query.weights + nh_slot_of(query, args, n, digits);
    }
    NH_UNROLL for (int i = 0; i < NH_TOGETHER; i++)
        if (exists[i]) *at[i] = nh_store(score[i]);
}

NH_DEVICE void scatter(const nh_cuda_args &args, const nh_divisor divisor[3], const float *stage, const elem *q,
                       const elem *k, int chunk, int first, int end) {
    const nh_lookup lookup = {divisor, nh_spans_of(tile), chunk};
    NH_UNROLL_1 for (int share = 0; share < NH_PER_LANE; share++)
        NH_UNROLL_1 for (int some = 0; some < 16; some += NH_TOGETHER)
            if (nh_rows_have(first, end, share, some)) write(args, lookup, stage, q, k, some, first + 32 * share, end);
    __syncwarp();
}

} // namespace nh_gemm

using namespace nh_gemm;

extern "C" __global__ void __launch_bounds__(NH_THREADS) gemm_pn(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    nh_follow_launches();
    if (!nh_tile_set(&tile, args, (unsigned)args.heads)) return;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, dim = (int)args.dim;
    elem *q = (elem *)matrices, *keys = q + NH_ROWS * STRIDE;
    float *stage = (float *)(keys + 2 * C.columns * STRIDE) + warp * 16 * STAGE_STRIDE;
    const elem *k_data = (const elem *)args.tensor[NH_K].data;
    const nh_divisor divisor[3] = {nh_divisor_of(1), nh_divisor_of((int)args.axis[1].window),
                                   nh_divisor_of((int)args.axis[2].window)};
    int chunks = (nh_tile_columns(tile) + C.columns - 1) / C.columns;
    /* lanes l and l + 16: the number of keys of the warp's query l in earlier chunks */
    int before = 0;
    set_queries(args);
    /* A software pipeline of three stages, one step apart: locating a chunk's keys, copying them, multiplying. */
    for (int step = -1; step <= chunks; step++) {
        if (step == 0) nh_rows_load(NH_ROWS, q, STRIDE, (const elem *)args.tensor[NH_Q].data, query_offset, dim);
        if (step == 0 && C.causal) fill_unused(args, warp, lane);
        if (step >= 0 && step < chunks)
            nh_rows_load(C.columns, keys + step % 2 * C.columns * STRIDE, STRIDE, k_data, key_offset[step % 2], dim);
        if (step > 0) {
            const elem *k = keys + (step - 1) % 2 * C.columns * STRIDE;
            int after = nh_keys_before(queries[16 * warp + lane % 16], tile, args, step * C.columns);
            if (__any_sync(0xffffffffu, before < after)) {
                nh_scores(q + warp * 16 * STRIDE, k, stage, STAGE_STRIDE, lane);
                __syncwarp();
                scatter(args, divisor, stage, q + warp * 16 * STRIDE, k, step - 1, before, after);
            }
            before = after;
        }
        if (step + 1 < chunks) set_keys(args, step + 1);
        nh_copy_wait();
        __syncthreads();
    }
}
