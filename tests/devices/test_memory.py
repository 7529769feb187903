"""The pool: what is used again, what must not be, and the count of it."""

import gc
from functools import partial
from sys import getrefcount
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.devices.memory import UNSHARED, BufferPool, RoomBucket
from tests.support.waiting import in_threads

SPEC = af.TensorSpec.of((4, 8))  # 128 bytes


def address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


@pytest.fixture
def pool() -> BufferPool:
    return BufferPool()


class TestReuse:
    def test_a_type_has_one_bucket(self, pool: BufferPool) -> None:
        assert pool.bucket(SPEC) is pool.bucket(af.TensorSpec.of([4, 8], "f4"))
        assert pool.bucket(SPEC) is not pool.bucket(af.TensorSpec.of((8, 4)))
        assert pool.bucket(SPEC) is not pool.bucket(af.TensorSpec.of((4, 8), "int32"))

    def test_who_else_refers_to_a_buffer_is_seen(self, pool: BufferPool) -> None:
        bucket = pool.bucket(SPEC)
        buffer = bucket.take()
        assert getrefcount(buffer) == UNSHARED
        view = buffer[1:]
        assert getrefcount(buffer) > UNSHARED
        del view
        assert getrefcount(buffer) == UNSHARED
        export = memoryview(buffer)
        assert getrefcount(buffer) > UNSHARED
        export.release()
        del export
        assert getrefcount(buffer) == UNSHARED

    def test_trim(self, pool: BufferPool) -> None:
        bucket = pool.bucket(SPEC)
        kept = bucket.take()
        bucket.give_back(bucket.take())
        assert (pool.held_bytes, pool.used_bytes) == (256, 128)
        pool.trim()
        assert (pool.held_bytes, pool.used_bytes) == (128, 128)
        assert kept.shape == (4, 8)


class TestRooms:
    """Memory that buffers of several types have in turn."""

    def buckets(self, pool: BufferPool) -> tuple[RoomBucket, RoomBucket]:
        return RoomBucket(pool.room(200), SPEC), RoomBucket(pool.room(200), af.TensorSpec.of(25, "float64"))

    def test_another_type_has_the_memory(self, pool: BufferPool) -> None:
        bucket, other = self.buckets(pool)
        buffer = bucket.take()
        assert (buffer.shape, buffer.dtype) == SPEC
        assert buffer.flags.writeable
        where = address(buffer)
        assert where % 64 == 0
        bucket.give_back(buffer)
        assert (pool.held_bytes, pool.used_bytes) == (200, 0)
        del buffer
        taken = other.take()
        assert (address(taken), taken.shape, taken.dtype) == (where, (25,), np.float64)
        assert (pool.held_bytes, pool.used_bytes, pool.allocations) == (200, 200, 1)

    @pytest.mark.parametrize(
        "hold", [lambda x: x[1:], lambda x: x.reshape(-1).view("u1"), lambda x: x.view(np.recarray), memoryview]
    )
    def test_a_view_refers_to_the_buffer(self, pool: BufferPool, hold: Any) -> None:
        buffer = self.buckets(pool)[0].take()
        assert getrefcount(buffer) == UNSHARED
        view = hold(buffer)
        assert getrefcount(buffer) > UNSHARED
        del view
        assert getrefcount(buffer) == UNSHARED

    def test_what_is_held_or_foreign_is_not_taken_back(self, pool: BufferPool) -> None:
        bucket, other = self.buckets(pool)
        buffer = bucket.take()
        memory = buffer.base
        bucket.give_back(buffer)
        assert bucket.free_bytes == 0
        for foreign in (np.zeros((4, 8), "f"), buffer[:], RoomBucket(pool.room(300), SPEC).take()):
            bucket.give_back(foreign)
            assert bucket.free_bytes == 0
        del memory
        bucket.give_back(buffer)
        assert bucket.free_bytes == other.free_bytes == 200

    def test_trim(self, pool: BufferPool) -> None:
        for trim in (pool.trim, self.buckets(pool)[1].trim):
            bucket = self.buckets(pool)[0]
            bucket.give_back(bucket.take())
            assert pool.held_bytes == 200
            trim()
            assert pool.held_bytes == 0

    def test_a_room_that_no_bucket_uses_keeps_nothing(self, pool: BufferPool) -> None:
        bucket, other = self.buckets(pool)
        bucket.give_back(bucket.take())
        del bucket
        assert pool.held_bytes == 200
        del other
        assert pool.held_bytes == 0

    def test_another_size_has_the_memory(self, pool: BufferPool) -> None:
        large, small, other = (RoomBucket(pool.room(4 * n), af.TensorSpec.of(n)) for n in (60, 40, 30))
        large.give_back(large.take())
        taken = small.take()  # 160 of 240 bytes
        assert (pool.held_bytes, pool.allocations) == (240, 1)
        apart = other.take()  # of another order
        assert apart.nbytes == 120
        assert (pool.held_bytes, pool.allocations) == (360, 2)
        small.give_back(taken)
        assert large.free_bytes == small.free_bytes == 240
        assert other.free_bytes == 0

    def test_a_larger_one_takes_the_place_of_one_too_small(self, pool: BufferPool) -> None:
        small, large = (RoomBucket(pool.room(4 * n), af.TensorSpec.of(n)) for n in (40, 60))
        small.give_back(small.take())
        large.give_back(large.take())
        assert (pool.held_bytes, pool.allocations) == (240, 2)
        assert small.take().nbytes == 160
        assert pool.allocations == 2


class TestAge:
    """Free buffers that no frame has used of late go when the pool grows."""

    def test_what_is_used_stays(self, pool: BufferPool) -> None:
        used, unused = pool.bucket(SPEC), pool.bucket(af.TensorSpec.of(10))
        for bucket in (used, unused):
            bucket.give_back(bucket.take())
        pool.age()
        assert (pool.held_bytes, pool.used_bytes) == (168, 0)
        used.give_back(used.take())
        pool.age()
        assert (pool.held_bytes, pool.used_bytes) == (128, 0)
        assert pool.allocations == 2
        pool.age()
        assert pool.held_bytes == 0

    def test_what_the_application_has_dropped_is_free(self, pool: BufferPool) -> None:
        bucket = pool.bucket(SPEC)
        kept, dropped = bucket.take(), bucket.take()
        bucket.lend(kept)
        bucket.lend(dropped)
        del dropped
        for held in (256, 128, 128):
            pool.age()
            assert pool.held_bytes == held
        assert kept.shape == (4, 8)

    def test_a_growing_pool_looks_when_frames_have_ended(
        self, pool: BufferPool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        started, ended = 1, 0
        pool.clock = lambda: (started, ended)
        pool._look_bytes = 0
        monkeypatch.setattr("actorflow.devices.memory._LITTLE_BYTES", 0)
        buckets = [pool.bucket(af.TensorSpec.of(100 + n)) for n in range(6)]
        for bucket in buckets[:3]:
            bucket.give_back(bucket.take())
        assert pool.held_bytes == 4 * (100 + 101 + 102)
        started, ended = 2, 1
        for bucket in buckets[3:]:
            bucket.give_back(bucket.take())
        assert pool.held_bytes == 4 * sum(range(100, 106))
        started, ended = 3, 2
        bucket = pool.bucket(af.TensorSpec.of(1_000))
        bucket.give_back(bucket.take())
        assert pool.held_bytes == 4 * (sum(range(103, 106)) + 1_000)
        assert buckets[0].free_bytes == 0


class TestCounts:
    def test_free_used_and_dead_buffers(self, pool: BufferPool) -> None:
        bucket = pool.bucket(SPEC)
        a, b = bucket.take(), bucket.take()
        assert (pool.held_bytes, pool.used_bytes, pool.peak_bytes) == (256, 256, 256)
        bucket.give_back(a)
        del a
        assert (pool.held_bytes, pool.used_bytes, pool.peak_bytes) == (256, 128, 256)
        view = b[0]
        del b
        assert pool.held_bytes == 256  # the view keeps it
        del view
        assert (pool.held_bytes, pool.used_bytes, pool.peak_bytes) == (128, 0, 256)
        assert pool.allocations == 2

    def test_adopted_arrays_count(self, pool: BufferPool) -> None:
        array = np.zeros(10)
        pool.adopt(array)
        assert pool.held_bytes == pool.used_bytes == 80
        del array
        assert pool.held_bytes == 0

    def test_the_peak_does_not_count_the_dead(self, pool: BufferPool) -> None:
        for _ in range(5):
            pool.adopt(np.zeros(10))
        assert pool.peak_bytes == 80
        assert pool.allocations == 5

    def test_buffers_that_die_in_other_threads(self, pool: BufferPool) -> None:
        bucket = pool.bucket(SPEC)
        buffers = [bucket.take() for _ in range(8)]
        in_threads(*[buffers.pop] * 8)
        assert pool.held_bytes == 0

    def test_a_collection_while_a_buffer_is_counted(self, pool: BufferPool) -> None:
        """A buffer may die at any allocation, with the pool's lock held: that must neither block nor be lost."""
        threshold = gc.get_threshold()
        gc.set_threshold(1)
        try:
            for _ in range(50):
                cycle: list[Any] = [pool.bucket(SPEC).take()]
                cycle.append(cycle)
        finally:
            gc.set_threshold(*threshold)
        del cycle
        gc.collect()
        assert pool.held_bytes == 0
        assert pool.allocations == 50

    def test_threads_take_and_give_back(self, pool: BufferPool) -> None:
        specs = [SPEC, af.TensorSpec.of(16)]
        buckets = [pool.bucket(spec) for spec in specs]
        wrong: list[Any] = []

        def work(mark: int) -> None:
            for i in range(300):
                bucket = buckets[i % 2]
                buffer = bucket.take()
                buffer.fill(mark)
                if not (buffer == mark).all():  # nobody else has it
                    wrong.append(mark)
                bucket.give_back(buffer)

        in_threads(*(partial(work, mark) for mark in range(4)))
        assert wrong == []
        assert pool.used_bytes == 0
        assert pool.allocations <= 8
        assert pool.held_bytes == sum(bucket.free_bytes for bucket in buckets) == pool.peak_bytes

    @given(st.lists(st.tuples(st.sampled_from(["take", "give", "drop"]), st.integers(0, 2)), max_size=60))
    def test_counts_agree_with_a_model(self, steps: list[tuple[str, int]]) -> None:
        pool = BufferPool()
        specs = [af.TensorSpec.of(size) for size in (1, 10, 100)]
        buckets = [pool.bucket(spec) for spec in specs]
        used: list[list[Any]] = [[], [], []]
        free = [0, 0, 0]
        peak = 0
        for step, i in steps:
            if step == "take":
                used[i].append(buckets[i].take())
                free[i] = max(0, free[i] - 1)
            elif used[i]:
                if step == "give":
                    buckets[i].give_back(used[i].pop())
                    free[i] += 1
                else:
                    used[i].pop()
            used_bytes = sum(len(u) * spec.size_bytes for u, spec in zip(used, specs, strict=True))
            held_bytes = used_bytes + sum(n * spec.size_bytes for n, spec in zip(free, specs, strict=True))
            peak = max(peak, held_bytes)
            assert (pool.held_bytes, pool.used_bytes, pool.peak_bytes) == (held_bytes, used_bytes, peak)
