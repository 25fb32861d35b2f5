/* A launch of cuda.small: one kernel with its configuration on a problem, and what it asks of a device. It is made in
 * four steps, each of which makes one out of that of the step before and leaves that as it is: the search takes many
 * from each. What config.pipeline says is decided by the third. */
#ifndef NH_SMALL_LAUNCH_H
#define NH_SMALL_LAUNCH_H

#include "small_config.h"
#include "solver.h"
#include "tile_count.h"
#include "work.h"

#include <string.h>

enum {
#define KNOB NH_KNOB_AS_INDEX
#include "small_knobs.def"
#undef KNOB
};

/* The smallest scale that the kernels take: the backward pass divides LSE by it, and a smaller one would also shrink
 * the additive mask until it hides nothing. */
#define NH_SMALL_LEAST_SCALE 1e-30

/* Which grids a launch is to serve. */
enum nh_small_serves {
    NH_SMALL_ONE,   /* that of the problem */
    NH_SMALL_GROUP, /* those of other lengths, too: boxes are as large as long axes need, and other members have launches of their own */
    /* all that a bound allows: boxes are as large as any legal length needs, and threads copy halos, as the lengths would change
     * tensor maps */
    NH_SMALL_ANY_LENGTH
};

/* What launches on a device, or of an operation, are to serve, by these members of struct nh_device. */
static inline enum nh_small_serves nh_small_serves_of(bool for_group, bool any_length) {
    return any_length ? NH_SMALL_ANY_LENGTH : for_group ? NH_SMALL_GROUP : NH_SMALL_ONE;
}

struct nh_small_launch {
    const struct nh_problem *problem;
    const struct nh_cuda_device *cuda;
    enum nh_small_serves serves;
    struct small_config config;    /* without layouts of tensor maps, which plans set */
    double work_tiles, warp_tiles; /* of the whole problem, per batch entry and head */
};

/* Whether rows are keys and columns queries, else the other way round; blocks own rows. */
static inline bool nh_small_by_keys(const struct nh_small_launch *launch) {
    return launch->config.pass == SMALL_BY_KEY;
}

/* Whether the kernel is to serve grids of other lengths, too. */
static inline bool nh_small_is_grouped(const struct nh_small_launch *launch) {
    return launch->serves != NH_SMALL_ONE;
}

/* Whether the copy engine fetches halos. */
static inline bool nh_small_fetches(const struct nh_small_launch *launch) {
    return launch->config.pipeline >= SMALL_BOXES;
}

/* Whether tensors do not cover the grid, or an axis is periodic: NH_REGIONS of the kernels. */
static inline bool nh_small_has_region(const struct nh_problem *problem) {
    return nh_problem_cut(problem);
}

/* Whether a work tile is a plane of a volume, for halos that roll only: slots are planes (small_roll.cuh). */
static inline bool nh_small_is_plane(const struct nh_problem *problem, const int32_t *work_tile) {
    return problem->rank == 3 && work_tile[0] == 1;
}

/* A pair is a work tile of two planes, 2 x 8 x 4 queries. Like planes, it needs a halo that rolls. */
#define NH_SMALL_PAIR 2, 8, 4
static inline bool nh_small_is_pair(const int32_t *work_tile) {
    const int32_t pair[NH_AXES] = {NH_SMALL_PAIR};
    return !memcmp(work_tile, pair, sizeof pair);
}

/* Whether work tiles of this shape are considered only if their halos roll. */
static inline bool nh_small_must_roll(const struct nh_problem *problem, const int32_t *work_tile) {
    return nh_small_is_plane(problem, work_tile) || nh_small_is_pair(work_tile);
}

/* Extents of a work tile and a warp tile in rows. */
struct nh_small_boxes {
    int32_t work_tile[NH_AXES], warp_tile[NH_AXES];
};

/* ---- small_shape.c ---- */

/* The problem as a launch for a group sees it: in 2-D perhaps with its axes exchanged, if they are alike but for their length and
 * work tiles then have fewer rows in all that do not exist. `problem` itself or `room`. Only extents and strides change. */
const struct nh_problem *nh_small_turned(const struct nh_problem *problem,
                                         enum nh_small_serves serves, const int32_t *value,
                                         struct nh_problem *room);

/* The first step: what the problem alone says. */
struct nh_small_launch nh_small_begin(const struct nh_problem *problem,
                                      const struct nh_cuda_device *cuda, enum small_pass pass);

/* The second step: boxes, for halos that threads copy (SMALL_COPIES, SMALL_TURNS) or the copy engine fetches
 * (SMALL_BOXES). False if the halo exceeds any shared memory. The copy engine leaves no gaps: columns are added to
 * lines, and lines to planes, until consecutive columns of a warp tile's box are consecutive rows modulo 8. */
bool nh_small_with_boxes(const struct nh_small_launch *begun, const struct nh_small_boxes *boxes,
                         enum small_pipeline pipeline, struct nh_small_launch *launch);

/* Sets work_tiles and warp_tiles, which the second step does. */
void nh_small_count_tiles(struct nh_small_launch *launch);

/* The length of an axis as far as the configurations of a config's launches for a group follow from it: those of a long axis without
 * steps or dilation do not depend on how long it is. Lengths for which this is equal have the same ones, all else being equal. */
int64_t nh_small_telling_length(const struct nh_problem *problem, int axis, const int32_t *value);

/* The third step: stages of the copy engine, if it fetches; the halo rolls if it can. */
struct nh_small_launch nh_small_with_stages(const struct nh_small_launch *boxed, int32_t stages);

/* Whether halos roll in a launch for a group: as far as lengths and batch do not decide it, so for all members that
 * such a launch serves. An axis may still be too short, or need more slots than others: such a member has no launch of this config. */
bool nh_small_group_rolls(const struct nh_small_launch *launch);

/* Whether a launch for a group lacks the rolling halo that its config has. */
static inline bool nh_small_cannot_roll(const struct nh_small_launch *launch) {
    return nh_small_is_grouped(launch) && !launch->config.slots && nh_small_group_rolls(launch);
}

/* Whether a launch for many members may be this one: the maps of lines around a periodic axis get no address on the device. */
static inline bool nh_small_hosts(const struct nh_small_launch *launch) {
    return !launch->config.seam_lines;
}

/* Whether every query sees a full window of keys along the axis, all of which are in the tensors. */
bool nh_small_sees_windows(const struct nh_axis *axis);

/* Whether windows of an axis too long to look at all of a table move on by a key from query to query, but for being cut at the ends:
 * then what rows see is known without looking. */
static inline bool nh_small_slides(const struct nh_axis *axis) {
    return axis->windows.kind == NHOOD_WINDOWS_CUT && !nh_listed_exactly(axis);
}

/* ---- small_masks.c ---- */

/* How the launch's scores are masked, if not every row sees all columns of its warp tile's box. */
enum small_mask nh_small_mask_of(const struct nh_small_launch *launch);

/* ---- small_work.c ---- */

/* The last step: the warps that compute and, with them, producer warps and blocks per multiprocessor
 * (config.min_blocks). 0 of these: not even one fits. */
struct nh_small_launch nh_small_with_warps(const struct nh_small_launch *staged, int32_t warps);

/* The warp tiles of a work tile on average, with those that do not exist for what they take. */
double nh_small_counted_tiles(const struct nh_small_launch *launch);

/* Adds the work of the launch; false: not even one block fits. */
bool nh_small_add_work(const struct nh_small_launch *launch, struct nh_work *work);

/* ---- small_choice.c ---- */

/* The launches of a problem: that of the forward, or those of the backward by queries and by keys. */
enum { NH_SMALL_LAUNCHES = 2 };
static inline int nh_small_launches(const struct nh_problem *problem) {
    return problem->op == NHOOD_OP_FWD ? 1 : NH_SMALL_LAUNCHES;
}

/* The launches of a config's knobs. Where there is none, its config.min_blocks is 0: no block fits, or the halo exceeds shared memory,
 * or is to roll in a launch for a group and cannot on this grid. */
void nh_small_launches_of(const struct nh_problem *problem, const struct nh_cuda_device *cuda,
                          const int32_t *value, enum nh_small_serves serves,
                          struct nh_small_launch launch[NH_SMALL_LAUNCHES]);

/* Tensors of rows, as bits. */
#define NH_SMALL_ROWS                                                                              \
    (NH_BIT(Q) | NH_BIT(K) | NH_BIT(V) | NH_BIT(O) | NH_BIT(D_O) | NH_BIT(D_Q) | NH_BIT(D_K) |     \
     NH_BIT(D_V))

/* Whether the copy engine can serve the problem at all. */
bool nh_small_boxes_possible(const struct nh_problem *problem, const struct nh_device *device);

/* Whether a launch that the copy engine serves fits its boxes, and warps suit query heads that share keys: configs of other
 * problems, by wisdom or in a group, need not. */
bool nh_small_can_run(const struct nh_small_launch *launch);

/* Whether some launch of each kernel fits, all with the same warp tile. */
bool nh_small_fits(const struct nh_problem *problem, const struct nh_device *device);

/* `candidates` of the solver: the launches that are worth trying, as configs. Returns 0 if nothing fits. */
int nh_small_candidates(const struct nh_problem *problem, const struct nh_device *device,
                        struct nh_config *config, int capacity);

#endif
