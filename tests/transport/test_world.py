"""Ranks that a program finds."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

import actorflow as af
from actorflow.transport import LocalTransport
from tests.transport.jobs import ROOT, need_mpi

module = import_module("actorflow.transport.world")


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_world", None)
    monkeypatch.setattr(module.atexit, "register", lambda _: None)
    monkeypatch.setattr(module, "launched_size", lambda: 1)


def fake_mpi(**properties: Any) -> SimpleNamespace:
    calls = {"Is_finalized": lambda: False, "Is_initialized": lambda: True, "Get_library_version": lambda: "Some MPI 1"}
    return SimpleNamespace(COMM_WORLD=SimpleNamespace(size=1), **{**calls, **properties})


@pytest.mark.usefixtures("fresh")
class TestWorld:
    def test_one_rank_without_a_launcher(self) -> None:
        world = af.world()
        assert (world.rank, world.size) == (0, 1)
        assert isinstance(world, LocalTransport)
        assert af.world() is world

    def test_the_liveness(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ACTORFLOW_LIVENESS", "120")
        assert af.world().liveness_s == 120
        assert af.world(liveness_s=5).liveness_s == 5
        assert af.world().liveness_s == 5
        with pytest.raises(af.TransportError, match="liveness_s must be positive, got 0"):
            af.world(liveness_s=0)

    def test_the_mpiexec_of_another_mpi(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(module, "launched_size", lambda: 4)
        monkeypatch.setattr(module, "require", lambda *_, **__: fake_mpi())
        with pytest.raises(af.TransportError, match=r"4 processes were started, but each is alone .*Some MPI 1"):
            af.world()

    def test_after_mpi_was_finalized(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace())
        monkeypatch.setattr(module, "require", lambda *_, **__: fake_mpi(Is_finalized=lambda: True))
        with pytest.raises(af.TransportError, match="MPI has been finalized"):
            af.world()

    def test_an_mpi_that_does_not_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def broken(*_: Any, **__: Any) -> None:
            raise RuntimeError("cannot load MPI library")

        monkeypatch.setattr(module, "launched_size", lambda: 2)
        monkeypatch.setattr(module, "require", broken)
        with pytest.raises(af.TransportError, match="mpi4py cannot start MPI: cannot load MPI library"):
            af.world()

    def test_mpi_without_a_launcher_is_one_rank(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "mpi4py.MPI", SimpleNamespace())
        monkeypatch.setattr(module, "require", lambda *_, **__: fake_mpi())
        assert isinstance(af.world(), LocalTransport)


@pytest.mark.together(
    ("environment", "size"),
    [
        ({}, 1),
        ({"PMI_SIZE": "4"}, 4),
        ({"OMPI_COMM_WORLD_SIZE": "3"}, 3),
        ({"SLURM_STEP_NUM_TASKS": "8", "PMI_SIZE": ""}, 8),
        ({"PMI_SIZE": "many"}, 1),
        ({"SLURM_NTASKS": "8"}, 1),
    ],
)
def test_the_size_that_a_launcher_tells(environment: dict[str, str], size: int) -> None:
    assert module.launched_size(environment) == size


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={"PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_mpi_is_not_loaded_unasked() -> None:
    need_mpi()
    code = "import sys, actorflow as af; af.world(); sys.exit('mpi4py' in sys.modules)"
    assert run(code).returncode == 0


def test_without_mpi4py_the_extra_is_named() -> None:
    code = "import sys; sys.modules['mpi4py'] = None; import actorflow as af; af.world()"
    done = run(code, PMI_SIZE="3")
    assert done.returncode != 0
    assert "a job of 3 processes needs 'mpi4py': pip install 'actorflow[mpi]'" in done.stderr
