/* What the launch that reads the members' lengths on the device (kernels/common/lengths.cu) is handed: compiled by the host and by
 * NVRTC alike, as kernel_abi.h. */
#ifndef NH_LENGTHS_ABI_H
#define NH_LENGTHS_ABI_H

#include "members_abi.h"

/* How many blocks along x a launch has for any lengths of its axes. Neither rows nor tile: only for those that it was made for. */
struct nh_cuda_blocks {
    /* of queries or of keys */
    long long heads;
    /* rows of a block, which go through all tokens and heads; or 0 */
    int rows;
    /* or extents of a block's tile, which lie in one dilation group and one head */
    int tile[3];
    /* so many tiles of a block, which loops over the member's work tiles; 0: one, without a loop */
    int loop;
};

/* A step whose tables are written. In the plan's memory. */
struct nh_cuda_bounded_step {
    struct nh_cuda_blocks blocks;
    /* In the plan's memory: the arguments of a member of one token. As nh_cuda_members.arguments, but that all strides of axes are
     * those from a token to the next, and lengths those of the bound. Kernels with a loop have struct nh_cuda_tiling behind the
     * shared part. */
    long long arguments;
    /* in the workspace: what nh_cuda_members points to */
    long long to_arguments, to_member, to_place;
    int bases;
    /* whether the arguments have regions after the shared part */
    int regions;
    /* of each base: bytes from a token to the next */
    long long token_bytes[NH_CUDA_TENSORS];
};

/* An output, whose tokens behind the last member are set. */
struct nh_cuda_rest {
    char *data; /* NULL: it is not wanted */
    long long token_bytes, head_bytes, heads, width;
    int element_bytes, reserved;
    /* the bits of an element: of a token of no member; of one whose member is not legal, or behind such a one */
    unsigned long long none, illegal;
};

enum { NH_REST_TENSORS = 3, NH_BOUNDED_STEPS = 16 };

struct nh_cuda_lengths {
    /* [members, rank], integers of length_bytes */
    const void *lengths;
    const struct nh_cuda_bounded_step *step;
    const char *memory; /* the plan's */
    char *workspace;
    long long tokens;            /* of the tensors */
    struct nh_cuda_axis axis[3]; /* with the longest lengths */
    long long least[3];
    int length_bytes, rank, members, steps, argument_bytes;
    int periodic; /* bits, by axis */
    int clamps;   /* 1: windows of short axes are clamped (NHOOD_FLAG_CLAMP_WINDOW) */
    /* blocks that write tables; those after them set the rest of the outputs */
    int table_blocks;
    struct nh_cuda_rest rest[NH_REST_TENSORS];
};

/* A block has this many threads, and writes the tables of one member with each of its warps. */
enum { NH_LENGTHS_THREADS = 128, NH_LENGTHS_MEMBERS = NH_LENGTHS_THREADS / 32 };

#endif
