# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False
"""Ways of rows through decision trees: what NumPy does a step of all trees at a time takes longer for few rows."""

cimport numpy as cnp

cnp.import_array()

cdef extern from *:
    unsigned int ACTORFLOW_SOURCE

SOURCE = ACTORFLOW_SOURCE  # the checksum of this file

ctypedef fused number:
    float
    double

ctypedef fused limit:
    float
    double


def find_ends(
    const number[:, ::1] x, const cnp.int64_t[::1] feature, const limit[::1] split, const cnp.int64_t[::1] mode,
    const cnp.npy_bool[::1] missing, const cnp.int64_t[:, ::1] children, const cnp.int64_t[::1] roots,
    cnp.int64_t[:, ::1] ends,
):
    """Put the leaf of each tree that each row ends in into ``ends``, (rows, trees).

    Places of nodes and of features are not checked; a leaf leads to itself, and there are no other cycles.
    """
    cdef Py_ssize_t row, tree
    cdef cnp.int64_t at, below
    cdef double value, border
    cdef bint goes
    cdef cnp.int64_t how
    with nogil:
        for row in range(ends.shape[0]):
            for tree in range(ends.shape[1]):
                below = roots[tree]
                at = -1
                while below != at:
                    at = below
                    value, border, how = x[row, feature[at]], split[at], mode[at]
                    if value != value and missing[at]:
                        goes = True
                    elif how == 0:
                        goes = value <= border
                    elif how == 1:
                        goes = value < border
                    elif how == 2:
                        goes = value >= border
                    elif how == 3:
                        goes = value > border
                    elif how == 4:
                        goes = value == border
                    else:
                        goes = value != border
                    below = children[at, 1 if goes else 0]
                ends[row, tree] = at
