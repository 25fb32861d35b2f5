/* The configuration of the kernels of this family, for host and device: how a kernel is compiled, and what follows from
 * it for shared memory and registers. Each number is written once, here; the host fills the struct in (fused90.c,
 * backward90.c), and wgmma90.cuh has it as the constant C. */
#ifndef NH_WGMMA90_CONFIG_H
#define NH_WGMMA90_CONFIG_H

#include "kernel_config.h"

/* What a block owns and computes: queries and O (fused90_forward.cu) or dQ (split90_query.cu), keys and dK and dV
 * (split90_key.cu), extra tokens and these (split90_extra.cu), keys and all gradients (joint90.cu). */
enum wgmma90_kernel { WGMMA90_FORWARD, WGMMA90_QUERY, WGMMA90_KEY, WGMMA90_EXTRA, WGMMA90_JOINT };

/* How scores of pairs that are masked become minus infinity, or their weights 0.
 * BITS: each score is selected by a bit, a word of bits for each row and column parity (kv_loop).
 * PLACES: lines are short. Columns 8 apart are at the same place of their line, and what the softmax subtracts from
 *     them is infinite for places that the row does not see; bits select whole lines (fused90_softmax.cuh).
 * PRODUCT: one more step of the product of queries and keys adds -3.39e38 (fused90_mask_step.cuh). */
enum wgmma90_mask { WGMMA90_MASK_BITS, WGMMA90_MASK_PLACES, WGMMA90_MASK_PRODUCT };

/* What is skipped. TILES: a warpgroup passes over tiles of which none of its rows sees anything. PLANES: tiles are also
 * planes (in 2-D of the forward: lines) across the stacking axis, as are the 16 rows of a warp, and a warp makes no
 * weights of a tile of which its rows see nothing. */
enum wgmma90_skipping { WGMMA90_SKIP_NOTHING, WGMMA90_SKIP_TILES, WGMMA90_SKIP_PLANES };

/* Kernels where no axis is strided, dilated or causal have 10 to 45 % fewer instructions, and begin a work tile without a
 * division by a stride or dilation. */
#define WGMMA90_CONFIG(ONE, MANY)                                                                  \
    ONE(kernel)         /* enum wgmma90_kernel */                                                  \
    ONE(mask)           /* enum wgmma90_mask */                                                    \
    ONE(skipping)       /* enum wgmma90_skipping */                                                \
    ONE(rank)           /* of the problem */                                                       \
    ONE(dim)            /* head dim */                                                             \
    ONE(dim_v)          /* value dim */                                                            \
    MANY(own, 3)        /* extents of an owned tile */                                             \
    ONE(own_heads)      /* query heads that share it */                                            \
    MANY(loop, 3)       /* extents of a box of the loop */                                         \
    ONE(loop_boxes)     /* boxes of a loop tile */                                                 \
    ONE(warpgroups)     /* those that multiply, 64 owned rows each */                              \
    ONE(stack)          /* stacking axis: that along which warpgroups' rows lie */                 \
    ONE(stages)         /* loop tiles in shared memory at a time */                                \
    ONE(own_places)     /* owned tiles in shared memory; 2: the next one is fetched early */       \
    ONE(cluster)        /* blocks that share a work tile */                                        \
    ONE(head_parts)     /* parts of the heads; a block keeps to one of them */                     \
    ONE(extra)          /* 1: there are extra tokens */                                            \
    ONE(biased)         /* 1: there is a relative bias */                                          \
    ONE(window_y)       /* windows along the last two axes, for masks that a block makes once; */  \
    ONE(window_z)       /* else 0 */                                                               \
    ONE(q_in_registers) /* 1: warpgroups keep their queries in registers */                        \
    ONE(repair_apart)   /* 1: another launch repairs rows that are not finite */                   \
    ONE(sum_d_k)        /* 1: the kernel makes dK */                                               \
    ONE(sum_d_v)        /* 1: the kernel makes dV */                                               \
    ONE(q_map)          /* layouts of tensor maps (enum nh_map_layout) */                          \
    ONE(k_map)                                                                                     \
    ONE(v_map)                                                                                     \
    ONE(d_o_map)                                                                                   \
    ONE(folded)      /* 1: a map's axis y counts dilation groups (wgmma90.cuh) */                  \
    ONE(far_axes)    /* bits of axes that maps count in positions (wgmma90.cuh) */                 \
    ONE(uneven_axes) /* bits of axes whose dilation groups differ in length */                     \
    ONE(region_axes) /* bits of axes that are cut or periodic */                                   \
    ONE(strided)     /* 1: some stride is above 1 */                                               \
    ONE(dilated)     /* 1: some dilation is above 1 */                                             \
    ONE(causal)      /* 1: some axis is causal */
NH_KERNEL_CONFIG(wgmma90_config, WGMMA90_CONFIG);

NH_CONFIG_FN int wgmma90_round_up(int number, int step) {
    return (number + step - 1) / step * step;
}

/* ---- rows in shared memory ---- */

/* A row of a tile is cut into chunks of one swizzle atom, 128 bytes or, for 32 elements, 64. */
NH_CONFIG_FN int wgmma90_chunk(int dim) {
    return dim == 32 ? 32 : 64;
}

NH_CONFIG_FN int wgmma90_chunks(int dim) {
    return (dim + 63) / 64;
}

/* Bytes of a row's part in one chunk. */
NH_CONFIG_FN int wgmma90_chunk_bytes(int dim) {
    return 2 * wgmma90_chunk(dim);
}

NH_CONFIG_FN int wgmma90_tile_bytes(int rows, int dim) {
    return rows * wgmma90_chunk_bytes(dim) * wgmma90_chunks(dim);
}

NH_CONFIG_FN int wgmma90_owns_keys(const struct wgmma90_config *c) {
    return c->kernel >= WGMMA90_KEY;
}

NH_CONFIG_FN int wgmma90_own_rows(const struct wgmma90_config *c) {
    return 64 * c->warpgroups;
}

/* Rows of a loop tile; these as the columns of a product, in groups of 8, and as its depth, in steps of 16. With
 * WGMMA90_MASK_PRODUCT tiles may have fewer rows than columns; those that no copy writes are zeros. */
NH_CONFIG_FN int wgmma90_loop_rows(const struct wgmma90_config *c) {
    return c->loop[0] * c->loop[1] * c->loop[2] * c->loop_boxes;
}

NH_CONFIG_FN int wgmma90_loop_columns(const struct wgmma90_config *c) {
    return wgmma90_round_up(wgmma90_loop_rows(c), 8);
}

NH_CONFIG_FN int wgmma90_loop_depth(const struct wgmma90_config *c) {
    return wgmma90_round_up(wgmma90_loop_rows(c), 16);
}

/* The axis of which 8 columns, a run, repeat their places (boxes.cuh). In the forward, if planes of keys follow each
 * other, what rows see of one is computed once for a line of tiles. */
NH_CONFIG_FN int wgmma90_run_axis(const struct wgmma90_config *c) {
    const int planes = c->kernel == WGMMA90_FORWARD && c->stack == 0 && !c->biased &&
                       c->loop_boxes * c->loop[1] * c->loop[2] <= 32;
    return planes || c->loop[2] == 4 ? 1 : 2;
}

/* Runs of a line of a box or, where the run axis is 1, of a plane. */
NH_CONFIG_FN int wgmma90_runs(const struct wgmma90_config *c) {
    const int line = c->loop[2] == 4 ? 1 : c->loop[2] / 8;
    return wgmma90_run_axis(c) == 1 ? c->loop[1] * c->loop[2] / 8 : line;
}

/* ---- bias (fused90_bias.cuh) ---- */

/* Entries of a bias box along an axis: one for every distance between an owned row and a row of the loop. */
NH_CONFIG_FN int wgmma90_bias_extent(const struct wgmma90_config *c, int axis) {
    return c->own[axis] + c->loop[axis] - 1;
}

/* Floats of a line of entries, which is even, and of a box. A box is stored twice, half of the banks apart. */
NH_CONFIG_FN int wgmma90_bias_line(const struct wgmma90_config *c) {
    return wgmma90_bias_extent(c, 2) + 1;
}

NH_CONFIG_FN int wgmma90_bias_copy(const struct wgmma90_config *c) {
    const int floats = wgmma90_bias_extent(c, 0) * wgmma90_bias_extent(c, 1) * wgmma90_bias_line(c);
    return (floats + 16) / 32 * 32 + 16;
}

/* Boxes of several heads are a quarter of the banks apart. */
NH_CONFIG_FN int wgmma90_bias_head_bytes(const struct wgmma90_config *c) {
    return 4 * (2 * wgmma90_bias_copy(c) + (c->own_heads > 1 ? 8 : 0));
}

NH_CONFIG_FN int wgmma90_bias_bytes(const struct wgmma90_config *c) {
    return c->biased ? c->own_heads * wgmma90_bias_head_bytes(c) : 0;
}

/* Unless heads share a tile, a thread's two rows are in two runs of 8 rows, a step apart along z (`paired_z`) or y. A
 * warp's dS has a matrix, a part, for each distance of runs; along that axis there is one more than runs of columns. */
NH_CONFIG_FN int wgmma90_paired_z(const struct wgmma90_config *c) {
    return c->own_heads == 1 && c->own[2] / (c->stack == 2 ? c->warpgroups : 1) > 8;
}

NH_CONFIG_FN int wgmma90_paired_y(const struct wgmma90_config *c) {
    return c->own_heads == 1 && !wgmma90_paired_z(c);
}

NH_CONFIG_FN int wgmma90_bias_parts(const struct wgmma90_config *c) {
    return c->loop[0] * (c->loop[1] + wgmma90_paired_y(c)) * (c->loop[2] / 8 + wgmma90_paired_z(c));
}

/* The bias's gradient (fused90_bias_gradient.cuh): parts of all warps, and twice the lines of matrices, which have 8
 * rows and zeros before and after each. */
enum { WGMMA90_PART_BYTES = 256 };
NH_CONFIG_FN int wgmma90_parts_bytes(const struct wgmma90_config *c) {
    return 4 * c->warpgroups * wgmma90_bias_parts(c) * WGMMA90_PART_BYTES;
}

NH_CONFIG_FN int wgmma90_line_runs(const struct wgmma90_config *c) {
    return (c->own[2] + 7) / 8 + c->loop[2] / 8 - 1;
}

NH_CONFIG_FN int wgmma90_line_bytes(const struct wgmma90_config *c) {
    return 8 * 4 * (8 * wgmma90_line_runs(c) + 8);
}

NH_CONFIG_FN int wgmma90_lines_bytes(const struct wgmma90_config *c) {
    return 32 + wgmma90_bias_extent(c, 0) * wgmma90_bias_extent(c, 1) * wgmma90_line_bytes(c);
}

/* ---- shared memory ---- */

/* A row of the operand of WGMMA90_MASK_PRODUCT: 16 elements for each of at most two tiles of a plane. */
enum { WGMMA90_MASK_ROW_BYTES = 64 };

/* Whether a queue in shared memory hands work tiles to the block's threads (work_queue.cuh). While other parts of a
 * grid are exchanged between GPUs, by a kernel that occupies multiprocessors, blocks that start late then take fewer
 * work tiles. Such launches of the forward clear the queue's counter anyway, for the repair. */
NH_CONFIG_FN int wgmma90_queued(const struct wgmma90_config *c) {
    return c->kernel == WGMMA90_JOINT || (c->kernel == WGMMA90_FORWARD && c->region_axes &&
                                          c->repair_apart && c->cluster == 1 && !c->biased);
}

/* Columns of dQ that the joint kernel computes: those of a row, filled up to whole chunks. */
NH_CONFIG_FN int wgmma90_d_q_columns(const struct wgmma90_config *c) {
    return wgmma90_chunk(c->dim) * wgmma90_chunks(c->dim);
}

/* dS of the joint kernel: rows are queries, a chunk of 128 bytes for the 64 keys of each warpgroup. */
NH_CONFIG_FN int wgmma90_d_s_bytes(const struct wgmma90_config *c) {
    return c->warpgroups * wgmma90_loop_rows(c) * 128;
}

/* Addresses in shared memory. Members that a kernel does not have are where the next one is. Barriers of a ring have an
 * entry of 8 bytes for each place or stage. */
struct wgmma90_layout {
    unsigned d_s, d_q;     /* joint kernel: dS, twice, and dQ */
    unsigned q, k, v, d_o; /* owned tiles, and rings of the loop's */
    unsigned stage,
        stats; /* where keys are owned, Q and dO of a stage, and the statistics of their queries */
    unsigned masks, bias;        /* operand of masks; ring of bias boxes */
    unsigned parts, lines;       /* the bias's gradient */
    unsigned own_full, own_free; /* barriers: owned tiles; loop tiles, where keys are owned */
    unsigned full, free;
    unsigned k_full, k_free, v_full, v_free, bias_full, bias_free;
    unsigned parts_full, parts_free, met;
    unsigned d_s_full, d_q_full, d_q_free;
    unsigned queue, queue_full, queue_free;
    unsigned end;
};

/* Adds a part of so many bytes; returns where it begins. */
#define WGMMA90_ADD(bytes) (end = end + (unsigned)(bytes), end - (unsigned)(bytes))

/* What blocks that own queries have: rings of K and V with a barrier each. */
NH_CONFIG_FN struct wgmma90_layout wgmma90_query_layout(const struct wgmma90_config *c,
                                                        unsigned base) {
    struct wgmma90_layout s = {0};
    const int own = wgmma90_own_rows(c), backward = c->kernel == WGMMA90_QUERY,
              ring = 8 * c->stages;
    const int gradient = backward && c->biased;
    unsigned end = base;
    s.q = WGMMA90_ADD(c->own_places * wgmma90_tile_bytes(own, c->dim));
    s.d_o = WGMMA90_ADD(backward ? c->own_places * wgmma90_tile_bytes(own, c->dim_v) : 0);
    s.k = WGMMA90_ADD(c->stages * wgmma90_tile_bytes(wgmma90_loop_columns(c), c->dim));
    s.v = WGMMA90_ADD(c->stages * wgmma90_tile_bytes(wgmma90_loop_depth(c), c->dim_v));
    s.masks = WGMMA90_ADD(
        c->mask == WGMMA90_MASK_PRODUCT ? WGMMA90_MASK_ROW_BYTES * wgmma90_loop_columns(c) : 0);
    s.bias = WGMMA90_ADD(c->stages * wgmma90_bias_bytes(c));
    s.parts = WGMMA90_ADD(gradient ? wgmma90_parts_bytes(c) : 0);
    s.lines = WGMMA90_ADD(gradient ? 2 * wgmma90_lines_bytes(c) : 0);
    s.own_full = WGMMA90_ADD(8 * c->own_places);
    s.own_free = WGMMA90_ADD(8 * c->own_places);
    s.k_full = WGMMA90_ADD(ring);
    s.k_free = WGMMA90_ADD(ring);
    s.v_full = WGMMA90_ADD(ring);
    s.v_free = WGMMA90_ADD(ring);
    s.bias_full = WGMMA90_ADD(ring);
    s.bias_free = WGMMA90_ADD(ring);
    s.parts_full = WGMMA90_ADD(gradient ? 8 : 0);
    s.parts_free = WGMMA90_ADD(gradient ? 8 : 0);
    s.met = WGMMA90_ADD(gradient ? 8 : 0);
    s.queue = WGMMA90_ADD(wgmma90_queued(c) ? 8 : 0);
    s.queue_full = WGMMA90_ADD(wgmma90_queued(c) ? 8 : 0);
    s.queue_free = WGMMA90_ADD(wgmma90_queued(c) ? 8 : 0);
    s.end = end;
    return s;
}

/* What blocks that own keys or extra tokens have: a ring of Q, dO and statistics. A launch for dV alone needs no V. */
NH_CONFIG_FN struct wgmma90_layout wgmma90_key_layout(const struct wgmma90_config *c,
                                                      unsigned base) {
    struct wgmma90_layout s = {0};
    const int own = wgmma90_own_rows(c), rows = wgmma90_loop_rows(c),
              joint = c->kernel == WGMMA90_JOINT;
    unsigned end = base;
    s.d_s = WGMMA90_ADD(joint ? 2 * wgmma90_d_s_bytes(c) : 0);
    s.d_q = WGMMA90_ADD(joint ? rows * 4 * wgmma90_d_q_columns(c) : 0);
    s.k = WGMMA90_ADD(c->own_places * wgmma90_tile_bytes(own, c->dim));
    s.v = WGMMA90_ADD(c->sum_d_k ? c->own_places * wgmma90_tile_bytes(own, c->dim_v) : 0);
    s.stage = WGMMA90_ADD(c->stages *
                          (wgmma90_tile_bytes(rows, c->dim) + wgmma90_tile_bytes(rows, c->dim_v)));
    s.stats = WGMMA90_ADD(c->stages * rows * 16);
    s.own_full = WGMMA90_ADD(8 * c->own_places);
    s.own_free = WGMMA90_ADD(8 * c->own_places);
    s.full = WGMMA90_ADD(8 * c->stages);
    s.free = WGMMA90_ADD(8 * c->stages);
    s.bias_full = WGMMA90_ADD(c->biased ? 8 * c->stages : 0);
    s.bias_free = WGMMA90_ADD(c->biased ? 8 * c->stages : 0);
    s.bias = WGMMA90_ADD(c->stages * wgmma90_bias_bytes(c));
    s.d_s_full = WGMMA90_ADD(joint ? 16 : 0);
    s.d_q_full = WGMMA90_ADD(joint ? 8 : 0);
    s.d_q_free = WGMMA90_ADD(joint ? 8 : 0);
    s.queue_full = WGMMA90_ADD(joint ? 8 : 0);
    s.queue_free = WGMMA90_ADD(joint ? 8 : 0);
    s.queue = WGMMA90_ADD(joint ? 8 : 0);
    s.end = end;
    return s;
}

#undef WGMMA90_ADD

/* base: where shared memory begins, a multiple of WGMMA90_ALIGNMENT, the period of the swizzle. */
enum { WGMMA90_ALIGNMENT = 1024 };
NH_CONFIG_FN struct wgmma90_layout wgmma90_layout_at(const struct wgmma90_config *c,
                                                     unsigned base) {
    return wgmma90_owns_keys(c) ? wgmma90_key_layout(c, base) : wgmma90_query_layout(c, base);
}

/* Bytes that a launch asks for. The driver aligns them to less than the swizzle needs. */
NH_CONFIG_FN int wgmma90_shared_bytes(const struct wgmma90_config *c) {
    return WGMMA90_ALIGNMENT + (int)wgmma90_layout_at(c, 0).end;
}

/* Where kernels of the backward skip, they also have the work tiles of the owned tiles (split90_skipping.cuh) in shared
 * memory of a fixed size, this many bytes each at most. */
NH_CONFIG_FN int wgmma90_work_tile_bytes(const struct wgmma90_config *c) {
    return c->kernel == WGMMA90_FORWARD || c->skipping == WGMMA90_SKIP_NOTHING ? 0
           : c->region_axes                                                    ? 160
                                                                               : 80;
}

/* Bytes of shared memory that a block takes. */
NH_CONFIG_FN int wgmma90_block_bytes(const struct wgmma90_config *c) {
    return wgmma90_shared_bytes(c) + c->own_places * wgmma90_work_tile_bytes(c);
}

/* Blocks of a cluster lay their sums, rows of f32, over the tiles. Eight more floats than columns keep rows in different
 * banks; the first two tell how to add a row up. */
NH_CONFIG_FN int wgmma90_sums_pitch(int dim) {
    return (dim + 8) * 4;
}

/* ---- registers ---- */

/* Registers per thread of the producer warpgroup, for setmaxnreg. It needs more where the warps beside the producer lay
 * out the bias or add up its gradient, where it locates boxes of a part of a grid, where one thread fetches short loops
 * for all warpgroups and must not spill, and where there are two producers. */
NH_CONFIG_FN int wgmma90_producer_registers(const struct wgmma90_config *c) {
    const int backward = c->kernel != WGMMA90_FORWARD;
    if (c->biased && c->kernel == WGMMA90_QUERY) return 72;
    if (c->biased && c->kernel == WGMMA90_KEY) return 56;
    if (c->biased && c->warpgroups == 2) return 40;
    if (c->region_axes && c->rank == 3 && c->warpgroups == 3) return 56;
    if (c->kernel == WGMMA90_JOINT || (backward && c->skipping != WGMMA90_SKIP_NOTHING)) return 40;
    return c->warpgroups == 2 ? 24 : 32;
}

/* Those of the others: what is left of the 64 K of a multiprocessor, in steps of 8. */
NH_CONFIG_FN int wgmma90_consumer_registers(const struct wgmma90_config *c) {
    return (512 - wgmma90_producer_registers(c)) / c->warpgroups / 8 * 8;
}

#endif
