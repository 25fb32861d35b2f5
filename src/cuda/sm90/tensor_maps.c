/* Tensors as boxes: the layouts that the five axes of a tensor map can describe, and these maps. */
#include "tensor_maps.h"

#include "dtype.h"
#include "tile_count.h"

#include <string.h>

enum {
    LEAST_DIM = 32,
    MOST_ELEMENT_STRIDE = 8,
    MOST_BOX = 256,
    MOST_LENGTH = 1 << 29,
    STATS = 4,
    UNIT_BYTES = 16,
    NARROW_BYTES = 128
};

static int64_t element_bytes(const struct nh_problem *problem) {
    return (int64_t)nh_dtype_bytes(problem->dtype);
}

/* Tensors as bits. */
static const uint32_t EXTRA_TOKENS = NH_BIT(EXTRA_K) | NH_BIT(EXTRA_V),
                      QUERIES = NH_BIT(Q) | NH_BIT(D_O) | NH_BIT(O) | NH_BIT(D_Q) | 1u << NH_DELTA,
                      VALUES = NH_BIT(V) | NH_BIT(O) | NH_BIT(D_O) | NH_BIT(D_V) | NH_BIT(EXTRA_V);

static bool extra_token(int32_t tensor) {
    return EXTRA_TOKENS >> tensor & 1;
}

static bool of_queries(int32_t tensor) {
    return QUERIES >> tensor & 1;
}

/* The tokens of an axis that a tensor has. */
static const struct nh_box *box_of(const struct nh_problem *problem, int32_t tensor, int axis) {
    const struct nh_axis *a = &problem->axis[axis];
    return of_queries(tensor) ? &a->query : &a->key;
}

static int64_t heads_of(const struct nh_problem *problem, int32_t tensor) {
    return of_queries(tensor) ? problem->heads : problem->kv_heads;
}

static int64_t dim_of(const struct nh_problem *problem, int32_t tensor) {
    return VALUES >> tensor & 1 ? problem->dim_v : problem->dim;
}

/* Whether batch entries or heads of a tensor are all the same memory. */
static bool repeats(const struct nh_problem *problem, int32_t tensor) {
    const nhood_strides *s = &problem->strides[tensor];
    return (problem->batch > 1 && !s->batch) || (heads_of(problem, tensor) > 1 && !s->head);
}

enum nh_map_layout nh_map_layout_of(const struct nh_problem *problem, int32_t tensor) {
    int64_t heads = heads_of(problem, tensor);
    const nhood_strides *s = &problem->strides[tensor];
    if (nh_sm90_any_far(problem) || repeats(problem, tensor)) return NH_MAP_ORIGIN;
    if (problem->rank < 3) return NH_MAP_SPLIT;
    if (problem->batch == 1) return NH_MAP_ONE_BATCH;
    if (heads == 1 || s->head == dim_of(problem, tensor)) return NH_MAP_HEADS_IN_ROW;
    return s->batch == heads * s->head ? NH_MAP_HEADS_IN_BATCH : NH_MAP_ORIGIN;
}

/* If rows are narrow, a dilation of 2 is left to element strides, which cuda.small needs. Element strides of 2 limit
 * boxes to 128 tokens, so that maps of wider rows fold for any dilation. */
bool nh_sm90_folds(const struct nh_problem *problem) {
    bool wide = nh_max(problem->dim, problem->dim_v) * element_bytes(problem) > NARROW_BYTES;
    return problem->rank == 1 && problem->axis[2].dilation > (wide ? 1 : 2);
}

/* See nh_sm90_far_axes. */
static bool is_far(const struct nh_problem *problem, int axis) {
    return problem->rank > 1 && problem->axis[axis].dilation > MOST_ELEMENT_STRIDE;
}

/* Whether a map's axis runs over the positions of a dilation group instead of over tokens. */
static bool by_position(const struct nh_problem *problem, int axis) {
    return (nh_sm90_folds(problem) && axis == 2) || is_far(problem, axis);
}

/* Whether dilation groups of an axis differ in length in some tensor: the shorter ones then have their own maps. */
static bool is_uneven(const struct nh_problem *problem, int axis) {
    const struct nh_axis *a = &problem->axis[axis];
    return by_position(problem, axis) &&
           (nh_sm90_folds(problem) || a->query.length % a->dilation || a->key.length % a->dilation);
}

/* A bit per axis. */
static int32_t axes_that(const struct nh_problem *problem,
                         bool (*hold)(const struct nh_problem *, int)) {
    return hold(problem, 0) | hold(problem, 1) << 1 | hold(problem, 2) << 2;
}

int32_t nh_sm90_far_axes(const struct nh_problem *problem) {
    return axes_that(problem, is_far);
}

bool nh_sm90_any_far(const struct nh_problem *problem) {
    return is_far(problem, 0) || is_far(problem, 1) || is_far(problem, 2);
}

int32_t nh_sm90_uneven_axes(const struct nh_problem *problem) {
    return axes_that(problem, is_uneven);
}

static int32_t variants(const struct nh_problem *problem) {
    return 1 << (is_uneven(problem, 0) + is_uneven(problem, 1) + is_uneven(problem, 2));
}

/* The number of origins that a tensor's boxes can have, in steps of 16 bytes; -1 if coordinates cannot count them.
 * bytes: of an element of the strides. */
static int64_t origins(const struct nh_problem *problem, int64_t heads, const nhood_strides *s,
                       int64_t bytes) {
    double last = (double)(problem->batch - 1) * (double)s->batch;
    last += (double)(heads - 1) * (double)s->head;
    for (int a = 0; a < NH_AXES; a++)
        if (is_far(problem, a))
            last += (double)(problem->axis[a].dilation - 1) * (double)s->axis[a];
    last *= (double)bytes / UNIT_BYTES;
    return last < INT32_MAX ? (int64_t)last + 1 : -1;
}

#define MOST_STRIDE ((int64_t)1 << 38)
static bool stride_fits(int64_t extent, int64_t stride, int64_t least, int64_t bytes) {
    return extent <= 1 ||
           (stride >= least && stride < MOST_STRIDE && (stride * bytes) % UNIT_BYTES == 0);
}

/* Whether all strides of axes with several entries are multiples of 16 bytes, and small enough for a map; and positive,
 * unless they are of batch entries or heads that repeat. */
static bool strides_fit(const struct nh_problem *problem, int32_t tensor) {
    const int64_t bytes = element_bytes(problem);
    const nhood_strides *s = &problem->strides[tensor];
    const bool extra = extra_token(tensor);
    const int64_t least = extra ? 1 : 0;
    for (int a = 0; a < NH_AXES; a++) {
        const int64_t extent = !extra                         ? box_of(problem, tensor, a)->length
                               : a == NH_AXES - problem->rank ? problem->extra_tokens
                                                              : 1;
        if (!stride_fits(extent, s->axis[a], 1, bytes)) return false;
        if (!extra && by_position(problem, a) &&
            s->axis[a] > MOST_STRIDE / problem->axis[a].dilation)
            return false;
    }
    return stride_fits(problem->batch, s->batch, least, bytes) &&
           stride_fits(heads_of(problem, tensor), s->head, least, bytes);
}

static bool origins_fit(const struct nh_problem *problem, int32_t tensor) {
    return extra_token(tensor) || nh_map_layout_of(problem, tensor) != NH_MAP_ORIGIN ||
           origins(problem, heads_of(problem, tensor), &problem->strides[tensor],
                   element_bytes(problem)) > 0;
}

static bool dim_fits(int64_t dim, int64_t most) {
    return dim >= LEAST_DIM && dim <= most && dim % 16 == 0;
}

/* NULL, or why the kernels do not take the part of a grid that tensors cover, or a periodic axis. */
static const char *refuse_parts(const struct nh_problem *problem) {
    if (!nh_problem_cut(problem)) return NULL;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (nh_max(axis->length, nh_axis_keys(axis)) >
            (axis->periodic ? MOST_LENGTH / 2 : MOST_LENGTH))
            return "part of a grid, or a window table, with an axis longer than 2^29 tokens, or "
                   "2^28 "
                   "where it is periodic";
        const char *pieces = nh_refuse_pieces(axis, problem->op == NHOOD_OP_BWD);
        if (pieces) return pieces;
        if (by_position(problem, a) &&
            nh_min(axis->query.length, axis->key.length) < axis->dilation)
            return "a box that lacks whole dilation groups of an axis with a large dilation";
    }
    return NULL;
}

/* Whether tensors of queries and of keys have the same extents. */
static bool sides_alike(const struct nh_problem *problem) {
    bool alike = problem->heads == problem->kv_heads;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        alike = alike && axis->query.offset == axis->key.offset &&
                axis->query.length == axis->key.length;
    }
    return alike;
}

/* The bits that are set, or those that are not: those that have the tensor's. */
static uint32_t side_of(uint32_t bits, int32_t tensor) {
    return bits >> tensor & 1 ? bits : ~bits;
}

/* The tensors of rows with the extents of this one, as bits; alike: sides_alike. */
static uint32_t same_extents(const struct nh_problem *problem, bool alike, int32_t tensor) {
    return side_of(EXTRA_TOKENS, tensor) & (alike ? UINT32_MAX : side_of(QUERIES, tensor)) &
           (problem->dim == problem->dim_v ? UINT32_MAX : side_of(VALUES, tensor));
}

uint32_t nh_sm90_distinct(const struct nh_problem *problem, uint32_t moved) {
    const uint32_t tensors = moved & nh_problem_tensors(problem);
    const bool alike = sides_alike(problem);
    uint32_t distinct = 0, same = 0; /* same: those with the extents of `before` */
    const nhood_strides *before = NULL;
    for (uint32_t left = tensors; left; left &= left - 1) {
        const int32_t tensor = __builtin_ctz(left);
        const nhood_strides *own = &problem->strides[tensor];
        if (same >> tensor & 1 && !memcmp(before, own, sizeof *own)) continue;
        distinct |= 1u << tensor;
        same = same_extents(problem, alike, tensor);
        before = own;
    }
    return distinct;
}

bool nh_sm90_by_origin(const struct nh_problem *problem, uint32_t moved) {
    for (uint32_t left = moved & nh_problem_tensors(problem); left; left &= left - 1) {
        const int32_t tensor = __builtin_ctz(left);
        if (!extra_token(tensor) && nh_map_layout_of(problem, tensor) == NH_MAP_ORIGIN) return true;
    }
    return false;
}

const char *nh_sm90_refuse_boxes(const struct nh_problem *problem, const struct nh_device *device,
                                 uint32_t moved) {
    const struct nh_cuda_device *cuda = device->backend;
    if (cuda->arch != 90) return "needs compute capability 9.0";
    if (problem->flags & NHOOD_FLAG_UNALIGNED) return "tensors may start at any element";
    for (int a = 0; a < NH_AXES; a++)
        if (problem->axis[a].length > INT32_MAX) return "an axis has 2^31 tokens or more";
    for (uint32_t left = nh_sm90_distinct(problem, moved); left; left &= left - 1) {
        const int32_t tensor = __builtin_ctz(left);
        if (!strides_fit(problem, tensor)) return "a stride is not a positive multiple of 16 bytes";
        if (!origins_fit(problem, tensor))
            return "batch entries and heads lie 32 GiB apart or more";
    }
    return NULL;
}

const char *nh_sm90_refuse(const struct nh_problem *problem, const struct nh_device *device,
                           uint32_t fetched, uint32_t stored, int64_t most_dim) {
    if (problem->dtype != NHOOD_DTYPE_F16 && problem->dtype != NHOOD_DTYPE_BF16)
        return "only f16 and bf16";
    if (!dim_fits(problem->dim, most_dim) || !dim_fits(problem->dim_v, most_dim))
        return most_dim == 256 ? "head dims must be multiples of 16 from 32 to 256"
                               : "head dims must be multiples of 16 from 32 to 128";
    const char *reason = nh_sm90_refuse_boxes(problem, device, fetched);
    if (!reason) reason = refuse_parts(problem);
    if (reason) return reason;
    int32_t maps = 0;
    for (uint32_t left = fetched & nh_problem_tensors(problem); left; left &= left - 1)
        maps++;
    if (maps * variants(problem) > NH_CUDA_MAPS)
        return "too many axes whose dilation is above 8 and does not divide them";
    if (problem->bias_count > INT32_MAX) return "a bias table of 2^31 entries or more";
    if (!(problem->scale > 0)) return "the scale is not positive";
    if (problem->extra_tokens > INT32_MAX) return "2^31 extra tokens or more";
    if (nh_cuda_vector(problem, stored) < 8)
        return "a stride of an output is no multiple of 16 bytes";
    return NULL;
}

bool nh_sm90_boxes_fit(const struct nh_problem *problem, const int32_t tile[3]) {
    for (int a = 0; a < NH_AXES; a++) {
        int64_t most = a < NH_AXES - problem->rank ? 1 : MOST_BOX;
        const int64_t dilation = problem->axis[a].dilation;
        if (tile[a] * (dilation == 1 || by_position(problem, a) ? 1 : dilation) > most)
            return false;
    }
    return true;
}

static void set_axis(struct nh_cuda_map *map, int index, int64_t extent, int64_t stride_bytes,
                     int64_t tile, int64_t dilation) {
    map->extent[index] = (uint64_t)extent;
    if (index > 0) map->stride_bytes[index - 1] = extent > 1 ? (uint64_t)stride_bytes : 16;
    map->box[index] = (uint32_t)(tile * dilation);
    map->element_stride[index] = (uint32_t)dilation;
}

/* Sets an axis of tokens, with the dilation as element stride, or, if it is far, one of positions. */
static void set_grid_axis(struct nh_cuda_map *map, int index, const struct nh_problem *problem,
                          int axis, int64_t stride_bytes, int64_t tile) {
    int64_t length = box_of(problem, map->slot, axis)->length,
            dilation = problem->axis[axis].dilation;
    map->offset_bytes += box_of(problem, map->slot, axis)->offset * stride_bytes;
    if (is_far(problem, axis)) {
        set_axis(map, index, nh_ceil_div(length, dilation), dilation * stride_bytes, tile, 1);
    } else {
        set_axis(map, index, length, stride_bytes, tile, dilation);
    }
}

/* Starts a map with its innermost axis, of which a box has box_columns. */
static struct nh_cuda_map start_map(int32_t slot, int32_t type, int32_t swizzle, int32_t promotion,
                                    int64_t columns, int64_t box_columns) {
    struct nh_cuda_map map = {
        .slot = slot, .rank = 5, .type = type, .swizzle = swizzle, .promotion = promotion};
    set_axis(&map, 0, columns, 0, box_columns, 1);
    return map;
}

/* Starts a map of rows. A box has 128 bytes of a row, or 64 if head dims have no more. Behind a row of 128 bytes there
 * often is one of another head, which a larger promotion would fetch for nothing. */
static struct nh_cuda_map rows_map(const struct nh_problem *problem, int32_t tensor,
                                   int64_t columns) {
    const int64_t bytes = element_bytes(problem), row_bytes = dim_of(problem, tensor) * bytes;
    const bool narrow = row_bytes == 64, wide = row_bytes > NARROW_BYTES;
    int32_t type = problem->dtype == NHOOD_DTYPE_F32   ? NH_CU_TENSOR_FLOAT32
                   : problem->dtype == NHOOD_DTYPE_F16 ? NH_CU_TENSOR_FLOAT16
                                                       : NH_CU_TENSOR_BFLOAT16;
    return start_map(tensor, type, narrow ? NH_CU_TENSOR_SWIZZLE_64B : NH_CU_TENSOR_SWIZZLE_128B,
                     wide ? NH_CU_TENSOR_PROMOTE_256B : NH_CU_TENSOR_PROMOTE_128B, columns,
                     (narrow ? 64 : 128) / bytes);
}

/* Splits the one axis of a problem into positions and dilation groups: the groups that are one token longer than the
 * others, or the others. */
static void fold(struct nh_cuda_map *map, const struct nh_problem *problem, bool longer) {
    const int64_t dilation = problem->axis[2].dilation,
                  length = box_of(problem, map->slot, 2)->length, longer_groups = length % dilation;
    const bool stats = map->slot == NH_DELTA;
    const int at = stats || nh_map_layout_of(problem, map->slot) == NH_MAP_ORIGIN ? 1 : 2;
    int64_t stride_bytes =
        stats ? UNIT_BYTES : element_bytes(problem) * problem->strides[map->slot].axis[2];
    int64_t tile = map->box[at] / map->element_stride[at];
    int64_t groups = longer ? nh_max(1, longer_groups) : dilation - longer_groups;
    set_axis(map, at, length / dilation + (longer && longer_groups), dilation * stride_bytes, tile,
             1);
    set_axis(map, at + 1, groups, stride_bytes, 1, 1);
    map->offset_bytes += longer ? 0 : longer_groups * stride_bytes;
}

/* Makes the map of the longest dilation groups one of the groups that are a token shorter on some uneven axes: those
 * whose bit is set in `variant`, which numbers uneven axes only. */
static void shorten(struct nh_cuda_map *map, const struct nh_problem *problem, int32_t variant) {
    for (int a = 0; a < NH_AXES; a++) {
        if (!is_uneven(problem, a)) continue;
        bool uneven = box_of(problem, map->slot, a)->length % problem->axis[a].dilation;
        map->extent[NH_AXES - a] -= uneven ? variant & 1 : 0;
        variant >>= 1;
    }
}

void nh_sm90_add_twins(struct nh_cuda_step *step, const struct nh_problem *problem) {
    int32_t count = step->maps;
    for (int32_t variant = 1; variant < variants(problem); variant++)
        for (int32_t i = 0; i < count; i++) {
            struct nh_cuda_map *twin = &step->map[step->maps++];
            *twin = step->map[i];
            if (extra_token(twin->slot)) continue;
            if (nh_sm90_folds(problem)) {
                fold(twin, problem, false);
            } else {
                shorten(twin, problem, variant);
            }
        }
}

/* The map's axis that is the last one of the grid, behind which the others follow. */
static int first_grid_axis(enum nh_map_layout layout) {
    return layout <= NH_MAP_ONE_BATCH ? 2 : 1;
}

/* Adds the axes behind the row. s: strides in elements of so many bytes; heads: of the tensor, tile_heads of which a
 * box has. */
static void add_axes(struct nh_cuda_map *map, const struct nh_problem *problem,
                     const nhood_strides *s, int64_t bytes, enum nh_map_layout layout,
                     int64_t heads, const int32_t tile[3], int32_t tile_heads) {
    int next = first_grid_axis(layout);
    if (next == 2) set_axis(map, 1, heads, bytes * s->head, tile_heads, 1);
    for (int a = NH_AXES - 1; a >= (layout == NH_MAP_SPLIT); a--)
        set_grid_axis(map, next++, problem, a, bytes * s->axis[a], tile[a]);
    if (layout == NH_MAP_SPLIT || layout == NH_MAP_HEADS_IN_ROW)
        set_axis(map, next++, problem->batch, bytes * s->batch, 1, 1);
    if (layout == NH_MAP_HEADS_IN_BATCH)
        set_axis(map, next++, problem->batch * heads, bytes * s->head, 1, 1);
    if (layout == NH_MAP_ORIGIN)
        set_axis(map, next++, origins(problem, heads, s, bytes), UNIT_BYTES, 1, 1);
    if (nh_sm90_folds(problem)) fold(map, problem, true);
}

struct nh_cuda_map nh_sm90_map(const struct nh_problem *problem, int32_t tensor,
                               const int32_t tile[3], int32_t tile_heads) {
    const int64_t heads = heads_of(problem, tensor), dim = dim_of(problem, tensor);
    enum nh_map_layout layout = nh_map_layout_of(problem, tensor);
    struct nh_cuda_map map =
        rows_map(problem, tensor, layout == NH_MAP_HEADS_IN_ROW ? heads * dim : dim);
    add_axes(&map, problem, &problem->strides[tensor], element_bytes(problem), layout, heads, tile,
             tile_heads);
    return map;
}

void nh_sm90_map_as(int32_t tensor, enum nh_map_layout layout, const int32_t tile[3],
                    const struct nh_cuda_map *other, struct nh_cuda_map *map) {
    int next = first_grid_axis(layout);
    *map = *other;
    map->slot = tensor;
    for (int a = NH_AXES - 1; a >= (layout == NH_MAP_SPLIT); a--, next++)
        map->box[next] = (uint32_t)tile[a] * map->element_stride[next];
}

bool nh_sm90_lines_fit(const struct nh_problem *problem, int32_t tensor) {
    const nhood_strides *s = &problem->strides[tensor];
    int64_t first = box_of(problem, tensor, 0)->length;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (axis->dilation > 1 ||
            (axis->periodic && box_of(problem, tensor, a)->length != axis->length))
            return false;
    }
    return (heads_of(problem, tensor) == 1 || s->head == dim_of(problem, tensor)) &&
           (problem->batch == 1 || problem->rank < 3 || s->batch == first * s->axis[0]) &&
           problem->batch <= MOST_LENGTH / first;
}

struct nh_cuda_map nh_sm90_lines_map(const struct nh_problem *problem, int32_t tensor,
                                     int32_t positions) {
    /* A line begins in the first lap around the axis, and ends in the third, as windows are no longer than the axis. */
    enum { LAPS = 4 };
    const nhood_strides *s = &problem->strides[tensor];
    const struct nh_box *first = box_of(problem, tensor, 0);
    int64_t bytes = element_bytes(problem);
    struct nh_cuda_map map =
        rows_map(problem, tensor, heads_of(problem, tensor) * dim_of(problem, tensor));
    set_grid_axis(&map, 1, problem, 2, bytes * s->axis[2], 1);
    set_axis(&map, 2, LAPS, 0, 1, 1);
    set_grid_axis(&map, 3, problem, 1, bytes * s->axis[1], 1);
    if (problem->rank < 3) {
        set_axis(&map, 4, problem->batch, bytes * s->batch, 1, 1);
    } else {
        set_axis(&map, 4, problem->batch * first->length, bytes * s->axis[0], 1, 1);
        map.offset_bytes += first->offset * bytes * s->axis[0];
    }
    map.pixels = (uint32_t)positions;
    return map;
}

struct nh_cuda_map nh_sm90_extra_map(const struct nh_problem *problem, int32_t tensor,
                                     int64_t rows) {
    const nhood_strides *s = &problem->strides[tensor];
    struct nh_cuda_map map = rows_map(problem, tensor, dim_of(problem, tensor));
    int64_t bytes = element_bytes(problem);
    set_axis(&map, 1, problem->kv_heads, bytes * s->head, 1, 1);
    set_axis(&map, 2, problem->extra_tokens, bytes * s->axis[NH_AXES - problem->rank], rows, 1);
    set_axis(&map, 3, 1, 0, 1, 1);
    set_axis(&map, 4, problem->batch, bytes * s->batch, 1, 1);
    return map;
}

void nh_sm90_loop_over_extra(struct nh_cuda_step *step, const struct nh_problem *problem,
                             int64_t rows) {
    if (!problem->extra_tokens) return;
    step->own.tiling.extra_tiles = (int)nh_ceil_div(problem->extra_tokens, rows);
    step->map[step->maps++] = nh_sm90_extra_map(problem, NHOOD_EXTRA_K, rows);
    step->map[step->maps++] = nh_sm90_extra_map(problem, NHOOD_EXTRA_V, rows);
}

struct nh_cuda_map nh_sm90_stats_map(const struct nh_problem *problem, const int32_t tile[3]) {
    struct nh_cuda_map map =
        start_map(NH_DELTA, NH_CU_TENSOR_FLOAT32, 0, NH_CU_TENSOR_PROMOTE_128B, STATS, STATS);
    const struct nh_axis *axis = problem->axis;
    const int64_t line = axis[2].query.length, plane = axis[1].query.length * line;
    const nhood_strides queries = {.batch = problem->heads * problem->query_tokens,
                                   .axis = {plane, line, 1},
                                   .head = problem->query_tokens};
    add_axes(&map, problem, &queries, UNIT_BYTES,
             nh_sm90_any_far(problem) ? NH_MAP_ORIGIN : NH_MAP_HEADS_IN_BATCH, problem->heads, tile,
             1);
    return map;
}

struct nh_cuda_map nh_sm90_sums_map(const struct nh_problem *problem, const int64_t extent[NH_AXES],
                                    int64_t columns, const int32_t tile[3]) {
    enum { CHUNK = 32 };
    struct nh_cuda_map map =
        start_map(NH_D_Q_SUMS, NH_CU_TENSOR_FLOAT32, NH_CU_TENSOR_SWIZZLE_128B, 0, columns, CHUNK);
    int64_t stride_bytes = columns * (int64_t)sizeof(float);
    for (int a = NH_AXES - 1; a >= 0; a--) {
        set_axis(&map, NH_AXES - a, extent[a], stride_bytes, tile[a], 1);
        stride_bytes *= extent[a];
    }
    set_axis(&map, 4, problem->batch * problem->heads, stride_bytes, 1, 1);
    return map;
}
