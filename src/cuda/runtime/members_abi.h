/* What a launch for several problems, the members of a group, hands to its kernel (NH_MEMBERS; kernels/common/members.cuh):
 * compiled by the host and by NVRTC alike, as kernel_abi.h. */
#ifndef NH_MEMBERS_ABI_H
#define NH_MEMBERS_ABI_H

#include "kernel_abi.h"

/* Addresses that a launch has room for: a kernel's parameters are at most 4 KiB. */
enum { NH_MEMBER_BASES = 500 };

/* A member's blocks follow those of the members before it. One more entry stands for the end of the last member. */
struct nh_cuda_member {
    unsigned first_block;
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
    int members, argument_bytes, threads;
    /* The tensors that are used, as bits 1 << NH_Q .., and how many these are. Bases and places are in their order. */
    unsigned used;
    int bases;
    /* from a member's bases to the next one's: `bases`, or 0 where all members have the same, which are packed tensors */
    int base_step;
    /* 0: the tensor is not given */
    unsigned long long base[NH_MEMBER_BASES];
};

#endif
