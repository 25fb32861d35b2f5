/* The arguments of the kernels of gemm_part_pn.cu and gemm_part_nn.cu. */
#ifndef NH_GEMM_PART_ARGS_H
#define NH_GEMM_PART_ARGS_H

#include "kernel_abi.h"

struct nh_gemm_part_own {
    /* query heads that a block computes, one after the other */
    int block_heads;
    int reserved;
};

NH_FAMILY_ARGS(nh_gemm_part_args, struct nh_gemm_part_own part;);

#endif
