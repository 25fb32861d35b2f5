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
#define NH_INVERSE 0
#include "key_walk.cuh"
#include "tile_output.cuh"
#include "tile_scores.cuh"

enum { NH_ORIGINS = 4 };
static_assert(NH_STAGES < NH_ORIGINS, "tiles on their way");

struct nh_shared {
    elem queries[NH_ROWS * NH_PITCH_Q];
    elem keys[NH_STAGES][NH_COLUMNS * NH_PITCH_K];
    elem values[NH_STAGES][NH_COLUMNS * NH_PITCH_V];
    struct nh_row_tables rows;
    long long bias[NH_COLUMNS];
    struct nh_mask_tables masks;
    /* origins of the tiles on their way, by tile number: values follow their keys */
    struct nh_cursor origin[NH_ORIGINS];
};
static_assert(sizeof(struct nh_shared) == NH_SHARED_BYTES, "the host's count of shared memory");

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

/* Starts the copies of a tile, if there is one of that number: at `cursor`, or extra tokens after the halo. */
template <int WIDTH, int PITCH>
NH_DEVICE void nh_copy_next(elem *to, const struct nh_stream &rows, const long long *offset,
                            const unsigned *place, const struct nh_course &course,
                            const struct nh_cursor &cursor, int tile) {
    if (tile < course.halo_tiles) {
        nh_copy_tile<WIDTH, PITCH>(to, rows.grid, cursor, offset, place,
                                   nh_limits(course.halo, cursor));
    } else if (tile < course.tiles) {
        long long first = nh_extra_first(course, tile);
        nh_copy_extra<WIDTH, PITCH>(to, rows.extra + first * rows.extra_step, rows.extra_step,
                                    course.extra_tokens - first);
    }
    nh_copy_commit();
}

/* Scale, bias and mask of a tile's scores. Warps whose rows all attend all columns have nothing to mask. */
NH_DEVICE void nh_finish_scores(const nh_cuda_args &args, const struct nh_block &block,
                                const struct nh_shared &shared, const struct nh_course &course,
                                const struct nh_cursor &cursor, int tile, int first_row,
                                float scale, nh_scores &scores) {
    bool extra = tile >= course.halo_tiles;
    unsigned extra_mask =
        extra ? nh_first_columns(course.extra_tokens - nh_extra_first(course, tile)) : 0;
    bool partial = extra ? extra_mask != ~0u : !nh_is_dense(shared.masks, first_row, cursor);
    if (NH_NOTED && threadIdx.x % 32 == 0)
        nh_note_tile(args, (int)blockIdx.x, tile, first_row == 0, partial && !extra);
    if (!NH_PRESCALE && !__any_sync(~0u, partial)) return;
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        int m = r / 2, half = r % 2;
        int row = first_row + 16 * m + 8 * half + (int)threadIdx.x % 32 / 4;
        unsigned mask = extra ? extra_mask : partial ? nh_row_mask(shared.masks, cursor, row) : ~0u;
        const elem *row_bias = 0;
        if (NH_BIASED && !extra) row_bias = nh_bias_row(args, block, cursor, row);
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
    const struct nh_stream keys = nh_stream_of(args, block, NH_K, NH_EXTRA_K);
    const struct nh_stream values = nh_stream_of(args, block, NH_V, NH_EXTRA_V);
    struct nh_cursor next = {{course.halo.begin[0], course.halo.begin[1], course.halo.begin[2]}};
    const struct nh_cursor start = next;
    auto copy_keys = [&](int tile) {
        if (threadIdx.x == 0) shared.origin[tile % NH_ORIGINS] = next;
        nh_copy_next<NH_DIM, NH_PITCH_K>(shared.keys[tile % NH_STAGES], keys, shared.rows.first,
                                         shared.rows.place, course, next, tile);
        nh_advance(next, course.halo);
    };
    auto copy_values = [&](int tile, const struct nh_cursor &cursor) {
        nh_copy_next<NH_DIM_V, NH_PITCH_V>(shared.values[tile % NH_STAGES], values,
                                           shared.rows.second, shared.rows.place, course, cursor,
                                           tile);
    };

    nh_copy_rows<NH_DIM, NH_PITCH_Q>(args, block, args.tensor[NH_Q], block.head, shared.queries);
    copy_keys(0);
    if (NH_STAGES == 2) {
        copy_values(0, start);
        copy_keys(1);
    }

    elem *queries = shared.queries + first_row * NH_PITCH_Q;
    const float scale = (float)(args.scale * NH_LOG2E);
    nh_scores scores;
    nh_output output = {};
    struct nh_softmax state;
    float shrink[2 * NH_BLOCKS];
    nh_softmax_start(state);
#pragma unroll 1
    for (int tile = 0; tile < course.tiles; tile++) {
        int stage = tile % NH_STAGES, following = tile + NH_STAGES - 1;
        nh_copy_wait_groups<2 * (NH_STAGES - 1)>();
        __syncthreads();
        copy_values(following, shared.origin[following % NH_ORIGINS]);
        nh_multiply<NH_DIM_PADDED, NH_PITCH_Q, NH_PITCH_K>(scores, queries, shared.keys[stage]);
        nh_copy_wait_groups<2 * (NH_STAGES - 1)>();
        __syncthreads();
        copy_keys(tile + NH_STAGES);
        nh_finish_scores(args, block, shared, course, shared.origin[tile % NH_ORIGINS], tile,
                         first_row, scale, scores);
        nh_softmax_raise(state, scores, NH_PRESCALE ? 1.f : scale, shrink);
        nh_softmax_shrink(state, output, shrink);
        nh_softmax_weights(state, scores, NH_PRESCALE ? 1.f : scale);
        nh_accumulate<NH_DIM_V_PADDED, NH_PITCH_V>(output, scores, shared.values[stage]);
    }

    __syncwarp();
    nh_finish_rows(args, block, state, output, first_row, queries);
    __syncwarp();
    nh_store_rows(args, block, first_row, queries);
}
