"""The stream: what clients get, in which order, and what it costs when nobody looks. Ticks are made by hand."""

import asyncio
import contextlib
from collections import deque

import numpy as np
import pytest

import actorflow as af
from actorflow.trace.counters import NodeState
from actorflow.web import live
from actorflow.web import vitals as vitals_module
from actorflow.web.live import Client, LiveStream
from actorflow.web.telemetry import Tail

NEVER_S = 1e6


@contextlib.asynccontextmanager
async def streaming(graph: af.Graph, **options: float):
    stream = LiveStream(
        graph, **dict.fromkeys(("interval_s", "linger_s", "heartbeat_s", "vitals_s"), NEVER_S) | options
    )
    try:
        yield stream
    finally:
        await stream.aclose()


@contextlib.asynccontextmanager
async def joined(stream: LiveStream, socket):
    """A client with its writer, told everything so far."""
    client = stream.join(socket)
    writer = asyncio.create_task(stream.write(client))
    try:
        await socket.until(is_told)
        yield client
    finally:
        stream.leave(client)
        writer.cancel()
        await asyncio.wait([writer])


def is_told(viewer) -> bool:
    return set(viewer.seen) == {"states", "status"}


def agrees(viewer, graph: af.Graph) -> bool:
    """Return whether a viewer's picture is the engine's."""
    engine = graph.engine
    frames = {name: getattr(engine.frames, name) for name in ("started", "finished", "failed", "cancelled")}
    calls = {op.name: engine.profile[op.id].calls if op.id in engine.profile else 0 for op in graph.ops}
    return (
        viewer.calls == calls
        and viewer.frames == frames
        and viewer.curves == {name: [value for _, value in points] for name, points in engine.scalars.series.items()}
        and [failure["message"] for failure in viewer.failures] == [failure.message for failure in engine.errors]
    )


async def told(stream: LiveStream, socket, graph: af.Graph) -> None:
    """Tick, and wait until a viewer has been told everything."""
    stream.tick()
    await socket.until(lambda viewer: agrees(viewer, graph))


async def test_what_ran_before_anybody_looked_is_done(training, fake_socket) -> None:
    await training.run()
    async with streaming(training.graph) as stream, joined(stream, fake_socket):
        states = fake_socket.viewer.states
        assert {states[op.name] for op in training.graph.ops} == {NodeState.DONE}


async def test_states_are_seen_while_an_op_runs(gated, fake_socket) -> None:
    async with streaming(gated.graph) as stream, joined(stream, fake_socket):
        assert set(fake_socket.viewer.states.values()) == {NodeState.IDLE}
        run = gated.start()
        await gated.entered.wait()
        stream.tick()
        await fake_socket.until(lambda viewer: viewer.states["hold"] == NodeState.RUNNING)
        assert fake_socket.viewer.states["first"] == NodeState.DONE
        assert fake_socket.viewer.states["last"] == NodeState.WAITING
        gated.release.set()
        await run
        stream.tick()
        await fake_socket.until(lambda viewer: set(viewer.states.values()) == {NodeState.DONE})


async def test_a_tick_without_news_sends_nothing(training, fake_socket) -> None:
    async with streaming(training.graph) as stream, joined(stream, fake_socket):
        await training.run()
        await told(stream, fake_socket, training.graph)
        count, seq = len(fake_socket.raw), stream.seq
        for _ in range(5):
            stream.tick()
        assert stream.seq == seq
        # Whatever the ticks had queued would be sent before this.
        await training.run()
        await told(stream, fake_socket, training.graph)
        assert len(fake_socket.raw) == count + 2


async def test_clients_share_one_encoding(training, make_fake_socket) -> None:
    sockets = [make_fake_socket() for _ in range(3)]
    async with streaming(training.graph) as stream, contextlib.AsyncExitStack() as stack:
        for socket in sockets:
            await stack.enter_async_context(joined(stream, socket))
        await training.run()
        stream.tick()
        for socket in sockets:
            await socket.until(lambda viewer: agrees(viewer, training.graph))
        for message in zip(*(socket.raw[-2:] for socket in sockets), strict=True):
            assert len({id(copy) for copy in message}) == 1


async def test_a_slow_client_skips_ticks_and_holds_nobody_up(training, make_fake_socket) -> None:
    slow, quick = make_fake_socket(), make_fake_socket()
    async with streaming(training.graph) as stream, joined(stream, slow), joined(stream, quick):
        before = len(slow.raw)
        slow.gate.clear()
        for _ in range(6):
            await training.run()
            await told(stream, quick, training.graph)
            await slow.blocked.wait()
        assert len(slow.raw) == before
        slow.gate.set()
        await slow.until(lambda viewer: agrees(viewer, training.graph))
        # What was being sent when it stalled, and one delta for all that it missed.
        assert [message.type for message in slow.viewer.messages[before:]] == ["states", "status"] * 2
        assert slow.viewer.states == quick.viewer.states
        assert len(slow.viewer.curves["loss/out"]) == 6


async def test_deleted_nodes_go(training, fake_socket) -> None:
    scope = training.graph.subgraph("side")
    scope.function("op", lambda x: x, af.TensorSpec.of(()))(training.loss)
    async with streaming(training.graph) as stream, joined(stream, fake_socket):
        await training.run()
        stream.tick()
        await fake_socket.until(lambda viewer: viewer.calls["side/op"] == 1)
        training.graph.delete_subgraph("side")
        await training.run()
        stream.tick()
        await fake_socket.until(lambda viewer: "side/op" not in viewer.names and is_told(viewer))
        await training.run()
        stream.tick()
        await fake_socket.until(lambda viewer: viewer.calls["loss"] == 3)


async def test_a_closed_graph_that_runs_again_is_followed(training, fake_socket) -> None:
    async with streaming(training.graph) as stream, joined(stream, fake_socket):
        await training.run()
        stream.tick()
        await training.graph.aclose()
        await training.run()
        await told(stream, fake_socket, training.graph)


async def test_failures_and_curves_arrive_once(fake_socket) -> None:
    graph = af.Graph("failing")
    x = graph.blob("x", ())

    def check(x):
        if x < 0:
            raise ValueError("negative <input>")
        return x

    graph.function("check", check, af.TensorSpec.of(()))(x)
    async with graph, streaming(graph) as stream, joined(stream, fake_socket):
        for value in (1.0, -1.0, float("nan"), -2.0):
            with contextlib.suppress(af.OpError):
                await graph.run({x: np.float32(value)})
            stream.tick()
        await fake_socket.until(lambda viewer: len(viewer.failures) == 2)
        assert all("negative <input>" in failure["message"] for failure in fake_socket.viewer.failures)
        assert fake_socket.viewer.failures[0]["op_id"] == graph["check"].id
        assert fake_socket.viewer.curves == {"check/out": [1.0, None]}
        assert fake_socket.viewer.states["check"] == NodeState.FAILED


async def test_a_point_between_a_tick_and_its_message_arrives_once(training, make_fake_socket) -> None:
    sockets = [make_fake_socket() for _ in range(2)]
    async with streaming(training.graph) as stream, joined(stream, sockets[0]), joined(stream, sockets[1]):
        await training.run()
        points = training.graph.engine.scalars.series[training.loss.name]
        for frame in range(1, 6):
            points.append((2 * frame, float(frame)))
            stream.tick()
            points.append((2 * frame + 1, -float(frame)))  # before any client's writer has its turn
            for socket in sockets:
                await socket.until(lambda viewer: agrees_but_for(viewer, points, 1))
        stream.tick()
        for socket in sockets:
            await socket.until(lambda viewer: agrees(viewer, training.graph))


def agrees_but_for(viewer, points, newest: int):
    return viewer.curves and next(iter(viewer.curves.values())) == [value for _, value in points][:-newest]


async def test_what_cannot_be_told_now_is_told_later(training, fake_socket, monkeypatch, caplog) -> None:
    def fail(_):
        raise RuntimeError("not now")

    async with streaming(training.graph, interval_s=0.001) as stream, joined(stream, fake_socket):
        failed = asyncio.Event()
        monkeypatch.setattr(live, "control_state", lambda graph: failed.set() or fail(graph))
        for _ in range(3):
            failed.clear()
            await failed.wait()
        monkeypatch.undo()
        await training.run()
        await fake_socket.until(lambda viewer: agrees(viewer, training.graph))
    assert [record.message for record in caplog.records] == [
        "the live page of graph 'training' cannot be brought up to date"
    ]


async def test_ticks_that_take_long_come_less_often(training) -> None:
    async with streaming(training.graph, interval_s=0.06) as stream:
        pauses = [stream.pause_s(took_s) for took_s in (0.0, 0.006, 0.02, 5.0)]
    assert pauses == pytest.approx([0.06, 0.06, 0.2, 1.0])
    async with streaming(training.graph) as stream:
        assert stream.pause_s(5.0) == NEVER_S


async def test_whole_numbers_may_be_numpys(gated, fake_socket) -> None:
    feeds = [{gated.x: np.zeros((4, 4), "float32")}] * 3
    async with streaming(gated.graph, vitals_s=0.0) as stream, joined(stream, fake_socket):
        reading = asyncio.create_task(anext(running := gated.graph.stream(feeds, in_flight=np.int64(2))))
        await gated.entered.wait()
        stream.tick()
        viewer = await fake_socket.until(lambda viewer: {m.type for m in viewer.messages} >= {"control", "vitals"})
        (control,) = [m for m in viewer.messages if m.type == "control"]
        assert control.streams[0]["in_flight"] == 2
        gated.release.set()
        await reading
        await running.aclose()


async def test_an_unwatched_graph_is_not_monitored(training, fake_socket) -> None:
    async with streaming(training.graph, linger_s=0.0) as stream:
        await training.run()
        assert training.graph.engine.monitor is None
        async with joined(stream, fake_socket):
            assert training.graph.engine.monitor is not None
        unwatched = asyncio.Event()
        asyncio.get_running_loop().call_later(0.0, unwatched.set)
        await unwatched.wait()
        assert training.graph.engine.monitor is None
        assert not stream.is_watching


async def test_a_reload_finds_the_states_of_before(gated, make_fake_socket) -> None:
    async with streaming(gated.graph) as stream:
        async with joined(stream, make_fake_socket()):
            run = gated.start()
            await gated.entered.wait()
        again = make_fake_socket()
        async with joined(stream, again):
            assert again.viewer.states["hold"] == NodeState.RUNNING
            gated.release.set()
            await run


async def test_a_silent_client_gets_heartbeats(training, fake_socket) -> None:
    async with streaming(training.graph, heartbeat_s=0.0) as stream:
        client = stream.join(fake_socket)
        writer = asyncio.create_task(stream.write(client))
        viewer = await fake_socket.until(lambda viewer: [m.type for m in viewer.messages[-2:]] == ["heartbeat"] * 2)
        assert vars(viewer.messages[-1]) == {"type": "heartbeat", **viewer.seen}
        stream.leave(client)
        writer.cancel()
        await asyncio.wait([writer])


async def test_a_graph_that_cannot_be_shown_is_logged_once(training, fake_socket, monkeypatch, caplog) -> None:
    attempts = []

    def fail(_name, revision, *_):
        attempts.append(revision)
        raise RuntimeError("no picture")

    whole = live.capture
    monkeypatch.setattr(live, "capture", fail)
    async with streaming(training.graph) as stream:
        client = stream.join(fake_socket)
        await stream._capture
        for _ in range(3):
            stream.tick()
        assert attempts == [training.graph.revision]
        assert "cannot show revision" in caplog.text
        monkeypatch.setattr(live, "capture", whole)
        training.graph.blob("one_more", ())
        stream.tick()
        await stream._capture
        assert stream.seq > 0
        stream.leave(client)


class TestTail:
    def test_gives_what_is_left_when_more_came_than_fits(self) -> None:
        items = deque([(0, 0.0)], maxlen=3)
        tail = Tail(items)
        items.extend((i, 0.0) for i in range(1, 10))
        assert tail.advance()
        assert [frame for frame, _ in tail.since(1)] == [7, 8, 9]

    def test_equal_items_count(self) -> None:
        items = deque([(0, 1.0)], maxlen=3)
        tail = Tail(items)
        items.append((0, float("1.0")))
        assert tail.advance()
        assert tail.total == 2

    def test_what_came_after_the_count_is_for_the_next_one(self) -> None:
        items: deque[tuple[int, float]] = deque([(0, 0.0)], maxlen=3)
        tail = Tail(items)
        told, given = tail.total, []
        for frame in range(1, 9):
            items.append((frame, 0.0))
            assert tail.advance()
            if frame % 2:
                items.append((frame, 0.5))  # between the tick and the send
            given += tail.since(told)
            told = tail.total
        assert given == [(frame, value) for frame in range(1, 9) for value in (0.0, 0.5)[: 1 + frame % 2]][: len(given)]
        assert len(given) == 12
        items.extend((frame, 0.0) for frame in range(9, 20))
        assert tail.since(told) == []


class TestRequests:
    @pytest.mark.together(
        "text",
        [
            "",
            "{",
            "[]",
            "[" * 1024,
            '{"type": "other"}',
            "1",
            '"resync"',
            '{"type": "timeline"}',
            '{"type": "timeline", "on": 1}',
        ],
    )
    def test_nonsense_is_none(self, text: str, fake_socket) -> None:
        assert not Client(fake_socket).ask(text)

    def test_a_resync(self, fake_socket) -> None:
        assert Client(fake_socket).ask('{"type": "resync"}')

    async def test_calls_come_to_who_asks(self, training, make_fake_socket) -> None:
        asking, other = make_fake_socket(), make_fake_socket()
        await training.run()
        async with streaming(training.graph) as stream, joined(stream, asking) as client, joined(stream, other):
            assert not asking.viewer.timeline
            assert client.ask('{"type": "timeline", "on": true}')
            await asking.until(lambda viewer: len(viewer.timeline) == len(training.graph.ops))
            await training.run()
            stream.tick()
            await asking.until(lambda viewer: len(viewer.timeline) == 2 * len(training.graph.ops))
            await asking.until(lambda viewer: agrees(viewer, training.graph))
            assert {name for name, _, _ in asking.viewer.timeline} == {op.name for op in training.graph.ops}
            assert {frame for _, _, frame in asking.viewer.timeline} == {0, 1}
            count = len(asking.viewer.timeline)
            assert client.ask('{"type": "timeline", "on": false}')
            await training.run()
            await told(stream, asking, training.graph)
            assert len(asking.viewer.timeline) == count
            assert not other.viewer.timeline

    async def test_calls_come_anew_with_a_changed_graph(self, training, fake_socket) -> None:
        graph, ops = training.graph, len(training.graph.ops)
        async with streaming(graph) as stream, joined(stream, fake_socket) as client:
            for _ in range(3):
                await training.run()
            client.ask('{"type": "timeline", "on": true}')
            await fake_socket.until(lambda viewer: len(viewer.timeline) == 3 * ops)
            graph.subgraph("side").function("op", lambda x: x, af.TensorSpec.of(()))(training.loss)
            await training.run()
            stream.tick()
            await fake_socket.until(lambda viewer: len(viewer.timeline) == 4 * ops + 1)
            graph.delete_subgraph("side")
            stream.tick()
            await fake_socket.until(lambda viewer: len(viewer.timeline) == 4 * ops and is_told(viewer))
            client.forget()
            await fake_socket.until(lambda viewer: [m.type for m in viewer.messages].count("graph") == 4)
            viewer = await fake_socket.until(lambda viewer: viewer.timeline)
            assert [name for name, _, _ in viewer.timeline].count("loss") == 4

    async def test_failed_calls_say_what_they_have_raised(self, training, fake_socket) -> None:
        trace, (first, second, *_) = training.graph.engine.trace, training.graph.ops
        trace.add_failed(1000, 500, 1 << 30, 0, "of a node that is not there")
        trace.add(1000, 500, first.id, 0)
        trace.add_failed(2000, 500, trace.key(second.id, "lane"), 0, "ValueError: <no good>")
        async with streaming(training.graph) as stream, joined(stream, fake_socket) as client:
            client.ask('{"type": "timeline", "on": true}')
            viewer = await fake_socket.until(lambda viewer: viewer.timeline)
            assert viewer.timeline == [(first.name, "loop", 0), (second.name, "lane", 0)]
            assert viewer.errors == [None, "ValueError: <no good>"]

    async def test_of_very_many_calls_the_newest_are_sent(self, training, fake_socket) -> None:
        engine = training.graph.engine
        op = next(iter(training.graph.ops))
        for frame in range(10_000):
            engine.trace.add(frame * 1000, 500, op.id, frame)
        async with streaming(training.graph) as stream, joined(stream, fake_socket) as client:
            client.ask('{"type": "timeline", "on": true}')
            await fake_socket.until(lambda viewer: viewer.timeline)
            (message,) = [m for m in fake_socket.viewer.messages if m.type == "calls"]
            assert len(message.frame) + message.lost == 10_000
            assert message.frame[-1] == 9_999
            assert message.us == pytest.approx([0.5] * len(message.us))


async def test_vitals_and_latencies_come_now_and_then(training, fake_socket) -> None:
    await training.run()
    async with streaming(training.graph, vitals_s=0.0) as stream, joined(stream, fake_socket):
        stream.tick()
        viewer = await fake_socket.until(lambda viewer: any(message.type == "vitals" for message in viewer.messages))
        (memory,) = next(message for message in viewer.messages if message.type == "vitals").memory
        assert memory["place"] == "cpu"
        assert memory["budget"] is None
        assert memory["held"] >= memory["used"] >= 0
        await training.run()
        await told(stream, fake_socket, training.graph)
        (states,) = [message for message in viewer.messages if message.type == "states"][-1:]
        assert len(states.p99_us) == len(training.graph.ops)
        assert all(0 < p50 <= p99 for p50, p99 in zip(states.p50_us, states.p99_us, strict=True))


async def test_what_an_old_frame_waits_for_is_said(gated, make_fake_socket, monkeypatch) -> None:
    monkeypatch.setattr(vitals_module, "_OLD_S", 0.0)
    async with streaming(gated.graph, vitals_s=0.0) as stream, joined(stream, make_fake_socket()):
        run = gated.start()
        await gated.entered.wait()
        socket = make_fake_socket()
        async with joined(stream, socket):
            waiting = {"waits": "'first'"}
            while "'first'" in waiting["waits"]:  # whose thread may say that it has ended when the next op has begun
                before = len(socket.viewer.messages)
                stream.tick()
                viewer = await socket.until(
                    lambda viewer, before=before: any(message.type == "vitals" for message in viewer.messages[before:])
                )
                (waiting,) = [message for message in viewer.messages if message.type == "vitals"][-1].waiting
            assert waiting["frame"] == 0
            assert "running: 'hold'" in waiting["waits"]
            assert "'last' waits for 1 of 1 inputs: op 'hold'" in waiting["waits"]
        gated.release.set()
        await run
