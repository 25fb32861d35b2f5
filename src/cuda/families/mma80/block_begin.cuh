/* Shared memory of a block, and what comes before its loop. */
#pragma once

#include "tile_scores.cuh"

namespace nh_mma80 {

/* The backward keeps more behind it (split80_backward.cu). */
struct nh_shared {
    elem rows[mma80_own_elements(&C)]; /* backward: of the first tensor, then of the second */
    elem columns[C.stages][NH_COLUMNS * NH_PITCH_K], columns2[C.stages][NH_COLUMNS * NH_PITCH_V];
    nh_loop_tables loop;
    nh_score_tables tables;
};

/* The tensors of the rows, and where those of the second begin. */
enum {
    NH_ROW_SLOT = NH_INVERSE ? NH_K : NH_Q,
    NH_ROW_SLOT2 = NH_INVERSE ? NH_V : NH_D_O,
    NH_ROWS2 = NH_ROWS * NH_PITCH_K
};

/* Sets up the tables, starts to copy the block's own rows, and returns the loop's start. Called by the whole block. */
NH_DEVICE nh_kv_loop nh_block_begin(const nh_cuda_args &args, nh_block &block, nh_shared &shared) {
    nh_mask_tables_fill(args, block, shared.tables.masks);
    if (C.biased) nh_bias_columns_fill(args, shared.tables.bias);
    nh_zero_padding(shared.rows, NH_ROWS, NH_PITCH_Q, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.columns[0], C.stages * NH_COLUMNS, NH_PITCH_K, NH_DIM, NH_DIM_PADDED);
    nh_zero_padding(shared.columns2[0], C.stages * NH_COLUMNS, NH_PITCH_V, NH_DIM_V, NH_DIM_V_PADDED);
    nh_copy_rows<NH_DIM, NH_PITCH_Q>(args, block, NH_ROW_SLOT, shared.rows);
    if constexpr (C.pass != MMA80_FORWARD) {
        nh_zero_padding(shared.rows + NH_ROWS2, NH_ROWS, NH_PITCH_V, NH_DIM_V, NH_DIM_V_PADDED);
        nh_copy_rows<NH_DIM_V, NH_PITCH_V>(args, block, NH_ROW_SLOT2, shared.rows + NH_ROWS2);
    }
    __syncthreads();
    nh_halo_set(args, shared.tables.masks, block);
    NH_UNROLL for (int i = 0; i < NH_LOOP_TENSORS; i++)
        nh_loop_table_fill(args, block, i, shared.loop);
    nh_dense_boxes_fill(shared.tables.masks, shared.tables.dense);
    __syncthreads();
    return nh_loop_begin(args, block, shared.loop);
}

template <int TENSOR>
NH_DEVICE void nh_start_copy(const nh_cuda_args &args, const nh_block &block, nh_shared &shared,
                             const nh_kv_loop &loop) {
    const int stage = loop.left % C.stages;
    nh_copy_next<TENSOR>(TENSOR == NH_LOOP_FIRST ? shared.columns[stage] : shared.columns2[stage], args, block,
                         shared.loop, loop);
}

} // namespace nh_mma80
