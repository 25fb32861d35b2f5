/* Stores zeros as the gradients of keys and values that no query attends: of those that tensors cover, which is what the
 * region says here, the ones outside of the attended box. A warp has a key with all its heads. The launch before this
 * one stores the others: nothing has to be waited for but its end. */
#include "overlap.cuh"
#include "region.cuh"

enum { LANES = 32, THREADS = 128 };

__device__ __forceinline__ void clear_rows(const nh_cuda_tensor &tensor, long long batch, const long long at[3],
                                           long long heads, long long dim) {
    if (!tensor.data) return;
    const long long vectors = dim / NH_VECTOR;
    real zeros[NH_VECTOR] = {0};
    for (long long i = threadIdx.x % LANES; i < heads * vectors; i += LANES) {
        long long vector = i, head = nh_split(&vector, vectors);
        nh_store_vector<NH_VECTOR>(nh_row(tensor, batch, at, head) + vector * NH_VECTOR, zeros);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    clear_keys(const __grid_constant__ nh_clear_keys_args args) {
    const long long keys = args.batch * args.region[0].key.length * args.region[1].key.length *
                           args.region[2].key.length;
    const long long step = (long long)gridDim.x * (THREADS / LANES);
    nh_let_next_begin();
    for (long long key = (long long)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES; key < keys; key += step) {
        long long rest = key, at[3];
        bool attended = true;
#pragma unroll
        for (int a = 2; a >= 0; a--) {
            const nh_cuda_box &box = args.attended.box[a];
            at[a] = rest;
            rest = nh_split(&at[a], args.region[a].key.length);
            at[a] += args.region[a].key.offset;
            attended = attended && at[a] >= box.offset && at[a] < box.offset + box.length;
        }
        if (attended) continue;
        clear_rows(args.tensor[NH_D_K], rest, at, args.kv_heads, args.dim);
        clear_rows(args.tensor[NH_D_V], rest, at, args.kv_heads, args.dim_v);
    }
    nh_wait_for_launches();
}
