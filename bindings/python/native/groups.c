#include "groups.h"

#include "quick_table.h"

#include <stdlib.h>
#include <string.h>

/* The rows of a table (nhood/_groups.py): the first token of a member's queries and of its keys, then for each axis these. */
enum { LENGTH, WINDOW, STRIDE, DILATION, CAUSAL, QUERY_LENGTH, KEY_LENGTH, WINDOWS, PER_AXIS };
enum { FIRSTS = 2, MOST_RANK = 3, SIDES = 2 };

static const int64_t EMPTY[PER_AXIS] = {1, 1, 1, 1,
                                        0, 0, 0, 0}; /* an axis of a member without tokens */

/* ---- from lengths to a table ---- */

/* Reads an int, or the bool of is_causal. False for what is none, without an exception. */
static bool read_number(PyObject *value, bool is_flag, int64_t *number) {
    if (is_flag) {
        *number = value == Py_True;
        return PyBool_Check(value);
    }
    if (!PyLong_CheckExact(value)) return false;
    *number = PyLong_AsLongLong(value);
    if (*number != -1 || !PyErr_Occurred()) return true;
    PyErr_Clear();
    return false;
}

/* Reads a value for all axes, or one for each. */
static bool read_axes(PyObject *value, Py_ssize_t rank, bool is_flag, int64_t *numbers) {
    if (!is_sequence(value)) {
        int64_t number;
        if (!read_number(value, is_flag, &number)) return false;
        for (Py_ssize_t axis = 0; axis < rank; axis++)
            numbers[axis] = number;
        return true;
    }
    bool right = length_of(value) == rank;
    for (Py_ssize_t axis = 0; right && axis < rank; axis++)
        right = read_number(entry_of(value, axis), is_flag, &numbers[axis]);
    return right;
}

/* Writes a column of all rows, of what all samples have, or each of them, or, where neither is given, the default (0: there is none). */
static bool write_column(int64_t *table, Py_ssize_t count, Py_ssize_t rank, int column,
                         PyObject *of_all, PyObject *of_each, int64_t usual) {
    int64_t numbers[MOST_RANK];
    const bool each = of_each != Py_None;
    if (each && (of_all != Py_None || !is_sequence(of_each) || length_of(of_each) != count))
        return false;
    if (!each && of_all == Py_None) {
        if (!usual) return false;
        for (Py_ssize_t axis = 0; axis < rank; axis++)
            numbers[axis] = usual;
    } else if (!each && !read_axes(of_all, rank, column == CAUSAL, numbers)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        if (each && !read_axes(entry_of(of_each, i), rank, false, numbers)) return false;
        int64_t *row = table + i * (FIRSTS + PER_AXIS * rank) + FIRSTS;
        for (Py_ssize_t axis = 0; axis < rank; axis++)
            row[axis * PER_AXIS + column] = numbers[axis];
    }
    return true;
}

/* Writes where samples begin that are packed one after the other. False for lengths below 0, or too many tokens. */
static bool write_firsts(int64_t *table, Py_ssize_t count, Py_ssize_t rank) {
    int64_t first = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
        int64_t *row = table + i * (FIRSTS + PER_AXIS * rank), tokens = 1;
        row[0] = row[1] = first;
        for (Py_ssize_t axis = 0; axis < rank; axis++) {
            const int64_t length = row[FIRSTS + axis * PER_AXIS + LENGTH];
            if (length < 0 || __builtin_mul_overflow(tokens, length, &tokens)) return false;
        }
        if (__builtin_add_overflow(first, tokens, &first)) return false;
    }
    return true;
}

PyObject *groups_table(PyObject *module, PyObject *const *given, Py_ssize_t arguments) {
    (void)module;
    enum {
        LAYOUTS,
        KERNEL_SIZE,
        KERNEL_SIZES,
        STRIDES_OF_ALL,
        STRIDES_OF_EACH,
        DILATION_OF_ALL,
        DILATIONS_OF_EACH,
        IS_CAUSAL,
        ARGUMENTS
    };
    if (arguments != ARGUMENTS || !is_sequence(given[LAYOUTS]) || !length_of(given[LAYOUTS]))
        return another(Py_None);
    const Py_ssize_t count = length_of(given[LAYOUTS]);
    PyObject *first = entry_of(given[LAYOUTS], 0);
    const Py_ssize_t rank = is_sequence(first) ? length_of(first) : 0;
    if (rank < 1 || rank > MOST_RANK) return another(Py_None);
    for (Py_ssize_t i = 0; i < count; i++) /* a length alone would be taken for those of all axes */
        if (!is_sequence(entry_of(given[LAYOUTS], i))) return another(Py_None);
    const Py_ssize_t bytes = count * (FIRSTS + PER_AXIS * rank) * (Py_ssize_t)sizeof(int64_t);
    PyObject *made = PyByteArray_FromStringAndSize(NULL, bytes);
    if (!made) return NULL;
    int64_t *table = (void *)PyByteArray_AsString(made);
    memset(table, 0, (size_t)bytes);
    if (write_column(table, count, rank, LENGTH, Py_None, given[LAYOUTS], 0) &&
        write_column(table, count, rank, WINDOW, given[KERNEL_SIZE], given[KERNEL_SIZES], 0) &&
        write_column(table, count, rank, STRIDE, given[STRIDES_OF_ALL], given[STRIDES_OF_EACH],
                     1) &&
        write_column(table, count, rank, DILATION, given[DILATION_OF_ALL], given[DILATIONS_OF_EACH],
                     1) &&
        write_column(table, count, rank, CAUSAL, given[IS_CAUSAL], Py_None, 0) &&
        write_firsts(table, count, rank))
        return Py_BuildValue("Nn", made, FIRSTS + PER_AXIS * rank);
    Py_DecRef(made);
    return another(Py_None);
}

/* ---- from a table to problems ---- */

/* A tensor of all members, [1, tokens, heads, channels], or without channels. Strides are elements. */
struct packed {
    int slot;
    int side;     /* 0: it has the queries' tokens, 1: the keys' */
    int64_t item; /* bytes of an element */
    int64_t token, head;
};

enum { MOST_TENSORS = MOST_ARGUMENTS + MOST_RESULTS };

struct request {
    const int64_t *table;
    int64_t members, rank;
    int64_t tokens[SIDES]; /* of the tensors */
    bool whole;            /* whether the members are to be all of these */
    struct packed tensor[MOST_TENSORS];
    int tensors;
};

static const int64_t *row_of(const struct request *request, int64_t member) {
    return request->table + member * (FIRSTS + PER_AXIS * request->rank);
}

static int64_t extent_of(const int64_t *row, int64_t axis, int side) {
    const int64_t *of = row + FIRSTS + axis * PER_AXIS;
    const int64_t box = of[side ? KEY_LENGTH : QUERY_LENGTH];
    return box ? box : of[LENGTH];
}

/* The tokens of a member on a side; -1: a length below 0, or too many. */
static int64_t tokens_of(const struct request *request, const int64_t *row, int side) {
    int64_t tokens = 1;
    for (int64_t axis = 0; axis < request->rank; axis++) {
        const int64_t extent = extent_of(row, axis, side);
        if (extent < 0 || __builtin_mul_overflow(tokens, extent, &tokens)) return -1;
    }
    return tokens;
}

/* Whether the members lie in the tensors one after the other, without gaps if that is asked, and have windows by formula. */
static bool is_usual(const struct request *request) {
    for (int64_t i = 0; i < request->members; i++)
        for (int64_t axis = 0; axis < request->rank; axis++) {
            const int64_t causal = row_of(request, i)[FIRSTS + axis * PER_AXIS + CAUSAL];
            if (row_of(request, i)[FIRSTS + axis * PER_AXIS + WINDOWS] || causal < 0 || causal > 1)
                return false;
        }
    for (int side = 0; side < SIDES; side++) {
        int64_t end = 0, all = 0;
        for (int64_t i = 0; i < request->members; i++) {
            const int64_t *row = row_of(request, i), tokens = tokens_of(request, row, side);
            if (tokens < 0 || row[side] < end || row[side] > request->tokens[side] ||
                tokens > request->tokens[side] - row[side])
                return false;
            end = row[side] + tokens;
            all += tokens;
        }
        if (request->whole && all != request->tokens[side]) return false;
    }
    return true;
}

/* Whether a member is equal to the one before it and lies behind it: they are one with a batch of two. */
static bool is_next(const struct request *request, int64_t member) {
    const int64_t *row = row_of(request, member), *before = row_of(request, member - 1);
    bool next =
        !memcmp(row + FIRSTS, before + FIRSTS, (size_t)(PER_AXIS * request->rank) * sizeof *row);
    for (int side = 0; next && side < SIDES; side++)
        next = row[side] == before[side] + tokens_of(request, before, side);
    return next;
}

static void fill_axes(const struct request *request, const int64_t *row, bool empty,
                      nhood_problem *problem) {
    for (int64_t axis = 0; axis < request->rank; axis++) {
        const int64_t *of = empty ? EMPTY : row + FIRSTS + axis * PER_AXIS;
        problem->axis[axis].length = of[LENGTH];
        problem->axis[axis].window = of[WINDOW];
        problem->axis[axis].stride = of[STRIDE];
        problem->axis[axis].dilation = of[DILATION];
        problem->axis[axis].causal = (int32_t)of[CAUSAL];
        problem->region[axis].query_length = of[QUERY_LENGTH];
        problem->region[axis].key_length = of[KEY_LENGTH];
    }
}

/* Sets the strides of a member's tensors, and writes where it begins in each, in bytes. */
static void lay(const struct request *request, const int64_t *row, nhood_problem *problem,
                int64_t *offsets) {
    for (int i = 0; i < request->tensors; i++) {
        const struct packed *tensor = &request->tensor[i];
        nhood_strides *strides = &problem->strides[tensor->slot];
        int64_t step = tensor->token;
        for (int64_t axis = request->rank - 1; axis >= 0; axis--) {
            strides->axis[axis] = step;
            step *= extent_of(row, axis, tensor->side);
        }
        strides->batch = step ? step : 1; /* all zero would mean packed */
        strides->head = tensor->head;
        offsets[i] = row[tensor->side] * tensor->token * tensor->item;
    }
}

/* Reads the tensors: a tuple of (slot, side, bytes of an element, stride of tokens, of heads). */
static bool read_tensors(struct request *request, PyObject *tensors) {
    request->tensors = (int)PyTuple_Size(tensors);
    if (request->tensors > MOST_TENSORS) return false;
    for (int i = 0; i < request->tensors; i++) {
        struct packed *tensor = &request->tensor[i];
        long long item, token, head;
        if (!PyArg_ParseTuple(PyTuple_GetItem(tensors, i), "iiLLL", &tensor->slot, &tensor->side,
                              &item, &token, &head))
            return false;
        if (tensor->slot < 0 || tensor->slot >= NHOOD_TENSOR_SLOTS || tensor->side < 0 ||
            tensor->side >= SIDES)
            return false;
        tensor->item = item, tensor->token = token, tensor->head = head;
    }
    return true;
}

/* How a plan of a group is made. */
struct maker {
    nhood_context *context;
    int device;
    const nhood_plan_options *options;
    nhood_plan **plan;
};

static nhood_status create(const struct maker *maker, const nhood_problem *problems,
                           int64_t count) {
    PyThreadState *thread = PyEval_SaveThread();
    const nhood_status status = library.create_group(maker->context, maker->device, problems, count,
                                                     maker->options, maker->plan);
    PyEval_RestoreThread(thread);
    return status;
}

/* Fills the problems and the offsets of a request that is usual. attended: the tokens of each side that members with tokens have. */
static void fill(const struct request *request, const nhood_problem *blank, nhood_problem *problem,
                 int64_t *offsets, int64_t *attended) {
    int64_t at = -1;
    for (int64_t i = 0; i < request->members; i++) {
        const int64_t *row = row_of(request, i);
        int64_t tokens[SIDES];
        for (int side = 0; side < SIDES; side++)
            tokens[side] = tokens_of(request, row, side);
        const bool empty = !tokens[0] || !tokens[1];
        for (int side = 0; side < SIDES; side++)
            attended[side] += empty ? 0 : tokens[side];
        if (i && is_next(request, i)) {
            problem[at].batch += !empty;
            continue;
        }
        at++;
        problem[at] = *blank;
        problem[at].batch = !empty;
        fill_axes(request, row, empty, &problem[at]);
        lay(request, row, &problem[at], offsets + at * request->tensors);
    }
}

/* Makes the problems of a request that is usual, of which `kept` members begin one, and then their plan or, without a maker, hands them
 * out: NULL if an exception is set. */
static PyObject *make(const struct request *request, const nhood_problem *blank, int64_t kept,
                      const struct maker *maker) {
    const size_t bytes = (size_t)kept * sizeof *blank;
    nhood_problem *problems = malloc(bytes + 1);
    PyObject *places = PyBytes_FromStringAndSize(
        NULL, (Py_ssize_t)(kept * request->tensors * (int64_t)sizeof(int64_t)));
    if (!problems || !places) {
        free(problems);
        Py_DecRef(places);
        return PyErr_NoMemory();
    }
    int64_t attended[SIDES] = {0};
    fill(request, blank, problems, (void *)PyBytes_AsString(places), attended);
    PyObject *made = maker ? PyLong_FromLong(create(maker, problems, kept))
                           : PyBytes_FromStringAndSize((const char *)problems, (Py_ssize_t)bytes);
    const size_t workspace = maker && *maker->plan ? library.workspace_bytes(*maker->plan) : 0;
    free(problems);
    return Py_BuildValue("NNLKOO", made, places, (long long)kept, (unsigned long long)workspace,
                         attended[0] == request->tokens[0] ? Py_True : Py_False,
                         attended[1] == request->tokens[1] ? Py_True : Py_False);
}

PyObject *groups_plan(PyObject *module, PyObject *arguments) {
    (void)module;
    PyObject *tensors, *table, *blank;
    Py_ssize_t words;
    long long queries, keys;
    int whole, device = 0;
    unsigned long long context = 0, options = 0, plan = 0;
    if (!PyArg_ParseTuple(arguments, "SSnO!LLp|KiKK", &blank, &table, &words, &PyTuple_Type,
                          &tensors, &queries, &keys, &whole, &context, &device, &options, &plan))
        return NULL;
    const struct maker maker = {(nhood_context *)(uintptr_t)context, device,
                                (const nhood_plan_options *)(uintptr_t)options,
                                (nhood_plan **)(uintptr_t)plan};
    struct request request = {.table = (const void *)PyBytes_AsString(table),
                              .rank = (words - FIRSTS) / PER_AXIS,
                              .tokens = {queries, keys},
                              .whole = whole};
    const Py_ssize_t row_bytes = words * (Py_ssize_t)sizeof(int64_t);
    if (request.rank < 1 || request.rank > MOST_RANK || words != FIRSTS + PER_AXIS * request.rank ||
        PyBytes_Size(table) % row_bytes || PyBytes_Size(blank) != sizeof(nhood_problem))
        return another(Py_None);
    if (!read_tensors(&request, tensors)) {
        PyErr_Clear();
        return another(Py_None);
    }
    const int64_t rows = PyBytes_Size(table) / row_bytes;
    while (request.members < rows && row_of(&request, request.members)[0] >= 0)
        request.members++;
    for (int64_t i = request.members; i < rows; i++)
        if (row_of(&request, i)[0] >= 0) return another(Py_None);
    if (!is_usual(&request)) return another(Py_None);
    int64_t kept = request.members > 0;
    for (int64_t i = 1; i < request.members; i++)
        kept += !is_next(&request, i);
    return make(&request, (const void *)PyBytes_AsString(blank), kept, plan ? &maker : NULL);
}

PyObject *groups_bytes(PyObject *module, PyObject *table) {
    (void)module;
    struct given given = {.object = table, .type = array_type_of(table)};
    if (!given.type || !array_read(given.type, table, &given.layout) || given.layout.axes != 2)
        return another(Py_None);
    const int64_t bytes = table_content_bytes(&given);
    if (bytes < 0) return another(Py_None);
    PyObject *held = PyBytes_FromStringAndSize(given.layout.data, (Py_ssize_t)bytes);
    return Py_BuildValue("NL", held, (long long)given.layout.shape[1]);
}
