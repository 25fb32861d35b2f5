#include "wise_choice.h"

#include <string.h>

/* Returns the row of the solver, or -1 if the request has none of this name. */
static int row_of(const struct nh_request *request, const char *name) {
    for (int row = 0; row < NH_MOST_SOLVERS && request->table[row]; row++)
        if (!strcmp(request->table[row]->name, name))
            return nh_asked(request, request->table[row]) ? row : -1;
    return -1;
}

/* Returns a negative number if the record comes before the other. */
static int order_of(const struct nh_wisdom_record *record, const struct nh_wise_choice *other) {
    if (record->median_ns != other->choice.measured_ns)
        return record->median_ns < other->choice.measured_ns ? -1 : 1;
    int order = strcmp(record->solver, other->solver);
    return order ? order : strcmp(record->config, other->config);
}

/* A search for the first record after `after`. While found.choice.samples is 0, there is none. */
struct search {
    const struct nh_wise_choice *after;
    struct nh_wise_choice found;
};

static void copy(char *text, size_t capacity, const char *from) {
    size_t length = strlen(from);
    if (length >= capacity) length = capacity - 1;
    memcpy(text, from, length);
    text[length] = '\0';
}

static void consider(void *user, const struct nh_wisdom_record *record) {
    struct search *search = user;
    struct nh_wise_choice *found = &search->found;
    if ((search->after->choice.samples && order_of(record, search->after) <= 0) ||
        (found->choice.samples && order_of(record, found) >= 0))
        return;
    found->choice.measured_ns = record->median_ns;
    found->choice.samples = record->samples;
    copy(found->solver, sizeof found->solver, record->solver);
    copy(found->config, sizeof found->config, record->config);
}

void nh_wise_next(const struct nh_request *request, const struct nh_wisdom_key *key,
                  struct nh_wise_choice *wise) {
    for (bool usable = false; !usable;) {
        struct search search = {.after = wise};
        nh_wisdom_visit(request->wisdom, key, consider, &search);
        *wise = search.found;
        struct nh_choice *choice = &wise->choice;
        if (!choice->samples) return;
        wise->row = row_of(request, wise->solver);
        if (wise->row < 0) continue;
        choice->solver = request->table[wise->row];
        usable = nh_config_parse(choice->solver, wise->config, &choice->config);
    }
}

/* Collects the rows of solvers with records. Records of a solver mostly follow each other, so the last row is kept. */
struct rows {
    const struct nh_request *request;
    int last; /* -1: none */
    uint32_t found;
};

static void note_row(void *user, const struct nh_wisdom_record *record) {
    struct rows *rows = user;
    const struct nh_request *request = rows->request;
    if (rows->last >= 0 && !strcmp(request->table[rows->last]->name, record->solver)) return;
    rows->last = row_of(request, record->solver);
    if (rows->last >= 0) rows->found |= UINT32_C(1) << rows->last;
}

uint32_t nh_wise_rows(const struct nh_request *request, const struct nh_wisdom_key *key) {
    struct rows rows = {.request = request, .last = -1};
    nh_wisdom_visit(request->wisdom, key, note_row, &rows);
    return rows.found;
}
