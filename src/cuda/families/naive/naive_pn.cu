/* A[i, n] = scale * q_i . k_N(i,n) (+ bias): one group of lanes per query or, with tiles, one thread. A lane keeps
 * every NH_GROUP-th slot, so that the group writes its row of A at once. */
#include "naive.cuh"

/* Computes the slots of a box. a: the query's row of A; box: its window or a piece of it; k: the rows of the box. ALL:
 * slots outside the box are written as unused, too. */
template <bool ALL>
__device__ __forceinline__ void weigh_box(const nh_cuda_args &args, const nh_query &query, const nh_operand &q,
                                          const nh_box &box, const nh_box_rows &k, elem *a) {
    nh_bias bias = nh_bias_of(args, query, box);
    real scale = (real)args.scale, unused = args.flags & NH_ZERO_FILL ? 0 : NH_MINUS_INFINITY;
    int window[3] = {(int)args.axis[0].window, (int)args.axis[1].window, (int)args.axis[2].window};
    long long line = 0;
    for (int slot_x = 0; slot_x < window[0]; slot_x++)
        for (int slot_y = 0; slot_y < window[1]; slot_y++, line += window[2])
            for (int first = 0; first < window[2]; first += NH_GROUP) {
                real mine = unused;
                bool used = false;
                for (int i = 0; i < NH_GROUP && first + i < window[2]; i++) {
                    int x = slot_x, y = slot_y, z = first + i;
#if NH_REGIONS
                    x -= box.slot[0], y -= box.slot[1], z -= box.slot[2];
                    if (x < 0 || y < 0 || z < 0) continue;
#endif
                    if (x >= box.count[0] || y >= box.count[1] || z >= box.count[2]) break;
                    real score = scale * nh_group_sum(nh_product_part(
                                             q, k.base + x * k.step[0] + y * k.step[1] + z * k.step[2]));
                    if (NH_BIASED) score += nh_load(bias.base[x * bias.step[0] + y * bias.step[1] + z]);
                    if (i == nh_lane()) mine = score, used = true;
                }
                if ((ALL || used) && first + nh_lane() < window[2]) a[line + first + nh_lane()] = nh_store(mine);
            }
}

__device__ __forceinline__ void weigh(const nh_cuda_args &args, const nh_query &query, const nh_box &box,
                                      const nh_box_rows &k, elem *a) {
    nh_operand q;
    nh_operand_set(q, nh_row(args.tensor[NH_Q], query.batch, query.at, query.head), args.dim);
    weigh_box<true>(args, query, q, box, k, a);
    for (int piece = 1; piece < NH_PIECES; piece++) {
        const nh_box more = nh_window_box(args, query.at, piece);
        const long long kv_head = query.head / (args.heads / args.kv_heads);
        weigh_box<false>(args, query, q, more, nh_box_rows_of(args.tensor[NH_K], more, query.batch, kv_head), a);
    }
}

#if NH_TILED
#include "naive_tile.cuh"

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    naive_pn(const __grid_constant__ nh_tiled_args args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_work_tile work_tile;
    nh_work_tile_at<TILES>(args, (int)blockIdx.x, work_tile);
    elem *k = (elem *)nh_shared_memory, *weights = k + nh_staged_rows(work_tile) * NH_STAGED_ROW;
    nh_stage<NH_K, -1>(args, work_tile, work_tile.kv_head, k);
    nh_staged();
    nh_query query;
    if (nh_tile_query(args, work_tile, (int)threadIdx.x, query)) {
        nh_box box = nh_window_box(args, query.at);
        weigh(args, query, box, nh_staged_box_rows(work_tile, box, k), weights + threadIdx.x * args.window_count);
    }
    __syncthreads();
    nh_move_weights<true>(args, work_tile, weights);
}
#else
extern "C" __global__ void __launch_bounds__(NH_THREADS)
    naive_pn(const __grid_constant__ nh_cuda_args args) {
    nh_for_rows(args, [&](const nh_query &query) {
        nh_box box = nh_window_box(args, query.at);
        weigh(args, query, box,
              nh_box_rows_of(args.tensor[NH_K], box, query.batch, query.head / (args.heads / args.kv_heads)),
              nh_row(args.tensor[NH_A], query.batch, query.at, query.head));
    });
}
#endif
