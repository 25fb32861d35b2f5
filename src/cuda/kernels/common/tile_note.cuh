/* For tests: with NH_NOTED, the room for loop tiles per work tile, a kernel notes in a table of the workspace which
 * pairs of tiles it multiplies, and which of these it masks. Without it, no code is left. */
#pragma once
#include "kernel_abi.h"

#ifndef NH_NOTED
#define NH_NOTED 0
#endif

/* Called by one thread of each share of a block that decides alone whether to mask; one of them has `counts` set. The
 * upper bit of an entry says that one masked, the others count how often the tile was multiplied. */
__device__ __forceinline__ void nh_note_tile(const nh_cuda_args &args, int work_tile, int tile, bool counts,
                                             bool masked) {
#if NH_NOTED
    unsigned *entry = (unsigned *)args.tensor[NH_NOTES].data + (long long)work_tile * NH_NOTED + tile;
    if (tile >= NH_NOTED) return;
    if (counts) atomicAdd(entry, 1u);
    if (masked) atomicOr(entry, 1u << 31);
#endif
}
