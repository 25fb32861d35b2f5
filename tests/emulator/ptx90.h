// The PTX instructions of sm_90: barriers that count bytes, the copy engine, products of warpgroups. The longer ones are in
// ptx90.cpp.
#pragma once
#include "ptx.h"

// ---- what only hardware heeds ----

inline void ptx_fence_mbarrier_init_release_cluster(const char *) {
}
inline void ptx_fence_proxy_async_shared__cta(const char *) {
}
// Maps that are written by a launch: what is copied and what has landed is seen by all here.
inline void ptx_fence_proxy_tensormap__generic_acquire_gpu(const char *, const void *) {
}
inline void ptx_tensormap_replace_tile_global_address_shared__cta_b1024_b64(const char *,
                                                                            unsigned map,
                                                                            unsigned long long to) {
    ((emulator::TensorMap *)emulator::shared(map, 128, 128))->address = (const char *)to;
}
inline void
ptx_tensormap_cp_fenceproxy_global_shared__cta_tensormap__generic_release_gpu_sync_aligned(
    const char *, void *to, unsigned from) {
    memcpy(to, emulator::shared(from, 128, 128), 128);
}
inline void ptx_prefetch_tensormap(const char *, const void *) {
}
inline void ptx_griddepcontrol_wait(const char *) {
}
inline void ptx_griddepcontrol_launch_dependents(const char *) {
}
inline void ptx_setmaxnreg_dec_sync_aligned_u32(const char *, int) {
}
inline void ptx_setmaxnreg_inc_sync_aligned_u32(const char *, int) {
}
inline void ptx_wgmma_fence_sync_aligned(const char *) {
}

// ---- barriers ----

void ptx_mbarrier_init_shared__cta_b64(const char *, unsigned address, unsigned arrivals);
void ptx_mbarrier_inval_shared__cta_b64(const char *, unsigned address);
void ptx_mbarrier_arrive_expect_tx_shared__cta_b64(const char *, unsigned address, unsigned bytes);
void ptx_mbarrier_arrive_shared__cta_b64(const char *text, unsigned address);
// The same once the thread's copies are there, which this takes for now.
void ptx_cp_async_mbarrier_arrive_noinc_shared__cta_b64(const char *text, unsigned address);
// Waits until the phase of that parity is over.
void ptx_mbarrier_try_wait_parity_shared__cta_b64(const char *, unsigned address, unsigned parity);

// ---- boxes ----

void ptx_cp_async_bulk_tensor_5d_shared__cluster_global_mbarrier__complete_tx__bytes(
    const char *, unsigned to, const void *encoded, unsigned barrier, int x0, int x1, int x2,
    int x3, int x4);
void ptx_cp_async_bulk_tensor_5d_shared__cluster_global_im2col_mbarrier__complete_tx__bytes(
    const char *, unsigned to, const void *encoded, unsigned barrier, int x0, int x1, int x2,
    int x3, int x4, unsigned short offset1, unsigned short offset2, unsigned short offset3);
void ptx_cp_reduce_async_bulk_tensor_5d_global_shared__cta_add_tile_bulk_group(
    const char *, const void *encoded, unsigned from, int x0, int x1, int x2, int x3, int x4);
void ptx_cp_async_bulk_tensor_5d_global_shared__cta_bulk_group(const char *, const void *encoded,
                                                               int x0, int x1, int x2, int x3,
                                                               int x4, unsigned from);
void ptx_cp_async_bulk_commit_group(const char *);
void ptx_cp_async_bulk_wait_group_read(const char *);
void ptx_cp_async_bulk_wait_group(const char *);
void ptx_ld_acquire_gpu_global_u32(const char *, unsigned &value, const unsigned *word);
void ptx_st_release_gpu_global_u32(const char *, unsigned *word, unsigned value);
inline void ptx_fence_proxy_async_global(const char *) {
}

// ---- shared memory ----

inline void ptx_st_shared_v4_f32(const char *, unsigned address, float a, float b, float c,
                                 float d) {
    float *to = (float *)emulator::shared(address, 16, 16);
    to[0] = a, to[1] = b, to[2] = c, to[3] = d;
}

inline void ptx_st_shared_f32(const char *, unsigned address, float value) {
    *(float *)emulator::shared(address, 4, 4) = value;
}

inline void ptx_st_shared_v2_f32(const char *, unsigned address, float x, float y) {
    float *to = (float *)emulator::shared(address, 8, 8);
    to[0] = x;
    to[1] = y;
}

inline void ptx_st_shared_u32(const char *, unsigned address, unsigned value) {
    *(unsigned *)emulator::shared(address, 4, 4) = value;
}

inline void ptx_ld_shared_u32(const char *, int &value, unsigned address) {
    value = *(const int *)emulator::shared(address, 4, 4);
}

inline void ptx_ld_shared_f32(const char *, float &value, unsigned address) {
    value = *(const float *)emulator::shared(address, 4, 4);
}

inline void ptx_ld_shared_v2_f32(const char *, float &x, float &y, unsigned address) {
    const float *pair = (const float *)emulator::shared(address, 8, 8);
    x = pair[0];
    y = pair[1];
}

// ---- clusters ----

inline void ptx_barrier_cluster_arrive_release_aligned(const char *) {
    // counted by the wait, which follows at once
}
inline void ptx_barrier_cluster_wait_acquire_aligned(const char *) {
    emulator::cluster_barrier();
}
inline void ptx_mapa_shared__cluster_u32(const char *, unsigned &to, unsigned address,
                                         unsigned rank) {
    to = emulator::cluster_address(address, rank);
}
inline void ptx_ld_shared__cluster_v4_f32(const char *, float &a, float &b, float &c, float &d,
                                          unsigned address) {
    const float *from = (const float *)emulator::cluster_shared(address, 16, 16);
    a = from[0], b = from[1], c = from[2], d = from[3];
}
inline void ptx_ld_shared__cluster_v2_f32(const char *, float &a, float &b, unsigned address) {
    const float *from = (const float *)emulator::cluster_shared(address, 8, 8);
    a = from[0], b = from[1];
}

// ---- products of a warpgroup ----

// D = A B or D += A B with both in shared memory, `count` elements of D each thread's.
void multiply_warpgroup(const char *text, unsigned long long a, unsigned long long b,
                        float *const *d, size_t count);
// The same with A in registers.
void multiply_warpgroup(const char *text, const unsigned (&a)[4], unsigned long long b,
                        float *const *d, size_t count);

template <class... D>
void ptx_wgmma_mma_async_sync_aligned_m64n(const char *text, unsigned long long a,
                                           unsigned long long b, D &...d) {
    float *const to[] = {&d...};
    multiply_warpgroup(text, a, b, to, sizeof...(d));
}
template <class... D>
void ptx_wgmma_mma_async_sync_aligned_m64n(const char *text, unsigned a0, unsigned a1, unsigned a2,
                                           unsigned a3, unsigned long long b, D &...d) {
    float *const to[] = {&d...};
    multiply_warpgroup(text, {a0, a1, a2, a3}, b, to, sizeof...(d));
}

void ptx_wgmma_commit_group_sync_aligned(const char *);
void ptx_wgmma_wait_group_sync_aligned(const char *, unsigned pending);
