# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Calls of primitives of oneDNN: arrays in, and nothing but pointers passed on.

Its C functions come as addresses, so that nothing is linked to and none of its headers is needed. A memory object is
given a handle for each call; as threads may be in one primitive at once, each has a set of them.
"""

from libc.stdint cimport uintptr_t
from libc.stdlib cimport calloc, free
cimport numpy as np

np.import_array()

cdef extern from *:
    unsigned int ACTORFLOW_SOURCE

SOURCE = ACTORFLOW_SOURCE  # the checksum of this file

#: What `dnnl_primitive_execute` takes of each argument.
cdef struct Argument:
    int index
    void *memory

ctypedef int (*Execute)(void *, void *, int, Argument *) noexcept nogil
ctypedef int (*CreateMemory)(void **, void *, void *, void *) noexcept nogil
ctypedef int (*DestroyMemory)(void *) noexcept nogil
ctypedef int (*SetHandle)(void *, void *) noexcept nogil
ctypedef void (*SetThreads)(int) noexcept nogil
ctypedef int (*GetThreads)() noexcept nogil

cdef Execute execute = NULL
cdef CreateMemory create_memory = NULL
cdef DestroyMemory destroy_memory = NULL
cdef SetHandle set_handle = NULL
cdef SetThreads set_threads = NULL
cdef GetThreads get_threads = NULL
cdef void *engine = NULL
cdef void *stream = NULL


def use(dict addresses):
    """Take the library's functions, its engine and its stream, by their addresses; 0 for what there is not."""
    global execute, create_memory, destroy_memory, set_handle, set_threads, get_threads, engine, stream
    execute = <Execute><uintptr_t>addresses["primitive_execute"]
    create_memory = <CreateMemory><uintptr_t>addresses["memory_create"]
    destroy_memory = <DestroyMemory><uintptr_t>addresses["memory_destroy"]
    set_handle = <SetHandle><uintptr_t>addresses["memory_set_data_handle"]
    set_threads = <SetThreads><uintptr_t>addresses["omp_set_num_threads"]
    get_threads = <GetThreads><uintptr_t>addresses["omp_get_max_threads"]
    engine = <void *><uintptr_t>addresses["engine"]
    stream = <void *><uintptr_t>addresses["stream"]


cdef class Set:
    """Memory objects for one call at a time."""

    cdef Argument *arguments
    cdef int count

    def __cinit__(self, tuple arguments):
        self.count = len(arguments)
        self.arguments = <Argument *>calloc(max(1, self.count), sizeof(Argument))
        if self.arguments is NULL:
            raise MemoryError
        for i, (index, descriptor) in enumerate(arguments):
            self.arguments[i].index = index
            if create_memory(&self.arguments[i].memory, <void *><uintptr_t>descriptor, engine, NULL):
                raise MemoryError("oneDNN has made no memory object")

    def __dealloc__(self):
        if self.arguments is not NULL:
            for i in range(self.count):
                if self.arguments[i].memory is not NULL:
                    destroy_memory(self.arguments[i].memory)
            free(self.arguments)


cdef class Primitive:
    """A primitive that is called with arrays, in any thread, and computes on as many as OpenMP has where it is made.

    Args:
        pointer: Address of the primitive.
        arguments: Number of each argument, and the address of the descriptor of its memory.
        owners: What has to live as long as it does.

    Attributes:
        threads: Number of threads.
    """

    cdef void *primitive
    cdef tuple arguments
    cdef int count
    cdef readonly int threads
    cdef list spare
    cdef object owners

    def __init__(self, uintptr_t pointer, tuple arguments, owners):
        self.primitive = <void *>pointer
        self.arguments = arguments
        self.count = len(arguments)
        self.owners = owners
        self.spare = []
        self.threads = 1 if get_threads is NULL else get_threads()

    cdef Set take(self):
        """Memory objects that no other call has."""
        return self.spare.pop() if self.spare else Set(self.arguments)

    cdef int run(self, Set own):
        """Compute with the handles that the memory objects have; returns the status."""
        cdef int before = 1, status
        with nogil:
            if set_threads is not NULL:  # the number is the calling thread's own, and others' calls reckon with it
                before = get_threads()
                set_threads(self.threads)
            status = execute(self.primitive, stream, self.count, own.arguments)
            if set_threads is not NULL:
                set_threads(before)
        self.spare.append(own)
        return status

    def __call__(self, *arrays):
        """Compute. The arrays are those of the arguments, in order, as their descriptors say.

        Raises:
            RuntimeError: if the library says that it has failed.
        """
        cdef Set own = self.take()
        cdef int i, status = 0
        if len(arrays) != self.count:
            raise TypeError(f"expected {self.count} arrays, got {len(arrays)}")
        for i in range(self.count):
            status |= set_handle(own.arguments[i].memory, np.PyArray_DATA(<np.ndarray?>arrays[i]))
        status = status or self.run(own)
        if status:
            raise RuntimeError(f"oneDNN has failed with status {status}")


cdef class Direct:
    """A call of a primitive with a step's arrays as they are, and with others that stay.

    Args:
        primitive: The primitive.
        order: Where the array of each argument is: among the inputs (0, 1, ...), the outputs (-1, -2, ...), or, if it
            is one that stays, the array itself.
        expected: Inputs that must be these arrays, by position: what stays follows from them.
        scratch: Gives the scratchpad, as last argument; None without one.
        divides: Whether others should compute parts of it now; None where that never is so.
    """

    cdef Primitive primitive
    cdef tuple order, expected
    cdef object scratch, divides

    def __init__(self, Primitive primitive, tuple order, tuple expected, scratch, divides):
        self.primitive, self.order, self.expected, self.scratch = primitive, order, expected, scratch
        self.divides = divides

    cdef bint run(self, list inputs, list outputs) except -1:
        """Compute; False if that is to be done otherwise, as an input is another one, or if the library has failed."""
        cdef Set own
        cdef int i = 0, status = 0
        cdef Py_ssize_t position
        cdef np.ndarray array
        for place, known in self.expected:
            if inputs[<Py_ssize_t>place] is not known:
                return False
        if self.divides is not None and self.divides():
            return False
        own = self.primitive.take()
        for place in self.order:
            if type(place) is int:
                position = place
                array = inputs[position] if position >= 0 else outputs[-1 - position]
                if not np.PyArray_ISCARRAY_RO(array):
                    self.primitive.spare.append(own)
                    return False
            else:
                array = place
            status |= set_handle(own.arguments[i].memory, np.PyArray_DATA(array))
            i += 1
        if self.scratch is not None:
            array = self.scratch()
            status |= set_handle(own.arguments[i].memory, np.PyArray_DATA(array))
        return not (status or self.primitive.run(own))


cdef class Bound:
    """The function of one step of a program: directly where that is possible.

    Args:
        make: Makes what computes the step, when it is first called: called as the function of a kernel is, its
            attribute ``direct`` is a `Direct`, or None as long as there is none.
    """

    cdef object make, call

    def __init__(self, make):
        self.make = make

    def __call__(self, operation, list inputs, list outputs):
        cdef object direct
        if self.call is None:
            self.call = self.make(operation)
        direct = self.call.direct
        if direct is None or not (<Direct>direct).run(inputs, outputs):
            self.call(operation, inputs, outputs)
