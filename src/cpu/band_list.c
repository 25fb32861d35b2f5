/* Cuts a band of weights into steps the band kernel takes: runs of outputs whose source ranges begin
 * together or one by one, and end together or one by one. */
#include "geometry.h"

static void append(struct nh_band_list *list, const struct nh_band *band) {
    if (list->band) list->band[list->count] = *band;
    list->count++;
}

/* Whether range[0..count) rises by 0 or 1 throughout; sets *step. */
static bool even_steps(const int32_t *range, int32_t count, int32_t *step) {
    *step = count > 1 ? range[1] - range[0] : 0;
    if (*step != 0 && *step != 1) return false;
    for (int32_t i = 2; i < count; i++)
        if (range[i] - range[i - 1] != *step) return false;
    return true;
}

/* The longest step (a power of two of outputs) that starts at output 0 of begin[] and end[]. */
static struct nh_band longest(const int32_t *begin, const int32_t *end, int32_t count,
                              int32_t most) {
    struct nh_band band = {.outputs = 1, .source = begin[0], .full = end[0] - begin[0]};
    for (int32_t outputs = most; outputs > 1; outputs /= 2) {
        int32_t lead, trail;
        if (outputs > count || !even_steps(begin, outputs, &lead) ||
            !even_steps(end, outputs, &trail) || end[0] < begin[outputs - 1])
            continue;
        band.outputs = outputs;
        band.lead = lead;
        band.trail = trail;
        band.full = end[0] - begin[outputs - 1];
        return band;
    }
    return band;
}

static int32_t lane_end(const struct nh_vector *vector, int32_t lane, int32_t slot1) {
    return vector->index[lane] + (slot1 < vector->keys[lane] ? slot1 : vector->keys[lane]);
}

void nh_band_gather(const struct nh_vector *vector, int32_t lanes, int32_t slot0, int32_t slot1,
                    int32_t most_outputs, struct nh_band_list *list) {
    int32_t begin[NH_MOST_LANES], end[NH_MOST_LANES];
    for (int32_t lane = 0; lane < vector->count; lane++) {
        begin[lane] = vector->index[lane] + slot0;
        end[lane] = lane_end(vector, lane, slot1);
        if (end[lane] < begin[lane]) end[lane] = begin[lane];
    }
    for (int32_t lane = 0; lane < vector->count;) {
        struct nh_band band = longest(begin + lane, end + lane, vector->count - lane, most_outputs);
        band.out = lane;
        band.weight = lane;
        band.out_step = 1 - band.lead * lanes;
        band.source_step = lanes;
        if (end[lane] > begin[lane] || band.outputs > 1) append(list, &band);
        lane += band.outputs;
    }
}

/* Lanes [first, last) whose first keys rise evenly, by `step`. */
static void scatter_run(const struct nh_vector *vector, int32_t lanes, int32_t slot0, int32_t slot1,
                        int32_t most_outputs, int32_t first, int32_t last, int32_t step,
                        struct nh_band_list *list) {
    int32_t key = vector->index[first] + slot0, end_key = key;
    for (int32_t lane = first; lane < last; lane++) {
        int32_t end = lane_end(vector, lane, slot1);
        if (end > end_key) end_key = end;
    }
    int32_t low = first, high = first; /* lanes [low, high) take `key`; neither ever falls */
    while (key < end_key) {
        int32_t begin[NH_MOST_BAND], end[NH_MOST_BAND], count = 0;
        for (int32_t l = low, h = high; count < most_outputs && key + count < end_key; count++) {
            while (l < last && lane_end(vector, l, slot1) <= key + count)
                l++;
            while (h < last && vector->index[h] + slot0 <= key + count)
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
            band.weight = (key - vector->index[band.source] - slot0) * lanes + band.source;
            append(list, &band);
        }
        key += band.outputs;
    }
}

void nh_band_scatter(const struct nh_vector *vector, int32_t lanes, int32_t slot0, int32_t slot1,
                     int32_t most_outputs, struct nh_band_list *list) {
    for (int32_t first = 0; first < vector->count;) {
        int32_t last = first + 1, step = 0;
        if (last < vector->count) step = vector->index[last] - vector->index[first];
        if (step == 0 || step == 1)
            while (last < vector->count && vector->index[last] - vector->index[last - 1] == step)
                last++;
        scatter_run(vector, lanes, slot0, slot1, most_outputs, first, last, step, list);
        first = last;
    }
}
