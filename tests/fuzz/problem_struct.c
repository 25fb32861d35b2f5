/* Any bytes as a problem, and as the window tables of its axes: refused with a text, or canonicalised without harm. As a member of a group it is refused with its index, or
 * planned, and an execute without tensors is refused unless there is nothing to compute. */
#include "nhood.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void in_group(nhood_context *context, const nhood_problem *problem, bool legal) {
    nhood_problem members[3] = {*problem, *problem, *problem};
    nhood_group_io io = {.struct_size = sizeof io, .count = 3};
    nhood_plan *plan = NULL;
    nhood_problem_init(&members[0], NHOOD_OP_FWD, NHOOD_DTYPE_F32, 2);
    nhood_status status = nhood_plan_create_group(context, 0, members, 3, NULL, &plan);
    if (!status != !!plan || (status && strncmp(nhood_last_error(), "member 1: ", 10))) abort();
    if (!legal && status != NHOOD_ERR_ARGUMENT) abort();
    if (plan && nhood_plan_execute_group(plan, &io) != NHOOD_ERR_ARGUMENT) abort();
    nhood_plan_release(plan);
}

/* Tables hold anything, but cannot be longer than the caller says. */
static void give_tables(nhood_problem *problem, const uint8_t *data, size_t size) {
    enum { MOST_QUERIES = 64 };
    static nhood_range range[MOST_QUERIES];
    memset(range, 0, sizeof range);
    memcpy(range, data, size < sizeof range ? size : sizeof range);
    for (int i = 1; i < MOST_QUERIES && data && size & 1; i++) /* half of them mostly legal */
        range[i].first = range[i - 1].first + (range[i].first & 3);
    for (int a = 0; a < 3; a++) {
        const bool has = problem->windows[a].range && problem->axis[a].length <= MOST_QUERIES;
        problem->windows[a].range = has ? range : NULL;
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static nhood_context *context;
    const uint8_t *const start = data;
    const size_t all = size;
    nhood_problem problem;
    char text[512];
    if (!context && nhood_context_create(NULL, &context)) abort();
    nhood_problem_init(&problem, NHOOD_OP_FWD, NHOOD_DTYPE_F32, 2); /* regions included */
    /* Each 10 bytes set one 64-bit word of the struct; the first word is its size. */
    for (; size >= 10; data += 10, size -= 10) {
        size_t word = (data[0] | (size_t)data[1] << 8) % (sizeof problem / 8 - 1) + 1;
        memcpy((char *)&problem + word * 8, data + 2, 8);
    }
    give_tables(&problem, start, all);
    double flops = 0;
    nhood_status status = nhood_problem_cost(&problem, &flops, NULL);
    if (status && status != NHOOD_ERR_ARGUMENT) abort();
    if (status && !nhood_last_error()[0]) abort();
    if (!status && nhood_problem_format(&problem, text, sizeof text, NULL)) abort();
    if (!status && flops < 1e12)
        for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
            int64_t elements = -1;
            if (nhood_problem_elements(&problem, tensor, &elements) || elements < 0) abort();
        }
    if (status || flops < 1e6) in_group(context, &problem, !status);
    return 0;
}
