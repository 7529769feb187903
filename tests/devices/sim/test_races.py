"""The race detector: planted bugs are found, with both sides named, and what is ordered is left alone."""

import gc
import re
from collections.abc import Callable
from contextlib import suppress
from random import Random
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.devices.sim import RaceError, SimDevice, SimOptions


class World:
    """A device with two lanes and some arrays."""

    def __init__(self, sim: Any, **options: Any) -> None:
        self.sim = sim
        self.device = sim.device(**options)
        self.main = self.device.make_stream("main")
        self.side = self.device.make_stream("side")
        self.inbound = self.device.make_stream("inbound")
        self.outbound = self.device.make_stream("outbound")
        self.x, self.y, self.z = (sim.empty(self.device, 4) for _ in range(3))
        self.host = np.zeros(4, "f")

    def run(self, stream: Any, label: str, reads: Any = (), writes: Any = ()) -> None:
        self.sim.launch(stream, label, reads, writes)

    def copy_in(self, label: str, source: Any, target: Any, stream: Any = None) -> None:
        self.sim.copy(stream or self.inbound, label, self.device.copy_in, source, target)

    def copy_out(self, label: str, source: Any, target: Any, stream: Any = None) -> None:
        self.sim.copy(stream or self.outbound, label, self.device.copy_out, source, target)


@pytest.fixture
def w(sim: Any) -> World:
    return World(sim)


def race(*parts: str) -> Any:
    """Expect a race whose message has these parts, in this order."""
    return pytest.raises(RaceError, match=".*".join(re.escape(part) for part in parts))


A, B = "op 'a' on lane 'main' of sim:0", "op 'b' on lane 'side' of sim:0"


class TestPlantedBugs:
    def test_a_missing_wait(self, w: World) -> None:
        w.run(w.main, "a", [], [w.x])
        message = f"{B} reads array float32[4], which {A} writes: lane 'side' of sim:0 has not waited for it"
        with pytest.raises(RaceError, match=f"(?m)^{re.escape(message)}$"):
            w.run(w.side, "b", [w.x], [w.y])

    def test_a_buffer_that_another_stream_still_reads(self, w: World) -> None:
        w.run(w.main, "a", [w.x], [w.y])
        with race(B, "writes array float32[4]", A, "still reads: lane 'side' of sim:0 has not waited for it"):
            w.run(w.side, "b", [], [w.x])

    def test_a_buffer_that_is_still_copied_out(self, w: World) -> None:
        w.copy_out("fetch", w.x, w.host)
        with race(B, "writes", "op 'fetch' on lane 'outbound' of sim:0", "still reads"):
            w.run(w.side, "b", [], [w.x])

    def test_the_host_reads_before_the_event(self, w: World) -> None:
        w.run(w.main, "a", [], [w.x])
        event = w.sim.finish(w.main)  # it has run, but the host cannot know
        with race("the host reads array float32[4]", A, "writes: the host has not seen the end of it"):
            w.x.get()
        assert event.query()
        w.x.get()

    def test_the_host_reads_a_view_before_the_event(self, w: World) -> None:
        w.run(w.main, "a", [], [w.x])
        with race("the host reads", A, "writes"):
            w.device.download(w.x.reshape(2, 2))

    def test_a_copy_in_overwrites_what_is_read(self, w: World) -> None:
        w.run(w.main, "a", [w.x], [w.y])
        with race("op 'feed' on lane 'inbound' of sim:0 writes", A, "still reads"):
            w.copy_in("feed", w.host, w.x)

    def test_a_view_is_its_base_s_memory(self, w: World) -> None:
        w.run(w.main, "a", [], [w.x.reshape(2, 2)])
        with race(B, "reads", A, "writes"):
            w.run(w.side, "b", [w.x.reshape(4, 1)], [])

    @pytest.mark.parametrize("is_reading", [True, False])
    def test_freed_memory_that_is_handed_out_again(self, w: World, is_reading: bool) -> None:
        low = w.x.block.low
        w.run(w.main, "a", [w.x] if is_reading else [], [] if is_reading else [w.x])
        w.x = None
        gc.collect()
        other = w.sim.empty(w.device, 2, 2)
        assert other.block.low == low
        verb = "still reads" if is_reading else "writes"
        with race(B, "writes array float32[2, 2], in memory that", A, f"{verb} as array float32[4], freed early"):
            w.run(w.side, "b", [], [other])

    def test_freed_memory_that_is_uploaded_to(self, w: World) -> None:
        w.run(w.main, "a", [w.x], [])
        w.x = None
        gc.collect()
        with race(
            "the host writes array float32[3]", A, "still reads as array float32[4], freed early", "the host has"
        ):
            w.device.upload(np.ones(3, "f"))

    def test_freed_memory_that_was_freed_twice(self, w: World) -> None:
        """The array between the two never came to be used."""
        w.run(w.main, "a", [w.x], [])
        w.x = None
        gc.collect()
        w.sim.empty(w.device, 2)
        gc.collect()
        other = w.sim.empty(w.device, 4)
        with race(B, "writes", A, "still reads as array float32[4], freed early"):
            w.run(w.side, "b", [], [other])

    def test_host_memory_that_changes_before_the_copy_runs(self, sim: Any) -> None:
        w = World(sim, latency_s=10.0)
        w.copy_in("feed", w.host, w.x)
        event = w.inbound.record()
        w.host[1] = 5
        w.sim.advance(10**11)
        event.wait_until_passed()
        with race("the host changed memory that op 'feed' on lane 'inbound' of sim:0 copies to the device"):
            event.query()

    def test_host_memory_that_changes_before_the_host_has_seen_the_end(self, w: World) -> None:
        w.copy_in("feed", w.host, w.x)
        event = w.sim.finish(w.inbound)
        w.host[1] = 5
        for _ in range(2):
            with race("the host changed memory that op 'feed' on lane 'inbound'", "had not seen the end of the copy"):
                event.query()

    def test_host_memory_that_is_copied_to_during_a_copy_in(self, w: World) -> None:
        w.copy_in("feed", w.host, w.x)
        with race("op 'fetch' on lane 'outbound' of sim:0 writes host memory float32[4]", "op 'feed'", "still reads"):
            w.copy_out("fetch", w.y, w.host)

    def test_host_memory_that_is_used_before_it_was_copied_to(self, w: World) -> None:
        host = np.zeros(5, "f")
        w.copy_out("fetch", w.x, host[1:])
        with race("op 'feed' on lane 'inbound' of sim:0 reads host memory float32[5]", "op 'fetch'", "writes"):
            w.copy_in("feed", host[:4], w.y)

    def test_a_write_beside_does_not_hide_one(self, w: World) -> None:
        host = np.zeros((2, 4), "f")
        w.copy_out("fetch", w.x, host[0])
        w.copy_out("fetch 2", w.y, host[1], w.main)
        with race("op 'feed' on lane 'inbound' of sim:0 reads host memory", "op 'fetch' on lane 'outbound'", "writes"):
            w.copy_in("feed", host[0], w.z)

    def test_a_peer_s_array_that_is_still_written(self, w: World) -> None:
        peer = w.sim.device("sim:1")
        stream, target = peer.make_stream("inbound"), w.sim.empty(peer, 4)
        w.run(w.main, "a", [], [w.x])
        with race("op 'peer' on lane 'inbound' of sim:1 reads", A, "writes: lane 'inbound' of sim:1 has not"):
            w.sim.copy(stream, "peer", peer.copy_peer, w.x, target)

    def test_a_peer_s_array_that_is_still_copied(self, w: World) -> None:
        peer = w.sim.device("sim:1")
        stream, target = peer.make_stream("inbound"), w.sim.empty(peer, 4)
        w.sim.copy(stream, "peer", peer.copy_peer, w.x, target)
        with race(B, "writes", "op 'peer' on lane 'inbound' of sim:1", "still reads"):
            w.run(w.side, "b", [], [w.x])


class TestOrderedWork:
    def test_the_host_has_seen_what_the_event_came_behind(self, w: World) -> None:
        w.run(w.main, "a", [], [w.x])
        w.side.wait(w.main.record())
        w.side.record().synchronize()
        w.x.get()

    def test_two_halves_of_a_host_array(self, w: World) -> None:
        host = np.zeros((2, 4), "f")
        w.copy_out("fetch", w.x, host[0])
        w.copy_out("fetch 2", w.y, host[1], w.main)
        w.copy_in("feed", host[0], w.z, w.outbound)

    def test_freed_memory_behind_what_used_it(self, w: World) -> None:
        w.run(w.main, "a", [w.x], [])
        event = w.main.record()
        w.x = None
        gc.collect()
        w.side.wait(event)
        w.run(w.side, "b", [], [w.sim.empty(w.device, 4)])

    def test_freed_memory_that_the_host_has_seen_the_end_of(self, w: World) -> None:
        w.run(w.main, "a", [w.x], [])
        w.x = None
        gc.collect()
        other = w.sim.empty(w.device, 4)
        w.main.record().synchronize()
        w.run(w.side, "b", [], [other])

    def test_host_memory_that_changes_afterwards(self, w: World) -> None:
        w.copy_in("feed", w.host, w.x)
        w.inbound.record().synchronize()
        w.host[:] = 1
        assert w.inbound.record().query()

    def test_host_memory_that_the_device_changes_afterwards(self, w: World) -> None:
        """In order: what was fed comes back to the same memory before the host has seen anything."""
        w.host[:] = 3
        w.copy_in("feed", w.host, w.x, w.main)
        w.sim.launch(w.main, "double", [w.x], [w.y], lambda xs, ys: np.multiply(xs[0], 2, out=ys[0]))
        w.copy_out("fetch", w.y, w.host, w.main)
        w.side.wait(w.main.record())
        w.copy_in("feed again", w.host, w.z, w.side)
        w.side.record().synchronize()
        assert w.main.record().query()
        assert w.z.get().tolist() == [6, 6, 6, 6]

    def test_nothing_is_looked_for_without_races(self, sim: Any) -> None:
        w = World(sim, races=False)
        w.run(w.main, "a", [], [w.x])
        w.run(w.side, "b", [w.x], [])
        w.x.get()
        w.copy_in("feed", w.host, w.x)
        w.host[:] = 1
        w.inbound.record().synchronize()


def test_a_race_is_not_run_nor_what_needs_its_result(w: World) -> None:
    done: list[str] = []
    w.run(w.main, "a", [], [w.x])
    with race(B, "reads", A):
        w.sim.launch(w.side, "b", [w.x], [w.y], lambda *_: done.append("b"))
    assert w.sim.finish(w.side).query()  # it has been raised once
    w.sim.launch(w.side, "c", [w.y], [], lambda *_: done.append("c"))
    event = w.sim.finish(w.side)
    assert done == []
    with pytest.raises(
        af.DeviceError, match="op 'c' on lane 'side' of sim:0 was skipped: it needs the result of op 'b'"
    ):
        event.query()


def test_host_memory_is_forgotten_with_its_array(w: World) -> None:
    from actorflow.devices.sim import memory

    gc.collect()
    before = len(memory._host)
    hosts = [np.zeros(4, "f") for _ in range(10)]
    for host in hosts:
        w.copy_in("feed", host[:4], w.x)
    assert len(memory._host) == before + 10
    w.inbound.record().synchronize()
    del hosts, host
    gc.collect()
    assert len(memory._host) == before


def test_what_the_host_has_seen_is_forgotten(w: World) -> None:
    for _ in range(100):
        w.run(w.main, "a", [w.x], [w.y])
        w.run(w.side, "b", [w.x], [])
        w.side.record().synchronize()
        w.main.record().synchronize()
    assert w.x.block.region.pending == []
    assert len(w.x.block.region._accesses) <= 2
    assert len(w.main.clock.now()) == 1


# -- random programs, against the graph of what happens before what --------------------------------------------------

STREAMS, ARRAYS = 3, 3


class Launch(NamedTuple):
    stream: int
    reads: frozenset[int]
    writes: frozenset[int]


class Record(NamedTuple):
    stream: int


class Wait(NamedTuple):
    stream: int
    event: int


class See(NamedTuple):
    event: int


Step = Launch | Record | Wait | See
Program = list[Step]


def expected(program: Program) -> list[int]:
    """Indices of the launches that race, by the graph of which step comes before which.

    A launch that races is not done, so nothing needs to come behind it.
    """
    before: list[set[int]] = []  # for each step, those that it certainly comes behind
    last: dict[int, set[int]] = {stream: set() for stream in range(STREAMS)}
    seen: set[int] = set()
    records: list[int] = []
    racing: list[int] = []
    for at, step in enumerate(program):
        match step:
            case Launch(stream):
                behind = last[stream] | seen
                for other in range(at):
                    old = program[other]
                    if other not in racing and other not in behind and _conflicts(step, old):
                        racing.append(at)
                        break
                last[stream] = behind | {at}
                before.append(behind)
            case Record(stream):
                before.append(set(last[stream]))
                records.append(at)
            case Wait(stream, event):
                last[stream] = last[stream] | before[records[event]]
                before.append(set())
            case See(event):
                seen = seen | before[records[event]]
                before.append(set())
    return racing


def found(program: Program) -> list[int]:
    """Indices of the launches that the detector refuses."""
    device = SimDevice(af.Place.parse("sim:0"), SimOptions(clock=lambda: 0))
    try:
        streams = [device.make_stream(str(i)) for i in range(STREAMS)]
        arrays = [device.allocate(af.TensorSpec.of(4)) for _ in range(ARRAYS)]
        events: list[Any] = []
        refused = []
        for at, step in enumerate(program):
            match step:
                case Launch(stream, reads, writes):
                    try:
                        streams[stream].launch(
                            lambda xs, ys: None,
                            [arrays[i] for i in sorted(reads)],
                            [arrays[i] for i in sorted(writes)],
                            cost_ns=0,
                            name="work",
                        )
                    except RaceError:
                        refused.append(at)
                case Record(stream):
                    events.append(streams[stream].record())
                case Wait(stream, event):
                    streams[stream].wait(events[event])
                case See(event):
                    with suppress(af.DeviceError):  # what needs the result of a launch that raced
                        events[event].synchronize()
        return refused
    finally:
        device.close()
        device.join()


_streams = st.integers(0, STREAMS - 1)
_some_arrays = st.frozensets(st.integers(0, ARRAYS - 1), max_size=2)
_launches = st.builds(Launch, _streams, _some_arrays, _some_arrays)


@st.composite
def programs(draw: Callable[[Any], Any]) -> Program:
    """Launches, marks and waits in any order, right or wrong."""
    program: Program = []
    marks = 0
    for _ in range(draw(st.integers(1, 30))):
        kinds = [_launches, _launches, st.builds(Record, _streams)]
        if marks:
            events = st.integers(0, marks - 1)
            kinds += [st.builds(Wait, _streams, events), st.builds(See, events)]
        step = draw(st.one_of(kinds))
        marks += isinstance(step, Record)
        program.append(step)
    return program


@given(programs())
def test_just_what_is_not_ordered_is_refused(program: Program) -> None:
    assert found(program) == expected(program)


@given(st.lists(_launches, min_size=1, max_size=10), st.randoms(use_true_random=False))
def test_programs_with_all_waits_pass_and_with_one_less_do_not(launches: list[Launch], random: Random) -> None:
    program: Program = []
    marks: dict[int, int] = {}
    for launch in launches:
        earlier = list(marks)
        random.shuffle(earlier)
        for at in earlier:
            # On the device or through the host, but only while something is missing.
            if _conflicts(launch, program[at]) and expected([*program, launch]):
                program.append(See(marks[at]) if random.random() < 0.2 else Wait(launch.stream, marks[at]))
        marks[len(program)] = len(marks)
        program += [launch, Record(launch.stream)]
    assert expected(program) == found(program) == []
    waits = [at for at, step in enumerate(program) if isinstance(step, Wait | See)]
    for at in waits:
        less = program[:at] + program[at + 1 :]
        assert found(less) == expected(less)
    if waits:
        assert found([step for at, step in enumerate(program) if at not in waits])


def _conflicts(launch: Launch, old: Step) -> bool:
    return isinstance(old, Launch) and bool(launch.writes & (old.reads | old.writes) or launch.reads & old.writes)
