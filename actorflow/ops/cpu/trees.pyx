# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
"""What rows get from decision trees: what NumPy does a step of all trees at a time takes longer for few rows."""

cimport numpy as cnp
from libc.math cimport INFINITY, isinf

cnp.import_array()

cdef extern from *:
    unsigned int ACTORFLOW_SOURCE

SOURCE = ACTORFLOW_SOURCE  # the checksum of this file

#: Trees that are walked side by side: what one reads from memory does not keep the others waiting.
DEF ABREAST = 8

cdef struct Node:
    double split
    cnp.int32_t feature
    cnp.int32_t below[2]  # where false and true lead; a leaf leads to itself
    cnp.int8_t how
    cnp.int8_t missing

#: The nodes as NumPy has them.
NODE = {
    "names": ["split", "feature", "false", "true", "how", "missing"],
    "formats": ["f8", "i4", "i4", "i4", "i1", "i1"],
    "offsets": [0, 8, 12, 16, 20, 21],
    "itemsize": sizeof(Node),
}


cdef inline int _goes(const Node* node, double value) noexcept nogil:
    cdef double split = node.split
    cdef int how = node.how
    cdef int goes
    if how == 0:
        goes = value <= split
    elif how == 1:
        goes = value < split
    elif how == 2:
        goes = value >= split
    elif how == 3:
        goes = value > split
    elif how == 4:
        goes = value == split
    else:
        goes = value != split
    return goes | (node.missing & (value != value))


cdef class Forest:
    """Trees, in one piece of memory.

    Args:
        nodes: Their nodes, `NODE`, which are not checked.
        roots: Places of the roots among them.
        weights: What each node gives, (nodes, targets).
    """

    cdef object _held
    cdef const Node* _nodes
    cdef const cnp.int32_t* _roots
    cdef const double* _weights
    cdef Py_ssize_t _trees, _targets
    cdef bint _is_usual  # all nodes ask for at most their split

    def __init__(self, cnp.ndarray nodes, cnp.ndarray roots, cnp.ndarray weights):
        self._held = nodes, roots, weights
        self._nodes = <const Node*>cnp.PyArray_DATA(nodes)
        self._roots = <const cnp.int32_t*>cnp.PyArray_DATA(roots)
        self._weights = <const double*>cnp.PyArray_DATA(weights)
        self._trees, self._targets = roots.shape[0], weights.shape[1]
        self._is_usual = not nodes["how"].any()

    def of(self, cnp.ndarray x, int how):
        """Scores of rows by all trees, float64 (rows, targets); ``x`` is float32 or float64 (rows, features).

        ``how`` is 0 for sums, in the order of the trees, 1 for means, 2 for the least and 3 for the largest numbers.
        """
        x = cnp.PyArray_GETCONTIGUOUS(x)
        cdef cnp.npy_intp[2] shape = [x.shape[0], self._targets]
        cdef cnp.ndarray y = cnp.PyArray_EMPTY(2, shape, cnp.NPY_DOUBLE, 0)
        cdef Py_ssize_t row, tree, target, rows = x.shape[0], wide = x.strides[0], targets = self._targets
        cdef const char* given = <const char*>cnp.PyArray_DATA(x)
        cdef bint is_wide = cnp.PyArray_TYPE(x) == cnp.NPY_DOUBLE
        cdef double* found = <double*>cnp.PyArray_DATA(y)
        cdef const double* leaf
        cdef cnp.int32_t at[ABREAST]
        cdef int i, count
        cdef double first = 0 if how < 2 else INFINITY if how == 2 else -INFINITY
        with nogil:
            for row in range(rows):
                for target in range(targets):
                    found[target] = first
                tree = 0
                while tree < self._trees:
                    count = <int>min(ABREAST, self._trees - tree)
                    for i in range(count):
                        at[i] = self._roots[tree + i]
                    self._walk(given, is_wide, at, count)
                    for i in range(count):
                        leaf = self._weights + at[i] * targets
                        for target in range(targets):
                            if how < 2:
                                found[target] += leaf[target]
                            elif how == 2:
                                found[target] = min(found[target], leaf[target])
                            else:
                                found[target] = max(found[target], leaf[target])
                    tree += count
                for target in range(targets):
                    if how == 1:
                        found[target] /= self._trees
                    elif how and isinf(found[target]):  # no leaf has said anything
                        found[target] = 0
                given += wide
                found += targets
        return y

    cdef void _walk(self, const char* x, bint is_wide, cnp.int32_t* at, int count) noexcept nogil:
        """Go from nodes to the leaves below them."""
        cdef const Node* node
        cdef cnp.int32_t below
        cdef double value
        cdef int i
        cdef bint moved = True
        while moved:
            moved = False
            for i in range(count):
                node = self._nodes + at[i]
                value = (<const double*>x)[node.feature] if is_wide else (<const float*>x)[node.feature]
                if self._is_usual:
                    below = node.below[(value <= node.split) | (node.missing & (value != value))]
                else:
                    below = node.below[_goes(node, value)]
                moved |= below != at[i]
                at[i] = below


def of_one(cnp.ndarray x, long long first, long long second, float border, float whole):
    """The labels that scores of the second of two classes decide, and the scores of both: ``whole - x`` and ``x``.

    ``x`` is float32, with nothing between its numbers in memory.
    """
    cdef cnp.npy_intp[2] shape = [x.shape[0], 2]
    cdef cnp.ndarray labels = cnp.PyArray_EMPTY(1, shape, cnp.NPY_INT64, 0)
    cdef cnp.ndarray scores = cnp.PyArray_EMPTY(2, shape, cnp.NPY_FLOAT, 0)
    cdef const float* given = <const float*>cnp.PyArray_DATA(x)
    cdef float* found = <float*>cnp.PyArray_DATA(scores)
    cdef cnp.int64_t* label = <cnp.int64_t*>cnp.PyArray_DATA(labels)
    cdef Py_ssize_t i
    for i in range(shape[0]):
        label[i] = second if given[i] > border else first
        found[2 * i], found[2 * i + 1] = whole - given[i], given[i]
    return labels, scores
