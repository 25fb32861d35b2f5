#include "problem_data.h"

#include "message.h"
#include "output.h"
#include "random.h"
#include "storage.h"

#include <stdlib.h>
#include <string.h>

/* A multiple of the alignment of buffers and of every element size. */
enum { MARGIN_BYTES = 256 };

/* A NaN in every storage type, and no value that a kernel would write by chance. */
enum { MARK = 0xfe };
static const unsigned char mark_pattern[8] = {MARK, 0x7f, MARK, 0x7f, MARK, 0x7f, MARK, 0x7f};

static size_t element_bytes(const nhood_problem *problem, int32_t tensor) {
    return storage_bytes(tensor_dtype(problem, tensor));
}

static size_t span_bytes(const struct problem_data *data, int32_t tensor) {
    return (size_t)data->view[tensor].span * element_bytes(&data->problem, tensor);
}

/* Tensors that may start anywhere start one element late, so that a kernel that assumes more alignment is found. */
static size_t margin_bytes(const struct problem_data *data, int32_t tensor) {
    bool unaligned = data->problem.flags & NHOOD_FLAG_UNALIGNED;
    return MARGIN_BYTES + (unaligned ? element_bytes(&data->problem, tensor) : 0);
}

double data_bytes(const nhood_problem *problem) {
    double bytes = 0;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        struct view view;
        if (!view_create(problem, t, &view)) return -1;
        if (view.rows)
            bytes +=
                (double)view.span * (double)element_bytes(problem, t) + 2.0 * (double)MARGIN_BYTES;
    }
    return bytes;
}

static bool has_room(const nhood_device_info *device, const nhood_problem *problem) {
    char text[PROBLEM_BYTES] = "problem", needed[UNIT_BYTES], there[UNIT_BYTES];
    double bytes = data_bytes(problem), room = buffer_room(device);
    if (bytes < 0) return false;
    if (room <= 0 || bytes <= room) return true;
    nhood_problem_format(problem, text, sizeof text, NULL);
    complain(EXIT_FAILURE, "%s: its tensors take %s, %s has %s free", text,
             size_text(bytes, needed), device->name, size_text(room, there));
    return false;
}

bool data_create(struct problem_data *data, const nhood_device_info *device,
                 const nhood_problem *problem) {
    *data = (struct problem_data){
        .problem = *problem, .device = *device, .io = {.struct_size = sizeof data->io}};
    if (!has_room(device, problem)) return false;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        struct view *view = &data->view[t];
        if (!view_create(problem, t, view)) return false;
        if (!view->rows) continue;
        if (!buffer_allocate(&data->tensor[t], device,
                             span_bytes(data, t) + MARGIN_BYTES + margin_bytes(data, t),
                             tensor_name(t)))
            return false;
        data->io.data[t] = (char *)data->tensor[t].data + margin_bytes(data, t) +
                           (size_t)view->origin * element_bytes(problem, t);
    }
    return true;
}

void data_free(struct problem_data *data) {
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++)
        buffer_free(&data->tensor[t]);
    buffer_free(&data->workspace);
}

static void *host_memory(size_t bytes) {
    void *memory = malloc(bytes ? bytes : 1);
    char size[UNIT_BYTES];
    if (!memory)
        complain(EXIT_FAILURE, "no memory for %s on the host", size_text((double)bytes, size));
    return memory;
}

bool data_fill(struct problem_data *data, uint64_t seed) {
    enum { PERIOD = 65521 }; /* a prime, so that no two rows get the same numbers */
    struct random random = {seed};
    double *block = host_memory(PERIOD * sizeof *block);
    if (!block) return false;
    for (int32_t t = 0; t < NHOOD_TENSOR_COUNT; t++) {
        if (tensor_role(&data->problem, t) != TENSOR_INPUT) continue;
        int32_t dtype = tensor_dtype(&data->problem, t);
        for (int64_t i = 0; i < PERIOD; i++)
            storage_store(dtype, block, i, random_normal(&random));
        size_t bytes = span_bytes(data, t), part = PERIOD * storage_bytes(dtype);
        for (size_t at = 0; at < bytes; at += part)
            buffer_write(&data->tensor[t], margin_bytes(data, t) + at, block,
                         bytes - at < part ? bytes - at : part);
    }
    free(block);
    return true;
}

void *data_image(const struct problem_data *data, int32_t tensor) {
    size_t bytes = span_bytes(data, tensor);
    void *image = host_memory(bytes);
    if (image) buffer_read(&data->tensor[tensor], margin_bytes(data, tensor), image, bytes);
    return image;
}

void data_set_image(const struct problem_data *data, int32_t tensor, const void *image) {
    buffer_write(&data->tensor[tensor], margin_bytes(data, tensor), image,
                 span_bytes(data, tensor));
}

static bool mark(const struct buffer *buffer) {
    enum { PART = 1 << 16 };
    unsigned char *marks = host_memory(PART);
    if (!marks) return false;
    for (size_t i = 0; i < PART; i++)
        marks[i] = mark_pattern[i % sizeof mark_pattern];
    for (size_t at = 0; at < buffer->bytes; at += PART)
        buffer_write(buffer, at, marks, buffer->bytes - at < PART ? buffer->bytes - at : PART);
    free(marks);
    return true;
}

bool data_mark(const struct problem_data *data, int32_t tensor) {
    return mark(&data->tensor[tensor]);
}

bool data_mark_workspace(const struct problem_data *data) {
    return mark(&data->workspace);
}

int data_intact(const struct problem_data *data, int32_t tensor) {
    const struct buffer *buffer = &data->tensor[tensor];
    const struct view *view = &data->view[tensor];
    size_t size = element_bytes(&data->problem, tensor), intact = 0;
    unsigned char *bytes = host_memory(buffer->bytes);
    if (!bytes) return -1;
    buffer_read(buffer, 0, bytes, buffer->bytes);
    /* Writes the mark to every element; then all of the memory must be marked. */
    for (int64_t row = 0; row < view->rows; row++) {
        size_t start = margin_bytes(data, tensor) + (size_t)view_row(view, row) * size;
        size_t end = start + (size_t)view->extent[VIEW_INNER] * size;
        for (size_t i = start; i < end; i++)
            bytes[i] = mark_pattern[i % sizeof mark_pattern];
    }
    while (intact < buffer->bytes && bytes[intact] == mark_pattern[intact % sizeof mark_pattern])
        intact++;
    free(bytes);
    return intact == buffer->bytes;
}

bool data_prepare(struct problem_data *data, const nhood_plan *plan) {
    size_t bytes = nhood_plan_workspace_bytes(plan);
    buffer_free(&data->workspace);
    if (!buffer_allocate(&data->workspace, &data->device, bytes, "the workspace")) return false;
    data->io.workspace = data->workspace.data;
    data->io.workspace_bytes = bytes;
    return true;
}

int data_run(struct problem_data *data, nhood_context *context, int32_t device, int32_t op,
             const char *solver) {
    nhood_problem problem = data->problem;
    nhood_plan_options options = {.struct_size = sizeof options, .solver = solver};
    nhood_plan *plan;
    problem.op = op;
    nhood_status status = nhood_plan_create(context, device, &problem, &options, &plan);
    if (status) return complain_library(status, "plan");
    int failed = EXIT_FAILURE;
    if (data_prepare(data, plan)) {
        status = nhood_plan_execute(plan, &data->io);
        failed = status ? complain_library(status, "execute") : 0;
        if (!failed && !buffer_wait(&data->device)) failed = EXIT_FAILURE;
    }
    nhood_plan_release(plan);
    return failed;
}
