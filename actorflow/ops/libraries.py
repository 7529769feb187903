"""Kernel libraries: which module registers the kernels of a library for a kind of device."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from importlib import import_module

from actorflow.errors import KernelNotFoundError, did_you_mean
from actorflow.ops.registry import registered_kernels

_logger = logging.getLogger(__name__)

#: (kind of device, library) -> the module whose import registers the kernels.
_modules: dict[tuple[str, str], str] = {
    ("cpu", "numpy"): "actorflow.ops.cpu",
    ("cpu", "torch"): "actorflow.ops.torch",
    ("sim", "sim"): "actorflow.ops.sim",
    ("cuda", "cupy"): "actorflow.ops.cuda",
    ("cuda", "cudnn"): "actorflow.ops.cuda.cudnn",
}
_loaded: set[tuple[str, str]] = set()
#: What could not be loaded where nobody had asked for it, and why.
_failed: dict[tuple[str, str], Exception] = {}


def register_library(kind: str, library: str, module: str) -> None:
    """Name the module that registers the kernels of a library, imported when a graph first asks for it.

    Args:
        kind: Kind of device, ``"cpu"`` say.
        library: Name of the library, as in ``libraries=[...]``.
        module: Full name of the module.
    """
    _modules[kind, library] = module
    _loaded.discard((kind, library))
    _failed.pop((kind, library), None)


def load_library(kind: str, library: str) -> None:
    """Have the kernels of a library registered.

    Raises:
        KernelNotFoundError: if there is no such library for this kind of device.
        MissingExtraError: if what it is built on is not installed.
    """
    key = (kind, library)
    if key in _loaded:
        return
    module = _modules.get(key)
    if module is not None:
        import_module(module)
    elif key not in _known():
        names = dict.fromkeys(name for device, name in _known() if device == kind)
        raise KernelNotFoundError(
            f"no library {library!r} for devices of kind {kind!r}; "
            f"libraries: {', '.join(names) or 'none'}{did_you_mean(library, names)}"
        )
    _loaded.add(key)


def load_libraries(kind: str, libraries: Sequence[str]) -> list[str]:
    """Have the kernels of a kind of device's own libraries registered: those that can be loaded, which are returned.

    One that cannot be loaded falls away, and the log says so once: what it is built on may be there in part, and the
    other libraries do without it.

    Raises:
        Exception: what the loading raised, if no library is left.
    """
    usable = [library for library in libraries if _can_be_loaded(kind, library)]
    if libraries and not usable:
        raise _failed[kind, libraries[-1]]
    return usable


def _can_be_loaded(kind: str, library: str) -> bool:
    key = (kind, library)
    if key in _failed:
        return False
    try:
        load_library(kind, library)
    except Exception as error:  # noqa: BLE001  a broken installation may raise anything
        _failed[key] = error
        _logger.warning("kernel library %r of devices of kind %r is left out: %s", library, kind, error)
        return False
    return True


def is_library_of(library: str, kind: str) -> bool:
    """Whether a library has kernels for a kind of device.

    Raises:
        KernelNotFoundError: if it is no library of any kind of device.
    """
    known = _known()
    if (kind, library) in known:
        return True
    if not any(name == library for _, name in known):
        names = ", ".join(f"{name} ({device})" for device, name in known)
        near = did_you_mean(library, [name for _, name in known])
        raise KernelNotFoundError(f"no library {library!r}; libraries: {names}{near}")
    return False


def _known() -> dict[tuple[str, str], None]:
    return dict.fromkeys([*_modules, *((key.device, key.library) for key in registered_kernels())])
