/* Fused forward of sm_80 and later: one block per query tile, keys and values streamed through shared memory.
 *
 * Per key tile: scores by tensor cores, masks where a window's edge passes through, softmax in base 2, output by
 * tensor cores. Copies of the next keys run under softmax and output, those of the values under the scores:
 *
 *     wait K(t)   barrier   start V(t + NH_STAGES - 1)   scores
 *     wait V(t)   barrier   start K(t + NH_STAGES)       softmax, output
 *
 * The barrier before a start is also what shows that everyone has done with the buffer it writes to. Extra tokens
 * are tiles after the last one of the halo.
 *
 * Knobs: NH_DTYPE, NH_DIM, NH_DIM_V, NH_VECTOR (elements that may be copied at a time), NH_WARPS, NH_STAGES, NH_MIN_BLOCKS, NH_TILE_Q0 ..
 * NH_TILE_K2, NH_BIASED, NH_PRESCALE (scores are scaled before the maximum: bias, or a scale that is not positive), NH_TF32,
 * NH_SHARED_BYTES. */
#define NH_SUB0 NH_TILE_Q0
#define NH_SUB1 NH_TILE_Q1
#define NH_SUB2 NH_TILE_Q2
#define NH_COLUMNS (NH_TILE_K0 * NH_TILE_K1 * NH_TILE_K2)
#define NH_CHUNKS 1
#define NH_INVERSE 0
#define NH_WARP_ROWS (NH_TILE_Q0 * NH_TILE_Q1 * NH_TILE_Q2 / NH_WARPS)
#include "key_walk.cuh"
#include "tile_output.cuh"
#include "tile_scores.cuh"

struct nh_shared {
    elem queries[NH_ROWS * NH_PITCH_Q];
    elem keys[NH_STAGES][NH_COLUMNS * NH_PITCH_K];
    elem values[NH_STAGES][NH_COLUMNS * NH_PITCH_V];
    struct nh_row_tables rows;
    long long bias[NH_COLUMNS];
    struct nh_mask_tables masks;
};
static_assert(sizeof(struct nh_shared) == NH_SHARED_BYTES, "the host's count of shared memory");

/* How far a walk has come: tile number `tile` is at `cursor`, or extra tokens after the first halo_tiles. */
struct nh_walk {
    struct nh_cursor cursor;
    int tile;
};

struct nh_course {
    struct nh_halo halo;
    int halo_tiles, tiles;
    long long extra_tokens;
};

NH_DEVICE long long nh_extra_first(const struct nh_course &course, int tile) {
    return (long long)(tile - course.halo_tiles) * NH_COLUMNS;
}

/* Keys, or values: those of the grid, and the extra ones. */
struct nh_stream {
    struct nh_grid_rows grid;
    const elem *extra;
    long long extra_step;
};

NH_DEVICE struct nh_stream nh_stream_of(const nh_cuda_args &args, const struct nh_block &block,
                                        int slot, int extra_slot) {
    const nh_cuda_tensor &extra = args.tensor[extra_slot];
    struct nh_stream stream;
    stream.grid = nh_grid_rows_of(args, block, args.tensor[slot], block.kv_head);
    stream.extra =
        (const elem *)extra.data + block.batch * extra.batch + block.kv_head * extra.head;
    stream.extra_step = extra.axis[3 - args.rank];
    return stream;
}

/* Starts the copies of the walk's tile, if there is one, and moves on. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_copy_next(elem *to, const struct nh_stream &rows, const long long *offset,
                            const unsigned *place, const struct nh_course &course,
                            struct nh_walk &walk) {
    if (walk.tile < course.halo_tiles) {
        const elem *origin = nh_grid_row(rows.grid, walk.cursor);
        nh_copy_tile<WIDTH, PITCH>(to, origin, offset, place, nh_limits(course.halo, walk.cursor));
        nh_advance(walk.cursor, course.halo);
    } else if (walk.tile < course.tiles) {
        long long first = nh_extra_first(course, walk.tile);
        nh_copy_extra<WIDTH, PITCH>(to, rows.extra + first * rows.extra_step, rows.extra_step,
                                    course.extra_tokens - first);
    }
    walk.tile++;
    nh_copy_commit();
}

/* Scale, bias and mask of a tile's scores. Warps whose rows all attend all columns have nothing to mask. */
NH_DEVICE void nh_finish_scores(const nh_cuda_args &args, const struct nh_block &block,
                                const struct nh_shared &shared, const struct nh_course &course,
                                const struct nh_halo &dense, const struct nh_walk &walk,
                                int first_row, float scale, nh_scores &scores) {
    bool extra = walk.tile >= course.halo_tiles;
    unsigned extra_mask =
        extra ? nh_first_columns(course.extra_tokens - nh_extra_first(course, walk.tile)) : 0;
    bool partial = extra ? extra_mask != ~0u : !nh_is_dense(dense, walk.cursor);
    if (!NH_PRESCALE && !__any_sync(~0u, partial)) return;
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        int m = r / 2, half = r % 2;
        int row = first_row + 16 * m + 8 * half + (int)threadIdx.x % 32 / 4;
        unsigned mask = extra     ? extra_mask
                        : partial ? nh_row_mask(shared.masks, walk.cursor, 0, row)
                                  : ~0u;
        const elem *row_bias = 0;
        if (NH_BIASED && !extra) row_bias = nh_bias_row(args, block, walk.cursor, row);
        nh_finish_score_row(scores, m, half, mask, scale, row_bias, shared.bias);
    }
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    fused80_forward(const __grid_constant__ nh_cuda_args args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    struct nh_shared &shared = *(struct nh_shared *)nh_shared_memory;
    struct nh_block block;
    if (!nh_block_locate(args, args.heads, block)) return;

    nh_mask_tables_fill(args, block, shared.masks);
    nh_row_tables_fill(args, NH_K, NH_V, shared.rows);
    if (NH_BIASED)
        for (int c = (int)threadIdx.x; c < NH_COLUMNS; c += NH_THREADS)
            shared.bias[c] = nh_bias_of_column(args, c);
    nh_zero_padding(shared.queries, NH_ROWS, NH_PITCH_Q, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.keys[0], NH_STAGES * NH_COLUMNS, NH_PITCH_K, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.values[0], NH_STAGES * NH_COLUMNS, NH_PITCH_V, NH_DIM_V,
                    NH_DIM_V_PADDED);
    __syncthreads();

    int first_row = (int)threadIdx.x / 32 * NH_WARP_ROWS;
    struct nh_course course;
    course.halo = nh_halo_of(shared.masks);
    course.halo_tiles = nh_halo_tiles(course.halo);
    course.extra_tokens = args.extra_tokens;
    course.tiles = course.halo_tiles + (int)((args.extra_tokens + NH_COLUMNS - 1) / NH_COLUMNS);
    const struct nh_halo dense = nh_dense_origins(shared.masks, first_row);
    const struct nh_stream keys = nh_stream_of(args, block, NH_K, NH_EXTRA_K);
    const struct nh_stream values = nh_stream_of(args, block, NH_V, NH_EXTRA_V);
    struct nh_walk now = {{{course.halo.begin[0], course.halo.begin[1], course.halo.begin[2]}}, 0};
    struct nh_walk next_keys = now, next_values = now;
#define NH_COPY_KEYS()                                                                             \
    nh_copy_next<NH_DIM, NH_PITCH_K>(shared.keys[next_keys.tile % NH_STAGES], keys,                \
                                     shared.rows.first, shared.rows.place, course, next_keys)
#define NH_COPY_VALUES()                                                                           \
    nh_copy_next<NH_DIM_V, NH_PITCH_V>(shared.values[next_values.tile % NH_STAGES], values,        \
                                       shared.rows.second, shared.rows.place, course, next_values)

    nh_copy_rows<NH_DIM, NH_PITCH_Q>(args, block, args.tensor[NH_Q], block.head, shared.queries);
    NH_COPY_KEYS();
#pragma unroll
    for (int i = 1; i < NH_STAGES; i++) {
        NH_COPY_VALUES();
        NH_COPY_KEYS();
    }

    elem *queries = shared.queries + first_row * NH_PITCH_Q;
    const float scale = (float)(args.scale * NH_LOG2E);
    nh_scores scores;
    nh_output output = {};
    struct nh_softmax state;
    float shrink[2 * NH_BLOCKS];
    nh_softmax_start(state);
#pragma unroll 1
    while (now.tile < course.tiles) {
        int stage = now.tile % NH_STAGES;
        nh_copy_wait_groups<2 * (NH_STAGES - 1)>();
        __syncthreads();
        NH_COPY_VALUES();
        nh_multiply<NH_DIM_PADDED, NH_PITCH_Q, NH_PITCH_K>(scores, queries, shared.keys[stage]);
        nh_copy_wait_groups<2 * (NH_STAGES - 1)>();
        __syncthreads();
        NH_COPY_KEYS();
        nh_finish_scores(args, block, shared, course, dense, now, first_row, scale, scores);
        nh_softmax_raise(state, scores, NH_PRESCALE ? 1.f : scale, shrink);
        nh_softmax_shrink(state, output, shrink);
        nh_softmax_weights(state, scores, NH_PRESCALE ? 1.f : scale);
        nh_accumulate<NH_DIM_V_PADDED, NH_PITCH_V>(output, scores, shared.values[stage]);
        nh_advance(now.cursor, course.halo);
        now.tile++;
    }

    __syncwarp();
    nh_finish_rows(args, block, state, output, first_row, queries);
    __syncwarp();
    nh_store_rows(args, block, first_row, queries);
}
