/* Any text is parsed or refused; what is parsed prints to a text that parses to the same, and is planned. Small
 * problems are executed, in buffers of exactly the stated size. */
#include "nhood.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void execute(nhood_context *context, const nhood_problem *problem) {
    nhood_plan *plan = NULL;
    nhood_io io = {.struct_size = sizeof io};
    if (nhood_plan_create(context, 0, problem, NULL, &plan)) return;
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++) {
        int64_t elements = 0;
        nhood_problem_elements(problem, tensor, &elements);
        int wide = problem->dtype == NHOOD_DTYPE_F64, half = problem->dtype >= NHOOD_DTYPE_F16;
        size_t bytes = wide ? 8 : half && tensor != NHOOD_LSE && tensor != NHOOD_D_LSE ? 2 : 4;
        if (elements) io.data[tensor] = calloc((size_t)elements, bytes);
    }
    io.workspace_bytes = nhood_plan_workspace_bytes(plan);
    io.workspace = aligned_alloc(64, io.workspace_bytes ? io.workspace_bytes : 64);
    if (nhood_plan_execute(plan, &io)) abort();
    for (int tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        free(io.data[tensor]);
    free(io.workspace);
    nhood_plan_release(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static nhood_context *context;
    char text[512], again[512];
    nhood_problem problem, second;
    size_t length = 0;
    double flops = 0, bytes = 0;
    if (!context && nhood_context_create(NULL, &context)) abort();
    if (size >= sizeof text) return 0;
    memcpy(text, data, size);
    text[size] = '\0';
    if (nhood_problem_parse(text, &problem)) {
        if (!nhood_last_error()[0]) abort();
        return 0;
    }
    if (nhood_problem_format(&problem, text, sizeof text, &length) || strlen(text) != length)
        abort();
    if (nhood_problem_parse(text, &second) ||
        nhood_problem_format(&second, again, sizeof again, NULL) || strcmp(text, again) != 0)
        abort();
    if (nhood_problem_cost(&problem, &flops, &bytes)) abort();
    if (flops < 1e6 && bytes < 1e6) execute(context, &problem);
    return 0;
}
