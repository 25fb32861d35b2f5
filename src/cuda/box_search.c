#include "box_search.h"

#include "tile_count.h"

#include <math.h>
#include <string.h>

enum { MOST_OF_VARIANT = 2, MOST_POWERS = 8 };

/* Of rows of an axis, by the powers of two that are the columns; no tiles: not counted yet. */
struct line {
    double tiles, visits[MOST_POWERS], dense[MOST_POWERS];
};

/* By axes and the powers of two that are the rows. */
struct counts {
    const struct nh_box_search *search;
    struct line line[NH_AXES][MOST_POWERS];
};

/* The lines of a row box. */
struct lines {
    const struct line *of[NH_AXES];
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

static void count_line(const struct nh_box_search *search, int a, int32_t row, struct line *line) {
    const struct nh_axis *axis = &search->problem->axis[a];
    for (int32_t column = 0; column < MOST_POWERS; column++) {
        struct nh_tile_count count = nh_tile_count(axis, 1 << row, 1 << column, search->inverse);
        line->tiles = (double)count.tiles;
        line->visits[column] = count.visits;
        line->dense[column] = count.dense;
    }
}

static struct lines lines_of(struct counts *counts, const int32_t row[NH_AXES]) {
    struct lines lines;
    for (int a = 0; a < NH_AXES; a++) {
        struct line *line = &counts->line[a][row[a]];
        if (line->tiles <= 0) count_line(counts->search, a, row[a], line);
        lines.of[a] = line;
    }
    return lines;
}

/* Of a row box with a column box, over the whole grid of one batch entry and head. */
static double visits_of(const struct lines *lines, const int32_t column[NH_AXES]) {
    return lines->of[0]->visits[column[0]] * lines->of[1]->visits[column[1]] *
           lines->of[2]->visits[column[2]];
}

static double dense_of(const struct lines *lines, const int32_t column[NH_AXES]) {
    return lines->of[0]->dense[column[0]] * lines->of[1]->dense[column[1]] *
           lines->of[2]->dense[column[2]];
}

/* Walks by single columns visit what any tiles must hold. */
static double least_visits(const struct lines *lines, int32_t columns) {
    static const int32_t single[NH_AXES] = {0, 0, 0};
    return visits_of(lines, single) / columns;
}

/* ---- bounds ---- */

/* Of a row box with any columns: cost beside the bound's own, and what tiles and, more, those with masks add. */
struct floor {
    double fixed, per_tile, per_masked;
};

/* Of the two bounds, that latency and that throughput set, the one that is higher for `tiles` without masks. */
static struct floor floor_of(const struct nh_box_bound *bound, const struct lines *lines,
                             double tiles) {
    double blocks = bound->blocks * lines->of[0]->tiles * lines->of[1]->tiles * lines->of[2]->tiles;
    double waves = blocks / bound->multiprocessors, rounds = ceil(waves / bound->residents);
    double busy = bound->per_clock * bound->walks / bound->multiprocessors,
           turns = busy * rounds / waves;
    const struct floor latency = {bound->per_clock * rounds * bound->block,
                                  turns * (bound->latency + bound->alone * bound->tile),
                                  turns * bound->alone * bound->masks};
    const struct floor throughput = {bound->per_clock * waves * bound->block / bound->residents,
                                     busy * bound->tile, busy * bound->masks};
    bool waits =
        latency.fixed + latency.per_tile * tiles > throughput.fixed + throughput.per_tile * tiles;
    return waits ? latency : throughput;
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

/* Adds to `found` the pairs of a row box that may be cheaper than the limit. */
static void rank_columns(const struct nh_box_search *search, const struct nh_box_bound *bound,
                         const struct nh_box_choice *of_row, const struct lines *lines,
                         const struct boxes *columns, double most, struct ranking *found) {
    const double rounding = 1 + 1e-9;
    double least = least_visits(lines, of_row->variant->columns);
    const struct floor floor = floor_of(bound, lines, least);
    double limit = rounding * fmin(most, limit_of(found)) - bound->fixed;
    if (floor.fixed + floor.per_tile * least >= limit) return;
    for (int j = 0; j < columns->count; j++) {
        double tiles = visits_of(lines, columns->power[j]);
        double cost = floor.fixed + floor.per_tile * tiles;
        if (cost >= limit) continue;
        if (cost + floor.per_masked * (tiles - dense_of(lines, columns->power[j])) >= limit)
            continue;
        struct nh_box_choice choice = *of_row;
        memcpy(choice.column, columns->extent[j], sizeof choice.column);
        choice.cost = search->cost(search, choice.variant, choice.row, choice.column);
        insert(found, &choice);
        limit = rounding * fmin(most, limit_of(found)) - bound->fixed;
    }
}

/* No pair that the bound keeps out could have entered `kept`. */
static void rank_pairs(struct counts *counts, const struct nh_box_variant *variant,
                       struct ranking *kept) {
    const struct nh_box_search *search = counts->search;
    const struct nh_box_bound bound = search->bound(search, variant);
    if (bound.residents <= 0) return;
    struct boxes rows = boxes_of(search->problem, variant->rows);
    struct boxes columns = boxes_of(search->problem, variant->columns);
    struct nh_box_choice found[MOST_OF_VARIANT];
    struct ranking of_variant = {found, 0, MOST_OF_VARIANT};
    for (int i = 0; i < rows.count; i++) {
        if (bound.least >= fmin(limit_of(kept), limit_of(&of_variant))) break;
        struct nh_box_choice choice = {.variant = variant};
        memcpy(choice.row, rows.extent[i], sizeof choice.row);
        struct lines lines = lines_of(counts, rows.power[i]);
        rank_columns(search, &bound, &choice, &lines, &columns, limit_of(kept), &of_variant);
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
