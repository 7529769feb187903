"""Lazy arrays: array code that looks sequential, computed in parallel, in one pass where possible, within a budget.

The package is a namespace of the Python Array API standard, 2024.12, with its extensions `linalg` and `fft`.
"""

from actorflow.array import namespace, nn
from actorflow.array.array import Array
from actorflow.array.engine.session import Session, current, session
from actorflow.array.namespace import *  # noqa: F403


def wait_for_all() -> None:
    """Compute all that was recorded in the current session and that the program can still ask for.

    What fails is reported where its value is asked for.
    """
    current().wait_for_all()


__all__ = ["Array", "Session", "current", "nn", "session", "wait_for_all"]
__all__ += namespace.__all__
