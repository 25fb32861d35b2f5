#include "log_lines.h"

#include <pthread.h>
#include <stdint.h>
#include <string.h>

enum {
    MOST_LINES = 64,
    LINE_BYTES = 512
}; /* a line has at most 511 bytes; of more lines the oldest go */

static struct {
    pthread_mutex_t lock;
    int first, count;
    struct {
        int32_t level;
        char text[LINE_BYTES];
    } line[MOST_LINES];
} kept = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void keep(void *user, int32_t level, const char *line) {
    (void)user;
    pthread_mutex_lock(&kept.lock);
    if (kept.count == MOST_LINES) {
        kept.first = (kept.first + 1) % MOST_LINES;
        kept.count--;
    }
    const int at = (kept.first + kept.count++) % MOST_LINES;
    kept.line[at].level = level;
    strncpy(kept.line[at].text, line, LINE_BYTES - 1);
    pthread_mutex_unlock(&kept.lock);
}

PyObject *log_keep(PyObject *module, PyObject *nothing) {
    (void)module;
    (void)nothing;
    return PyLong_FromUnsignedLongLong((uintptr_t)keep);
}

/* Takes the oldest line. Nothing of Python runs under the lock. */
static int take(int32_t *level, char text[LINE_BYTES]) {
    pthread_mutex_lock(&kept.lock);
    const int there = kept.count > 0;
    if (there) {
        *level = kept.line[kept.first].level;
        memcpy(text, kept.line[kept.first].text, LINE_BYTES);
        kept.first = (kept.first + 1) % MOST_LINES;
        kept.count--;
    }
    pthread_mutex_unlock(&kept.lock);
    return there;
}

PyObject *log_taken(PyObject *module, PyObject *nothing) {
    (void)module;
    (void)nothing;
    PyObject *lines = PyList_New(0);
    int32_t level;
    char text[LINE_BYTES];
    while (lines && take(&level, text)) {
        PyObject *line = Py_BuildValue("(iy)", (int)level, text);
        const int failed = !line || PyList_Append(lines, line);
        Py_DecRef(line);
        if (!failed) continue;
        Py_DecRef(lines);
        lines = NULL;
    }
    return lines;
}
