/* Sets the words of NH_QUEUE to zero: no work tile is claimed, and no row needs repair yet. */
#include "prelude.cuh"

extern "C" __global__ void repair_clear(const __grid_constant__ nh_cuda_args args) {
    if (threadIdx.x < 2) ((unsigned *)args.tensor[NH_QUEUE].data)[threadIdx.x] = 0;
}
