/* What torch's tensors are to torch, without asking it: their dispatch keys, and whether gradients are wanted. */
#ifndef NHOOD_TENSOR_KEYS_H
#define NHOOD_TENSOR_KEYS_H

#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include <stdbool.h>

/* Whether a tensor has plain keys. False for all tensors before the keys are learnt. */
bool tensor_is_plain(PyObject *tensor);

/* Whether a tensor asks for gradients (also where it cannot be told), and whether torch records them at all. No exception is
 * set. */
bool tensor_wants_gradient(PyObject *tensor);
bool tensor_gradients_are_recorded(void);

/* Methods of the module; their texts are in its table. */
PyObject *tensor_keys_learn(PyObject *module, PyObject *arguments);
PyObject *tensor_keys_are_plain(PyObject *module, PyObject *const *given, Py_ssize_t count);

#endif
