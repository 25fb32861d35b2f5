/* The geometry of a banded product: a tile of queries (or keys, BY_KEYS) with the box of all keys (queries) that share
 * a window with any of its tokens, in chunks of C.columns. It lies inside one dilation group per axis. In positions of
 * the group a window is a box inside the opposite box. Columns, and the keys of a window, are both numbered row-major,
 * so that the keys of a chunk are a range of a window's. */
#pragma once

/* 32 bits are enough for positions, as the host refuses larger problems. This must come before window.h is included. */
#define NH_POSITION int
#include "gemm_config.h"
#include "gemm_fragment.cuh"
#include "mma.cuh"
#include "prelude.cuh"

namespace nh_gemm {

constexpr gemm_config C = NH_CONFIG;
static_assert(C.element_bytes == sizeof(elem), "the type");

enum {
    BY_KEYS = C.pass == GEMM_IN,
    NH_ROWS = gemm_rows(&C),
    NH_WARPS = NH_ROWS / 16,
    NH_THREADS = 32 * NH_WARPS,
    NH_FIRST_AXIS = 3 - C.rank,
    /* Where the window of a query that does not exist starts. Keys that do not exist are as far on the other side. */
    NH_NOWHERE = 0x40000000
};
/* The offset of a row that does not exist. */
constexpr long long NH_NONE = -0x7fffffffffffffffll;

/* The number of query heads per key head. */
NH_DEVICE int nh_group_heads(const nh_cuda_args &args) {
    return (int)args.heads / (int)args.kv_heads;
}

NH_DEVICE int nh_key_head(const nh_cuda_args &args, int head) {
    return head / nh_group_heads(args);
}

/* Division of unsigned numbers by multiplication: the estimate, by 2^32 over the divisor, is at most one too small. */
struct nh_divisor {
    unsigned divisor, inverse;
};

NH_DEVICE nh_divisor nh_divisor_of(int divisor) {
    nh_divisor d = {(unsigned)divisor, 0xffffffffu / (unsigned)divisor};
    return d;
}

NH_DEVICE int nh_divide(int n, const nh_divisor &d) {
    unsigned quotient = __umulhi((unsigned)n, d.inverse);
    return (int)(quotient + ((unsigned)n - quotient * d.divisor >= d.divisor));
}

/* One axis of a tile, in positions of its dilation group. */
struct nh_tile_axis {
    /* the tile's tokens: [origin, origin + extent); extent <= 0 if the tile is past the end of a shorter group */
    int group, length, origin, extent;
    /* tokens of the longest group */
    int longest;
    /* the box opposite: [low, low + span) */
    int low, span;
    nh_divisor by_span;
    /* position of the key with coordinate 0 */
    int base;
};

struct nh_tile {
    int batch, head;
    nh_tile_axis axis[3];
};

/* The keys of a query's window along each axis: of a causal axis fewer than the window at its front. */
template <bool CAUSAL> struct nh_counts {
    __device__ __forceinline__ void set(int, int) {
    }
    __device__ __forceinline__ int along(int, int window) const {
        return window;
    }
};
template <> struct nh_counts<true> {
    int count[3];
    __device__ __forceinline__ void set(int axis, int keys) {
        count[axis] = keys;
    }
    __device__ __forceinline__ int along(int axis, int) const {
        return count[axis];
    }
};

/* What is needed of a query for its pairs with keys. */
struct __align__(16) nh_query : nh_counts<C.causal> {
    /* coordinates of its first key */
    int begin[3];
    /* the query's part of an index into a head's bias table */
    int bias;
    /* offset of slot 0 in A; BY_KEYS, that which slot 0 would have if it were the key with coordinates 0 */
    long long weights;
};

struct nh_key {
    int at[3];
    int slot;
};

NH_DEVICE nh_range nh_tile_window(const nh_cuda_axis &axis, int length, int position) {
    return nh_window_range(length, (int)axis.window, C.strided ? (int)axis.stride : 1, C.causal ? axis.causal : 0,
                           position);
}

/* The positions that the one at `position` is paired with: a query's keys, or a key's queries. */
NH_DEVICE nh_range nh_tile_reach(const nh_cuda_axis &axis, int length, int position) {
    return BY_KEYS ? nh_inverse_range(length, (int)axis.window, C.strided ? (int)axis.stride : 1,
                                      C.causal ? axis.causal : 0, position)
                   : nh_tile_window(axis, length, position);
}

NH_DEVICE void nh_tile_axis_set(nh_tile_axis *t, const nh_cuda_axis &axis, unsigned index, int tile) {
    int longest = (int)nh_axis_group_length((int)axis.length, (int)axis.dilation, 0);
    unsigned per_group = (unsigned)(longest + tile - 1) / (unsigned)tile;
    t->group = (int)(index / per_group);
    t->origin = (int)(index % per_group) * tile;
    t->length = (int)nh_axis_group_length((int)axis.length, (int)axis.dilation, t->group);
    t->longest = longest;
    t->extent = min(tile, t->length - t->origin);
    if (t->extent <= 0) return;
    t->low = (int)nh_tile_reach(axis, t->length, t->origin).begin;
    t->span = (int)nh_tile_reach(axis, t->length, t->origin + t->extent - 1).end - t->low;
    t->by_span = nh_divisor_of(t->span);
    t->base = BY_KEYS ? t->origin : t->low;
}

/* Sets the tile of this block, an axis per thread. Heads are fastest, so that neighboring blocks share lines of
 * heads-last tensors, then the axes' tiles, then the batch. False: there is no such tile. Ends with a barrier. */
NH_DEVICE bool nh_tile_set(nh_tile *tile, const nh_cuda_args &args, unsigned heads) {
    if (threadIdx.x < 3) {
        const int size[3] = {C.tile[0], C.tile[1], C.tile[2]};
        unsigned rest = NH_OWN_BLOCK / heads, index = 0;
        int own = 1;
        NH_UNROLL for (int a = 2; a >= NH_FIRST_AXIS; a--) {
            const nh_cuda_axis &axis = args.axis[a];
            unsigned longest = (unsigned)nh_axis_group_length((int)axis.length, (int)axis.dilation, 0);
            unsigned count = (longest + (unsigned)size[a] - 1) / (unsigned)size[a] * (unsigned)axis.dilation;
            unsigned outer = rest / count;
            if ((int)threadIdx.x == a) {
                index = rest - outer * count;
                own = size[a];
            }
            rest = outer;
        }
        nh_tile_axis_set(&tile->axis[threadIdx.x], args.axis[threadIdx.x], index, own);
        if (threadIdx.x == 0) {
            tile->head = (int)(NH_OWN_BLOCK % heads);
            tile->batch = (int)rest;
        }
    }
    __syncthreads();
    return tile->axis[0].extent > 0 && tile->axis[1].extent > 0 && tile->axis[2].extent > 0;
}

NH_DEVICE int nh_tile_columns(const nh_tile &tile) {
    return tile.axis[0].span * tile.axis[1].span * tile.axis[2].span;
}

/* Sets the position of a row of the tile; false: there is no such row. */
NH_DEVICE bool nh_tile_row(const nh_tile &tile, int row, int position[3]) {
    const int at[3] = {row / (C.tile[1] * C.tile[2]), row / C.tile[2] % C.tile[1], row % C.tile[2]};
    bool inside = true;
    NH_UNROLL for (int a = 0; a < 3; a++) {
        inside = inside && at[a] < tile.axis[a].extent;
        position[a] = tile.axis[a].origin + at[a];
    }
    return inside;
}

/* Sets the coordinates of a column in the opposite box; for columns past its end, the first coordinate goes on. */
NH_DEVICE void nh_tile_column(const nh_tile &tile, int column, int at[3]) {
    at[0] = at[1] = 0;
    NH_UNROLL for (int a = 2; a > NH_FIRST_AXIS; a--) {
        int outer = nh_divide(column, tile.axis[a].by_span);
        at[a] = column - outer * tile.axis[a].span;
        column = outer;
    }
    at[NH_FIRST_AXIS] = column;
}

/* The same as positions; false: the column is past the end. */
NH_DEVICE bool nh_tile_opposite(const nh_tile &tile, int column, int position[3]) {
    nh_tile_column(tile, column, position);
    bool inside = position[NH_FIRST_AXIS] < tile.axis[NH_FIRST_AXIS].span;
    NH_UNROLL for (int a = 0; a < 3; a++)
        position[a] += tile.axis[a].low;
    return inside;
}

/* Offset of a row of a tensor, in elements. */
NH_DEVICE long long nh_tile_offset(const nh_tile &tile, const nh_cuda_args &args, int slot, const int position[3],
                                   int head) {
    const nh_cuda_tensor &tensor = args.tensor[slot];
    long long offset = tile.batch * tensor.batch + head * tensor.head;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
        offset += (position[a] * (int)args.axis[a].dilation + tile.axis[a].group) * tensor.axis[a];
    return offset;
}

NH_DEVICE void nh_key_set(nh_key *key, const nh_tile &tile, const nh_cuda_args &args, const int position[3],
                          bool exists) {
    int slots = 1;
    key->slot = 0;
    NH_UNROLL for (int a = 2; a >= 0; a--) {
        int at = position[a] - tile.axis[a].base;
        key->at[a] = exists ? at : -NH_NOWHERE;
        key->slot += at * slots;
        slots *= (int)args.axis[a].window;
    }
}

NH_DEVICE void nh_query_set(nh_query *query, const nh_tile &tile, const nh_cuda_args &args, const int position[3],
                            int head, bool exists) {
    long long slots = 1, before = 0;
    int bias = 0, bias_step = 1;
    NH_UNROLL for (int a = 2; a >= 0; a--) {
        const nh_cuda_axis &axis = args.axis[a];
        nh_range range = nh_tile_window(axis, tile.axis[a].length, position[a]);
        int begin = (int)range.begin - tile.axis[a].base;
        query->begin[a] = exists ? begin : NH_NOWHERE;
        query->set(a, (int)(range.end - range.begin));
        before += begin * slots;
        slots *= (int)axis.window;
        bias += ((int)axis.window - 1 - (position[a] - tile.axis[a].base)) * bias_step;
        bias_step *= 2 * (int)axis.window - 1;
    }
    query->bias = bias;
    query->weights = nh_tile_offset(tile, args, NH_A, position, head) - (BY_KEYS ? before : 0);
}

NH_DEVICE int nh_query_count(const nh_query &query, const nh_cuda_args &args, int axis) {
    return query.along(axis, (int)args.axis[axis].window);
}

NH_DEVICE bool nh_attends(const nh_query &query, const nh_key &key, const nh_cuda_args &args) {
    bool inside = true;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
        inside = inside && (unsigned)(key.at[a] - query.begin[a]) < (unsigned)nh_query_count(query, args, a);
    return inside;
}

/* The number of the query's keys that come before a column. */
NH_DEVICE int nh_keys_before(const nh_query &query, const nh_tile &tile, const nh_cuda_args &args, int column) {
    int at[3], keys = 0;
    nh_tile_column(tile, column, at);
    NH_UNROLL for (int a = 2; a >= NH_FIRST_AXIS; a--) {
        int count = nh_query_count(query, args, a), rest = at[a] - query.begin[a], below = 1;
        NH_UNROLL for (int b = a + 1; b < 3; b++)
            below *= nh_query_count(query, args, b);
        if (rest < 0 || rest >= count) keys = 0;
        keys += min(max(rest, 0), count) * below;
    }
    return keys;
}

/* The digits of a query's key number n: n = x + count[2] * line, line = y + count[1] * plane. */
struct nh_digits {
    int line, plane;
};

/* divisor: by the windows of axes 1 and 2, which are the counts if no axis is causal. */
NH_DEVICE nh_digits nh_key_digits(const nh_query &query, const nh_divisor divisor[3], int n) {
    nh_digits digits = {0, 0};
    if (C.rank > 1) digits.line = nh_divide(n, C.causal ? nh_divisor_of(query.along(2, 1)) : divisor[2]);
    if (C.rank > 2) digits.plane = nh_divide(digits.line, C.causal ? nh_divisor_of(query.along(1, 1)) : divisor[1]);
    return digits;
}

/* The number of the same key in a row-major array with widths extent1 and extent2 instead of the window's count[1] and
 * count[2]: x + extent2 * (y + extent1 * plane). */
NH_DEVICE int nh_renumber(const nh_query &query, const nh_cuda_args &args, int n, nh_digits digits, int extent1,
                          int extent2) {
    if (C.rank > 1) n += digits.line * (extent2 - nh_query_count(query, args, 2));
    if (C.rank > 2) n += digits.plane * extent2 * (extent1 - nh_query_count(query, args, 1));
    return n;
}

/* The slot of a key in its query's row of A. */
NH_DEVICE int nh_slot_of(const nh_query &query, const nh_cuda_args &args, int n, nh_digits digits) {
    return C.causal ? nh_renumber(query, args, n, digits, (int)args.axis[1].window, (int)args.axis[2].window) : n;
}

/* The widths of the opposite box, in registers: else they would be read again after each store to memory. */
struct nh_spans {
    int line, plane;
};

NH_DEVICE nh_spans nh_spans_of(const nh_tile &tile) {
    nh_spans spans = {tile.axis[2].span, tile.axis[1].span};
    return spans;
}

NH_DEVICE int nh_column_of(const nh_query &query, const nh_cuda_args &args, nh_spans spans, int n, nh_digits digits) {
    int first = (query.begin[0] * spans.plane + query.begin[1]) * spans.line + query.begin[2];
    return first + nh_renumber(query, args, n, digits, spans.plane, spans.line);
}

/* NH_PER_LANE: a lane's share of the keys that a row has in a chunk. NH_TOGETHER: rows whose keys are moved together,
 * so that their loads are all in flight at the same time. */
enum { NH_PER_LANE = C.columns / 32, NH_TOGETHER = 4 };

/* Whether any of the rows some .. some + NH_TOGETHER - 1 has more than 32 * share keys in the chunk; lanes l and l + 16
 * hold the range of row l. */
NH_DEVICE bool nh_rows_have(int first, int end, int share, int some) {
    unsigned rows = __ballot_sync(0xffffffffu, first + 32 * share < end);
    return rows >> some & ((1u << NH_TOGETHER) - 1);
}

/* Elements per copy instruction, and these in a row. */
constexpr unsigned long NH_PIECE = C.vector * sizeof(elem) >= 16  ? 16 / sizeof(elem)
                                   : C.vector * sizeof(elem) >= 4 ? 4 / sizeof(elem)
                                                                  : 1;
constexpr int NH_PIECES = (int)(C.width / NH_PIECE);

/* Copies one piece of a row; writes zeros if it is not `valid`. */
NH_DEVICE void nh_piece_load(elem *to, const elem *from, bool valid) {
    if (NH_PIECE * sizeof(elem) == 16) {
        nh_copy16(to, from, valid);
    } else if (NH_PIECE * sizeof(elem) == 4) {
        nh_copy4(to, from, valid);
    } else {
        *to = valid ? *from : (elem)0;
    }
}

/* Copies rows of a tensor, from `from` + offset[row], to shared memory: dim elements, then zeros up to C.width. The
 * copies are asynchronous if pieces have 4 bytes or more: nh_copy_wait and a barrier must follow. */
NH_DEVICE void nh_rows_load(int rows, elem *to, int stride, const elem *from, const long long *offset, int dim) {
    /* rows and columns from one piece of a thread to its next */
    constexpr int down = NH_THREADS / NH_PIECES, along = NH_THREADS % NH_PIECES * (int)NH_PIECE;
    int row = (int)threadIdx.x / NH_PIECES, column = (int)threadIdx.x % NH_PIECES * (int)NH_PIECE;
#pragma unroll 4
    while (row < rows) {
        long long at = offset[row];
        bool valid = at != NH_NONE && column < dim;
        nh_piece_load(to + row * stride + column, from + (valid ? at + column : 0), valid);
        row += down;
        if (along) {
            column += along;
            if (column >= C.width) {
                column -= C.width;
                row++;
            }
        }
    }
}

/* Stores the tile's rows that exist from shared memory to a tensor. */
NH_DEVICE void nh_rows_store(elem *to, const long long *offset, const elem *from, int stride, int dim) {
#pragma unroll 4
    for (int i = (int)threadIdx.x; i < NH_ROWS * NH_PIECES; i += NH_THREADS) {
        int row = i / NH_PIECES, column = i % NH_PIECES * (int)NH_PIECE;
        if (offset[row] == NH_NONE || column >= dim) continue;
        *(nh_vector<NH_PIECE> *)(to + offset[row] + column) =
            *(const nh_vector<NH_PIECE> *)(from + row * stride + column);
    }
}

} // namespace nh_gemm
