#include "quick_table.h"

#include "tensor_keys.h"

#include <string.h>

/* The table is looked through entry by entry: first those of one problem, then those of groups (see of_group). */
enum { ENTRIES_OF_ONE = 128, ENTRIES_OF_GROUPS = 48, ENTRIES = ENTRIES_OF_ONE + ENTRIES_OF_GROUPS };

/* The alignment in bytes of tensors on CUDA devices, for solvers that need one (CUDA_ALIGNMENT in _plans.py). */
enum { ALIGNMENT = 16 };

static struct entry table[ENTRIES];
static int newest_of_one, newest_of_groups, last_hit;

/* What most entries that are not a call's differ in, close together: entries take some 5 KB each. */
static struct head {
    PyObject *
        name; /* the first argument, if that is a string, of which there is one object each; else NULL */
    int arguments;
    bool recorded, used;
} heads[ENTRIES];

PyObject *another(PyObject *object) {
    Py_IncRef(object);
    return object;
}

static PyTypeObject *shape_type; /* a subclass of tuple: torch.Size */

bool is_sequence(PyObject *value) {
    return PyList_CheckExact(value) || PyTuple_CheckExact(value) ||
           (shape_type && Py_TYPE(value) == shape_type);
}

Py_ssize_t length_of(PyObject *sequence) {
    return PyList_CheckExact(sequence) ? PyList_Size(sequence) : PyTuple_Size(sequence);
}

PyObject *entry_of(PyObject *sequence, Py_ssize_t i) {
    return PyList_CheckExact(sequence) ? PyList_GetItem(sequence, i) : PyTuple_GetItem(sequence, i);
}

PyObject *table_add_sequence(PyObject *module, PyObject *type) {
    (void)module;
    const bool right =
        !shape_type && PyType_Check(type) && PyType_IsSubtype((PyTypeObject *)type, &PyTuple_Type);
    if (right) shape_type = (PyTypeObject *)another(type);
    return PyBool_FromLong(right);
}

/* Whether a value is one that was remembered, of the same type: 1 == True == 1.0, but only the first is an integer. Lists and others
 * are remembered as tuples, and are equal to tuples that hold the same: they may change, but not while they are compared. Most strings
 * are names, of which there is one object each; texts of windows are not. */
static bool same_value(PyObject *remembered, PyObject *value) {
    if (remembered == value) return true;
    if (PyTuple_CheckExact(remembered)) {
        if (!is_sequence(value)) return false;
        const Py_ssize_t count = PyTuple_Size(remembered);
        bool same = count == length_of(value);
        for (Py_ssize_t i = 0; same && i < count; i++)
            same = same_value(PyTuple_GetItem(remembered, i), entry_of(value, i));
        return same;
    }
    if (Py_TYPE(remembered) != Py_TYPE(value)) return false;
    if (PyUnicode_CheckExact(remembered))
        return !PyUnicode_Compare(remembered, value) && !PyErr_Occurred();
    if (!PyLong_CheckExact(remembered) && !PyFloat_CheckExact(remembered)) return false;
    return PyObject_RichCompareBool(remembered, value, Py_EQ) == 1;
}

/* How deep sequences may be in each other: a list may hold itself. */
enum { DEEPEST = 4 };

/* Whether a value is one that can be remembered: one that cannot change, or a sequence of such ones. */
static bool is_lasting(PyObject *value, int depth) {
    if (is_sequence(value)) {
        const Py_ssize_t count = length_of(value);
        bool lasting = depth < DEEPEST;
        for (Py_ssize_t i = 0; lasting && i < count; i++)
            lasting = is_lasting(entry_of(value, i), depth + 1);
        return lasting;
    }
    return value == Py_None || PyBool_Check(value) || PyLong_CheckExact(value) ||
           PyFloat_CheckExact(value) || PyUnicode_CheckExact(value);
}

/* A value that is_lasting, with tuples in the place of other sequences: a new reference. NULL: an exception is set. */
static PyObject *of_tuples(PyObject *value) {
    if (!is_sequence(value)) return another(value);
    /* Making tuples may run finalizers, which may change a list. */
    PyObject *held = PyList_CheckExact(value) ? PyList_AsTuple(value) : another(value);
    const Py_ssize_t count = held ? PyTuple_Size(held) : 0;
    PyObject *own = held ? PyTuple_New(count) : NULL;
    for (Py_ssize_t i = 0; own && i < count; i++) {
        PyObject *entry = of_tuples(PyTuple_GetItem(held, i));
        if (entry && !PyTuple_SetItem(own, i, entry)) continue;
        Py_DecRef(own);
        own = NULL;
    }
    Py_DecRef(held);
    return own;
}

int64_t table_content_bytes(const struct given *given) {
    enum { OF_INTEGERS = 0, BITS = 64 };
    const uint64_t int64 = (uint64_t)OF_INTEGERS << 32 | (uint64_t)BITS << 16 | 1;
    const struct layout *layout = &given->layout;
    if (!given->type || !given->type->exchange || layout->device != ON_CPU ||
        layout->dtype != int64)
        return -1;
    int64_t entries = 1;
    for (int64_t axis = layout->axes - 1; axis >= 0; axis--) {
        if (layout->shape[axis] != 1 && layout->strides[axis] != entries) return -1;
        entries *= layout->shape[axis];
    }
    return entries * (int64_t)sizeof(int64_t);
}

static bool argument_matches(const struct argument *argument, const struct given *given) {
    if (argument->value && !argument->is_content)
        return !given->type && same_value(argument->value, given->object);
    if (given->type != argument->type) return false;
    const struct layout *layout = &given->layout;
    const size_t bytes = (size_t)argument->axes * sizeof(int64_t);
    const bool same = layout->dtype == argument->dtype && layout->axes == argument->axes &&
                      !memcmp(layout->shape, argument->shape, bytes) &&
                      !memcmp(layout->strides, argument->strides, bytes);
    if (!same || !argument->is_content) return same;
    return layout->device == ON_CPU && !memcmp(layout->data, PyBytes_AsString(argument->value),
                                               (size_t)PyBytes_Size(argument->value));
}

/* Describes an argument, with references. False for one that cannot be remembered. */
static bool describe(const struct given *given, bool is_content, struct argument *argument) {
    if (!given->type) {
        argument->value = is_content ? NULL : of_tuples(given->object);
        return argument->value;
    }
    const struct layout *layout = &given->layout;
    const int64_t bytes = is_content ? table_content_bytes(given) : 0;
    if (layout->axes > MOST_AXES || bytes < 0) return false;
    argument->type = given->type;
    argument->axes = layout->axes;
    argument->dtype = layout->dtype;
    if (!argument->type->exchange) argument->owner = another((PyObject *)(uintptr_t)layout->dtype);
    memcpy(argument->shape, layout->shape, (size_t)layout->axes * sizeof(int64_t));
    memcpy(argument->strides, layout->strides, (size_t)layout->axes * sizeof(int64_t));
    if (!is_content) return true;
    argument->is_content = true;
    argument->value = PyBytes_FromStringAndSize(layout->data, (Py_ssize_t)bytes);
    return argument->value;
}

bool table_read_call(struct call *call, PyObject *const *given, Py_ssize_t count, PyObject *names,
                     bool executed) {
    call->count = count + (names ? PyTuple_Size(names) : 0);
    call->names = names;
    call->recorded = false;
    if (call->count > MOST_ARGUMENTS) return false;
    bool wanted = false; /* gradients of an argument */
    for (Py_ssize_t i = 0; i < call->count; i++) {
        struct given *one = &call->given[i];
        one->object = given[i];
        one->type = array_type_of(given[i]);
        if (!one->type) {
            if (!is_lasting(given[i], 0)) return false;
            continue;
        }
        if (!array_read(one->type, given[i], &one->layout)) return false;
        if (!executed && !wanted && one->type->exchange) wanted = tensor_wants_gradient(given[i]);
    }
    call->recorded = wanted && tensor_gradients_are_recorded();
    return true;
}

/* Whether an argument of an entry is an array that the plan computes with. */
static bool is_array(const struct argument *argument) {
    return !argument->value;
}

/* The device of all arrays of a call like the entry's; false if they are on several. */
static bool find_device(const struct entry *entry, const struct call *call, int *device) {
    bool any = false, same = true;
    *device = ON_CPU;
    for (Py_ssize_t i = 0; same && i < call->count; i++) {
        if (!is_array(&entry->argument[i])) continue;
        same = !any || *device == call->given[i].layout.device;
        *device = call->given[i].layout.device;
        any = true;
    }
    return same;
}

static bool is_aligned(const struct entry *entry, const struct call *call) {
    uintptr_t bits = 0;
    for (Py_ssize_t i = 0; i < call->count; i++)
        if (is_array(&entry->argument[i])) bits |= (uintptr_t)call->given[i].layout.data;
    return bits % ALIGNMENT == 0;
}

static bool setting_is(const struct launch *launch) {
    if (!launch->setting) return true;
    PyObject *setting = PyObject_CallObject(launch->setting, NULL);
    const bool same = setting == launch->expected;
    Py_DecRef(setting);
    PyErr_Clear();
    return same;
}

static bool matches(const struct entry *entry, const struct call *call) {
    if (call->names ? !same_value(entry->names, call->names) : PyTuple_Size(entry->names) > 0)
        return false;
    bool same = true;
    for (int i = 0; same && i < entry->arguments; i++)
        same = argument_matches(&entry->argument[i], &call->given[i]);
    int device = ON_CPU;
    same = same && find_device(entry, call, &device) && device == entry->device;
    if (!same || !entry->launch.stream) return same;
    return entry->launch.aligned == is_aligned(entry, call) && setting_is(&entry->launch);
}

const struct entry *table_find(const struct call *call) {
    const PyObject *name = call->count ? call->given[0].object : NULL;
    for (int look = 0; look < ENTRIES; look++) {
        const int i = (last_hit + look) % ENTRIES;
        const struct head *head = &heads[i];
        if (!head->used || head->arguments != call->count || head->recorded != call->recorded ||
            (head->name && head->name != name) || !matches(&table[i], call))
            continue;
        last_hit = i;
        return &table[i];
    }
    return NULL;
}

bool table_describe(struct entry *entry, const struct call *call, PyObject *contents) {
    bool is_content[MOST_ARGUMENTS] = {false};
    for (Py_ssize_t i = 0; i < PyTuple_Size(contents); i++) {
        const long place = PyLong_AsLong(PyTuple_GetItem(contents, i));
        if (PyErr_Occurred() || place < 0 || place >= call->count) return false;
        is_content[place] = true;
    }
    for (int i = 0; i < call->count; i++) {
        if (!describe(&call->given[i], is_content[i], &entry->argument[i])) return false;
        entry->arguments = i + 1;
    }
    entry->launch.aligned = is_aligned(entry, call);
    return find_device(entry, call, &entry->device);
}

void table_add(struct entry *entry) {
    int newest;
    if (entry->of_group) {
        newest_of_groups = (newest_of_groups + 1) % ENTRIES_OF_GROUPS;
        newest = ENTRIES_OF_ONE + newest_of_groups;
    } else {
        newest_of_one = (newest_of_one + 1) % ENTRIES_OF_ONE;
        newest = newest_of_one;
    }
    const struct entry old = table[newest];
    table[newest] = *entry;
    *entry = old;
    PyObject *first = table[newest].arguments ? table[newest].argument[0].value : NULL;
    heads[newest] = (struct head){.name = first && PyUnicode_CheckExact(first) ? first : NULL,
                                  .arguments = table[newest].arguments,
                                  .recorded = table[newest].recorded,
                                  .used = true};
}

void table_free(struct entry *entry) {
    const struct entry old = *entry;
    *entry = (struct entry){0};
    if (!old.owner) return;
    for (int i = 0; i < old.arguments; i++) {
        Py_DecRef(old.argument[i].value);
        Py_DecRef(old.argument[i].owner);
    }
    Py_DecRef(old.names);
    Py_DecRef(old.owner);
    Py_DecRef(old.results);
    Py_DecRef(old.offsets);
    Py_DecRef(old.constants);
    Py_DecRef(old.execution);
    Py_DecRef(old.launch.stream);
    Py_DecRef(old.launch.workspace);
    Py_DecRef(old.launch.setting);
    Py_DecRef(old.launch.expected);
}

void table_free_all(void) {
    for (int i = 0; i < ENTRIES; i++) {
        heads[i] = (struct head){.used = false};
        table_free(&table[i]);
    }
}
