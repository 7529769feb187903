"""The command line, in this process and as users start it."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import pytest

import actorflow
from actorflow.cli import main
from actorflow.cli.demo import time_table
from actorflow.data import FASHION_MNIST_FILES
from actorflow.errors import MissingExtraError
from actorflow.ops.onednn import library
from tests.support.effort import FULL

posix_only = pytest.mark.skipif(sys.platform == "win32", reason="signals and terminals of POSIX")


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"actorflow {actorflow.__version__}\n"


def test_without_a_command_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out.startswith("usage: actorflow")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dance"], "invalid choice: 'dance'"),
        (["demo", "--epochs", "0"], "expected a whole number of at least 1, got '0'"),
        (["demo", "--batch", "many"], "expected a whole number of at least 1, got 'many'"),
        (["demo", "--seed", "-1"], "expected a whole number of at least 0, got '-1'"),
        (["demo", "--port", "65536"], "expected a port from 0 to 65535, got 65536"),
        (["demo", "--data", "fashion-mnist"], "--data fashion-mnist needs --data-dir DIR"),
        (["demo", "--data-dir", "."], "--data digits reads no files: leave out --data-dir DIR"),
    ],
)
def test_wrong_arguments(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    assert message in capsys.readouterr().err


def test_expected_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--data", "fashion-mnist", "--data-dir", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"actorflow: error: {tmp_path}: expected the four IDX files of Fashion-MNIST")
    assert error.count("\n") == 1


def test_interrupt_in_process(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(**_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("actorflow.cli.doctor.doctor", interrupted)
    before = signal.getsignal(signal.SIGINT)
    assert main(["doctor"]) == 130
    assert capsys.readouterr().err == "interrupted\n"
    assert signal.getsignal(signal.SIGINT) is before


# -- doctor -----------------------------------------------------------------------------------------------------------


def checks(capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, dict[str, Any]]:
    assert main(["doctor", "--json"]) == code
    return {check["name"]: check for check in json.loads(capsys.readouterr().out)["checks"]}


def test_doctor_finds_the_core(capsys: pytest.CaptureFixture[str]) -> None:
    found = checks(capsys)
    assert {name for name, check in found.items() if check["needed"]} >= {"python", "numpy", "aiohttp", "rich"}
    assert all(check["status"] == "ok" for check in found.values() if check["needed"])
    assert found["numpy"]["detail"] == metadata.version("numpy")
    assert found["device cpu"]["status"] == "ok"


def test_doctor_prints_every_check_and_its_advice(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "mpi4py")
    found = checks(capsys)
    assert main(["doctor"]) == 0
    out = capsys.readouterr().out
    for name, check in found.items():
        assert re.search(rf"^{re.escape(name)} +{check['status']} +{re.escape(check['detail'])}$", out, re.MULTILINE)
        assert check["advice"] in out
    assert "  mpi: pip install 'actorflow[mpi]'" in out


def without(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Make a distribution look as if it were not installed."""
    version = metadata.version

    def found(distribution: str) -> str:
        if distribution == name:
            raise metadata.PackageNotFoundError(distribution)
        return version(distribution)

    monkeypatch.setattr(metadata, "version", found)


def test_doctor_fails_without_a_core_library(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    without(monkeypatch, "aiohttp")
    aiohttp = checks(capsys, code=1)["aiohttp"]
    assert aiohttp["status"] == "missing"
    assert aiohttp["advice"] == "pip install 'actorflow'"


def test_doctor_fails_with_a_broken_core_library(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "aiohttp", None)
    aiohttp = checks(capsys, code=1)["aiohttp"]
    assert aiohttp["status"] == "broken"
    assert "aiohttp" in aiohttp["detail"]


def test_doctor_is_content_without_extras(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    without(monkeypatch, "scikit-learn")
    sklearn = checks(capsys)["scikit-learn"]
    assert sklearn["status"] == "missing"
    assert sklearn["advice"] == "pip install 'actorflow[demo]', for the digits of the demo"


@pytest.mark.parametrize(
    ("package", "extra"),
    [
        ("safetensors", "checkpoint"),
        ("pillow", "images"),
        ("lmdb", "lmdb"),
        ("prometheus-client", "metrics"),
        ("opentelemetry-api", "otel"),
        ("torch", "torch"),
        ("onnx", "onnx"),
        ("onnxruntime", "onnxruntime"),
    ],
)
def test_doctor_names_the_extra(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, package: str, extra: str
) -> None:
    without(monkeypatch, package)
    found = checks(capsys)[package]
    assert found["status"] == "missing"
    assert found["advice"].startswith(f"pip install 'actorflow[{extra}]', for ")


def test_doctor_says_where_onednn_is(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    found = SimpleNamespace(version="3.4.1", path="/somewhere/libdnnl.so.3")
    monkeypatch.setattr(library, "libdnnl", lambda: found)
    assert checks(capsys)["onednn"] == {
        "name": "onednn",
        "status": "ok",
        "detail": "3.4.1, /somewhere/libdnnl.so.3",
        "needed": False,
        "advice": "",
    }


@pytest.mark.parametrize(("error", "status"), [(MissingExtraError("none"), "missing"), (OSError("torn"), "broken")])
def test_doctor_says_why_onednn_will_not_do(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, error: Exception, status: str
) -> None:
    monkeypatch.setattr(library, "libdnnl", mock.Mock(side_effect=error))
    found = checks(capsys)["onednn"]
    assert (found["status"], found["detail"]) == (status, f"{type(error).__name__}: {error}")
    assert found["advice"].startswith("pip install ")


class FakeCupy:
    """As much of cupy as the doctor calls, with a device 0 that works and a device 1 that does not."""

    __version__ = "14.0"

    def __init__(self, devices: int) -> None:
        self._current = 0
        runtime = SimpleNamespace(
            getDeviceCount=lambda: devices,
            runtimeGetVersion=lambda: 12_090,
            CUDARuntimeError=RuntimeError,
            getDeviceProperties=lambda index: {"name": b"Fake GPU", "totalGlobalMem": 8 << 30},
        )
        self.cuda = SimpleNamespace(runtime=runtime, Device=self.device)

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        self._current = index
        yield

    def arange(self, count: int) -> Any:
        if self._current == 1:
            raise RuntimeError("an illegal memory access was encountered\nand more")
        return SimpleNamespace(sum=lambda: sum(range(count)))


def test_doctor_tries_every_cuda_device(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", FakeCupy(devices=2))
    found = checks(capsys)
    assert found["device cuda:0"]["detail"] == "Fake GPU, 8.0 GiB, CuPy 14.0"
    assert found["device cuda:1"]["status"] == "broken"
    assert found["device cuda:1"]["detail"] == "CuPy 14.0: RuntimeError: an illegal memory access was encountered"


def test_doctor_with_a_driver_but_no_cupy(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    for driver, extra in ((12, "cuda12"), (13, "cuda13")):
        monkeypatch.setattr("actorflow.devices.cuda.availability.driver_version", lambda driver=driver: (driver, 0))
        assert checks(capsys)["device cuda"]["advice"] == f"pip install 'actorflow[{extra}]'"


def test_doctor_names_the_mpi_library(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: "4.1.0" if name == "mpi4py" else version(name))
    package = SimpleNamespace(rc=SimpleNamespace(initialize=True))
    monkeypatch.setitem(sys.modules, "mpi4py", package)
    library = SimpleNamespace(Get_library_version=lambda: "MPICH Version:\t5.0\n")
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", library)
    assert checks(capsys)["mpi"]["detail"] == "mpi4py 4.1.0, MPICH Version: 5.0"
    assert package.rc.initialize is False
    monkeypatch.setitem(sys.modules, "mpi4py.MPI", None)
    assert checks(capsys)["mpi"]["status"] == "broken"


# -- demo -------------------------------------------------------------------------------------------------------------

ONE_EPOCH = ["demo", "--epochs", "1", "--exit"]


def accuracy(out: str) -> float:
    found = re.search(r"^test accuracy (\d\.\d+) \(", out, re.MULTILINE)
    assert found is not None, out
    return float(found[1])


@pytest.mark.slow
def test_demo_reaches_its_accuracy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--exit", "--port", "0"]) == 0
    out = capsys.readouterr().out
    assert accuracy(out) >= 0.96
    assert re.search(r"^live page: http://127\.0\.0\.1:\d+/$", out, re.MULTILINE)
    assert len(re.findall(r"^epoch +\d+/20  loss \d\.\d+  accuracy [01]\.\d+$", out, re.MULTILINE)) == 20
    assert "where the time went" in out
    assert "ConvWeight" in out


async def test_where_the_time_went_says_what_failed_where_anything_has() -> None:
    graph, left = actorflow.Graph("flaky"), 0

    def flaky(x: object) -> object:
        nonlocal left
        left -= 1
        if left >= 0:
            raise ValueError("not yet")
        return x

    y = actorflow.ops.relu(graph.blob("x", ()))
    graph.function("flaky", flaky, actorflow.TensorSpec.of(()), retries=3, backoff=0)(y)
    async with graph:
        for failing, header, rows in (
            (0, ["ops", "calls", "total"], {"Function": ["1", "1"], "Relu": ["1", "1"]}),
            (2, ["ops", "calls", "failed", "total"], {"Function": ["1", "2", "2"], "Relu": ["1", "2", ""]}),
        ):
            left = failing
            await graph.run({"x": 1.0})
            table = time_table(graph, 1.0)
            columns = {str(column.header): [*column.cells] for column in table.columns}
            assert list(columns)[1 : len(header) + 1] == header
            kinds = columns["operation"]
            assert {kind: [columns[name][row] for name in header[:-1]] for row, kind in enumerate(kinds)} == rows


@pytest.mark.slow
def test_demo_depends_on_the_seed_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def epochs(seed: str) -> list[str]:
        assert main([*ONE_EPOCH, "--no-web", "--seed", seed]) == 0
        return re.findall(r"^epoch.*|^test accuracy [\d.]+", capsys.readouterr().out, re.MULTILINE)

    first = epochs("1")
    assert len(first) == 2
    assert epochs("1") == first
    assert epochs("2") != first


@pytest.mark.slow
def test_demo_without_web_loads_no_aiohttp() -> None:
    code = (
        "import sys; from actorflow.cli import main; "
        "main(['demo', '--epochs', '1', '--no-web']); print('aiohttp' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=90, check=True)
    assert done.stdout.splitlines()[-1] == "False"
    assert "live page" not in done.stdout


def test_demo_with_batches_larger_than_the_test_images(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*ONE_EPOCH, "--no-web", "--batch", "700"]) == 0
    assert re.search(r"^test accuracy .* of 359 images", capsys.readouterr().out, re.MULTILINE)
    assert main([*ONE_EPOCH, "--no-web", "--batch", "1439"]) == 1
    assert "expected at most 1,438 images per batch, all that there are, got 1,439" in capsys.readouterr().err


def test_demo_on_fashion_mnist(tmp_path: Path, idx: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rng = np.random.default_rng(0)
    for name in FASHION_MNIST_FILES:
        array = rng.integers(0, 256, (40, 28, 28)) if "images" in name else np.arange(40) % 10
        (tmp_path / name).write_bytes(idx(array.astype(np.uint8)))
    assert main(["demo", "--data", "fashion-mnist", "--data-dir", str(tmp_path), "--no-web", "--batch", "16"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("fashion-mnist: 40 train and 40 test images of 28x28; ")
    assert "of 40 images" in out


def test_demo_reports_a_taken_port(capsys: pytest.CaptureFixture[str]) -> None:

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main([*ONE_EPOCH, "--port", str(port)]) == 1
    assert "actorflow: error: " in (error := capsys.readouterr().err)
    assert str(port) in error


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------


def start(*arguments: str, options: tuple[str, ...] = (), **kwargs: Any) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *options, "-m", "actorflow", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **kwargs,
    )


def interrupt_after(process: subprocess.Popen[str], stream: Any, text: str) -> tuple[str, str]:
    """Send SIGINT when ``text`` has been printed; returns what came afterwards on stdout and stderr."""
    with process:
        for line in stream:
            if text in line:
                break
        else:
            pytest.fail(f"ended without printing {text!r}: {process.stderr.read() if process.stderr else ''}")
        process.send_signal(signal.SIGINT)
        return process.communicate(timeout=240)


@posix_only
@pytest.mark.parametrize("moment", ["argparse", "numpy", "rich", "sklearn", "uvloop"] if FULL else ["numpy", "sklearn"])
def test_interrupt_while_importing(moment: str) -> None:
    process = start("demo", "--no-exit", "--port", "0", options=("-X", "importtime"))
    _, err = interrupt_after(process, process.stderr, f" {moment}")
    assert process.returncode == 130
    assert "interrupted" in err.splitlines()
    assert "Traceback" not in err
    assert "Warning" not in err


@pytest.mark.slow
@posix_only
@pytest.mark.parametrize(
    "moment", ["digits: ", "live page: ", "epoch  1/20", "epoch  2/20"] if FULL else ["live page: ", "epoch  1/20"]
)
def test_interrupt_while_training(moment: str) -> None:
    process = start("demo", "--port", "0")
    out, err = interrupt_after(process, process.stdout, moment)
    assert process.returncode == 130
    assert err == "interrupted\n"
    assert "test accuracy" not in out


@pytest.mark.slow
@posix_only
def test_interrupt_while_serving() -> None:
    process = start("demo", "--epochs", "1", "--port", "0", "--no-exit")
    _, err = interrupt_after(process, process.stdout, "serving the page until Ctrl-C")
    assert process.returncode == 130
    assert err == "interrupted\n"


@pytest.mark.slow
@posix_only
def test_at_a_terminal_it_draws_a_bar_serves_and_leaves_the_terminal_as_it_was() -> None:
    import pty

    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "actorflow", "demo", "--epochs", "1", "--port", "0"],
        stdin=theirs,
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "100"},
    )
    os.close(theirs)
    with process, os.fdopen(ours, "rb", buffering=0) as terminal:
        shown = b""
        while b"serving the page until Ctrl-C" not in shown:
            shown += terminal.read(4096)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert err == b"interrupted\n"
    assert b"epoch 1/1" in shown
    assert shown.count(b"\x1b[?25l") == shown.count(b"\x1b[?25h") > 0  # the cursor is hidden and shown again
