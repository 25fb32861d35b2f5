/* Launches of an operation that overlap, on sm_90: those with `overlaps` in launch.h. Elsewhere each begins when the
 * one before it has ended, and there is nothing to do. */
#pragma once

/* Comes back when all launches before this one have ended; what they wrote can be read. */
__device__ __forceinline__ void nh_wait_for_launches(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* When all blocks of a launch have come here, or have ended, the next may begin. */
__device__ __forceinline__ void nh_let_next_begin(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* For a launch that needs all before it. */
__device__ __forceinline__ void nh_follow_launches(void) {
    nh_wait_for_launches();
    nh_let_next_begin();
}
