/* nhood_quick: calls from Python that come again, without the interpreter between arguments and library.
 *
 * The package remembers here what a call led to: the plan, and the results it fills. A later call whose arrays have the same
 * types, shapes, strides and dtypes, and whose other arguments are the same values of the same types, is executed at once.
 * Everything else, errors among it, is left to the package, which does without this module where it cannot be loaded.
 *
 * Written against the limited API of Python 3.9, so that one file serves every later CPython. The interpreter's lock guards
 * the table; interpreters without one load no module of this API. Nothing of nhood is linked: the package hands in the
 * address of nhood_plan_execute. */
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include "nhood.h"
#include "tensor_keys.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* There since 3.7; the header of the limited API has it from 3.10 on. */
#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080
#endif

/* A new reference. Counts are changed by functions only: the header's macros are those of one version. */
static PyObject *another(PyObject *object) {
    Py_IncRef(object);
    return object;
}

_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "numpy's extents are read as DLPack's");

/* The table is looked through entry by entry. */
enum { ENTRIES = 64, MOST_ARGUMENTS = 28, MOST_RESULTS = 6, MOST_AXES = 6, MOST_TYPES = 4 };

/* ---- arrays ---- */

/* What tells one array from another. Extents are borrowed from the array. */
struct layout {
    void *data;
    int64_t axes;
    const int64_t *shape, *strides; /* strides: in the unit of the array's kind */
    uint64_t dtype;                 /* equal for equal dtypes of one kind */
};

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
enum { DL_CPU = 1 };

/* Exact types: what a subclass means by its memory is not known. */
static struct type {
    PyTypeObject *type;
    const struct dl_exchange *exchange; /* torch's; NULL: the type is numpy's */
} types[MOST_TYPES];

static Py_ssize_t head_bytes; /* of every object: object.__basicsize__ */

static const struct type *type_of(PyObject *object) {
    for (int i = 0; i < MOST_TYPES && types[i].type; i++)
        if (types[i].type == Py_TYPE(object)) return &types[i];
    return NULL;
}

/* Reads an array in CPU memory; false for what is none, without an exception, and for tensors that torch would have to see. */
static bool read_layout(const struct type *type, PyObject *object, struct layout *layout) {
    if (!type->exchange) {
        const struct numpy_array *array =
            (const void *)((const char *)(const void *)object + head_bytes);
        *layout = (struct layout){array->data, array->axes, array->shape, array->strides,
                                  (uintptr_t)array->dtype};
        return true;
    }
    if (!tensor_is_plain(object, true)) return false;
    struct dl_tensor tensor;
    if (type->exchange->view(object, &tensor)) {
        PyErr_Clear();
        return false;
    }
    if (tensor.device_type != DL_CPU || !tensor.data || !tensor.strides) return false;
    *layout = (struct layout){
        (char *)tensor.data + tensor.byte_offset, tensor.axes, tensor.shape, tensor.strides,
        (uint64_t)tensor.type_code << 32 | (uint64_t)tensor.type_bits << 16 | tensor.type_lanes};
    return true;
}

/* ---- the table ---- */

struct argument {
    PyObject *value; /* an immutable value; NULL: an array as follows */
    bool is_list;    /* value is a tuple of what a list held */
    const struct type *type;
    int64_t axes, shape[MOST_AXES], strides[MOST_AXES];
    uint64_t dtype;
    PyObject *owner; /* numpy's dtype, whose address stays its own as long as this refers to it */
};

struct entry {
    PyObject *plan; /* what owns the plan; NULL: the entry is free */
    PyObject
        *results; /* a tuple, for each result: (what makes it, the tuple of arguments to that) */
    const nhood_plan *handle;
    size_t workspace_bytes;
    PyObject *names; /* a tuple: of the last arguments, those given by keyword */
    int arguments;
    struct argument argument[MOST_ARGUMENTS];
    /* The tensor slot of each array among the arguments, then of each result. */
    int slot[MOST_ARGUMENTS + MOST_RESULTS];
};

static struct entry table[ENTRIES];
static int newest, last_hit;
static unsigned long long generation; /* how often everything was forgotten */

static nhood_status (*execute)(const nhood_plan *plan, const nhood_io *io);
static PyObject *check; /* raises what a status means */

/* Whether two arguments are the same value of the same type: 1 == True == 1.0, but only the first is an integer. Strings are
 * names, of which there is one object each. */
static bool same_value(PyObject *a, PyObject *b) {
    if (a == b) return true;
    if (Py_TYPE(a) != Py_TYPE(b)) return false;
    if (PyTuple_CheckExact(a)) {
        const Py_ssize_t count = PyTuple_Size(a);
        bool same = count == PyTuple_Size(b);
        for (Py_ssize_t i = 0; same && i < count; i++)
            same = same_value(PyTuple_GetItem(a, i), PyTuple_GetItem(b, i));
        return same;
    }
    if (!PyLong_CheckExact(a) && !PyFloat_CheckExact(a)) return false;
    return PyObject_RichCompareBool(a, b, Py_EQ) == 1;
}

/* Whether a value cannot change, so that it can be compared with later. */
static bool is_lasting(PyObject *value) {
    if (PyTuple_CheckExact(value)) {
        bool lasting = true;
        for (Py_ssize_t i = 0; lasting && i < PyTuple_Size(value); i++)
            lasting = is_lasting(PyTuple_GetItem(value, i));
        return lasting;
    }
    return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
           PyFloat_CheckExact(value) || PyUnicode_CheckExact(value);
}

/* Lists are compared by what they hold: they may change, but not while that is done. */
static bool same_entries(PyObject *tuple, PyObject *list) {
    const Py_ssize_t count = PyTuple_Size(tuple);
    bool same = PyList_CheckExact(list) && count == PyList_Size(list);
    for (Py_ssize_t i = 0; same && i < count; i++)
        same = same_value(PyTuple_GetItem(tuple, i), PyList_GetItem(list, i));
    return same;
}

static bool argument_matches(const struct argument *argument, PyObject *given, void **data) {
    if (argument->is_list) return same_entries(argument->value, given);
    if (argument->value) return same_value(argument->value, given);
    if (Py_TYPE(given) != argument->type->type) return false;
    struct layout layout;
    if (!read_layout(argument->type, given, &layout)) return false;
    const size_t bytes = (size_t)argument->axes * sizeof(int64_t);
    *data = layout.data;
    return layout.dtype == argument->dtype && layout.axes == argument->axes &&
           !memcmp(layout.shape, argument->shape, bytes) &&
           !memcmp(layout.strides, argument->strides, bytes);
}

/* Describes an argument, with references. False for one that cannot be remembered. */
static bool describe(PyObject *given, struct argument *argument) {
    if (PyList_CheckExact(given)) {
        PyObject *held = PyList_AsTuple(given);
        if (!held || !is_lasting(held)) {
            Py_DecRef(held);
            return false;
        }
        argument->value = held;
        argument->is_list = true;
        return true;
    }
    if (is_lasting(given)) {
        argument->value = another(given);
        return true;
    }
    struct layout layout;
    argument->type = type_of(given);
    if (!argument->type || !read_layout(argument->type, given, &layout) || layout.axes > MOST_AXES)
        return false;
    argument->axes = layout.axes;
    argument->dtype = layout.dtype;
    if (!argument->type->exchange) {
        argument->owner = another((PyObject *)(uintptr_t)layout.dtype);
    }
    memcpy(argument->shape, layout.shape, (size_t)layout.axes * sizeof(int64_t));
    memcpy(argument->strides, layout.strides, (size_t)layout.axes * sizeof(int64_t));
    return true;
}

static bool entry_matches(const struct entry *entry, PyObject *const *given, Py_ssize_t count,
                          PyObject *names, nhood_io *io) {
    if (!entry->plan || entry->arguments != count) return false;
    if (names ? !same_value(entry->names, names) : PyTuple_Size(entry->names) > 0) return false;
    int slot = 0;
    bool same = true;
    for (int i = 0; same && i < entry->arguments; i++) {
        void *data = NULL;
        same = argument_matches(&entry->argument[i], given[i], &data);
        if (same && !entry->argument[i].value) io->data[entry->slot[slot++]] = data;
    }
    if (!same && slot) memset(io->data, 0, sizeof io->data);
    return same;
}

/* Finds the entry of a call and writes the addresses of its arrays; all others stay NULL. */
static const struct entry *find(PyObject *const *given, Py_ssize_t count, PyObject *names,
                                nhood_io *io) {
    for (int look = 0; look < ENTRIES; look++) {
        const int i = (last_hit + look) % ENTRIES;
        if (!entry_matches(&table[i], given, count, names, io)) continue;
        last_hit = i;
        return &table[i];
    }
    return NULL;
}

/* Empties an entry. Its objects go last: what they run may come back here. */
static void free_entry(struct entry *entry) {
    const struct entry old = *entry;
    *entry = (struct entry){0};
    if (!old.plan) return;
    for (int i = 0; i < old.arguments; i++) {
        Py_DecRef(old.argument[i].value);
        Py_DecRef(old.argument[i].owner);
    }
    Py_DecRef(old.names);
    Py_DecRef(old.plan);
    Py_DecRef(old.results);
}

/* ---- calls ---- */

/* The workspace that no call uses at the moment. */
static char *spare;
static size_t spare_bytes;

static char *take_workspace(size_t bytes, size_t *taken) {
    enum { ALIGNMENT = 64 }; /* as nhood.h says */
    char *memory = spare;
    *taken = spare_bytes;
    spare = NULL;
    if (memory && *taken >= bytes) return memory;
    free(memory);
    *taken = bytes;
    return aligned_alloc(ALIGNMENT, bytes);
}

static void give_workspace(char *memory, size_t bytes) {
    if (spare) {
        free(memory);
        return;
    }
    spare = memory;
    spare_bytes = bytes;
}

/* What a call needs of its entry, with references: the table may change while it makes results and computes. */
struct taken {
    PyObject *plan, *results;
    const nhood_plan *handle;
    size_t workspace_bytes;
    int slot[MOST_RESULTS];
};

static struct taken take(const struct entry *entry) {
    struct taken taken = {entry->plan, entry->results, entry->handle, entry->workspace_bytes, {0}};
    int arrays = 0;
    for (int i = 0; i < entry->arguments; i++)
        arrays += !entry->argument[i].value;
    memcpy(taken.slot, entry->slot + arrays, sizeof taken.slot);
    Py_IncRef(taken.plan);
    Py_IncRef(taken.results);
    return taken;
}

/* Makes one result and writes its address. NULL: an exception is set. */
static PyObject *make_result(PyObject *maker, void **data) {
    PyObject *result = PyObject_CallObject(PyTuple_GetItem(maker, 0), PyTuple_GetItem(maker, 1));
    if (!result) return NULL;
    const struct type *type = type_of(result);
    struct layout layout;
    if (type && read_layout(type, result, &layout)) {
        *data = layout.data;
        return result;
    }
    Py_DecRef(result);
    PyErr_SetString(PyExc_RuntimeError, "a result that is no array in CPU memory");
    return NULL;
}

/* Makes the results: one alone, or a tuple of several. NULL: an exception is set. */
static PyObject *make_results(const struct taken *taken, nhood_io *io) {
    const Py_ssize_t count = PyTuple_Size(taken->results);
    if (count == 1)
        return make_result(PyTuple_GetItem(taken->results, 0), &io->data[taken->slot[0]]);
    PyObject *results = PyTuple_New(count);
    for (Py_ssize_t i = 0; results && i < count; i++) {
        PyObject *result =
            make_result(PyTuple_GetItem(taken->results, i), &io->data[taken->slot[i]]);
        if (result && !PyTuple_SetItem(results, i, result)) continue;
        Py_DecRef(results);
        results = NULL;
    }
    return results;
}

/* Executes with the interpreter's lock released. False: an exception is set. */
static bool run(const struct taken *taken, nhood_io *io) {
    size_t bytes = 0;
    char *workspace = NULL;
    if (taken->workspace_bytes && !(workspace = take_workspace(taken->workspace_bytes, &bytes))) {
        PyErr_NoMemory();
        return false;
    }
    io->workspace = workspace;
    io->workspace_bytes = bytes;
    PyThreadState *thread = PyEval_SaveThread();
    nhood_status status = execute(taken->handle, io);
    PyEval_RestoreThread(thread);
    if (workspace) give_workspace(workspace, bytes);
    if (!status) return true;
    Py_DecRef(PyObject_CallFunction(check, "i", (int)status));
    return false;
}

/* None for a call that can be remembered, False for others. */
static PyObject *missed(PyObject *const *given, Py_ssize_t count) {
    for (Py_ssize_t i = 0; i < count; i++) {
        struct layout layout;
        const struct type *type = type_of(given[i]);
        if (type && read_layout(type, given[i], &layout)) continue;
        if (!is_lasting(given[i]) && !PyList_CheckExact(given[i])) return another(Py_False);
    }
    return another(Py_None);
}

static PyObject *call(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    (void)module;
    nhood_io io = {.struct_size = sizeof io};
    if (names) count += PyTuple_Size(names);
    const struct entry *entry = find(given, count, names, &io);
    if (!entry) return missed(given, count);
    const struct taken taken = take(entry);
    PyObject *results = make_results(&taken, &io);
    if (results && !run(&taken, &io)) {
        Py_DecRef(results);
        results = NULL;
    }
    Py_DecRef(taken.plan);
    Py_DecRef(taken.results);
    return results;
}

/* ---- what the package tells ---- */

/* Fills an entry that has its plan and results. False if the call cannot be remembered. */
static bool fill_entry(struct entry *entry, PyObject *given, PyObject *slots) {
    const Py_ssize_t count = PyTuple_Size(given), results = PyTuple_Size(entry->results);
    if (count > MOST_ARGUMENTS || results < 1 || results > MOST_RESULTS) return false;
    Py_ssize_t used = results;
    for (; entry->arguments < count; entry->arguments++) {
        struct argument *argument = &entry->argument[entry->arguments];
        if (!describe(PyTuple_GetItem(given, entry->arguments), argument)) return false;
        used += !argument->value;
    }
    if (used != PyTuple_Size(slots)) return false;
    for (Py_ssize_t i = 0; i < used; i++) {
        entry->slot[i] = (int)PyLong_AsLong(PyTuple_GetItem(slots, i));
        if (entry->slot[i] < 0 || entry->slot[i] >= NHOOD_TENSOR_SLOTS) return false;
    }
    return true;
}

static PyObject *remember(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *given, *slots;
    unsigned long long since, handle, workspace_bytes;
    struct entry entry = {0};
    if (!PyArg_ParseTuple(arguments, "KO!O!OKKO!O!", &since, &PyTuple_Type, &given, &PyTuple_Type,
                          &entry.names, &entry.plan, &handle, &workspace_bytes, &PyTuple_Type,
                          &slots, &PyTuple_Type, &entry.results))
        return NULL;
    Py_IncRef(entry.names);
    Py_IncRef(entry.plan);
    Py_IncRef(entry.results);
    entry.handle = (const nhood_plan *)(uintptr_t)handle;
    entry.workspace_bytes = (size_t)workspace_bytes;
    if (fill_entry(&entry, given, slots) && since == generation) {
        newest = (newest + 1) % ENTRIES;
        const struct entry old = table[newest];
        table[newest] = entry;
        entry = old;
    }
    free_entry(&entry);
    if (PyErr_Occurred()) return NULL;
    return another(Py_None);
}

static PyObject *forget(PyObject *module, PyObject *nothing) {
    (void)module;
    (void)nothing;
    generation++;
    for (int i = 0; i < ENTRIES; i++)
        free_entry(&table[i]);
    free(spare);
    spare = NULL;
    return another(Py_None);
}

static PyObject *get_generation(PyObject *module, PyObject *nothing) {
    (void)module;
    (void)nothing;
    return PyLong_FromUnsignedLongLong(generation);
}

static bool are_equal(const int64_t *numbers, int64_t count, PyObject *tuple) {
    bool equal = PyTuple_Size(tuple) == (Py_ssize_t)count;
    for (int64_t i = 0; equal && i < count; i++)
        equal = PyLong_AsLongLong(PyTuple_GetItem(tuple, (Py_ssize_t)i)) == numbers[i];
    return equal;
}

static PyObject *add_type(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *array, *capsule, *shape, *strides;
    unsigned long long address;
    if (!PyArg_ParseTuple(arguments, "OOKO!O!", &array, &capsule, &address, &PyTuple_Type, &shape,
                          &PyTuple_Type, &strides))
        return NULL;
    struct type added = {Py_TYPE(array), NULL};
    if (capsule != Py_None) {
        added.exchange = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
        if (!added.exchange) return NULL;
        if (added.exchange->major != 1 || !added.exchange->view) return another(Py_False);
    }
    struct layout layout;
    const bool read = read_layout(&added, array, &layout) &&
                      (uintptr_t)layout.data == (uintptr_t)address &&
                      are_equal(layout.shape, layout.axes, shape) &&
                      are_equal(layout.strides, layout.axes, strides);
    if (PyErr_Occurred()) return NULL;
    int place = 0;
    while (place < MOST_TYPES && types[place].type)
        place++;
    if (!read || place == MOST_TYPES) return another(Py_False);
    Py_IncRef((PyObject *)added.type);
    types[place] = added;
    return another(Py_True);
}

static PyObject *start(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long address;
    PyObject *given;
    Py_ssize_t head;
    if (!PyArg_ParseTuple(arguments, "KnO", &address, &head, &given)) return NULL;
    if (execute) return another(Py_False);
    head_bytes = head;
    check = another(given);
    execute = (nhood_status(*)(const nhood_plan *, const nhood_io *))(uintptr_t)address;
    return another(Py_True);
}

static PyMethodDef methods[] = {
    {"start", start, METH_VARARGS,
     "start(address of nhood_plan_execute, object.__basicsize__, check): before anything else. "
     "Returns False where that has "
     "been done: the table is of one interpreter and one copy of the package."},
    {"add_type", add_type, METH_VARARGS,
     "add_type(array, exchange, address, shape, strides): knows arrays of that exact type from "
     "here on, by the capsule of the "
     "type, or numpy's by None. Returns whether it does, which takes that `array` is read right."},
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL | METH_KEYWORDS,
     "call(*arguments, **named): the results, one alone or a tuple; None for arguments that are "
     "not "
     "remembered."},
    {"remember", remember, METH_VARARGS,
     "remember(generation, arguments, names, plan, handle, workspace_bytes, slots, results): what "
     "a call with these arguments "
     "does, the last of them by these names, unless everything was forgotten since. slots: of the "
     "arrays among the "
     "arguments, then of the results; results: a pair (callable, arguments) for each."},
    {"forget", forget, METH_NOARGS, "forget(): everything, and the workspace."},
    {"generation", get_generation, METH_NOARGS,
     "generation(): how often everything was forgotten."},
    {"learn_keys", tensor_keys_learn, METH_VARARGS,
     "learn_keys(type, its __basicsize__, samples, plain, is_grad_enabled): where tensors of torch "
     "have their dispatch keys, by samples (tensor, its _cdata, keys), and which keys are plain. "
     "Returns whether that was found."},
    {"are_plain", (PyCFunction)(void (*)(void))tensor_keys_are_plain, METH_FASTCALL,
     "are_plain(without_gradients, *arguments): whether all tensors among the arguments have plain "
     "keys and, without gradients, none is recorded for them."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "nhood_quick", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_nhood_quick(void);
PyMODINIT_FUNC PyInit_nhood_quick(void) {
    return PyModule_Create(&definition);
}
