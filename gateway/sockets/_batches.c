/* recv(2) and send(2) of many sockets in one call: `gateway.sockets.batches` says what each function does.
 *
 * The interpreter's lock is kept throughout. No call here waits: epoll_wait(2) has no time to, and recv(2) and send(2)
 * are told not to. Giving the lock away would cost more than the calls (docs/decisions/0057), and whoever lets others
 * run meanwhile has to guard the lists that it reads.
 *
 * An allocation may start a garbage collection, which may run any Python code, which may change the dict and the lists
 * that were passed. So nothing borrowed from them is used behind an allocation, and a size is asked for each time.
 */

#define PY_SSIZE_T_CLEAN
#define Py_LIMITED_API 0x030B0000 /* one build is for Python 3.11 and all that follow */
#include <Python.h>

#include <errno.h>
#include <limits.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/types.h>

#define VERSION 1                   /* of this interface; `gateway.sockets.batches` asks for the same */
#define SOCKETS_MAX 1024            /* of one call: their events are on the stack, 12 KiB */
#define READ_BYTES_MAX (256 << 10)  /* of one socket in one call */

typedef struct {
    char buffer[READ_BYTES_MAX]; /* a read, until it is copied into an object of its size */
} State;

/* Stores an integer from `low` to `high`, or sets an exception and returns -1. */
static int
integer(PyObject *object, const char *name, int low, int high, int *value)
{
    int overflow = 0;
    if (!PyLong_Check(object)) {
        PyErr_Format(PyExc_TypeError, "%s must be an int", name);
        return -1;
    }
    long number = PyLong_AsLongAndOverflow(object, &overflow);
    if (number == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (overflow || number < low || number > high) {
        PyErr_Format(PyExc_ValueError, "%s must be from %d to %d", name, low, high);
        return -1;
    }
    *value = (int)number;
    return 0;
}

/* Appends the tuple of two objects, whose references it takes; either may be NULL, with an exception set. */
static int
append_pair(PyObject *list, PyObject *first, PyObject *second)
{
    PyObject *pair = first != NULL && second != NULL ? PyTuple_New(2) : NULL;
    if (pair == NULL) {
        Py_XDECREF(first);
        Py_XDECREF(second);
        return -1;
    }
    PyTuple_SetItem(pair, 0, first);
    PyTuple_SetItem(pair, 1, second);
    int failed = PyList_Append(list, pair);
    Py_DECREF(pair);
    return failed;
}

/* The answer of `receive` while it is made. */
typedef struct {
    PyObject *reads;
    PyObject *full;
    PyObject *others;
    Py_ssize_t size_bytes;
} Received;

/* Reads one socket that epoll has named, or notes it among the others. Returns -1 with an exception set. */
static int
receive_one(State *state, const struct epoll_event *event, PyObject *readers, int read_bytes, int bytes_max,
            Received *received)
{
    PyObject *number = PyLong_FromLong(event->data.fd);
    if (number == NULL) {
        return -1;
    }
    if (event->events == EPOLLIN && received->size_bytes < bytes_max) {
        PyObject *reader = PyDict_GetItemWithError(readers, number);
        if (reader == NULL && PyErr_Occurred()) {
            Py_DECREF(number);
            return -1;
        }
        if (reader != NULL) {
            Py_INCREF(reader);
            ssize_t size = recv(event->data.fd, state->buffer, (size_t)read_bytes, MSG_DONTWAIT);
            if (size > 0) {
                received->size_bytes += size;
                int failed = size == read_bytes ? PyList_Append(received->full, number) : 0;
                Py_DECREF(number);
                PyObject *data = failed ? NULL : PyBytes_FromStringAndSize(state->buffer, size);
                return append_pair(received->reads, reader, data);
            }
            Py_DECREF(reader); /* at its end, failed, or already read: its owner finds out which */
        }
    }
    return append_pair(received->others, number, PyLong_FromUnsignedLong(event->events));
}

static PyObject *
receive(PyObject *module, PyObject *const *args, Py_ssize_t count)
{
    struct epoll_event events[SOCKETS_MAX];
    int count_max, read_bytes, bytes_max;

    if (count != 5) {
        PyErr_SetString(PyExc_TypeError, "receive() takes 5 arguments");
        return NULL;
    }
    PyObject *readers = args[2];
    if (!PyDict_Check(readers)) {
        PyErr_SetString(PyExc_TypeError, "readers must be a dict");
        return NULL;
    }
    if (integer(args[1], "count_max", 1, SOCKETS_MAX, &count_max) < 0
        || integer(args[3], "read_bytes", 1, READ_BYTES_MAX, &read_bytes) < 0
        || integer(args[4], "bytes_max", 1, INT_MAX, &bytes_max) < 0) {
        return NULL;
    }
    int epoll = PyObject_AsFileDescriptor(args[0]);
    if (epoll < 0) {
        return NULL;
    }
    State *state = PyModule_GetState(module);
    if (state == NULL) {
        return NULL;
    }
    int found = epoll_wait(epoll, events, count_max, 0);
    if (found < 0) {
        if (errno != EINTR) {
            return PyErr_SetFromErrno(PyExc_OSError);
        }
        found = 0;
    }
    Received received = {PyList_New(0), PyList_New(0), PyList_New(0), 0};
    int failed = received.reads == NULL || received.full == NULL || received.others == NULL;
    for (int i = 0; i < found && !failed; i++) {
        failed = receive_one(state, &events[i], readers, read_bytes, bytes_max, &received) < 0;
    }
    PyObject *size = failed ? NULL : PyLong_FromSsize_t(received.size_bytes);
    PyObject *answer = size == NULL ? NULL : PyTuple_New(4);
    if (answer == NULL) {
        Py_XDECREF(received.reads);
        Py_XDECREF(received.full);
        Py_XDECREF(received.others);
        Py_XDECREF(size);
        return NULL;
    }
    PyTuple_SetItem(answer, 0, received.reads);
    PyTuple_SetItem(answer, 1, received.full);
    PyTuple_SetItem(answer, 2, received.others);
    PyTuple_SetItem(answer, 3, size);
    return answer;
}

/* Says what is to be sent where. Returns -1 with an exception set: a list may have changed since it was checked. */
static int
writing(PyObject *numbers, PyObject *data, Py_ssize_t at, int *number, char **bytes, Py_ssize_t *size)
{
    PyObject *one = PyList_GetItem(numbers, at);
    PyObject *said = one == NULL ? NULL : PyList_GetItem(data, at);
    if (said == NULL || integer(one, "a socket's number", 0, INT_MAX, number) < 0) {
        return -1;
    }
    return PyBytes_AsStringAndSize(said, bytes, size); /* which checks the type */
}

static PyObject *
send_all(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    int number;
    char *bytes;
    Py_ssize_t size;

    if (count != 2 || !PyList_Check(args[0]) || !PyList_Check(args[1])) {
        PyErr_SetString(PyExc_TypeError, "send() takes a list of numbers and a list of bytes");
        return NULL;
    }
    PyObject *numbers = args[0], *data = args[1];
    Py_ssize_t length = PyList_Size(numbers);
    if (PyList_Size(data) != length) {
        PyErr_SetString(PyExc_ValueError, "the lists differ in length");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < length; i++) { /* before anything is sent */
        if (writing(numbers, data, i, &number, &bytes, &size) < 0) {
            return NULL;
        }
    }
    PyObject *short_of = PyList_New(0);
    if (short_of == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        if (writing(numbers, data, i, &number, &bytes, &size) < 0) {
            Py_DECREF(short_of);
            return NULL;
        }
        ssize_t taken = send(number, bytes, (size_t)size, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (taken == size) {
            continue;
        }
        if (taken < 0) {
            taken = errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR ? 0 : -errno;
        }
        if (append_pair(short_of, PyLong_FromSsize_t(i), PyLong_FromSsize_t(taken)) < 0) {
            Py_DECREF(short_of);
            return NULL;
        }
    }
    return short_of;
}

static int
begin(PyObject *module)
{
    return PyModule_AddIntConstant(module, "VERSION", VERSION);
}

/* In this version of Python's stable interface a method with METH_FASTCALL is cast by way of `void (*)(void)`. */
#define METHOD(function) ((PyCFunction)(void (*)(void))(function))

static PyMethodDef methods[] = {
    {"receive", METHOD(receive), METH_FASTCALL,
     "receive(epoll, count_max, readers, read_bytes, bytes_max, /) -> (reads, full, others, size_bytes)"},
    {"send", METHOD(send_all), METH_FASTCALL, "send(numbers, data, /) -> [(index, taken)]"},
    {NULL, NULL, 0, NULL},
};

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, begin},
    {0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "gateway.sockets._batches",
    .m_doc = "recv(2) and send(2) of many sockets in one call.",
    .m_size = sizeof(State),
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC
PyInit__batches(void)
{
    return PyModuleDef_Init(&definition);
}
