/* The tensors of a problem: which ones it has, their shapes, and where each element is in memory. */
#ifndef TENSORS_H
#define TENSORS_H

#include "nhood.h"

#include <stdbool.h>

enum tensor_role { TENSOR_UNUSED, TENSOR_INPUT, TENSOR_OUTPUT };

/* Every optional tensor counts as used. */
enum tensor_role tensor_role(const nhood_problem *problem, int32_t tensor);
const char *tensor_name(int32_t tensor);
int32_t tensor_dtype(const nhood_problem *problem, int32_t tensor);

/* The coordinates of an axis' grid of queries, or of keys. */
int64_t grid_length(const nhood_problem *problem, int axis, bool keys);

/* The number of tokens of an axis that the tensors of queries, or of keys, cover. */
int64_t covered_length(const nhood_problem *problem, int axis, bool keys);

/* The axes of a tensor, slowest first. Axes that it does not have have extent 1. */
enum { VIEW_BATCH, VIEW_AXIS, VIEW_HEAD = VIEW_AXIS + 3, VIEW_INNER, VIEW_AXES };

struct view {
    int64_t extent[VIEW_AXES], stride[VIEW_AXES];
    /* counted from the lowest address in use: where element 0 is, and how many elements are spanned */
    int64_t origin, span;
    /* product of all extents but the innermost, along which elements are contiguous */
    int64_t rows;
};

/* False, after a message, if the problem is not legal. A view of an unused tensor, or of an
 * empty batch, has no rows. */
bool view_create(const nhood_problem *problem, int32_t tensor, struct view *view);

/* The element at which a row starts. Rows are numbered in row-major order. */
int64_t view_row(const struct view *view, int64_t row);

/* Writes the indices "[b,x,..,h,c]" of element `inner` of a row, for messages. */
enum { PLACE_BYTES = 160 };
const char *view_place(const struct view *view, int32_t rank, int64_t row, int64_t inner,
                       char text[PLACE_BYTES]);

#endif
