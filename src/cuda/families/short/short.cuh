/* Whole dilation groups in shared memory: what the kernels of cuda.short share. Tensor cores of sm_80 and later, 16
 * bits and f32.
 *
 * A dilation group is all tokens of one batch entry and key head that can ever attend each other: those with the same
 * remainders by the dilations, without dilation all of them. A work tile is as many groups as its rows have room for.
 * Each group has a slot of as many rows as the longest group has tokens: rows 0 .. N - 1 are positions of the first
 * group, the last axis fastest, N .. 2N - 1 those of the second, .. Key heads are numbered fastest, so the groups of a
 * work tile mostly lie side by side in memory. Query and key of a token have the same row. Rows are padding where a
 * group is shorter than the work tile's longest, and after the last group: they are zeros, no query sees them, and
 * nothing is stored for them.
 *
 * Which keys a query sees is two words (nh_visibility), and a key is one: they have a field for each coordinate inside
 * the group, the first of which counts on from slot to slot, each with a guard bit above it that subtractions borrow
 * from. C (short_config.h) is what a kernel is compiled for. Extents, windows, slots and rows are arguments of the
 * launch. */
#pragma once

#define NH_POSITION int
#include "prelude.cuh"
#include "short_config.h"

#include "lanes.cuh"
#include "mma.cuh"

namespace nh_short {

constexpr short_config C = NH_CONFIG;
static_assert(C.element_bytes == sizeof(elem), "the type");

} // namespace nh_short

/* What headers of kernels/common ask for. */
enum { NH_DIM = nh_short::C.dim, NH_DIM_V = nh_short::C.dim_v };
NH_DEVICE constexpr int nh_units(int width) {
    return short_units(width, sizeof(elem));
}
NH_DEVICE constexpr int nh_row_bytes(int width) {
    return short_row_bytes(&nh_short::C, width);
}

#include "column_products.cuh"
#include "repair_key.cuh"
#include "repair_pair.cuh"
#include "row_state.cuh"

namespace nh_short {

enum {
    NH_THREADS = 32 * C.warps,
    NH_FIRST_AXIS = 3 - C.rank, /* leading axes of length 1 are left out */
    NH_WIDEST = short_widest(&C),
    NH_ORIGINS = short_origins(&C),
    /* steps of products over a row's elements, and accumulators of 8 elements each */
    NH_STEPS = nh_units(C.dim) / 2,
    NH_STEPS_V = nh_units(C.dim_v) / 2,
    NH_SUMS = short_sums(&C, C.dim),
    NH_SUMS_V = short_sums(&C, C.dim_v)
};

NH_DEVICE int nh_unit_offset(int width, int row, int unit) {
    return row * nh_row_bytes(width) + 16 * unit;
}

/* ---- where rows belong ---- */

/* Division of numbers below 2^10 as a multiplication, for which a quotient of floats is accurate enough. */
struct nh_ratio {
    int base;
    unsigned factor;
};
NH_DEVICE nh_ratio nh_ratio_of(int base) {
    return {base, (unsigned)__fdividef(1048576.f, (float)base) + 1};
}
NH_DEVICE int nh_quotient(int number, const nh_ratio &by) {
    return (int)((unsigned)number * by.factor >> 20);
}

/* The extents of a work tile: tokens of its longest group per axis, and with SHORT_BY_RESIDUE the residues; rows of a
 * slot, of a plane and of a line of it; the number of its first group, and how many groups it has. */
struct nh_extents {
    int at[3], residue[3];
    nh_ratio group, plane, line;
    int first, count;
};

NH_DEVICE int nh_residue_of(const nh_short_args &args, unsigned &rest, int axis) {
    const unsigned dilation = (unsigned)args.axis[axis].dilation, residue = rest % dilation;
    rest /= dilation;
    return (int)residue;
}

/* Tokens along an axis of the group with a residue. */
NH_DEVICE int nh_tokens_of(const nh_short_args &args, int axis, int residue) {
    const int most = args.tiling.tiles[axis];
    return most - (residue + (most - 1) * (int)args.axis[axis].dilation >= args.axis[axis].length);
}

NH_DEVICE nh_extents nh_extents_of(const nh_short_args &args, int work_tile) {
    nh_extents extents = {{args.tiling.tiles[0], args.tiling.tiles[1], args.tiling.tiles[2]}, {0, 0, 0}};
    if (C.order == SHORT_BY_RESIDUE) {
        unsigned rest = (unsigned)(work_tile / args.tiling.chunks);
        work_tile %= args.tiling.chunks;
        NH_UNROLL for (int a = 2; a >= NH_FIRST_AXIS; a--) {
            extents.residue[a] = nh_residue_of(args, rest, a);
            extents.at[a] = nh_tokens_of(args, a, extents.residue[a]);
        }
    }
    extents.line = nh_ratio_of(extents.at[2]);
    extents.plane = C.rank > 1 ? nh_ratio_of(extents.at[1] * extents.at[2]) : extents.line;
    extents.group = C.rank > 2 ? nh_ratio_of(extents.at[0] * extents.plane.base) : extents.plane;
    extents.first = work_tile * args.tiling.groups;
    extents.count = args.tiling.total - extents.first;
    if (extents.count > args.tiling.groups) extents.count = args.tiling.groups;
    return extents;
}

/* The number of rows in slots, rounded up to a multiple of 16. */
NH_DEVICE int nh_rows_of(const nh_extents &extents) {
    return (extents.count * extents.group.base + 15) / 16 * 16;
}

/* A dilation group: its tokens per axis, unless all of the work tile are equally long, and the offset of its first
 * token in each tensor, in elements, at its key head or the first query head that shares that. */
struct nh_group {
    int length[3];
    long long origin[NH_ORIGINS];
};
static_assert(sizeof(nh_group) == short_group_bytes(&C), "the host's count of shared memory");

/* Fills in the groups of a work tile. Called by all threads; a barrier must follow. */
NH_DEVICE void nh_groups_fill(const nh_short_args &args, const nh_extents &extents, nh_group *groups) {
    const unsigned keys = 1u << NH_K | 1u << NH_V | 1u << NH_D_K | 1u << NH_D_V;
    const unsigned heads = (unsigned)args.kv_heads;
    NH_UNROLL_1 for (int i = (int)threadIdx.x; i < extents.count; i += NH_THREADS) {
        unsigned rest = (unsigned)(extents.first + i);
        const unsigned head = rest % heads;
        int residue[3] = {extents.residue[0], extents.residue[1], extents.residue[2]};
        rest /= heads;
        NH_UNROLL for (int a = 2; a >= NH_FIRST_AXIS && C.dilated && C.order != SHORT_BY_RESIDUE; a--)
            residue[a] = nh_residue_of(args, rest, a);
        NH_UNROLL for (int a = 0; a < 3 && C.order == SHORT_UNEVEN; a++)
            groups[i].length[a] = nh_tokens_of(args, a, residue[a]);
        NH_UNROLL for (int t = 0; t < NH_ORIGINS; t++)
            if (short_tensors(&C) >> t & 1) {
                const nh_cuda_tensor &tensor = args.tensor[t];
                long long origin = rest * tensor.batch + head * (keys >> t & 1 ? 1 : args.tiling.heads) * tensor.head;
                NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
                    origin += residue[a] * tensor.axis[a];
                groups[i].origin[t] = origin;
            }
    }
}

struct nh_token {
    int slot, at[3];
    bool exists;
};

/* Tokens of the token's group along an axis. */
NH_DEVICE int nh_length_of(const nh_extents &extents, const nh_group *groups, const nh_token &token, int axis) {
    if (C.order == SHORT_BOXES) return groups->length[axis];
    return C.order == SHORT_UNEVEN ? groups[token.slot].length[axis] : extents.at[axis];
}

NH_DEVICE nh_token nh_token_of(const nh_extents &extents, const nh_group *groups, int row) {
    nh_token token = {nh_quotient(row, extents.group), {0, 0, 0}, false};
    int rest = row - token.slot * extents.group.base;
    if (C.rank > 2) {
        token.at[0] = nh_quotient(rest, extents.plane);
        rest -= token.at[0] * extents.plane.base;
    }
    if (C.rank > 1) {
        token.at[1] = nh_quotient(rest, extents.line);
        rest -= token.at[1] * extents.line.base;
    }
    token.at[2] = rest;
    token.exists = token.slot < extents.count;
    if (!token.exists) token.slot = 0;
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3 && (C.order == SHORT_UNEVEN || C.order == SHORT_BOXES); a++)
        token.exists = token.exists && token.at[a] < nh_length_of(extents, groups, token, a);
    return token;
}

/* Rows per position on the first axis, and the multiple of these at or before `row`. */
NH_DEVICE int nh_first_rows(const nh_extents &extents, int row) {
    const nh_ratio &pitch = C.rank > 2 ? extents.plane : extents.line;
    return C.rank > 1 ? nh_quotient(row, pitch) * pitch.base : row;
}
NH_DEVICE int nh_first_pitch(const nh_extents &extents) {
    return C.rank > 2 ? extents.plane.base : C.rank > 1 ? extents.line.base : 1;
}

/* Offset of the token in a tensor, in elements. */
NH_DEVICE long long nh_token_offset(const nh_short_args &args, const nh_group *groups, int tensor,
                                    const nh_token &token) {
    int inside = 0; /* nh_short_offsets_fit makes sure that 32 bits are enough */
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        const int step = (int)args.tensor[tensor].axis[a] * (C.dilated ? (int)args.axis[a].dilation : 1);
        inside += token.at[a] * step;
    }
    return groups[token.slot].origin[tensor] + inside;
}

/* ---- copies ---- */

enum { NH_ROW_LANES = 4 };

/* Copies this lane's share of a row of a tensor; zeros if there is no token, and beyond WIDTH. */
template <int WIDTH> NH_DEVICE void nh_copy_row(const elem *from, char *to, bool exists) {
    const int units = nh_units(WIDTH), lane = (int)threadIdx.x % NH_ROW_LANES;
    const unsigned place = nh_shared_address(to) + 16 * lane;
    from += NH_PER_UNIT * lane;
    NH_UNROLL for (int u = 0; u < units; u += NH_ROW_LANES)
        if (u + lane < units)
            nh_copy16_at(place + 16 * u, from + NH_PER_UNIT * u, exists && NH_PER_UNIT * (u + lane) < WIDTH);
}

/* One warp stores 16 rows to a tensor. own: the token of row lane % 16. */
template <int WIDTH, int ROOM>
NH_DEVICE void nh_store_warp_tile(const nh_short_args &args, const nh_group *groups, int tensor, long long ahead,
                                  const nh_token &own, const char *rows) {
    const int units = WIDTH / NH_PER_UNIT, lane = (int)threadIdx.x % 32;
    const long long own_offset = ahead + nh_token_offset(args, groups, tensor, own);
    const unsigned exist = __ballot_sync(~0u, own.exists) & 0xffff;
    NH_UNROLL for (int i = lane; i - lane < 16 * units; i += 32) {
        const int row = i / units, unit = i % units;
        const long long offset = __shfl_sync(~0u, own_offset, row);
        if (exist >> row & 1)
            *(uint4 *)((elem *)args.tensor[tensor].data + offset + NH_PER_UNIT * unit) =
                *(const uint4 *)(rows + nh_unit_offset(ROOM, row, unit));
    }
}

/* ---- visibility ---- */

NH_DEVICE constexpr int nh_field(int axis) {
    return axis == NH_FIRST_AXIS ? 20 : axis == 1 ? 10 : 0;
}
constexpr unsigned NH_GUARDS = 1u << 31 | (C.rank > 2 ? 1u << 19 : 0u) | (C.rank > 1 ? 1u << 9 : 0u);

NH_DEVICE unsigned nh_word(const nh_extents &extents, int slot, const int (&at)[3]) {
    unsigned word = (unsigned)(slot * extents.at[NH_FIRST_AXIS]) << nh_field(NH_FIRST_AXIS);
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++)
        word += (unsigned)at[a] << nh_field(a);
    return word;
}

/* Writes, for every row as a key, its coordinates with guard bits. Called by all threads; a barrier must follow. */
NH_DEVICE void nh_columns_fill(const nh_extents &extents, const nh_group *groups, unsigned *columns) {
    const int none[3] = {0, 0, 0};
    NH_UNROLL_1 for (int row = (int)threadIdx.x; row < nh_rows_of(extents); row += NH_THREADS) {
        const nh_token token = nh_token_of(extents, groups, row);
        columns[row] =
            NH_GUARDS | (token.exists ? nh_word(extents, token.slot, token.at) : nh_word(extents, extents.count, none));
    }
}

/* What a row sees as a query: the words of its first and last key, the latter plus twice the guard bits; their rows. */
struct nh_visibility {
    unsigned begin, last;
    int first_row, last_row;
};

NH_DEVICE bool nh_sees(const nh_visibility &visibility, unsigned column) {
    return (~((column - visibility.begin) & (visibility.last - column)) & NH_GUARDS) == 0;
}

/* A padding row sees what the nearest token of its group sees, or the last row of the last group. */
NH_DEVICE nh_visibility nh_visibility_of(const nh_short_args &args, const nh_extents &extents, const nh_group *groups,
                                         int row) {
    const int last_row = extents.count * extents.group.base - 1;
    const nh_token token = nh_token_of(extents, groups, row < last_row ? row : last_row);
    int begin[3] = {0, 0, 0}, last[3] = {0, 0, 0}, row_of[2] = {0, 0};
    NH_UNROLL for (int a = NH_FIRST_AXIS; a < 3; a++) {
        const int length = nh_length_of(extents, groups, token, a);
        const nh_range range =
            nh_window_range(length, (int)args.axis[a].window, C.strided ? (int)args.axis[a].stride : 1,
                            args.axis[a].causal, token.at[a] < length ? token.at[a] : length - 1);
        begin[a] = range.begin;
        last[a] = range.end - 1;
        row_of[0] = row_of[0] * extents.at[a] + begin[a];
        row_of[1] = row_of[1] * extents.at[a] + last[a];
    }
    const int slot_row = token.slot * extents.group.base;
    return {nh_word(extents, token.slot, begin), nh_word(extents, token.slot, last) + NH_GUARDS + NH_GUARDS,
            slot_row + row_of[0], slot_row + row_of[1]};
}

} // namespace nh_short
