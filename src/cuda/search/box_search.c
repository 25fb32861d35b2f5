#include "box_search.h"

#include "predict.h"
#include "top_n.h"
#include "tiling.h"

#include <math.h>
#include <string.h>

/* How many pairs of boxes of each variant are predicted: those of least work. With fewer, more than one in 16,347 pairs
 * of tests/unit/box_search_test.c would be over a tenth faster than what is found. */
enum { MOST_OF_VARIANT = 6, SIZES = 8 };

/* All boxes of a size, the most nearly cubic one first. */
struct boxes {
    int count;
    int32_t extent[NH_MOST_BOXES][NH_AXES];
    struct nh_loop_columns columns[NH_MOST_BOXES];
};

struct state {
    const struct nh_box_search *search;
    struct nh_loop_counts counts;
    struct boxes boxes[SIZES]; /* by the size's logarithm to base 2; count 0: not listed yet */
};

/* Clocks that a full device takes for a loop tile, for the mask of one, and for a block. */
struct prices {
    double tile, mask, block;
};

static void start(struct state *state, const struct nh_box_search *search) {
    const struct nh_problem *problem = search->problem;
    struct nh_loop_extents extents = {.count = {0}};
    for (int power = 0; power < SIZES; power++) {
        const int32_t extent = 1 << power;
        const int32_t box[NH_AXES] = {nh_tile_cover(&problem->axis[0], extent),
                                      nh_tile_cover(&problem->axis[1], extent), extent};
        struct nh_loop_columns places;
        nh_loop_extents_add(&extents, box, &places);
        state->boxes[power].count = 0;
    }
    nh_loop_counts_start(&state->counts, problem, search->inverse, false, &extents);
    state->search = search;
}

static void balanced(int32_t size, int32_t box[NH_AXES]) {
    int32_t volume = 1;
    box[0] = box[1] = box[2] = 1;
    for (int a = NH_AXES - 1; volume < size; a = a ? a - 1 : NH_AXES - 1, volume *= 2)
        box[a] *= 2;
}

static void begin_with_balanced(int32_t size, int32_t (*box)[NH_AXES], int count) {
    int32_t first[NH_AXES];
    balanced(size, first);
    for (int i = 1; i < count; i++) {
        if (memcmp(box[i], first, sizeof first) != 0) continue;
        memcpy(box[i], box[0], sizeof first);
        memcpy(box[0], first, sizeof first);
    }
}

/* start() added the extents in the order of powers of two, so that an extent's index is its logarithm. */
static struct nh_loop_columns places_of(const int32_t box[NH_AXES]) {
    struct nh_loop_columns places = {{0, 0, 0}};
    for (int a = 0; a < NH_AXES; a++)
        while (1 << places.place[a] < box[a])
            places.place[a]++;
    return places;
}

/* The boxes of a size; NULL: they are larger than any that are counted. */
static const struct boxes *boxes_of(struct state *state, int32_t size) {
    int power = 0;
    while (power < SIZES && 1 << power < size)
        power++;
    if (power == SIZES) return NULL;
    struct boxes *boxes = &state->boxes[power];
    if (boxes->count) return boxes;
    boxes->count = nh_tile_boxes(state->search->problem, size, boxes->extent);
    begin_with_balanced(size, boxes->extent, boxes->count);
    for (int i = 0; i < boxes->count; i++)
        boxes->columns[i] = places_of(boxes->extent[i]);
    return boxes;
}

/* Clocks of one block whose loop has that many tiles, `partial` of them masked; INFINITY: the boxes do not fit. */
static double full_clocks(const struct nh_box_search *search, struct nh_box_choice *choice,
                          double visited, double partial) {
    struct nh_work work;
    choice->count = (struct nh_tiling_count){1, visited, partial, visited};
    if (!search->work(search, choice, &work)) return INFINITY;
    return work.launch[0].blocks *
           nh_predict_block_clocks(search->device->backend, &work.launch[0]);
}

static struct prices prices_of(const struct nh_box_search *search,
                               const struct nh_box_variant *variant) {
    struct nh_box_choice choice = {.variant = variant};
    balanced(variant->rows, choice.row);
    balanced(variant->columns, choice.column);
    double one = full_clocks(search, &choice, 1, 0);
    double tile = full_clocks(search, &choice, 2, 0) - one;
    return (struct prices){tile, full_clocks(search, &choice, 1, 1) - one, one - tile};
}

/* Ranks a row box with all column boxes. */
static void rank_row(struct state *state, const struct nh_box_variant *variant,
                     const int32_t row[NH_AXES], const struct boxes *columns,
                     const struct prices *prices, struct nh_top_n *ranked) {
    struct nh_loop_rows rows;
    nh_loop_rows_of(&state->counts, row, row, &rows);
    for (int j = 0; j < columns->count; j++) {
        const struct nh_tiling_count count = nh_loop_count(&rows, columns->columns[j]);
        double work = count.work_tiles * prices->block + count.visited * prices->tile +
                      count.partial * prices->mask;
        if (!(work < nh_top_n_limit(ranked))) continue;
        struct nh_box_choice choice = {.variant = variant, .count = count};
        memcpy(choice.row, row, sizeof choice.row);
        memcpy(choice.column, columns->extent[j], sizeof choice.column);
        nh_top_n_add(ranked, &choice, work);
    }
}

static void predict_ranked(const struct nh_box_search *search, const struct nh_top_n *ranked,
                           struct nh_top_n *best) {
    const struct nh_box_choice *choice = ranked->item;
    for (int i = 0; i < ranked->count; i++) {
        struct nh_work work;
        if (search->work(search, &choice[i], &work))
            nh_top_n_add(best, &choice[i], nh_predict_clocks(search->device->backend, &work));
    }
}

int nh_box_search(const struct nh_box_search *search, struct nh_box_choice *best, int capacity) {
    struct state state;
    struct nh_top_n top;
    start(&state, search);
    nh_top_n_start(&top, best, sizeof *best, capacity);
    for (int v = 0; v < search->variants; v++) {
        const struct nh_box_variant *variant = &search->variant[v];
        const struct prices prices = prices_of(search, variant);
        const struct boxes *rows = boxes_of(&state, variant->rows),
                           *columns = boxes_of(&state, variant->columns);
        struct nh_box_choice choice[MOST_OF_VARIANT];
        struct nh_top_n ranked;
        if (!isfinite(prices.block) || !rows || !columns) continue;
        nh_top_n_start(&ranked, choice, sizeof *choice, MOST_OF_VARIANT);
        for (int i = 0; i < rows->count; i++)
            rank_row(&state, variant, rows->extent[i], columns, &prices, &ranked);
        predict_ranked(search, &ranked, &top);
    }
    return top.count;
}
