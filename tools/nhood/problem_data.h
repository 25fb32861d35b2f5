/* The tensors of one problem in the memory of one device, and their contents. */
#ifndef PROBLEM_DATA_H
#define PROBLEM_DATA_H

#include "buffers.h"
#include "tensors.h"

struct problem_data {
    nhood_problem problem;
    nhood_device_info device;
    struct view view[NHOOD_TENSOR_COUNT];
    /* Around each tensor there is a margin that nothing may touch, see data_intact. */
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

/* Fills every input with normally distributed numbers, gaps of strided tensors included. The numbers repeat
 * after some ten thousand: speed does not depend on it, and large problems are filled fast. */
bool data_fill(struct problem_data *data, uint64_t seed);

/* A host copy of a tensor: element i of the view is element i here. NULL after a message; free() it. */
void *data_image(const struct problem_data *data, int32_t tensor);
void data_set_image(const struct problem_data *data, int32_t tensor, const void *image);

/* Marks a whole tensor, margins and gaps included, and looks later if all that is not an element of it still
 * has its mark. data_intact is 1 (yes), 0 (no), or -1 after a message. */
bool data_mark(const struct problem_data *data, int32_t tensor);
int data_intact(const struct problem_data *data, int32_t tensor);

/* Gives the data a workspace for a plan, so that nhood_plan_execute(plan, &data->io) can run. False after a
 * message. */
bool data_prepare(struct problem_data *data, const nhood_plan *plan);

/* Marks the workspace: a mark is a NaN, and so is the result of whoever reads there what it has not written. False
 * after a message. */
bool data_mark_workspace(const struct problem_data *data);

/* Plans the data's own problem as `op` and runs it once. 0, or the exit status after a message. */
int data_run(struct problem_data *data, nhood_context *context, int32_t device, int32_t op,
             const char *solver);

#endif
