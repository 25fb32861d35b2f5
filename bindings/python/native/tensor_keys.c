/* Whether torch's dispatcher would do nothing with a tensor but find the kernel of its device is a question of its dispatch
 * keys, a word of 64 bits. torch tells them to Python by a call that takes half a microsecond a tensor.
 *
 * No header of torch is used, as one module serves all versions. Where the word lies is found by tensors whose keys torch has
 * told: the object of Python refers to torch's own (TensorImpl) at the address that `_cdata` gives, and that has the keys at the
 * first place where all samples have theirs. If there is no such place, nothing is learnt, and the package asks torch. */
#include "tensor_keys.h"

#include <string.h>

/* torch limits its own object to 26 words (c10/core/TensorImpl.h, C10_TensorImpl_Size_Check_Dummy_Class). */
enum { WORD = sizeof(uint64_t), LARGEST_TENSOR = 26 * WORD, LEAST_SAMPLES = 4, MOST_PLAIN = 8 };

static PyTypeObject *tensor_type; /* NULL: nothing was learnt */
static Py_ssize_t impl_place, keys_place;
static uint64_t plain[MOST_PLAIN];
static Py_ssize_t plain_count;
static PyObject *requires_grad; /* the attribute's name */
static PyObject *grad_mode;     /* torch.is_grad_enabled */

static uint64_t word_at(const void *base, Py_ssize_t place) {
    uint64_t word;
    memcpy(&word, (const char *)base + place, sizeof word);
    return word;
}

static uint64_t keys_of(PyObject *tensor) {
    return word_at((const void *)(uintptr_t)word_at(tensor, impl_place), keys_place);
}

/* A number of a sample (tensor, address of its TensorImpl, keys). */
static uint64_t number_in(PyObject *sample, Py_ssize_t which) {
    return PyLong_AsUnsignedLongLong(PyTuple_GetItem(sample, which));
}

/* The first place below `end` where every sample's word is the one told, in the object of Python or in torch's; -1: nowhere. */
static Py_ssize_t find_place(PyObject *samples, bool in_object, Py_ssize_t end) {
    for (Py_ssize_t place = 0; place + WORD <= end; place += WORD) {
        bool everywhere = true;
        for (Py_ssize_t i = 0; everywhere && i < PyTuple_Size(samples); i++) {
            PyObject *sample = PyTuple_GetItem(samples, i);
            const uint64_t address = number_in(sample, 1);
            everywhere = in_object ? word_at(PyTuple_GetItem(sample, 0), place) == address
                                   : word_at((const void *)(uintptr_t)address, place) ==
                                         number_in(sample, 2);
        }
        if (everywhere) return place;
    }
    return -1;
}

static bool are_samples(PyObject *samples, PyTypeObject *type) {
    bool right = PyTuple_Size(samples) >= LEAST_SAMPLES;
    for (Py_ssize_t i = 0; right && i < PyTuple_Size(samples); i++) {
        PyObject *sample = PyTuple_GetItem(samples, i);
        right = PyTuple_CheckExact(sample) && PyTuple_Size(sample) == 3 &&
                Py_TYPE(PyTuple_GetItem(sample, 0)) == type && number_in(sample, 1) &&
                number_in(sample, 2) && !PyErr_Occurred();
    }
    return right;
}

PyObject *tensor_keys_learn(PyObject *module, PyObject *arguments) {
    (void)module;
    PyTypeObject *type;
    Py_ssize_t object_bytes;
    PyObject *samples, *told, *mode;
    if (!PyArg_ParseTuple(arguments, "O!nO!O!O", &PyType_Type, &type, &object_bytes, &PyTuple_Type,
                          &samples, &PyTuple_Type, &told, &mode))
        return NULL;
    Py_ssize_t impl = -1, keys = -1;
    if (!tensor_type && PyTuple_Size(told) <= MOST_PLAIN && are_samples(samples, type)) {
        impl = find_place(samples, true, object_bytes);
        keys = find_place(samples, false, LARGEST_TENSOR);
        for (plain_count = 0; plain_count < PyTuple_Size(told); plain_count++)
            plain[plain_count] = PyLong_AsUnsignedLongLong(PyTuple_GetItem(told, plain_count));
        requires_grad = PyUnicode_InternFromString("requires_grad");
    }
    if (PyErr_Occurred()) return NULL;
    if (impl >= 0 && keys >= 0) {
        Py_IncRef((PyObject *)type);
        Py_IncRef(mode);
        grad_mode = mode;
        tensor_type = type;
        impl_place = impl;
        keys_place = keys;
    }
    return PyBool_FromLong(impl >= 0 && keys >= 0);
}

bool tensor_wants_gradient(PyObject *tensor) {
    PyObject *wants = PyObject_GetAttr(tensor, requires_grad);
    const bool wanted = wants != Py_False;
    Py_DecRef(wants);
    PyErr_Clear();
    return wanted;
}

bool tensor_gradients_are_recorded(void) {
    PyObject *mode = PyObject_CallObject(grad_mode, NULL);
    const bool recorded = mode != Py_False;
    Py_DecRef(mode);
    PyErr_Clear();
    return recorded;
}

bool tensor_is_plain(PyObject *tensor) {
    if (!tensor_type || !PyType_IsSubtype(Py_TYPE(tensor), tensor_type)) return false;
    const uint64_t keys = keys_of(tensor);
    bool found = false;
    for (Py_ssize_t i = 0; !found && i < plain_count; i++)
        found = keys == plain[i];
    return found;
}

PyObject *tensor_keys_are_plain(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    (void)module;
    const bool without_gradients = count > 0 && given[0] == Py_True;
    bool plain_ones = tensor_type && count > 0, wanted = false;
    for (Py_ssize_t i = 1; plain_ones && i < count; i++) {
        if (!PyType_IsSubtype(Py_TYPE(given[i]), tensor_type)) continue;
        plain_ones = tensor_is_plain(given[i]);
        if (plain_ones && without_gradients && !wanted) wanted = tensor_wants_gradient(given[i]);
    }
    return PyBool_FromLong(plain_ones && !(wanted && tensor_gradients_are_recorded()));
}
