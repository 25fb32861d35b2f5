/* A window over the whole axis and equal scores: attention is the mean of the values. */
#include <nhood.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int failed(const char *what) {
    fprintf(stderr, "%s: %s\n", what, nhood_last_error());
    return EXIT_FAILURE;
}

int main(int argc, char **argv) {
    const float q[4] = {0}, k[4] = {1, 2, 3, 4}, v[4] = {1, 2, 3, 6};
    float o[4] = {0};
    nhood_context *context;
    nhood_problem problem;
    nhood_plan *plan;
    if (argc != 2 || strcmp(argv[1], nhood_version()) != 0) return failed("version");
    if (nhood_context_create(NULL, &context)) return failed("context");
    if (nhood_problem_parse("fwd:f32:b1h1d1:4:w4", &problem)) return failed("problem");
    if (nhood_plan_create(context, 0, &problem, NULL, &plan)) return failed("plan");
    nhood_io io = {.struct_size = sizeof io};
    io.data[NHOOD_Q] = (void *)q;
    io.data[NHOOD_K] = (void *)k;
    io.data[NHOOD_V] = (void *)v;
    io.data[NHOOD_O] = o;
    io.workspace_bytes = nhood_plan_workspace_bytes(plan);
    io.workspace = aligned_alloc(64, io.workspace_bytes + 64);
    if (nhood_plan_execute(plan, &io)) return failed("execute");
    free(io.workspace);
    nhood_plan_release(plan);
    nhood_context_destroy(context);
    for (int i = 0; i < 4; i++) {
        if (o[i] > 2.9999f && o[i] < 3.0001f) continue;
        fprintf(stderr, "o[%d] = %g, not 3\n", i, (double)o[i]);
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
