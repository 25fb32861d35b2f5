/* What launches of gemm_part_pn.cu and gemm_part_nn.cu hand to their kernels. */
#ifndef NH_GEMM_PART_ARGS_H
#define NH_GEMM_PART_ARGS_H

#include "kernel_abi.h"

struct nh_gemm_part_own {
    /* query heads that a block takes, one after the other */
    int block_heads;
    int reserved;
};

NH_FAMILY_ARGS(nh_gemm_part_args, struct nh_gemm_part_own part;);

#endif
