/* P = softmax(scale * q_i . k_N(i,n) (+ bias)) in the storage type, and LSE if wanted, for windows whose keys of a part
 * of the box (gemm_part.cuh) fit shared memory. Of a part, each warp stages the scores of its 16 queries in shared
 * memory; NH_GROUP lanes take a query each. In one part a row's weights
 * are known at once. Of several, each is made twice: to add up the sum of the row, and to write its weights. */
#include "gemm_part.cuh"
#include "gemm_scores.cuh"

#define STRIDE NH_SCORE_STRIDE
#define NH_HELD ((NH_SLOTS + NH_GROUP - 1) / NH_GROUP)
#define AT_ONCE (32 / NH_GROUP)
#define ROUNDS (16 / AT_ONCE)
#define LOG2_E 1.4426950408889634f
#define LN_2 0.6931471805599453f
/* Less than any score, and no infinity: differences of two are 0. */
#define LEAST -3.402823466e38f

static __shared__ nh_tile tile;
static __shared__ nh_query queries[NH_ROWS];
static __shared__ long long query_offset[NH_ROWS], lse_offset[NH_ROWS];
static __shared__ unsigned short column_place[NH_SLOTS];
#if NH_BIASED
static __shared__ unsigned short entry_place[NH_SLOTS];
#endif
extern __shared__ __align__(16) char matrices[];

NH_DEVICE void set_queries(const nh_cuda_args &args) {
    int row = (int)threadIdx.x, position[3];
    if (row >= NH_ROWS) return;
    bool exists = nh_tile_row(tile, row, position);
    nh_query_set(&queries[row], tile, args, position, tile.head, exists);
    query_offset[row] = exists ? nh_tile_offset(tile, args, NH_Q, position, tile.head) : NH_NONE;
    lse_offset[row] = exists && args.tensor[NH_LSE].data
                          ? nh_tile_offset(tile, args, NH_LSE, position, tile.head)
                          : NH_NONE;
}

/* The lanes that share a query. */
NH_DEVICE float widest(float x) {
#pragma unroll
    for (int step = NH_GROUP / 2; step > 0; step /= 2)
        x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, step));
    return x;
}

NH_DEVICE float total(float x) {
#pragma unroll
    for (int step = NH_GROUP / 2; step > 0; step /= 2)
        x += __shfl_xor_sync(0xffffffffu, x, step);
    return x;
}

/* A lane's slots of a part: number threadIdx.x % NH_GROUP and every NH_GROUP-th from there. */
struct slots {
    int column[NH_HELD];
#if NH_BIASED
    int entry[NH_HELD];
#endif
};

NH_DEVICE int slot_number(int i) {
    return (int)threadIdx.x % NH_GROUP + i * NH_GROUP;
}

NH_DEVICE void slots_set(slots *slots) {
#pragma unroll
    for (int i = 0; i < NH_HELD; i++) {
        int slot = min(slot_number(i), NH_SLOTS - 1);
        slots->column[i] = column_place[slot];
#if NH_BIASED
        slots->entry[i] = entry_place[slot];
#endif
    }
}

/* Of a query, its scores in a part, times log2(e); those of slots that do not exist are minus infinity. Queries that do
 * not exist get what is never used. */
NH_DEVICE void scores_of(float score[NH_HELD], const slots &slots, const nh_cuda_args &args,
                         const nh_query &query, float *stage, const elem *q, const elem *k,
                         int part, bool here) {
    float scale = (float)args.scale * LOG2_E;
#if NH_BIASED
    int extent1 = 2 * (int)args.axis[1].window - 1, extent2 = 2 * (int)args.axis[2].window - 1;
    int first = query.bias + ((query.begin[0] + part) * extent1 + query.begin[1]) * extent2 +
                query.begin[2];
    const elem *table =
        (const elem *)args.tensor[NH_BIAS].data +
        (long long)tile.head * (2 * (int)args.axis[0].window - 1) * extent1 * extent2 +
        (here ? first : 0);
#endif
    bool finite = true;
#pragma unroll
    for (int i = 0; i < NH_HELD; i++) {
        score[i] = stage[slots.column[i]];
        finite = finite && fabsf(score[i]) <= 3.402823466e38f;
    }
    if (NH_DTYPE == NH_F32 && !finite) {
#pragma unroll 1
        for (int slot = slot_number(0); slot < NH_SLOTS; slot += NH_GROUP) {
            int column = column_place[slot];
            stage[column] = nh_exact_if_not_finite(stage[column], q, k + column * STRIDE);
        }
#pragma unroll
        for (int i = 0; i < NH_HELD; i++)
            score[i] = stage[slots.column[i]];
    }
#pragma unroll
    for (int i = 0; i < NH_HELD; i++) {
        score[i] *= scale;
#if NH_BIASED
        score[i] = fmaf(LOG2_E, nh_load(table[slots.entry[i]]), score[i]);
#endif
        if (slot_number(i) >= NH_SLOTS || (NH_PLANES && !here)) score[i] = NH_MINUS_INFINITY;
    }
}

/* Of the queries of a lane, one each round: the largest score so far, times log2(e), and the sum of 2^(score - that);
 * of the lane's own slots until `gather`. */
struct row_sums {
    float most[ROUNDS], sum[ROUNDS];
};

NH_DEVICE void exponentials(float score[NH_HELD], float most) {
#pragma unroll
    for (int i = 0; i < NH_HELD; i++)
        score[i] = nh_exp2(score[i] - most);
}

/* Leaves the exponentials of the scores, against the lane's largest so far. */
NH_DEVICE void add_scores(row_sums *sums, int round, float score[NH_HELD]) {
    float most = sums->most[round], sum = 0;
#pragma unroll
    for (int i = 0; i < NH_HELD; i++)
        most = fmaxf(most, score[i]);
    exponentials(score, most);
#pragma unroll
    for (int i = 0; i < NH_HELD; i++)
        sum += score[i];
    sums->sum[round] = fmaf(sums->sum[round], nh_exp2(sums->most[round] - most), sum);
    sums->most[round] = most;
}

/* Over the lanes of a query: the largest score of all, and the reciprocal of their sum. Writes LSE. Returns what makes
 * weights of exponentials against the lane's largest score. */
NH_DEVICE float gather(row_sums *sums, int round, const nh_cuda_args &args, long long lse) {
    float most = widest(sums->most[round]), own = nh_exp2(sums->most[round] - most);
    float sum = total(sums->sum[round] * own);
    sums->most[round] = most;
    sums->sum[round] = nh_reciprocal(sum);
    if (threadIdx.x % NH_GROUP == 0 && lse != NH_NONE)
        ((float *)args.tensor[NH_LSE].data)[lse] = LN_2 * (most + nh_log2(sum));
    return own * sums->sum[round];
}

/* staged: the query's row of the stage, whose scores all lanes of the query have read. */
NH_DEVICE void stage_weights(const float exponential[NH_HELD], float factor, elem *staged) {
    elem *of_lane = staged + threadIdx.x % NH_GROUP;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < NH_HELD; i++)
        if (slot_number(i) < NH_SLOTS) of_lane[i * NH_GROUP] = nh_store(exponential[i] * factor);
}

/* Writes the warp's staged weights of a part. */
NH_DEVICE void write_weights(const nh_cuda_args &args, const float *stage, int stage_stride,
                             int part) {
    const nh_query *of_warp = queries + (int)threadIdx.x / 32 * 16;
    __syncwarp();
#pragma unroll 4
    for (int i = (int)threadIdx.x % 32; i < 16 * NH_PART_PIECES; i += 32) {
        int row = i / NH_PART_PIECES, slot = i % NH_PART_PIECES * NH_PIECE_SLOTS;
        const nh_query &query = of_warp[row];
        int own = part - nh_first_part(query);
        if (!nh_has_part(query, args, own)) continue;
        *(nh_vector<NH_PIECE_SLOTS> *)((elem *)args.tensor[NH_A].data + query.weights +
                                       own * NH_PART_ROW + slot) =
            *(const nh_vector<NH_PIECE_SLOTS> *)((const elem *)(stage + row * stage_stride) + slot);
    }
}

/* What a turn does with the scores of a part. All of it where the box is one part. */
struct task {
    bool adds;     /* them to the sums of the rows, */
    bool adds_all; /* which are then complete; */
    bool writes;   /* the weights */
};

/* Takes one part's scores of the warp, staged from the range's first column on. */
NH_DEVICE void take(row_sums *sums, const slots &slots, const nh_cuda_args &args, float *stage,
                    int stage_stride, const elem *q, const elem *k, nh_warp_range range, int part,
                    task task) {
    const nh_spans spans = nh_spans_of(tile);
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        int row = round * AT_ONCE + (int)threadIdx.x % 32 / NH_GROUP;
        int of_block = (int)threadIdx.x / 32 * 16 + row;
        const nh_query &query = queries[of_block];
        int own = part - nh_first_part(query);
        bool here = nh_has_part(query, args, own);
        int first = here ? nh_part_begin(query, spans) - range.column : 0;
        float score[NH_HELD], factor = sums->sum[round];
        scores_of(score, slots, args, query, stage + row * stage_stride + first, q + row * STRIDE,
                  k + first * STRIDE, own, here);
        if (task.adds) add_scores(sums, round, score);
        if (task.adds_all) factor = gather(sums, round, args, lse_offset[of_block]);
        if (!task.adds) exponentials(score, sums->most[round]);
        if (task.writes) stage_weights(score, factor, (elem *)(stage + row * stage_stride));
    }
    if (task.writes) write_weights(args, stage, stage_stride, part);
}

extern "C" __global__ void __launch_bounds__(NH_THREADS)
    gemm_part_pn(const __grid_constant__ nh_cuda_args args) {
    if (!nh_tile_set(&tile, args, (unsigned)args.heads)) return;
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, dim = (int)args.dim;
    const nh_part_bounds bounds = nh_part_bounds_of(tile, args);
    int stage_stride = bounds.columns + 8, parts = nh_parts(tile);
    long long *key_offset = (long long *)matrices;
    elem *q = (elem *)(key_offset + bounds.rows), *keys = q + NH_ROWS * STRIDE;
    float *stage =
        (float *)(keys + (NH_PLANES ? 2 : 1) * bounds.rows * STRIDE) + warp * 16 * stage_stride;
    const elem *k_data = (const elem *)args.tensor[NH_K].data;
    set_queries(args);
    nh_part_places(column_place, args, tile.axis[1].span, tile.axis[2].span);
#if NH_BIASED
    nh_part_places(entry_place, args, 2 * (int)args.axis[1].window - 1,
                   2 * (int)args.axis[2].window - 1);
#endif
    nh_part_rows(key_offset, tile, args, NH_K, tile.head / ((int)args.heads / (int)args.kv_heads),
                 bounds.rows);
    __syncthreads();
    nh_rows_load(NH_ROWS, q, STRIDE, (const elem *)args.tensor[NH_Q].data, query_offset, dim);
    nh_rows_load(bounds.rows, keys, STRIDE, k_data, key_offset, dim);
    q += warp * 16 * STRIDE;
    const nh_warp_range range = nh_warp_range_of(queries + warp * 16, column_place, tile, args);
    slots slots;
    row_sums sums;
    slots_set(&slots);
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        sums.most[round] = LEAST;
        sums.sum[round] = 0;
    }
    int turns = NH_PLANES ? 2 * parts : 1;
#pragma unroll 1
    for (int turn = 0; turn < turns; turn++) {
        int part = turn < parts ? turn : turn - parts,
            next = turn + 1 < parts ? turn + 1 : turn + 1 - parts;
        nh_copy_wait();
        __syncthreads();
        if (NH_PLANES && turn + 1 < turns)
            nh_rows_load(bounds.rows, keys + (turn + 1) % 2 * bounds.rows * STRIDE, STRIDE,
                         k_data + next * nh_part_step(args, NH_K), key_offset, dim);
        const elem *k =
            keys + (NH_PLANES ? turn % 2 * bounds.rows : 0) * STRIDE + range.column * STRIDE;
        if (part < range.first || part >= range.end) continue;
        __syncwarp();
        for (int column = 0; column < range.columns; column += NH_COLUMNS)
            nh_scores(q, k + column * STRIDE, stage + column, stage_stride, range.columns - column,
                      lane);
        __syncwarp();
        const task task = {!NH_PLANES || turn < parts, !NH_PLANES || turn == range.end - 1,
                           !NH_PLANES || turn >= parts};
        take(&sums, slots, args, stage, stage_stride, q, k, range, part, task);
    }
}
