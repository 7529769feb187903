"""The example that reads text: what it draws itself, and its own parts."""

import asyncio
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.effort import slow
from tests.support.warm import run_program

pytest.importorskip("onnx")
pytest.importorskip("PIL")

SCRIPT = Path(__file__).parents[2] / "examples" / "ocr.py"

_spec = importlib.util.spec_from_file_location("ocr", SCRIPT)
assert _spec is not None
assert _spec.loader is not None
ocr = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(ocr)

LINES = ["Dataflow graphs", "that read 1234 lines", "on one event loop"]


@pytest.fixture
def models() -> Path:
    if importlib.util.find_spec("rapidocr_onnxruntime") is None:
        pytest.skip("rapidocr_onnxruntime is not installed: pip install 'actorflow[models]'")
    folder = ocr.models_folder()
    assert isinstance(folder, Path)
    return folder


@pytest.mark.parametrize("backend", slow(["actorflow", "onnxruntime"]))
async def test_text_is_read(models: Path, backend: str) -> None:
    if backend == "onnxruntime":
        pytest.importorskip("onnxruntime")
    picture = ocr.drawn(LINES)
    async with ocr.reader(models, backend) as reader:
        upright, turned, nothing = await asyncio.gather(
            reader.read(picture), reader.read(picture.rotate(180)), reader.read(ocr.drawn([]))
        )
    assert [line.text for line in upright] == LINES
    assert [line.text for line in turned] == LINES[::-1]
    assert nothing == []
    for number, line in enumerate(upright):
        assert line.score > 0.9
        assert abs((line.box.top + line.box.bottom) / 2 - (48 + 64 * number)) < 16
        assert 0 <= line.box.left <= 40 < line.box.right <= 640


masks = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(0, 2**81 - 1)).map(
    lambda drawn: np.array([(drawn[2] >> i) & 1 for i in range(drawn[0] * drawn[1])], bool).reshape(drawn[:2])
)


@given(masks)
def test_regions_are_what_touches(mask: Any) -> None:
    left, expected = {*zip(*map(np.ndarray.tolist, np.nonzero(mask)), strict=True)}, []
    while left:
        region, waiting = set(), [left.pop()]
        while waiting:
            y, x = waiting.pop()
            region.add((y, x))
            near = {(y + i, x + j) for i in (-1, 0, 1) for j in (-1, 0, 1)} & left
            left -= near
            waiting += near
        rows, columns = zip(*region, strict=True)
        expected.append(ocr.Box(min(rows), min(columns), max(rows) + 1, max(columns) + 1))
    assert sorted(ocr.regions(mask)) == sorted(expected)


def test_blanks_and_repetitions_are_no_characters() -> None:
    steps = np.eye(4)[[0, 1, 1, 0, 1, 2, 2, 3, 0]] * 0.5
    assert ocr.text_of(steps, ["a", "b", "c"]) == ("aabc", 0.5)
    assert ocr.text_of(np.eye(4)[[0, 0]], ["a", "b", "c"]) == ("", 0.0)


def test_sizes() -> None:
    pixels = np.random.default_rng(0).random((5, 7, 3), np.float32)
    assert np.array_equal(ocr.resized(pixels, 5, 7), pixels)
    larger = ocr.resized(pixels, 10, 14)
    np.testing.assert_allclose(
        larger[1:-1:2, 1:-1:2][:4, :6],
        (9 * pixels[:-1, :-1] + 3 * pixels[1:, :-1] + 3 * pixels[:-1, 1:] + pixels[1:, 1:]) / 16,
        rtol=1e-6,
    )
    assert ocr.rounded_up(64, 32) == 64
    assert ocr.rounded_up(65, 32) == 96


@pytest.mark.slow
def test_it_is_a_program(models: Path, tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    ocr.drawn(LINES[:1]).save(path)
    done = run_program(SCRIPT, path, path, "--models", models)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line.partition("  (")[0] for line in done.stdout.splitlines()] == [str(path), f"  {LINES[0]}"] * 2
