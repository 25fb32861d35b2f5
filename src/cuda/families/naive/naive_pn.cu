/* A[i, n] = scale * q_i . k_N(i,n) (+ bias): one group of lanes per query or, with tiles, one thread. A lane keeps
 * every ROW.group-th slot, so that the group writes its row of A at once. */
#include "naive_tile.cuh"

namespace nh_naive {

/* Computes the slots of a box. a: the query's row of A; box: its window or a piece of it; k: the rows of the box. ALL:
 * slots outside the box are written as unused, too. */
template <bool ALL>
NH_DEVICE void weigh_box(const nh_cuda_args &args, const nh_query &query, const nh_operand &q, const nh_box &box,
                         const nh_box_rows &k, elem *a) {
    nh_bias bias = nh_bias_of(args, query, box);
    real scale = (real)args.scale, unused = args.flags & NH_ZERO_FILL ? 0 : NH_MINUS_INFINITY;
    int window[3] = {(int)args.axis[0].window, (int)args.axis[1].window, (int)args.axis[2].window};
    long long line = 0;
    for (int slot_x = 0; slot_x < window[0]; slot_x++)
        for (int slot_y = 0; slot_y < window[1]; slot_y++, line += window[2])
            for (int first = 0; first < window[2]; first += ROW.group) {
                real mine = unused;
                bool used = false;
                for (int i = 0; i < ROW.group && first + i < window[2]; i++) {
                    int x = slot_x, y = slot_y, z = first + i;
                    if (NH_REGIONS) {
                        x -= box.slot[0], y -= box.slot[1], z -= box.slot[2];
                        if (x < 0 || y < 0 || z < 0) continue;
                    }
                    if (x >= box.count[0] || y >= box.count[1] || z >= box.count[2]) break;
                    real score =
                        scale *
                        nh_group_sum(nh_product_part(q, k.base + x * k.step[0] + y * k.step[1] + z * k.step[2]));
                    if (ROW.biased) score += nh_load(bias.base[x * bias.step[0] + y * bias.step[1] + z]);
                    if (i == nh_lane()) mine = score, used = true;
                }
                if ((ALL || used) && first + nh_lane() < window[2]) a[line + first + nh_lane()] = nh_store(mine);
            }
}

NH_DEVICE void weigh(const nh_cuda_args &args, const nh_query &query, const nh_box &box, const nh_box_rows &k,
                     elem *a) {
    nh_operand q;
    nh_operand_set(q, nh_row(args.tensor[NH_Q], query.batch, query.at, query.head), args.dim);
    weigh_box<true>(args, query, q, box, k, a);
    for (int piece = 1; piece < ROW_PIECES; piece++) {
        const nh_box more = nh_window_box(args, query.at, piece);
        const long long kv_head = query.head / (args.heads / args.kv_heads);
        weigh_box<false>(args, query, q, more, nh_box_rows_of(args.tensor[NH_K], more, query.batch, kv_head), a);
    }
}

} // namespace nh_naive

using namespace nh_naive;

extern "C" __global__ void __launch_bounds__(ROW.threads, ROW.min_blocks) naive_pn(NH_PARAMETER(naive_args)) {
    NH_TAKE_MEMBER(naive_args)
    nh_for_queries<NH_K, -1, WRITES_WEIGHTS>(args, true, [&](const nh_query &query, const nh_seen &seen) {
        weigh(args, query, seen.box, seen.first, seen.weights);
    });
}
