/* Sets the words of NH_QUEUE to zero: no work tile is claimed, and no row needs repair yet. */
#include "prelude.cuh"

extern "C" __global__ void repair_clear(NH_PARAMETER(nh_cuda_args)) {
    NH_TAKE_MEMBER(nh_cuda_args)
    if (threadIdx.x < 2) ((unsigned *)args.tensor[NH_QUEUE].data)[threadIdx.x] = 0;
}
