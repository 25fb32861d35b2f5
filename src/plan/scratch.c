#include "scratch.h"

#include "dtype.h"

#include <math.h>

/* Each tensor repeats this many random numbers, because making numbers takes longer than copying them. */
enum { PATTERN_ELEMENTS = 1 << 17 };

/* xorshift64: uniform in [-sqrt(3), sqrt(3)), which has variance 1. */
static double next_number(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return ((double)(*state >> 11) * 0x1p-52 - 1) * 1.7320508075688772;
}

static nhood_status fill(const struct nh_device *device, const struct nh_problem *problem,
                         int32_t tensor, void *memory) {
    int32_t dtype = nh_tensor_dtype(problem, tensor);
    size_t element_bytes = nh_dtype_bytes(dtype);
    int64_t elements = nh_tensor_elements(problem, tensor);
    int64_t count = nh_min(elements, PATTERN_ELEMENTS);
    void *pattern = nh_allocate(device->host, (size_t)count * element_bytes);
    if (!pattern) return NHOOD_ERR_MEMORY;
    uint64_t state = 0x9e3779b97f4a7c15u + (uint64_t)tensor;
    double equal_weights = log((double)problem->window_count + (double)problem->extra_tokens);
    for (int64_t i = 0; i < count; i++)
        nh_store_f64(dtype, pattern, i, tensor == NHOOD_LSE ? equal_weights : next_number(&state));
    nhood_status status = NHOOD_OK;
    for (int64_t at = 0; !status && at < elements; at += count)
        status = device->timing->write(device, (char *)memory + (size_t)at * element_bytes, pattern,
                                       (size_t)nh_min(count, elements - at) * element_bytes);
    nh_release(device->host, pattern);
    return status;
}

nhood_status nh_scratch_create(const struct nh_device *device, const struct nh_problem *problem,
                               struct nh_scratch *scratch) {
    *scratch = (struct nh_scratch){.device = device, .io = {.struct_size = sizeof(nhood_io)}};
    nhood_status status = NHOOD_OK;
    for (int32_t tensor = 0; !status && tensor < NHOOD_TENSOR_COUNT; tensor++) {
        enum nh_role role = nh_problem_role(problem, tensor);
        if (role == NH_UNUSED || role == NH_OPTIONAL_INPUT) continue;
        size_t bytes = (size_t)nh_tensor_elements(problem, tensor) *
                       nh_dtype_bytes(nh_tensor_dtype(problem, tensor));
        status = device->timing->allocate(device, bytes, &scratch->io.data[tensor]);
        if (!status && role == NH_INPUT)
            status = fill(device, problem, tensor, scratch->io.data[tensor]);
    }
    if (!status && device->timing->clock_create)
        status = device->timing->clock_create(device, &scratch->clock);
    return status;
}

void nh_scratch_free(struct nh_scratch *scratch) {
    for (int32_t tensor = 0; tensor < NHOOD_TENSOR_COUNT; tensor++)
        if (scratch->io.data[tensor])
            scratch->device->timing->release(scratch->device, scratch->io.data[tensor]);
    if (scratch->io.workspace)
        scratch->device->timing->release(scratch->device, scratch->io.workspace);
    if (scratch->clock) scratch->device->timing->clock_destroy(scratch->device, scratch->clock);
    *scratch = (struct nh_scratch){.device = NULL};
}

nhood_status nh_scratch_reserve(struct nh_scratch *scratch, size_t workspace_bytes) {
    nhood_io *io = &scratch->io;
    if (workspace_bytes <= io->workspace_bytes) return NHOOD_OK;
    if (io->workspace) scratch->device->timing->release(scratch->device, io->workspace);
    io->workspace = NULL;
    io->workspace_bytes = 0;
    nhood_status status =
        scratch->device->timing->allocate(scratch->device, workspace_bytes, &io->workspace);
    if (!status) io->workspace_bytes = workspace_bytes;
    return status;
}

nhood_status nh_scratch_run(const struct nh_scratch *scratch, const struct nh_operation *operation,
                            double *ns) {
    const struct nh_device *device = scratch->device;
    return device->timing->run(device, scratch->clock, operation, &scratch->io, ns);
}
