"""What becomes of tests marked `gpu` on a machine without a GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from actorflow.devices import check_place
from actorflow.errors import DeviceUnavailableError
from actorflow.place import Place

ROOT = Path(__file__).parents[1]


@pytest.fixture
def reason() -> str:
    """Why there is no GPU."""
    try:
        check_place(Place.parse("cuda:0"))
    except DeviceUnavailableError as error:
        return str(error)
    pytest.skip("there is a GPU")


def collect_marked(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-m", "gpu", "tests/examples/test_scripts.py"]
    inherited = {name: value for name, value in os.environ.items() if name != "ACTORFLOW_REQUIRE_GPU"}
    return subprocess.run(
        command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True, timeout=240, check=False
    )


def test_they_skip_and_say_why(reason: str) -> None:
    ended = collect_marked()
    assert ended.returncode == 0, ended.stdout
    assert reason in ended.stdout
    assert " passed" not in ended.stdout


def test_they_are_an_error_where_a_gpu_is_required(reason: str) -> None:
    ended = collect_marked(ACTORFLOW_REQUIRE_GPU="1")
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ACTORFLOW_REQUIRE_GPU is set, but no CUDA device can be used: {reason}" in ended.stderr
