/* The problem text: parse and print. The grammar is in nhood.h. */
#include "problem.h"

#include "dtype.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- printing ---- */

struct writer {
    char *text;
    size_t capacity, length;
};

static void put(struct writer *writer, const char *text) {
    size_t length = strlen(text);
    if (writer->length < writer->capacity) {
        size_t room = writer->capacity - writer->length - 1, copied = length < room ? length : room;
        memcpy(writer->text + writer->length, text, copied);
        writer->text[writer->length + copied] = '\0';
    }
    writer->length += length;
}

/* Does without snprintf, which would take a large share of the time of planning by wisdom, whose key is this text. */
static void put_integer(struct writer *writer, const char *lead, int64_t value) {
    char digits[24], *first = digits + sizeof digits - 1;
    *first = '\0';
    put(writer, lead);
    do
        *--first = (char)('0' + value % 10);
    while ((value /= 10) != 0);
    put(writer, first);
}

/* The text has '.' in every locale, where snprintf may write a comma or several bytes. */
static void put_number(struct writer *writer, const char *lead, double value) {
    static const char others[] = "0123456789+-e";
    char number[48];
    snprintf(number, sizeof number, "%.17g", value);
    size_t whole = strspn(number, others), point = strcspn(number + whole, others);
    char *rest = number + whole + point;
    number[whole] = '\0';
    put(writer, lead);
    put(writer, number);
    if (point) put(writer, ".");
    if (point) put(writer, rest);
}

static void put_axes(struct writer *writer, const struct nh_problem *problem, const char *lead,
                     size_t offset) {
    for (int a = NH_AXES - problem->rank; a < NH_AXES; a++, lead = "x") {
        int64_t value;
        memcpy(&value, (const char *)&problem->axis[a] + offset, sizeof value);
        put_integer(writer, lead, value);
    }
}

static void put_windows(struct writer *writer, const struct nh_windows *windows) {
    static const char digits[] = "0123456789abcdef";
    char hash[17] = {0};
    switch (windows->kind) {
    case NHOOD_WINDOWS_TABLE:
        for (int i = 0; i < 16; i++)
            hash[i] = digits[windows->hash >> (60 - 4 * i) & 15];
        put_integer(writer, "t", windows->keys);
        put(writer, "#");
        put(writer, hash);
        break;
    case NHOOD_WINDOWS_RESAMPLED:
        put_integer(writer, "r", windows->keys);
        put_integer(writer, "w", windows->window);
        break;
    case NHOOD_WINDOWS_CUT: put_integer(writer, "z", windows->window); break;
    case NHOOD_WINDOWS_BLOCKS:
        put_integer(writer, "b", windows->window);
        put_integer(writer, "+", windows->shift);
        break;
    }
    if (windows->valid < windows->keys) put_integer(writer, "v", windows->valid);
}

/* The window of each axis, or where its windows come from. */
static void put_all_windows(struct writer *writer, const struct nh_problem *problem) {
    put(writer, ":w");
    for (int a = NH_AXES - problem->rank; a < NH_AXES; a++) {
        const struct nh_axis *axis = &problem->axis[a];
        if (a > NH_AXES - problem->rank) put(writer, "x");
        if (axis->windows.kind) put_windows(writer, &axis->windows);
        if (!axis->windows.kind) put_integer(writer, "", axis->window);
    }
}

/* Offset and length of each axis' box of queries or keys, unless all boxes are whole. */
static void put_boxes(struct writer *writer, const struct nh_problem *problem, const char *lead,
                      bool query) {
    bool whole = true;
    for (int pass = 0; pass < 2; pass++) {
        for (int a = NH_AXES - problem->rank; a < NH_AXES; a++) {
            const struct nh_axis *axis = &problem->axis[a];
            const struct nh_box *box = query ? &axis->query : &axis->key;
            whole &= query ? nh_is_whole(axis, box) : nh_has_all_keys(axis);
            if (!pass) continue;
            put_integer(writer, lead, box->offset);
            put_integer(writer, "+", box->length);
            lead = "x";
        }
        if (whole) return;
    }
}

static void put_bits(struct writer *writer, const struct nh_problem *problem, const char *lead,
                     size_t offset) {
    put(writer, lead);
    for (int a = NH_AXES - problem->rank; a < NH_AXES; a++) {
        int32_t value;
        memcpy(&value, (const char *)&problem->axis[a] + offset, sizeof value);
        put(writer, value ? "1" : "0");
    }
}

size_t nh_problem_text(const struct nh_problem *problem, char *text, size_t capacity) {
    struct writer writer = {text, capacity, 0};
    put(&writer, nh_op_name(problem->op));
    put(&writer, ":");
    put(&writer, nh_dtype_name(problem->dtype));
    put_integer(&writer, ":b", problem->batch);
    put_integer(&writer, "h", problem->heads);
    if (problem->kv_heads != problem->heads) put_integer(&writer, "k", problem->kv_heads);
    put_integer(&writer, "d", problem->dim);
    if (problem->dim_v != problem->dim) put_integer(&writer, "v", problem->dim_v);
    put_axes(&writer, problem, ":", offsetof(struct nh_axis, length));
    put_all_windows(&writer, problem);
    if (nh_problem_strided(problem))
        put_axes(&writer, problem, ":s", offsetof(struct nh_axis, stride));
    if (nh_problem_dilated(problem))
        put_axes(&writer, problem, ":d", offsetof(struct nh_axis, dilation));
    if (nh_problem_causal(problem))
        put_bits(&writer, problem, ":c", offsetof(struct nh_axis, causal));
    if (nh_problem_periodic(problem))
        put_bits(&writer, problem, ":p", offsetof(struct nh_axis, periodic));
    put_boxes(&writer, problem, ":q", true);
    put_boxes(&writer, problem, ":k", false);
    if (problem->extra_tokens) put_integer(&writer, ":x", problem->extra_tokens);
    double usual = problem->op == NHOOD_OP_PN ? 1.0 : 1.0 / sqrt((double)problem->dim);
    if (problem->scale != usual) put_number(&writer, ":scale", problem->scale);
    if (problem->has_bias) put(&writer, ":rpb");
    if (problem->flags & NHOOD_FLAG_DETERMINISTIC) put(&writer, ":det");
    if (problem->flags & NHOOD_FLAG_ALLOW_TF32) put(&writer, ":tf32");
    if (problem->flags & NHOOD_FLAG_CLAMP_WINDOW) put(&writer, ":clamp");
    if (problem->flags & NHOOD_FLAG_ZERO_FILL) put(&writer, ":zfill");
    if (problem->flags & NHOOD_FLAG_UNALIGNED) put(&writer, ":unaligned");
    return writer.length;
}

/* ---- parsing ---- */

struct reader {
    const char *text, *at;
};

static nhood_status bad(const struct reader *reader, const char *expected) {
    return nh_error(NHOOD_ERR_ARGUMENT, "problem text, column %d ('%.12s'): expected %s",
                    (int)(reader->at - reader->text) + 1, reader->at, expected);
}

static bool take(struct reader *reader, const char *word) {
    size_t length = strlen(word);
    if (strncmp(reader->at, word, length) != 0) return false;
    reader->at += length;
    return true;
}

/* A decimal integer of at most 18 digits. */
static bool take_integer(struct reader *reader, int64_t *value) {
    int digits = 0;
    int64_t sum = 0;
    while (reader->at[digits] >= '0' && reader->at[digits] <= '9') {
        if (digits == 18) return false;
        sum = sum * 10 + (reader->at[digits] - '0');
        digits++;
    }
    if (!digits) return false;
    reader->at += digits;
    *value = sum;
    return true;
}

/* Reads n[xn[xn]]. Returns the number of values, 0 on error. */
static int take_list(struct reader *reader, int64_t value[3]) {
    int count = 0;
    do {
        if (count == 3 || !take_integer(reader, &value[count])) return 0;
        count++;
    } while (take(reader, "x"));
    return count;
}

/* Reads the window of an axis, or where its windows come from. */
static nhood_status take_window(struct reader *reader, nhood_axis *axis, nhood_windows *windows) {
    int64_t valid;
    bool read = true;
    if (take(reader, "r")) {
        windows->kind = NHOOD_WINDOWS_RESAMPLED;
        read = take_integer(reader, &windows->keys) && take(reader, "w") &&
               take_integer(reader, &windows->window);
        if (!read) return bad(reader, "r<keys>w<window>");
    } else if (take(reader, "z")) {
        windows->kind = NHOOD_WINDOWS_CUT;
        if (!take_integer(reader, &windows->window)) return bad(reader, "z<window>");
    } else if (take(reader, "b")) {
        windows->kind = NHOOD_WINDOWS_BLOCKS;
        read = take_integer(reader, &windows->window) && take(reader, "+") &&
               take_integer(reader, &windows->shift);
        if (!read) return bad(reader, "b<block>+<shift>");
    } else if (*reader->at == 't') {
        return bad(reader, "no table: a text names it by a hash, from which it cannot be made");
    } else {
        return take_integer(reader, &axis->window)
                   ? NHOOD_OK
                   : bad(reader, ":w<window>x.., one per axis, or r<keys>w<window>, z<window> or "
                                 "b<block>+<shift>");
    }
    if (!take(reader, "v")) return NHOOD_OK;
    const int64_t keys = windows->keys ? windows->keys : axis->length;
    const struct reader before = *reader;
    if (!take_integer(reader, &valid)) return bad(reader, "v<valid keys>");
    if (valid > keys) return bad(&before, "at most as many valid keys as the axis has");
    windows->padding = keys - valid;
    return NHOOD_OK;
}

static bool at_end_of_field(const struct reader *reader) {
    return *reader->at == '\0' || *reader->at == ':';
}

/* Reads one of `count` words, which must end at a field boundary. Returns its index, or -1. */
static int take_word(struct reader *reader, const char *const *word, int count) {
    for (int i = 0; i < count; i++) {
        struct reader trial = *reader;
        if (take(&trial, word[i]) && at_end_of_field(&trial)) {
            *reader = trial;
            return i;
        }
    }
    return -1;
}

static nhood_status parse_head(struct reader *reader, nhood_problem *problem) {
    static const char *const ops[] = {"fwd", "bwd", "pn", "nn", "in"};
    static const char *const dtypes[] = {"f64", "f32", "f16", "bf16"};
    int op = take_word(reader, ops, 5);
    if (op < 0 || !take(reader, ":")) return bad(reader, "fwd, bwd, pn, nn or in, then ':'");
    int dtype = take_word(reader, dtypes, 4);
    if (dtype < 0 || !take(reader, ":")) return bad(reader, "f64, f32, f16 or bf16, then ':'");
    nhood_problem_init(problem, op + NHOOD_OP_FWD, dtype + NHOOD_DTYPE_F64, 1);
    if (!take(reader, "b") || !take_integer(reader, &problem->batch))
        return bad(reader, "b<batch>");
    if (!take(reader, "h") || !take_integer(reader, &problem->heads))
        return bad(reader, "h<heads>");
    if (take(reader, "k")) {
        if (!take_integer(reader, &problem->kv_heads) || !problem->kv_heads)
            return bad(reader, "k<kv heads>");
    }
    if (!take(reader, "d") || !take_integer(reader, &problem->dim))
        return bad(reader, "d<head dim>");
    if (take(reader, "v")) {
        if (!take_integer(reader, &problem->dim_v) || !problem->dim_v)
            return bad(reader, "v<value dim>");
    }
    int64_t list[3];
    int rank = take(reader, ":") ? take_list(reader, list) : 0;
    if (!rank) return bad(reader, ":<length>x.. of one to three axes");
    problem->rank = rank;
    for (int a = 0; a < rank; a++)
        problem->axis[a].length = list[a];
    for (int a = 0; a < rank; a++) {
        if (!take(reader, a ? "x" : ":w")) return bad(reader, ":w<window>x.., one per axis");
        const nhood_status status = take_window(reader, &problem->axis[a], &problem->windows[a]);
        if (status) return status;
    }
    if (!at_end_of_field(reader)) return bad(reader, "':' or the end");
    return NHOOD_OK;
}

static nhood_status parse_bits(struct reader *reader, nhood_problem *problem, bool causal) {
    for (int a = 0; a < problem->rank; a++) {
        if (*reader->at != '0' && *reader->at != '1') return bad(reader, "one 0 or 1 per axis");
        int32_t *field = causal ? &problem->axis[a].causal : &problem->axis[a].periodic;
        *field = *reader->at++ - '0';
    }
    return NHOOD_OK;
}

static nhood_status parse_boxes(struct reader *reader, nhood_problem *problem, bool query) {
    for (int a = 0; a < problem->rank; a++) {
        nhood_region *region = &problem->region[a];
        int64_t *offset = query ? &region->query_offset : &region->key_offset;
        int64_t *length = query ? &region->query_length : &region->key_length;
        if ((a && !take(reader, "x")) || !take_integer(reader, offset) || !take(reader, "+") ||
            !take_integer(reader, length))
            return bad(reader, "<offset>+<length> per axis, joined by 'x'");
        if (!*length) return bad(reader, "a length of at least 1 before this");
    }
    return NHOOD_OK;
}

static bool take_number(struct reader *reader, double *value) {
    enum { MOST_BYTES = 39, POINT_BYTES = 16 };
    char half[POINT_BYTES + 3], copy[MOST_BYTES + POINT_BYTES + 1], *end;
    size_t length = strcspn(reader->at, ":");
    if (!length || length > MOST_BYTES) return false;
    if (strspn(reader->at, "0123456789+-.eE") != length) return false;
    size_t whole = strcspn(reader->at, ".");
    if (whole < length) {
        /* strtod expects the decimal point of the locale, so 0.5 is printed to find it: "0.5" or "0,5". */
        snprintf(half, sizeof half, "%.1f", 0.5);
        snprintf(copy, sizeof copy, "%.*s%.*s%.*s", (int)whole, reader->at, (int)strlen(half) - 2,
                 half + 1, (int)(length - whole - 1), reader->at + whole + 1);
    } else {
        snprintf(copy, sizeof copy, "%.*s", (int)length, reader->at);
    }
    *value = strtod(copy, &end);
    if (*end || !isfinite(*value)) return false;
    reader->at += length;
    return true;
}

static nhood_status parse_per_axis(struct reader *reader, nhood_problem *problem, bool stride) {
    int64_t list[3];
    if (take_list(reader, list) != problem->rank)
        return bad(reader, "one number per axis, joined by 'x'");
    for (int a = 0; a < problem->rank; a++) {
        if (stride) problem->axis[a].stride = list[a];
        if (!stride) problem->axis[a].dilation = list[a];
    }
    return NHOOD_OK;
}

/* Options with a value, by their first letters. "scale" comes before "s", with which it begins. */
enum value { SCALE, EXTRA, CAUSAL, PERIODIC, QUERY_BOX, KEY_BOX, STRIDE, DILATION, VALUES };
static const char *const value_words[VALUES] = {"scale", "x", "c", "p", "q", "k", "s", "d"};

static nhood_status parse_value(struct reader *reader, nhood_problem *problem, enum value value) {
    switch (value) {
    case SCALE:
        return take_number(reader, &problem->scale) ? NHOOD_OK : bad(reader, "a finite number");
    case EXTRA:
        return take_integer(reader, &problem->extra_tokens) ? NHOOD_OK
                                                            : bad(reader, "x<extra tokens>");
    case CAUSAL: return parse_bits(reader, problem, true);
    case PERIODIC: return parse_bits(reader, problem, false);
    case QUERY_BOX: return parse_boxes(reader, problem, true);
    case KEY_BOX: return parse_boxes(reader, problem, false);
    default: return parse_per_axis(reader, problem, value == STRIDE);
    }
}

static bool take_flag(struct reader *reader, nhood_problem *problem) {
    static const struct {
        const char *word;
        uint32_t flag;
    } flags[] = {{"det", NHOOD_FLAG_DETERMINISTIC},
                 {"tf32", NHOOD_FLAG_ALLOW_TF32},
                 {"clamp", NHOOD_FLAG_CLAMP_WINDOW},
                 {"zfill", NHOOD_FLAG_ZERO_FILL},
                 {"unaligned", NHOOD_FLAG_UNALIGNED}};
    static const char *const bias = "rpb";
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++) {
        if (take_word(reader, &flags[i].word, 1) < 0) continue;
        problem->flags |= flags[i].flag;
        return true;
    }
    if (take_word(reader, &bias, 1) < 0) return false;
    problem->has_bias = 1;
    return true;
}

/* *given has a bit for each option with a value that was read before. A second value is an error: one of the two would be
 * lost silently. */
static nhood_status parse_option(struct reader *reader, nhood_problem *problem, unsigned *given) {
    if (take_flag(reader, problem)) return NHOOD_OK;
    for (int value = 0; value < VALUES; value++) {
        struct reader trial = *reader;
        if (!take(&trial, value_words[value])) continue;
        if (*given & 1u << value) return bad(reader, "each option once");
        *given |= 1u << value;
        *reader = trial;
        return parse_value(reader, problem, (enum value)value);
    }
    return bad(reader, "s, d, c, p, q, k, x, scale, rpb, det, tf32, clamp, zfill or unaligned");
}

nhood_status nhood_problem_parse_sized(const char *text, nhood_problem *problem,
                                       size_t struct_size) {
    if (struct_size != sizeof *problem)
        return nh_error(NHOOD_ERR_ARGUMENT, "struct_size = %zu, this library knows %zu",
                        struct_size, sizeof *problem);
    if (!text) return nh_error(NHOOD_ERR_ARGUMENT, "text is NULL");
    if (!problem) return nh_error(NHOOD_ERR_ARGUMENT, "problem is NULL");
    struct reader reader = {text, text};
    nhood_problem parsed;
    unsigned given = 0;
    nhood_status status = parse_head(&reader, &parsed);
    if (status) return status;
    while (take(&reader, ":")) {
        if ((status = parse_option(&reader, &parsed, &given))) return status;
        if (!at_end_of_field(&reader)) return bad(&reader, "':' or the end");
    }
    struct nh_problem canonical;
    if ((status = nh_problem_canonical(&parsed, &canonical))) return status;
    *problem = parsed;
    return NHOOD_OK;
}

nhood_status nhood_problem_format(const nhood_problem *problem, char *text, size_t capacity,
                                  size_t *length) {
    struct nh_problem canonical;
    nhood_status status = nh_problem_canonical(problem, &canonical);
    if (status) return status;
    if (!text && capacity)
        return nh_error(NHOOD_ERR_ARGUMENT, "text is NULL, capacity is %zu", capacity);
    size_t needed = nh_problem_text(&canonical, NULL, 0);
    if (length) *length = needed;
    if (capacity <= needed)
        return nh_error(NHOOD_ERR_ARGUMENT, "capacity = %zu, the text needs %zu", capacity,
                        needed + 1);
    nh_problem_text(&canonical, text, capacity);
    return NHOOD_OK;
}
