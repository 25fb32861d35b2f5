#include "empty.h"

#include "dtype.h"
#include "registry.h"

struct empty {
    struct nh_operation base;
    const struct nh_device *device;
    size_t bytes; /* of the bias's gradient; 0: there is none */
};

static nhood_status run(const struct nh_operation *operation, const nhood_io *io) {
    const struct empty *empty = (const struct empty *)operation;
    void *sum = io->data[NHOOD_D_BIAS];
    if (!empty->bytes || !sum) return NHOOD_OK;
    return nh_registry_clear(empty->device, sum, empty->bytes, io->stream);
}

static void destroy(struct nh_operation *operation) {
    const struct empty *empty = (const struct empty *)operation;
    nh_release(empty->device->host, operation);
}

nhood_status nh_empty_build(const struct nh_problem *problem, const struct nh_device *device,
                            struct nh_operation **operation) {
    const nhood_status status = nh_registry_prepare(device);
    if (status) return status;
    struct empty *empty = nh_allocate(device->host, sizeof *empty);
    if (!empty) return NHOOD_ERR_MEMORY;
    *empty = (struct empty){.base = {.run = run, .destroy = destroy}, .device = device};
    if (nh_problem_role(problem, NHOOD_D_BIAS) == NH_OPTIONAL_OUTPUT)
        empty->bytes = (size_t)nh_tensor_elements(problem, NHOOD_D_BIAS) *
                       nh_dtype_bytes(nh_tensor_dtype(problem, NHOOD_D_BIAS));
    *operation = &empty->base;
    return NHOOD_OK;
}

struct empty_norm_rope {
    struct nh_norm_rope_operation base;
    const struct nh_device *device;
    size_t bytes; /* of the weight's gradient; 0: there is none */
};

static nhood_status run_norm_rope(const struct nh_norm_rope_operation *operation,
                                  const nhood_norm_rope_io *io) {
    const struct empty_norm_rope *empty = (const struct empty_norm_rope *)operation;
    if (!empty->bytes || !io->d_weight) return NHOOD_OK;
    return nh_registry_clear(empty->device, io->d_weight, empty->bytes, io->stream);
}

static void destroy_norm_rope(struct nh_norm_rope_operation *operation) {
    const struct empty_norm_rope *empty = (const struct empty_norm_rope *)operation;
    nh_release(empty->device->host, operation);
}

nhood_status nh_empty_norm_rope(const struct nh_norm_rope *problem, const struct nh_device *device,
                                struct nh_norm_rope_operation **operation) {
    const nhood_status status = nh_registry_prepare(device);
    if (status) return status;
    struct empty_norm_rope *empty = nh_allocate(device->host, sizeof *empty);
    if (!empty) return NHOOD_ERR_MEMORY;
    *empty = (struct empty_norm_rope){.base = {.run = run_norm_rope, .destroy = destroy_norm_rope},
                                      .device = device};
    if (problem->op == NHOOD_OP_BWD && problem->weight_dtype)
        empty->bytes = (size_t)problem->channels * nh_dtype_bytes(problem->weight_dtype);
    *operation = &empty->base;
    return NHOOD_OK;
}
