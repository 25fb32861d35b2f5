/* The tensors of a problem in the memory of a device, and their contents. */
#ifndef PROBLEM_DATA_H
#define PROBLEM_DATA_H

#include "buffers.h"
#include "tensors.h"

struct problem_data {
    nhood_problem problem;
    nhood_device_info device;
    struct view view[NHOOD_TENSOR_COUNT];
    /* each tensor has a margin on both sides that nothing may write to, see data_intact */
    struct buffer tensor[NHOOD_TENSOR_COUNT], workspace;
    nhood_io io;
};

/* Allocates every tensor the problem can use; their contents are undefined. False after a message; data must
 * be freed in either case. */
bool data_create(struct problem_data *data, const nhood_device_info *device,
                 const nhood_problem *problem);
void data_free(struct problem_data *data);

/* Bytes of all tensors of data_create, without allocating them; negative after a message. */
double data_bytes(const nhood_problem *problem);

/* Fills every input with about normally distributed numbers, including the gaps of strided tensors. The numbers repeat after
 * some ten thousand, so that large problems are filled fast. Speed does not depend on that. */
bool data_fill(struct problem_data *data, uint64_t seed);

/* A host copy of a tensor, which must be freed with free(): element i of the view is element i of the copy. NULL after a
 * message. */
void *data_image(const struct problem_data *data, int32_t tensor);
void data_set_image(const struct problem_data *data, int32_t tensor, const void *image);

/* data_mark marks a whole tensor with its margins and gaps. data_intact later checks that everything but its elements still
 * has the mark; it returns 1 (yes), 0 (no), or -1 after a message. */
bool data_mark(const struct problem_data *data, int32_t tensor);
int data_intact(const struct problem_data *data, int32_t tensor);

/* Allocates the workspace of a plan, so that nhood_plan_execute(plan, &data->io) can run. False after a message. */
bool data_prepare(struct problem_data *data, const nhood_plan *plan);

/* Marks the workspace. A mark is a NaN, so results become NaN if a kernel reads what it has not written. False after a
 * message. */
bool data_mark_workspace(const struct problem_data *data);

/* Plans the data's own problem as operation `op` and runs it once. Returns 0, or the exit status after a message. */
int data_run(struct problem_data *data, nhood_context *context, int32_t device, int32_t op,
             const char *solver);

#endif
