"""Lazy arrays: array code that looks sequential, computed in parallel, in one pass where possible, within a budget.

The package is a namespace of the Python Array API standard, 2024.12, with its extensions `linalg` and `fft`. In all
examples ``xp`` is this package, ``af`` is `actorflow` and ``np`` is NumPy.

A function that is "as" one of NumPy's has its arguments of the same names, and no others; dtypes are those of the
standard, and results are arrays. ``device`` says where a new one is to live: that of `at` if left out, else the CPU.

Example:
    >>> x = xp.asarray([[1.0, 2.0], [3.0, 4.0]])
    >>> y = xp.sqrt(x * x + 3.0) / 2.0  # recorded
    >>> print(y.shape, float(y[0, 0]))  # computed, by float()
    (2, 2) 1.0
"""

from typing import TYPE_CHECKING

from actorflow.array import namespace, nn
from actorflow.array.array import Array
from actorflow.array.namespace import *  # noqa: F403
from actorflow.array.sessions import Session, current, session


def wait_for_all() -> None:
    """Compute all that was recorded in the current session and that the program can still ask for.

    What fails is reported where its value is asked for.
    Example:
        >>> x = xp.sqrt(xp.ones((300, 300))) + 1.0
        >>> xp.wait_for_all()
        >>> print(x[0, 0])
        2.0
    """
    current().wait_for_all()


__all__ = ["Array", "Session", "current", "nn", "session", "wait_for_all"]
__all__ += namespace.__all__

if not TYPE_CHECKING:  # for which any name would be one that is there

    def __getattr__(name: str) -> object:
        from actorflow.foreign import missing

        missing(__name__, name)
