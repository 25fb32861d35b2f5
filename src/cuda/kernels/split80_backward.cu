/* Backward of sm_80 and later in two launches of one kernel, without atomics: rows are queries and give dQ, or, with
 * NH_INVERSE, rows are keys and give dK and dV.
 *
 * Either way a block owns a box of rows and walks the box of columns that they have to do with, the keys of its
 * queries or the queries of its keys, as the forward walks its halo. Per tile, with rows a, columns b and their
 * second tensors a', b' (dO for queries, V for keys):
 *
 *     P = exp(scale a b^T - LSE)     dS = P (a' b'^T - delta)     gradient of a += dS b     of a', if V, += P b'
 *
 * A key is met by the query heads of its group one after the other. Sums are in a fixed order: bit-equal every run.
 *
 * Knobs: as fused80_forward.cu, without bias and extra tokens, and NH_INVERSE. */
#include "exact_gradient.cuh"
#include "key_walk.cuh"
#include "tile_product.cuh"

struct nh_shared {
    elem rows[NH_ROWS * NH_PITCH_K], rows2[NH_ROWS * NH_PITCH_V];
    elem columns[NH_STAGES][NH_COLUMNS * NH_PITCH_K], columns2[NH_STAGES][NH_COLUMNS * NH_PITCH_V];
    struct nh_row_tables tables;
    struct nh_mask_tables masks;
    /* of the columns, if those are the queries */
    float lse[NH_STAGES][NH_COLUMNS], delta[NH_STAGES][NH_COLUMNS];
};
static_assert(sizeof(struct nh_shared) == NH_SHARED_BYTES, "the host's count of shared memory");

typedef float nh_gradient[NH_BLOCKS][NH_DIM_PADDED / 8][4];
typedef float nh_gradient2[NH_BLOCKS][NH_DIM_V_PADDED / 8][4];

struct nh_walk {
    struct nh_cursor cursor;
    /* tile of the halo, and which query head of the group */
    int tile, head;
};

struct nh_course {
    struct nh_halo halo;
    int tiles, heads;
    /* query heads before the first */
    int first_head;
};

NH_DEVICE struct nh_course nh_course_of(const nh_cuda_args &args, const struct nh_block &block,
                                        const struct nh_mask_tables &masks) {
    struct nh_course course;
    int group = (int)(args.heads / args.kv_heads);
    course.halo = nh_halo_of(masks);
    course.tiles = nh_halo_tiles(course.halo);
    course.heads = NH_INVERSE ? group : 1;
    course.first_head = NH_INVERSE ? block.head * group : block.head;
    return course;
}

NH_DEVICE void nh_next(struct nh_walk &walk, const struct nh_course &course) {
    nh_advance(walk.cursor, course.halo);
    if (++walk.tile < course.tiles) return;
    walk.tile = 0;
    walk.head++;
#pragma unroll
    for (int a = 0; a < 3; a++)
        walk.cursor.at[a] = course.halo.begin[a];
}

/* LSE and delta of a tile's queries: one column per thread. */
NH_DEVICE void nh_copy_scalars(const nh_cuda_args &args, const struct nh_block &block,
                               const struct nh_course &course, const struct nh_walk &walk,
                               const unsigned *place, unsigned limits, float *lse, float *delta) {
    const nh_cuda_tensor &from_lse = args.tensor[NH_LSE], &from_delta = args.tensor[NH_DELTA];
    for (int c = (int)threadIdx.x; c < NH_COLUMNS; c += NH_THREADS) {
        bool valid = nh_within(limits, place[c]);
        int head = course.first_head + walk.head;
        long long to_lse = block.batch * from_lse.batch + head * from_lse.head;
        long long to_delta = block.batch * from_delta.batch + head * from_delta.head;
#pragma unroll
        for (int a = 0; a < 3; a++) {
            int at = walk.cursor.at[a] + nh_column_axis(c, a);
            to_lse += nh_position_offset(args, block, from_lse, a, at);
            to_delta += nh_position_offset(args, block, from_delta, a, at);
        }
        nh_copy4(&lse[c], (const float *)from_lse.data + to_lse, valid);
        nh_copy4(&delta[c], (const float *)from_delta.data + to_delta, valid);
    }
}

/* Starts the copies of the walk's tile, if there is one, and moves on. */
NH_DEVICE void nh_copy_next(const nh_cuda_args &args, const struct nh_block &block,
                            struct nh_shared &shared, int stage, const struct nh_course &course,
                            const struct nh_grid_rows &columns, const struct nh_grid_rows &columns2,
                            struct nh_walk &walk) {
    if (walk.head < course.heads) {
        unsigned limits = nh_limits(course.halo, walk.cursor);
        struct nh_grid_rows from = columns, from2 = columns2;
        if (NH_INVERSE) {
            from.first += walk.head * args.tensor[NH_Q].head;
            from2.first += walk.head * args.tensor[NH_D_O].head;
        }
        nh_copy_tile<NH_DIM, NH_PITCH_K>(shared.columns[stage], from, walk.cursor,
                                         shared.tables.first, shared.tables.place, limits);
        nh_copy_tile<NH_DIM_V, NH_PITCH_V>(shared.columns2[stage], from2, walk.cursor,
                                           shared.tables.second, shared.tables.place, limits);
        if (NH_INVERSE)
            nh_copy_scalars(args, block, course, walk, shared.tables.place, limits,
                            shared.lse[stage], shared.delta[stage]);
        nh_next(walk, course);
    }
    nh_copy_commit();
}

/* LSE in base 2 and delta of the thread's rows, if those are the queries. */
struct nh_row_scalars {
    float lse[2 * NH_BLOCKS], delta[2 * NH_BLOCKS];
};

NH_DEVICE void nh_row_scalars_load(const nh_cuda_args &args, const struct nh_block &block,
                                   int first_row, struct nh_row_scalars &scalars) {
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        int row = first_row + 8 * r + (int)threadIdx.x % 32 / 4;
        const nh_cuda_tensor &lse = args.tensor[NH_LSE], &delta = args.tensor[NH_DELTA];
        scalars.lse[r] =
            ((const float *)lse.data)[nh_row_offset(args, block, lse, block.head, row)];
        scalars.delta[r] =
            ((const float *)delta.data)[nh_row_offset(args, block, delta, block.head, row)];
    }
}

/* S and dP become P and dS. Masked pairs are zero whatever they hold. */
NH_DEVICE void nh_weights(const nh_cuda_args &args, const struct nh_shared &shared, const struct nh_row_scalars &scalars,
                          const struct nh_walk &now, int stage, int first_row, float scale,
                          nh_scores &p, nh_scores &ds) {
    bool partial = !nh_is_dense(shared.masks, first_row, now.cursor);
    if (NH_NOTED && threadIdx.x % 32 == 0)
        nh_note_tile(args, (int)blockIdx.x, now.tile, first_row == 0, partial);
    int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        int m = r / 2, half = r % 2, row = first_row + 8 * r + (int)threadIdx.x % 32 / 4;
        unsigned mask = partial ? nh_row_mask(shared.masks, now.cursor, row) : ~0u;
#pragma unroll
        for (int i = 0; i < NH_COLUMNS / 4; i++) {
            int column = i / 2 * 8 + 2 * t + i % 2;
            float &s = p[m][i / 2][2 * half + i % 2], &g = ds[m][i / 2][2 * half + i % 2];
            float lse = NH_INVERSE ? shared.lse[stage][column] : scalars.lse[r];
            float delta = NH_INVERSE ? shared.delta[stage][column] : scalars.delta[r];
            float weight = nh_exp2(s * scale - lse * (float)NH_LOG2E);
            bool inside = mask >> i & 1;
            s = inside ? weight : 0.f;
            g = inside ? weight * (g - delta) : 0.f;
        }
    }
}

/* The warp's rows of a gradient into shared memory; bit r: the thread holds a part of row 8r + lane / 4 that is not
 * finite. */
template <int WIDTH, int PITCH>
NH_DEVICE unsigned nh_stage(const float (&gradient)[NH_BLOCKS][WIDTH / 8][4], float scale,
                            elem *rows) {
    unsigned poisoned = 0;
    rows += (int)threadIdx.x % 32 / 4 * PITCH + 2 * ((int)threadIdx.x % 4);
#pragma unroll
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        float poison = 0.f;
#pragma unroll
        for (int n = 0; n < WIDTH / 8; n++) {
            float first = gradient[r / 2][n][r % 2 * 2] * scale;
            float second = gradient[r / 2][n][r % 2 * 2 + 1] * scale;
            poison += first * 0.f + second * 0.f;
            nh_store_pair(rows + 8 * r * PITCH + 8 * n, first, second);
        }
        poisoned |= (unsigned)(poison != 0.f) << r;
    }
    return poisoned;
}

template <int WIDTH, int PITCH>
NH_DEVICE void nh_store_gradient(const nh_cuda_args &args, const struct nh_block &block, int slot,
                                 int first_row, const elem *rows) {
    const nh_cuda_tensor &tensor = args.tensor[slot];
    const int units = WIDTH / NH_UNIT;
    if (!tensor.data) return;
    for (int i = (int)threadIdx.x % 32; i < NH_WARP_ROWS * units; i += 32) {
        int row = i / units, column = i % units * NH_UNIT;
        if (nh_row_exists(block, first_row + row))
            nh_store_unit((elem *)tensor.data +
                              nh_row_offset(args, block, tensor, block.head, first_row + row) +
                              column,
                          rows + row * PITCH + column);
    }
}

NH_DEVICE void nh_finish(const nh_cuda_args &args, const struct nh_block &block,
                         const nh_gradient &gradient, const nh_gradient2 &gradient2, int first_row,
                         elem *rows, elem *rows2) {
    unsigned poisoned = nh_stage<NH_DIM_PADDED, NH_PITCH_K>(gradient, (float)args.scale, rows);
    if (NH_INVERSE) poisoned |= nh_stage<NH_DIM_V_PADDED, NH_PITCH_V>(gradient2, 1.f, rows2);
#pragma unroll 1
    for (int r = 0; r < 2 * NH_BLOCKS; r++) {
        unsigned lanes = __ballot_sync(~0u, (int)(poisoned >> r & 1));
        while (lanes) {
            int bad = (__ffs((int)lanes) - 1) / 4, row = 8 * r + bad;
            lanes &= ~(15u << 4 * bad);
            __syncwarp();
            nh_exact_gradient(args, first_row + row, rows + row * NH_PITCH_K,
                              rows2 + row * NH_PITCH_V);
        }
    }
    __syncwarp();
    nh_store_gradient<NH_DIM, NH_PITCH_K>(args, block, NH_INVERSE ? NH_D_K : NH_D_Q, first_row,
                                          rows);
    if (NH_INVERSE) nh_store_gradient<NH_DIM_V, NH_PITCH_V>(args, block, NH_D_V, first_row, rows2);
}

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    split80_backward(const __grid_constant__ nh_cuda_args args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    struct nh_shared &shared = *(struct nh_shared *)nh_shared_memory;
    const int row_slot = NH_INVERSE ? NH_K : NH_Q, row_slot2 = NH_INVERSE ? NH_V : NH_D_O;
    const int column_slot = NH_INVERSE ? NH_Q : NH_K, column_slot2 = NH_INVERSE ? NH_D_O : NH_V;
    struct nh_block block;
    if (!nh_block_locate(args, NH_INVERSE ? args.kv_heads : args.heads, block)) return;

    nh_mask_tables_fill(args, block, shared.masks);
    nh_row_tables_fill(args, column_slot, column_slot2, shared.tables);
    nh_zero_padding(shared.rows, NH_ROWS, NH_PITCH_K, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.rows2, NH_ROWS, NH_PITCH_V, NH_DIM_V, NH_DIM_V_PADDED);
    nh_zero_padding(shared.columns[0], NH_STAGES * NH_COLUMNS, NH_PITCH_K, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.columns2[0], NH_STAGES * NH_COLUMNS, NH_PITCH_V, NH_DIM_V,
                    NH_DIM_V_PADDED);
    __syncthreads();

    int first_row = (int)threadIdx.x / 32 * NH_WARP_ROWS;
    const struct nh_course course = nh_course_of(args, block, shared.masks);
    int column_head = NH_INVERSE ? course.first_head : block.kv_head;
    const struct nh_grid_rows columns =
        nh_grid_rows_of(args, block, args.tensor[column_slot], column_head);
    const struct nh_grid_rows columns2 =
        nh_grid_rows_of(args, block, args.tensor[column_slot2], column_head);
    struct nh_walk now = {
        {{course.halo.begin[0], course.halo.begin[1], course.halo.begin[2]}}, 0, 0};
    struct nh_walk next = now;
    nh_copy_rows<NH_DIM, NH_PITCH_K>(args, block, args.tensor[row_slot], block.head, shared.rows);
    nh_copy_rows<NH_DIM_V, NH_PITCH_V>(args, block, args.tensor[row_slot2], block.head,
                                       shared.rows2);
#pragma unroll
    for (int i = 0; i < NH_STAGES - 1; i++)
        nh_copy_next(args, block, shared, i, course, columns, columns2, next);

    elem *rows = shared.rows + first_row * NH_PITCH_K;
    elem *rows2 = shared.rows2 + first_row * NH_PITCH_V;
    struct nh_row_scalars scalars;
    if (!NH_INVERSE) nh_row_scalars_load(args, block, first_row, scalars);
    nh_gradient gradient = {};
    nh_gradient2 gradient2 = {};
    int stage = 0;
#pragma unroll 1
    while (now.head < course.heads) {
        /* the barrier shows the tile to all, and that all have done with the one before */
        nh_copy_wait_groups<NH_STAGES - 2>();
        __syncthreads();
        nh_copy_next(args, block, shared, (stage + NH_STAGES - 1) % NH_STAGES, course, columns,
                     columns2, next);
        nh_scores p, ds;
        nh_multiply<NH_DIM_PADDED, NH_PITCH_K, NH_PITCH_K>(p, rows, shared.columns[stage]);
        nh_multiply<NH_DIM_V_PADDED, NH_PITCH_V, NH_PITCH_V>(ds, rows2, shared.columns2[stage]);
        nh_weights(args, shared, scalars, now, stage, first_row, (float)(args.scale * NH_LOG2E), p, ds);
        nh_accumulate<NH_DIM_PADDED, NH_PITCH_K>(gradient, ds, shared.columns[stage]);
        if (NH_INVERSE)
            nh_accumulate<NH_DIM_V_PADDED, NH_PITCH_V>(gradient2, p, shared.columns2[stage]);
        nh_next(now, course);
        stage = (stage + 1) % NH_STAGES;
    }
    __syncwarp();
    nh_finish(args, block, gradient, gradient2, first_row, rows, rows2);
}
