"""``actorflow watch``: the graph of another process in the terminal, from a real server, at a real terminal."""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import actorflow as af
from actorflow.cli import main
from actorflow.cli.watch import Rates, render
from actorflow.web.client import Picture
from tests.web.serving import by_aiohttp
from tests.web.test_client import Peer, streaming

COMMAND = [sys.executable, "-W", "error", "-m", "actorflow", "watch"]
ROWS, COLUMNS = 16, 100
NEVER_S = 1e6


def environment(**more: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if name != "ACTORFLOW_TOKEN"}
    return {**known, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **more}


async def printed(*arguments: str, **more: str) -> tuple[int | None, str, str]:
    """Exit code, output and errors of the command where nothing is a terminal."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *COMMAND, *arguments, stdin=asyncio.subprocess.DEVNULL, stdout=pipe, stderr=pipe, env=environment(**more)
    )
    out, err = await process.communicate()
    return process.returncode, out.decode(), err.decode()


class TestPlain:
    async def test_one_picture_and_the_end(self, gated, monkeypatch) -> None:
        async with by_aiohttp(gated.graph, token="open-sesame") as client:
            stream, joined = client.page.stream, asyncio.Event()
            attend = stream.attend

            async def join(socket: Any) -> None:
                joined.set()
                await attend(socket)

            monkeypatch.setattr(stream, "attend", join)
            stream.vitals_s = NEVER_S  # so it waits for them, until there is something to see
            arguments = [f"127.0.0.1:{client.port}", "--top", "2"]
            printing = asyncio.create_task(printed(*arguments, ACTORFLOW_TOKEN="open-sesame"))
            await joined.wait()
            run = gated.start()
            await gated.entered.wait()
            stream.vitals_s, stream._vitals_due_s = 0.05, 0.0
            code, out, err = await printing
            gated.release.set()
            await run
        assert (code, err) == (0, "")
        assert "\x1b" not in out
        lines = out.splitlines()
        assert lines[0].startswith(f"gated  3 ops at http://127.0.0.1:{client.port}/ live")
        assert "1 started, 0 finished, 0 failed, 0 cancelled, 1 in flight" in lines[1]
        assert lines[2].split(maxsplit=1) == ["ops", "1 waiting, 1 running, 1 done"]
        assert lines[3].startswith("memory    cpu: ")
        header = next(index for index, line in enumerate(lines) if line.startswith("op "))
        assert lines[header].split() == ["op", "state", "calls", "total", "mean", "p50", "p99", "share"]
        assert len(lines) == header + 3
        assert lines[header + 1].split()[:3] == ["first", "done", "1"]

    async def test_of_a_graph_of_one_op_that_is_paused(self, capsys) -> None:
        graph = af.Graph("single")
        af.ops.relu(graph.blob("x", ()))
        async with graph, by_aiohttp(graph) as client:
            client.page.stream.vitals_s = 0.0  # told in the first message of all
            for reason, shown in (("to have a look", "no frame starts (to have a look)"), ("", "no frame starts")):
                graph.pause(reason)
                assert await asyncio.to_thread(main, ["watch", f"127.0.0.1:{client.port}"]) == 0
                lines = capsys.readouterr().out.splitlines()
                assert lines[0].startswith("single  1 op at ")
                (paused,) = [line for line in lines if line.startswith("paused")]
                assert paused.split(maxsplit=1) == ["paused", shown]

    async def test_ways_to_give_the_token(self, training, capsys, monkeypatch) -> None:
        async with by_aiohttp(training.graph, token="open-sesame") as client:
            client.page.stream.vitals_s = 0.0
            host = f"localhost:{client.port}"
            monkeypatch.setenv("ACTORFLOW_TOKEN", "wrong")
            for arguments in ([host, "--token", "open-sesame"], [f"http://{host}/?token=open-sesame"]):
                assert await asyncio.to_thread(main, ["watch", *arguments]) == 0
                out, err = capsys.readouterr()
                assert out.startswith("training  18 ops at ")
                assert "open-sesame" not in out
                assert not err
            monkeypatch.delenv("ACTORFLOW_TOKEN")
            assert await asyncio.to_thread(main, ["watch", host]) == 1
        way = "--token, or ACTORFLOW_TOKEN in the environment"
        assert capsys.readouterr() == ("", f"actorflow: error: http://{host}/ asks for a token: {way}\n")

    def test_wrong_addresses(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["watch", "localhost"]) == 2
        assert "expected HOST:PORT or the address of a live page, got 'localhost'" in capsys.readouterr().err


class Terminal:
    """The screen of the command, as far as it redraws all of it each time."""

    def __init__(self, ours: int, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.shown = b""
        self._ours = ours
        self._changed = asyncio.Event()
        asyncio.get_running_loop().add_reader(ours, self._read)

    def _read(self) -> None:
        try:
            new = os.read(self._ours, 1 << 16)
        except OSError:  # Linux's word for the end of a terminal
            new = b""
        if not new:
            asyncio.get_running_loop().remove_reader(self._ours)
        self.shown += new
        self._changed.set()

    @property
    def screen(self) -> str:
        """Text on the screen; the newest picture may not be whole yet."""
        return self.shown.rpartition(b"\x1b[H")[2].decode(errors="replace")

    async def until(self, condition: Callable[[str], Any]) -> str:
        while not condition(self.screen):
            self._changed.clear()
            await self._changed.wait()
        return self.screen


@contextlib.asynccontextmanager
async def at_a_terminal(*arguments: str) -> AsyncIterator[Terminal]:
    import fcntl
    import pty
    import struct
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))

    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env=environment(),
    )
    os.close(theirs)
    terminal = Terminal(ours, process)
    try:
        yield terminal
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
        asyncio.get_running_loop().remove_reader(ours)
        os.close(ours)


@pytest.mark.skipif(sys.platform == "win32", reason="terminals of POSIX")
class TestAtATerminal:
    @pytest.mark.slow
    async def test_it_follows_comes_back_and_leaves_the_terminal_as_it_was(self, training) -> None:
        async with contextlib.AsyncExitStack() as stack:
            async with af.web.serve(training.graph, port=0) as view:
                terminal = await stack.enter_async_context(at_a_terminal(f"127.0.0.1:{view.port}"))
                await terminal.until(lambda screen: "0 started" in screen)
                for _ in range(3):
                    await training.run()
                screen = await terminal.until(lambda screen: "3 started, 3 finished" in screen and "share" in screen)
                assert "loss/out" in screen
            await terminal.until(lambda screen: "has closed the connection" in screen or "nothing answers" in screen)
            async with af.web.serve(training.graph, port=view.port):
                await training.run()
                await terminal.until(lambda screen: "4 started" in screen and " live" in screen)
            terminal.process.send_signal(signal.SIGINT)
            assert await terminal.process.wait() == 130
            await terminal.until(lambda screen: "interrupted" in screen)
            shown = terminal.shown
        assert b"Traceback" not in shown
        for begin, end in ((b"\x1b[?1049h", b"\x1b[?1049l"), (b"\x1b[?25l", b"\x1b[?25h")):  # other screen, no cursor
            assert 0 < shown.count(begin) == shown.count(end)
            assert shown.rindex(end) > shown.rindex(begin)


def text_of(
    picture: Picture, *, problem: str | None = None, rows: int = 50, height: int | None = None, width: int = COLUMNS
) -> list[str]:
    console = Console(width=width, no_color=True)
    with console.capture() as capture:
        console.print(render(picture, None, "http://localhost:1/", problem, rows, width, height))
    return capture.get().splitlines()


class TestScreen:
    async def test_failures_curves_and_what_frames_wait_for(self, monkeypatch) -> None:
        monkeypatch.setattr("actorflow.web.vitals._OLD_S", 0.0)
        graph, peer = af.Graph("screen"), Peer()
        held, release = asyncio.Event(), asyncio.Event()

        async def check(x: Any) -> Any:
            if x < 0:
                raise ValueError("\x1b[31mnegative\u202e\nmore")
            if x > 100:
                held.set()
                await release.wait()
            return x

        x = graph.blob("x", ())
        graph.function("[red]check", check, af.TensorSpec.of(()))(x)
        async with graph, streaming(graph, peer) as stream:
            for value in (1.5, -1.0, 2.5):
                with contextlib.suppress(af.OpError):
                    await graph.run({x: np.float32(value)})
            run = asyncio.create_task(graph.run({x: np.float32(101)}))
            await held.wait()
            stream.tick()
            await peer.until(lambda picture: picture.vitals and picture.frames["started"] == 4)
            lines = text_of(peer.picture)
            release.set()
            await run
        assert any(line.startswith("curve     [red]check/out  2.5  (frame 2)") for line in lines)
        (failed,) = [line for line in lines if line.startswith("failed")]
        assert "frame 1: " in failed
        (waits,) = [line for line in lines if line.startswith("waits")]
        assert "frame 3 for 0 s: running: '[red]check'" in waits
        assert all(character.isprintable() for line in lines for character in line)

    async def test_failed_calls_have_a_column_where_there_are_any(self, flaky) -> None:
        peer = Peer()
        async with streaming(flaky.graph, peer) as stream:
            for failing, column in ((0, []), (2, ["failed"])):
                await flaky.run(failing)
                stream.tick()
                runs = flaky.graph.engine.frames.finished
                await peer.until(lambda picture, runs=runs: picture.frames["finished"] == runs)
                lines = [line.split() for line in text_of(peer.picture)]
                header = lines.index(["op", "state", "calls", *column, "total", "mean", "p50", "p99", "share"])
                rows = {line[0]: line for line in lines[header + 1 :]}
                assert rows["flaky"][2 : 3 + len(column)] == [str(runs), "2"][: 1 + len(column)]
                assert len(rows["flaky"]) == len(rows["steady"]) + len(column), "what is 0 is not said"

    async def test_it_fits(self, training) -> None:
        peer = Peer()
        async with streaming(training.graph, peer):
            picture = peer.picture
        assert len(text_of(picture)) > len(training.graph.ops)
        for height in range(2, 24):
            assert len(text_of(picture, height=height)) < height or height == 2
        assert any("gone" in line for line in text_of(picture, problem="gone", height=ROWS))

    async def test_names_can_be_read_in_a_narrow_terminal(self) -> None:
        graph, peer = af.Graph("narrow"), Peer()
        x = graph.blob("x", ())
        scope = graph.subgraph("a_rather_long_scope").subgraph("with_another_one_inside")
        for name in ("convolution", "normalise"):
            scope.function(name, lambda x: x, af.TensorSpec.of(()))(x)
        async with graph, streaming(graph, peer) as stream:
            await graph.run({x: np.float32(1)})
            stream.tick()
            await peer.until(lambda picture: picture.frames["finished"] == 1)
            picture = peer.picture
        for width in (60, 80, 100, 140):
            lines = text_of(picture, width=width)
            header = next(at for at, line in enumerate(lines) if line.startswith("op "))
            columns, rows = lines[header].split(), lines[header + 1 :]
            assert columns[:2] == ["op", "state"]
            assert "total" in columns
            for row in rows:
                name = row.split()[0]
                assert len(name) >= 26
                assert name.startswith("a_rather_long")
                assert name.endswith(("/convolution", "/normalise"))
        assert columns[2:] == ["calls", "total", "mean", "p50", "p99", "share"]

    def test_rates(self) -> None:
        rates, picture = Rates(), Picture()

        def at(time_s: float, finished: int) -> tuple[float, float] | None:
            picture.time_s, picture.frames = time_s, {"finished": finished}
            return rates.update(picture)

        assert at(10.0, 0) is None
        assert at(11.0, 5) == (5.0, 0.0)
        assert at(14.0, 20) == (pytest.approx(20 / 4), 0.0)
        assert at(15.0, 26) == (pytest.approx(21 / 4), 0.0)  # since 11.0: what is older no longer counts
        assert at(16.0, 1) is None  # the program was started again
