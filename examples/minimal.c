/* One head of 7x7 neighborhood attention on a 56x56 grid, start to end. */
#include <nhood.h>
#include <stdio.h>
#include <stdlib.h>

int main(void) {
    nhood_context *context = NULL;
    nhood_plan *plan = NULL;
    nhood_problem problem;
    if (nhood_context_create(NULL, &context) ||
        nhood_problem_parse("fwd:f32:b1h1d32:56x56:w7x7", &problem) ||
        nhood_plan_create(context, 0, &problem, NULL, &plan)) {
        fprintf(stderr, "%s\n", nhood_last_error());
        return 1;
    }
    size_t floats = 56 * 56 * 32;
    float *data = calloc(4 * floats, sizeof *data);
    nhood_io io = {.struct_size = sizeof io, .workspace_bytes = nhood_plan_workspace_bytes(plan)};
    io.workspace = aligned_alloc(64, io.workspace_bytes);
    for (int i = 0; i < 4; i++)
        io.data[NHOOD_Q + i] = data + (size_t)i * floats; /* Q K V O */
    for (size_t i = 0; data && i < 3 * floats; i++)
        data[i] = (float)(i % 17) / 17;
    int status = data ? nhood_plan_execute(plan, &io) : NHOOD_ERR_MEMORY;
    if (!status)
        printf("%s\nout[0] = %f\n", nhood_plan_description(plan), (double)data[3 * floats]);
    free(data);
    free(io.workspace);
    nhood_plan_release(plan);
    nhood_context_destroy(context);
    return status != NHOOD_OK;
}
