/* Programmatic dependent launch on sm_90, for steps with `overlaps` (launch.h). On other devices each launch begins
 * when the one before it has ended, and these functions do nothing. */
#pragma once

/* Returns when all launches before this one have ended; what they wrote can then be read. */
__device__ __forceinline__ void nh_wait_for_launches(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* The next launch may begin when all blocks of this one have called this, or have ended. */
__device__ __forceinline__ void nh_let_next_begin(void) {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* For a launch that needs the results of all launches before it. */
__device__ __forceinline__ void nh_follow_launches(void) {
    nh_wait_for_launches();
    nh_let_next_begin();
}

/* For launches that need nothing of each other (NH_BESIDE): with this in its blocks, each takes the multiprocessors
 * that the one before it leaves idle at its end. None ends before the one ahead of it, so that whatever waits for the
 * last one waits for all. */
struct nh_beside {
    __device__ __forceinline__ nh_beside() { nh_let_next_begin(); }
    __device__ __forceinline__ ~nh_beside() {
        /* In a producer's warp one thread alone works: the others must not stop the warp here before it is done. */
        __syncwarp();
        nh_wait_for_launches();
    }
};
