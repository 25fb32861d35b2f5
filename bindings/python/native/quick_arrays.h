/* Arrays of numpy and torch as nhood_quick sees them: memory, extents, strides, dtype and device. */
#ifndef NHOOD_QUICK_ARRAYS_H
#define NHOOD_QUICK_ARRAYS_H

#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include <stdbool.h>
#include <stdint.h>

enum { ON_CPU = -1 };

/* What tells one array from another. Extents are borrowed from the array. */
struct layout {
    void *data;
    int64_t axes;
    const int64_t *shape, *strides; /* strides: in the unit of the array's kind */
    uint64_t dtype;                 /* equal for equal dtypes of one kind */
    int device;                     /* ON_CPU, or the ordinal of a CUDA device */
};

/* A type whose objects can be read. Exact types: what a subclass means by its memory is not known. */
struct array_type {
    PyTypeObject *type;
    const struct dl_exchange *exchange; /* torch's; NULL: the type is numpy's */
};

/* NULL: the object is not of a known type. */
const struct array_type *array_type_of(PyObject *object);

/* Reads an array in memory of the CPU or a CUDA device; false for what is none, without an exception, and for tensors that torch
 * would have to see. */
bool array_read(const struct array_type *type, PyObject *object, struct layout *layout);

/* To be told before numpy's arrays are read: object.__basicsize__. */
void array_set_head(Py_ssize_t bytes);

/* A method of the module; its text is in the module's table. */
PyObject *array_add_type(PyObject *module, PyObject *arguments);

#endif
