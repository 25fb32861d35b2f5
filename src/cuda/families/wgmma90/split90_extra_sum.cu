/* Gradients of the extra tokens: adds up the shares of split90_extra.cu in their order. blockIdx.x is a token of a head
 * and batch entry; blockIdx.y 0 computes dK, 1 dV. args.tiling.work_tiles: the number of shares. */
#include "prelude.cuh"

extern "C" __global__ void __launch_bounds__(256) split90_extra_sum(NH_PARAMETER(nh_tiled_args)) {
    NH_TAKE_MEMBER(nh_tiled_args)
    bool keys = blockIdx.y == 0;
    const nh_cuda_tensor &share = args.tensor[keys ? NH_P : NH_D_S];
    const nh_cuda_tensor &to = args.tensor[keys ? NH_D_EXTRA_K : NH_D_EXTRA_V];
    int column = (int)threadIdx.x, dim = (int)(keys ? args.dim : args.dim_v);
    if (!to.data || column >= dim) return;
    long long token = NH_OWN_BLOCK, head = nh_split(&token, args.extra_tokens), batch = nh_split(&head, args.kv_heads);
    const float *from = (const float *)share.data + batch * share.batch + head * share.head + token * share.axis[2];
    float sum = 0;
    for (int s = 0; s < args.tiling.work_tiles; s++)
        sum += from[s * share.axis[0] + column];
    elem *row_to = (elem *)to.data + batch * to.batch + head * to.head + token * to.axis[3 - args.rank];
    row_to[column] = nh_store(sum * (keys ? (float)args.scale : 1.0f));
}
