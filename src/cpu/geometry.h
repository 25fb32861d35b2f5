/* The geometry of a CPU plan: the order of tokens, the tiles, the query vectors, the band operations.
 *
 * Order. Each axis is walked dilation group by dilation group, so that in this order every window is a
 * contiguous, never decreasing range and dilation is gone: it lives on in order->token alone.
 *
 * Parts. Queries and keys have places of their own where the tensors cover a part of the axis, or it is periodic. The places of
 * keys are those that some query of the box attends, of each dilation group one after the other; on a periodic axis windows run
 * on beyond the ends, and a key may have several places. Without that, keys are at the places of the queries.
 *
 * Long axes. Dilation groups of one length look alike, and so do the tiles of a group away from its borders, a period apart. Of a
 * long axis only so much is kept as differs: the places of an order are those kept, and a tile of the axis is a kept one, so
 * many tokens further on (nh_axis_tile).
 *
 * Axes. The kernels put consecutive queries of one axis into the lanes of a vector ("lane axis", stored
 * last); bias tables and attention weights keep the caller's axis order through slot_step and bias_step. */
#ifndef NH_GEOMETRY_H
#define NH_GEOMETRY_H

#include "problem.h"

enum { NH_MOST_LANES = 16, NH_MOST_FOLD_LOG = 2, NH_MOST_BAND = 8 };

struct nh_order {
    int32_t length;    /* places of queries: those kept */
    int32_t keys;      /* places of keys */
    int32_t window;    /* slots */
    int32_t *token;    /* row of each query in its tensors */
    int32_t *begin;    /* keys [begin, end), places of keys */
    int32_t *end;      /* not below begin */
    int32_t *slot;     /* of key begin in the window */
    int32_t *distance; /* from the query to key begin, in tokens of the dilation group */
    int32_t *
        key_token; /* row of each key in its tensors; token itself where keys are at the places of queries */
    int32_t *
        group_key; /* place of the first key of each dilation group, and one past the last; NULL where keys are at the places
                           of queries */
    bool fewer;    /* some query attends less than a window */
    bool none;     /* some query attends nothing */
    bool once;     /* no key of the tensors has two places */
    bool every;    /* every key has one */
};

/* How the keys of a vector's lanes lie. */
enum nh_lane_mode {
    NH_LANES_SHIFT,   /* all lanes hold a query, lane i's starts at start + i: an unaligned load */
    NH_LANES_SAME,    /* all lanes start at start: a broadcast */
    NH_LANES_PERMUTE, /* lane i starts at start + index[i], index < lanes: a load and a permutation */
    NH_LANES_SPLIT, /* the same, where lanes on one side of `turn` start at one key, as at a border, and those on the other one key
                       after the other: a broadcast and a load, or a permutation */
    NH_LANE_MODES
};

/* One step of a band product: `outputs` consecutive rows accumulate weighted source rows, of which the
 * first output takes [source, ..). If lead, each next output begins one source row later; if trail, it
 * also ends one later; else they begin (end) together. `full` source rows are common to all outputs. */
struct nh_band {
    int32_t out, outputs, source, full;
    int32_t lead, trail;
    int32_t weight; /* index of the weight of (first output, first source row) in the score block */
    int32_t out_step;    /* from one output to the next, at one source row */
    int32_t source_step; /* from one source row to the next, at one output */
};

/* How a vector's keys lie if all its lanes hold a query with a whole window: a whole row. */
enum nh_row_kind {
    NH_ROW_NONE,  /* it is no whole row */
    NH_ROW_INNER, /* lane i's first key is key i, counted from lane 0's */
    NH_ROW_FIRST, /* at the axis's begin: lanes up to window / 2 start at key 0, the others one key after the other */
    NH_ROW_LAST, /* at its end: the last window / 2 lanes start where the one before them does */
    NH_ROW_KINDS
};

struct nh_band_list {
    struct nh_band *band;
    int32_t count;
    enum nh_row_kind row; /* of a list for the whole window */
};

/* Up to `lanes` consecutive queries of the lane axis; where places are folded (see nh_geometry), those queries at each of
 * them, one place after the other. */
struct nh_vector {
    int32_t first, count; /* places in the order */
    int32_t start;        /* first key of any lane */
    enum nh_lane_mode mode;
    int32_t index
        [NH_MOST_LANES]; /* first key of the lane, less start; lanes without a query repeat the last */
    int32_t
        turn; /* SPLIT: lane up to which index is 0 (still_first), or from which on it is `turn` */
    bool still_first;            /* SPLIT: lanes before `turn` stand still, else those from it on */
    int32_t keys[NH_MOST_LANES]; /* keys of the lane: the window, fewer at a causal border */
    int32_t fewest_keys, most_keys; /* of any lane */
    struct nh_band_list gather;  /* lanes of one place accumulate key rows; for the whole window */
    struct nh_band_list scatter; /* key rows accumulate lanes of one place; for the whole window */
};

/* Units that look alike, one after the other: the axis, dilation groups, or tiles of several groups. The first one is kept, and of
 * that, not all periods. */
struct nh_axis_part {
    int64_t units, tiles,
        places;           /* tiles and places are those of a unit, what is not kept included */
    int64_t unit_tokens;  /* from a unit to the next */
    int32_t tile, place;  /* the first of those kept */
    int32_t head, period; /* tiles before the first period; tiles of a period */
    int32_t head_places, period_places;
    int64_t period_tokens;
    int64_t skipped; /* periods that are not kept */
};

enum { NH_MOST_PARTS = 4 }; /* groups of either length, in tiles that are full or the last */

struct nh_tile_axis {
    int64_t count; /* of the axis */
    int32_t kept;
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
    struct nh_band *bands; /* storage behind the vectors' lists */
    int32_t
        packed_rows; /* key rows of the middle axis kept packed at a time, per place of the slow axis */
    bool rolling; /* .. only those that a block needs: the walk along the middle axis packs ahead */
    int32_t lanes, rows; /* of the kernels it was made for; rows: query vectors per block */
    int32_t fold_log;    /* 2^fold_log consecutive places of the middle axis share a query vector */
    int32_t chunk;       /* window slots of the lane axis taken at a time */
    int32_t slots;       /* scores of one query vector kept at a time */
    int32_t vectors_k, vectors_v; /* vectors that hold a row of D, Dv */
    int32_t band_vectors;         /* of a row handled at a time by the band kernel */
    int32_t band_outputs;
    int64_t tiles;    /* per batch entry and kv head */
    bool tiles_apart; /* no key is in the halos of two tiles, or twice in one */
    bool every_key;   /* every key is in a halo */
    bool fewer;       /* some query attends less than a window */
    bool none;        /* some query attends nothing, extra tokens included */
};

struct nh_geometry_options {
    int32_t lanes, most_rows, band_budget, single_outputs; /* of the kernels */
    bool one_place;                                        /* the same: nothing is folded */
    int32_t lane_axis;                                     /* 0..2 in canonical axes */
    int32_t size[NH_AXES]; /* most queries of a tile, in permuted axes */
    int32_t
        long_axis; /* axes of more tokens are long; 0: NH_LONG_AXIS, which tests need not reach */
};

/* The tables of an axis of this many tokens take some 2 MB. */
enum { NH_LONG_AXIS = 1 << 15 };

/* Tables of this many queries or keys of an axis that is covered in part, or periodic, and so is kept whole; some 400 MB. */
enum { NH_MOST_BOXED = 1 << 22 };

/* Whether keys have places of their own. */
static inline bool nh_is_boxed(const struct nh_axis *axis) {
    return axis->periodic || !nh_is_whole(axis, &axis->query) || !nh_is_whole(axis, &axis->key);
}

/* Whether some query has a key box's last and first keys in its window, and others between them that the box does not have. */
bool nh_meets_box_twice(const struct nh_axis *axis);

/* Counts the keys of a boxed axis at most that its tables need. */
double nh_boxed_keys(const struct nh_axis *axis);

/* The keys of one dilation group that the tensors cover, numbered from 0 on. On a periodic axis their numbers go on beyond that, and
 * below 0: key n is key 0, a turn later. */
struct nh_group_keys {
    int64_t first, count; /* position of key 0; keys of a turn */
    int64_t turn;         /* positions of a turn, 0 without any */
};

static inline struct nh_group_keys nh_group_keys(const struct nh_axis *axis, int64_t group) {
    const struct nh_range covered = nh_axis_covered(axis, &axis->key, group);
    return (struct nh_group_keys){covered.begin, covered.end - covered.begin,
                                  axis->periodic ? axis->length / axis->dilation : 0};
}

/* Number of the first key at or behind a position. */
static inline int64_t nh_key_at(const struct nh_group_keys *keys, int64_t position) {
    const int64_t beyond = position - keys->first;
    if (!keys->turn) return nh_max(0, nh_min(beyond, keys->count));
    const int64_t turns = nh_floor_div(beyond, keys->turn);
    return turns * keys->count + nh_min(beyond - turns * keys->turn, keys->count);
}

/* Numbers of the keys that the queries of the box attend. */
struct nh_range nh_group_attended(const struct nh_axis *axis, int64_t group);

/* Permutes axes and strides so that the lane axis is the last. */
void nh_geometry_permute(const struct nh_problem *problem, int32_t lane_axis,
                         struct nh_problem *permuted, int64_t slot_step[NH_AXES],
                         int64_t bias_step[NH_AXES]);

nhood_status nh_geometry_create(const struct nh_problem *problem, const struct nh_host *host,
                                const struct nh_geometry_options *options,
                                struct nh_geometry *geometry);
void nh_geometry_destroy(const struct nh_host *host, struct nh_geometry *geometry);

/* Counts the periods that are not kept and lie before a tile (or a place) that is `beyond` tiles (places) after the begin of the
 * first period. */
static inline int64_t nh_skipped_before(const struct nh_axis_part *part, int64_t beyond,
                                        int64_t period) {
    return part->skipped && beyond >= 0 ? nh_min(beyond / period, part->skipped) : 0;
}

/* Returns the kept tile that a tile of the axis looks like. *tokens is how many tokens further on the tile lies. */
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

/* An axis of `length` queries that fills half a vector or less, and is not cut into tiles, shares vectors with its neighbours
 * on the middle axis, `rows` of a tile. They meet the key rows of all their windows, fewer than those of each together. */
static inline int32_t nh_fold_log(int64_t length, int64_t tile, int64_t rows, int32_t lanes) {
    int32_t fold_log = 0;
    while (tile >= length && length << (fold_log + 1) <= lanes && INT64_C(1) << fold_log < rows &&
           fold_log < NH_MOST_FOLD_LOG)
        fold_log++;
    return fold_log;
}

/* The size of the first of as many blocks as `left` things take, at most `most` in each, none much smaller than the others. */
static inline int32_t nh_even_share(int32_t left, int32_t most) {
    return (int32_t)nh_ceil_div(left, nh_ceil_div(left, most));
}

/* How many of the `left` places of a tile's middle axis form its next block: even shares of query vectors, all full but the last. */
static inline int32_t nh_block_places(const struct nh_geometry *geometry, int32_t left) {
    const int32_t vectors = (int32_t)nh_ceil_div(left, INT64_C(1) << geometry->fold_log);
    return (int32_t)nh_min(left, nh_even_share(vectors, geometry->rows) << geometry->fold_log);
}

/* Makes the band steps for lanes that take their slots [slot0, slot1): with lanes as outputs and keys as sources, or
 * the other way round. Keys count from vector->start. The score block is [slot - slot0][lane]. Appends to
 * list; with list->band NULL only counts. */
void nh_band_gather(const struct nh_vector *vector, int32_t lanes, int32_t slot0, int32_t slot1,
                    int32_t most_outputs, struct nh_band_list *list);
void nh_band_scatter(const struct nh_vector *vector, int32_t lanes, int32_t slot0, int32_t slot1,
                     int32_t most_outputs, struct nh_band_list *list);

/* The most steps that either list can need for one vector and this many slots. */
static inline int32_t nh_band_bound(int32_t lanes, int32_t slots) {
    return lanes * (slots + lanes);
}

#endif
