/* O: one group of lanes per query or, with tiles, one thread. */
#include "naive_tile.cuh"

#include "naive_forward.cuh"

namespace nh_naive {

template <class Args> NH_DEVICE void nh_attend_all(const Args &args) {
    if constexpr (ROW.tiled) {
        nh_for_tile<NH_K, NH_V, NO_WEIGHTS>(args, true, [&](const nh_query &query, const nh_seen &seen) {
            real share = 1;
            NH_UNROLL_1 while (nh_attend_to(args, query, seen.box, seen.first, seen.second, share))
                share = nh_small_share(args);
        });
    } else {
        nh_attend_rows(args);
    }
}

} // namespace nh_naive

extern "C" __global__ void __launch_bounds__(ROW.threads, ROW.min_blocks)
    naive_forward(NH_PARAMETER(nh_naive::naive_args)) {
    NH_TAKE_MEMBER(nh_naive::naive_args)
    nh_naive::nh_attend_all(args);
}
