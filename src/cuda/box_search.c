#include "box_search.h"

#include "tile_count.h"

#include <math.h>
#include <string.h>

enum { MOST_OF_VARIANT = 2, MOST_POWERS = 9 };

/* Of an axis by the powers of two that are its rows and columns; no tiles: not counted yet. */
struct counts {
    const struct nh_box_search *search;
    struct nh_tile_count of[NH_AXES][MOST_POWERS][MOST_POWERS];
};

struct boxes {
    int count;
    int32_t extent[NH_MOST_BOXES][NH_AXES];
    int32_t power[NH_MOST_BOXES][NH_AXES];
};

struct ranking {
    struct nh_box_choice *choice;
    int count, capacity;
};

void nh_box_balanced(int32_t size, int32_t box[NH_AXES]) {
    box[0] = box[1] = box[2] = 1;
    for (int a = NH_AXES - 1; box[0] * box[1] * box[2] < size; a = (a + 2) % NH_AXES)
        box[a] *= 2;
}

static struct boxes boxes_of(const struct nh_problem *problem, int32_t size) {
    struct boxes boxes;
    boxes.count = nh_tile_boxes(problem, size, boxes.extent);
    for (int i = 0; i < boxes.count; i++)
        for (int a = 0; a < NH_AXES; a++) {
            boxes.power[i][a] = 0;
            while (1 << boxes.power[i][a] < boxes.extent[i][a])
                boxes.power[i][a]++;
        }
    return boxes;
}

static const struct nh_tile_count *count_of(struct counts *counts, int a, int32_t row,
                                            int32_t column) {
    struct nh_tile_count *of = &counts->of[a][row][column];
    if (!of->tiles)
        *of = nh_tile_count(&counts->search->problem->axis[a], 1 << row, 1 << column,
                            counts->search->inverse);
    return of;
}

/* ---- bounds ---- */

/* Of a row box. */
struct floor {
    const struct nh_box_bound *bound;
    double waves, rounds;
};

static struct floor floor_of(struct counts *counts, const struct nh_box_bound *bound,
                             const int32_t row[NH_AXES]) {
    double blocks = bound->blocks;
    for (int a = 0; a < NH_AXES; a++)
        blocks *= (double)count_of(counts, a, row[a], 0)->tiles;
    double waves = blocks / bound->multiprocessors;
    return (struct floor){bound, waves, ceil(waves / bound->residents)};
}

/* The least cost where a walk over all rows visits so many tiles, of which some need masks. */
static double cost_of(const struct floor *floor, double tiles, double masked) {
    const struct nh_box_bound *bound = floor->bound;
    double walks = bound->walks / bound->multiprocessors;
    double busy = walks * (bound->tile * tiles + bound->masks * masked);
    double alone = bound->latency * walks * tiles + bound->alone * busy;
    double latency = floor->rounds * (alone / floor->waves + bound->block);
    double throughput = busy + floor->waves * bound->block / bound->residents;
    return fmax(bound->least, bound->fixed + bound->per_clock * fmax(latency, throughput));
}

/* Tiles of any column box of so many positions hold what a walk by single columns visits. */
static double least_tiles(struct counts *counts, const int32_t row[NH_AXES], int32_t columns) {
    double visits = 1;
    for (int a = 0; a < NH_AXES; a++)
        visits *= count_of(counts, a, row[a], 0)->visits;
    return visits / columns;
}

static double least_cost(struct counts *counts, const struct floor *floor,
                         const int32_t row[NH_AXES], const int32_t column[NH_AXES]) {
    double tiles = 1, dense = 1;
    for (int a = 0; a < NH_AXES; a++) {
        const struct nh_tile_count *count = count_of(counts, a, row[a], column[a]);
        tiles *= count->visits;
        dense *= count->dense;
    }
    return cost_of(floor, tiles, tiles - dense);
}

/* ---- the search ---- */

/* What a choice must stay below to be kept. */
static double limit_of(const struct ranking *ranking) {
    return ranking->count < ranking->capacity ? INFINITY : ranking->choice[ranking->count - 1].cost;
}

/* Behind those that cost no more. */
static void insert(struct ranking *ranking, const struct nh_box_choice *choice) {
    if (choice->cost >= limit_of(ranking)) return;
    if (ranking->count < ranking->capacity) ranking->count++;
    int place = ranking->count - 1;
    for (; place > 0 && choice->cost < ranking->choice[place - 1].cost; place--)
        ranking->choice[place] = ranking->choice[place - 1];
    ranking->choice[place] = *choice;
}

/* No pair that the bound keeps out could have entered `kept`. */
static void rank_pairs(struct counts *counts, const struct nh_box_variant *variant,
                       struct ranking *kept) {
    const double rounding = 1 + 1e-9;
    const struct nh_box_search *search = counts->search;
    const struct nh_box_bound bound = search->bound(search, variant);
    struct boxes rows = boxes_of(search->problem, variant->rows);
    struct boxes columns = boxes_of(search->problem, variant->columns);
    struct nh_box_choice found[MOST_OF_VARIANT];
    struct ranking of_variant = {found, 0, MOST_OF_VARIANT};
    double limit = rounding * limit_of(kept);
    for (int i = 0; i < rows.count && bound.residents > 0; i++) {
        struct floor floor = floor_of(counts, &bound, rows.power[i]);
        if (cost_of(&floor, least_tiles(counts, rows.power[i], variant->columns), 0) >= limit)
            continue;
        for (int j = 0; j < columns.count; j++) {
            if (least_cost(counts, &floor, rows.power[i], columns.power[j]) >= limit) continue;
            struct nh_box_choice choice = {.variant = variant};
            memcpy(choice.row, rows.extent[i], sizeof choice.row);
            memcpy(choice.column, columns.extent[j], sizeof choice.column);
            choice.cost = search->cost(search, variant, choice.row, choice.column);
            insert(&of_variant, &choice);
            limit = rounding * fmin(limit_of(kept), limit_of(&of_variant));
        }
    }
    for (int i = 0; i < of_variant.count; i++)
        insert(kept, &found[i]);
}

int nh_box_search(const struct nh_box_search *search, struct nh_box_choice *best, int capacity) {
    struct counts counts = {.search = search};
    struct ranking kept = {best, 0, capacity};
    for (int i = 0; i < search->variants; i++)
        rank_pairs(&counts, &search->variant[i], &kept);
    return kept.count;
}
