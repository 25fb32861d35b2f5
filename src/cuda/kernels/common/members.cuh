/* Launches for several problems, the members of a group (NH_MEMBERS, runtime/cuda_group.c). The members' blocks follow
 * each other. A block looks for its member, copies the member's arguments to shared memory, and from there on works as
 * one of a launch for this member alone.
 *
 * Where kernels loop over work tiles, each member would have blocks for a whole wave, all of which prepare for the loop
 * and then find one to three work tiles. There (NH_DEALS) the work tiles of the members follow each other instead, and
 * the launch is one wave: each block gets a run of them with as many shares, and works for one member after the
 * other. */
#pragma once
#include "members_abi.h"

/* The blocks of this block's member or, if work tiles are dealt, those of its member that it computes; and the member's
 * tensor maps. */
struct nh_own_member {
    unsigned first_block, blocks;
    const char *maps;
};
__shared__ nh_own_member nh_own;

enum { NH_MAP_BYTES = 128 };
#define NH_DEALS (NH_MEMBERS == 3)

#define NH_OWN_BLOCK (NH_DEALS ? nh_own.first_block : blockIdx.x - nh_own.first_block)
#define NH_OWN_BLOCKS (NH_DEALS ? 1u : nh_own.blocks)
#define NH_PARAMETER(type) const __grid_constant__ nh_cuda_members nh_launch
/* 2: the members' lengths are data (lengths.cu), and the launch has the blocks of their bound. Those beyond the last
 * member's end here. */
#define NH_TAKE_MEMBER(type)                                                                                           \
    NH_BEGIN_BESIDE                                                                                                    \
    if (NH_MEMBERS == 2 && blockIdx.x >= nh_launch.member[nh_launch.members].first_block) return;                      \
    __shared__ type nh_own_args;                                                                                       \
    nh_take_member<0>(nh_launch, nh_member_of_block(nh_launch), &nh_own_args);                                         \
    const type &args = nh_own_args;
#define NH_PARAMETERS(type, maps_type) NH_PARAMETER(type)
#define NH_TAKE_MEMBER_AND_MAPS(type, maps_type)                                                                       \
    NH_BEGIN_BESIDE                                                                                                    \
    __shared__ type nh_own_args;                                                                                       \
    nh_take_member<sizeof(maps_type) / NH_MAP_BYTES>(nh_launch, nh_member_of_block(nh_launch), &nh_own_args);          \
    const type &args = nh_own_args;                                                                                    \
    const maps_type &maps = *(const maps_type *)nh_own.maps;
#define NH_FOR_MEMBERS(type, work)                                                                                     \
    NH_BEGIN_BESIDE                                                                                                    \
    __shared__ type nh_own_args;                                                                                       \
    nh_run_members<0>(nh_launch, nh_own_args, [&] { work(nh_own_args); });
#define NH_FOR_MEMBERS_WITH_MAPS(type, maps_type, work)                                                                \
    NH_BEGIN_BESIDE                                                                                                    \
    __shared__ type nh_own_args;                                                                                       \
    nh_run_members<sizeof(maps_type) / NH_MAP_BYTES>(nh_launch, nh_own_args,                                           \
                                                     [&] { work(nh_own_args, *(const maps_type *)nh_own.maps); });

/* The index of the member of a block or, if work tiles are dealt, of a share: the last one that begins there or
 * before it. All warps look for it. */
__device__ __forceinline__ int nh_member_of(const nh_cuda_members &members, unsigned block) {
    const int lane = (int)threadIdx.x % 32;
    int first = 0, left = members.members;
    while (left > 1) {
        const int step = (left + 31) / 32, at = lane * step;
        const bool begun = at < left && members.member[first + at].first_block <= block;
        const int last = (__popc(__ballot_sync(~0u, begun)) - 1) * step;
        first += last;
        left = min(step, left - last);
    }
    return first;
}

__device__ __forceinline__ int nh_member_of_block(const nh_cuda_members &members) {
    return nh_member_of(members, members.member[0].first_block + blockIdx.x);
}

/* A tensor's address in a member. added: what the arguments add to it. */
__device__ __forceinline__ long long nh_member_address(const nh_cuda_members &members, int member, int slot,
                                                       long long added) {
    if (!(members.used >> slot & 1)) return 0;
    const int index = __popc(members.used & ((1u << slot) - 1));
    const long long base = (long long)members.base[member * members.base_step + index];
    return base ? base + members.place[(long long)member * members.bases + index] + added : 0;
}

/* An earlier launch has written the map: the copy engine must not use what it remembers of it. */
template <int MAPS> __device__ __forceinline__ void nh_acquire_map(const char *map) {
    if constexpr (MAPS > 0) asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(map) : "memory");
}

/* Copies the arguments of a member, in words of 8 bytes, of which a tensor's address is the first. */
template <int MAPS, class Args>
__device__ __forceinline__ void nh_take_member(const nh_cuda_members &members, int at, Args *args) {
    enum { WORDS = sizeof(Args) / 8, TENSOR_WORDS = sizeof(nh_cuda_tensor) / 8 };
    static_assert(sizeof(Args) % 8 == 0 && sizeof(nh_cuda_tensor) % 8 == 0, "words of 8 bytes");
    const nh_cuda_member member = members.member[at];
    const char *maps = members.maps + (long long)at * (MAPS * NH_MAP_BYTES);
    const long long *from =
        (const long long *)(members.arguments + (long long)member.arguments * members.argument_bytes);
    for (int i = (int)threadIdx.x; i < WORDS; i += members.threads) {
        const int slot = i / TENSOR_WORDS;
        long long word = from[i];
        if (slot < NH_CUDA_TENSORS && i % TENSOR_WORDS == 0) word = nh_member_address(members, at, slot, word);
        ((long long *)args)[i] = word;
    }
    if ((int)threadIdx.x < MAPS) nh_acquire_map<MAPS>(maps + threadIdx.x * NH_MAP_BYTES);
    if (threadIdx.x == 0)
        nh_own = {member.first_block - members.member[0].first_block,
                  members.member[at + 1].first_block - member.first_block, maps};
    __syncthreads();
}

/* Where the block's run of work tiles begins among the shares of all members. */
__device__ __forceinline__ unsigned nh_run_begin(const nh_cuda_members &members, unsigned block) {
    const unsigned first = members.member[0].first_block, end = members.member[members.members].first_block;
    return first + (unsigned)((unsigned long long)(end - first) * block / gridDim.x);
}

/* The work tile that begins with one of a member's `shares`, or with the next one after it, out of so many. */
__device__ __forceinline__ unsigned nh_tile_at_share(unsigned share, unsigned shares, unsigned tiles) {
    return (unsigned)(((unsigned long long)share * tiles + shares - 1) / shares);
}

/* Takes the member to which `at` belongs, and sets which of its work tiles, from there on and before `end`, are this
 * block's. Returns whether there are any. at: set to where the next member begins. */
template <int MAPS, class Args>
__device__ __forceinline__ bool nh_take_work_tiles(const nh_cuda_members &members, unsigned &at, unsigned end,
                                                   Args *args) {
    const int member = nh_member_of(members, at);
    const unsigned first = members.member[member].first_block + NH_PREPARING_SHARES;
    const long long own = members.member[member].arguments;
    const unsigned tiles = ((const Args *)(members.arguments + own * members.argument_bytes))->tiling.work_tiles;
    const unsigned from = max(at, first) - first;
    at = members.member[member + 1].first_block;
    const unsigned begin = nh_tile_at_share(from, at - first, tiles);
    end = nh_tile_at_share(max(min(end, at), first) - first, at - first, tiles);
    if (begin == end) return false;
    nh_take_member<MAPS>(members, member, args);
    if (threadIdx.x == 0) {
        nh_own.first_block = begin;
        args->tiling.work_tiles = (int)end;
    }
    __syncthreads();
    return true;
}

/* Calls work() for the block's member or, if work tiles are dealt, for one member after the other. Where lengths are
 * data, blocks that no member needs end here. */
template <int MAPS, class Args, class Work>
__device__ __forceinline__ void nh_run_members(const nh_cuda_members &members, Args &args, const Work &work) {
    if constexpr (NH_DEALS) {
        const unsigned end = nh_run_begin(members, blockIdx.x + 1);
        for (unsigned at = nh_run_begin(members, blockIdx.x); at < end;) {
            if (!nh_take_work_tiles<MAPS>(members, at, end, &args)) continue;
            work();
            __syncthreads();
        }
    } else {
        if (NH_MEMBERS == 2 && blockIdx.x >= members.member[members.members].first_block) return;
        nh_take_member<MAPS>(members, nh_member_of_block(members), &args);
        work();
    }
}
