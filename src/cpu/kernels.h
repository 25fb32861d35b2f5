/* The kernels: a table for each instruction set and real type. */
#ifndef NH_KERNELS_H
#define NH_KERNELS_H

#include "geometry.h"
#include "interruption.h"
#include "norm_rope.h"

/* The work tiles of a pass, which are the tiles of each unit; a unit is one batch entry and kv head. A backward pass runs in
 * rounds of a few units, because every tile keeps its own partial gradients of the keys in its halo until they are added
 * up. That happens in a fixed order, so that results depend on neither threads nor rounds. */
struct nh_tile_run {
    const struct nh_geometry *geometry;
    const nhood_io *io;
    struct nh_interruption
        *call;     /* whose end a tile looks for before each block; NULL if it cannot come */
    void *scratch; /* one per worker */
    int64_t scratch_reals;
    void *bias;    /* bias tables as reals */
    void *d_bias;  /* running sums of their gradients */
    void *partial; /* partial gradients: of each tile of the round, or of each worker */
    int64_t partial_reals;
    bool partial_of_worker;
    int64_t first_unit, units;
};

/* A pass of RMS norm and rotary positions. It is divided into parts of part_tokens tokens. */
struct nh_norm_rope_run {
    const struct nh_norm_rope *problem;
    const nhood_norm_rope_io *io;
    void *scratch; /* one per worker */
    int64_t scratch_reals, part_tokens;
    double *sums; /* weight gradients [part][channels]; NULL if they are not wanted */
};

/* The template of src/cpu/isa, compiled for one instruction set and one real type (f64 problems use f64, others f32), or the
 * matrix kernels. */
struct nh_tile_kernels {
    int32_t lanes;       /* reals per vector */
    int32_t most_rows;   /* query vectors per block */
    int32_t band_budget; /* most accumulators of the band kernel: outputs times vectors of a row */
    int32_t single_outputs; /* most outputs of a band whose rows are one vector */
    bool one_place; /* axes are not folded: queries of a vector have one place on the others */
    /* scratch of one worker for a geometry, in reals */
    int64_t (*scratch_reals)(const struct nh_geometry *geometry);
    /* Computes one work tile: a tile of one batch entry and kv head, with every query head of the group. */
    void (*tile)(const struct nh_tile_run *run, int64_t item, int32_t worker);
    /* size of one tile's partial gradients in reals; 0 for passes without them */
    int64_t (*partial_reals)(const struct nh_geometry *geometry);
    /* Adds up partial gradients after a round: jobs [0, reduce_jobs), independent of each other. */
    int64_t (*reduce_jobs)(const struct nh_tile_run *run);
    void (*reduce)(const struct nh_tile_run *run, int64_t job, int32_t worker);
    /* Reads the bias tables before the first round, stores their gradient after the last. */
    void (*begin)(const struct nh_tile_run *run);
    void (*finish)(const struct nh_tile_run *run);
    /* For nhood_device_measure: computes multiply-adds in registers, and returns their number. */
    int64_t (*multiply_add)(int64_t rounds);
    /* RMS norm and rotary positions: the scratch of one worker in reals, and the pass over one part. NULL where those of a
     * lesser instruction set suffice, which keeps the library below 2 MB: with AVX-512, as memory is the limit, and for f64
     * with AVX2, as f64 is for checks of gradients. */
    int64_t (*norm_rope_reals)(const struct nh_norm_rope *problem);
    void (*norm_rope)(const struct nh_norm_rope_run *run, int64_t part, int32_t worker);
};

/* Heads of a batch entry that a round covers. Work tiles are numbered by heads first, then by tiles, then by batch entries,
 * because the heads of a tile lie side by side in memory. */
static inline int64_t nh_round_heads(const struct nh_tile_run *run) {
    return nh_min(run->units, run->geometry->problem.kv_heads);
}

/* The number of a unit's tile among the work tiles of the round. */
static inline int64_t nh_round_item(const struct nh_tile_run *run, int64_t unit, int64_t tile) {
    int64_t heads = nh_round_heads(run);
    return (unit / heads * run->geometry->tiles + tile) * heads + unit % heads;
}

struct nh_kernels {
    const char *name; /* "generic", "avx2", "avx512", "amx", "neon", "sve256", "sve512" */
    const struct nh_tile_kernels *f32, *f64;
    const struct nh_tile_kernels
        *bf16; /* for the forwards that nh_tiled_kernels selects; NULL: none */
};

extern const struct nh_tile_kernels nh_tile_generic_f32, nh_tile_generic_f64;
extern const struct nh_tile_kernels nh_tile_avx2_f32, nh_tile_avx2_f64;
extern const struct nh_tile_kernels nh_tile_avx512_f32, nh_tile_avx512_f64;
extern const struct nh_tile_kernels nh_tile_neon_f32, nh_tile_neon_f64;
extern const struct nh_tile_kernels nh_tile_sve256_f32, nh_tile_sve512_f32;
extern const struct nh_tile_kernels nh_matrix_avx512_bf16;

#endif
