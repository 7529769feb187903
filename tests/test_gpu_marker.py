"""Tests marked `gpu` on a machine without a GPU."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

from actorflow.devices import check_place
from actorflow.errors import DeviceUnavailableError
from actorflow.place import Place
from tests.support.effort import FULL

ROOT = Path(__file__).parents[1]
PYTEST = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]


@pytest.fixture
def reason() -> str:
    """Why there is no GPU."""
    try:
        check_place(Place.parse("cuda:0"))
    except DeviceUnavailableError as error:
        return str(error)
    pytest.skip("there is a GPU")


#: What tests need that a machine with a GPU is asked to have, see docs/how-to/gpu.md.
NEEDED = {"hypothesis"}
#: A plugin of pytest that makes modules look as if they were not installed.
WITHOUT = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name.partition(".")[0] in {names!r} else find(name, *more)
"""


def optional_modules() -> set[str]:
    """Top-level modules of what the extras bring, but for pytest and its plugins."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    names = {re.split(r"[^\w.-]", line)[0].lower().replace("_", "-") for lines in extras.values() for line in lines}
    wanted = {name for name in names if not name.startswith("pytest")} - NEEDED - {"actorflow"}
    found = metadata.packages_distributions()
    return {
        module for module, owners in found.items() if wanted & {owner.lower().replace("_", "-") for owner in owners}
    }


def given() -> list[str]:
    """Tests that `make test-gpu` collects."""
    (found,) = re.findall(r"^GPU_TESTS \?= (.*)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    return found.split()


def check_given(files: set[str], *, is_whole: bool) -> None:
    """Check that `make test-gpu` collects all of these files, and, if there are no others, no folder in vain."""
    assert all(any(file == path or file.startswith(f"{path}/") for path in given()) for file in files), files
    assert not is_whole or all(any(file == path or file.startswith(f"{path}/") for file in files) for path in given())


def test_make_collects_all_of_them(request: pytest.FixtureRequest) -> None:
    marked = [item for item in request.session.items if item.get_closest_marker("gpu") is not None]
    check_given({item.path.relative_to(ROOT).as_posix() for item in marked}, is_whole=False)


@pytest.mark.slow
def test_make_collects_them_with_no_package_that_they_do_not_need(tmp_path: Path) -> None:
    """On a machine with a GPU, and without a package registry, most extras are missing."""
    modules = optional_modules()
    assert {"ml_dtypes", "array_api_strict", "safetensors"} <= modules
    (tmp_path / "without.py").write_text(WITHOUT.format(names=modules), encoding="utf-8")
    command = [*PYTEST, "-p", "without", "--collect-only", "-q"]
    environment = {name: value for name, value in os.environ.items() if name != "ACTORFLOW_REQUIRE_GPU"}
    paths = os.pathsep.join(filter(None, [str(tmp_path), environment.get("PYTHONPATH")]))
    ended = subprocess.run(
        [*command, "-m", "gpu", *(["tests"] if FULL else given())],
        cwd=ROOT,
        env=environment | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    check_given({line.partition("::")[0] for line in ended.stdout.splitlines() if "::" in line}, is_whole=True)


def test_make_says_what_an_interpreter_lacks_and_how_to_bring_it() -> None:
    command = ["make", "test-gpu", "INSTALLED=1", f"PYTHON={sys.executable} -I -S"]  # without what is installed
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert ended.returncode != 0
    assert "has no aiohttp cupy hypothesis numpy pytest pytest_asyncio pytest_timeout" in ended.stderr
    assert "docs/how-to/gpu.md" in ended.stderr
    assert "Traceback" not in ended.stderr


#: Those of each file that are tried without a GPU, as expressions for pytest: each kind, but few kernels to compile.
EMULATED = {
    "tests/gpu/test_arrays.py": "(one_kernel and shapes0) or (one_op and shape3 and axis6) or training or budget",
    "tests/gpu/test_capture.py": "",
    "tests/gpu/test_conformance.py": "True",
    "tests/gpu/test_cuda_device.py": "not overlaps and not illegal and not replayed",
    "tests/gpu/test_first_launches.py": "product or view or training or cancelled or captured or named or not_compile",
    "tests/gpu/test_kernels.py": "bit_by_bit or (float32 and Softmax)",
    "tests/ops/test_places.py": "training",
}


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed: CUDA C cannot be compiled for the host")
def test_they_pass_on_an_emulated_gpu() -> None:
    """A short form of them, so that they do not rot where there is no GPU."""
    chosen = " or ".join(f"({Path(file).stem}{each and f' and ({each})'})" for file, each in EMULATED.items())
    ended = subprocess.run(
        [*PYTEST, "-p", "tests.support.emulated_gpu", "-m", "gpu", "-k", f"({chosen}) and not uvloop", *EMULATED],
        cwd=ROOT,
        env=os.environ | {"ACTORFLOW_REQUIRE_GPU": "1"},  # else they would be skipped if the plugin did nothing
        capture_output=True,
        text=True,
        timeout=290,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout
    assert int(re.findall(r"(\d+) passed", ended.stdout)[-1]) > 25, ended.stdout


def collect_marked(**environment: str) -> subprocess.CompletedProcess[str]:
    command = [*PYTEST, "-m", "gpu", "tests/examples/test_scripts.py"]
    inherited = {name: value for name, value in os.environ.items() if name != "ACTORFLOW_REQUIRE_GPU"}
    return subprocess.run(
        command, cwd=ROOT, env=inherited | environment, capture_output=True, text=True, timeout=240, check=False
    )


@pytest.mark.slow
def test_they_skip_and_say_why(reason: str) -> None:
    ended = collect_marked()
    assert ended.returncode == 0, ended.stdout
    assert reason in ended.stdout
    assert " passed" not in ended.stdout


@pytest.mark.slow
def test_they_are_an_error_where_a_gpu_is_required(reason: str) -> None:
    ended = collect_marked(ACTORFLOW_REQUIRE_GPU="1")
    assert ended.returncode == pytest.ExitCode.USAGE_ERROR
    assert f"ACTORFLOW_REQUIRE_GPU is set, but no CUDA device can be used: {reason}" in ended.stderr
