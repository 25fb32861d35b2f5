#include "wise_choice.h"

#include <string.h>

static const struct nh_solver *find_solver(const struct nh_request *request, const char *name) {
    for (int i = 0; request->table[i]; i++)
        if (nh_asked(request, request->table[i]) && !strcmp(request->table[i]->name, name))
            return request->table[i];
    return NULL;
}

/* Negative: the record comes before the other. */
static int order_of(const struct nh_wisdom_record *record, const struct nh_wise_choice *other) {
    if (record->median_ns != other->choice.measured_ns)
        return record->median_ns < other->choice.measured_ns ? -1 : 1;
    int order = strcmp(record->solver, other->solver);
    return order ? order : strcmp(record->config, other->config);
}

/* Samples of 0: there is no record yet. */
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
        choice->solver = find_solver(request, wise->solver);
        usable = choice->solver && nh_config_parse(choice->solver, wise->config, &choice->config);
    }
}

struct question {
    const char *solver;
    bool answer;
};

static void compare(void *user, const struct nh_wisdom_record *record) {
    struct question *question = user;
    question->answer = question->answer || !strcmp(record->solver, question->solver);
}

bool nh_wise_about(const struct nh_request *request, const struct nh_wisdom_key *key,
                   const struct nh_solver *solver) {
    struct question question = {.solver = solver->name};
    nh_wisdom_visit(request->wisdom, key, compare, &question);
    return question.answer;
}
