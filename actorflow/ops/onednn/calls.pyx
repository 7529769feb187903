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
    """A primitive that is called with arrays, in any thread.

    Args:
        pointer: Address of the primitive.
        arguments: Number of each argument, and the address of the descriptor of its memory.
        threads: Threads of OpenMP that it was made for, and computes with.
        owners: What has to live as long as it does.
    """

    cdef void *primitive
    cdef tuple arguments
    cdef list spare
    cdef int threads
    cdef object owners

    def __init__(self, uintptr_t pointer, tuple arguments, int threads, owners):
        self.primitive = <void *>pointer
        self.arguments = arguments
        self.threads = threads
        self.owners = owners
        self.spare = []

    def __call__(self, *arrays):
        """Compute. The arrays are those of the arguments, in order, as their descriptors say.

        Raises:
            RuntimeError: if the library says that it has failed.
        """
        cdef Set own
        cdef int i, before = 0, status = 0, count = len(self.arguments)
        if len(arrays) != count:
            raise TypeError(f"expected {count} arrays, got {len(arrays)}")
        try:
            own = self.spare.pop()
        except IndexError:
            own = Set(self.arguments)
        for i in range(count):
            status |= set_handle(own.arguments[i].memory, np.PyArray_DATA(<np.ndarray?>arrays[i]))
        if not status:
            with nogil:
                if set_threads is not NULL:  # the number is the calling thread's own, and others' calls reckon with it
                    before = get_threads()
                    set_threads(self.threads)
                status = execute(self.primitive, stream, count, own.arguments)
                if set_threads is not NULL:
                    set_threads(before)
        self.spare.append(own)
        if status:
            raise RuntimeError(f"oneDNN has failed with status {status}")
