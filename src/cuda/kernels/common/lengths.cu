/* Makes the tables of a launch for several members (members.cuh) from the members' lengths, which are data: how many
 * blocks each has in every step, where it begins in packed tensors, and its arguments. And sets what outputs have
 * behind the last member. The launches behind this one have the blocks of the bound; those that no member needs end
 * at once.
 *
 * A member whose lengths are not legal, or that ends behind the tensors, has no blocks, nor have those behind it.
 *
 * Every block adds up the lengths of all members before its own: a chunk of members at a time, one of each thread. */
#include "lengths_abi.h"

#define NH_DEVICE static __device__ __forceinline__

/* A member's axes as its kernels get them. */
struct nh_member_axes {
    nh_cuda_axis axis[3];
    long long tokens;
};

NH_DEVICE long long nh_read_length(const nh_cuda_lengths &p, long long at) {
    return p.length_bytes == 4 ? (long long)((const int *)p.lengths)[at] : ((const long long *)p.lengths)[at];
}

/* Makes an axis that of a member with another length. */
NH_DEVICE void nh_set_length(nh_cuda_axis &axis, long long length, bool clamps) {
    axis.length = length;
    if (!clamps || (axis.dilation <= length && axis.window <= length / axis.dilation)) return;
    axis.window = axis.dilation < length ? length / axis.dilation : 1;
    if (axis.stride > axis.window) axis.stride = axis.window;
    if (axis.dilation > length) axis.dilation = length;
}

/* Reads the lengths of a member. False if they are not legal; all 0 are no tokens. */
NH_DEVICE bool nh_read_member(const nh_cuda_lengths &p, int member, nh_member_axes &read) {
    bool legal = true, none = true;
    read.tokens = 1;
    for (int a = 0; a < 3; a++) {
        const bool own = a >= 3 - p.rank;
        const long long length = own ? nh_read_length(p, (long long)member * p.rank + a - (3 - p.rank)) : 1;
        read.axis[a] = p.axis[a];
        none = none && (!own || length == 0);
        legal = legal && length >= p.least[a] && length <= p.axis[a].length;
        if (!legal) continue;
        nh_set_length(read.axis[a], length, p.clamps);
        if (p.periodic >> a & 1)
            legal = length % read.axis[a].dilation == 0 && length / read.axis[a].dilation % read.axis[a].stride == 0;
        read.tokens *= length;
    }
    if (none || !legal || read.tokens > p.tokens) read.tokens = 0;
    return none || (legal && read.tokens > 0);
}

/* Both are positive. A division of 64 bits takes some hundred instructions. */
NH_DEVICE long long nh_ceil_div(long long number, long long by) {
    const long long above = number + by - 1;
    return (above | by) >> 32 ? above / by : (unsigned)above / (unsigned)by;
}

/* The tiles of a dilation group of a member along an axis. */
NH_DEVICE long long nh_tiles_of(const nh_cuda_blocks &blocks, const nh_cuda_axis &axis, int a) {
    return nh_ceil_div(nh_ceil_div(axis.length, axis.dilation), blocks.tile[a]);
}

NH_DEVICE long long nh_work_tiles_of(const nh_cuda_blocks &blocks, const nh_member_axes &member) {
    long long tiles = blocks.heads;
    for (int a = 0; a < 3; a++)
        tiles *= member.axis[a].dilation * nh_tiles_of(blocks, member.axis[a], a);
    return tiles;
}

/* The blocks of a member in a launch. */
NH_DEVICE long long nh_blocks_of(const nh_cuda_blocks &blocks, const nh_member_axes &member) {
    if (member.tokens == 0) return 0;
    if (blocks.rows) return nh_ceil_div(blocks.heads * member.tokens, blocks.rows);
    const long long tiles = nh_work_tiles_of(blocks, member);
    return blocks.loop ? nh_ceil_div(tiles, blocks.loop) : tiles;
}

/* Adds up what the threads have: each gets the sum up to its own, and *total is that of all. Called by the whole
 * block. */
NH_DEVICE long long nh_sum_up(long long own, long long *total) {
    enum { WARPS = NH_LENGTHS_THREADS / 32 };
    __shared__ long long sum[WARPS];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    for (int step = 1; step < 32; step *= 2) {
        const long long before = __shfl_sync(~0u, own, (lane - step) & 31);
        if (lane >= step) own += before;
    }
    __syncthreads(); /* the sums of the call before have been read */
    if (lane == 31) sum[warp] = own;
    __syncthreads();
    *total = 0;
    for (int i = 0; i < WARPS; i++) {
        if (i < warp) own += sum[i];
        *total += sum[i];
    }
    return own;
}

/* Where a member begins: the tokens before it, and in every step the blocks. */
struct nh_begin {
    long long tokens, block[NH_BOUNDED_STEPS];
};

/* The beginnings of the block's own members and, after the last, of what comes behind all that were looked at. */
struct nh_begins {
    nh_begin own[NH_LENGTHS_MEMBERS], end;
    int illegal; /* 1: some member that was looked at is not legal, or ends behind the tensors */
};

/* Looks at the members [0, end), of which [first, end) are the block's own. Called by the whole block. */
NH_DEVICE void nh_find_begins(const nh_cuda_lengths &p, int first, int end, nh_begins &begins) {
    const int thread = (int)threadIdx.x;
    if (thread == 0) begins = {};
    __syncthreads();
    for (int chunk = 0; chunk < end; chunk += NH_LENGTHS_THREADS) {
        const int member = chunk + thread;
        const bool looks = member < end, own = looks && member >= first;
        nh_member_axes read = {};
        long long bad = looks && !nh_read_member(p, member, read), tokens, total, bads;
        const bool after_bad = nh_sum_up(bad, &bads) > 0 || begins.illegal;
        tokens = begins.end.tokens; /* read ahead of the sum, whose end all threads wait for */
        tokens += nh_sum_up(read.tokens, &total);
        bad = looks && (after_bad || tokens > p.tokens);
        nh_sum_up(bad, &bads);
        if (bad) read.tokens = 0;
        if (own) begins.own[member - first].tokens = tokens - read.tokens;
        nh_sum_up(read.tokens, &total);
        __syncthreads();
        if (thread == 0) {
            begins.end.tokens += total;
            begins.illegal |= bads > 0;
        }
        for (int s = 0; s < p.steps; s++) {
            const long long blocks = nh_blocks_of(p.step[s].blocks, read);
            const long long before = begins.end.block[s], up_to = nh_sum_up(blocks, &total);
            if (own) begins.own[member - first].block[s] = before + up_to - blocks;
            if (thread == 0) begins.end.block[s] += total;
        }
        __syncthreads();
    }
}

/* Writes a member's arguments in a step; called by a warp. */
NH_DEVICE void nh_write_arguments(const nh_cuda_lengths &p, const nh_cuda_bounded_step &step, int member,
                                  const nh_member_axes &own) {
    const int lane = (int)threadIdx.x % 32;
    const char *from = p.memory + step.arguments;
    char *to = p.workspace + step.to_arguments + (long long)member * p.argument_bytes;
    const long long *__restrict__ words = (const long long *)from;
    long long *__restrict__ own_words = (long long *)to;
    _Pragma("unroll 4") for (int i = lane; i < p.argument_bytes / 8; i += 32) /* several loads at a time */
        own_words[i] = words[i];
    __syncwarp();
    const nh_cuda_args *shared = (const nh_cuda_args *)from;
    nh_cuda_args *args = (nh_cuda_args *)to;
    if (lane < NH_CUDA_TENSORS) {
        const long long line = own.axis[2].length, plane = own.axis[1].length * line;
        args->tensor[lane].axis[1] = shared->tensor[lane].axis[1] * line;
        args->tensor[lane].axis[0] = shared->tensor[lane].axis[0] * plane;
    }
    if (lane < 3) args->axis[lane] = own.axis[lane];
    if (lane == 3) args->window_count = own.axis[0].window * own.axis[1].window * own.axis[2].window;
    nh_cuda_region *const region = (nh_cuda_region *)(args + 1);
    if (lane < 3 && step.regions) {
        const nh_cuda_box whole = {0, own.axis[lane].length};
        region[lane] = {whole, whole};
    }
    if (step.blocks.loop) {
        nh_cuda_tiling &tiling = *(nh_cuda_tiling *)(step.regions ? (void *)(region + 3) : region);
        if (lane < 3) tiling.tiles[lane] = (int)nh_tiles_of(step.blocks, own.axis[lane], lane);
        if (lane == 3) tiling.work_tiles = own.tokens ? (int)nh_work_tiles_of(step.blocks, own) : 0;
    }
}

/* Writes a member's entries in the tables of all steps; called by a warp. */
NH_DEVICE void nh_write_member(const nh_cuda_lengths &p, int member, const nh_begin &begin) {
    const int lane = (int)threadIdx.x % 32;
    nh_member_axes own;
    nh_read_member(p, member, own);
    for (int s = 0; s < p.steps; s++) {
        const nh_cuda_bounded_step &step = p.step[s];
        if (lane == 0) ((nh_cuda_member *)(p.workspace + step.to_member))[member] = {(unsigned)begin.block[s], member};
        if (lane < step.bases)
            ((long long *)(p.workspace + step.to_place))[(long long)member * step.bases + lane] =
                begin.tokens * step.token_bytes[lane];
        nh_write_arguments(p, step, member, own);
    }
}

/* The end of all members in the tables; called by the whole block. */
NH_DEVICE void nh_write_end(const nh_cuda_lengths &p, const nh_begin &end) {
    const int s = (int)threadIdx.x;
    if (s < p.steps)
        ((nh_cuda_member *)(p.workspace + p.step[s].to_member))[p.members] = {(unsigned)end.block[s], p.members};
}

NH_DEVICE void nh_set_element(char *to, int bytes, unsigned long long bits) {
    if (bytes == 2) *(unsigned short *)to = (unsigned short)bits;
    if (bytes == 4) *(unsigned *)to = (unsigned)bits;
    if (bytes == 8) *(unsigned long long *)to = bits;
}

/* Sets an output's tokens from `first` on. A warp sets a token's row of one head at a time. */
NH_DEVICE void nh_set_rest(const nh_cuda_lengths &p, const nh_cuda_rest &rest, long long first, bool illegal) {
    const int lane = (int)threadIdx.x % 32, warps = NH_LENGTHS_THREADS / 32;
    const long long rows = (p.tokens - first) * rest.heads;
    const long long step = (long long)(gridDim.x - p.table_blocks) * warps;
    if (!rest.data) return;
    for (long long row = (long long)(blockIdx.x - p.table_blocks) * warps + threadIdx.x / 32; row < rows; row += step) {
        char *to = rest.data + (first + row / rest.heads) * rest.token_bytes + row % rest.heads * rest.head_bytes;
        for (long long column = lane; column < rest.width; column += 32)
            nh_set_element(to + column * rest.element_bytes, rest.element_bytes, illegal ? rest.illegal : rest.none);
    }
}

extern "C" __global__ void __launch_bounds__(NH_LENGTHS_THREADS) lengths(const __grid_constant__ nh_cuda_lengths p) {
    __shared__ nh_begins begins;
    const bool writes = (int)blockIdx.x < p.table_blocks;
    const int first = (int)blockIdx.x * NH_LENGTHS_MEMBERS, behind = first + NH_LENGTHS_MEMBERS;
    const int end = writes && behind < p.members ? behind : p.members;
    nh_find_begins(p, writes ? first : end, end, begins);
    if (!writes) {
        for (int i = 0; i < NH_REST_TENSORS; i++)
            nh_set_rest(p, p.rest[i], begins.end.tokens, begins.illegal);
        return;
    }
    const int own = (int)threadIdx.x / 32;
    if (first + own < end) nh_write_member(p, first + own, begins.own[own]);
    if (end == p.members) nh_write_end(p, begins.end);
}
