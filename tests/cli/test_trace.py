"""``actorflow trace``: what it prints of real runs, by structure and not by seconds."""

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.cli import main

SQUARE = af.TensorSpec.of((4, 4))
#: A time as it is printed, or one that is so short that it is left out.
TIME = r"(?:[\d.,]+ (?:s|ms|us|ns)|0|)"


@pytest.fixture
async def saved(tmp_path: Path) -> Path:
    """The trace of ten frames one by one and ten in flight, of ops on the loop, two lanes and as tasks."""
    graph = af.Graph("<served>")
    x = graph.blob("x", (4, 4))
    parse = graph.function("parse", lambda x: x, SQUARE)(x)
    heavy = graph.function("heavy", lambda x: x, SQUARE, lane="side", timeout=60)(parse)

    async def wait(x: Any) -> Any:
        await asyncio.sleep(0)
        return x

    fetched = graph.function("[bold]fetch", wait, SQUARE, concurrency=3)(parse)
    graph.function("sum", lambda *xs: sum(xs), SQUARE)(heavy, fetched)
    feed = {x: np.ones((4, 4), "float32")}
    async with graph:
        for _ in range(10):
            await graph.run(feed)
        async for _ in graph.stream([feed] * 10, in_flight=3):
            pass
        await graph.save_trace(tmp_path / "trace.json.gz")
    return tmp_path / "trace.json.gz"


def tables(text: str) -> dict[str, list[list[str]]]:
    """The rows of each table, by its title; header first."""
    found: dict[str, list[list[str]]] = {}
    title = ""
    for line in text.splitlines():
        if line.startswith("┏"):
            found[title] = []
        elif line.startswith(("┃", "│")):
            found[title].append([cell.strip() for cell in re.split("[┃│]", line)[1:-1]])
        elif not line.startswith(("┡", "└")):
            title = line.strip()
    return found


async def test_what_is_printed(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(saved)]) == 0
    text = capsys.readouterr().out
    first, second, third, *_ = text.splitlines()
    assert re.fullmatch(rf"{re.escape(str(saved))}: graph '<served>', 80 calls in {TIME}", first)
    assert re.fullmatch(rf"something ran for [\d.]+% of that time, nothing for {TIME}", second)
    assert re.fullmatch(
        rf"20 frames: latency p50 {TIME}, p99 {TIME}, the slowest is frame \d+; "
        r"[\d.]+ in flight in the mean, [1-3] at most",
        third,
    )
    lanes, ops, path, gaps = tables(text).items()
    assert lanes[0] == "lanes"
    assert lanes[1][0] == ["lane", "calls", "busy", "share", "idle", "longest idle"]
    calls = {row[0]: int(row[1]) for row in lanes[1][1:]}
    assert calls["async functions"] == calls["cpu side"] == 20
    assert sum(calls.values()) == 80
    assert ops[0] == "where the time went"
    assert ops[1][0] == ["op", "calls", "total", "mean", "p50", "p99", "share"]
    assert {row[0]: row[1] for row in ops[1][1:]} == dict.fromkeys(["parse", "heavy", "[bold]fetch", "sum"], "20")
    assert all(re.fullmatch(TIME, cell) for row in ops[1][1:] for cell in row[2:6])
    assert re.fullmatch(rf"critical path of frame \d+: {TIME} in 3 calls, {TIME} between them", path[0])
    assert path[1][0] == ["op", "lane", "waited", "of that, lane busy", "took"]
    assert [row[0] for row in path[1][1:]] in (["parse", "heavy", "sum"], ["parse", "[bold]fetch", "sum"])
    assert gaps[0] == "longest stretches in which nothing ran"
    assert len(gaps[1]) == 6
    assert all(re.fullmatch(r"\S+ \(frame \d+\)", cell) for row in gaps[1][1:] for cell in row[:2])


async def test_few_rows_and_a_frame_of_choice(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(saved), "--top", "1", "--frame", "7"]) == 0
    text = capsys.readouterr().out
    found = tables(text)
    assert len(found["lanes"]) == len(found["where the time went"]) == 2
    assert re.search(r"^and \d more lanes?$", text, re.MULTILINE)
    assert "and 3 more ops" in text
    (path,) = [rows for title, rows in found.items() if title.startswith("critical path of frame 7: ")]
    left = [int(row[0].split()[1]) for row in path if row[0].startswith("...")]
    assert sum(left) == 2
    assert len(path) == 2 + len(left)


async def test_failed_calls_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    graph, calls = af.Graph("failing"), 0

    def fail(x: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == 3:
            return x
        raise ValueError("no good")

    good = graph.function("good", lambda x: x, SQUARE)(graph.blob("x", (4, 4)))
    graph.function("bad", fail, SQUARE, retries=2, backoff=0)(good)
    async with graph:
        for _ in range(2):
            with contextlib.suppress(af.OpError):
                await graph.run({"x": np.ones((4, 4), "float32")})
        await graph.save_trace(tmp_path / "trace.json")
    assert main(["trace", str(tmp_path / "trace.json"), "--frame", "0"]) == 0
    text = capsys.readouterr().out
    assert re.match(rf".*: graph 'failing', 8 calls \(5 failed\) in {TIME}\n", text)
    found = tables(text)
    assert found["where the time went"][0][:3] == ["op", "calls", "failed"]
    assert {row[0]: row[1:3] for row in found["where the time went"][1:]} == {"bad": ["6", "5"], "good": ["2", ""]}
    (path,) = [rows for title, rows in found.items() if title.startswith("critical path")]
    assert [row[0] for row in path[1:]] == ["good", "bad (failed)", "bad (failed)", "bad"]
    assert main(["trace", str(tmp_path / "trace.json"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["failed"] == 5
    assert {op["name"]: op["failed"] for op in document["ops"]} == {"bad": 5, "good": 0}


async def test_json(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(saved), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["graph"], found["calls"], found["lost"], found["frames"]["total"]) == ("<served>", 80, 0, 20)
    assert sum(lane["calls"] for lane in found["lanes"]) == sum(op["calls"] for op in found["ops"]) == 80
    assert [step["name"] for step in found["path"]][::2] == ["parse", "sum"]
    assert found["path_frame"] == found["frames"]["median"]
    assert {"start_ns", "length_ns", "before", "after"} == found["gaps"][0].keys()


def test_of_another_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "other.json"
    path.write_text('[{"ph": "X", "name": "only", "pid": 1, "tid": 1, "ts": 5, "dur": 2000000}', encoding="utf-8")
    assert main(["trace", str(path)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0] == f"{path}: a trace, 1 call in 2 s"
    assert "frames" not in text
    assert tables(text) == {
        "lanes": [
            ["lane", "calls", "busy", "share", "idle", "longest idle"],
            ["thread 1", "1", "2 s", "100.0%", "0.0%", "0"],
        ],
        "where the time went": [
            ["op", "calls", "total", "mean", "p50", "p99", "share"],
            ["only", "1", "2 s", "2 s", "2 s", "2 s", "100.0%"],
        ],
    }


def test_names_are_printed_whole_and_obeyed_by_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    long, hostile = "scope/" * 20, "\x1b[31mred\n\u202e[bold]"
    event = {"ph": "X", "pid": 1, "tid": 1, "dur": 5}
    path = tmp_path / "trace.json"
    path.write_text(json.dumps([{**event, "name": long, "ts": 0}, {**event, "name": hostile, "ts": 9}]), "utf-8")
    assert main(["trace", str(path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert all(character.isprintable() for line in lines for character in line)
    names = {row[0] for row in tables("\n".join(lines))["where the time went"][1:]}
    assert names == {long, r"\x1b[31mred\n\u202e[bold]"}


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "trace.json: No such file"),
        ("", "is empty"),
        ('{"traceEvents": [', "is cut off"),
        ("[]", "none of its 0 events"),
    ],
)
def test_what_cannot_be_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str | None, what: str
) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content, encoding="utf-8")
    assert main(["trace", str(path)]) == 1
    output = capsys.readouterr()
    assert not output.out
    assert output.err.startswith("actorflow: error: ")
    assert what in output.err
    assert str(path) in output.err


async def test_a_frame_that_is_not_there(saved: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trace", str(saved), "--frame", "20"]) == 1
    assert "no call of frame 20; it has frames 0 to 19" in capsys.readouterr().err
