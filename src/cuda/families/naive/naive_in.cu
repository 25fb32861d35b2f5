/* x_j = sum over {i : j = N(i,n)} of A[i, n] y_i: one group of lanes per key adds up its inverse neighborhood. */
#include "row_of_config.cuh"

#include "naive.cuh"

namespace nh_naive {

/* The key's place, along an axis, in the window of the query at this position. */
NH_DEVICE int slot_of(const nh_cuda_args &args, int a, long long key, long long query) {
    const nh_cuda_axis &axis = args.axis[a];
    long long group = key % axis.dilation;
    const long long length = nh_axis_group_length(axis.length, axis.dilation, group);
    const nh_range seen = nh_seen_of_grid(axis, nh_wraps(a), false, length, query);
    return (int)(key / axis.dilation - seen.begin);
}

NH_DEVICE void add_head(const nh_cuda_args &args, const nh_query &key, const nh_box &box, long long head,
                        nh_long_row &out) {
    const nh_cuda_tensor &a = args.tensor[NH_A];
    nh_box_rows y_rows = nh_box_rows_of(args.tensor[NH_D_O], box, key.batch, head);
    const elem *a_base = nh_row(a, key.batch, box.first, head);
    real row[ROW_ELEMENTS];
    for (int x = 0; x < box.count[0]; x++) {
        long long slot_x = slot_of(args, 0, key.at[0], box.position[0] + x);
        for (int y = 0; y < box.count[1]; y++) {
            long long slot_y = slot_x * args.axis[1].window + slot_of(args, 1, key.at[1], box.position[1] + y);
            for (int z = 0; z < box.count[2]; z++) {
                long long slot = slot_y * args.axis[2].window + slot_of(args, 2, key.at[2], box.position[2] + z);
                nh_load_row(y_rows.base + x * y_rows.step[0] + y * y_rows.step[1] + z * y_rows.step[2],
                            (int)blockIdx.y * ROW_CHUNK, (int)args.dim_v, row);
                nh_long_add(out, nh_load(a_base[nh_offset(a, box, x, y, z) + slot]), row);
            }
        }
    }
}

NH_DEVICE void scatter(const nh_cuda_args &args, const nh_query &key) {
    long long share = args.heads / args.kv_heads;
    nh_long_row out;
    nh_long_clear(out);
    nh_box box = nh_inverse_box(args, key.at);
    for (long long head = key.head * share; head < (key.head + 1) * share; head++) {
        add_head(args, key, box, head, out);
        for (int piece = 1; piece < ROW_PIECES; piece++)
            add_head(args, key, nh_inverse_box(args, key.at, piece), head, out);
    }
    nh_long_end(out);
    nh_store_row(nh_row(args.tensor[NH_D_V], key.batch, key.at, key.head), (int)blockIdx.y * ROW_CHUNK, (int)args.dim_v,
                 out.sum);
}

} // namespace nh_naive

using namespace nh_naive;

extern "C" __global__ void __launch_bounds__(ROW.threads) naive_in(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    nh_for_rows<true>(args, [&](const nh_query &key) { scatter(args, key); });
}
