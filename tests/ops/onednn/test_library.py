"""Where the library is looked for, which ones will do, and what is said where there is none. Needs none."""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import actorflow as af
from actorflow.devices.cpu import CPU
from actorflow.errors import MissingExtraError
from actorflow.ops import registry
from actorflow.ops.onednn import library as module
from actorflow.ops.onednn.library import FILE, VARIABLE


@pytest.fixture(autouse=True)
def nothing_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No variable, no package, and an environment of its own."""
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(module, "_PACKAGES", ())
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(module, "IS_COMPILED", True)


def fails() -> str:
    """The message where there is no library."""
    with pytest.raises(MissingExtraError) as failure:
        module.libdnnl.__wrapped__()
    return str(failure.value)


def test_the_variable_alone_says_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/somewhere/libdnnl.so.3")
    assert [*module.candidates()] == ["/somewhere/libdnnl.so.3"]


def test_it_may_be_turned_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "0")
    monkeypatch.setattr(module, "candidates", None)
    assert fails() == "kernel library 'onednn' needs oneDNN 3.2: pip install 'actorflow[onednn]': ACTORFLOW_ONEDNN=0"


def test_packages_come_before_the_environment_and_that_before_the_system(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    inside = tmp_path / "lib" / FILE
    inside.parent.mkdir()
    inside.touch()
    files = [
        SimpleNamespace(name="README", locate=lambda: "/p/README"),
        SimpleNamespace(name=FILE, locate=lambda: "/p/x"),
    ]
    monkeypatch.setattr(module, "_PACKAGES", ("a-package",))
    monkeypatch.setattr(module.metadata, "files", lambda name: files)
    assert [*module.candidates()] == ["/p/x", str(inside), FILE]


def test_a_system_that_finds_its_libraries_itself_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(module, "find_library", {"dnnl": "/opt/homebrew/lib/libdnnl.dylib"}.get)
    assert [*module.candidates()] == [FILE, "/opt/homebrew/lib/libdnnl.dylib"]


def test_where_there_is_none_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FILE", "libnobodyhas.so.3")
    assert fails() == "kernel library 'onednn' needs oneDNN 3.2: pip install 'actorflow[onednn]'"


def test_one_that_cannot_be_loaded_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "libdnnl.so.3"
    broken.write_bytes(b"no library")
    monkeypatch.setattr(module, "candidates", lambda: [str(broken)])
    assert f"pip install 'actorflow[onednn]': {broken}: " in fails()


def test_one_that_the_user_has_named_is_not_left_out_quietly(
    without: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv(VARIABLE, "/nowhere/libdnnl.so.3")
    with caplog.at_level(logging.INFO, "actorflow.ops.registry"):
        assert run() == 1.0
    (record,) = caplog.records
    assert (
        "kernel library 'onednn' of devices of kind 'cpu' is left out: ACTORFLOW_ONEDNN: /nowhere/"
        in record.getMessage()
    )


def test_another_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    own = ctypes.CDLL(None)
    monkeypatch.setattr(module.ctypes, "CDLL", lambda path: own)
    assert fails().endswith(f"{FILE}: it is not oneDNN")


def test_without_compiled_code_it_is_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "IS_COMPILED", False)
    monkeypatch.setattr(module, "candidates", None)
    assert "it is called by compiled code" in fails()


class Loaded:
    """As much of a loaded library as is looked at."""

    def __init__(self, major: int, minor: int, cpu_runtime: int) -> None:
        found = SimpleNamespace(major=major, minor=minor, cpu_runtime=cpu_runtime)
        self.dnnl_version = mock.Mock(return_value=[found])


@pytest.mark.parametrize(
    ("version", "runtime", "problem"),
    [
        ((3, 2), 2, None),
        ((3, 9), 1, None),
        ((3, 1), 2, "it is version 3.1, expected 3.2 or later, below 4"),
        ((2, 7), 2, "it is version 2.7, expected 3.2 or later, below 4"),
        ((4, 0), 2, "it is version 4.0, expected 3.2 or later, below 4"),
        ((3, 5), 4, "its threads are of runtime 4, expected OpenMP's (2) or none (1)"),
    ],
)
def test_versions(version: tuple[int, int], runtime: int, problem: str | None) -> None:
    assert module._problem(Loaded(*version, runtime)) == problem  # type: ignore[arg-type]


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> None:
    """There is no library, and nobody has looked for it."""
    monkeypatch.setattr(module, "FILE", "libnobodyhas.so.3")
    monkeypatch.setattr(module, "libdnnl", module.libdnnl.__wrapped__)
    monkeypatch.delitem(sys.modules, "actorflow.ops.onednn.kernels", raising=False)
    monkeypatch.setattr(registry, "_loaded", registry._loaded - {("cpu", "onednn")})
    monkeypatch.setattr(registry, "_failed", {})
    monkeypatch.setattr(CPU, "libraries", ("onednn", "numpy"))


def run(**options: Any) -> float:
    graph = af.Graph("g", **options)
    x = graph.blob("x", 2)
    y = af.ops.relu(x)
    return float(graph.run_sync({x: [1, -1]})[y].sum())


def test_without_it_other_libraries_compute_and_nothing_is_said(
    without: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "actorflow.ops.registry"):
        assert run() == 1.0
    assert not caplog.records


def test_without_it_whoever_asks_for_it_is_told(without: None) -> None:
    with pytest.raises(MissingExtraError, match=r"needs oneDNN 3\.2: pip install 'actorflow\[onednn\]'"):
        run(libraries=["onednn"])


@pytest.mark.usefixtures("loaded")
def test_one_that_is_there() -> None:
    found = module.libdnnl()
    assert found.version >= "3.2"
    assert found.get_threads is None or found.get_threads() >= 1


@pytest.mark.usefixtures("loaded")
def test_it_is_called_with_as_many_arrays_as_it_wants() -> None:
    found = module.libdnnl()
    order = found.memory([2, 3], [3, 1])
    copy = found.primitive(found.reorder(order, order), [module.SRC, module.DST])
    with pytest.raises(TypeError, match="expected 2 arrays, got 1"):
        copy(1)
    with pytest.raises(TypeError, match="ndarray"):
        copy(1, 2)


def test_threads_of_openmp_soon_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is told so in the environment, as it is loaded; what a user has set there holds."""
    for name in ("GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_WAIT_POLICY"):
        monkeypatch.delenv(name, raising=False)
    seen: list[tuple[str | None, str | None]] = []

    def load(path: str) -> None:
        seen.append((os.environ.get("GOMP_SPINCOUNT"), os.environ.get("KMP_BLOCKTIME")))
        raise OSError("not found")

    monkeypatch.setattr(module.ctypes, "CDLL", load)
    monkeypatch.setattr(module, "candidates", lambda: ["here"])
    for name, value in (("", ""), ("KMP_BLOCKTIME", "7"), ("OMP_WAIT_POLICY", "active")):
        if name:
            monkeypatch.setenv(name, value)
        before = dict(os.environ)
        with pytest.raises(MissingExtraError):
            module.libdnnl.__wrapped__()
        assert dict(os.environ) == before
    assert seen == [("10000", "0"), ("10000", "7"), (None, "7")]
