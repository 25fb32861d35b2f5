/* The geometry of a banded product: a tile of queries (or keys, if NH_INVERSE) against the box of all keys (queries)
 * that some of its tokens share a window with, walked in chunks of NH_COLUMNS.
 *
 * A tile lies inside one dilation group per axis, so that its windows, in positions of the group, are ranges.
 * Coordinates of keys are relative to a base per axis; the slot of a key in a query's window is then a linear
 * function of the key minus one of the query, and "is attended" one unsigned comparison per axis.
 *
 * Knobs: NH_RANK; NH_TILE0, NH_TILE1, NH_TILE2 (tokens of a tile per axis, 1 on unit axes); NH_COLUMNS; NH_WIDTH, a row's elements in
 * shared memory; NH_VECTOR, elements per aligned load; NH_CAUSAL and NH_STRIDED: whether some axis is; NH_INVERSE. */
#pragma once

#include "mma.cuh"
#include "prelude.cuh"

#define NH_ROWS (NH_TILE0 * NH_TILE1 * NH_TILE2)
#define NH_WARPS (NH_ROWS / 16)
#define NH_THREADS (32 * NH_WARPS)
#define NH_FIRST_AXIS (3 - NH_RANK)
/* No offset of a row: outside the tensor. */
#define NH_NONE (-0x7fffffffffffffffll)
/* No coordinate of a key: no query's window is there. */
#define NH_NOWHERE (-0x40000000)

/* One axis of a tile, in positions of its dilation group. */
struct nh_tile_axis {
    /* the tile's tokens: [origin, origin + extent); extent <= 0 past a shorter group's end */
    int group, length, origin, extent;
    /* the box opposite: [low, low + span) */
    int low, span;
    /* position of the key with coordinate 0 */
    int base;
};

struct nh_tile {
    int batch, head;
    struct nh_tile_axis axis[3];
};

/* A query, as pairs with keys need it. */
struct __align__(16) nh_query {
    int begin[3];
    /* the query's part of an index into a head's bias table */
    int bias;
    /* 0: no such query */
    int count[3];
    /* LSE or delta */
    float shift;
    /* where slot 0 would be, were the key with coordinates 0 in it */
    long long weights;
};

struct nh_key {
    int at[3];
    int slot;
};

NH_DEVICE struct nh_range nh_tile_window(const struct nh_cuda_axis *axis, int length, int position) {
    return nh_window_range(length, axis->window, NH_STRIDED ? axis->stride : 1,
                           NH_CAUSAL ? axis->causal : 0, position);
}

NH_DEVICE struct nh_range nh_tile_reach(const struct nh_cuda_axis *axis, int length, int position) {
#if NH_INVERSE
    return nh_inverse_range(length, axis->window, NH_STRIDED ? axis->stride : 1,
                            NH_CAUSAL ? axis->causal : 0, position);
#else
    return nh_tile_window(axis, length, position);
#endif
}

NH_DEVICE void nh_tile_axis_set(struct nh_tile_axis *t, const struct nh_cuda_axis *axis,
                                unsigned index, int tile) {
    int longest = (int)nh_axis_group_length(axis->length, axis->dilation, 0);
    unsigned per_group = (unsigned)(longest + tile - 1) / (unsigned)tile;
    t->group = (int)(index / per_group);
    t->origin = (int)(index % per_group) * tile;
    t->length = (int)nh_axis_group_length((int)axis->length, (int)axis->dilation, t->group);
    t->extent = min(tile, t->length - t->origin);
    if (t->extent <= 0) return;
    t->low = (int)nh_tile_reach(axis, t->length, t->origin).begin;
    t->span = (int)nh_tile_reach(axis, t->length, t->origin + t->extent - 1).end - t->low;
    t->base = NH_INVERSE ? t->origin : t->low;
}

/* The tile of this block: heads fastest, so that neighbouring blocks share lines of heads-last tensors, then the
 * axes' tiles, then the batch. false: nothing there. Ends with a barrier. */
NH_DEVICE bool nh_tile_set(struct nh_tile *tile, const struct nh_cuda_args *args, unsigned heads) {
    const int size[3] = {NH_TILE0, NH_TILE1, NH_TILE2};
    if (threadIdx.x == 0) {
        unsigned rest = blockIdx.x;
        tile->head = (int)(rest % heads);
        rest /= heads;
#pragma unroll
        for (int a = 2; a >= 0; a--) {
            const struct nh_cuda_axis *axis = &args->axis[a];
            unsigned longest = (unsigned)nh_axis_group_length(axis->length, axis->dilation, 0);
            unsigned count = (longest + (unsigned)size[a] - 1) / (unsigned)size[a] *
                             (unsigned)axis->dilation;
            nh_tile_axis_set(&tile->axis[a], axis, rest % count, size[a]);
            rest /= count;
        }
        tile->batch = (int)rest;
    }
    __syncthreads();
    return tile->axis[0].extent > 0 && tile->axis[1].extent > 0 && tile->axis[2].extent > 0;
}

NH_DEVICE int nh_tile_columns(const struct nh_tile *tile) {
    return tile->axis[0].span * tile->axis[1].span * tile->axis[2].span;
}

/* Position of the tile's row, or of the opposite box's column; false: none such. */
NH_DEVICE bool nh_tile_row(const struct nh_tile *tile, int row, int position[3]) {
    int at[3] = {row / (NH_TILE1 * NH_TILE2), row / NH_TILE2 % NH_TILE1, row % NH_TILE2};
    bool inside = true;
    for (int a = 0; a < 3; a++) {
        inside = inside && at[a] < tile->axis[a].extent;
        position[a] = tile->axis[a].origin + at[a];
    }
    return inside;
}

NH_DEVICE bool nh_tile_column(const struct nh_tile *tile, int column, int position[3]) {
    unsigned rest = (unsigned)column;
    for (int a = 2; a > NH_FIRST_AXIS; a--) {
        position[a] = tile->axis[a].low + (int)(rest % (unsigned)tile->axis[a].span);
        rest /= (unsigned)tile->axis[a].span;
    }
    for (int a = 0; a < NH_FIRST_AXIS; a++)
        position[a] = 0;
    position[NH_FIRST_AXIS] = tile->axis[NH_FIRST_AXIS].low + (int)rest;
    return (int)rest < tile->axis[NH_FIRST_AXIS].span;
}

/* Offset of a row of a tensor, in elements. */
NH_DEVICE long long nh_tile_offset(const struct nh_tile *tile, const struct nh_cuda_args *args,
                                   int slot, const int position[3], int head) {
    const struct nh_cuda_tensor *tensor = &args->tensor[slot];
    long long offset = tile->batch * tensor->batch + head * tensor->head;
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        offset += (position[a] * args->axis[a].dilation + tile->axis[a].group) * tensor->axis[a];
    return offset;
}

/* Coordinates of a key; far outside every window if there is none. */
NH_DEVICE void nh_key_set(struct nh_key *key, const struct nh_tile *tile,
                          const struct nh_cuda_args *args, const int position[3], bool exists) {
    int slots = 1;
    key->slot = 0;
    for (int a = 2; a >= 0; a--) {
        int at = position[a] - tile->axis[a].base;
        key->at[a] = exists ? at : NH_NOWHERE;
        key->slot += at * slots;
        slots *= (int)args->axis[a].window;
    }
}

NH_DEVICE void nh_query_set(struct nh_query *query, const struct nh_tile *tile,
                            const struct nh_cuda_args *args, const int position[3], int head,
                            bool exists) {
    long long slots = 1, before = 0;
    int bias = 0, bias_step = 1;
    for (int a = 2; a >= 0; a--) {
        const struct nh_cuda_axis *axis = &args->axis[a];
        struct nh_range range = nh_tile_window(axis, tile->axis[a].length, position[a]);
        query->begin[a] = (int)range.begin - tile->axis[a].base;
        query->count[a] = exists ? (int)(range.end - range.begin) : 0;
        before += query->begin[a] * slots;
        slots *= axis->window;
        bias += ((int)axis->window - 1 - (position[a] - tile->axis[a].base)) * bias_step;
        bias_step *= 2 * (int)axis->window - 1;
    }
    query->bias = bias;
    query->weights = nh_tile_offset(tile, args, NH_A, position, head) - before;
}

NH_DEVICE bool nh_attends(const struct nh_query *query, const struct nh_key *key) {
    bool inside = true;
    for (int a = NH_FIRST_AXIS; a < 3; a++)
        inside = inside && (unsigned)(key->at[a] - query->begin[a]) < (unsigned)query->count[a];
    return inside;
}

/* Elements that one copy instruction moves. */
#define NH_PIECE                                                                                   \
    (NH_VECTOR * sizeof(elem) >= 16 ? 16 / sizeof(elem)                                            \
                                    : (NH_VECTOR * sizeof(elem) >= 4 ? 4 / sizeof(elem) : 1))
#define NH_PIECES ((int)(NH_WIDTH / NH_PIECE))

/* Copies rows of a tensor, from `from` + offset[row], to shared memory: dim elements, then zeros up to NH_WIDTH.
 * Asynchronous where the pieces allow: nh_copy_wait, then a barrier. */
NH_DEVICE void nh_rows_load(elem *to, int stride, const elem *from, const long long *offset,
                            int rows, int dim) {
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < rows * NH_PIECES; i += NH_THREADS) {
        int row = i / NH_PIECES, column = i % NH_PIECES * (int)NH_PIECE;
        bool valid = offset[row] != NH_NONE && column < dim;
        const elem *source = valid ? from + offset[row] + column : from;
        elem *target = to + row * stride + column;
        if (NH_PIECE * sizeof(elem) == 16) {
            nh_copy16(target, source, valid);
        } else if (NH_PIECE * sizeof(elem) == 4) {
            nh_copy4(target, source, valid);
        } else {
            *target = valid ? *source : (elem)0;
        }
    }
}

/* The way back, of the rows that exist. */
NH_DEVICE void nh_rows_store(elem *to, const long long *offset, const elem *from, int stride,
                             int rows, int dim) {
    for (int i = (int)threadIdx.x; i < rows * NH_PIECES; i += NH_THREADS) {
        int row = i / NH_PIECES, column = i % NH_PIECES * (int)NH_PIECE;
        if (offset[row] == NH_NONE || column >= dim) continue;
        *(nh_vector<NH_PIECE> *)(to + offset[row] + column) =
            *(const nh_vector<NH_PIECE> *)(from + row * stride + column);
    }
}
