/* o_i = sum over n of A[i, n] v_N(i,n): one group of lanes per query and chunk of columns or, with tiles, one thread
 * per query. */
#include "naive.cuh"

/* Adds the keys of a box. a: the query's row of A; box: its window or a piece of it; v: the rows of the box. */
__device__ __forceinline__ void take_box(const nh_cuda_args &args, const nh_box &box, const nh_box_rows &v,
                                         const elem *a, nh_long_row &out) {
    real row[NH_LANE_ELEMENTS];
    a += nh_first_slot(args, box);
    for (int x = 0; x < box.count[0]; x++)
        for (int y = 0; y < box.count[1]; y++) {
            const elem *line = a + (x * args.axis[1].window + y) * args.axis[2].window;
            for (int z = 0; z < box.count[2]; z++) {
                nh_load_row(v.base + x * v.step[0] + y * v.step[1] + z * v.step[2],
                            (int)blockIdx.y * NH_CHUNK, (int)args.dim_v, row);
                nh_long_add(out, nh_load(line[z]), row);
            }
        }
}

__device__ __forceinline__ void gather(const nh_cuda_args &args, const nh_query &query, const nh_box &box,
                                       const nh_box_rows &v, const elem *a) {
    nh_long_row out;
    nh_long_clear(out);
    take_box(args, box, v, a, out);
    for (int piece = 1; piece < NH_PIECES; piece++) {
        const nh_box more = nh_window_box(args, query.at, piece);
        const long long kv_head = query.head / (args.heads / args.kv_heads);
        take_box(args, more, nh_box_rows_of(args.tensor[NH_V], more, query.batch, kv_head), a, out);
    }
    nh_long_end(out);
    nh_store_row(nh_row(args.tensor[NH_O], query.batch, query.at, query.head),
                 (int)blockIdx.y * NH_CHUNK, (int)args.dim_v, out.sum);
}

#if NH_TILED
#include "naive_tile.cuh"

extern "C" __global__ void __launch_bounds__(NH_THREADS, NH_MIN_BLOCKS)
    naive_nn(const __grid_constant__ nh_tiled_args args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_work_tile work_tile;
    nh_work_tile_at<TILES>(args, (int)blockIdx.x, work_tile);
    elem *v = (elem *)nh_shared_memory, *weights = v + nh_staged_rows(work_tile) * NH_STAGED_ROW;
    nh_stage<NH_V, -1>(args, work_tile, work_tile.kv_head, v);
    nh_move_weights<false>(args, work_tile, weights);
    nh_staged();
    nh_query query;
    if (!nh_tile_query(args, work_tile, (int)threadIdx.x, query)) return;
    nh_box box = nh_window_box(args, query.at);
    gather(args, query, box, nh_staged_box_rows(work_tile, box, v), weights + threadIdx.x * args.window_count);
}
#else
extern "C" __global__ void __launch_bounds__(NH_THREADS)
    naive_nn(const __grid_constant__ nh_cuda_args args) {
    nh_for_rows(args, [&](const nh_query &query) {
        nh_box box = nh_window_box(args, query.at);
        gather(args, query, box,
               nh_box_rows_of(args.tensor[NH_V], box, query.batch, query.head / (args.heads / args.kv_heads)),
               nh_row(args.tensor[NH_A], query.batch, query.at, query.head));
    });
}
#endif
