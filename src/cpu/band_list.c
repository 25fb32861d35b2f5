/* Cuts a band of weights into the steps of the band kernel: runs of outputs whose source ranges begin together or one row
 * later each, and end together or one row later each. */
#include "geometry.h"

static void append(struct nh_band_list *list, const struct nh_band *band) {
    if (list->band) list->band[list->count] = *band;
    list->count++;
}

/* The longest step from output 0 of begin[] and end[] on: as long as both rise evenly, and no output begins after the end of
 * the first one's range. */
static struct nh_band longest(const int32_t *begin, const int32_t *end, int32_t count,
                              int32_t most) {
    int32_t limit = count < most ? count : most, outputs = 1, lead = 0, trail = 0;
    if (limit > 1) {
        lead = begin[1] - begin[0];
        trail = end[1] - end[0];
    }
    bool even = (lead == 0 || lead == 1) && (trail == 0 || trail == 1);
    while (even && outputs < limit && begin[outputs] - begin[outputs - 1] == lead &&
           end[outputs] - end[outputs - 1] == trail && begin[outputs] <= end[0])
        outputs++;
    struct nh_band band = {.outputs = outputs, .source = begin[0]};
    band.full = end[0] - begin[outputs - 1];
    if (outputs > 1) {
        band.lead = lead;
        band.trail = trail;
    }
    return band;
}

static int32_t lane_end(const struct nh_lanes *keys, int32_t lane, int32_t slot1) {
    return keys->index[lane] + (slot1 < keys->keys[lane] ? slot1 : keys->keys[lane]);
}

void nh_band_gather(const struct nh_lanes *keys, int32_t lanes, int32_t slot0, int32_t slot1,
                    int32_t most_outputs, struct nh_band_list *list) {
    int32_t begin[NH_MOST_LANES] = {0}, end[NH_MOST_LANES] = {0};
    for (int32_t lane = 0; lane < keys->count; lane++) {
        begin[lane] = keys->index[lane] + slot0;
        end[lane] = lane_end(keys, lane, slot1);
        if (end[lane] < begin[lane]) end[lane] = begin[lane];
    }
    for (int32_t lane = 0; lane < keys->count;) {
        struct nh_band band = longest(begin + lane, end + lane, keys->count - lane, most_outputs);
        band.out = lane;
        band.weight = lane;
        band.out_step = 1 - band.lead * lanes;
        band.source_step = lanes;
        if (end[lane] > begin[lane] || band.outputs > 1) append(list, &band);
        lane += band.outputs;
    }
}

/* Appends the steps for lanes [first, last), whose first keys rise by `step` from lane to lane. */
static void scatter_run(const struct nh_lanes *keys, int32_t lanes, int32_t slot0, int32_t slot1,
                        int32_t most_outputs, int32_t first, int32_t last, int32_t step,
                        struct nh_band_list *list) {
    int32_t key = keys->index[first] + slot0, end_key = key;
    for (int32_t lane = first; lane < last; lane++) {
        int32_t end = lane_end(keys, lane, slot1);
        if (end > end_key) end_key = end;
    }
    int32_t low = first, high = first; /* lanes [low, high) attend `key`; neither ever decreases */
    while (key < end_key) {
        int32_t begin[NH_MOST_BAND] = {0}, end[NH_MOST_BAND] = {0}, count = 0;
        for (int32_t l = low, h = high; count < most_outputs && key + count < end_key; count++) {
            while (l < last && lane_end(keys, l, slot1) <= key + count)
                l++;
            while (h < last && keys->index[h] + slot0 <= key + count)
                h++;
            begin[count] = l;
            end[count] = h > l ? h : l;
            if (count == 0) {
                low = l;
                high = h;
            }
        }
        struct nh_band band = longest(begin, end, count, most_outputs);
        band.out = key;
        band.out_step = lanes;
        band.source_step = 1 - step * lanes;
        if (band.source < last && (band.outputs > 1 || band.full > 0)) {
            band.weight = (key - keys->index[band.source] - slot0) * lanes + band.source;
            append(list, &band);
        }
        key += band.outputs;
    }
}

void nh_band_scatter(const struct nh_lanes *keys, int32_t lanes, int32_t slot0, int32_t slot1,
                     int32_t most_outputs, struct nh_band_list *list) {
    for (int32_t first = 0; first < keys->count;) {
        int32_t last = first + 1, step = 0;
        if (last < keys->count) step = keys->index[last] - keys->index[first];
        if (step == 0 || step == 1)
            while (last < keys->count && keys->index[last] - keys->index[last - 1] == step)
                last++;
        scatter_run(keys, lanes, slot0, slot1, most_outputs, first, last, step, list);
        first = last;
    }
}
