"""Addresses of a simulated device: capacity, holes, and that no two arrays share any."""

import re
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.devices.sim.memory import Arena

KIB = af.TensorSpec.of(256)


def test_a_device_has_so_much_and_no_more(sim: Any) -> None:
    device = sim.device(memory_bytes=4096)
    held = [device.allocate(KIB) for _ in range(4)]
    assert device.arena.used_bytes == 4096
    with pytest.raises(
        af.OutOfMemoryError,
        match=re.escape(
            "sim:0 has no room for float32[256], 1,024 bytes: 0 of its 4,096 bytes are free, at most 0 in one piece"
        ),
    ):
        device.allocate(KIB)
    del held[1], held[2]  # the second and the fourth
    with pytest.raises(af.OutOfMemoryError, match="2,048 of its 4,096 bytes are free, at most 1,024 in one piece"):
        device.allocate(af.TensorSpec.of(512))
    held.append(device.allocate(KIB))


def test_the_first_hole_is_taken(sim: Any) -> None:
    device = sim.device()
    a, b, c = (device.allocate(KIB) for _ in range(3))
    assert [x.block.low for x in (a, b, c)] == [0, 1024, 2048]
    del a, b
    assert device.allocate(af.TensorSpec.of(512)).block.low == 0
    assert c.block.low == 2048


def test_the_pool_gives_up_free_buffers_for_room(sim: Any) -> None:
    device = sim.device(memory_bytes=2048)
    lane = device.lane("main")
    bucket = device.memory.bucket(KIB, lane)
    a, b = bucket.take(), bucket.take()
    bucket.give_back(a)
    bucket.give_back(b)
    del a, b
    assert device.memory.bucket(af.TensorSpec.of(512), lane).take().nbytes == 2048


def test_old_buffers_go_when_nothing_uses_them(sim: Any) -> None:
    device = sim.device()
    lane, memory = device.lane("main"), device.memory
    used, unused, busy = (memory.bucket(af.TensorSpec.of(n), lane) for n in (1, 2, 3))
    for bucket in (used, unused, busy):
        bucket.give_back(bucket.take())
    memory.age()
    assert memory.held_bytes == 24
    buffer = used.take()
    lane.submitted += 1
    used.give_back(buffer)
    del buffer
    memory.age()
    assert memory.held_bytes == 4
    buffer = busy.take()
    lane.submitted += 1
    busy.give_back(buffer)  # whose work has not ended
    del buffer
    for _ in range(3):
        memory.age()
        assert memory.held_bytes == 16
    lane.completed = lane.submitted
    memory.age()
    assert memory.held_bytes == 0


def test_empty_arrays_take_nothing(sim: Any) -> None:
    device = sim.device(memory_bytes=0)
    assert device.allocate(af.TensorSpec.of((0, 3))).get().shape == (0, 3)
    assert device.arena.used_bytes == 0


def test_python_objects_do_not_go_there(sim: Any) -> None:
    with pytest.raises(af.DeviceError, match="sim:0 has no memory for Python objects"):
        sim.device().allocate(af.TensorSpec.of((), object))


@given(st.lists(st.tuples(st.integers(0, 700), st.integers(0, 5)), max_size=40))
def test_arrays_never_share_addresses(steps: list[tuple[int, int]]) -> None:
    arena, blocks = Arena("sim:0", 64 << 8, races=True), []
    for size, drop in steps:
        blocks.append(arena.allocate(af.TensorSpec.of(size, "uint8")))
        if drop < len(blocks):
            blocks.pop(drop).free()
        assert len({block.low for block in blocks}) == len(blocks)  # those that take nothing, too
        spans = sorted((block.low, block.high) for block in blocks if block.low < block.high)
        assert all(high <= low for (_, high), (low, _) in pairwise(spans))
        assert arena.used_bytes == sum(-(-(high - low) // 256) * 256 for low, high in spans)
    for block in blocks:
        block.free()
    assert arena.used_bytes == 0
    assert arena.allocate(af.TensorSpec.of(64 << 8, "uint8")).low == 0  # one hole again
