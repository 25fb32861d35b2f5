/* The arguments of the kernels of RMS norm and rotary positions: plain data, compiled by host and device. */
#ifndef NH_NORM_ROPE_ARGS_H
#define NH_NORM_ROPE_ARGS_H

#include "kernel_abi.h"

/* The warps of a block of norm_rope_weight.cu, and the channels for which it adds up sums. */
enum { NH_ROPE_WEIGHT_WARPS = 32, NH_ROPE_WEIGHT_CHANNELS = 32 };

struct nh_norm_rope_args {
    struct nh_cuda_tensor x, y, d_y, d_x;
    const void *weight;
    const void *table[3]; /* one for each axis, from the first token's position on */
    void *d_weight;
    /* Weight gradients of each block, [blocks, channels], in the type of arithmetic; NULL: they are not asked for. */
    void *sums;
    long long length[3];
    /* Work items: a token with heads_each of its heads, in `chunks` of such items; or with all heads, if they share a
     * norm. */
    long long items;
    int heads, heads_each, chunks;
    int dim;
    int first_pair[4]; /* pairs first_pair[a] .. first_pair[a + 1] - 1 of a head belong to axis a */
    int row_pairs;     /* pairs that share a norm: those of a head, or of a token */
    int channels;      /* twice row_pairs */
    int blocks;        /* of the backward launch */
    int reserved;
    double eps, scale, inverse_channels;
};

#endif
