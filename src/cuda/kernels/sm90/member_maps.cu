/* Writes the tensor maps of a group's members: those that the plan has, with the addresses of this execute's tensors. A
 * block of one warp has a map. The launches behind this one acquire what it releases (members.cuh). */
#include "members_abi.h"

struct alignas(128) member_map {
    unsigned long long word[16];
};

/* Sets the address of a map in shared memory. */
static __device__ __forceinline__ void set_address(unsigned map, unsigned long long address) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"r"(map), "l"(address)
                 : "memory");
}

/* Copies a map from shared memory to memory; called by a whole warp. */
static __device__ __forceinline__ void release(char *to, unsigned from) {
    asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned"
                 " [%0], [%1], 128;" ::"l"(to),
                 "r"(from)
                 : "memory");
}

extern "C" __global__ void __launch_bounds__(32) member_maps(const __grid_constant__ nh_cuda_member_maps maps) {
    extern __shared__ __align__(128) char nh_shared_memory[];
    const unsigned shared = (unsigned)__cvta_generic_to_shared((void *)nh_shared_memory);
    const nh_cuda_member_map &from = maps.map[blockIdx.x];
    const int bases = maps.apart ? (from.member - maps.first_member) * maps.bases : 0;
    const unsigned long long base = maps.base[bases + from.base];
    if (!base) return; /* an output that is not wanted */
    if (threadIdx.x < 16) ((member_map *)nh_shared_memory)->word[threadIdx.x] = from.map[threadIdx.x];
    __syncwarp();
    if (threadIdx.x == 0) set_address(shared, base + (unsigned long long)from.place[maps.apart]);
    __syncwarp();
    release(maps.to + from.at, shared);
}
