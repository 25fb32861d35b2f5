/* A relative bias in cuda.split90's launches (fused90_bias.cuh, fused90_bias_gradient.cuh). */
#include "split90.h"

/* PARTS_BYTES and twice LINES_BYTES of the kernel. */
static int64_t gradient_bytes(const int32_t own[3], const int32_t loop[3]) {
    const int64_t warps = 4 * NH_BACKWARD90_WARPGROUPS, part_bytes = 256;
    int64_t own_runs = own[2] / 8, runs = loop[2] / 8;
    bool along_z = own_runs > 1;
    int64_t parts = loop[0] * (loop[1] + !along_z) * (runs + along_z);
    int64_t lines = (own[0] + loop[0] - 1) * (own[1] + loop[1] - 1);
    int64_t lines_bytes = 32 + lines * (own_runs + runs) * part_bytes;
    return warps * parts * part_bytes + 2 * lines_bytes;
}

int64_t nh_split90_bias_bytes(const struct nh_backward90_kernel *kernel) {
    if (!kernel->problem->has_bias) return 0;
    int64_t boxes = NH_BACKWARD90_MOST_STAGES * nh_sm90_bias_bytes(kernel->own, 1, kernel->loop);
    return boxes + (kernel->keys ? 0 : gradient_bytes(kernel->own, kernel->loop));
}

/* The number of parts into which heads are divided to limit the tables to 256 MiB: with more parts, fewer blocks have a
 * table for each head. */
static int64_t head_parts(const struct nh_problem *problem, int64_t blocks) {
    const int64_t most_bytes = (int64_t)256 << 20;
    for (int64_t parts = 1; parts < problem->heads; parts++)
        if (problem->heads % parts == 0 &&
            problem->heads * problem->bias_count * 4 * (blocks / parts) <= most_bytes)
            return parts;
    return problem->heads;
}

void nh_split90_add_tables(struct nh_cuda_operation *operation, const struct nh_problem *problem,
                           struct nh_cuda_step *step, struct nh_kernel_spec *spec) {
    int64_t parts = head_parts(problem, step->grid[0]);
    int64_t shares = nh_max(1, step->grid[0] / parts);
    nh_kernel_define(spec, "NH_HEAD_PARTS", parts);
    step->grid[0] = parts * shares;
    step->args.tensor[NH_D_S].head = shares * problem->bias_count;
    size_t bytes = (size_t)(problem->heads * shares * problem->bias_count) * sizeof(float);
    step->binding[NH_D_S] = (struct nh_cuda_binding){
        .from = NH_BIND_WORKSPACE, .offset_bytes = nh_cuda_reserve(operation, bytes)};
    step->outputs |= NH_BIT(D_BIAS);
}
