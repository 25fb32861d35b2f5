/* Batches of new sizes: from the lengths of samples to the table of a group's members, and from that to its problems. The package does
 * the same by numpy (nhood/_groups.py), in twenty times the time, and words what is wrong: here, whatever is unusual is left to it. */
#ifndef NHOOD_QUICK_GROUPS_H
#define NHOOD_QUICK_GROUPS_H

#define Py_LIMITED_API 0x03090000
#include <Python.h>

/* Methods of the module; their texts are in its table. */
PyObject *groups_table(PyObject *module, PyObject *const *given, Py_ssize_t count);
PyObject *groups_plan(PyObject *module, PyObject *arguments);
PyObject *groups_bytes(PyObject *module, PyObject *table);

#endif
