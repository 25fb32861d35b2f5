/* A work tile: which queries and keys it covers, where the rows of its tensors are, and which will be needed next. */
#ifndef NH_TILE_ROWS_H
#define NH_TILE_ROWS_H

#include "dot.h"
#include "kernels.h"
#include "pack.h"
#include "scratch.h"

struct tile_box {
    int64_t batch, kv_head;
    int32_t index[NH_AXES];                     /* of the tile, among those kept */
    int64_t tokens[NH_AXES];                    /* distance from the kept tile to this one */
    int32_t query[NH_AXES], query_end[NH_AXES]; /* places */
    int32_t key[NH_AXES], keys[NH_AXES];        /* halo: first place, count */
};

struct tile {
    const struct nh_tile_run *run;
    const struct nh_geometry *geometry;
    const struct nh_problem *problem;
    struct scratch scratch;
    struct tile_box box, next; /* next: of the item after this one, which most likely follows */
    bool last;                 /* no item follows, and next is box */
    int64_t group, head;       /* query heads per key head; the one at work */
    real k_factor;             /* multiplies k_rows */
    int32_t packed_end;        /* key rows before this place of the middle axis are packed */
    int32_t packed_planes_end; /* the same of the slow axis, if planes roll */
    int32_t stored_end;        /* those before this one are stored, see store_key_rows */
    real *partial;             /* this tile's partial gradients, or NULL */
};

static bool has_keys(const struct tile_box *box) {
    return box->keys[0] > 0 && box->keys[1] > 0 && box->keys[2] > 0;
}

/* The table from places to rows of a tensor along an axis, for its keys or queries. */
INLINE const int32_t *tensor_tokens(const struct tile *tile, int32_t tensor, int axis) {
    const struct nh_order *order = &tile->geometry->order[axis];
    const bool keys =
        tensor == NHOOD_K || tensor == NHOOD_V || tensor == NHOOD_D_K || tensor == NHOOD_D_V;
    return keys ? order->key_token : order->token;
}

/* The rows of a tensor along the lane axis, at one place of the two outer axes. */
INLINE struct rows tensor_rows(const struct tile *tile, int32_t tensor, int64_t head, int32_t slow,
                               int32_t middle, int64_t dim) {
    const nhood_strides *strides = &tile->problem->strides[tensor];
    int32_t dtype = nh_tensor_dtype(tile->problem, tensor);
    int64_t element =
        tile->box.batch * strides->batch + head * strides->head +
        (tile->box.tokens[0] + tensor_tokens(tile, tensor, 0)[slow]) * strides->axis[0] +
        (tile->box.tokens[1] + tensor_tokens(tile, tensor, 1)[middle]) * strides->axis[1] +
        tile->box.tokens[2] * strides->axis[2];
    const char *data = tile->run->io->data[tensor];
    return (struct rows){.base = data + element * (int64_t)nh_dtype_bytes(dtype),
                         .step = strides->axis[2],
                         .token = tensor_tokens(tile, tensor, 2),
                         .dtype = dtype,
                         .dim = (int32_t)dim};
}

/* The distance in elements from place `from` to place `to` of an axis. */
static int64_t axis_distance(const struct tile *tile, int32_t tensor, int axis, int64_t from,
                             int64_t to) {
    const int32_t *token = tensor_tokens(tile, tensor, axis);
    return (int64_t)(token[to] - token[from]) * tile->problem->strides[tensor].axis[axis];
}

/* The prefetch distance in rows. What is prefetched too early is evicted from L2 before it is used, because the rows of one of
 * several heads map to a fraction of its sets, and the longer they are, the fewer stay. */
static int32_t rows_ahead(const struct nh_problem *problem) {
    const int64_t bytes =
        nh_max(problem->dim, problem->dim_v) * (int64_t)nh_dtype_bytes(problem->dtype);
    return bytes < 256 ? 2 : 1;
}

/* Bytes from a row at place `middle` to the row that is needed rows_ahead places later. Beyond `end` that row belongs to the
 * next place of the slow axis, if there is `more` of it in the tile, else to the next work tile, whose places are
 * [next, next_end) where this one begins at `first`, and which is `heads` heads away. */
static int64_t bytes_ahead(const struct tile *tile, int32_t tensor, int32_t slow, bool more,
                           int32_t middle, int32_t end, const int32_t first[NH_AXES],
                           const int32_t next[NH_AXES], int32_t next_end, int64_t heads) {
    const nhood_strides *strides = &tile->problem->strides[tensor];
    int64_t bytes = (int64_t)nh_dtype_bytes(tile->problem->dtype);
    int64_t place = middle + rows_ahead(tile->problem);
    if (place < end) return axis_distance(tile, tensor, 1, middle, place) * bytes;
    if (more) {
        place = nh_min(first[1] + place - end, end - 1);
        return (axis_distance(tile, tensor, 0, slow, slow + 1) +
                axis_distance(tile, tensor, 1, middle, place)) *
               bytes;
    }
    if (tile->last) return 0;
    place = nh_min(next[1] + place - end, next_end - 1);
    int64_t elements =
        (tile->next.batch - tile->box.batch) * strides->batch + heads * strides->head;
    elements += axis_distance(tile, tensor, 0, slow, next[0]);
    elements += axis_distance(tile, tensor, 1, middle, place);
    elements += axis_distance(tile, tensor, 2, first[2], next[2]);
    for (int a = 0; a < NH_AXES; a++)
        elements += (tile->next.tokens[a] - tile->box.tokens[a]) * strides->axis[a];
    return elements * bytes;
}

static int64_t key_bytes_ahead(const struct tile *tile, int32_t tensor, int32_t slow,
                               int32_t middle) {
    if (!has_keys(&tile->next)) return 0;
    const bool more = slow + 1 < tile->box.key[0] + tile->box.keys[0];
    return bytes_ahead(tile, tensor, slow, more, middle, tile->box.key[1] + tile->box.keys[1],
                       tile->box.key, tile->next.key, tile->next.key[1] + tile->next.keys[1],
                       tile->next.kv_head - tile->box.kv_head);
}

static int64_t query_bytes_ahead(const struct tile *tile, int32_t tensor, int32_t slow,
                                 int32_t middle) {
    const bool more = slow + 1 < tile->box.query_end[0];
    return bytes_ahead(tile, tensor, slow, more, middle, tile->box.query_end[1], tile->box.query,
                       tile->next.query, tile->next.query_end[1],
                       tile->next.kv_head * tile->group - tile->head);
}

static struct tile_box item_box(const struct nh_tile_run *run, int64_t item) {
    const struct nh_geometry *geometry = run->geometry;
    struct tile_box box;
    int64_t heads = nh_round_heads(run), rest = item / heads;
    int64_t unit = run->first_unit + rest / geometry->tiles * heads + item % heads;
    rest %= geometry->tiles;
    box.batch = unit / geometry->problem.kv_heads;
    box.kv_head = unit % geometry->problem.kv_heads;
    for (int a = NH_AXES - 1; a >= 0; a--) {
        const struct nh_order *order = &geometry->order[a];
        const int32_t index =
            nh_axis_tile(&geometry->tile[a], rest % geometry->tile[a].count, &box.tokens[a]);
        rest /= geometry->tile[a].count;
        box.index[a] = index;
        box.query[a] = nh_tile_first(geometry, a, index);
        box.query_end[a] = nh_tile_end(geometry, a, index);
        box.key[a] = order->begin[box.query[a]];
        box.keys[a] = order->end[box.query_end[a] - 1] - box.key[a];
    }
    return box;
}

/* Whether the keys of the tile's rows are consecutive in the tensors. On periodic axes windows may continue at the other end. */
static bool keys_in_line(const struct tile *tile) {
    const int32_t first = tile->box.key[2], keys = tile->box.keys[2];
    const int32_t *token = tile->geometry->order[2].key_token;
    return !tile->problem->axis[2].periodic || keys == 0 ||
           token[first + keys - 1] - token[first] == keys - 1;
}

static void tile_set(const struct nh_tile_run *run, int64_t item, int32_t worker,
                     struct tile *tile) {
    const struct nh_problem *problem = &run->geometry->problem;
    tile->run = run;
    tile->geometry = run->geometry;
    tile->problem = problem;
    tile->group = problem->heads / problem->kv_heads;
    tile->box = item_box(run, item);
    tile->last = item + 1 == run->units * run->geometry->tiles;
    tile->next = tile->last ? tile->box : item_box(run, item + 1);
    tile->packed_end = tile->stored_end = tile->box.key[1];
    tile->packed_planes_end = tile->box.key[0];
    scratch_layout(run->geometry, (real *)run->scratch + worker * run->scratch_reals,
                   &tile->scratch);
    if (!keys_in_line(tile)) tile->scratch.v_rows = tile->scratch.wrapped_v_rows;
    const int64_t area = run->partial_of_worker ? worker : item;
    tile->partial = run->partial_reals ? (real *)run->partial + area * run->partial_reals : NULL;
}

#endif
