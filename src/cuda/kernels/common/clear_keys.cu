/* Stores zeros as the gradients of keys and values that no query attends: of those that tensors cover, which is what
 * the region says here, the ones outside of the attended box. A thread has the same vector of NH_KEYS keys that follow
 * each other on the last axis: what its number stands for takes several divisions, more than a store. Blocks along y
 * have dK and dV. The launch before this one stores the other gradients: only its end has to be waited for. */
#include "overlap.cuh"
#include "region.cuh"

enum { THREADS = 128 };

NH_DEVICE void store_zeros(elem *to) {
    if (NH_VECTOR * sizeof(elem) == 16) {
        const unsigned words[4] = {0, 0, 0, 0};
        nh_store_words(to, words); /* the compiler would make eight stores of a vector of zeros */
    } else {
        const real zeros[NH_VECTOR] = {0};
        nh_store_vector<NH_VECTOR>(to, zeros);
    }
}

/* Stores zeros to the vector at `to` of the keys [z, end) of a line, but for those of the attended ones. */
NH_DEVICE void clear_keys_of(elem *to, long long stride, long long z, long long end, const nh_cuda_box &attended,
                             bool crosses) {
    NH_UNROLL for (int i = 0; i < NH_KEYS; i++) {
        const long long at = z + i;
        const bool stored = crosses && at >= attended.offset && at < attended.offset + attended.length;
        if (at < end && !stored) store_zeros(to + i * stride);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) clear_keys(NH_PARAMETER(nh_clear_keys_args)) {
    NH_TAKE_MEMBER(nh_clear_keys_args)
    const nh_cuda_tensor &tensor = args.tensor[blockIdx.y ? NH_D_V : NH_D_K];
    const nh_cuda_box *attended = args.attended.box;
    const long long vectors = (blockIdx.y ? args.dim_v : args.dim) / NH_VECTOR;
    const long long chunks = (args.region[2].key.length + NH_KEYS - 1) / NH_KEYS;
    const long long lines = args.batch * args.region[0].key.length * args.region[1].key.length;
    const long long count = tensor.data ? lines * chunks * args.kv_heads * vectors : 0;
    const long long step = (long long)NH_OWN_BLOCKS * THREADS;
    nh_let_next_begin();
    for (long long i = (long long)NH_OWN_BLOCK * THREADS + threadIdx.x; i < count; i += step) {
        long long vector = i, head = nh_split(&vector, vectors), chunk = nh_split(&head, args.kv_heads);
        long long rest = nh_split(&chunk, chunks), at[3];
        bool crosses = true;
        at[2] = args.region[2].key.offset + chunk * NH_KEYS;
        NH_UNROLL for (int a = 1; a >= 0; a--) {
            at[a] = rest;
            rest = nh_split(&at[a], args.region[a].key.length);
            at[a] += args.region[a].key.offset;
            crosses = crosses && at[a] >= attended[a].offset && at[a] < attended[a].offset + attended[a].length;
        }
        clear_keys_of(nh_row(tensor, rest, at, head) + vector * NH_VECTOR, tensor.axis[2], at[2],
                      args.region[2].key.offset + args.region[2].key.length, attended[2], crosses);
    }
    nh_wait_for_launches();
}
