/* What the machine code of a CUDA kernel needs of a multiprocessor. */
#ifndef CUBIN_H
#define CUBIN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cubin_facts {
    int64_t registers; /* of a thread */
    /* of a thread: registers that were spilled, and arrays that are not in registers */
    int64_t stack_bytes;
    int64_t shared_bytes; /* of a block, static */
    int64_t instructions;
};

/* Reads the ELF file of one kernel. False if it is none. */
bool cubin_read(const void *code, size_t bytes, struct cubin_facts *facts);

/* The blocks that a multiprocessor holds at a time, and what limits their number: "registers", "shared memory", "warps" or
 * "blocks". arch: 90 for sm_90; 0 blocks if it is not known. multiprocessor_bytes: of shared memory. */
struct cubin_occupancy {
    int64_t blocks, warps, most_warps;
    const char *limit;
};
struct cubin_occupancy cubin_occupancy(const struct cubin_facts *facts, int arch, int64_t threads,
                                       int64_t dynamic_bytes, int64_t multiprocessor_bytes);

#endif
