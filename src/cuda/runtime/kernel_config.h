/* A kernel's configuration is one plain struct of ints, which the host's compiler and NVRTC both compile. A family lists
 * the members once, in families/<name>/<name>_config.h:
 *
 *     #define SMALL_CONFIG(ONE, MANY) ONE(pipeline) ONE(warps) MANY(rows, 3)
 *     NH_KERNEL_CONFIG(small_config, SMALL_CONFIG);
 *
 * The host fills the struct in and hands it to the kernel's spec by nh_kernel_configure (compiler.h). The kernel begins
 * with `constexpr small_config C = NH_CONFIG;`. */
#ifndef NH_KERNEL_CONFIG_H
#define NH_KERNEL_CONFIG_H

#define NH_KERNEL_CONFIG_ONE(member) int member;
#define NH_KERNEL_CONFIG_MANY(member, count) int member[count];
#define NH_KERNEL_CONFIG(name, MEMBERS)                                                            \
    struct name {                                                                                  \
        MEMBERS(NH_KERNEL_CONFIG_ONE, NH_KERNEL_CONFIG_MANY)                                       \
    }

/* Precedes the functions of a configuration, which kernels call at compile time, too. */
#ifdef __CUDACC__
#define NH_CONFIG_FN static __device__ constexpr
#elif defined __cplusplus
#define NH_CONFIG_FN static constexpr
#else
#define NH_CONFIG_FN static inline
#endif

#endif
