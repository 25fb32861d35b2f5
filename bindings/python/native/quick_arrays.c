/* Reads numpy's arrays by their struct, and torch's tensors by the table of C functions that DLPack lets a type have. */
#include "quick_arrays.h"

#include "tensor_keys.h"

_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "numpy's extents are read as DLPack's");

/* numpy's arrays, behind the head of every object. Its C API is compiled into extensions: this stays. */
struct numpy_array {
    void *data;
    int axes;
    const int64_t *shape, *strides; /* strides: in bytes */
    PyObject *base, *dtype;
};

/* DLPack, version 1: a tensor, and the table of functions by which a type hands its objects to C. */
struct dl_tensor {
    void *data;
    int32_t device_type, device_id, axes;
    uint8_t type_code, type_bits;
    uint16_t type_lanes;
    const int64_t *shape, *strides; /* strides: in elements */
    uint64_t byte_offset;
};
struct dl_exchange {
    uint32_t major, minor;
    void *previous, *allocate, *from_object, *to_object;
    int (*view)(void *object, struct dl_tensor *view); /* -1: an exception is set */
};
enum { DL_CPU = 1, DL_CUDA = 2 };

enum { MOST_TYPES = 4 };
static struct array_type types[MOST_TYPES];

static Py_ssize_t head_bytes; /* of every object */

void array_set_head(Py_ssize_t bytes) {
    head_bytes = bytes;
}

const struct array_type *array_type_of(PyObject *object) {
    for (int i = 0; i < MOST_TYPES && types[i].type; i++)
        if (types[i].type == Py_TYPE(object)) return &types[i];
    return NULL;
}

bool array_read(const struct array_type *type, PyObject *object, struct layout *layout) {
    if (!type->exchange) {
        const struct numpy_array *array =
            (const void *)((const char *)(const void *)object + head_bytes);
        *layout = (struct layout){
            array->data, array->axes, array->shape, array->strides, (uintptr_t)array->dtype,
            ON_CPU};
        return true;
    }
    if (!tensor_is_plain(object)) return false;
    struct dl_tensor tensor;
    if (type->exchange->view(object, &tensor)) {
        PyErr_Clear();
        return false;
    }
    const bool on_cpu = tensor.device_type == DL_CPU;
    if ((!on_cpu && tensor.device_type != DL_CUDA) || !tensor.data || !tensor.strides) return false;
    *layout = (struct layout){(char *)tensor.data + tensor.byte_offset,
                              tensor.axes,
                              tensor.shape,
                              tensor.strides,
                              (uint64_t)tensor.type_code << 32 | (uint64_t)tensor.type_bits << 16 |
                                  tensor.type_lanes,
                              on_cpu ? ON_CPU : tensor.device_id};
    return true;
}

static bool are_equal(const int64_t *numbers, int64_t count, PyObject *tuple) {
    bool equal = PyTuple_Size(tuple) == (Py_ssize_t)count;
    for (int64_t i = 0; equal && i < count; i++)
        equal = PyLong_AsLongLong(PyTuple_GetItem(tuple, (Py_ssize_t)i)) == numbers[i];
    return equal;
}

PyObject *array_add_type(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *array, *capsule, *shape, *strides;
    unsigned long long address;
    if (!PyArg_ParseTuple(arguments, "OOKO!O!", &array, &capsule, &address, &PyTuple_Type, &shape,
                          &PyTuple_Type, &strides))
        return NULL;
    struct array_type added = {Py_TYPE(array), NULL};
    if (capsule != Py_None) {
        added.exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (!added.exchange) return NULL;
        if (added.exchange->major != 1 || !added.exchange->view) return PyBool_FromLong(false);
    }
    struct layout layout;
    const bool read = array_read(&added, array, &layout) &&
                      (uintptr_t)layout.data == (uintptr_t)address &&
                      are_equal(layout.shape, layout.axes, shape) &&
                      are_equal(layout.strides, layout.axes, strides);
    if (PyErr_Occurred()) return NULL;
    int place = 0;
    while (place < MOST_TYPES && types[place].type)
        place++;
    if (!read || place == MOST_TYPES) return PyBool_FromLong(false);
    Py_IncRef((PyObject *)added.type);
    types[place] = added;
    return PyBool_FromLong(true);
}
