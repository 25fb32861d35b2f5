/* The counting build, for tests: with NH_NOTED, the room for so many loop tiles per work tile, a kernel notes in a
 * table of the workspace which pairs of tiles it multiplies and which of them it masks. Without it, nothing of it is
 * left. */
#pragma once
#include "kernel_abi.h"

#ifndef NH_NOTED
#define NH_NOTED 0
#endif

/* By one thread of every part of a block that decides on its own whether to mask; one of the parts `counts`. The upper
 * bit of an entry says that some part masked, the others how often the tile was met. */
__device__ __forceinline__ void nh_note_tile(const nh_cuda_args &args, int work_tile, int tile, bool counts,
                                             bool masked) {
#if NH_NOTED
    unsigned *entry = (unsigned *)args.tensor[NH_NOTES].data + (long long)work_tile * NH_NOTED + tile;
    if (tile >= NH_NOTED) return;
    if (counts) atomicAdd(entry, 1u);
    if (masked) atomicOr(entry, 1u << 31);
#endif
}
