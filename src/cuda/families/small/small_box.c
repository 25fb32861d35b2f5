#include "small_box.h"

#include "tile_count.h"

#include <assert.h>
#include <string.h>

/* Lines of 4 modulo 8 rows leave no gaps in the halo. The last two boxes are for f32, whose halos take twice the bytes:
 * narrow boxes leave room for several work tiles. */
enum { QUERY_BOXES_OF_F32 = 2 };
static const struct nh_small_box query_boxes[] = {
    {{1, 1, 64}, {1, 1, 16}, 4}, {{1, 1, 128}, {1, 1, 16}, 8}, {{1, 1, 256}, {1, 1, 16}, 8},
    {{1, 8, 28}, {1, 4, 4}, 7},  {{1, 8, 8}, {1, 4, 4}, 4},    {{1, 8, 12}, {1, 4, 4}, 6},
    {{1, 12, 12}, {1, 4, 4}, 9}, {{1, 8, 16}, {1, 4, 4}, 8},   {{1, 8, 20}, {1, 4, 4}, 5},
    {{1, 16, 16}, {1, 4, 4}, 8}, {{1, 12, 28}, {1, 4, 4}, 7},  {{1, 16, 28}, {1, 4, 4}, 7},
    {{1, 4, 28}, {1, 4, 4}, 7},  {{1, 4, 20}, {1, 4, 4}, 5},   {{2, 4, 8}, {2, 2, 4}, 4},
    {{4, 4, 4}, {2, 2, 4}, 4},   {{4, 4, 8}, {2, 2, 4}, 8},    {{4, 8, 8}, {2, 2, 4}, 8},
    {{4, 8, 12}, {2, 2, 4}, 8},  {{2, 8, 8}, {1, 4, 4}, 8},    {{4, 8, 8}, {1, 4, 4}, 8},
    {{1, 4, 8}, {1, 4, 4}, 2},   {{1, 4, 12}, {1, 4, 4}, 3},
};
static const struct nh_small_box key_boxes[] = {
    {{1, 1, 64}, {1, 1, 16}, 4}, {{1, 1, 128}, {1, 1, 16}, 8}, {{1, 1, 256}, {1, 1, 16}, 16},
    {{1, 4, 8}, {1, 4, 4}, 2},   {{1, 8, 8}, {1, 4, 4}, 4},    {{1, 4, 16}, {1, 4, 4}, 4},
    {{1, 8, 12}, {1, 4, 4}, 6},  {{1, 8, 16}, {1, 4, 4}, 8},   {{1, 12, 12}, {1, 4, 4}, 9},
    {{1, 8, 28}, {1, 4, 4}, 14}, {{1, 16, 16}, {1, 4, 4}, 16}, {{1, 4, 28}, {1, 4, 4}, 7},
    {{1, 4, 12}, {1, 4, 4}, 3},  {{1, 8, 20}, {1, 4, 4}, 10},  {{2, 4, 4}, {2, 2, 4}, 2},
    {{4, 4, 4}, {2, 2, 4}, 4},   {{2, 4, 8}, {2, 2, 4}, 4},    {{4, 4, 8}, {2, 2, 4}, 8},
    {{4, 8, 8}, {2, 2, 4}, 16},  {{2, 8, 8}, {1, 4, 4}, 8},
};

/* Work tiles of one plane of a volume, whose halos roll: each plane of keys is fetched once per chain of work tiles. */
static const struct nh_small_box plane_boxes[] = {
    {{1, 4, 12}, {1, 4, 4}, 3}, {{1, 8, 4}, {1, 4, 4}, 2},  {{1, 8, 8}, {1, 4, 4}, 4},
    {{1, 16, 4}, {1, 4, 4}, 4}, {{1, 8, 12}, {1, 4, 4}, 6},
};

/* Warp tiles of the boxes of three axes above. */
static const int32_t warp_tiles3[][NH_AXES] = {{2, 2, 4}, {1, 4, 4}};

bool nh_small_is_plane(const struct nh_problem *problem, const struct nh_small_box *box) {
    return problem->rank == 3 && box->work_tile[0] == 1;
}

bool nh_small_sticks_out(const struct nh_problem *problem, bool keys,
                         const struct nh_small_box *box) {
    for (int a = 0; a < NH_AXES; a++)
        if (box->work_tile[a] >= nh_longest_rows(&problem->axis[a], keys) + box->warp_tile[a])
            return true;
    return false;
}

static int rank_of(const struct nh_small_box *box) {
    return box->work_tile[0] > 1 ? 3 : box->work_tile[1] > 1 ? 2 : 1;
}

/* Makes the smallest box of 2 to 16 warp tiles that holds all rows of a dilation group. False if there is none. */
static bool fit_group(const struct nh_problem *problem, bool keys, const int32_t *warp_tile,
                      struct nh_small_box *box) {
    enum { MOST_WARP_TILES = 16, MOST_WARPS = 8 };
    int64_t count = 1;
    memcpy(box->warp_tile, warp_tile, sizeof box->warp_tile);
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        int64_t longest = nh_longest_rows(axis, keys);
        int64_t along = nh_ceil_div(longest, warp_tile[a]);
        if (along > MOST_WARP_TILES) return false;
        box->work_tile[a] = (int32_t)along * warp_tile[a];
        count *= along;
    }
    bool halves = !keys && count > MOST_WARPS && count % 2 == 0;
    box->warps = (int32_t)(halves ? count / 2 : count);
    return count > 1 && count <= MOST_WARP_TILES;
}

static bool same_box(const struct nh_small_box *a, const struct nh_small_box *b) {
    return memcmp(a->work_tile, b->work_tile, sizeof a->work_tile) == 0 &&
           memcmp(a->warp_tile, b->warp_tile, sizeof a->warp_tile) == 0;
}

static bool has_box(const struct nh_small_boxes *boxes, const struct nh_small_box *box) {
    bool has = false;
    for (int i = 0; i < boxes->count; i++)
        has = has || same_box(&boxes->box[i], box);
    return has;
}

static_assert((sizeof query_boxes + sizeof plane_boxes) / sizeof *query_boxes +
                      sizeof warp_tiles3 / sizeof *warp_tiles3 <=
                  NH_SMALL_MOST_BOXES,
              "room for all that there are by queries");
static_assert(sizeof key_boxes <= sizeof query_boxes, "and by keys");

void nh_small_list_boxes(const struct nh_problem *problem, bool keys,
                         struct nh_small_boxes *boxes) {
    const struct nh_small_box *box = keys ? key_boxes : query_boxes;
    size_t count =
        keys ? sizeof key_boxes / sizeof *key_boxes : sizeof query_boxes / sizeof *query_boxes;
    if (!keys && problem->dtype != NHOOD_DTYPE_F32) count -= QUERY_BOXES_OF_F32;
    boxes->count = 0;
    for (size_t i = 0; i < count; i++)
        if (rank_of(&box[i]) == problem->rank) boxes->box[boxes->count++] = box[i];
    if (problem->rank < 3) return;
    for (size_t i = 0; i < sizeof warp_tiles3 / sizeof *warp_tiles3; i++) {
        struct nh_small_box *whole = &boxes->box[boxes->count];
        boxes->count += fit_group(problem, keys, warp_tiles3[i], whole) && rank_of(whole) == 3 &&
                        !has_box(boxes, whole);
    }
    if (problem->op != NHOOD_OP_FWD) return;
    for (size_t i = 0; i < sizeof plane_boxes / sizeof *plane_boxes; i++)
        boxes->box[boxes->count++] = plane_boxes[i];
}
