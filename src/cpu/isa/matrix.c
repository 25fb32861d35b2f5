/* bf16 problems on machines with tile registers (AMX), forward and backward. The AVX-512 f32 kernels compute the work tiles whose
 * results, or in the backward inputs, are not finite, and those for which tile products are not accurate enough. */
#include "matrix_backward.h"
#include "matrix_forward.h"

#include "band.h"

#define F32_NAME(isa) F32_NAME_OF(isa)
#define F32_NAME_OF(isa) nh_tile_##isa##_f32
#define TABLE_NAME(isa) TABLE_NAME_OF(isa)
#define TABLE_NAME_OF(isa) nh_matrix_##isa##_bf16

static const struct nh_tile_kernels *const f32_kernels = &F32_NAME(NH_ISA_NAME);

static int64_t scratch_reals(const struct nh_geometry *geometry) {
    struct matrix_scratch scratch;
    return nh_max(matrix_layout(geometry, NULL, &scratch), f32_kernels->scratch_reals(geometry));
}

/* The column for the tile's first key with which the columns of most vectors begin a cache line. It is chosen by the second
 * vector, as the first may be at a border. */
static int32_t choose_shift(const struct tile *tile) {
    const int32_t *first = &tile->geometry->tile_vector[tile->box.index[2]];
    const struct nh_vector *vector =
        &tile->geometry->vector[first[1] - first[0] > 1 ? first[0] + 1 : first[0]];
    return (tile->box.key[2] - vector->start) & 15;
}

/* Visits the blocks of all query heads, until some number is not finite. */
static void each_head(struct matrix *m, matrix_block_fn *visit) {
    for (int64_t i = 0; i < m->tile.group && !m->not_finite; i++) {
        m->tile.head = m->tile.box.kv_head * m->tile.group + i;
        each_matrix_block(m, visit);
    }
}

static void tile_run(const struct nh_tile_run *run, int64_t item, int32_t worker) {
    struct matrix m;
    tile_set(run, item, worker, &m.tile);
    matrix_layout(run->geometry, (real *)run->scratch + worker * run->scratch_reals, &m.s);
    const bool backward = run->geometry->problem.op == NHOOD_OP_BWD;
    m.shift = backward ? 0 : choose_shift(&m.tile);
    m.is_short = !backward && run->geometry->order[2].window <= SHORT_WINDOW;
    m.not_finite = false;
    m.offset[0] = -1;
    if (backward) {
        m.tile.scratch.filled_k = m.s.filled_k;
        m.tile.scratch.filled_v = m.s.filled_v;
        clear_partial_rest(&m.tile);
    }
    tile_open();
    if (!run->geometry->rolling)
        matrix_pack_keys(&m, m.tile.box.key[1], m.tile.box.key[1] + m.tile.box.keys[1]);
    matrix_pack_extra(&m); /* the backward takes none */
    each_head(&m, backward ? backward_block : forward_block);
    if (backward && !m.not_finite) store_last_key_rows(&m.tile);
    tile_close();
    if (m.not_finite) f32_kernels->tile(run, item, worker);
}

static int64_t partial_of(const struct nh_geometry *geometry) {
    return f32_kernels->partial_reals(geometry);
}

static int64_t reduce_jobs(const struct nh_tile_run *run) {
    return f32_kernels->reduce_jobs(run);
}

static void reduce(const struct nh_tile_run *run, int64_t job, int32_t worker) {
    f32_kernels->reduce(run, job, worker);
}

static void begin(const struct nh_tile_run *run) {
    f32_kernels->begin(run);
}

static void finish(const struct nh_tile_run *run) {
    f32_kernels->finish(run);
}

/* Geometries are those of the f32 kernels, except that axes are not folded. */
const struct nh_tile_kernels TABLE_NAME(NH_ISA_NAME) = {
    .lanes = VL,
    .most_rows = DOT_ROWS,
    .band_budget = BAND_BUDGET,
    .single_outputs = SINGLE_OUTPUTS,
    .one_place = true,
    .scratch_reals = scratch_reals,
    .tile = tile_run,
    .partial_reals = partial_of,
    .reduce_jobs = reduce_jobs,
    .reduce = reduce,
    .begin = begin,
    .finish = finish,
};
