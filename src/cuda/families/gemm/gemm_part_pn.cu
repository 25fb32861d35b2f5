/* P = softmax(scale * q_i . k_N(i,n) (+ bias)) in the storage type, and LSE if it is asked for, for windows whose keys
 * of a part of the box (gemm_part.cuh) fit shared memory. Each warp writes the scores of its 16 queries in a part to
 * shared memory, and NH_GROUP lanes take a query each. If the box is one part, a row's weights are known at once.
 * Otherwise scores are computed twice: for the sum of the row, and for its weights. */
#include "gemm_part.cuh"
#include "gemm_scores.cuh"
#include "lanes.cuh"
#include "overlap.cuh"

#define STRIDE NH_SCORE_STRIDE
#define NH_HELD ((NH_SLOTS + NH_GROUP - 1) / NH_GROUP)
#define AT_ONCE (32 / NH_GROUP)
#define ROUNDS (NH_OWN_ROWS / AT_ONCE)
/* The start of a row's maximum. It is less than any score but finite, so that the difference of two is 0 instead of
 * NaN. */
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

/* A lane's slots of a part: slot threadIdx.x % NH_GROUP and every NH_GROUP-th after it. */
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

/* The queries in memory, for a head of the block. */
NH_DEVICE const elem *queries_of(const nh_cuda_args &args, int head) {
    return (const elem *)args.tensor[NH_Q].data + head * args.tensor[NH_Q].head;
}

/* The scores of a row's query in a part, times log2(e); minus infinity for slots that do not exist. Scores of padding
 * rows are never used. stage: the row's products, from the part's column `first` on. */
NH_DEVICE void scores_of(float score[NH_HELD], const slots &slots, const nh_cuda_args &args,
                         int row, float *stage, int first, int head, int part, bool here) {
    float scale = (float)args.scale * (float)NH_LOG2E;
#if NH_BIASED
    const nh_query &query = queries[row];
    int extent1 = 2 * (int)args.axis[1].window - 1, extent2 = 2 * (int)args.axis[2].window - 1;
    int plane = NH_PART_AXIS > NH_FIRST_AXIS ? part : query.begin[0];
    int entry = query.bias + (plane * extent1 + query.begin[1]) * extent2 + query.begin[2];
    const elem *table =
        (const elem *)args.tensor[NH_BIAS].data +
        (long long)(tile.head + head) * (2 * (int)args.axis[0].window - 1) * extent1 * extent2 +
        (here ? entry : 0);
#endif
    bool finite = true;
#pragma unroll
    for (int i = 0; i < NH_HELD; i++) {
        score[i] = stage[slots.column[i]];
        finite = finite && fabsf(score[i]) <= 3.402823466e38f;
    }
    if (NH_DTYPE == NH_F32 && here && !finite) {
        const elem *q = queries_of(args, head) + query_offset[row];
        const elem *k = nh_part_data(args, NH_K, tile.head, head, part);
        const long long *key_offset = (const long long *)matrices + first;
#pragma unroll 1
        for (int slot = slot_number(0); slot < NH_SLOTS; slot += NH_GROUP) {
            int column = column_place[slot];
            stage[column] =
                nh_repair_if_not_finite(stage[column], q, k + key_offset[column], (int)args.dim);
        }
#pragma unroll
        for (int i = 0; i < NH_HELD; i++)
            score[i] = stage[slots.column[i]];
    }
#pragma unroll
    for (int i = 0; i < NH_HELD; i++) {
        score[i] *= scale;
#if NH_BIASED
        score[i] = fmaf((float)NH_LOG2E, nh_load(table[slots.entry[i]]), score[i]);
#endif
        if (slot_number(i) >= NH_SLOTS || (NH_PLANES && !here)) score[i] = NH_MINUS_INFINITY;
    }
}

/* For the queries of a lane, one per round: the largest score so far, times log2(e), and the sum of 2^(score - that).
 * Until `gather` they are those of the lane's own slots. */
struct row_sums {
    float most[ROUNDS], sum[ROUNDS];
};

NH_DEVICE void exponentials(float score[NH_HELD], float most) {
#pragma unroll
    for (int i = 0; i < NH_HELD; i++)
        score[i] = nh_exp2(score[i] - most);
}

/* Adds scores to the sums. Leaves their exponentials relative to the lane's largest score so far. */
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

/* Combines the lanes of a query: sets the largest score of all, and the reciprocal of their sum, and stores LSE.
 * Returns the factor from exponentials relative to the lane's own largest score to weights. */
NH_DEVICE float gather(row_sums *sums, int round, const nh_cuda_args &args, int head,
                       long long lse) {
    float most = nh_lanes_max<NH_GROUP>(sums->most[round]), own = nh_exp2(sums->most[round] - most);
    float sum = nh_lanes_sum<NH_GROUP>(sums->sum[round] * own);
    sums->most[round] = most;
    sums->sum[round] = nh_reciprocal(sum);
    if (threadIdx.x % NH_GROUP == 0 && lse != NH_NONE)
        ((float *)args.tensor[NH_LSE].data)[lse + head * args.tensor[NH_LSE].head] =
            (float)NH_LN2 * (most + nh_log2(sum));
    return own * sums->sum[round];
}

/* staged: the query's row in shared memory, whose scores all its lanes have read. */
NH_DEVICE void stage_weights(const float exponential[NH_HELD], float factor, elem *staged) {
    elem *of_lane = staged + threadIdx.x % NH_GROUP;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < NH_HELD; i++)
        if (slot_number(i) < NH_SLOTS) of_lane[i * NH_GROUP] = nh_store(exponential[i] * factor);
}

/* Stores the weights of the warp's rows in a part, which are in shared memory. */
NH_DEVICE void write_weights(const nh_cuda_args &args, const float *stages, int stage_stride,
                             int head, int part) {
    elem *a = (elem *)args.tensor[NH_A].data + head * args.tensor[NH_A].head;
    __syncwarp();
#pragma unroll 2
    for (int i = (int)threadIdx.x % 32; i < NH_OWN_ROWS * NH_PART_PIECES; i += 32) {
        int row = (int)threadIdx.x / 32 * NH_OWN_ROWS + i / NH_PART_PIECES;
        int slot = i % NH_PART_PIECES * NH_PIECE_SLOTS;
        const nh_query &query = queries[row];
        int own = part - nh_first_part(query);
        if (!nh_has_part(query, args, own)) continue;
        *(nh_vector<NH_PIECE_SLOTS> *)(a + query.weights + own * NH_PART_ROW + slot) = *(
            const nh_vector<NH_PIECE_SLOTS> *)((const elem *)(stages + row * stage_stride) + slot);
    }
}

/* What a step does with the scores of a part; all of it if the box is one part. */
struct task {
    bool adds;     /* adds scores to the sums of the rows */
    bool adds_all; /* the sums are then complete */
    bool writes;   /* writes the weights */
};

/* Processes one part's scores of the warp's rows, which are in shared memory from the range's first column on. */
NH_DEVICE void take(row_sums *sums, const slots &slots, const nh_cuda_args &args, float *stages,
                    int stage_stride, nh_warp_range range, int head, int part, task task) {
    const nh_spans spans = nh_spans_of(tile);
#pragma unroll
    for (int round = 0; round < ROUNDS; round++) {
        int row = (int)threadIdx.x / 32 * NH_OWN_ROWS + round * AT_ONCE +
                  (int)threadIdx.x % 32 / NH_GROUP;
        const nh_query &query = queries[row];
        float *stage = stages + row * stage_stride;
        bool here = nh_has_part(query, args, part - nh_first_part(query));
        int first = here ? nh_part_begin(query, spans) : range.column;
        float score[NH_HELD], factor = sums->sum[round];
        scores_of(score, slots, args, row, stage + first - range.column, first, head, part, here);
        if (task.adds) add_scores(sums, round, score);
        if (task.adds_all) factor = gather(sums, round, args, head, lse_offset[row]);
        if (!task.adds) exponentials(score, sums->most[round]);
        if (task.writes) stage_weights(score, factor, (elem *)stage);
    }
    if (task.writes) write_weights(args, stages, stage_stride, head, part);
}

/* Starts to copy the rows of a part to shared memory; with the first part also the queries. */
NH_DEVICE void load(const nh_cuda_args &args, elem *q, elem *keys, int rows, int head, int part) {
    if (part == 0)
        nh_rows_load(NH_ROWS, q, STRIDE, queries_of(args, head), query_offset, (int)args.dim);
    nh_rows_load(rows, keys, STRIDE, nh_part_data(args, NH_K, tile.head, head, part), (const long long *)matrices,
                 (int)args.dim);
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_LEAST_BLOCKS)
    gemm_part_pn(const __grid_constant__ nh_gemm_part_args args) {
    nh_follow_launches();
    int heads = args.part.block_heads;
    if (!nh_tile_set(&tile, args, (unsigned)args.heads / (unsigned)heads, heads)) return;
    int group = (int)threadIdx.x / 32 / NH_TEAM, member = (int)threadIdx.x / 32 % NH_TEAM;
    const nh_part_bounds bounds = nh_part_bounds_of(tile, args);
    int stage_stride = bounds.columns + 8, parts = nh_parts(tile);
    long long *key_offset = (long long *)matrices;
    elem *q = (elem *)(key_offset + bounds.rows), *keys = q + NH_ROWS * STRIDE;
    float *stages = (float *)(keys + (NH_PLANES ? 2 : 1) * bounds.rows * STRIDE);
    set_queries(args);
    nh_part_places(column_place, args, tile.axis[1].span, tile.axis[2].span);
#if NH_BIASED
    nh_part_places(entry_place, args, 2 * (int)args.axis[1].window - 1,
                   2 * (int)args.axis[2].window - 1);
#endif
    nh_part_rows(key_offset, tile, args, NH_K, bounds.rows);
    __syncthreads();
    const nh_warp_range range = nh_warp_range_of(queries + group * 16, column_place, tile, args);
    slots slots;
    row_sums sums;
    slots_set(&slots);
    int steps = NH_PLANES ? 2 * parts : 1;
    load(args, q, keys, bounds.rows, 0, 0);
#pragma unroll 1
    for (int head = 0; head < heads; head++) {
#pragma unroll
        for (int round = 0; round < ROUNDS; round++) {
            sums.most[round] = LEAST;
            sums.sum[round] = 0;
        }
#pragma unroll 1
        for (int step = 0; step < steps; step++) {
            int part = step < parts ? step : step - parts;
            elem *here = keys + (NH_PLANES ? step % 2 * bounds.rows : 0) * STRIDE;
            bool taken = part >= range.first && part < range.end;
            nh_copy_wait();
            __syncthreads();
            for (int column = member * NH_COLUMNS; taken && column < range.columns;
                 column += NH_TEAM * NH_COLUMNS)
                nh_scores(q + group * 16 * STRIDE, here + (range.column + column) * STRIDE,
                          stages + group * 16 * stage_stride + column, stage_stride,
                          range.columns - column, (int)threadIdx.x % 32);
            __syncthreads();
            /* Copies to the other buffer or, if there is only one, over rows that nobody reads any more. */
            elem *there = keys + (NH_PLANES ? (step + 1) % 2 * bounds.rows : 0) * STRIDE;
            bool more = step + 1 < steps;
            int next = !more ? 0 : part + 1 < parts ? part + 1 : 0;
            if (more || head + 1 < heads) load(args, q, there, bounds.rows, head + !more, next);
            const task task = {!NH_PLANES || step < parts, !NH_PLANES || step == range.end - 1,
                               !NH_PLANES || step >= parts};
            if (taken) take(&sums, slots, args, stages, stage_stride, range, head, part, task);
        }
    }
}
