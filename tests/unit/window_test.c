/* The window maths against its definition, for every small axis. */
#include "test.h"
#include "window.h"

/* start and end as the definition states them, with nothing simplified. */
static void definition(int length, int window, int stride, int causal, int j, int *start,
                       int *end) {
    int left = window / 2, leader = j / stride * stride + (causal ? stride - 1 : stride / 2);
    if (leader > length - 1) leader = length - 1;
    if (causal) {
        *start = leader - (window - 1) > 0 ? leader - (window - 1) : 0;
        *end = j + 1;
        return;
    }
    *start = leader - left;
    if (*start > length - window) *start = length - window;
    if (*start < 0) *start = 0;
    *end = *start + window;
}

static void check_axis(int length, int window, int stride, int causal) {
    int first[32], last[32], start, end;
    for (int x = 0; x < length; x++)
        first[x] = last[x] = -1;
    for (int j = 0; j < length; j++) {
        struct nh_range range = nh_window_range(length, window, stride, causal, j);
        definition(length, window, stride, causal, j, &start, &end);
        CHECK(range.begin == start && range.end == end, "L %d k %d s %d causal %d query %d", length,
              window, stride, causal, j);
        CHECK(causal || (range.begin <= j && j < range.end), "query %d outside its window", j);
        for (int x = start; x < end; x++) {
            if (first[x] < 0) first[x] = j;
            CHECK(last[x] < 0 || last[x] == j - 1, "inverse window of %d is not contiguous", x);
            last[x] = j;
        }
    }
    for (int x = 0; x < length; x++) {
        struct nh_range range = nh_inverse_range(length, window, stride, causal, x);
        CHECK(range.begin == first[x] && range.end == last[x] + 1,
              "inverse of key %d: L %d k %d s %d causal %d: %lld..%lld, expected %d..%d", x, length,
              window, stride, causal, range.begin, range.end, first[x], last[x] + 1);
    }
}

/* On a periodic axis: the window's size and place, and that both directions tell the same pairs. */
static void check_periodic(int length, int window, int stride) {
    static int attended[64][64], attending[64][64];
    for (int j = 0; j < length; j++)
        for (int x = 0; x < length; x++)
            attended[j][x] = attending[j][x] = 0;
    for (int j = 0; j < length; j++) {
        struct nh_range range = nh_periodic_range(window, stride, j);
        int leader = j / stride * stride + stride / 2;
        CHECK(range.begin == leader - window / 2 && range.end == range.begin + window,
              "L %d k %d s %d query %d", length, window, stride, j);
        for (long long x = range.begin; x < range.end; x++)
            attended[j][(x + length) % length]++;
        range = nh_periodic_inverse_range(window, stride, j);
        for (long long q = range.begin; q < range.end; q++)
            attending[(q + 2 * length) % length][j]++;
    }
    for (int j = 0; j < length; j++)
        for (int x = 0; x < length; x++)
            CHECK(attended[j][x] <= 1 && attended[j][x] == attending[j][x],
                  "L %d k %d s %d query %d key %d: %d, inverse %d", length, window, stride, j, x,
                  attended[j][x], attending[j][x]);
}

int main(void) {
    for (int length = 1; length <= 20; length++)
        for (int window = 1; window <= length; window++)
            for (int stride = 1; stride <= window; stride++)
                if (length % stride == 0) check_periodic(length, window, stride);
    for (int length = 1; length <= 20; length++)
        for (int window = 1; window <= length; window++)
            for (int stride = 1; stride <= window; stride++)
                for (int causal = 0; causal < 2; causal++)
                    check_axis(length, window, stride, causal);
    for (int length = 1; length < 40; length++)
        for (int dilation = 1; dilation <= length; dilation++) {
            long long sum = 0;
            for (int group = 0; group < dilation; group++)
                sum += nh_axis_group_length(length, dilation, group);
            CHECK(sum == length, "groups of L %d d %d hold %lld tokens", length, dilation, sum);
        }
    return test_result();
}
