/* What a launch for several problems, the members of a group, hands to its kernel (NH_MEMBERS; kernels/common/members.cuh):
 * compiled by the host and by NVRTC alike, as kernel_abi.h. */
#ifndef NH_MEMBERS_ABI_H
#define NH_MEMBERS_ABI_H

#include "kernel_abi.h"

/* Addresses that a launch has room for: a kernel's parameters are at most 4 KiB. */
enum { NH_MEMBER_BASES = 500 };

/* Where work tiles are dealt out to blocks, each block gets as many shares. A full work tile is NH_TILE_SHARES, and one at the end of
 * an axis less. Getting ready for a member counts as two work tiles: it takes 5.3 us, and a work tile 2.3 (cuda.small, 32 images of
 * 14x14 to 64x64, windows of 7x7, H200: 279 us by 3,960 blocks of one or two work tiles, 139 by 132 blocks that take 58 each). */
enum { NH_TILE_SHARES = 16, NH_PREPARING_SHARES = 2 * NH_TILE_SHARES };

/* A member's blocks or, where work tiles are dealt out, NH_PREPARING_SHARES and the shares of its work tiles, which are equal within
 * a member, follow those of the members before it. One more entry stands for the end of the last member. */
struct nh_cuda_member {
    unsigned first_block; /* or the first share */
    /* which of the arguments it has; members with equal problems share them */
    int arguments;
};

struct nh_cuda_members {
    /* In the plan's memory on the device: the kernel's struct of arguments, once for each different problem, `argument_bytes`
     * apart. In place of a tensor's address it has an offset from its base. */
    const char *arguments;
    /* the launch's first member */
    const struct nh_cuda_member *member;
    /* `bases` offsets for each member, which are added, too: where it begins in packed tensors and in the workspace */
    const long long *place;
    /* the tensor maps of each member, which an earlier launch has written */
    const char *maps;
    int members, argument_bytes, threads;
    /* The tensors that are used, as bits 1 << NH_Q .., and how many these are. Bases and places are in their order. */
    unsigned used;
    int bases;
    /* from a member's bases to the next one's: `bases`, or 0 where all members have the same, which are packed tensors */
    int base_step;
    /* 0: the tensor is not given */
    unsigned long long base[NH_MEMBER_BASES];
};

/* A tensor map of a member, which lacks an address. */
struct nh_cuda_member_map {
    unsigned long long map[16];
    /* added to the tensor's base; of members in packed tensors, and of those with tensors of their own */
    long long place[2];
    /* where it goes, from `to` on */
    long long at;
    /* which of the bases is the tensor's; and the member, counted from the first one of the batch */
    int base, member;
};

/* What kernels/sm90/member_maps.cu is handed. */
struct nh_cuda_member_maps {
    const struct nh_cuda_member_map *map; /* one for each block */
    char *to;                             /* in the workspace */
    int apart; /* 0: packed tensors, 1: each member has bases of its own */
    int bases, first_member;
    unsigned long long base[NH_MEMBER_BASES];
};

#endif
