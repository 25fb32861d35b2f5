/* dK and dV: one group of lanes per key or, with tiles, one thread: without atomics, and bit-equal in every run. */
#include "naive_tile.cuh"

#include "naive_backward_key.cuh"

namespace nh_naive {

/* The keys of the block's tile. */
template <class Args> NH_DEVICE void nh_differentiate_tile(const Args &args) {
    extern __shared__ __align__(16) char nh_shared_memory[];
    nh_work_tile work_tile;
    nh_work_tile_at<TILES>(args, (int)NH_OWN_BLOCK, work_tile);
    elem *q = (elem *)nh_shared_memory, *d_o = q + nh_staged_rows(work_tile) * ROW_STAGED;
    int share = (int)(args.heads / args.kv_heads);
    nh_query key;
    bool exists = nh_tile_query(args, work_tile, (int)threadIdx.x, key);
    nh_key_rows r;
    nh_box box;
    if (exists) {
        nh_key_rows_set(args, key, r);
        box = nh_inverse_box(args, key.at);
    }
    for (int head = work_tile.head * share; head < (work_tile.head + 1) * share; head++) {
        nh_stage<NH_Q, NH_D_O>(args, work_tile, head, q);
        nh_staged();
        if (exists)
            nh_add_head(args, r, key, box, head, nh_staged_box_rows(work_tile, box, q),
                        nh_staged_box_rows(work_tile, box, d_o));
        __syncthreads();
    }
    if (exists) nh_key_rows_store(args, key, r);
}

template <class Args> NH_DEVICE void nh_differentiate_keys(const Args &args) {
    if constexpr (ROW.tiled) {
        nh_differentiate_tile(args);
    } else {
        nh_for_rows<true>(args, [&](const nh_query &key) { nh_differentiate_key(args, key); });
    }
}

} // namespace nh_naive

extern "C" __global__ void __launch_bounds__(ROW.threads, ROW.min_blocks)
    naive_backward_key(NH_PARAMETER(nh_naive::naive_args)) {
    NH_TAKE_MEMBER(nh_naive::naive_args)
    nh_naive::nh_differentiate_keys(args);
}
