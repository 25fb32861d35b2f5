/* Lines of the library's log on their way to Python: the library may hold locks when it writes one, and so must not wait for the
 * interpreter's lock there. Lines are kept until the package takes them. */
#ifndef LOG_LINES_H
#define LOG_LINES_H

#define Py_LIMITED_API 0x03090000
#include <Python.h>

/* keep_log(): the address of the callback (nhood_context_options.log). */
PyObject *log_keep(PyObject *module, PyObject *nothing);

/* taken_log(): the lines since the last call, the oldest first, as tuples (level, bytes). */
PyObject *log_taken(PyObject *module, PyObject *nothing);

#endif
