"""``actorflow show``: the table of a model, and its page, without a run."""

import json
import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

import actorflow as af
from actorflow.cli import main
from actorflow.cli.terminal import shortened
from tests.support.effort import slow

#: A module with a model whose function must never be called.
MODULE = """
import actorflow as af

graph = af.Graph("[bold]shown")
images = graph.blob("images", ("batch", 8, 8, 1))
y = af.nn.Conv(4, 3, activation="relu", name="conv")(images, training=False)
y = af.nn.InnerProduct(3, name="fc")(y)


def never(value):
    raise AssertionError("run")


def model():
    return af.Model(graph, {"pictures": images}, {"scores": y})


def with_a_function():
    z = graph.function("own", never, outputs=[y.spec])(y)
    return af.Model(graph, {"pictures": images}, {"own": z})
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"shown_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    return name


def tables(text: str) -> list[list[list[str]]]:
    """The rows of each table, header first."""
    found: list[list[list[str]]] = []
    for line in text.splitlines():
        if line.startswith("┏"):
            found.append([])
        elif line.startswith(("┃", "│")):
            found[-1].append([cell.strip() for cell in re.split("[┃│]", line)[1:-1]])
    return found


def test_tables(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{module}:model", "--axes", "batch=2"]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0] == "inputs: pictures float32[2, 8, 8, 1]"
    assert text.splitlines()[1] == "outputs: scores float32[2, 3]"
    ops, kinds = tables(text)
    assert ops == [
        ["op", "operation", "results", "parameters", "multiply-adds", "FLOPs", "bytes"],
        ["conv/conv", "Conv", "float32[2, 6, 6, 4]", "36", "2.59k", "5.18k", "1.81k"],
        ["conv/add", "Bias", "float32[2, 6, 6, 4]", "4", "0", "288", "2.32k"],
        ["conv/relu", "Relu", "float32[2, 6, 6, 4]", "0", "0", "288", "2.3k"],
        ["fc/reshape", "Reshape", "float32[2, 144]", "0", "0", "0", "0"],
        ["fc/inner", "Inner", "float32[2, 3]", "432", "864", "1.73k", "2.9k"],
        ["fc/add", "Bias", "float32[2, 3]", "3", "0", "6", "60"],
    ]
    assert [row[:3] for row in kinds[1:]] == [
        ["Conv", "1", "36"],
        ["Inner", "1", "432"],
        ["Bias", "2", "7"],
        ["Relu", "1", "0"],
        ["Reshape", "1", "0"],
    ]
    assert text.splitlines()[-1] == "6 ops: 475 parameters, 3.46k multiply-adds, 7.49k FLOPs, 9.4k bytes"


def test_open_axes_are_formulas(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{module}:model"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("inputs: pictures float32[batch, 8, 8, 1]\n")
    ops, _ = tables(text)
    assert ops[1][2:] == ["float32[batch, 6, 6, 4]", "36", "1.3k*batch", "2.59k*batch", "832*batch + 144"]
    assert "475 parameters, 1.73k*batch multiply-adds" in text


def test_some_axes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    name = f"some_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(
        "import actorflow as af\ngraph = af.Graph('g')\nx = graph.blob('x', ('batch', 'height', 'width', 2))\n"
        "af.ops.max_pool(x, 3, 2)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["show", f"{name}:graph", "--axes", "batch=3,height=9"]) == 0
    ops, _ = tables(capsys.readouterr().out)
    assert ops[1][2] == "float32[3, 4, (width)//2, 2]"
    assert ops[1][5] == "216*((width)//2)"
    assert main(["show", f"{name}:graph", "--axes", "batch=3,height=9", "--axes", "width=2"]) == 1
    assert "kernel (3, 3) is larger than the image (9, 2)" in capsys.readouterr().err


def test_json(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{module}:model", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["inputs"] == {"pictures": {"shape": ["batch", 8, 8, 1], "dtype": "float32"}}
    assert found["ops"][0]["multiply-adds"] == "1296*batch"
    assert found["operations"]["Inner"]["ops"] == 1
    assert found["total"]["parameters"] == 475


def test_costs_that_nobody_knows(module: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", f"{module}:with_a_function"]) == 0
    text = capsys.readouterr().out
    assert tables(text)[0][-1][:6] == ["own", "Function", "float32[batch, 3]", "0", "?", "?"]
    assert text.splitlines()[-1].endswith("bytes (without 1 op whose cost is not known)")


def test_a_file_of_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    graph = af.Graph("g")
    af.nn.LeNet(10)(graph.blob("x", ("batch", 28, 28, 1)), training=False)
    af.onnx.save(graph, tmp_path / "lenet.onnx")
    assert main(["show", str(tmp_path / "lenet.onnx"), "--axes", "batch=1"]) == 0
    assert re.search(r"431k parameters, 2.29M multiply-adds, .*bytes$", capsys.readouterr().out.strip())


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["MODULE:model", "--axes", "bach=1"], 1, "has no open axis 'bach'; did you mean 'batch'?"),
        (["MODULE:model", "--axes", "batch"], 2, "expected NAME=N, NAME=NAME or INPUT:POSITION=NAME, got 'batch'"),
        (["MODULE:model", "--axes", "=1"], 2, "expected NAME=N, NAME=NAME or INPUT:POSITION=NAME, got '=1'"),
        (["MODULE:model", "--axes", "batch=rows"], 1, "expected the length of axis 'batch', got 'rows'"),
        (["MODULE:model", "--function", "a:b"], 1, "functions are for files .af alone"),
        (["MODULE:model", "--backend", "onnxruntime"], 1, "a backend is for files .onnx alone"),
        (["MODULE:model", "--backend", "none"], 2, "invalid choice: 'none'"),
        (["MODULE:model", "--axes", "batch=-1"], 2, "expected a whole number of at least 0, got '-1'"),
        (["MODULE:never_there"], 1, "never_there"),
        (["missing.onnx"], 1, "missing.onnx"),
    ],
)
def test_errors(module: str, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", *(each.replace("MODULE", module) for each in arguments)]) == code
    assert message in capsys.readouterr().err


def test_axes_that_an_onnx_file_fixes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx", reason="onnx is not installed")
    graph = af.Graph("g")
    af.nn.LeNet(10)(graph.blob("x", (1, 28, 28, 1)), training=False)
    path = str(tmp_path / "lenet.onnx")
    af.onnx.save(graph, path)
    assert main(["show", path, "--axes", "x:0=batch"]) == 0
    assert capsys.readouterr().out.startswith("inputs: x float32[batch, 28, 28, 1]\n")
    assert main(["show", path, "--axes", "x:0=batch", "--axes", "x:1=28,x:3=1"]) == 0
    assert capsys.readouterr().out.startswith("inputs: x float32[batch, 28, 28, 1]\n")
    assert main(["show", path, "--axes", "x:1=height"]) == 1
    assert "these nodes need its length" in capsys.readouterr().err


def test_functions_that_a_file_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("safetensors", reason="safetensors is not installed")
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text("def double(x):\n    return 2 * x\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    graph = af.Graph("g")
    x = graph.blob("x", (2,))
    graph.function("double", __import__(name).double, x.spec)(x)
    graph.save_sync(tmp_path / "own.af")
    monkeypatch.setattr(sys, "path", [each for each in sys.path if each != str(tmp_path)])
    monkeypatch.delitem(sys.modules, name)  # another process, whose current directory alone has it
    assert main(["show", "own.af"]) == 1
    assert f"functions=['{name}:double'] (--function {name}:double" in capsys.readouterr().err
    assert main(["show", "own.af", "--function", f"{name}:double", "--function", "math:sqrt"]) == 0
    assert tables(capsys.readouterr().out)[0][1][:2] == ["double", "Function"]


@pytest.mark.parametrize("width", [70, 80, 100, 240])
def test_narrow_terminals_shorten_names_in_the_middle(
    width: int, module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from actorflow.cli import show

    monkeypatch.setattr(show, "output", lambda: Console(width=width, highlight=False))
    assert main(["show", f"{module}:model", "--axes", "batch=2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    rows = [line for line in lines if "144" in line and ("fc" in line) and "[" not in line.split()[0]]
    assert len([line for line in lines if re.match("(│ )?conv", line)]) == 3  # one line for each op
    assert rows
    if width == 80:
        assert any("…" in line and line.startswith("conv/conv") for line in lines)
    if width == 240:
        assert "…" not in "".join(lines)


@given(st.text(max_size=30), st.integers(0, 40))
def test_shortened_texts_fit(text: str, width: int) -> None:
    found = shortened(text, width)
    assert cell_len(found) <= width
    if cell_len(text) <= width:
        assert found == text
    elif width > 3:
        start, _, end = found.rpartition("…") if "…" not in text else (found[0], "", found[-1])
        assert text.startswith(start.rstrip()) or not start
        assert text.endswith(end)


def test_both_ends_of_a_name_are_kept() -> None:
    assert shortened("stem/block/conv.bias", 11) == "stem/….bias"
    assert shortened("漢字漢字", 5) == "漢…字"


@pytest.mark.skipif(sys.platform == "win32", reason="pipes of POSIX")
@pytest.mark.parametrize("arguments", ["show MODULE:model", *slow(["show MODULE:model --json", "doctor --json"])])
def test_whoever_reads_may_stop(module: str, arguments: str, tmp_path: Path) -> None:
    """As `actorflow show MODEL | head -1`: no traceback, and no error."""
    reader, writer = os.pipe()
    os.close(reader)
    root = str(Path(af.__file__).parents[1])
    try:
        done = subprocess.run(
            [sys.executable, "-m", "actorflow", *arguments.replace("MODULE", module).split()],
            cwd=tmp_path, env={"PYTHONPATH": root, "PATH": ""}, stdout=writer, stderr=subprocess.PIPE, check=False,
        )  # fmt: skip
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
def test_the_page(module: str, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "actorflow", "show", f"{module}:model", "--page", "--port", "0"]
    root = str(Path(af.__file__).parents[1])
    process: Any = subprocess.Popen(
        command,
        cwd=tmp_path,
        env={"PYTHONPATH": root, "PATH": "", "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        line = next(line for line in process.stdout if line.startswith("page: "))
        address = line.split()[1].rstrip(",")
        with urllib.request.urlopen(address, timeout=60) as answer:
            assert answer.status == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
