#include "quick_table.h"

#include "tensor_keys.h"

#include <string.h>

/* The table is looked through entry by entry. */
enum { ENTRIES = 128 };

/* The alignment in bytes of tensors on CUDA devices, for solvers that need one (CUDA_ALIGNMENT in _plans.py). */
enum { ALIGNMENT = 16 };

static struct entry table[ENTRIES];
static int newest, last_hit;

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

/* Whether two arguments are the same value of the same type: 1 == True == 1.0, but only the first is an integer. Most strings are
 * names, of which there is one object each; texts of windows are not. */
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
    if (PyUnicode_CheckExact(a)) return !PyUnicode_Compare(a, b) && !PyErr_Occurred();
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

static bool argument_matches(const struct argument *argument, const struct given *given) {
    if (argument->is_list) return same_entries(argument->value, given->object);
    if (argument->value) return !given->type && same_value(argument->value, given->object);
    if (given->type != argument->type) return false;
    const struct layout *layout = &given->layout;
    const size_t bytes = (size_t)argument->axes * sizeof(int64_t);
    return layout->dtype == argument->dtype && layout->axes == argument->axes &&
           !memcmp(layout->shape, argument->shape, bytes) &&
           !memcmp(layout->strides, argument->strides, bytes);
}

/* Describes an argument, with references. False for one that cannot be remembered. */
static bool describe(const struct given *given, struct argument *argument) {
    if (PyList_CheckExact(given->object)) {
        PyObject *held = PyList_AsTuple(given->object);
        if (!held || !is_lasting(held)) {
            Py_DecRef(held);
            return false;
        }
        argument->value = held;
        argument->is_list = true;
        return true;
    }
    if (!given->type) {
        argument->value = another(given->object);
        return true;
    }
    const struct layout *layout = &given->layout;
    if (layout->axes > MOST_AXES) return false;
    argument->type = given->type;
    argument->axes = layout->axes;
    argument->dtype = layout->dtype;
    if (!argument->type->exchange) argument->owner = another((PyObject *)(uintptr_t)layout->dtype);
    memcpy(argument->shape, layout->shape, (size_t)layout->axes * sizeof(int64_t));
    memcpy(argument->strides, layout->strides, (size_t)layout->axes * sizeof(int64_t));
    return true;
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
            if (!is_lasting(given[i]) && !PyList_CheckExact(given[i])) return false;
            continue;
        }
        if (!array_read(one->type, given[i], &one->layout)) return false;
        if (!executed && !wanted && one->type->exchange) wanted = tensor_wants_gradient(given[i]);
    }
    call->recorded = wanted && tensor_gradients_are_recorded();
    return true;
}

/* The device of all arrays of a call; false if they are on several. */
static bool find_device(const struct call *call, int *device) {
    bool any = false, same = true;
    *device = ON_CPU;
    for (Py_ssize_t i = 0; same && i < call->count; i++) {
        if (!call->given[i].type) continue;
        same = !any || *device == call->given[i].layout.device;
        *device = call->given[i].layout.device;
        any = true;
    }
    return same;
}

static bool is_aligned(const struct call *call) {
    uintptr_t bits = 0;
    for (Py_ssize_t i = 0; i < call->count; i++)
        if (call->given[i].type) bits |= (uintptr_t)call->given[i].layout.data;
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
    same = same && find_device(call, &device) && device == entry->device;
    if (!same || !entry->launch.stream) return same;
    return entry->launch.aligned == is_aligned(call) && setting_is(&entry->launch);
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

bool table_describe(struct entry *entry, const struct call *call) {
    if (!find_device(call, &entry->device)) return false;
    entry->launch.aligned = is_aligned(call);
    for (; entry->arguments < call->count; entry->arguments++)
        if (!describe(&call->given[entry->arguments], &entry->argument[entry->arguments]))
            return false;
    return true;
}

void table_add(struct entry *entry) {
    newest = (newest + 1) % ENTRIES;
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
