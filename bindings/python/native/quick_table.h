/* The table of nhood_quick: calls, by all that their arguments say but the memory of arrays, and what they lead to. */
#ifndef NHOOD_QUICK_TABLE_H
#define NHOOD_QUICK_TABLE_H

#include "quick_arrays.h"

#include "nhood.h"

/* What is called of the library, at the addresses that the package hands in. */
struct library {
    nhood_status (*execute)(const nhood_plan *plan, const nhood_io *io);
    nhood_status (*execute_group)(const nhood_plan *plan, const nhood_group_io *io);
    nhood_status (*create_group)(nhood_context *context, int32_t device,
                                 const nhood_problem *problems, int64_t count,
                                 const nhood_plan_options *options, nhood_plan **plan);
    size_t (*workspace_bytes)(const nhood_plan *plan);
};
extern struct library library;

enum { MOST_ARGUMENTS = 28, MOST_RESULTS = 6, MOST_AXES = 6 };

/* An argument of a call as it comes. */
struct given {
    PyObject *object;
    const struct array_type *type; /* NULL: no array */
    struct layout layout;          /* of an array */
};

/* A call as it comes. */
struct call {
    struct given given[MOST_ARGUMENTS];
    Py_ssize_t count;
    PyObject *names; /* a tuple: of the last arguments, those given by keyword; NULL: none */
    bool recorded;   /* whether gradients are recorded for it */
};

/* An argument as it was. */
struct argument {
    PyObject *value; /* an immutable value, lists as tuples; NULL: an array as follows */
    bool is_content; /* an array as follows, in CPU memory, that held what value, a bytes, does */
    const struct array_type *type;
    int64_t axes, shape[MOST_AXES], strides[MOST_AXES];
    uint64_t dtype;
    PyObject *owner; /* numpy's dtype, whose address stays its own as long as this refers to it */
};

/* How the plan of a CUDA device is enqueued. */
struct launch {
    PyObject *stream; /* (ordinal) -> the address of the current stream; NULL: a plan of the CPU */
    PyObject *workspace; /* (what makes it, the tuple of arguments to that); NULL: none is needed */
    PyObject *setting;   /* () -> a setting that the plan depends on; NULL: it depends on none */
    PyObject *expected;  /* what that was */
    bool aligned;        /* whether all arrays began where solvers like it best */
};

/* What a call leads to: the execution of a plan or, for one that gradients are recorded for, a call of a function. */
struct entry {
    PyObject *owner; /* of the plan, or the function; NULL: the entry is free */
    bool recorded;
    bool of_group;   /* such plans are large: these entries have a share of the table */
    PyObject *names; /* a tuple: of the last arguments, those given by keyword */
    int device;      /* of all arrays */
    int arguments;
    struct argument argument[MOST_ARGUMENTS];

    /* What an entry for a plan has. */
    const nhood_plan *handle;
    size_t workspace_bytes;
    PyObject
        *results; /* a tuple, for each result: (what makes it, the tuple of arguments to that) */
    struct launch launch;
    int slot[MOST_ARGUMENTS +
             MOST_RESULTS]; /* of each array among the arguments, then of each result */
    int64_t members;        /* of the plan of a group */
    PyObject
        *offsets; /* of these a bytes: in each array, in the order of slot, int64 [member, array];
                          NULL: the plan of one problem */

    /* What an entry for a function has. */
    PyObject *constants; /* a tuple: its arguments, but for those that are arguments of the call */
    int place[MOST_ARGUMENTS]; /* of each of these among the call's arguments; -1: a constant */
    PyObject *execution;       /* a tuple: likewise, the arguments of a call that only executes */
    int execution_place[MOST_ARGUMENTS];
    int results_place; /* of the function's arguments, the one that its results take the place of */
};

/* Lists, tuples, and what else is known to hold its entries as a tuple does; borrowed entries. */
bool is_sequence(PyObject *value);
Py_ssize_t length_of(PyObject *sequence);
PyObject *entry_of(PyObject *sequence, Py_ssize_t i);

/* A method of the module; its text is in the module's table. */
PyObject *table_add_sequence(PyObject *module, PyObject *type);

/* A new reference. Counts are changed by functions only: the header's macros are those of one version. */
PyObject *another(PyObject *object);

/* Reads the arguments of a call; false for one that no entry can have, without an exception.
 * executed: whether it is a plan's execution, whatever gradients are recorded. */
bool table_read_call(struct call *call, PyObject *const *given, Py_ssize_t count, PyObject *names,
                     bool executed);

/* NULL: nothing like it is remembered. */
const struct entry *table_find(const struct call *call);

/* Describes the arguments of a call in an entry, with references. False if it cannot be remembered.
 * contents: a tuple, the numbers of the arrays of int64 in CPU memory that are arguments by what they hold. */
bool table_describe(struct entry *entry, const struct call *call, PyObject *contents);

/* The bytes of an array of int64 in CPU memory, of torch's; -1: it is none, or is not contiguous. */
int64_t table_content_bytes(const struct given *given);

/* Replaces the oldest entry, of those of groups or of the others, and leaves that in `entry`. */
void table_add(struct entry *entry);

/* Empties an entry. Its objects go last: what they run may come back here. */
void table_free(struct entry *entry);
void table_free_all(void);

#endif
