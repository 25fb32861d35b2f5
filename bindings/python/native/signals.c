#include "signals.h"

#include <stdint.h>

static unsigned long main_thread;
static PyObject *raised; /* by a handler, in the main thread; NULL: nothing */

/* Lets the interpreter run what signals ask for, as it does between two steps of a program. */
static int32_t interrupted(void *user) {
    (void)user;
    if (PyThread_get_thread_ident() != main_thread) return 0;
    const PyGILState_STATE state = PyGILState_Ensure();
    const int32_t failed = PyErr_CheckSignals() != 0;
    if (failed) {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        PyErr_NormalizeException(&type, &value, &trace);
        Py_DecRef(type);
        Py_DecRef(trace);
        Py_DecRef(raised);
        raised = value;
    }
    PyGILState_Release(state);
    return failed;
}

PyObject *signals_watch(PyObject *module, PyObject *identity) {
    (void)module;
    main_thread = PyLong_AsUnsignedLong(identity);
    if (PyErr_Occurred()) return NULL;
    return PyLong_FromUnsignedLongLong((uintptr_t)interrupted);
}

PyObject *signals_taken(PyObject *module, PyObject *nothing) {
    (void)module;
    (void)nothing;
    PyObject *taken = raised;
    raised = NULL;
    if (taken) return taken;
    Py_IncRef(Py_None);
    return Py_None;
}
