/* Ctrl-C within long calls: what the library asks (nhood_context_options.interrupted). */
#ifndef SIGNALS_H
#define SIGNALS_H

#define Py_LIMITED_API 0x03090000
#include <Python.h>

/* watch_signals(identity of the main thread): the address of the callback. Python runs handlers of signals in that thread only, so
 * that calls of others are not interrupted. */
PyObject *signals_watch(PyObject *module, PyObject *main_thread);

/* taken_exception(): what a handler raised within the call that was interrupted last, which is forgotten here; None if there is
 * none. */
PyObject *signals_taken(PyObject *module, PyObject *nothing);

#endif
