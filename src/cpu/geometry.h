/* The geometry of a CPU plan: the order of tokens, the tiles, the query vectors and the band products.
 *
 * Order. The tokens of each axis are ordered by dilation group. A *place* is an index into this order. In it every window is
 * a contiguous range of places whose ends never decrease, and only order->token knows about dilation.
 *
 * Parts. If the tensors cover a part of the axis, it is periodic, or it has a window table, keys have other places than queries: one for each key
 * that some query of the box attends, one dilation group after the other. On a periodic axis windows continue beyond the
 * ends, so a key may have several places. On all other axes the key and the query of a token have the same place.
 *
 * Long axes. Dilation groups of equal length have the same tables, and within a group the tiles away from the borders repeat
 * with a period. For a long axis, tables are kept only for what differs. A tile of the axis is then described by a kept
 * tile and the number of tokens between the two (nh_axis_tile).
 *
 * Axes. The kernels put consecutive queries of one axis, the lane axis, into the lanes of a vector. It becomes the last
 * axis. Bias tables and attention weights stay in the caller's order of axes, by slot_step and bias_step. */
#ifndef NH_GEOMETRY_H
#define NH_GEOMETRY_H

#include "problem.h"

enum { NH_MOST_LANES = 16, NH_MOST_FOLD_LOG = 2, NH_MOST_BAND = 8 };

struct nh_order {
    int32_t length; /* number of kept places of queries */
    int32_t keys;   /* number of places of keys */
    int32_t window; /* number of slots */
    int32_t *token; /* row of each query in its tensors */
    int32_t *begin; /* each query attends the keys at places [begin, end) */
    int32_t *end;   /* at least begin */
    int32_t *slot;  /* slot of the key at `begin` in the window; NULL if all are 0 (nh_slot) */
    int32_t *
        distance; /* from the query to the key at `begin`, in tokens of the dilation group; NULL with window tables, beside
                          which there is no bias */
    int32_t *
        key_token; /* row of each key in its tensors; equal to `token` if keys have the places of queries */
    int32_t *
        group_key; /* place of the first key of each dilation group, and one past the last; NULL if keys have the places
                           of queries */
    int32_t *
        missing; /* 1 for each query whose window has keys that the key box lacks; NULL if there is none */
    bool fewer; /* some query attends less than a window */
    bool none;  /* some query attends nothing */
    bool cut;   /* some query's window has keys that the key box lacks */
    bool once;  /* no key of the tensors has two places */
    bool whole; /* with window tables: any two neighbouring queries share a key */
    bool every; /* every key has a place */
};

static inline int32_t nh_slot(const struct nh_order *order, int32_t place) {
    return order->slot ? order->slot[place] : 0;
}

/* How the first keys of a vector's lanes are arranged, and how they are loaded. */
enum nh_lane_mode {
    NH_LANES_SHIFT,   /* all lanes hold a query, lane i's starts at start + i: an unaligned load */
    NH_LANES_SAME,    /* all lanes start at start: a broadcast */
    NH_LANES_PERMUTE, /* lane i starts at start + index[i], index < lanes: a load and a permutation */
    NH_LANES_SPLIT, /* as at a border: lanes on one side of `turn` start at the same key, those on the other side at consecutive
                       keys: a broadcast and a load, or a permutation */
    NH_LANE_MODES
};

/* One step of a band product: `outputs` consecutive rows accumulate weighted source rows. The range of the first output
 * begins at `source`. With `lead` the range of each further output begins one source row later, with `trail` it ends one
 * later; otherwise the ranges begin (end) together. `full` source rows are common to all outputs. */
struct nh_band {
    int32_t out, outputs, source, full;
    int32_t lead, trail;
    int32_t weight; /* index of the weight of (first output, first source row) in the score block */
    int32_t out_step;    /* from one output to the next, at one source row */
    int32_t source_step; /* from one source row to the next, at one output */
};

/* How a vector's keys lie if it is a whole row, that is, if all its lanes hold a query with a whole window. */
enum nh_row_kind {
    NH_ROW_NONE,  /* it is not a whole row */
    NH_ROW_INNER, /* lane i's first key is key i, counted from lane 0's */
    NH_ROW_FIRST, /* at the start of the axis: lanes up to window / 2 start at key 0, the others at consecutive keys */
    NH_ROW_LAST, /* at its end: the last window / 2 lanes start at the same key as the lane before them */
    NH_ROW_KINDS
};

struct nh_band_list {
    struct nh_band *band;
    int32_t count;
    enum nh_row_kind row; /* set in lists for the whole window */
};

/* How the keys of a vector lie, counted from its first one. Vectors with equal ones share them. */
struct nh_lanes {
    int32_t count;                /* of the vector's queries */
    int32_t index[NH_MOST_LANES]; /* first key of the lane; lanes without a query repeat the last */
    int32_t keys[NH_MOST_LANES];  /* keys of the lane: the window, fewer at a causal border */
    int32_t even; /* 1: the queries are as far from their first keys (nh_order's distance) */
    enum nh_lane_mode mode;
    int32_t
        turn; /* SPLIT: lane up to which index is 0 (still_first), or from which on it is `turn` */
    bool still_first; /* SPLIT: lanes up to `turn` share their first key, else those from it on */
    int32_t fewest_keys, most_keys; /* of any lane */
    /* band products for the whole window, by lanes of one place of the middle axis */
    struct nh_band_list gather;  /* lanes accumulate key rows */
    struct nh_band_list scatter; /* key rows accumulate lanes */
};

/* Up to as many consecutive queries of the lane axis as there are lanes. With folded axes (fold_log in nh_geometry) the vector
 * holds these queries at several places of the middle axis, one place after the other. */
struct nh_vector {
    int32_t first, count; /* the queries' places */
    int32_t start;        /* first key of any lane */
    const struct nh_lanes *lanes;
};

/* A run of units with equal tables. A unit is the whole axis, a dilation group, or several groups that share a tile. Only the
 * first unit is kept, and not all of its periods. */
struct nh_axis_part {
    int64_t units, tiles,
        places;           /* tiles and places of one unit, including those that are not kept */
    int64_t unit_tokens;  /* distance from a unit to the next */
    int32_t tile, place;  /* the first kept ones */
    int32_t head, period; /* tiles before the first period; tiles of a period */
    int32_t head_places, period_places;
    int64_t period_tokens;
    int64_t skipped; /* periods that are not kept */
};

enum { NH_MOST_PARTS = 4 }; /* groups of two lengths, each in full tiles and a last one */

struct nh_tile_axis {
    int64_t count;  /* tiles of the axis */
    int32_t kept;   /* tiles with tables */
    int32_t *first; /* place of each kept tile, and one past the last */
    int32_t parts;
    struct nh_axis_part part[NH_MOST_PARTS];
    int32_t size, most_keys; /* most queries of a tile, largest halo */
    bool apart;              /* no key is in two halos, or twice in one */
};

struct nh_geometry {
    struct nh_problem problem; /* axes and strides permuted: lane axis last */
    struct nh_order order[NH_AXES];
    int64_t slot_step[NH_AXES]; /* of a window slot along each axis, in A's last axis */
    int64_t bias_step[NH_AXES]; /* of a displacement along each axis, in a head's bias table */
    struct nh_tile_axis tile[NH_AXES];
    int32_t *tile_vector; /* first vector of each lane-axis tile, and one past the last */
    struct nh_vector *vector;
    struct nh_lanes *lane; /* the different ones of the vectors */
    int32_t lane_count;
    struct nh_band *bands; /* storage behind their lists */
    int32_t
        packed_rows; /* key rows of the middle axis kept packed at a time, per place of the slow axis */
    int32_t packed_planes; /* places of the slow axis whose key rows are kept packed at a time */
    bool rolling; /* only key rows that a block needs are kept; the loop packs further ones */
    bool rolling_planes; /* only planes of key rows that a place of the slow axis needs are kept */
    int32_t lanes, rows; /* lanes of the kernels it was made for, and query vectors per block */
    int32_t fold_log;    /* 2^fold_log consecutive places of the middle axis share a query vector */
    int32_t chunk;       /* window slots of the lane axis processed at a time */
    int32_t slots;       /* scores of one query vector kept at a time */
    int32_t vectors_k, vectors_v; /* vectors of a row of D, Dv elements */
    int32_t band_vectors;         /* vectors of a row that the band kernel handles at a time */
    int32_t band_outputs;         /* most outputs of a step of a band product */
    int64_t tiles;                /* per batch entry and kv head */
    bool tiles_apart;             /* no key is in the halos of two tiles, or twice in one */
    bool every_key;               /* every key is in a halo */
    bool fewer;                   /* some query attends less than a window */
    bool none;                    /* some query attends nothing, extra tokens included */
    bool cut;                     /* some query's window has keys that the key box lacks */
};

struct nh_geometry_options {
    int32_t lanes, most_rows, band_budget, single_outputs; /* as in nh_tile_kernels */
    bool one_place;                                        /* as in nh_tile_kernels */
    int32_t lane_axis;                                     /* 0..2 in canonical axes */
    int32_t size[NH_AXES]; /* most queries of a tile, in permuted axes */
    int32_t
        long_axis; /* axes of more tokens are long; 0 stands for NH_LONG_AXIS, and tests set less */
};

/* Axes of more tokens are long. The tables of an axis of this many tokens take some 2 MB. */
enum { NH_LONG_AXIS = 1 << 15 };

/* Most queries or keys of a boxed axis. Its tables are always kept whole, and those of so many take some 400 MB. */
enum { NH_MOST_BOXED = 1 << 22 };

/* Whether an axis is boxed: it is periodic, covered in part, or has window tables, so that keys have other places than
 * queries. */
static inline bool nh_is_boxed(const struct nh_axis *axis) {
    return nh_is_cut(axis);
}

/* Whether the window of some query of a periodic axis meets the key box in two pieces, with keys between them that the box
 * lacks. */
bool nh_meets_box_twice(const struct nh_axis *axis);

/* An upper bound of the places of keys that the tables of a boxed axis need. */
double nh_boxed_keys(const struct nh_axis *axis);

/* The keys of one dilation group that the tensors cover, numbered from 0. On a periodic axis the numbers continue in both
 * directions, lap by lap: key `count` is key 0 one lap later. A lap is called a turn here. */
struct nh_group_keys {
    int64_t first, count; /* position of key 0, and number of keys per lap */
    int64_t turn;         /* positions per lap; 0 if the axis is not periodic */
};

static inline struct nh_group_keys nh_group_keys(const struct nh_axis *axis, int64_t group) {
    const struct nh_range covered = nh_axis_covered(axis, &axis->key, group);
    return (struct nh_group_keys){covered.begin, covered.end - covered.begin,
                                  axis->periodic ? axis->length / axis->dilation : 0};
}

/* The number of the first key at or after a position. */
static inline int64_t nh_key_at(const struct nh_group_keys *keys, int64_t position) {
    const int64_t beyond = position - keys->first;
    if (!keys->turn) return nh_max(0, nh_min(beyond, keys->count));
    const int64_t turns = nh_floor_div(beyond, keys->turn);
    return turns * keys->count + nh_min(beyond - turns * keys->turn, keys->count);
}

/* The range of numbers of the keys that the queries of the box attend. */
struct nh_range nh_group_attended(const struct nh_axis *axis, int64_t group);

/* Permutes axes and strides so that the lane axis is the last. */
void nh_geometry_permute(const struct nh_problem *problem, int32_t lane_axis,
                         struct nh_problem *permuted, int64_t slot_step[NH_AXES],
                         int64_t bias_step[NH_AXES]);

nhood_status nh_geometry_create(const struct nh_problem *problem, const struct nh_host *host,
                                const struct nh_geometry_options *options,
                                struct nh_geometry *geometry);
void nh_geometry_destroy(const struct nh_host *host, struct nh_geometry *geometry);

/* Counts the periods that are not kept before a tile (or place) that is `beyond` tiles (places) after the start of the first
 * period. */
static inline int64_t nh_skipped_before(const struct nh_axis_part *part, int64_t beyond,
                                        int64_t period) {
    return part->skipped && beyond >= 0 ? nh_min(beyond / period, part->skipped) : 0;
}

/* Returns the kept tile with the same tables as a tile of the axis. *tokens is the distance from the kept one to it. */
static inline int32_t nh_axis_tile(const struct nh_tile_axis *axis, int64_t tile, int64_t *tokens) {
    const struct nh_axis_part *part = axis->part;
    *tokens = 0;
    if (axis->count == axis->kept) return (int32_t)tile;
    for (; tile >= part->units * part->tiles; part++)
        tile -= part->units * part->tiles;
    const int64_t unit = tile / part->tiles, of_unit = tile % part->tiles;
    const int64_t skipped = nh_skipped_before(part, of_unit - part->head, part->period);
    *tokens = unit * part->unit_tokens + skipped * part->period_tokens;
    return part->tile + (int32_t)(of_unit - skipped * part->period);
}

static inline int32_t nh_tile_first(const struct nh_geometry *geometry, int axis, int64_t tile) {
    return geometry->tile[axis].first[tile];
}

static inline int32_t nh_tile_end(const struct nh_geometry *geometry, int axis, int64_t tile) {
    return geometry->tile[axis].first[tile + 1];
}

/* The fold_log of a geometry. If an axis of `length` queries fills at most half a vector and is not cut into tiles, several
 * of the `rows` places of a tile's middle axis share a vector. Their windows overlap, so together they attend fewer key
 * rows than one by one. */
static inline int32_t nh_fold_log(int64_t length, int64_t tile, int64_t rows, int32_t lanes) {
    int32_t fold_log = 0;
    while (tile >= length && length << (fold_log + 1) <= lanes && INT64_C(1) << fold_log < rows &&
           fold_log < NH_MOST_FOLD_LOG)
        fold_log++;
    return fold_log;
}

/* The size of the first block if `left` things are divided evenly into as few blocks of at most `most` as possible. */
static inline int32_t nh_even_share(int32_t left, int32_t most) {
    return (int32_t)nh_ceil_div(left, nh_ceil_div(left, most));
}

/* How many of the `left` places of a tile's middle axis form its next block. Blocks have about equally many query vectors,
 * all of which are full except the last. */
static inline int32_t nh_block_places(const struct nh_geometry *geometry, int32_t left) {
    const int32_t vectors = (int32_t)nh_ceil_div(left, INT64_C(1) << geometry->fold_log);
    return (int32_t)nh_min(left, nh_even_share(vectors, geometry->rows) << geometry->fold_log);
}

/* Appends the steps of a band product over the slots [slot0, slot1) of a vector's lanes to the list: gather with lanes as
 * outputs and keys as sources, scatter the other way round. Keys count from the vector's first one. The score block is
 * [slot - slot0][lane]. If list->band is NULL, the steps are only counted. */
void nh_band_gather(const struct nh_lanes *keys, int32_t lanes, int32_t slot0, int32_t slot1,
                    int32_t most_outputs, struct nh_band_list *list);
void nh_band_scatter(const struct nh_lanes *keys, int32_t lanes, int32_t slot0, int32_t slot1,
                     int32_t most_outputs, struct nh_band_list *list);

/* The most steps that either list can need for one vector and this many slots. */
static inline int32_t nh_band_bound(int32_t lanes, int32_t slots) {
    return lanes * (slots + lanes);
}

#endif
