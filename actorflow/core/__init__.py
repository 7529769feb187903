"""The core of the runtime: mailboxes, the queue of ready ops, and the one way in which an op is called.

There are two forms of it, with the same semantics: `actorflow.core.plain` is Python, made to be read, and
``actorflow.core.compiled`` was made by a C compiler from ``compiled.pyx``. The compiled one runs where it is there.
The environment variable ``ACTORFLOW_CORE`` chooses otherwise: with 0 the plain one runs, and with 1 it is an error if
there is no compiled one. One that was compiled from another source than the one beside it does not run.
"""

from __future__ import annotations

import os
import warnings
from importlib import import_module
from pathlib import Path
from types import ModuleType
from zlib import crc32

from actorflow.core.plain import (
    DONE,
    FOREVER_NS,
    MOST_COPIED_BYTES,
    RUNNING,
    UNSHARED,
    Blob,
    Cycle,
    Described,
    Desk,
    Emitter,
    Fetched,
    Fetcher,
    Frame,
    FrameState,
    Holder,
    Items,
    Loop,
    Node,
    Op,
    Profile,
    Ready,
    Repeater,
    Ring,
    Shelf,
    Shift,
    Stack,
    Start,
    Turnstile,
    View,
    clock_ns,
    desk,
    fill,
    release,
    set_clock,
)

__all__ = [
    "DONE",
    "FOREVER_NS",
    "IS_COMPILED",
    "MOST_COPIED_BYTES",
    "RUNNING",
    "UNSHARED",
    "Blob",
    "Cycle",
    "Described",
    "Desk",
    "Emitter",
    "Fetched",
    "Fetcher",
    "Frame",
    "FrameState",
    "Holder",
    "Items",
    "Loop",
    "Node",
    "Op",
    "Profile",
    "Ready",
    "Repeater",
    "Ring",
    "Shelf",
    "Shift",
    "Stack",
    "Start",
    "Turnstile",
    "View",
    "check_source",
    "clock_ns",
    "desk",
    "fill",
    "release",
    "set_clock",
]


def _compiled() -> ModuleType | None:
    wanted = os.environ.get("ACTORFLOW_CORE", "")
    if wanted not in {"", "0", "1"}:
        raise ImportError(f"ACTORFLOW_CORE must be 0 or 1, or not set, got {wanted!r}")
    if wanted == "0":
        return None
    try:
        return _of_this_source(import_module("actorflow.core.compiled"), wanted)
    except ImportError as error:
        if wanted == "1":
            raise ImportError(
                f"ACTORFLOW_CORE=1, but actorflow's compiled core cannot be loaded: {error}; install actorflow where "
                "there is a C compiler, or leave ACTORFLOW_CORE unset to run without it"
            ) from error
        return None


def _of_this_source(form: ModuleType, wanted: str) -> ModuleType:
    """The compiled form, if the source beside it, where there is one, is the one it was compiled from."""
    try:
        check_source(form)
    except ImportError as error:
        if wanted != "1":
            warnings.warn(f"actorflow runs without its compiled core: {error}", RuntimeWarning, stacklevel=2)
        raise
    return form


def check_source(form: ModuleType) -> None:
    """Check that the source beside an extension module, where there is one, is the one it was compiled from.

    Raises:
        ImportError: if it is another one.
    """
    assert form.__file__ is not None
    source = Path(form.__file__).with_name(f"{form.__name__.rpartition('.')[2]}.pyx")
    if source.exists() and crc32(source.read_bytes()) != form.SOURCE:
        raise ImportError(f"it was compiled from another {source}: install actorflow again, with pip install -e .")


_form = _compiled()
IS_COMPILED = _form is not None

if _form is not None:
    globals().update({name: value for name, value in vars(_form).items() if name in __all__})
