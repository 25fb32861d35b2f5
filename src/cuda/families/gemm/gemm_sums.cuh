/* Sums of rows in shared memory weighted by a warp's block of weights, on tensor cores. NH_V is the slot of the rows,
 * and NH_O that of the sums, whichever tensors these are. */
#pragma once
#include "gemm_tile.cuh"

namespace nh_gemm {

/* Elements from one row, or one sum, to the next. */
constexpr int SUM_STRIDE = gemm_stride_down(&C);
static_assert(SUM_STRIDE == C.width + NH_PAD_DOWN, "what fragments are read from");
static_assert(!NH_SHORT_CHAINS || C.columns <= NH_CHAIN, "one chunk, one chain");

/* Adds to 16 sums what a chunk's rows contribute to some of them: `together` times 16 elements from `first` on. */
template <int TOGETHER>
NH_DEVICE void nh_sums_part(float (*sum)[4], const elem *block, int block_stride, const elem *rows, int first,
                            int lane) {
#pragma unroll 2
    for (int step = 0; step < C.columns; step += NH_STEP) {
        nh_left left;
        nh_left_load(&left, block + step, block_stride, lane);
        NH_UNROLL for (int n = 0; n < TOGETHER; n++) {
            nh_right right;
            nh_right_load_columns(&right, rows + step * SUM_STRIDE + (first + n) * 16, SUM_STRIDE, lane);
            nh_multiply(sum + 2 * n, &left, &right);
        }
    }
}

/* Adds to 16 sums what a chunk's rows contribute. */
NH_DEVICE void nh_sums_add(float sum[C.width / 8][4], const elem *block, int block_stride, const elem *rows, int lane) {
    if (!NH_SHORT_CHAINS) return nh_sums_part<C.width / 16>(sum, block, block_stride, rows, 0, lane);
    /* Two at a time, as splitting the left factor is expensive. */
    constexpr int together = C.width % 32 ? 1 : 2;
    NH_UNROLL for (int first = 0; first < C.width / 16; first += together) {
        float part[2 * together][4] = {};
        nh_sums_part<together>(part, block, block_stride, rows, first, lane);
        NH_UNROLL for (int i = 0; i < 8 * together; i++)
            sum[2 * first + i / 4][i % 4] += part[i / 4][i % 4];
    }
}

/* Computes one sum again, product by product, over exactly the pairs in a window. Not inlined: it is rare and long. */
static __device__ __noinline__ float nh_repair_sum(const nh_tile &tile, const nh_cuda_args &args, const int position[3],
                                                   int c) {
    const elem *a = (const elem *)args.tensor[NH_A].data, *rows = (const elem *)args.tensor[NH_V].data;
    nh_range range[3];
    for (int d = 0; d < 3; d++)
        range[d] = nh_tile_reach(args.axis[d], tile.axis[d].length, position[d]);
    int heads = BY_KEYS ? nh_group_heads(args) : 1;
    float sum = 0;
    for (int h = 0; h < heads; h++)
        for (int x = (int)range[0].begin; x < range[0].end; x++)
            for (int y = (int)range[1].begin; y < range[1].end; y++)
                for (int z = (int)range[2].begin; z < range[2].end; z++) {
                    int other[3] = {x, y, z};
                    int head = BY_KEYS ? tile.head * heads + h : nh_key_head(args, tile.head);
                    const int *key = BY_KEYS ? position : other;
                    nh_query query;
                    nh_query_set(&query, tile, args, BY_KEYS ? other : position, BY_KEYS ? head : tile.head, true);
                    int slot = 0;
                    for (int d = 0; d < 3; d++)
                        slot = slot * (int)args.axis[d].window + key[d] - tile.axis[d].base -
                               (BY_KEYS ? 0 : query.begin[d]);
                    sum = fmaf(nh_load(a[query.weights + slot]),
                               nh_load(rows[nh_tile_offset(tile, args, NH_V, other, head) + c]), sum);
                }
    return sum;
}

/* Writes the tile's sums, rounded, to shared memory; recomputes those that are not finite. */
NH_DEVICE void nh_sums_finish(const nh_tile &tile, const nh_cuda_args &args, float sum[C.width / 8][4], elem *sums) {
    int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32;
    float scale = (float)args.scale;
    bool finite = true;
    NH_UNROLL for (int n = 0; n < C.width / 8; n++)
        NH_UNROLL for (int i = 0; i < 4; i++)
            finite = finite && fabsf(sum[n][i]) <= 3.402823466e38f;
    if (__syncthreads_or(!finite)) {
        for (int i = (int)threadIdx.x; i < NH_ROWS * (int)args.dim_v; i += NH_THREADS) {
            int row = i / (int)args.dim_v, c = i % (int)args.dim_v, position[3];
            if (nh_tile_row(tile, row, position))
                sums[row * SUM_STRIDE + c] = nh_store(scale * nh_repair_sum(tile, args, position, c));
        }
    } else {
        NH_UNROLL for (int n = 0; n < C.width / 8; n++)
            NH_UNROLL for (int i = 0; i < 4; i++)
                sums[(16 * warp + lane / 4 + i / 2 * 8) * SUM_STRIDE + n * 8 + lane % 4 * 2 + i % 2] =
                    nh_store(scale * sum[n][i]);
    }
    __syncthreads();
}

} // namespace nh_gemm
