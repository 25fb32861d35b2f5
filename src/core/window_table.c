/* Windows of an axis that are not by formula: a range of keys for every query coordinate, from the caller's table or from one
 * of nhood.h's generators. */
#include "window_table.h"

#include "hash.h"

#include <stdio.h>

#include <string.h>

static struct nh_range cut(int64_t begin, int64_t end, int64_t keys) {
    return (struct nh_range){nh_max(0, nh_min(begin, keys)), nh_max(0, nh_min(end, keys))};
}

static inline struct nh_range range_of(const struct nh_windows *windows, int64_t length,
                                       int64_t index) {
    const int64_t keys = windows->keys, window = windows->window;
    int64_t begin = 0, end = 0;
    switch (windows->kind) {
    case NHOOD_WINDOWS_TABLE:
        begin = windows->range[index].first;
        end = begin + windows->range[index].count;
        break;
    case NHOOD_WINDOWS_RESAMPLED:
        begin = (2 * index + 1) * keys / (2 * length) - window / 2;
        begin = nh_max(0, nh_min(begin, keys - window));
        end = begin + window;
        break;
    case NHOOD_WINDOWS_CUT:
        begin = index - window / 2;
        end = begin + window;
        break;
    case NHOOD_WINDOWS_BLOCKS:
        begin = (index + windows->shift) / window * window - windows->shift;
        end = begin + window;
        break;
    }
    return cut(begin, end, windows->valid);
}

struct nh_range nh_windows_range(const struct nh_windows *windows, int64_t length, int64_t index) {
    return range_of(windows, length, index);
}

/* The number of queries whose range begins at or before a key or, with `ends`, ends there. */
static int64_t queries_until(const struct nh_windows *windows, int64_t length, int64_t key,
                             bool ends) {
    int64_t low = 0, high = length;
    while (low < high) {
        const int64_t middle = low + (high - low) / 2;
        const struct nh_range range = nh_windows_range(windows, length, middle);
        if ((ends ? range.end : range.begin) <= key) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

struct nh_range nh_windows_queries(const struct nh_windows *windows, int64_t length, int64_t key) {
    const int64_t first = queries_until(windows, length, key, true);
    return (struct nh_range){first, nh_max(first, queries_until(windows, length, key, false))};
}

/* As nh_check_field, with a shorter text where only one value is legal. */
static nhood_status check_field(const char *where, const char *field, int64_t value, int64_t low,
                                int64_t high) {
    if (low != high || value == low) return nh_check_field(where, field, value, low, high);
    return nh_error(NHOOD_ERR_ARGUMENT, "%s.%s = %lld is not %lld", where, field, (long long)value,
                    (long long)low);
}

/* The first range that is not legal, or `queries`. Tables may be long, so the loop has no branches but one for each part of it. */
static int64_t find_illegal(const nhood_range *range, int64_t queries, int64_t keys) {
    enum { PART = 256 };
    int64_t before_first = 0, before_end = 0;
    for (int64_t part = 0; part < queries; part += PART) {
        const int64_t end_of_part = nh_min(part + PART, queries);
        const int64_t first_of_part = before_first, end_before_part = before_end;
        int64_t wrong = 0; /* negative if something is */
        for (int64_t i = part; i < end_of_part; i++) {
            const int64_t first = range[i].first, count = range[i].count, end = first + count;
            wrong |= count | (first - before_first) | (end - before_end) | (keys - end);
            before_first = first;
            before_end = end;
        }
        if (wrong >= 0) continue;
        before_first = first_of_part;
        before_end = end_before_part;
        for (int64_t i = part; i < end_of_part; i++) {
            const int64_t first = range[i].first, count = range[i].count, end = first + count;
            if (count < 0 || first < before_first || end < before_end || end > keys) return i;
            before_first = first;
            before_end = end;
        }
    }
    return queries;
}

static nhood_status check_ranges(const char *where, const nhood_range *range, int64_t queries,
                                 int64_t keys) {
    const int64_t i = find_illegal(range, queries, keys);
    if (i == queries) return NHOOD_OK;
    const int64_t first = range[i].first, count = range[i].count;
    if (first < 0 || count < 0 || first + count > keys)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "%s[%lld] = {first %lld, count %lld} is not a range of %lld keys", where,
                        (long long)i, (long long)first, (long long)count, (long long)keys);
    return nh_error(NHOOD_ERR_ARGUMENT,
                    "%s[%lld] = {first %lld, count %lld} goes back behind {first %lld, count %lld} "
                    "before it",
                    where, (long long)i, (long long)first, (long long)count,
                    (long long)range[i - 1].first, (long long)range[i - 1].count);
}

static nhood_status check_kind(const char *where, const nhood_windows *given, int64_t length,
                               int64_t keys) {
    const bool resampled = given->kind == NHOOD_WINDOWS_RESAMPLED;
    const bool table = given->kind == NHOOD_WINDOWS_TABLE;
    const bool blocks = given->kind == NHOOD_WINDOWS_BLOCKS;
    const int64_t most = table ? 0 : resampled ? keys : INT32_MAX;
    nhood_status status;
    if ((status = check_field(where, "reserved", given->reserved, 0, 0)) ||
        (status = check_field(where, "keys", keys, 1, INT32_MAX)) ||
        (!table && !resampled && (status = check_field(where, "keys", keys, length, length))) ||
        (status = check_field(where, "window", given->window, table ? 0 : 1, most)) ||
        (status = check_field(where, "shift", given->shift, 0, blocks ? given->window - 1 : 0)) ||
        (status = check_field(where, "padding", given->padding, 0, keys)))
        return status;
    if (table && !given->range) return nh_error(NHOOD_ERR_ARGUMENT, "%s.range is NULL", where);
    if (!table && given->range)
        return nh_error(NHOOD_ERR_ARGUMENT, "%s.range is not NULL: only a TABLE has one", where);
    return NHOOD_OK;
}

static void consider(int64_t length, int64_t index, struct nh_windows *windows) {
    const int64_t query = nh_max(0, nh_min(index, length - 1));
    const struct nh_range range = nh_windows_range(windows, length, query);
    windows->most = nh_max(windows->most, range.end - range.begin);
}

/* The most keys of a query, and the hash of a table: FNV-1a by words, as tables may be long. */
static void scan_table(int64_t length, struct nh_windows *windows) {
    const nhood_range *range = windows->range;
    uint64_t hash = NH_HASH_START;
    int64_t most = 1;
    for (int64_t i = 0; i < length; i++) {
        const uint64_t first = (uint32_t)range[i].first, count = (uint32_t)range[i].count;
        const int64_t left = windows->valid - range[i].first;
        hash = (hash ^ (first << 32 | count)) * NH_HASH_PRIME;
        most = nh_max(most, nh_min(left, range[i].count));
    }
    windows->hash = hash;
    windows->most = most;
}

static void scan(int64_t length, struct nh_windows *windows) {
    windows->most = 1;
    switch (windows->kind) {
    case NHOOD_WINDOWS_TABLE: scan_table(length, windows); break;
    case NHOOD_WINDOWS_RESAMPLED: /* all are as long, but those that padding cuts: the last ones */
        consider(length, 0, windows);
        break;
    case NHOOD_WINDOWS_CUT: /* they grow up to where they begin at key 0, and shrink from where they end at the last one */
        consider(length, windows->window / 2, windows);
        consider(length, windows->valid - windows->window + windows->window / 2, windows);
        break;
    case NHOOD_WINDOWS_BLOCKS: /* only the first may be shorter than the next, unless padding cuts that */
        consider(length, 0, windows);
        consider(length, windows->window - windows->shift, windows);
        break;
    }
}

nhood_status nh_windows_canonical(const char *where, const nhood_windows *given, int64_t length,
                                  struct nh_windows *windows) {
    char ranges[48];
    memset(windows, 0, sizeof *windows);
    nhood_status status =
        check_field(where, "kind", given->kind, NHOOD_WINDOWS_FORMULA, NHOOD_WINDOWS_BLOCKS);
    if (status) return status;
    if (given->kind == NHOOD_WINDOWS_FORMULA) {
        if (!given->reserved && !given->keys && !given->window && !given->shift &&
            !given->padding && !given->range)
            return NHOOD_OK;
        return nh_error(NHOOD_ERR_ARGUMENT, "%s.kind = 0 (FORMULA), but other fields are not 0",
                        where);
    }
    if (length < 1 || length > INT32_MAX)
        return nh_error(NHOOD_ERR_ARGUMENT,
                        "%s.kind = %d: the axis' length %lld is not in [1, 2^31)", where,
                        (int)given->kind, (long long)length);
    const bool own_keys =
        given->kind == NHOOD_WINDOWS_TABLE || given->kind == NHOOD_WINDOWS_RESAMPLED;
    const int64_t keys = own_keys || given->keys ? given->keys : length;
    if ((status = check_kind(where, given, length, keys))) return status;
    if (given->kind == NHOOD_WINDOWS_TABLE) {
        snprintf(ranges, sizeof ranges, "%s.range", where);
        if ((status = check_ranges(ranges, given->range, length, keys))) return status;
    }
    *windows = (struct nh_windows){.kind = given->kind,
                                   .keys = keys,
                                   .window = given->window,
                                   .shift = given->shift,
                                   .valid = keys - given->padding,
                                   .range = given->range};
    scan(length, windows);
    return NHOOD_OK;
}

bool nh_windows_are_formula(const struct nh_windows *windows, int64_t length) {
    if (windows->keys != length || windows->valid != length || windows->most > length) return false;
    if (windows->kind == NHOOD_WINDOWS_RESAMPLED) return true;
    for (int64_t i = 0; i < length; i++) {
        const struct nh_range own = nh_windows_range(windows, length, i),
                              formula = nh_window_range(length, windows->most, 1, 0, i);
        if (own.begin != formula.begin || own.end != formula.end) return false;
    }
    return true;
}

nhood_status nh_windows_keep(const struct nh_host *host, struct nh_axis axis[NH_AXES],
                             nhood_range **kept) {
    size_t ranges = 0;
    *kept = NULL;
    for (int a = 0; a < NH_AXES; a++)
        if (axis[a].windows.range) ranges += (size_t)axis[a].length;
    if (!ranges) return NHOOD_OK;
    nhood_range *next = *kept = nh_allocate_unset(host, ranges * sizeof **kept);
    if (!next) return NHOOD_ERR_MEMORY;
    for (int a = 0; a < NH_AXES; a++) {
        if (!axis[a].windows.range) continue;
        memcpy(next, axis[a].windows.range, (size_t)axis[a].length * sizeof *next);
        axis[a].windows.range = next;
        next += axis[a].length;
    }
    return NHOOD_OK;
}

void nh_windows_ranges(const struct nh_windows *windows, int64_t length, nhood_range *range) {
    if (windows->kind == NHOOD_WINDOWS_TABLE && windows->valid == windows->keys) {
        if (range != windows->range) memcpy(range, windows->range, (size_t)length * sizeof *range);
        return;
    }
    for (int64_t i = 0; i < length; i++) {
        const struct nh_range keys = range_of(windows, length, i);
        range[i] = (nhood_range){(int32_t)keys.begin, (int32_t)(keys.end - keys.begin)};
    }
}

void nh_windows_inverse(const nhood_range *range, int64_t queries, int64_t keys,
                        nhood_range *inverse) {
    /* queries before `first` end before the key, those before `end` begin at or before it */
    int64_t key = 0;
    for (int64_t first = 0; first < queries; first++)
        for (const int64_t last = nh_min(keys, range[first].first + (int64_t)range[first].count);
             key < last; key++)
            inverse[key].first = (int32_t)first;
    for (; key < keys; key++)
        inverse[key].first = (int32_t)queries;
    key = 0;
    for (int64_t end = 0; end < queries; end++)
        for (const int64_t last = nh_min(keys, range[end].first); key < last; key++)
            inverse[key].count = (int32_t)nh_max(0, end - inverse[key].first);
    for (; key < keys; key++)
        inverse[key].count = (int32_t)nh_max(0, queries - inverse[key].first);
}

nhood_status nhood_windows_ranges(const nhood_windows *windows, int64_t length,
                                  nhood_range *range) {
    struct nh_windows canonical;
    if (!windows) return nh_error(NHOOD_ERR_ARGUMENT, "windows is NULL");
    if (!range) return nh_error(NHOOD_ERR_ARGUMENT, "range is NULL");
    nhood_status status = nh_windows_canonical("windows", windows, length, &canonical);
    if (status) return status;
    if (!canonical.kind)
        return nh_error(NHOOD_ERR_ARGUMENT, "windows.kind = 0: nhood_window reports the windows of "
                                            "a formula");
    nh_windows_ranges(&canonical, length, range);
    return NHOOD_OK;
}

nhood_status nhood_windows_inverse(const nhood_range *range, int64_t queries, int64_t keys,
                                   nhood_range *inverse) {
    if (!range) return nh_error(NHOOD_ERR_ARGUMENT, "range is NULL");
    if (!inverse) return nh_error(NHOOD_ERR_ARGUMENT, "inverse is NULL");
    if (queries < 1 || queries > INT32_MAX)
        return nh_error(NHOOD_ERR_ARGUMENT, "queries = %lld is not in [1, 2^31)",
                        (long long)queries);
    if (keys < 1 || keys > INT32_MAX)
        return nh_error(NHOOD_ERR_ARGUMENT, "keys = %lld is not in [1, 2^31)", (long long)keys);
    nhood_status status = check_ranges("range", range, queries, keys);
    if (status) return status;
    nh_windows_inverse(range, queries, keys, inverse);
    return NHOOD_OK;
}
