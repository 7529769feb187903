# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""The compiled core: what `actorflow.core.plain` does, in C. That file has the words; this one says what differs.

An op is called here where that is plain: it is short, and there is nothing that it may have to wait for. All else is
asked of the actor, `Op.fire`. The interpreter's lock guards what the plain form locks, as nothing between two steps of
a count can let another thread run. A reference is owned by somebody: of a value that was taken out of its slot, a count
of 1 says that nobody else has it.
"""

from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE
from cpython.contextvars cimport PyContext_Copy, PyContext_Enter, PyContext_Exit
from cpython.dict cimport PyDict_Size
from cpython.exc cimport PyErr_CheckSignals, PyErr_Occurred
from cpython.list cimport PyList_GET_ITEM, PyList_GET_SIZE, PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF, Py_XDECREF
from cpython.tuple cimport PyTuple_GET_ITEM, PyTuple_GET_SIZE
from libc.stdint cimport int32_t, int64_t
from libc.string cimport memcpy
cimport numpy as np

from collections import deque
from contextvars import Context
from operator import setitem
from sys import maxsize
from weakref import getweakrefcount

from numpy import can_cast, generic, matmul, seterr

from actorflow.core.plain import (
    BURST, CALL_BYTES, FOREVER_NS, MOST_COPIED_BYTES, PATIENCE_NS, QUICK_NS, FrameState, untouched,
)

np.import_array()
SOURCE = ACTORFLOW_SOURCE  # the checksum of this file
cdef object in_flight = FrameState.RUNNING, finished = FrameState.FINISHED

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *) noexcept
    object PyObject_Vectorcall(object, PyObject **, size_t, PyObject *)
    size_t PY_VECTORCALL_ARGUMENTS_OFFSET

# NumPy's own declarations lack `types` from 2.5 on, and Cython then takes the Python attribute of that name.
cdef extern from "numpy/ufuncobject.h":
    ctypedef class numpy.ufunc [object PyUFuncObject, check_size ignore]:
        cdef int nin, nout, nargs, ntypes
        cdef np.PyUFuncGenericFunction *functions
        cdef void **data
        cdef const char *types

cdef extern from *:
    """
    #include <time.h>
    #ifdef _WIN32
    #include <windows.h>
    static long long actorflow_system_ns(void) {
        LARGE_INTEGER now, each;
        QueryPerformanceCounter(&now);
        QueryPerformanceFrequency(&each);
        return (now.QuadPart / each.QuadPart) * 1000000000LL + (now.QuadPart % each.QuadPart) * 1000000000LL / each.QuadPart;
    }
    #else
    static long long actorflow_system_ns(void) {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
    }
    #endif
    #include <numpy/arrayobject.h>
    /* The entry of an array along its first axis; a reference to the type is taken over. */
    #define actorflow_entry(array, at) PyArray_NewFromDescr(&PyArray_Type, (Py_INCREF(PyArray_DESCR(array)), \\
        PyArray_DESCR(array)), PyArray_NDIM(array) - 1, PyArray_DIMS(array) + 1, PyArray_STRIDES(array) + 1, \\
        PyArray_BYTES(array) + (at) * PyArray_STRIDE(array, 0), PyArray_FLAGS(array) & NPY_ARRAY_WRITEABLE, NULL)
    #define actorflow_loop(loop, arrays, count, steps, data) (loop)(arrays, count, steps, data)
    /* A list as an array of pointers that it owns, which the collector sees: an item may be NULL. */
    #define actorflow_item(list, i) (((PyListObject *)(list))->ob_item[i])
    """
    unsigned int ACTORFLOW_SOURCE
    int64_t system_ns "actorflow_system_ns"() noexcept nogil
    void run_loop "actorflow_loop"(
        np.PyUFuncGenericFunction, char **, np.npy_intp *, np.npy_intp *, void *
    ) noexcept nogil
    object view_of_entry "actorflow_entry"(np.ndarray, int64_t)
    PyObject *item "actorflow_item"(object, Py_ssize_t) noexcept

cdef object _clock = None


cpdef inline int64_t clock_ns() except? -1:
    if _clock is None:
        return system_ns()
    return _clock()


def set_clock(clock):
    global _clock
    _clock = clock


#: What an op is to the core: not looked at yet; called through its `compute`; a kernel; a function.
cdef enum Kind:
    UNKNOWN, OTHER, KERNEL, FUNCTION

cdef enum:
    C_RUNNING = 2
    C_DONE = 3
    MOST_SMALL = 8
    MOST_ARGUMENTS = 4
    LONG_LOOP = 500  # as NumPy, which lets other threads run while it computes more elements than these


cdef class Profile:
    cdef public int64_t calls, failed, total_ns, last_ns

    def __init__(self, calls=0, failed=0, total_ns=0, last_ns=0):
        self.calls, self.failed, self.total_ns, self.last_ns = calls, failed, total_ns, last_ns

    def add(self, int64_t elapsed_ns):
        self.calls += 1
        self.total_ns += elapsed_ns
        self.last_ns = elapsed_ns


cdef class Ring:
    cdef readonly np.ndarray buffer
    cdef readonly int64_t mask
    cdef public int64_t total

    def __init__(self, int64_t capacity):
        self.buffer = untouched(capacity * CALL_BYTES)
        self.mask = capacity - 1
        self.total = 0

    cdef inline void enter(self, int64_t end_ns, int64_t elapsed_ns, int64_t key, int64_t frame) noexcept:
        cdef int64_t *row = <int64_t *>np.PyArray_DATA(self.buffer) + (self.total & self.mask) * 4
        row[0] = end_ns
        row[1] = elapsed_ns
        row[2] = key
        row[3] = frame
        self.total += 1

    def add(self, int64_t end_ns, int64_t elapsed_ns, int64_t key, int64_t frame):
        self.enter(end_ns, elapsed_ns, key, frame)


cdef class Turnstile:
    cdef public Py_ssize_t limit, running
    cdef public bint is_elsewhere
    cdef public object parked
    cdef object _next
    cdef object _later

    def __init__(self, limit):
        self.running = 0
        self.limit = maxsize if limit is None else limit

    cpdef expect(self, frame):
        if self._next is None:
            self._next = frame
        else:
            if self._later is None:
                self._later = deque()
            self._later.append(frame)

    @property
    def expected(self):
        return [] if self._next is None else [self._next, *(self._later or ())]

    cdef int go_in(self) except -1:
        """The next frame enters."""
        self.running += 1
        self._next = None
        if self._later:
            self._next = self._later.popleft()
            if self.parked:
                self.admit()
        return 0

    def enter(self, frame, actor):
        if self._next is frame and self.running < self.limit and not self.is_elsewhere:
            self.go_in()
            return True
        if self.parked is None:
            self.parked = {}
        self.parked[frame] = actor
        return False

    cdef bint go_in_alone(self, frame, bint elsewhere) except -1:
        if self._next is not frame or self.running or self.limit < 1:
            return False
        self.is_elsewhere = elsewhere
        self.go_in()
        return True

    def enter_alone(self, frame, actor, elsewhere=False):
        return self.go_in_alone(frame, elsewhere)

    cdef inline int go_out(self) except -1:
        self.running -= 1
        self.is_elsewhere = False
        if self.parked:
            self.admit()
        return 0

    def leave(self):
        self.go_out()

    def skip(self, frame):
        if self.parked:
            self.parked.pop(frame, None)
        if self._next is frame:
            self._next = self._later.popleft() if self._later else None
            self.admit()
        elif self._later is not None and frame in self._later:
            self._later.remove(frame)

    cpdef admit(self):
        frame = self._next
        if frame is not None and self.running < self.limit and not self.is_elsewhere:
            actor = self.parked.pop(frame, None) if self.parked else None
            if actor is not None:
                frame.ready.append((actor, frame))
                frame.wake()


cdef class Shelf:
    cdef public list free
    cdef public bint is_plain

    def __init__(self):
        self.free = []
        self.is_plain = False

    cdef object get(self):
        if self.is_plain and PyList_GET_SIZE(self.free):
            return self.free.pop()
        return self.take()


cdef class Blob:
    is_usual = True  # whether `give_back` does all that `drop` does

    cdef readonly int32_t slot
    cdef readonly object bucket

    def __init__(self, slot, bucket):
        self.slot, self.bucket = slot, bucket

    cdef int give_back(self, list values) except -1:
        """What `drop` does without a budget."""
        return self.give_back_from(values, self.slot)

    cdef int give_back_from(self, list values, Py_ssize_t place) except -1:
        """The same with a value that is in another place."""
        cdef PyObject *value = PyList_GET_ITEM(values, place)
        Py_INCREF(None)
        PyList_SET_ITEM(values, place, None)
        try:
            if self.bucket is not None and Py_REFCNT(value) == 1:
                if (
                    isinstance(self.bucket, Shelf)
                    and (<Shelf>self.bucket).is_plain
                    and type(<object>value) is np.ndarray
                ):
                    if np.PyArray_BASE(<np.ndarray>value) is NULL:
                        (<Shelf>self.bucket).free.append(<object>value)
                else:
                    self.bucket.give_back(<object>value)
        finally:
            Py_XDECREF(value)
        return 0

    def drop(self, frame):
        self.give_back(frame.values)
        if frame.budget is not None:
            frame.budget.freed.append((frame, self.slot))


cdef class View(Blob):
    cdef int give_back(self, list values) except -1:
        cdef object buffer = (<object>PyList_GET_ITEM(values, self.slot)).base
        put(values, self.slot, None)
        if (
            self.bucket is not None
            and buffer is not None
            and Py_REFCNT(<PyObject *>buffer) == 1
            and (buffer.shape, buffer.dtype) == self.bucket.spec
            and (buffer.base is not None or getweakrefcount(buffer))
        ):
            self.bucket.give_back(buffer)
        return 0


cdef class Start:
    cdef int32_t *counts
    cdef Py_ssize_t mailboxes, slots
    cdef readonly int64_t open_ends
    cdef readonly Ready ready
    cdef readonly object wake
    cdef readonly object budget
    cdef readonly object monitor
    cdef readonly Ring trace
    cdef readonly tuple turnstiles, first
    cdef readonly bint ends_quietly
    cdef bytearray _states  # those of the monitor, which are never resized, and where they are
    cdef bytearray _dirty
    cdef char *_state_of
    cdef char *_is_dirty
    cdef Py_ssize_t _watched

    def __init__(
        self, pending, readers, open_ends, Ready ready, wake, budget, monitor, Ring trace,
        tuple turnstiles=(), tuple first=(), ends_quietly=False,
    ):
        cdef Py_ssize_t i
        if self.counts is not NULL:
            raise TypeError("what frames begin with is made once")
        self.mailboxes, self.slots = len(pending), len(readers)
        self.counts = <int32_t *>PyMem_Malloc((self.mailboxes + self.slots + 1) * sizeof(int32_t))
        if self.counts is NULL:
            raise MemoryError
        for i in range(self.mailboxes):
            self.counts[i] = pending[i]
        for i in range(self.slots):
            self.counts[self.mailboxes + i] = readers[i]
        self.open_ends, self.turnstiles, self.first, self.ends_quietly = open_ends, turnstiles, first, ends_quietly
        self.ready, self.wake, self.budget, self.monitor, self.trace = ready, wake, budget, monitor, trace
        if monitor is not None:
            self._states, self._dirty = monitor.states, monitor.dirty
            self._state_of, self._is_dirty = PyByteArray_AS_STRING(self._states), PyByteArray_AS_STRING(self._dirty)
            self._watched = min(PyByteArray_GET_SIZE(self._states), PyByteArray_GET_SIZE(self._dirty))

    def __dealloc__(self):
        PyMem_Free(self.counts)


cdef class Frame:
    cdef object __weakref__
    cdef readonly Start start  # of whose mailboxes and slots it has as many
    cdef int32_t *_pending
    cdef int32_t *_readers
    cdef readonly int64_t number
    cdef public list values
    cdef public int64_t open
    cdef readonly Ready ready
    cdef readonly object wake
    cdef readonly object budget
    cdef readonly object monitor
    cdef readonly Ring trace
    cdef public object context
    cdef public object state
    cdef public bint halted, has_ended, ends_quietly
    cdef public Repeater cycle
    cdef public int64_t item
    cdef public dict fences
    cdef public dict outstanding

    def __init__(self, Start start not None, number, list values, context):
        cdef size_t size = (start.mailboxes + start.slots + 1) * sizeof(int32_t)
        if self._pending is not NULL:
            raise TypeError("a frame begins once")
        self._pending = <int32_t *>PyMem_Malloc(size)
        if self._pending is NULL:
            raise MemoryError
        memcpy(self._pending, start.counts, size)
        self._readers = self._pending + start.mailboxes
        self.start, self.number, self.values, self.context, self.state = start, number, values, context, in_flight
        self.open, self.ends_quietly, self.ready, self.wake = start.open_ends, start.ends_quietly, start.ready, start.wake
        self.budget, self.monitor, self.trace = start.budget, start.monitor, start.trace
        self.fences, self.outstanding = {}, {}

    def __dealloc__(self):
        PyMem_Free(self._pending)

    @property
    def pending(self):
        return [self._pending[i] for i in range(self.start.mailboxes)]

    def waits(self, Py_ssize_t index):
        return self._pending[self._mailbox(index)]

    def expect_messages(self, Py_ssize_t index, count):
        self._pending[self._mailbox(index)] = count

    def count(self, Py_ssize_t index):
        index = self._mailbox(index)
        self._pending[index] -= 1
        return self._pending[index] == 0

    def begin(self):
        cdef Turnstile turnstile
        self.ready.running.add(self)
        for turnstile in self.start.turnstiles:
            turnstile.expect(self)
        self.send(self.start.first)

    cpdef send(self, followers):
        cdef Op op
        for op in followers:
            self._mailbox(op.index)
            self.message(op)

    def read(self, Py_ssize_t slot):
        if not 0 <= slot < self.start.slots:
            raise IndexError(slot)
        self._readers[slot] -= 1
        return self._readers[slot] == 0

    def close_end(self):
        self.end()

    cpdef bint begin_again(self, int64_t number, list values) except -1:
        cdef Turnstile turnstile
        memcpy(self._pending, self.start.counts, (self.start.mailboxes + self.start.slots + 1) * sizeof(int32_t))
        self.number, self.values, self.open = number, values, self.start.open_ends - 1
        self.halted = self.has_ended = self.open == 0
        self.state = finished if self.halted else in_flight
        for turnstile in self.start.turnstiles:
            turnstile.expect(self)
        self.send(self.start.first)
        return not self.halted

    def finish(self):
        raise NotImplementedError

    cdef Py_ssize_t _mailbox(self, Py_ssize_t index) except -1:
        if not 0 <= index < self.start.mailboxes:
            raise IndexError(index)
        return index

    cdef inline int message(self, Op op) except -1:
        self._pending[op.index] -= 1
        if self._pending[op.index] == 0:
            self.ready.push(op, self)
        return 0

    cdef inline int end(self) except -1:
        self.open -= 1
        if self.open or self.halted:
            return 0
        if self.cycle is not None and not PyDict_Size(self.outstanding) and self.cycle.turned(self):
            return 0
        if not self.ends_quietly or PyDict_Size(self.outstanding):
            self.finish()
            return 0
        self.state, self.halted, self.has_ended = finished, True, True
        self.ready.leave(self)
        return 0

    cdef inline void show(self, int64_t node_id, char state) noexcept:
        if 0 <= node_id < self.start._watched:
            self.start._state_of[node_id] = state
            self.start._is_dirty[node_id] = 1


cdef class Repeater:
    cdef public int64_t steps
    cdef Frame _owner
    cdef object _numbered
    cdef bint _guards

    def __init__(self, Frame owner not None, guards, numbered):
        self._owner, self._guards, self._numbered = owner, guards, numbered

    def turn(self, Frame frame not None):
        return self.turned(frame)

    cdef bint turned(self, Frame frame) except -1:
        raise NotImplementedError


cdef class Cycle(Repeater):
    cdef readonly list carried
    cdef readonly object error
    cdef Frame _frame
    cdef list _begin, _scanned, _taken, _kept
    cdef tuple _into, _made
    cdef int64_t _length
    cdef bint _tests, _is_backward

    def __init__(
        self, Frame owner not None, list begin not None, list carried not None, into, made, length, *, tests=False,
        is_backward=False, guards=False, scanned=(), taken=(), kept=(), numbered=None,
    ):
        cdef Blob blob
        Repeater.__init__(self, owner, guards, numbered)
        self._begin, self.carried, self._length = begin, carried, length
        self._into, self._made = tuple(into), tuple(made)
        self._tests, self._is_backward = tests, is_backward
        self._scanned, self._taken, self._kept = list(scanned), list(taken), list(kept)
        if len(self._into) != len(carried) or len(self._made) < len(carried) + self._tests:
            raise ValueError("there are not as many slots as values")
        slots = [slot for _, slot in self._scanned]
        for blob in self._made:
            slots.append(blob.slot)
        positions = [position for _, position in self._taken], [position for _, position in self._kept]
        for found, size in ((self._into, len(begin)), (slots, len(begin)), (positions[0], len(self._made)), (positions[1], len(carried))):
            if max(found, default=-1) >= size or (found is not self._into and min(found, default=0) < 0):
                raise IndexError(f"there are {size} places, got {found}")

    cpdef bint begin(self, Frame frame, int64_t number) except -1:
        self._frame = frame
        frame.values = self._begin.copy()
        return self.begin_at(frame, number) or self.turned(frame)

    cdef bint begin_at(self, Frame frame, int64_t number) except -1:
        """Have it begin, on values that are as those that it begins with."""
        cdef list values = frame.values
        cdef Py_ssize_t i
        cdef int64_t slot
        cdef object value
        for i in range(PyList_GET_SIZE(self.carried)):
            slot = <int64_t>(<object>PyTuple_GET_ITEM(self._into, i))
            if slot >= 0:
                value = <object>PyList_GET_ITEM(self.carried, i)
                put(values, slot, shown(value) if self._guards and type(value) is np.ndarray else value)
        value = None
        for array, slot in self._scanned:
            put(values, slot, entry_of(array, self.entry()))
        return frame.begin_again(number, values)

    cdef inline int64_t entry(self) noexcept:
        return self._length - 1 - self.steps if self._is_backward else self.steps

    cdef bint turned(self, Frame frame) except -1:
        cdef int64_t begun_ns = 0
        cdef Py_ssize_t turns = 0
        try:
            while not self._owner.halted and self.goes_on(frame):
                if self.begin_at(frame, frame.number if self._numbered is None else self._numbered(self.steps)):
                    if frame.ready._actor is None:
                        frame.wake()
                    return True
                turns += 1
                if turns & 15 == 0:
                    begun_ns = begun_ns or clock_ns()
                    if clock_ns() - begun_ns > PATIENCE_NS:
                        frame.ready.push(self, self._owner)
                        frame.wake()
                        return True
        except BaseException as error:
            self.error = error
        return False

    def fire(self, owner):
        if not self.turned(self._frame):
            self._frame.finish()
        return clock_ns()

    cdef bint goes_on(self, Frame frame) except -1:
        cdef list values = frame.values, given = self.carried, outputs, carried
        cdef Py_ssize_t i, count = PyList_GET_SIZE(given), size = PyTuple_GET_SIZE(self._made)
        cdef PyObject *value
        cdef Blob blob
        cdef bint goes_on = True
        if PyList_GET_SIZE(values) != PyList_GET_SIZE(self._begin):
            raise ValueError("the frame has other values")
        outputs, carried = PyList_New(size), PyList_New(count)
        for i in range(size):
            blob = <Blob>PyTuple_GET_ITEM(self._made, i)
            value = PyList_GET_ITEM(values, blob.slot)
            Py_INCREF(<object>value)
            PyList_SET_ITEM(outputs, i, <object>value)
        for i in range(PyList_GET_SIZE(values)):
            put(values, i, <object>PyList_GET_ITEM(self._begin, i))
        for array, i in self._taken:
            set_entry(array, self.entry(), outputs[i])
        for array, i in self._kept:
            set_entry(array, self.entry(), given[i])
        if self._tests:
            goes_on = truth(outputs[size - 1])
        for i in range(count):
            value = PyList_GET_ITEM(outputs, i)
            Py_INCREF(<object>value)
            PyList_SET_ITEM(carried, i, <object>value)
            put(outputs, i, <object>PyList_GET_ITEM(given, i) if self.steps else None)
        self.carried, given = carried, None
        self.steps += 1
        for i in range(size):
            blob = <Blob>PyTuple_GET_ITEM(self._made, i)
            if blob.bucket is not None:
                blob.give_back_from(outputs, i)
            else:
                put(outputs, i, None)
        return goes_on and self.steps != self._length


cdef class Stack:
    cdef public object array
    cdef public int64_t count

    def __init__(self, array):
        self.array = array

    def grow(self):
        raise NotImplementedError

    def add(self, value):
        self.set_next(value)

    cdef int set_next(self, object value) except -1:
        if self.count == len(self.array):
            self.grow()
        set_entry(self.array, self.count, value)
        self.count += 1
        return 0


cdef class Emitter(Repeater):
    cdef public list begin_with, frames, idle, joins
    cdef public tuple recycled
    cdef public object context, iterator, awaited
    cdef public Items items
    cdef public Fetcher fetcher
    cdef public list box
    cdef public bint is_pulling, is_exhausted, is_stopped, done
    cdef public int64_t pull_ns
    cdef int64_t _last_ns, _inline_ns, _in_flight
    cdef Py_ssize_t _slot
    cdef object _dtype
    cdef tuple _shape

    def __init__(self, Frame owner not None, in_flight, inline_ns, into, dtype, shape, guards, numbered):
        Repeater.__init__(self, owner, guards, numbered)
        self._in_flight, self._inline_ns = in_flight, inline_ns
        self._slot, self._dtype, self._shape = into, dtype, shape
        self.begin_with, self.frames, self.idle, self.joins, self.recycled = [], [], [], [], ()
        self.pull_ns = self._last_ns = FOREVER_NS

    def make(self):
        raise NotImplementedError

    def ask(self):
        raise NotImplementedError

    def enter(self, item, values):
        raise NotImplementedError

    def failed(self, error):
        raise NotImplementedError

    def conclude(self):
        raise NotImplementedError

    cdef bint turned(self, Frame frame) except -1:
        if self.is_stopped or self._owner.halted:
            return False
        frame.state, frame.halted, frame.has_ended = finished, True, True
        self.go_on()
        return True

    def fire(self, owner):
        self.go_on()
        return clock_ns()

    def advance(self):
        self.go_on()

    def pulled(self, int64_t elapsed_ns):
        self.time(elapsed_ns)

    cdef inline void time(self, int64_t elapsed_ns) noexcept:
        self.pull_ns = elapsed_ns if elapsed_ns < self._last_ns else self._last_ns
        self._last_ns = elapsed_ns

    cdef bint is_free(self) except -1:
        cdef Py_ssize_t count = PyList_GET_SIZE(self.frames)
        if count >= self._in_flight or self.is_pulling or self.is_exhausted or self.is_stopped:
            return False
        if self.items is not None and count + <Py_ssize_t>len(self.items.results) >= self.items.room:
            self.items.resting = self
            return False
        return True

    cdef int go_on(self) except -1:
        if self.done:
            return 0
        try:
            self.proceed()
        except BaseException as error:
            self.failed(error)
        if PyList_GET_SIZE(self.frames) or self.is_pulling or not (self.is_stopped or self.is_exhausted):
            if self._owner.ready._actor is None:
                self._owner.wake()
        elif not self.done:
            self.conclude()
        return 0

    cdef int proceed(self) except -1:
        cdef int64_t begun_ns = 0, before_ns
        cdef object item
        while True:
            while PyList_GET_SIZE(self.frames) and (<Frame?>self.frames[0]).has_ended and not self.is_stopped:
                self.take(self.frames.pop(0))
            if not self.is_free():
                return 0
            if self.iterator is None or self.pull_ns > self._inline_ns:
                self.ask()
                return 0
            before_ns = clock_ns()
            begun_ns = begun_ns or before_ns
            if before_ns - begun_ns > PATIENCE_NS:
                self._owner.ready.push(self, self._owner)
                return 0
            self.is_pulling = True
            PyContext_Enter(self.context)
            try:
                item = next(self.iterator, self)
            finally:
                PyContext_Exit(self.context)
                self.is_pulling = False
            if item is self:
                self.is_exhausted, self.iterator = True, None
                continue
            if self.box is not None:
                if item is not self.box:
                    self.awaited, self.is_pulling = item, True
                    return 0
                item = self.box.pop()
            self.time(clock_ns() - before_ns)
            self.begin_on(item)
            item = None

    def give(self, item):
        self.begin_on(item)

    cdef int begin_on(self, object item) except -1:
        cdef list values = self.begin_with.copy()
        cdef Frame frame
        cdef int64_t number
        if self._dtype is not None and fits(item, self._dtype, self._shape):
            if self._slot >= 0:
                put(values, self._place(self._slot), shown(item) if self._guards else item)
        else:
            self.enter(item, values)
        number = self._owner.number if self._numbered is None else self._numbered(self.steps)
        frame = self.idle.pop() if PyList_GET_SIZE(self.idle) else self.make()
        frame.item = self.steps
        self.steps += 1
        self.frames.append(frame)
        frame.begin_again(number, values)
        return 0

    cdef Py_ssize_t _place(self, Py_ssize_t slot) except -1:
        if not 0 <= slot < PyList_GET_SIZE(self.begin_with):
            raise IndexError(slot)
        return slot

    cdef int take(self, Frame frame) except -1:
        cdef Blob blob
        cdef Py_ssize_t slot
        if PyList_GET_SIZE(frame.values) != PyList_GET_SIZE(self.begin_with):
            raise ValueError("the frame has other values")
        for join, slot in self.joins:
            value = <object>PyList_GET_ITEM(frame.values, self._place(slot))
            if isinstance(join, Stack):
                (<Stack>join).set_next(value)
            else:
                join(value)
        value = None
        if self.fetcher is not None and self.items is not None:
            self.items.add(self.fetcher.make(frame, self._owner.number), frame.item)
        else:
            for blob in self.recycled:
                self._place(blob.slot)
                blob.give_back(frame.values)
        frame.values = []
        self.idle.append(frame)
        return 0


cdef inline bint truth(object value) except -1:
    if type(value) is np.ndarray and np.PyArray_TYPE(<np.ndarray>value) == np.NPY_BOOL and np.PyArray_NDIM(<np.ndarray>value) == 0:
        return (<char *>np.PyArray_DATA(<np.ndarray>value))[0] != 0
    return bool(value)


cdef object entry_of(object array, int64_t at):
    """An entry along the first axis, as an array also where it has no axes."""
    cdef np.ndarray whole, made
    if type(array) is not np.ndarray or np.PyArray_NDIM(<np.ndarray>array) < 1:
        return array[at, ...]
    whole = <np.ndarray>array
    if not 0 <= at < np.PyArray_DIM(whole, 0):
        raise IndexError(at)
    made = view_of_entry(whole, at)
    np.set_array_base(made, whole)
    return made


cdef int set_entry(object array, int64_t at, object value) except -1:
    """As ``array[at, ...] = value``."""
    cdef np.ndarray whole, given
    cdef Py_ssize_t i
    cdef bint is_alike = type(array) is np.ndarray and type(value) is np.ndarray
    if is_alike:
        whole, given = <np.ndarray>array, <np.ndarray>value
        is_alike = (
            <PyObject *>np.PyArray_DESCR(whole) is <PyObject *>np.PyArray_DESCR(given)
            and np.PyArray_TYPE(whole) != np.NPY_OBJECT
            and np.PyArray_NDIM(whole) == np.PyArray_NDIM(given) + 1
            and np.PyArray_ISCARRAY(whole)
            and np.PyArray_IS_C_CONTIGUOUS(given)
            and 0 <= at < np.PyArray_DIM(whole, 0)
        )
        for i in range(np.PyArray_NDIM(given) if is_alike else 0):
            is_alike = is_alike and np.PyArray_DIM(whole, <int>i + 1) == np.PyArray_DIM(given, <int>i)
        if is_alike:
            memcpy(np.PyArray_BYTES(whole) + at * np.PyArray_STRIDE(whole, 0), np.PyArray_DATA(given), np.PyArray_NBYTES(given))
            return 0
    array[at, ...] = value
    return 0


def release(blobs, frame):
    cdef Blob blob
    for blob in blobs:
        if frame.read(blob.slot):
            if frame.budget is not None or blob.bucket is not None:
                blob.drop(frame)
            else:
                frame.values[blob.slot] = None


cdef class Op:
    cdef public Py_ssize_t index
    cdef public int64_t node_id, key, inline_ns, cost_ns, last_ns
    cdef public tuple inputs, outputs, freed, followers, updates, parts, lanes
    cdef public bint ends, goes_on
    cdef public object lane, attempts, delivery, shares
    cdef public Profile profile
    cdef public Turnstile turnstile
    cdef int64_t _accounted
    # What `described` says:
    cdef Kind kind
    cdef object _function
    cdef object _operation
    cdef object _check
    cdef object _dtype
    cdef tuple _shape
    cdef tuple _specs
    cdef tuple _buckets
    cdef tuple _owners
    cdef object _not_written
    cdef bint _returns, _reuses, _is_random
    # The function of NumPy that a kernel consists of, if it is one; its loop for these types, which is looked for at
    # the first call, and what that is given.
    cdef ufunc _ufunc
    cdef np.PyUFuncGenericFunction _loop
    cdef void *_loop_data
    cdef int _types[MOST_ARGUMENTS]
    cdef Py_ssize_t _nin, _nfreed, _nout
    # In one piece of memory: slots of the inputs, of what is freed, of the outputs; mailboxes of the followers; and
    # whether the blobs that are freed have a bucket, or a way of their own.
    cdef int32_t *_slots
    cdef int32_t *_mailboxes
    cdef int32_t *_drops
    cdef Py_ssize_t _nfollow

    def __init__(self):
        self.cost_ns = self.last_ns = FOREVER_NS
        self.inputs = self.outputs = self.freed = self.followers = self.updates = self.parts = self.lanes = ()
        self.shares = ()

    def __dealloc__(self):
        PyMem_Free(self._slots)

    def fire(self, frame):
        raise NotImplementedError

    def compute(self, frame):
        raise NotImplementedError

    def hand_over(self, frame):
        raise NotImplementedError

    def measure(self):
        raise NotImplementedError

    def failed(self, frame, error, elapsed_ns, end_ns, key):
        raise NotImplementedError

    def announce(self, frame):
        raise NotImplementedError

    def described(self):
        """What the core needs to call it by itself; None where it has to call `compute`."""
        return None

    def call(self, Frame frame):
        return self.perform(frame, clock_ns())

    def account(self, Frame frame, int64_t elapsed_ns, int64_t end_ns, int64_t key):
        self.note(frame, elapsed_ns, end_ns, key)

    def show(self, Frame frame, int state):
        self.display(frame, state)

    cdef int display(self, Frame frame, char state) except -1:
        if PyTuple_GET_SIZE(self.parts):
            for part in self.parts:
                (<Op?>part).display(frame, state)
        else:
            frame.show(self.node_id, state)
        return 0

    cdef inline bint is_plain(self, Frame frame) except -1:
        """Return whether the core may call it at once; then its turn, if it has one, is taken."""
        if self.cost_ns > self.inline_ns or self.attempts is not None or frame.budget is not None:
            return False
        if PyDict_Size(frame.fences) and self in frame.fences:
            return False
        return self.turnstile is None or self.turnstile.go_in_alone(frame, False)

    cdef int64_t perform(self, Frame frame, int64_t begin_ns) except -1:
        """Call it on the loop's thread; a call that begins behind another one begins when that has ended."""
        cdef int64_t end_ns
        cdef Py_ssize_t i
        try:
            self.work(frame)
        except BaseException as error:
            end_ns = clock_ns()
            self.failed(frame, error, end_ns - begin_ns, end_ns, self.node_id)
            if self.turnstile is not None:
                self.turnstile.go_out()
            frame.ready.clock = 0
            return clock_ns()
        end_ns = frame.ready.clock = clock_ns()
        self.note(frame, end_ns - begin_ns, end_ns, self.node_id)
        if self.turnstile is not None:
            self.turnstile.go_out()
        if PyTuple_GET_SIZE(self.updates) or frame.budget is not None:
            frame.ready.clock = 0
            self.announce(frame)
        else:
            for i in range(self._nfollow):
                frame._pending[self._mailboxes[i]] -= 1
                if frame._pending[self._mailboxes[i]] == 0:
                    frame.ready.push(<object>PyTuple_GET_ITEM(self.followers, i), frame)
            if self.ends:
                if frame.open == 1:
                    frame.ready.clock = 0
                frame.end()
        return end_ns

    cdef int note(self, Frame frame, int64_t elapsed_ns, int64_t end_ns, int64_t key) except -1:
        cdef Profile profile
        if PyTuple_GET_SIZE(self.parts):
            return self.note_parts(frame, elapsed_ns, end_ns, key)
        self.cost_ns = elapsed_ns if elapsed_ns < self.last_ns else self.last_ns
        self.last_ns = elapsed_ns
        profile = self.profile
        profile.calls += 1
        profile.total_ns += elapsed_ns
        profile.last_ns = elapsed_ns
        frame.trace.enter(end_ns, elapsed_ns, key, frame.number)
        frame.show(self.node_id, C_DONE)
        return 0

    cdef int note_parts(self, Frame frame, int64_t elapsed_ns, int64_t end_ns, int64_t key) except -1:
        cdef int64_t begun_ns = 0, ended_ns
        cdef Py_ssize_t i
        cdef Op part
        self.cost_ns = elapsed_ns if elapsed_ns < self.last_ns else self.last_ns
        self.last_ns = elapsed_ns
        self._accounted += 1
        if self._accounted & (self._accounted - 1) == 0:
            self.measure()
        for i in range(PyTuple_GET_SIZE(self.parts)):
            part = <Op?>self.parts[i]
            ended_ns = <int64_t>(elapsed_ns * <double>self.shares[i])
            part.note(frame, ended_ns - begun_ns, end_ns - elapsed_ns + ended_ns, key - self.node_id + part.node_id)
            begun_ns = ended_ns
        return 0

    # -- a call --------------------------------------------------------------------------------------------------------

    cdef int look(self) except -1:
        """Ask the actor what it is."""
        cdef Py_ssize_t i
        cdef Blob blob
        cdef Py_ssize_t count
        cdef Op follower
        if self._slots is NULL:
            self._nin, self._nfreed = PyTuple_GET_SIZE(self.inputs), PyTuple_GET_SIZE(self.freed)
            self._nout, self._nfollow = PyTuple_GET_SIZE(self.outputs), PyTuple_GET_SIZE(self.followers)
            count = self._nin + self._nfreed + self._nout
            self._slots = <int32_t *>PyMem_Malloc((count + self._nfollow + self._nfreed + 1) * sizeof(int32_t))
            if self._slots is NULL:
                raise MemoryError
            self._mailboxes = self._slots + count
            self._drops = self._mailboxes + self._nfollow
            for i, blob in enumerate((*self.inputs, *self.freed, *self.outputs)):
                self._slots[i] = blob.slot
            for i, follower in enumerate(self.followers):
                self._mailboxes[i] = <int32_t>follower.index
            for i, blob in enumerate(self.freed):
                self._drops[i] = 0 if blob.bucket is None else 1 if blob.is_usual else 2
        described = self.described()
        if described is None:
            self.kind = OTHER
            return 0
        kind, self._function, self._operation, details = described
        if kind == "function":
            self._dtype, self._shape = details
        else:
            self._returns, self._reuses, self._is_random, self._check, self._buckets, owners, self._not_written = details[:7]
            self._specs, found = details[7:]
            if (
                found is not None
                and found.nout == self._nout == 1
                and found.signature is None
                and 1 <= self._nin < found.nargs <= MOST_ARGUMENTS
                and (self._nin == found.nin or self._nin == 1 and found.nin == 2)
            ):
                self._ufunc = found
            self._owners = tuple(owners)
        self.kind = FUNCTION if kind == "function" else KERNEL
        return 0

    cdef inline int work(self, Frame frame) except -1:
        """What `compute` does."""
        cdef list values
        if self.kind == UNKNOWN:
            self.look()
        values = frame.values
        if self.kind == OTHER or frame.budget is not None or PyList_GET_SIZE(values) != frame.start.slots:
            self.compute(frame)
        elif self.kind == FUNCTION:
            self.call_function(frame, values)
        else:
            if self._ufunc is None or not self.call_loop(values):
                self.call_kernel(frame, values)
            self.let_go(frame, values)
        return 0

    cdef bint find_loop(self, ufunc function, list values, np.ndarray out) except -1:
        """Look for the loop of a function of NumPy that is for exactly these types, as NumPy does."""
        cdef Py_ssize_t i, j, nargs = function.nargs
        for j in range(nargs):
            i = self._slots[min(j, self._nin - 1)]
            self._types[j] = np.PyArray_TYPE(<np.ndarray>PyList_GET_ITEM(values, i) if j < nargs - 1 else out)
            if self._types[j] > np.NPY_CLONGDOUBLE and self._types[j] != np.NPY_FLOAT16:
                return False  # what is not a number
        for i in range(function.ntypes):
            for j in range(nargs):
                if function.types[i * nargs + j] != self._types[j]:
                    break
            else:
                self._loop, self._loop_data = function.functions[i], NULL if function.data is NULL else function.data[i]
                return self._loop is not NULL and (self._nin == function.nin or self._types[0] == self._types[2])
        return False

    cdef bint call_loop(self, list values) except -1:
        """Call the loop of a function of NumPy on arrays that lie flat in memory; return False if it cannot be called."""
        cdef char *pointers[MOST_ARGUMENTS]
        cdef np.npy_intp steps[MOST_ARGUMENTS]
        cdef np.npy_intp count, size
        cdef Py_ssize_t i, j
        cdef np.ndarray array, out
        cdef PyObject *value
        cdef ufunc function = self._ufunc  # which another thread forgets where it cannot be called
        cdef bint reduces = function.nin > self._nin
        for i in range(self._nin):
            value = PyList_GET_ITEM(values, self._slots[i])
            if type(<object>value) is not np.ndarray or not np.PyArray_ISCARRAY_RO(<np.ndarray>value):
                return False
            if self._loop is not NULL and np.PyArray_TYPE(<np.ndarray>value) != self._types[i]:
                return False
        value = PyList_GET_ITEM(values, self._slots[0])
        if self._reuses and not reduces and Py_REFCNT(value) == 1 and self.owns(<np.ndarray>value):
            made = <object>value
        else:
            made = take(self._buckets[0])
        if type(made) is not np.ndarray or not np.PyArray_ISCARRAY(<np.ndarray>made):
            self._ufunc = None
            return False
        out = <np.ndarray>made
        size = count = np.PyArray_SIZE(<np.ndarray>value) if reduces else np.PyArray_SIZE(out)
        for i in range(self._nin if not reduces else 0):
            array = <np.ndarray>PyList_GET_ITEM(values, self._slots[i])
            steps[i] = np.PyArray_ITEMSIZE(array)
            if np.PyArray_SIZE(array) == 1 and np.PyArray_NDIM(array) <= np.PyArray_NDIM(out):
                steps[i] = 0
            elif np.PyArray_NDIM(array) != np.PyArray_NDIM(out):
                count = 0
            else:
                for j in range(np.PyArray_NDIM(array)):
                    if np.PyArray_DIM(array, <int>j) != np.PyArray_DIM(out, <int>j):
                        count = 0
            pointers[i] = np.PyArray_BYTES(array)
        if reduces and np.PyArray_SIZE(out) != 1:
            count = 0
        if count and self._loop is NULL and not self.find_loop(function, values, out):
            count = 0
        if not count or np.PyArray_TYPE(out) != self._types[function.nargs - 1]:
            self._ufunc = None  # all calls of a program have these types and shapes
            return False
        if reduces:  # the first one, then the others
            memcpy(np.PyArray_BYTES(out), np.PyArray_BYTES(<np.ndarray>value), np.PyArray_ITEMSIZE(out))
            pointers[0] = pointers[2] = np.PyArray_BYTES(out)
            pointers[1] = np.PyArray_BYTES(<np.ndarray>value) + np.PyArray_ITEMSIZE(out)
            steps[0], steps[1], steps[2] = 0, np.PyArray_ITEMSIZE(out), 0
            count = size - 1
        else:
            pointers[self._nin] = np.PyArray_BYTES(out)
            steps[self._nin] = np.PyArray_ITEMSIZE(out)
        if count > LONG_LOOP:
            with nogil:
                run_loop(self._loop, pointers, &count, steps, self._loop_data)
        elif count:
            run_loop(self._loop, pointers, &count, steps, self._loop_data)
        if PyErr_Occurred() is not NULL:
            return -1
        put(values, self._slots[self._nin + self._nfreed], out)
        return True

    cdef int let_go(self, Frame frame, list values) except -1:
        """One reader of each blob that is freed is done; as `release`."""
        cdef int32_t slot
        cdef Py_ssize_t i
        for i in range(self._nfreed):
            slot = self._slots[self._nin + i]
            frame._readers[slot] -= 1
            if frame._readers[slot] == 0:
                if self._drops[i] == 0:
                    put(values, slot, None)
                elif self._drops[i] == 1:
                    (<Blob>PyTuple_GET_ITEM(self.freed, i)).give_back(values)
                else:
                    (<object>PyTuple_GET_ITEM(self.freed, i)).drop(frame)
        return 0

    cdef int call_function(self, Frame frame, list values) except -1:
        cdef PyObject *small[MOST_SMALL + 1]
        cdef PyObject **given = small
        cdef Py_ssize_t i
        cdef object context, result
        if self._nin > MOST_SMALL:
            given = <PyObject **>PyMem_Malloc((self._nin + 1) * sizeof(PyObject *))
            if given is NULL:
                raise MemoryError
        for i in range(self._nin):
            given[i + 1] = PyList_GET_ITEM(values, self._slots[i])
            Py_INCREF(<object>given[i + 1])
        try:
            # A copy: a context cannot be entered by two threads at a time.
            context = PyContext_Copy(frame.context)
            PyContext_Enter(context)
            try:
                result = PyObject_Vectorcall(self._function, given + 1, self._nin | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL)
            finally:
                PyContext_Exit(context)
        finally:
            for i in range(self._nin):
                Py_XDECREF(given[i + 1])
            if self._nin > MOST_SMALL:
                PyMem_Free(given)
        if self._dtype is not None and fits(result, self._dtype, self._shape):
            if np.PyArray_ISWRITEABLE(<np.ndarray>result):
                result = shown(result)
            put(values, self._slots[self._nin + self._nfreed], result)
            result = None
            self.let_go(frame, values)
        else:
            self.store(frame, result)
        return 0

    cdef bint is_usual(self, object made) except -1:
        """Return whether a kernel has returned arrays of the types that it should have, and nothing else."""
        cdef Py_ssize_t i
        if type(made) is not list or PyList_GET_SIZE(made) != self._nout:
            return False
        for i in range(self._nout):
            spec = <tuple>PyTuple_GET_ITEM(self._specs, i)
            if not fits(<object>PyList_GET_ITEM(made, i), spec[1], spec[0]):
                return False
        return True

    cdef int call_kernel(self, Frame frame, list values) except -1:
        cdef Py_ssize_t i
        cdef list inputs = PyList_New(self._nin), outputs, written
        cdef object made
        cdef PyObject *value
        for i in range(self._nin):
            value = PyList_GET_ITEM(values, self._slots[i])
            Py_INCREF(<object>value)
            PyList_SET_ITEM(inputs, i, <object>value)
        if self._returns:
            if self._is_random:
                made = self._function(self._operation, inputs, None, frame.number)
            else:
                made = self._function(self._operation, inputs, None)
            if not self.is_usual(made):
                self._check(made, self._specs)
            for i, result in zip(range(self._nout), made):
                put(values, self._slots[self._nin + self._nfreed + i], result)
            return 0
        outputs = PyList_New(self._nout)
        for i in range(self._nout):
            if i == 0 and self._reuses and self.is_ours(inputs):
                made = <object>PyList_GET_ITEM(inputs, 0)
            else:
                made = take(self._buckets[i])
            Py_INCREF(made)
            PyList_SET_ITEM(outputs, i, made)
        made = None
        written = outputs[:]
        if self._is_random:
            self._function(self._operation, inputs, written, frame.number)
        else:
            self._function(self._operation, inputs, written)
        for i in range(self._nout):
            if i >= PyList_GET_SIZE(written):
                raise IndexError("list index out of range")
            if PyList_GET_ITEM(written, i) is not PyList_GET_ITEM(outputs, i):
                raise self._not_written()
        for i in range(self._nout):
            put(values, self._slots[self._nin + self._nfreed + i], <object>PyList_GET_ITEM(outputs, i))
        return 0

    cdef inline bint is_ours(self, list inputs) except -1:
        """Return whether nothing else has the first input than the list and the frame, nor shows its memory."""
        cdef PyObject *first = PyList_GET_ITEM(inputs, 0)
        return Py_REFCNT(first) == 2 and type(<object>first) is np.ndarray and self.owns(<np.ndarray>first)

    cdef inline bint owns(self, np.ndarray array) except -1:
        cdef PyObject *base = np.PyArray_BASE(array)
        return base is NULL or type(<object>base) in self._owners


cdef inline object take(bucket):
    return (<Shelf>bucket).get() if isinstance(bucket, Shelf) else bucket.take()


cdef inline int put(list values, Py_ssize_t slot, object value) except -1:
    cdef PyObject *before = PyList_GET_ITEM(values, slot)
    Py_INCREF(value)
    PyList_SET_ITEM(values, slot, value)
    Py_XDECREF(before)
    return 0


cdef inline bint fits(object value, object dtype, tuple shape) noexcept:
    cdef Py_ssize_t i
    cdef np.ndarray array
    if type(value) is not np.ndarray:
        return False
    array = <np.ndarray>value
    if <PyObject *>np.PyArray_DESCR(array) is not <PyObject *>dtype:
        return False
    if np.PyArray_NDIM(array) != PyTuple_GET_SIZE(shape):
        return False
    for i in range(np.PyArray_NDIM(array)):
        if np.PyArray_DIM(array, <int>i) != <Py_ssize_t>(<object>PyTuple_GET_ITEM(shape, i)):
            return False
    return True


cdef class Fetched:
    cdef public object _blobs, _by_name, _lengths, errors
    cdef public list _values
    cdef public tuple frames

    def __init__(self, blobs, by_name, values, frames, lengths, errors):
        self._blobs, self._by_name, self._lengths, self.errors = blobs, by_name, lengths, errors
        self._values, self.frames = values, frames


cdef class Fetcher:
    cdef object _kind, _hand_out, _by_blob, _by_name, _lengths
    cdef readonly tuple blobs
    cdef tuple _copied

    def __init__(self, kind, blobs, copied, hand_out, shared):
        if not issubclass(kind, Fetched):
            raise TypeError(kind)
        self._kind, self.blobs, self._copied, self._hand_out = kind, blobs, copied, hand_out
        self._by_blob, self._by_name, self._lengths = shared

    cpdef list values(self, Frame frame):
        cdef list values = frame.values, found = PyList_New(PyTuple_GET_SIZE(self.blobs))
        cdef Py_ssize_t i
        cdef Blob blob
        for i in range(PyTuple_GET_SIZE(self.blobs)):
            blob = self.blobs[i]
            found_here = values[blob.slot] if blob.slot < PyList_GET_SIZE(values) else None
            Py_INCREF(found_here)
            PyList_SET_ITEM(found, i, found_here)
        frame.values, found_here = [], None
        values.clear()
        for i in self._copied:
            if type(<object>PyList_GET_ITEM(found, i)) is np.ndarray:
                made = np.PyArray_NewCopy(<np.ndarray>PyList_GET_ITEM(found, i), np.NPY_CORDER)
            else:
                made = (<object>PyList_GET_ITEM(found, i)).copy()
            (<Blob>PyTuple_GET_ITEM(self.blobs, i)).give_back_from(found, i)
            put(found, i, made)
        if self._hand_out is not None:
            self._hand_out(found)
        return found

    def result(self, Frame frame not None, number):
        return self.make(frame, number)

    cdef Fetched make(self, Frame frame, number):
        cdef Fetched made = <Fetched?>self._kind.__new__(self._kind)
        made._blobs, made._by_name, made._lengths, made.errors = self._by_blob, self._by_name, self._lengths, {}
        made._values, made.frames = self.values(frame), (number,)
        return made


cdef class Items:
    cdef public object results, resting
    cdef public int64_t room, least
    cdef int64_t _last_ns, _last

    def __init__(self):
        self.results, self.room, self.least, self._last = deque(), 1, 1, -1

    def arrived(self):
        raise NotImplementedError

    def put(self, result, int64_t number):
        self.add(result, number)

    cdef int add(self, object result, int64_t number) except -1:
        cdef int64_t now_ns
        if not self.results:
            now_ns = clock_ns()
            self.room = self.least
            if now_ns - self._last_ns < <int64_t>QUICK_NS * (number - self._last) and self.least < <int64_t>BURST:
                self.room = BURST
            self._last_ns, self._last = now_ns, number
            self.arrived()
        self.results.append(result)
        return 0


def fill(list values, feeds, dict sources, Py_ssize_t count, missing):
    cdef tuple source
    if type(feeds) is not dict or PyDict_Size(feeds) != count:
        return False
    for key, value in (<dict>feeds).items():
        source = sources.get(key)
        if source is None or values[source[0]] is not missing:
            return False
        if source[2] is not None:
            if not fits(value, source[2], source[1]):
                return False
            value = shown(value)
        values[source[0]] = value
    return True


cdef inline object shown(object array):
    cdef object view = array.view()
    np.PyArray_CLEARFLAGS(<np.ndarray>view, np.NPY_ARRAY_WRITEABLE)
    return view


cdef class Shift:
    cdef readonly object first, frame, lane
    cdef public object at
    cdef public int64_t begun_ns, ends, patience_ns
    cdef int64_t _track, _short_ns

    def __init__(self, Op first, Frame frame):
        self.first = self.at = first
        self.frame = frame
        self.lane = first.lane
        self._track = first.key - first.node_id
        self.patience_ns = PATIENCE_NS

    def go_to(self, lane, int64_t key):
        self.lane, self._track = lane, key - self.first.node_id

    def key_of(self, Op op):
        return self._track + op.node_id

    def run(self):
        cdef Frame frame = self.frame
        cdef list ready = [self.first]
        cdef Py_ssize_t next = 0, i
        cdef int64_t end_ns, elapsed_ns
        cdef Op op
        while next < PyList_GET_SIZE(ready) and not frame.halted:
            op = <Op>PyList_GET_ITEM(ready, next)
            next += 1
            if next > 64:
                del ready[:next]
                next = 0
            if op.turnstile is not None and op is not self.first:
                if not op.turnstile.go_in_alone(frame, op.lane is not self.lane):
                    self.tell(op)
                    continue
            self.at = op
            op.display(frame, C_RUNNING)
            self.begun_ns = clock_ns()
            try:
                op.work(frame)
            except BaseException:
                frame.halted = True
                raise
            end_ns = clock_ns()
            elapsed_ns = end_ns - self.begun_ns
            op.note(frame, elapsed_ns, end_ns, self._track + op.node_id)
            self._short_ns = self._short_ns + elapsed_ns if elapsed_ns <= op.inline_ns else 0
            self.begun_ns = 0
            if op.turnstile is not None:
                op.turnstile.go_out()
            if op.delivery is not None:
                self.tell(op.delivery)
            elif op.ends:
                self.ends += 1
            for i in range(op._nfollow):
                frame._pending[op._mailboxes[i]] -= 1
                if frame._pending[op._mailboxes[i]] == 0:
                    self.dispatch(<Op>PyTuple_GET_ITEM(op.followers, i), ready)
        return self.ends > 0

    cdef int dispatch(self, Op op, list ready) except -1:
        cdef Frame frame = self.frame
        cdef bint is_short, is_here
        if op.goes_on and op not in frame.fences:
            is_short = op.cost_ns <= op.inline_ns
            is_here = op.lane is self.lane or self.lane in op.lanes
            if self._short_ns <= self.patience_ns if is_short else is_here and not self.is_awaited():
                ready.append(op)
                return 0
            if not is_short and op.turnstile is None:
                self.at, self.begun_ns = op, clock_ns()
                op.hand_over(frame)
                return 0
        return self.tell(op)

    cdef bint is_awaited(self) except -1:
        cdef Frame frame = self.frame
        if frame.ready.has_of(frame, self.first):
            return True
        if PyDict_Size(frame.outstanding) > 1:
            for work in tuple(frame.outstanding.values()):
                if getattr(work, "lane", None) is self.lane and not work.begun:
                    return True
        return False

    cdef int tell(self, actor) except -1:
        (<Frame>self.frame).ready.push(actor, self.frame)
        self.frame.wake()
        return 0


cdef class Ready:
    cdef list _items  # actor and work of each entry, in a ring
    cdef Py_ssize_t _head, _size, _mask
    cdef public set running
    cdef public object at_rest
    cdef readonly set shifts
    cdef public int64_t begun_ns
    cdef int64_t clock  # the end of the call before; 0 if something else has taken time since
    cdef object _actor
    cdef object _work

    def __init__(self):
        self.shifts, self.running = set(), set()
        self._items = PyList_New(2 * 64)
        self._mask = 63

    @property
    def at(self):
        return None if self._actor is None else (self._actor, self._work)

    @at.setter
    def at(self, entry):
        self._actor, self._work = (None, None) if entry is None else entry

    cdef int push(self, object actor, object work) except -1:
        cdef Py_ssize_t place
        if self._size > self._mask:
            self.grow()
        place = 2 * ((self._head + self._size) & self._mask)
        Py_INCREF(actor)
        Py_INCREF(work)
        PyList_SET_ITEM(self._items, place, actor)
        PyList_SET_ITEM(self._items, place + 1, work)
        self._size += 1
        return 0

    cdef bint has_of(self, Frame frame, object handed_over) noexcept:
        """Return whether an entry is work of a frame, or another actor than this is fired for it now."""
        cdef Py_ssize_t i
        if self._work is frame and self._actor is not handed_over:
            return True
        for i in range(self._size):
            if item(self._items, 2 * ((self._head + i) & self._mask) + 1) is <PyObject *>frame:
                return True
        return False

    cdef int grow(self) except -1:
        cdef list larger = PyList_New(4 * (self._mask + 1))
        cdef Py_ssize_t i, place
        for i in range(self._size):
            place = 2 * ((self._head + i) & self._mask)
            set_item(larger, 2 * i, item(self._items, place))
            set_item(larger, 2 * i + 1, item(self._items, place + 1))
            set_item(self._items, place, NULL)
            set_item(self._items, place + 1, NULL)
        self._items, self._head, self._mask = larger, 0, 2 * self._mask + 1
        return 0

    cdef tuple pop_at(self, bint is_last):
        """An entry, the oldest or the newest; its references are the tuple's."""
        cdef Py_ssize_t place
        cdef object actor, work
        if not self._size:
            raise IndexError("nothing is ready")
        place = 2 * ((self._head + (self._size - 1 if is_last else 0)) & self._mask)
        actor, work = <object>item(self._items, place), <object>item(self._items, place + 1)
        Py_XDECREF(item(self._items, place))
        Py_XDECREF(item(self._items, place + 1))
        set_item(self._items, place, NULL)
        set_item(self._items, place + 1, NULL)
        self._size -= 1
        if not is_last:
            self._head = (self._head + 1) & self._mask
        return actor, work

    def append(self, tuple entry):
        actor, work = entry
        self.push(actor, work)

    def popleft(self):
        return self.pop_at(False)

    def pop(self):
        return self.pop_at(True)

    def rotate(self, n):
        for _ in range(-n % self._size if self._size else 0):
            self.append(self.popleft())

    def clear(self):
        while self._size:
            self.pop_at(False)

    def __len__(self):
        return self._size

    def __iter__(self):
        places = [2 * ((self._head + i) & self._mask) for i in range(self._size)]
        return iter([(<object>item(self._items, i), <object>item(self._items, i + 1)) for i in places])

    cpdef leave(self, frame):
        self.running.discard(frame)
        if self.at_rest is not None and not self.running:
            self.at_rest()

    def run(self, int64_t due_ns, context=None):
        if context is None:
            self.fire_all(due_ns)
            return
        PyContext_Enter(context)
        try:
            self.fire_all(due_ns)
        finally:
            PyContext_Exit(context)

    cdef int fire_all(self, int64_t due_ns) except -1:
        cdef int64_t end_ns, begin_ns
        cdef Py_ssize_t place
        cdef Frame frame
        cdef Op op
        cdef object actor, work
        self.begun_ns = self.clock = clock_ns()
        while self._size:
            place = 2 * (self._head & self._mask)
            actor, work = <object>item(self._items, place), <object>item(self._items, place + 1)
            Py_XDECREF(item(self._items, place))
            Py_XDECREF(item(self._items, place + 1))
            set_item(self._items, place, NULL)
            set_item(self._items, place + 1, NULL)
            self._size -= 1
            self._head = (self._head + 1) & self._mask
            self._actor, self._work = actor, work
            if isinstance(actor, Op) and isinstance(work, Frame):
                op, frame = <Op>actor, <Frame>work
                if frame.halted:
                    continue
                if op.is_plain(frame):
                    begin_ns = self.clock
                    if not begin_ns:
                        begin_ns = clock_ns()
                    end_ns = op.perform(frame, begin_ns)
                    if end_ns > due_ns:
                        break
                    continue
            self.clock = 0
            end_ns = actor.fire(work)
            if end_ns > due_ns:
                break
        PyErr_CheckSignals()
        self._actor = self._work = None
        return 0


cdef inline void set_item(list items, Py_ssize_t i, PyObject *value) noexcept:
    store_item(items, i, value)


cdef extern from *:
    """
    #define actorflow_store(list, i, value) (((PyListObject *)(list))->ob_item[i] = (value))
    """
    void store_item "actorflow_store"(object, Py_ssize_t, PyObject *) noexcept


# -- array code: operations that are computed in their line ------------------------------------------------------------

cdef enum:
    MOST_AXES = 8
    SHORT = 16
    FEW = 100  # integers that every dtype has are below it

cdef int64_t nodes = 0
cdef tuple nothing = ()
cdef list quiet = []  # contexts in which NumPy warns of nothing; each is entered by one thread at a time
cdef Py_ssize_t copied_bytes = MOST_COPIED_BYTES


cdef class Node:
    cdef object __weakref__
    cdef public object op, inputs, params, shape, dtype, place, evaluator, value, error, unit, handle
    cdef public object _code, _instruction, size
    cdef readonly int64_t number

    def __cinit__(self):
        global nodes
        self.inputs = self.params = nothing
        self.number = nodes
        nodes += 1


cdef class Holder:
    cdef object __weakref__
    cdef public Node _node

    def __getitem__(self, key):
        found = the_desk.part(self, key)
        return self._read(key) if found is None else found


cdef object call_quietly(object function, tuple arguments):
    cdef object context
    if quiet:
        context = quiet.pop()
    else:
        context = Context()
        context.run(seterr, all="ignore")
    PyContext_Enter(context)
    try:
        return function(*arguments)
    finally:
        PyContext_Exit(context)
        quiet.append(context)


cdef class Desk:
    cdef public object array_type, node_type, place, placing
    cdef public Py_ssize_t dry_runs

    def show(self, np.ndarray value, evaluator):
        return self.shown(value, evaluator, (<object>value).shape)

    cdef Holder shown(self, np.ndarray value, object evaluator, object shape):
        cdef Node node = <Node>(<PyTypeObject *>Node).tp_new(self.node_type, <PyObject *>nothing, NULL)
        cdef Holder array = <Holder>(<PyTypeObject *>Holder).tp_new(self.array_type, <PyObject *>nothing, NULL)
        node.value, node.evaluator, node.place = value, evaluator, self.place
        node.shape, node.dtype, node.size = shape, <object><PyObject *>np.PyArray_DESCR(value), np.PyArray_SIZE(value)
        array._node = node
        return array

    cpdef Holder hand(self, np.ndarray value, object evaluator):
        cdef PyObject *base = np.PyArray_BASE(value)
        if (
            base is not NULL
            and np.PyArray_NBYTES(value) < copied_bytes
            and type(<object>base) is np.ndarray
            and np.PyArray_NBYTES(value) * 2 < np.PyArray_NBYTES(<np.ndarray>base)
        ):
            value = np.PyArray_NewCopy(value, np.NPY_ANYORDER)
        return self.shown(value, evaluator, (<object>value).shape)

    cpdef Node there(self, object x):
        """The record of an array whose value is there, if operations may be computed at once."""
        cdef Node node
        if type(x) is not self.array_type or self.dry_runs or self.placing is not None:
            return None
        node = (<Holder>x)._node
        return node if type(node.value) is np.ndarray else None

    def call(self, function, x, bint is_view):
        cdef Node node = self.there(x)
        cdef object found
        cdef Py_ssize_t limit
        if node is None or function is None:
            return None
        limit = node.evaluator.at_once
        if not limit or not is_view and np.PyArray_SIZE(<np.ndarray>node.value) > limit:
            return None
        try:
            found = call_quietly(function, (node.value,))
        except Exception:
            return None
        if type(found) is not np.ndarray:
            if not isinstance(found, generic):
                return None
            found = np.PyArray_FROM_O(found)
        return self.hand(found, node.evaluator)

    cpdef part(self, x, key):
        cdef Node node = self.there(x)
        cdef object found
        if node is None or not node.evaluator.at_once or not is_basic(key):
            return None
        try:
            found = node.value[key]
        except IndexError:
            return None
        return self.hand(found if type(found) is np.ndarray else np.PyArray_FROM_O(found), node.evaluator)

    def write(self, x, key, value):
        cdef Node node = self.there(x), other
        cdef Py_ssize_t limit
        cdef object found
        if node is None or not is_basic(key):
            return False
        limit = node.evaluator.at_once
        if not limit:
            return False
        if type(value) is self.array_type:
            other = self.there(value)
            if other is None:
                return False
            value = other.value
        if type(value) is np.ndarray:
            if value.dtype is not node.dtype and not can_cast(value.dtype, node.dtype, "same_kind"):
                return False
        elif type(value) is not float and type(value) is not int:
            return False
        found = node.value
        try:
            if np.PyArray_SIZE(<np.ndarray>found) > limit and found[key].size > limit:
                return False
            if not is_alone(node, found):
                if np.PyArray_SIZE(<np.ndarray>found) > limit:
                    return False
                found = np.PyArray_NewCopy(<np.ndarray>found, np.NPY_CORDER)
            call_quietly(setitem, (found, key, value))
        except (IndexError, ValueError):
            return False
        if found is not node.value:
            (<Holder>x)._node = self.shown(found, node.evaluator, node.shape)._node
        return True

    def product(self, x1, x2, bint turn1=False, bint turn2=False):
        cdef Node left = self.there(x1), right = self.there(x2)
        cdef np.ndarray a, b, y
        cdef np.npy_intp sizes[4]
        cdef np.npy_intp steps[9]
        cdef np.npy_intp shape[2]
        cdef np.npy_intp work
        cdef char *pointers[3]
        cdef ufunc function = matmul
        cdef int i, kind, axes
        if left is None or right is None:
            return None
        a, b = left.value, right.value
        kind, axes = np.PyArray_TYPE(a), np.PyArray_NDIM(b)
        if np.PyArray_NDIM(a) != 2 or axes < 1 or axes > 2 or np.PyArray_TYPE(b) != kind:
            return None
        if kind not in (np.NPY_FLOAT, np.NPY_DOUBLE, np.NPY_CFLOAT, np.NPY_CDOUBLE):
            return None
        if turn2 and axes == 1:
            return None
        sizes[0], sizes[1], sizes[2] = 1, np.PyArray_DIM(a, turn1), np.PyArray_DIM(a, 1 - turn1)
        sizes[3] = np.PyArray_DIM(b, 1 - turn2) if axes == 2 else 1
        if np.PyArray_DIM(b, turn2) != sizes[2] or not sizes[1] * sizes[2] * sizes[3] or not (is_flat(a) and is_flat(b)):
            return None
        # As an elementwise operation that takes as long: few products are made from the cache, more from memory.
        work = max(np.PyArray_SIZE(a) * sizes[3] >> 6 if axes == 2 else 0, np.PyArray_SIZE(a) + np.PyArray_SIZE(b))
        if work > <Py_ssize_t>left.evaluator.at_once:
            return None
        shape[0], shape[1] = sizes[1], sizes[3]
        y = np.PyArray_EMPTY(axes, shape, kind, 0)
        for i in range(9):
            steps[i] = 0
        for i in range(2):  # axes of one element have no step, as NumPy has it
            steps[3 + (i ^ turn1)] = np.PyArray_STRIDE(a, i) if np.PyArray_DIM(a, i) > 1 else 0
            steps[5 + (i ^ turn2)] = np.PyArray_STRIDE(b, i) if i < axes and np.PyArray_DIM(b, i) > 1 else 0
            steps[7 + i] = np.PyArray_STRIDE(y, i) if i < axes and np.PyArray_DIM(y, i) > 1 else 0
        pointers[0], pointers[1], pointers[2] = np.PyArray_BYTES(a), np.PyArray_BYTES(b), np.PyArray_BYTES(y)
        for i in range(function.ntypes):
            if function.types[3 * i] == kind:
                break
        else:
            return None
        with nogil:
            run_loop(function.functions[i], pointers, sizes, steps, NULL)
        return self.shown(y, left.evaluator, (<object>y).shape)


cdef inline int check_error() except -1:
    return 0 if PyErr_Occurred() is NULL else -1


cdef bint is_alone(Node node, object found) noexcept:
    """Whether nothing else can see the value of a record: that and the caller have it, which has the record, too."""
    return (
        Py_REFCNT(<PyObject *>found) == 2
        and Py_REFCNT(<PyObject *>node) == 2
        and np.PyArray_BASE(<np.ndarray>found) is NULL
        and np.PyArray_ISWRITEABLE(<np.ndarray>found)
    )


cdef inline bint is_flat(np.ndarray x) noexcept:
    return np.PyArray_ISBEHAVED_RO(x) and (np.PyArray_IS_C_CONTIGUOUS(x) or np.PyArray_IS_F_CONTIGUOUS(x))


cdef bint is_basic(object key):
    """Whether NumPy takes a key, if it is right, without a look at elements, and as array code means it."""
    cdef object part
    for part in key if type(key) is tuple else (key,):
        if type(part) is slice:
            for end in (part.start, part.stop, part.step):
                if end is not None and type(end) is not int:
                    return False
        elif type(part) is not int and part is not None and part is not Ellipsis:
            return False
    return True


#: Operands of a loop, and the axes along which they are walked through, the innermost last.
cdef struct Walk:
    char *pointers[3]
    np.npy_intp steps[3][MOST_AXES]
    np.npy_intp lengths[MOST_AXES]
    int rank
    char number[16]


cdef Desk the_desk = Desk()
desk = the_desk


cdef class Loop:
    cdef object _function
    cdef ufunc _ufunc
    cdef np.PyUFuncGenericFunction _loop
    cdef void *_data
    cdef int _types[3]

    def __init__(self, function):
        self._function = function
        self._types[0] = -1
        if function is not None and function.nout == 1 and function.signature is None and function.nin <= 2:
            self._ufunc = function

    def of_one(self, x):
        cdef Node node = the_desk.there(x)
        return None if node is None or self._function is None else self.result(node, 1, node.value, None)

    def of_two(self, x1, x2):
        cdef Node left = the_desk.there(x1), right = the_desk.there(x2)
        if self._function is None:
            return None
        if left is None:
            return None if right is None or not is_plain(x1) else self.result(right, 2, x1, right.value)
        if right is None:
            return self.result(left, 2, left.value, x2) if is_plain(x2) else None
        return self.result(left, 2, left.value, right.value)

    def onto(self, x, other):
        cdef Node node = the_desk.there(x), right = the_desk.there(other)
        cdef object found, value
        cdef np.ndarray array
        cdef np.npy_intp size
        cdef int rank, j, at
        if self._function is None or node is None or right is None and not is_plain(other):
            return False
        found, value = node.value, other if right is None else right.value
        array = <np.ndarray>value if type(value) is np.ndarray else None
        rank, size = np.PyArray_NDIM(<np.ndarray>found), np.PyArray_SIZE(<np.ndarray>found)
        if size < 2 or size > <Py_ssize_t>node.evaluator.at_once or rank > MOST_AXES or not is_alone(node, found):
            return False
        if array is not None:
            at = rank - np.PyArray_NDIM(array)
            if at < 0:
                return False
            for j in range(np.PyArray_NDIM(array)):
                if np.PyArray_DIM(array, j) != 1 and np.PyArray_DIM(array, j) != np.PyArray_DIM(<np.ndarray>found, at + j):
                    return False
        try:
            return self.looped(2, found, value, rank, np.PyArray_DIMS(<np.ndarray>found), size, found) is not None
        except Exception:
            return False

    cdef object result(self, Node node, int count, object x1, object x2):
        """The result for arrays and numbers, one of which is the value of a record; None if it takes long or fails."""
        cdef np.npy_intp shape[MOST_AXES]
        cdef np.npy_intp size = 1, length
        cdef int rank = 0, i, j, at
        cdef np.ndarray array, out
        cdef bint same
        cdef object found, operand
        cdef Py_ssize_t limit = node.evaluator.at_once
        for i in range(count):
            operand = x2 if i else x1
            if type(operand) is np.ndarray:
                rank = max(rank, np.PyArray_NDIM(<np.ndarray>operand))
        if rank > MOST_AXES or not limit:
            return None
        for j in range(rank):
            shape[j] = 1
        for i in range(count):
            operand = x2 if i else x1
            if type(operand) is np.ndarray:
                array = <np.ndarray>operand
                at = rank - np.PyArray_NDIM(array)
                for j in range(np.PyArray_NDIM(array)):
                    length = np.PyArray_DIM(array, j)
                    if shape[at + j] == 1:
                        shape[at + j] = length
                    elif length != 1 and length != shape[at + j]:
                        return None
        for j in range(rank):
            size *= shape[j]
        if size > limit:
            return None
        try:
            out = self.looped(count, x1, x2, rank, shape, size, None)
            if out is None:
                found = call_quietly(self._function, (x1,) if count == 1 else (x1, x2))
                if type(found) is not np.ndarray:
                    found = np.PyArray_FROM_O(found)
                out = found
                if not np.PyArray_IS_C_CONTIGUOUS(out):
                    out = np.PyArray_NewCopy(out, np.NPY_CORDER)
        except Exception:
            return None
        # Where there are no elements, an equal number of them says nothing.
        same = size and np.PyArray_SIZE(<np.ndarray>node.value) == size and np.PyArray_NDIM(<np.ndarray>node.value) == rank
        return the_desk.shown(out, node.evaluator, node.shape if same else (<object>out).shape)

    cdef np.ndarray looped(
        self, int count, object x1, object x2, int rank, np.npy_intp *shape, np.npy_intp size, np.ndarray out
    ):
        """The result of NumPy's loop for exactly these types, walked as NumPy does; None if there is none, or it would not.

        It is written into an array of its shape, if one is given, where that has its type, too.
        """
        cdef Walk walk
        cdef int types[2]
        cdef int i, j, at, number = -1
        cdef np.npy_intp step
        cdef np.npy_intp last[3]
        cdef np.npy_intp steps[3]
        cdef np.ndarray array
        cdef object operand
        if self._ufunc is None or self._ufunc.nin != count:
            return None
        for i in range(count):
            operand = x2 if i else x1
            if type(operand) is np.ndarray:
                array = <np.ndarray>operand
                if not np.PyArray_ISBEHAVED_RO(array):
                    return None
                types[i] = np.PyArray_TYPE(array)
                if types[i] > np.NPY_CLONGDOUBLE and types[i] != np.NPY_FLOAT16:
                    return None
                walk.pointers[i] = np.PyArray_BYTES(array)
            else:
                number = i
        if number >= 0:
            types[number] = types[1 - number]
            if not put_number(walk.number, x2 if number else x1, types[number]):
                return None
            walk.pointers[number] = walk.number
        if not self.find(count, types):
            return None
        if out is None:
            out = np.PyArray_EMPTY(rank, shape, self._types[2], 0)
        elif np.PyArray_TYPE(out) != self._types[2]:
            return None
        if not size:
            return out
        walk.pointers[count] = np.PyArray_BYTES(out)
        walk.rank = 0
        last[0] = last[1] = last[2] = maxsize
        for j in range(rank):
            if shape[j] == 1:
                continue
            for i in range(count + 1):
                array = out if i == count else <np.ndarray>(x2 if i else x1) if i != number else None
                at = j - rank + np.PyArray_NDIM(array) if i != number else -1
                step = np.PyArray_STRIDE(array, at) if at >= 0 and np.PyArray_DIM(array, at) > 1 else 0
                if step < 0 or step > last[i]:
                    return None  # NumPy would walk through it in another order
                if step:
                    last[i] = step
                steps[i] = step
            for i in range(count + 1):
                if not walk.rank or walk.steps[i][walk.rank - 1] != steps[i] * shape[j]:
                    walk.lengths[walk.rank] = shape[j]
                    walk.rank += 1
                    break
            else:
                walk.lengths[walk.rank - 1] *= shape[j]
            for i in range(count + 1):
                walk.steps[i][walk.rank - 1] = steps[i]
        if walk.rank > 1 and walk.lengths[walk.rank - 1] < SHORT and size > LONG_LOOP:
            return None  # NumPy copies parts of what is repeated, to call the loop less often
        if not walk.rank:
            walk.rank, walk.lengths[0] = 1, 1
            walk.steps[0][0] = walk.steps[1][0] = walk.steps[2][0] = 0
        if size > LONG_LOOP:
            with nogil:
                run_walk(self._loop, self._data, &walk, count + 1)
        else:
            run_walk(self._loop, self._data, &walk, count + 1)
        check_error()
        return out

    cdef bint find(self, int count, int *types):
        """Look for the loop for these types."""
        cdef ufunc function = self._ufunc
        cdef int i, nargs = count + 1
        if self._types[0] == types[0] and (count == 1 or self._types[1] == types[1]):
            return True
        for i in range(function.ntypes):
            if function.types[i * nargs] == types[0] and (count == 1 or function.types[i * nargs + 1] == types[1]):
                if function.functions[i] is NULL:
                    return False
                self._loop, self._data = function.functions[i], NULL if function.data is NULL else function.data[i]
                self._types[0], self._types[2] = types[0], function.types[i * nargs + count]
                self._types[1] = types[1] if count == 2 else 0
                return True
        return False


cdef inline bint is_plain(object number):
    """Whether an operand beside an array is a number, or an array of NumPy's, that its functions take as array code does."""
    cdef object kind = type(number)
    if kind is float or kind is int:
        return True
    if kind is np.ndarray:
        return np.PyArray_TYPE(<np.ndarray>number) <= np.NPY_CLONGDOUBLE
    return isinstance(number, generic) and number.dtype.kind in "biufc"


cdef bint put_number(char *to, object number, int kind) except -1:
    """Write a number as an element of a dtype; return False if that is not simple."""
    cdef double real
    cdef int64_t whole
    if type(number) is int:
        if not 0 <= number < FEW:
            return False
        whole = number
        if kind <= np.NPY_ULONGLONG and kind != np.NPY_BOOL:
            if kind <= np.NPY_UBYTE:
                (<signed char *>to)[0] = <signed char>whole
            elif kind <= np.NPY_USHORT:
                (<short *>to)[0] = <short>whole
            elif kind <= np.NPY_UINT:
                (<int *>to)[0] = <int>whole
            elif kind <= np.NPY_ULONG:
                (<long *>to)[0] = <long>whole
            else:
                (<long long *>to)[0] = whole
            return True
        real = <double>whole
    elif type(number) is float:
        real = number
    else:
        if number.dtype.num != kind:
            return False
        np.PyArray_ScalarAsCtype(number, to)
        return True
    if kind == np.NPY_FLOAT or kind == np.NPY_CFLOAT:
        (<float *>to)[0], (<float *>to)[1] = <float>real, 0
    elif kind == np.NPY_DOUBLE or kind == np.NPY_CDOUBLE:
        (<double *>to)[0], (<double *>to)[1] = real, 0
    else:
        return False
    return True


cdef void run_walk(np.PyUFuncGenericFunction loop, void *data, Walk *walk, int operands) noexcept nogil:
    cdef np.npy_intp at[MOST_AXES]
    cdef np.npy_intp steps[3]
    cdef char *pointers[3]
    cdef int inner = walk.rank - 1, axis, i
    for i in range(operands):
        steps[i] = walk.steps[i][inner]
    for axis in range(inner):
        at[axis] = 0
    while True:
        for i in range(operands):
            pointers[i] = walk.pointers[i]
        run_loop(loop, pointers, &walk.lengths[inner], steps, data)
        axis = inner - 1
        while axis >= 0:
            at[axis] += 1
            for i in range(operands):
                walk.pointers[i] += walk.steps[i][axis]
            if at[axis] < walk.lengths[axis]:
                break
            for i in range(operands):
                walk.pointers[i] -= walk.steps[i][axis] * at[axis]
            at[axis] = 0
            axis -= 1
        if axis < 0:
            return
