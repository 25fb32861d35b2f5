/* Stores zeros as the gradients of keys and values that no query attends: of those that tensors cover, which is what the
 * region says here, the ones outside of the attended box. A warp has NH_CHUNK keys of a line along the last axis, with
 * all their heads. The launch before this one stores the other gradients: only its end has to be waited for. */
#include "overlap.cuh"
#include "region.cuh"

enum { LANES = 32, THREADS = 128 };

/* Keys of a line, and those of them that are attended. */
struct line_part {
    long long batch, at[3];
    nh_range keys, attended;
};

__device__ __forceinline__ void clear_part(const nh_cuda_tensor &tensor, const line_part &part, long long heads,
                                           long long dim) {
    if (!tensor.data) return;
    const long long vectors = dim / NH_VECTOR, count = (part.keys.end - part.keys.begin) * heads * vectors;
    real zeros[NH_VECTOR] = {0};
    for (long long i = threadIdx.x % LANES; i < count; i += LANES) {
        long long vector = i, head = nh_split(&vector, vectors), key = nh_split(&head, heads);
        const NH_POSITION z = part.keys.begin + (NH_POSITION)key;
        const long long at[3] = {part.at[0], part.at[1], z};
        if (z >= part.attended.begin && z < part.attended.end) continue;
        nh_store_vector<NH_VECTOR>(nh_row(tensor, part.batch, at, head) + vector * NH_VECTOR, zeros);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    clear_keys(const __grid_constant__ nh_clear_keys_args args) {
    const nh_cuda_box &line = args.region[2].key, *attended = args.attended.box;
    const long long chunks = (line.length + NH_CHUNK - 1) / NH_CHUNK;
    const long long parts = args.batch * args.region[0].key.length * args.region[1].key.length * chunks;
    const long long step = (long long)gridDim.x * (THREADS / LANES);
    nh_let_next_begin();
    for (long long i = (long long)blockIdx.x * (THREADS / LANES) + threadIdx.x / LANES; i < parts; i += step) {
        line_part part;
        long long chunk = i, rest = nh_split(&chunk, chunks);
        bool crosses = true;
        const long long line_end = line.offset + line.length, begin = line.offset + chunk * NH_CHUNK;
        const long long end = begin + NH_CHUNK < line_end ? begin + NH_CHUNK : line_end;
        part.keys = {(NH_POSITION)begin, (NH_POSITION)end};
#pragma unroll
        for (int a = 1; a >= 0; a--) {
            part.at[a] = rest;
            rest = nh_split(&part.at[a], args.region[a].key.length);
            part.at[a] += args.region[a].key.offset;
            crosses = crosses && part.at[a] >= attended[a].offset &&
                      part.at[a] < attended[a].offset + attended[a].length;
        }
        part.batch = rest;
        part.attended.begin = (NH_POSITION)attended[2].offset;
        part.attended.end = part.attended.begin + (crosses ? (NH_POSITION)attended[2].length : 0);
        clear_part(args.tensor[NH_D_K], part, args.kv_heads, args.dim);
        clear_part(args.tensor[NH_D_V], part, args.kv_heads, args.dim_v);
    }
    nh_wait_for_launches();
}
