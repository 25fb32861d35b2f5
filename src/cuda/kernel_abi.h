/* What a launch hands to a kernel: plain data, compiled by the host and by NVRTC alike, so only types whose
 * size both agree on. Extents are arguments and never part of a kernel's key: a new size recompiles nothing. */
#ifndef NH_KERNEL_ABI_H
#define NH_KERNEL_ABI_H

/* Slots are those of NHOOD_Q .. NHOOD_D_EXTRA_V. */
#define NH_CUDA_TENSORS 17

struct nh_cuda_axis {
    long long length, window, stride, dilation;
    int causal;
    int reserved;
};

/* Strides in elements; the last axis is contiguous. data is NULL for what the pass does not use. */
struct nh_cuda_tensor {
    void *data;
    long long batch, axis[3], head;
};

struct nh_cuda_args {
    struct nh_cuda_tensor tensor[NH_CUDA_TENSORS];
    /* Slowest first; problems of fewer axes have unit axes in front. */
    struct nh_cuda_axis axis[3];
    long long batch, heads, kv_heads, dim, dim_v, extra_tokens;
    /* Slots of A: the product of the windows. */
    long long window_count;
    double scale;
    /* NHOOD_FLAG_* */
    unsigned flags;
    int has_bias;
    void *workspace;
};

#endif
