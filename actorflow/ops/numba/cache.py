"""Machine code on disk, shared by processes: a file per routine."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import cache
from importlib import metadata
from pathlib import Path

from actorflow.ops.numba.machine import address_index, processor

_logger = logging.getLogger(__name__)
_DIGEST = hashlib.sha256


def folder() -> Path:
    """Where the files are: ``$ACTORFLOW_CACHE_DIR``, or a folder in the user's own cache."""
    named = os.environ.get("ACTORFLOW_CACHE_DIR")
    if named:
        return Path(named)
    if sys.platform == "win32":
        user = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    else:
        user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(user) / "actorflow"


def routines() -> list[Path]:
    """The files of all routines."""
    return sorted(folder().glob("*.o"))


def path(source: str, name: str, arguments: Sequence[str]) -> Path:
    """The file of a routine, by all that its machine code depends on."""
    key = json.dumps([source, name, *arguments, "", *processor(), *_versions()])
    return folder() / f"{_DIGEST(key.encode()).hexdigest()}.o"


@cache
def _versions() -> list[str]:
    program = Path(__file__).with_name("compiler.py").read_bytes()
    installed = [metadata.version(package) for package in ("numba", "llvmlite")]
    return [*installed, sys.version, str(address_index()), _DIGEST(program).hexdigest()]


def read(file: Path) -> bytes | None:
    """What was written there; None if there is nothing, if it is damaged, or if others could have written it."""
    try:
        if _foreign(file.parent):
            return None
        found = file.read_bytes()
    except OSError:
        return None
    size = _DIGEST().digest_size
    digest, content = found[:size], found[size:]
    return content if digest == _DIGEST(content).digest() else None


def write(file: Path, content: bytes) -> None:
    """Write all at once, so that no process reads a part. Where that cannot be done, nothing is."""
    with suppress(OSError):
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        if _foreign(file.parent):
            return
        descriptor, temporary = tempfile.mkstemp(dir=file.parent)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(_DIGEST(content).digest() + content)
            os.replace(temporary, file)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise


def _foreign(place: Path) -> bool:
    """Return whether others may put machine code there that this process would then run."""
    if sys.platform == "win32":  # a user's own folder has the user's own rights
        return False
    status = place.stat()
    foreign = status.st_uid != os.getuid() or bool(status.st_mode & 0o022)
    if foreign:
        _warn(place)
    return foreign


@cache
def _warn(place: Path) -> None:
    _logger.warning("%s is not used for compiled kernels, as others may write there: chmod 700 it", place)
