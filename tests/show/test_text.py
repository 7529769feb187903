"""Nothing is hidden in what people are shown: characters that turn text around, move a cursor or look like none."""

import html
import sys
import unicodedata
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

import actorflow as af
from actorflow.cli import main
from actorflow.cli.watch import render
from actorflow.errors import visible
from actorflow.nn import Progress, Step
from actorflow.web.client import Picture
from actorflow.web.http import Response
from actorflow.web.wire import OpStates

SCALAR = af.TensorSpec.of(())


@cache
def hidden() -> list[str]:
    """All characters that are controls, format, or separate otherwise than by a space; and some that mean nothing."""
    kinds = {"Cc", "Cf", "Zl", "Zp", "Zs"}
    found = [one for one in map(chr, range(sys.maxunicode + 1)) if unicodedata.category(one) in kinds and one != " "]
    return [*found, "\ud800", "\udfff", "\ue000", "\U0010ffff"]


@cache
def name_of_all() -> str:
    """What all of them are together; one line of a table may have it."""
    return f"a{''.join(hidden())}z"


def test_what_is_printable_stays() -> None:
    for text in ("", "loss/out", "שלום עולם مرحبا (1) <b>", "🚀🧮👩🏽🔬 ﷽ Z̴̨a̷l̸g̴o̵", r"C:\users \u202e"):
        assert visible(text) is text


def test_what_is_not_is_written_as_python_does() -> None:
    assert {"\u202e", "\u2066", "\u200d", "\x1b", "\x00", "\x85", "\u2028", "\ufeff"} <= set(hidden())
    for one in hidden():
        assert visible(f"a{one}b") == f"a{ascii(one)[1:-1]}b"
    assert visible("a\nb") == r"a\nb"
    assert visible("a\nb\r", lines=True) == "a\nb\\r"


@given(st.text())
def test_whatever_the_text_is(text: str) -> None:
    assert visible(text).isprintable()
    assert visible(text, lines=True).replace("\n", "").isprintable()
    assert visible(visible(text)) == visible(text)


def clear(text: str, *, of: str = "", lines: bool = False) -> None:
    """Fail unless a text shows a name, and has nothing hidden."""
    found = {one for one in text if not one.isprintable() and one != "\n"}
    assert not found, f"{found} is hidden in it"
    assert visible(of or name_of_all(), lines=lines) in text


def suspicious(name: str = "") -> af.Graph:
    """A graph that says what somebody else wrote, wherever no rule for names keeps that out."""
    name = name or name_of_all()

    def call(x: Any) -> Any:
        raise ValueError(name)

    call.__qualname__ = call.__name__ = name
    graph = af.Graph("graph")
    graph.function("op", call, SCALAR, lane=name)(graph.blob("x", ()))
    return graph


FACES: dict[str, Callable[[af.Graph], str]] = {
    "summary": lambda graph: graph.summary(),
    "summary of a plan": lambda graph: graph.compile().summary(),
    "dot": lambda graph: graph.to_dot().replace("\\\\", "\\"),
    "dot of a plan": lambda graph: graph.compile().to_dot().replace("\\\\", "\\"),
    "notebook": lambda graph: html.unescape(graph._repr_html_()),
}


@pytest.mark.together("face", FACES)
def test_graphs_and_plans(face: str) -> None:
    clear(FACES[face](suspicious()))


@pytest.mark.together(
    "make",
    [af.Graph, lambda name: af.Graph("g").blob(name, ()), lambda name: af.Graph("g").subgraph(name)],
    ids=["graph", "node", "scope"],
)
@pytest.mark.together("one", ["\u202e", "\x1b", "\u200b", "\n"])
def test_names_have_none(make: Callable[[str], Any], one: str) -> None:
    with pytest.raises(af.GraphError) as caught:
        make(f"a{one}z")
    clear(str(caught.value), of=f"a{one}z")


async def test_stages() -> None:
    async with af.pipeline.source([1, 2], name=name_of_all()) as loader:
        assert [item async for item in loader] == [1, 2]
        clear(str(loader.stats()))


def test_progress(capsys: pytest.CaptureFixture[str]) -> None:
    step = Step(number=1, epoch=0, loss=1.0, metrics={name_of_all(): 0.5})
    with Progress(epochs=1) as progress:
        progress.advance(step)
    clear(capsys.readouterr().out)


async def test_a_saved_trace(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, name = tmp_path / "trace.json", "\x1b[31m\u202ered\x00"
    async with suspicious(name) as graph:
        with pytest.raises(af.OpError):
            await graph.run({"x": np.float32(1)})
        await graph.save_trace(path)
    assert main(["trace", str(path)]) == 0
    clear(capsys.readouterr().out, of=name)


def test_a_graph_that_is_watched() -> None:
    name = "\x1b[31m\u202ered\x00"
    vitals = {
        "memory": [{"place": name, "used": 0, "held": 0, "peak": 0, "budget": None}],
        "pipelines": [{"delivered": 1, "bottleneck": name}],
        "waiting": [{"frame": 1, "seconds": 2.0, "waits": f"{name}\n{name}"}],
    }
    frames = dict.fromkeys(("started", "finished", "failed", "cancelled"), 1)
    picture = Picture(name, [name], OpStates.zeros(np.zeros(1, np.uint32)), np.zeros(1, np.uint32), frames)
    picture.curves[name] = 1, 2.0
    picture.failures.append({"frame": 1, "message": name})
    picture.paused, picture.vitals = name, vitals
    console = Console(width=1000)
    with console.capture() as shown:
        console.print(render(picture, None, f"http://{name}/", name, 10, 1000, None))
    clear(shown.get(), of=name)
    assert shown.get().count(visible(name)) == 11


def test_errors_of_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = "".join(one for one in name_of_all() if one not in "\x00\n" and not "\ud800" <= one <= "\udfff")
    assert main(["trace", str(tmp_path / name)]) == 1
    clear(capsys.readouterr().err, of=name)


def test_answers_in_words() -> None:
    clear(Response.of_text(409, name_of_all()).chunks[0].decode(), lines=True)
