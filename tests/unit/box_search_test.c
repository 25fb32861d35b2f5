/* The search for boxes predicts those pairs that have the least work. Of all others none may be faster than what it finds by
 * more than a tenth, and one in a hundred at all, by the solver's own estimate. */
#include "cuda.h"
#include "cuda_solvers.h"
#include "device_spec.h"
#include "random_problem.h"
#include "test.h"
#include "tile_count.h"

#include <string.h>

enum { EXTENTS = 6 };
static const double most = 1.1;
static int pairs, faster;

static int32_t volume(const int32_t box[3]) {
    return box[0] * box[1] * box[2];
}

/* Puts every other pair of boxes, as large as these, in place of the six extents at `at`. */
static void check_side(const char *text, const struct nh_solver *solver,
                       const struct nh_problem *problem, const struct nh_device *device,
                       const struct nh_config *best, int at) {
    int32_t row[NH_MOST_BOXES][3], column[NH_MOST_BOXES][3];
    int rows = nh_tile_boxes(problem, volume(best->value + at), row);
    int columns = nh_tile_boxes(problem, volume(best->value + at + 3), column);
    double least = solver->estimate(solver, problem, device, best, NULL);
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < columns; j++) {
            struct nh_config other = *best;
            memcpy(other.value + at, row[i], sizeof row[i]);
            memcpy(other.value + at + 3, column[j], sizeof column[j]);
            double ns = solver->estimate(solver, problem, device, &other, NULL);
            pairs++;
            faster += ns < least * (1 - 1e-9);
            CHECK(most * ns >= least, "%s on %s: %s: %d,%d,%d with %d,%d,%d: %g ns, of %g", text,
                  device->info.name, solver->name, row[i][0], row[i][1], row[i][2], column[j][0],
                  column[j][1], column[j][2], ns, least);
        }
}

/* Where launches overlap, what is best for each side need not be the best together: without, it is. */
static void check_solver(const char *text, const struct nh_solver *solver,
                         const struct nh_problem *problem, const struct nh_device *described) {
    struct nh_config best;
    struct nh_cuda_device cuda = *(const struct nh_cuda_device *)described->backend;
    struct nh_device alone = *described, *device = &alone;
    cuda.overlaps = false;
    alone.backend = &cuda;
    if (solver->refuse(problem, device)) return;
    int count = solver->candidates(problem, device, &best, 1);
    CHECK(count == 1, "%s: %s: no candidate", text, solver->name);
    check_side(text, solver, problem, device, &best, 0);
    if (problem->op == NHOOD_OP_BWD) check_side(text, solver, problem, device, &best, EXTENTS + 1);
}

int main(void) {
    static const char *const gpus[] = {"a100", "h200"};
    const struct nh_host host = {0};
    uint64_t state = 20240307;
    for (int i = 0; i < 120; i++) {
        char text[512];
        nhood_problem given;
        struct nh_problem problem;
        struct nh_device device;
        int32_t count = 0;
        random_problem(&state, text, sizeof text);
        nhood_status status = nhood_problem_parse(text, &given);
        if (!status) status = nh_problem_canonical(&given, &problem);
        if (!status) status = nh_cuda_describe(gpus[i % 2], &host, &device, &count);
        CHECK(!status && count == 1, "%s: %s", text, nhood_last_error());
        if (status) continue;
        check_solver(text, &nh_solver_cuda_fused80, &problem, &device);
        check_solver(text, &nh_solver_cuda_split80, &problem, &device);
    }
    CHECK(100 * faster <= pairs, "%d of %d pairs are faster than what was found", faster, pairs);
    return test_result();
}
