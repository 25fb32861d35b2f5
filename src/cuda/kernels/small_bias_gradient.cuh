/* Gradient of the relative bias, from the score gradients of small_backward_query.cu, without atomics.
 *
 * A warp lays the score gradients of its subtile down in shared memory and gathers them by entries of the bias table:
 * each lane owns some entries and adds up, over the 16 rows, the columns at that distance. Sums of a block's warps are
 * kept per head and written when the head changes, which is why heads are the slowest digit of this kernel's items.
 * small_bias_sum.cu adds up the blocks. Every order is fixed: results are bit-equal every run. */
#pragma once

#include "small_gradient.cuh"

/* Nearly nothing without a bias. */
enum { NH_LAID_COLUMNS = NH_BIAS_COUNT ? NH_COLUMNS : 2, NH_BIAS_SUMS = NH_BIAS_COUNT ? NH_BIAS_COUNT : 1 };

struct nh_bias_sums {
    elem d_scores[NH_WARPS][16][NH_LAID_COLUMNS];
    float sum[NH_WARPS][NH_BIAS_SUMS];
};

NH_DEVICE bool nh_bias_wanted(const nh_cuda_args &args) {
    return NH_BIAS_COUNT && args.tensor[NH_D_BIAS].data;
}

/* Before the first item; a barrier must follow. */
NH_DEVICE void nh_bias_clear(nh_bias_sums &sums) {
    float *sum = &sums.sum[0][0];
    for (int i = (int)threadIdx.x; i < NH_WARPS * NH_BIAS_SUMS; i += NH_THREADS)
        sum[i] = 0.f;
}

/* Sixteen columns' score gradients as they were packed for a product. */
NH_DEVICE void nh_bias_lay(nh_bias_sums &sums, int column, const unsigned (&packed)[4]) {
    int lane = (int)(threadIdx.x % 32);
    elem(*rows)[NH_LAID_COLUMNS] = sums.d_scores[threadIdx.x / 32];
#pragma unroll
    for (int i = 0; i < 4; i++)
        *(unsigned *)&rows[lane / 4 + i % 2 * 8][column + i / 2 * 8 + lane % 4 * 2] = packed[i];
}

NH_DEVICE constexpr int nh_axis_distances(int axis) {
    return NH_BIAS_COUNT ? 2 * (axis == 0 ? NH_W0 : axis == 1 ? NH_W1 : NH_W2) - 1 : 1;
}

/* Adds the subtile's gradients to the warp's sums. */
NH_DEVICE void nh_bias_gather(const nh_item &item, const nh_sight &sight, int subtile,
                              nh_bias_sums &sums) {
    const int warp = (int)(threadIdx.x / 32);
    const elem(*rows)[NH_LAID_COLUMNS] = sums.d_scores[warp];
    __syncwarp();
    for (int entry = (int)(threadIdx.x % 32); entry < NH_BIAS_COUNT; entry += 32) {
        /* column that lies at the entry's distance from row 0 */
        int at[3], rest = entry;
#pragma unroll
        for (int a = 2; a >= 0; a--) {
            int distance = rest % nh_axis_distances(a) - nh_axis_distances(a) / 2;
            rest /= nh_axis_distances(a);
            at[a] = 0;
            if (a >= NH_FIRST_AXIS) {
                int row = nh_row_at(subtile, 0, a);
                at[a] = distance + item.row[a] + row - item.column[a] -
                        sight.begin[nh_rows_before(a) + row];
            }
        }
        float sum = 0.f;
#pragma unroll
        for (int r = 0; r < 16; r++) {
            int x = at[0] + nh_row_at(0, r, 0), y = at[1] + nh_row_at(0, r, 1),
                z = at[2] + nh_row_at(0, r, 2);
            if ((unsigned)x < NH_K0 && (unsigned)y < NH_K1 && (unsigned)z < NH_K2)
                sum += nh_load(rows[r][(x * NH_K1 + y) * NH_K2 + z]);
        }
        sums.sum[warp][entry] += sum;
    }
    __syncwarp();
}

/* By all threads, between barriers: writes the sums of heads head .. next - 1, of which only the first has any. */
NH_DEVICE void nh_bias_flush(const nh_cuda_args &args, int head, int next, nh_bias_sums &sums) {
    const nh_cuda_tensor &partial = args.tensor[NH_D_S];
    for (int h = head; h < next; h++) {
        float *to = (float *)partial.data + h * partial.head + (long long)blockIdx.x * NH_BIAS_COUNT;
        for (int entry = (int)threadIdx.x; entry < NH_BIAS_COUNT; entry += NH_THREADS) {
            float sum = 0.f;
            for (int warp = 0; warp < NH_WARPS; warp++) {
                sum += sums.sum[warp][entry];
                sums.sum[warp][entry] = 0.f;
            }
            to[entry] = sum;
        }
    }
}
