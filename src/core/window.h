/* The definition of a neighborhood, for both host and device: NVRTC compiles this file, too.
 *
 * Positions are those inside one dilation group: with dilation d, token i of an axis is position i div d of group
 * i mod d. Callers split tokens into groups; only nh_axis_group_length below knows about dilation. */
#ifndef NH_WINDOW_H
#define NH_WINDOW_H

#ifdef __CUDACC__
#define NH_FN static __device__ __forceinline__
#else
#define NH_FN static inline
#endif

/* Kernels whose axes are known to be shorter than 2^31 tokens may use int, as 64-bit divisions are slow on GPUs. */
#ifndef NH_POSITION
#define NH_POSITION long long
#endif

struct nh_range {
    NH_POSITION begin, end; /* positions [begin, end) */
};

NH_FN NH_POSITION nh_axis_group_length(NH_POSITION length, NH_POSITION dilation,
                                       NH_POSITION group) {
    return (length - group + dilation - 1) / dilation;
}

/* Keys that the query at `position` attends. */
NH_FN struct nh_range nh_window_range(NH_POSITION group_length, NH_POSITION window,
                                      NH_POSITION stride, int causal, NH_POSITION position) {
    struct nh_range range;
    NH_POSITION block = position / stride * stride;
    NH_POSITION leader = block + (causal ? stride - 1 : stride / 2);
    if (leader > group_length - 1) leader = group_length - 1;
    NH_POSITION start = leader - (causal ? window - 1 : window / 2);
    if (!causal && start > group_length - window) start = group_length - window;
    if (start < 0) start = 0;
    range.begin = start;
    range.end = causal ? position + 1 : start + window;
    return range;
}

/* Queries that attend the key at `position`. They are a contiguous range, because begin and end of nh_window_range never
 * decrease from query to query. It is found by solving begin(j) <= position < end(j) for the query j. */
NH_FN struct nh_range nh_inverse_range(NH_POSITION group_length, NH_POSITION window,
                                       NH_POSITION stride, int causal, NH_POSITION position) {
    struct nh_range range;
    NH_POSITION last = group_length - 1;
    if (causal) {
        range.begin = position;
        if (position + window - 1 < last) {
            last = (position + window - stride) / stride * stride + stride - 1;
            if (last > group_length - 1) last = group_length - 1;
        }
        range.end = last + 1;
        return range;
    }
    NH_POSITION left = window / 2, lead = stride / 2;
    range.begin = 0;
    if (position >= window) {
        NH_POSITION block = (position - window + left + 1 - lead + stride - 1) / stride;
        if (block < 0) block = 0;
        if (block > last / stride) block = last / stride;
        range.begin = block * stride;
    }
    if (position < group_length - window) {
        NH_POSITION end = ((position + left - lead) / stride + 1) * stride;
        range.end = end < group_length ? end : group_length;
    } else {
        range.end = group_length;
    }
    return range;
}

/* Keys that the query at `position` >= 0 attends on a periodic axis, whose windows are never shifted. They may lie before
 * 0 or beyond the group, and count modulo its length, which the stride divides. */
NH_FN struct nh_range nh_periodic_range(NH_POSITION window, NH_POSITION stride,
                                        NH_POSITION position) {
    struct nh_range range;
    range.begin = position / stride * stride + stride / 2 - window / 2;
    range.end = range.begin + window;
    return range;
}

/* Queries that attend the key at `position` >= 0 on a periodic axis: those of all blocks of `stride` queries whose window
 * contains the key. They, too, count modulo the group's length. */
NH_FN struct nh_range nh_periodic_inverse_range(NH_POSITION window, NH_POSITION stride,
                                                NH_POSITION position) {
    struct nh_range range;
    NH_POSITION last =
        position + window / 2 - stride / 2; /* blocks that see it begin in (last - window, last] */
    NH_POSITION past =
        window / stride + 1; /* blocks added so that the dividend below is not negative */
    range.begin = ((last - window + past * stride) / stride - past + 1) * stride;
    range.end = (last / stride + 1) * stride;
    return range;
}

/* What the row at a position sees: the keys of a query or, with `inverse`, the queries of a key. On a periodic axis the
 * position is at least -group_length. */
NH_FN struct nh_range nh_seen_range(NH_POSITION group_length, NH_POSITION window,
                                    NH_POSITION stride, int causal, int periodic, int inverse,
                                    NH_POSITION position) {
    if (periodic) { /* moved by one group length, so that no dividend is negative */
        struct nh_range range =
            inverse ? nh_periodic_inverse_range(window, stride, position + group_length)
                    : nh_periodic_range(window, stride, position + group_length);
        range.begin -= group_length;
        range.end -= group_length;
        return range;
    }
    return inverse ? nh_inverse_range(group_length, window, stride, causal, position)
                   : nh_window_range(group_length, window, stride, causal, position);
}

/* The number of laps of a periodic axis by which a position is ahead of `from`, rounded down. */
NH_FN NH_POSITION nh_laps(NH_POSITION position, NH_POSITION from, NH_POSITION group_length) {
    NH_POSITION laps = (position - from) / group_length;
    return position - from < laps * group_length ? laps - 1 : laps;
}

/* The part of a range that lies in [begin, end) or, if there is none, the nearest empty range there. */
NH_FN struct nh_range nh_part_of_range(struct nh_range range, NH_POSITION begin, NH_POSITION end) {
    if (range.begin < begin) range.begin = begin;
    if (range.begin > end) range.begin = end;
    if (range.end > end) range.end = end;
    if (range.end < range.begin) range.end = range.begin;
    return range;
}

/* The part of a range that the tensors cover; they cover the positions `have` of a group and, on a periodic axis, the same
 * positions of every lap. On a periodic axis the caller makes sure that this part lies in one piece, in the lap in which
 * the range ends. Like those of ranges, its ends never decrease from row to row. */
NH_FN struct nh_range nh_covered_part(struct nh_range range, struct nh_range have,
                                      NH_POSITION group_length, int periodic) {
    NH_POSITION shift = 0;
    if (periodic) {
        if (have.end - have.begin == group_length) return range;
        shift = nh_laps(range.end - 1, have.begin, group_length) * group_length;
    }
    return nh_part_of_range(range, have.begin + shift, have.end + shift);
}

#endif
