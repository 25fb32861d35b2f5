/* nhood_quick: calls from Python that come again, without the interpreter between arguments and library.
 *
 * The package remembers here what a call led to: the plan, and the results it fills. A later call whose arrays have the same
 * types, shapes, strides and dtypes, and whose other arguments are the same values of the same types, is executed at once. Of some
 * arrays, such as the table of a group's members, what they hold is the value.
 * Everything else, errors among it, is left to the package, which does without this module where it cannot be loaded.
 *
 * Written against the limited API of Python 3.9, so that one file serves every later CPython. The interpreter's lock guards
 * the table; interpreters without one load no module of this API. Nothing of nhood is linked: the package hands in the
 * addresses of nhood_plan_execute and nhood_plan_execute_group. */
#define Py_LIMITED_API 0x03090000
#include <Python.h>

#include "quick_table.h"
#include "groups.h"
#include "log_lines.h"
#include "signals.h"
#include "tensor_keys.h"

#include <stdlib.h>
#include <string.h>

/* There since 3.7; the header of the limited API has it from 3.10 on. */
#ifndef METH_FASTCALL
#define METH_FASTCALL 0x0080
#endif

static unsigned long long generation; /* how often everything was forgotten */

struct library library;
static PyObject *check; /* raises what a status means */

/* ---- execution ---- */

/* The workspace in CPU memory that no call uses at the moment. */
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

/* What an execution needs of its entry, with references: the table may change while it makes results and computes. */
struct taken {
    PyObject *owner, *results, *stream, *workspace, *offsets;
    const nhood_plan *handle;
    size_t workspace_bytes;
    int64_t members;
    int device;
    int arrays; /* among the arguments */
    int slot[MOST_ARGUMENTS + MOST_RESULTS];
};

/* Writes the addresses of the arrays, too. */
static struct taken take(const struct entry *entry, const struct call *call, nhood_io *io) {
    struct taken taken = {.owner = another(entry->owner),
                          .results = another(entry->results),
                          .stream = another(entry->launch.stream),
                          .workspace = another(entry->launch.workspace),
                          .offsets = another(entry->offsets),
                          .handle = entry->handle,
                          .workspace_bytes = entry->workspace_bytes,
                          .members = entry->members,
                          .device = entry->device};
    for (int i = 0; i < entry->arguments; i++)
        if (!entry->argument[i].value)
            io->data[entry->slot[taken.arrays++]] = call->given[i].layout.data;
    memcpy(taken.slot, entry->slot, sizeof taken.slot);
    return taken;
}

static void give_back(struct taken *taken) {
    Py_DecRef(taken->owner);
    Py_DecRef(taken->results);
    Py_DecRef(taken->stream);
    Py_DecRef(taken->workspace);
    Py_DecRef(taken->offsets);
}

/* Makes an array on the device and writes its address. NULL: an exception is set. */
static PyObject *make_array(PyObject *maker, int device, void **data) {
    PyObject *array = PyObject_CallObject(PyTuple_GetItem(maker, 0), PyTuple_GetItem(maker, 1));
    if (!array) return NULL;
    const struct array_type *type = array_type_of(array);
    struct layout layout;
    if (type && array_read(type, array, &layout) && layout.device == device) {
        *data = layout.data;
        return array;
    }
    Py_DecRef(array);
    PyErr_SetString(PyExc_RuntimeError, "a result that is no array in memory of its device");
    return NULL;
}

/* Makes the results: one alone, or a tuple of several. NULL: an exception is set. */
static PyObject *make_results(const struct taken *taken, nhood_io *io) {
    const Py_ssize_t count = PyTuple_Size(taken->results);
    if (count == 1)
        return make_array(PyTuple_GetItem(taken->results, 0), taken->device,
                          &io->data[taken->slot[taken->arrays]]);
    PyObject *results = PyTuple_New(count);
    for (Py_ssize_t i = 0; results && i < count; i++) {
        PyObject *result = make_array(PyTuple_GetItem(taken->results, i), taken->device,
                                      &io->data[taken->slot[taken->arrays + i]]);
        if (result && !PyTuple_SetItem(results, i, result)) continue;
        Py_DecRef(results);
        results = NULL;
    }
    return results;
}

/* Executes the plan of a group on arrays whose addresses are in io: members lie in them at the offsets. */
static nhood_status run_group(const struct taken *taken, const int64_t *offsets, const nhood_io *io,
                              nhood_io *members) {
    const int arrays = taken->arrays + (int)PyTuple_Size(taken->results);
    for (int64_t i = 0; i < taken->members; i++) {
        members[i].struct_size = sizeof *members;
        for (int j = 0; j < arrays; j++)
            members[i].data[taken->slot[j]] =
                (char *)io->data[taken->slot[j]] + offsets[i * arrays + j];
    }
    const nhood_group_io group = {.struct_size = sizeof group,
                                  .count = taken->members,
                                  .member = members,
                                  .workspace = io->workspace,
                                  .workspace_bytes = io->workspace_bytes,
                                  .stream = io->stream};
    PyThreadState *thread = PyEval_SaveThread();
    const nhood_status status = library.execute_group(taken->handle, &group);
    PyEval_RestoreThread(thread);
    return status;
}

/* Calls the library with the interpreter's lock released. False: an exception is set. */
static bool run(const struct taken *taken, const nhood_io *io) {
    nhood_status status;
    if (taken->offsets) {
        nhood_io *members = calloc((size_t)taken->members + 1, sizeof *members);
        if (!members) {
            PyErr_NoMemory();
            return false;
        }
        const void *offsets = PyBytes_AsString(taken->offsets);
        status = run_group(taken, offsets, io, members);
        free(members);
    } else {
        PyThreadState *thread = PyEval_SaveThread();
        status = library.execute(taken->handle, io);
        PyEval_RestoreThread(thread);
    }
    if (!status) return true;
    Py_DecRef(PyObject_CallFunction(check, "i", (int)status));
    return false;
}

static bool run_on_cpu(const struct taken *taken, nhood_io *io) {
    size_t bytes = 0;
    char *workspace = NULL;
    if (taken->workspace_bytes && !(workspace = take_workspace(taken->workspace_bytes, &bytes))) {
        PyErr_NoMemory();
        return false;
    }
    io->workspace = workspace;
    io->workspace_bytes = bytes;
    const bool done = run(taken, io);
    if (workspace) give_workspace(workspace, bytes);
    return done;
}

/* Enqueues; the workspace goes back to the memory of its stream, as that of every operation of torch. */
static bool run_on_cuda(const struct taken *taken, nhood_io *io) {
    PyObject *workspace = NULL;
    if (taken->workspace &&
        !(workspace = make_array(taken->workspace, taken->device, &io->workspace)))
        return false;
    io->workspace_bytes = taken->workspace_bytes;
    PyObject *stream = PyObject_CallFunction(taken->stream, "i", taken->device);
    io->stream = stream ? PyLong_AsVoidPtr(stream) : NULL;
    Py_DecRef(stream);
    const bool done = !PyErr_Occurred() && run(taken, io);
    Py_DecRef(workspace);
    return done;
}

static PyObject *execute_plan(const struct entry *entry, const struct call *call) {
    nhood_io io = {.struct_size = sizeof io};
    struct taken taken = take(entry, call, &io);
    PyObject *results = make_results(&taken, &io);
    if (results && !(taken.stream ? run_on_cuda(&taken, &io) : run_on_cpu(&taken, &io))) {
        Py_DecRef(results);
        results = NULL;
    }
    give_back(&taken);
    return results;
}

/* The call that computes what an entry's function is for, of arguments that have been read. */
static void find_execution(struct call *execution, const struct entry *entry,
                           const struct call *call) {
    execution->count = PyTuple_Size(entry->execution);
    execution->names = NULL;
    execution->recorded = false;
    for (Py_ssize_t i = 0; i < execution->count; i++) {
        const int place = entry->execution_place[i];
        struct given *given = &execution->given[i];
        if (place >= 0) {
            *given = call->given[place];
            continue;
        }
        *given = (struct given){.object = PyTuple_GetItem(entry->execution, i)};
        given->type = array_type_of(given->object);
        if (given->type && !array_read(given->type, given->object, &given->layout))
            given->type = NULL; /* which no entry has */
    }
}

/* Calls the function of an entry with the call's arguments and its own. If the execution is remembered, it comes first, and
 * the function gets its results. Of a tuple of one result, that. */
static PyObject *call_function(const struct entry *entry, const struct call *call) {
    const Py_ssize_t count = PyTuple_Size(entry->constants);
    PyObject *arguments = PyTuple_New(count);
    if (!arguments) return NULL;
    for (Py_ssize_t i = 0; i < count; i++) {
        const int place = entry->place[i];
        PyObject *own = PyTuple_GetItem(entry->constants, i);
        PyTuple_SetItem(arguments, i, another(place < 0 ? own : call->given[place].object));
    }
    PyObject *function = another(entry->owner);
    struct call execution;
    find_execution(&execution, entry, call);
    const int results_place = entry->results_place;
    const struct entry *executed = table_find(&execution); /* the last look at the table */
    PyObject *results = executed ? execute_plan(executed, &execution) : NULL;
    if (results) PyTuple_SetItem(arguments, results_place, results);
    PyObject *result = PyErr_Occurred() ? NULL : PyObject_CallObject(function, arguments);
    Py_DecRef(function);
    Py_DecRef(arguments);
    if (!result || !PyTuple_CheckExact(result) || PyTuple_Size(result) != 1) return result;
    PyObject *alone = another(PyTuple_GetItem(result, 0));
    Py_DecRef(result);
    return alone;
}

/* None for a call that can be remembered, False for others. */
static PyObject *look_up(PyObject *const *given, Py_ssize_t count, PyObject *names, bool executed) {
    struct call call;
    if (!table_read_call(&call, given, count, names, executed)) return another(Py_False);
    const struct entry *entry = table_find(&call);
    if (!entry) return another(Py_None);
    return entry->recorded ? call_function(entry, &call) : execute_plan(entry, &call);
}

static PyObject *call(PyObject *module, PyObject *const *given, Py_ssize_t count, PyObject *names) {
    (void)module;
    return look_up(given, count, names, false);
}

static PyObject *execute_call(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    (void)module;
    return look_up(given, count, NULL, true);
}

/* ---- what the package tells ---- */

/* Reads a call that is to be remembered. */
static bool read_remembered(struct call *call, PyObject *arguments) {
    PyObject *given[MOST_ARGUMENTS];
    const Py_ssize_t count = PyTuple_Size(arguments);
    if (count > MOST_ARGUMENTS) return false;
    for (Py_ssize_t i = 0; i < count; i++)
        given[i] = PyTuple_GetItem(arguments, i);
    return table_read_call(call, given, count, NULL, true);
}

/* Reads a tuple of at most `most` ints, of which the least and the largest may be `first` and `last`. */
static bool read_ints(PyObject *tuple, Py_ssize_t most, long first, long last, int *values) {
    bool right = PyTuple_Size(tuple) <= most;
    for (Py_ssize_t i = 0; right && i < PyTuple_Size(tuple); i++) {
        const long value = PyLong_AsLong(PyTuple_GetItem(tuple, i));
        right = !PyErr_Occurred() && value >= first && value <= last;
        values[i] = (int)value;
    }
    return right;
}

/* Reads (stream, workspace or None, setting or None, expected). */
static bool read_launch(struct launch *launch, PyObject *tuple) {
    PyObject *parts[4];
    if (!PyArg_ParseTuple(tuple, "OOOO", &parts[0], &parts[1], &parts[2], &parts[3])) return false;
    launch->stream = another(parts[0]);
    if (parts[1] != Py_None) launch->workspace = another(parts[1]);
    if (parts[2] != Py_None) launch->setting = another(parts[2]);
    launch->expected = another(parts[3]);
    return true;
}

/* Adds an entry that is whole, unless everything was forgotten since; frees what then is not in the table. */
static PyObject *add(struct entry *entry, bool whole, unsigned long long since) {
    if (whole && since == generation) table_add(entry);
    table_free(entry);
    if (PyErr_Occurred()) return NULL;
    return another(Py_None);
}

/* Reads (members, offsets) of the plan of a group, whose members have so many arrays. */
static bool read_group(struct entry *entry, PyObject *tuple, Py_ssize_t arrays) {
    long long members;
    PyObject *offsets;
    if (!PyArg_ParseTuple(tuple, "LO", &members, &offsets)) return false;
    if (!PyBytes_CheckExact(offsets) || members < 0 || members > NHOOD_MOST_MEMBERS ||
        PyBytes_Size(offsets) != (Py_ssize_t)(members * arrays * (int64_t)sizeof(int64_t)))
        return false;
    entry->members = members;
    entry->offsets = another(offsets);
    return true;
}

static PyObject *remember(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *given, *slots, *launch, *contents, *group;
    unsigned long long since, handle, workspace_bytes;
    struct entry entry = {0};
    if (!PyArg_ParseTuple(arguments, "KO!O!OKKO!O!OO!O", &since, &PyTuple_Type, &given,
                          &PyTuple_Type, &entry.names, &entry.owner, &handle, &workspace_bytes,
                          &PyTuple_Type, &slots, &PyTuple_Type, &entry.results, &launch,
                          &PyTuple_Type, &contents, &group))
        return NULL;
    Py_IncRef(entry.names);
    Py_IncRef(entry.owner);
    Py_IncRef(entry.results);
    entry.handle = (const nhood_plan *)(uintptr_t)handle;
    entry.workspace_bytes = (size_t)workspace_bytes;
    entry.of_group = group != Py_None;
    const Py_ssize_t results = PyTuple_Size(entry.results);
    struct call call;
    bool whole =
        results >= 1 && results <= MOST_RESULTS && read_remembered(&call, given) &&
        table_describe(&entry, &call, contents) &&
        read_ints(slots, MOST_ARGUMENTS + MOST_RESULTS, 0, NHOOD_TENSOR_SLOTS - 1, entry.slot);
    Py_ssize_t used = results;
    for (int i = 0; i < entry.arguments; i++)
        used += !entry.argument[i].value;
    whole = whole && used == PyTuple_Size(slots) &&
            (!entry.of_group || read_group(&entry, group, used)) &&
            (entry.device == ON_CPU) == (launch == Py_None) &&
            (launch == Py_None || read_launch(&entry.launch, launch));
    return add(&entry, whole, since);
}

/* Executes the plan of a group that is in no entry. */
static PyObject *run_group_once(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *owner, *slots, *results, *launch, *offsets, *arrays;
    unsigned long long handle, workspace_bytes;
    long long members;
    if (!PyArg_ParseTuple(arguments, "OKKO!O!OLSO!", &owner, &handle, &workspace_bytes,
                          &PyTuple_Type, &slots, &PyTuple_Type, &results, &launch, &members,
                          &offsets, &PyTuple_Type, &arrays))
        return NULL;
    const Py_ssize_t given = PyTuple_Size(arrays), made = PyTuple_Size(results);
    struct taken taken = {.owner = owner,
                          .results = results,
                          .offsets = offsets,
                          .handle = (const nhood_plan *)(uintptr_t)handle,
                          .workspace_bytes = (size_t)workspace_bytes,
                          .members = members,
                          .device = ON_CPU,
                          .arrays = (int)given};
    bool right =
        made <= MOST_RESULTS && given + made == PyTuple_Size(slots) && members >= 0 &&
        members <= NHOOD_MOST_MEMBERS &&
        read_ints(slots, MOST_ARGUMENTS + MOST_RESULTS, 0, NHOOD_TENSOR_SLOTS - 1, taken.slot) &&
        PyBytes_Size(offsets) == (Py_ssize_t)(members * (given + made) * (int64_t)sizeof(int64_t));
    nhood_io io = {.struct_size = sizeof io};
    for (Py_ssize_t i = 0; right && i < given; i++) {
        PyObject *array = PyTuple_GetItem(arrays, i);
        const struct array_type *type = array_type_of(array);
        struct layout layout;
        right = type && array_read(type, array, &layout);
        if (!right) break;
        io.data[taken.slot[i]] = layout.data;
        taken.device = layout.device;
    }
    struct launch how = {0};
    right = right && (launch == Py_None || read_launch(&how, launch));
    PyObject *done = NULL;
    if (right) {
        taken.stream = how.stream;
        taken.workspace = how.workspace;
        done = make_results(&taken, &io);
        if (done && !(taken.stream ? run_on_cuda(&taken, &io) : run_on_cpu(&taken, &io))) {
            Py_DecRef(done);
            done = NULL;
        }
    } else if (!PyErr_Occurred()) {
        done = another(Py_None);
    }
    Py_DecRef(how.stream);
    Py_DecRef(how.workspace);
    Py_DecRef(how.setting);
    Py_DecRef(how.expected);
    return done;
}

static PyObject *knows(PyObject *module, PyObject *const *given, Py_ssize_t count) {
    (void)module;
    struct call call;
    return PyBool_FromLong(table_read_call(&call, given, count, NULL, true) && table_find(&call));
}

static PyObject *remember_function(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *given, *places, *execution_places, *contents;
    unsigned long long since;
    int of_group;
    struct entry entry = {.recorded = true};
    if (!PyArg_ParseTuple(arguments, "KO!O!OO!O!O!O!iO!i", &since, &PyTuple_Type, &given,
                          &PyTuple_Type, &entry.names, &entry.owner, &PyTuple_Type,
                          &entry.constants, &PyTuple_Type, &places, &PyTuple_Type, &entry.execution,
                          &PyTuple_Type, &execution_places, &entry.results_place, &PyTuple_Type,
                          &contents, &of_group))
        return NULL;
    Py_IncRef(entry.names);
    Py_IncRef(entry.owner);
    Py_IncRef(entry.constants);
    Py_IncRef(entry.execution);
    entry.of_group = of_group;
    struct call call;
    const bool whole = read_remembered(&call, given) && table_describe(&entry, &call, contents) &&
                       PyTuple_Size(places) == PyTuple_Size(entry.constants) &&
                       read_ints(places, MOST_ARGUMENTS, -1, (long)call.count - 1, entry.place) &&
                       PyTuple_Size(execution_places) == PyTuple_Size(entry.execution) &&
                       read_ints(execution_places, MOST_ARGUMENTS, -1, (long)call.count - 1,
                                 entry.execution_place) &&
                       entry.results_place >= 0 &&
                       entry.results_place < PyTuple_Size(entry.constants);
    return add(&entry, whole, since);
}

static PyObject *forget(PyObject *module, PyObject *nothing) {
    (void)module;
    (void)nothing;
    generation++;
    table_free_all();
    free(spare);
    spare = NULL;
    return another(Py_None);
}

static PyObject *get_generation(PyObject *module, PyObject *nothing) {
    (void)module;
    (void)nothing;
    return PyLong_FromUnsignedLongLong(generation);
}

static PyObject *start(PyObject *module, PyObject *arguments) {
    (void)module;
    unsigned long long execute, execute_group, create_group, workspace_bytes;
    PyObject *given;
    Py_ssize_t head;
    if (!PyArg_ParseTuple(arguments, "(KKKK)nO", &execute, &execute_group, &create_group,
                          &workspace_bytes, &head, &given))
        return NULL;
    if (library.execute) return another(Py_False);
    array_set_head(head);
    check = another(given);
    const uintptr_t addresses[] = {execute, execute_group, create_group, workspace_bytes};
    _Static_assert(sizeof addresses == sizeof library, "an address for each function");
    memcpy(&library, addresses, sizeof library);
    return another(Py_True);
}

static PyMethodDef methods[] = {
    {"start", start, METH_VARARGS,
     "start(addresses of nhood_plan_execute, .._execute_group, .._create_group and "
     ".._workspace_bytes, object.__basicsize__, check): before anything else. "
     "Returns False where that has "
     "been done: the table is of one interpreter and one copy of the package."},
    {"add_type", array_add_type, METH_VARARGS,
     "add_type(array, exchange, address, shape, strides): knows arrays of that exact type from "
     "here on, by the capsule of the type, or numpy's by None. Returns whether it does, which "
     "takes that `array` is read right."},
    {"add_sequence", table_add_sequence, METH_O,
     "add_sequence(type): takes objects of that subclass of tuple, exactly, for the tuples that "
     "they "
     "are. Returns whether it does."},
    {"call", (PyCFunction)(void (*)(void))call, METH_FASTCALL | METH_KEYWORDS,
     "call(*arguments, **named): the results, one alone or a tuple; None if no such call is "
     "remembered, False if none can be."},
    {"execute", (PyCFunction)(void (*)(void))execute_call, METH_FASTCALL,
     "execute(*arguments): the same of calls that only execute, whatever gradients are recorded."},
    {"remember", remember, METH_VARARGS,
     "remember(generation, arguments, names, plan, handle, workspace_bytes, slots, results, "
     "launch, contents, group): what a call with these arguments does, the last of them by these "
     "names, unless "
     "everything was forgotten since. slots: of the arrays among the arguments, then of the "
     "results; results: a pair (callable, arguments) for each; launch: None on the CPU, else "
     "(what tells the stream of an ordinal, a pair that makes the workspace or None, what tells a "
     "setting or None, its value); contents: the numbers of the arguments that are arrays of int64 "
     "in CPU memory, of which it counts what they hold; group: None, or of the plan of a group "
     "(members, where they begin: bytes, int64 [member, slot])."},
    {"remember_function", remember_function, METH_VARARGS,
     "remember_function(generation, arguments, names, function, constants, places, execution, "
     "execution_places, results_place, contents, of_group): that such a call is one of `function` "
     "if gradients are "
     "recorded for it. places: for each of the function's arguments, the place of the call's "
     "argument that it is, or -1 for the one in constants. execution: likewise, the arguments of "
     "`execute`; where that remembers them, its results come first and take the place of the "
     "function's argument of that number. A tuple of one result is taken for that alone. contents: "
     "as above; of_group: whether it computes a group."},
    {"run_group", run_group_once, METH_VARARGS,
     "run_group(plan, handle, workspace_bytes, slots, results, launch, members, offsets, arrays): "
     "executes the plan of a group, of which these are as in `remember`; the results, or None if "
     "an array cannot be read."},
    {"knows", (PyCFunction)(void (*)(void))knows, METH_FASTCALL,
     "knows(*arguments): whether `execute` would execute such a call."},
    {"group_table", (PyCFunction)(void (*)(void))groups_table, METH_FASTCALL,
     "group_table(layouts, kernel_size, kernel_sizes, stride, strides, dilation, dilations, "
     "is_causal): the table of such samples, packed one after the other, a bytearray, and the "
     "words "
     "of a row; None for what is unusual, or wrong."},
    {"group_plan", groups_plan, METH_VARARGS,
     "group_plan(blank, table, words, tensors, queries, keys, whole, context, device, options, "
     "plan): makes the plan of the members in a table (context .. plan are addresses, the last of "
     "what it is written to), whose problems are copies of `blank` with axes, batch and strides; "
     "its "
     "status, where members begin in the tensors, int64 [problem, tensor] in bytes; how many "
     "problems there are; the bytes of its workspace; and whether all queries, and all keys, are "
     "attended. Without context .. plan the problems come in place of the status. tensors: for "
     "each "
     "(slot, 0 for queries or 1 for keys, bytes of an element, stride of tokens, of heads). None "
     "for "
     "what is unusual, or wrong."},
    {"group_bytes", groups_bytes, METH_O,
     "group_bytes(table): what a tensor holds, of int64 [rows, words] in CPU memory, contiguous, "
     "and "
     "its words; None for others."},
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
    {"keep_log", log_keep, METH_NOARGS, "keep_log(): the address of a callback of contexts."},
    {"taken_log", log_taken, METH_NOARGS,
     "taken_log(): the lines of the log since the last call, as tuples (level, bytes)."},
    {"watch_signals", signals_watch, METH_O,
     "watch_signals(identity of the main thread): the address of a callback of contexts."},
    {"taken_exception", signals_taken, METH_NOARGS,
     "taken_exception(): what a signal's handler raised within an interrupted call, or None."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT, "nhood_quick", NULL, -1, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit_nhood_quick(void);
PyMODINIT_FUNC PyInit_nhood_quick(void) {
    return PyModule_Create(&definition);
}
