/* o_i = sum over n of A[i, n] v_N(i,n): a group of lanes per query and chunk or, with tiles, a thread per query. */
#include "naive_tile.cuh"

namespace nh_naive {

/* Adds the keys of a box. a: the query's row of A; box: its window or a piece of it; v: the rows of the box. */
NH_DEVICE void take_box(const nh_cuda_args &args, const nh_box &box, const nh_box_rows &v, const elem *a,
                        nh_long_row &out) {
    real row[ROW_ELEMENTS];
    a += nh_first_slot(args, box);
    for (int x = 0; x < box.count[0]; x++)
        for (int y = 0; y < box.count[1]; y++) {
            const elem *line = a + (x * args.axis[1].window + y) * args.axis[2].window;
            for (int z = 0; z < box.count[2]; z++) {
                nh_load_row(v.base + x * v.step[0] + y * v.step[1] + z * v.step[2], (int)blockIdx.y * ROW_CHUNK,
                            (int)args.dim_v, row);
                nh_long_add(out, nh_load(line[z]), row);
            }
        }
}

NH_DEVICE void gather(const nh_cuda_args &args, const nh_query &query, const nh_box &box, const nh_box_rows &v,
                      const elem *a) {
    nh_long_row out;
    nh_long_clear(out);
    take_box(args, box, v, a, out);
    for (int piece = 1; piece < ROW_PIECES; piece++) {
        const nh_box more = nh_window_box(args, query.at, piece);
        const long long kv_head = query.head / (args.heads / args.kv_heads);
        take_box(args, more, nh_box_rows_of(args.tensor[NH_V], more, query.batch, kv_head), a, out);
    }
    nh_long_end(out);
    nh_store_row(nh_row(args.tensor[NH_O], query.batch, query.at, query.head), (int)blockIdx.y * ROW_CHUNK,
                 (int)args.dim_v, out.sum);
}

} // namespace nh_naive

using namespace nh_naive;

extern "C" __global__ void __launch_bounds__(ROW.threads, ROW.min_blocks) naive_nn(NH_PARAMETER(naive_args)) {
    NH_TAKE_MEMBER(naive_args)
    nh_for_queries<NH_V, -1, READS_WEIGHTS>(args, true, [&](const nh_query &query, const nh_seen &seen) {
        gather(args, query, seen.box, seen.first, seen.weights);
    });
}
