"""Kernel libraries that cannot be loaded: what nobody asked for falls away, what was asked for is an error."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
from actorflow.devices.sim import SimDevice
from actorflow.errors import KernelNotFoundError
from actorflow.ops import registry
from actorflow.ops.registry import load_libraries, load_library

#: What loading a library raises: not installed, its shared library missing, or whatever a broken one raises.
FAILURES = {
    ModuleNotFoundError: "import a_module_that_nobody_has",
    OSError: "import ctypes; ctypes.CDLL('libnobodyhas.so.1')",
    RuntimeError: "raise RuntimeError('Unable to find symbol cudnnGetVersion')",
    AssertionError: "assert False, 'found 2 libcudnn.so'",
    af.MissingExtraError: "from actorflow.errors import require; require('a_module', extra='cudnn', purpose='this')",
}


@pytest.fixture(autouse=True)
def own_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what is registered here."""
    for library in (("cpu", "numpy"), ("sim", "sim")):
        load_library(*library)
    for name in ("_modules", "_loaded", "_failed"):
        monkeypatch.setattr(registry, name, type(getattr(registry, name))(getattr(registry, name)))


@pytest.fixture
def broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[type[Exception]], None]:
    """``broken(failure)``: a library of simulated devices, preferred to their own, that cannot be loaded."""

    def make(failure: type[Exception]) -> None:
        name = f"broken_library_{failure.__name__.lower()}"
        (tmp_path / f"{name}.py").write_text(FAILURES[failure], encoding="utf-8")
        monkeypatch.syspath_prepend(tmp_path)
        registry.register_library("sim", "broken", name)
        monkeypatch.setattr(SimDevice, "libraries", ("broken", *SimDevice.libraries))

    return make


def doubled(**hints: Any) -> float:
    graph = af.Graph("doubled")
    with graph.at("sim:0", **hints):
        x = graph.blob("x", (2,))
        y = af.ops.scale(x, 2.0)
    return float(af.to_numpy(graph.run_sync({x: np.ones(2, "f")})[y])[0])


@pytest.mark.parametrize("failure", FAILURES)
def test_a_devices_own_falls_away_and_the_log_says_so_once(
    broken: Any, failure: type[Exception], caplog: pytest.LogCaptureFixture
) -> None:
    broken(failure)
    with caplog.at_level(logging.WARNING, "actorflow.ops.registry"):
        assert [doubled(), doubled()] == [2.0, 2.0]
        with xp.session(), xp.at("sim:0"):
            assert float(xp.sum(xp.ones(3) * 2.0)) == 6.0
    (record,) = caplog.records
    assert record.getMessage().startswith("kernel library 'broken' of devices of kind 'sim' is left out: ")


@pytest.mark.parametrize("failure", FAILURES)
def test_what_was_asked_for_is_an_error(broken: Any, failure: type[Exception]) -> None:
    broken(failure)
    with pytest.raises(failure):
        doubled(libraries=["broken"])


def test_where_none_is_left_the_error_is_that_of_the_last(broken: Any) -> None:
    broken(OSError)
    with pytest.raises(OSError, match="libnobodyhas"):
        load_libraries("sim", ["broken"])
    assert load_libraries("sim", ["broken", "sim"]) == ["sim"]
    with pytest.raises(KernelNotFoundError, match="no library 'nobodys'"):
        load_libraries("sim", ["nobodys"])
    assert "broken_library_oserror" not in sys.modules
