"""Bounds: items and bytes that are held, memory over a million items, the budget of a device."""

import asyncio
import gc
import os
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow.pipeline import source
from actorflow.pipeline.stages.stage import BURST, Inbox
from tests.pipeline.recipes import collect
from tests.support.effort import FULL, slow

LIMIT = 1_000


async def peak_of(sizes: list[int], limit: int) -> tuple[list[int], int]:
    loader = source(sizes).map(bytes).prefetch(100, size_bytes=limit, size=len)
    given = []
    async for item in loader:
        given.append(len(item))
        for _ in range(len(item) % 5):
            await asyncio.sleep(0)
        assert loader.stats()["prefetch"].held_bytes <= max(limit, max(sizes))
    return given, loader.stats()["prefetch"].peak_bytes


@settings(max_examples=100)
@given(st.lists(st.one_of(st.integers(0, 10), st.integers(0, LIMIT), st.integers(LIMIT, 5 * LIMIT)), max_size=40))
def test_bytes_held_ready_are_bounded_whatever_the_items_sizes(sizes: list[int]) -> None:
    given, peak = asyncio.run(peak_of(sizes, LIMIT))
    assert given == sizes
    # One that is larger than all the room is held alone.
    assert peak <= max([LIMIT, *sizes])
    if all(size <= LIMIT for size in sizes):
        assert peak <= LIMIT


@pytest.mark.any_loop
async def test_by_default_an_item_has_the_bytes_of_all_arrays_and_texts_in_it() -> None:
    item = {"a": np.zeros(100), "rest": [np.zeros(10, "f"), ({"deep": np.zeros(1)}, b"abc"), "text"]}
    loader = source([item]).prefetch(1, size_bytes=10_000)
    async for _ in loader:
        assert loader.stats()["prefetch"].peak_bytes == 800 + 40 + 8 + sys.getsizeof(b"abc") + sys.getsizeof("text")


async def test_prefetch_is_filled_up_to_its_bound_and_no_further() -> None:
    made = []

    def make(x: int) -> bytes:
        made.append(x)
        return bytes(100)

    # On the loop: how far threads are ahead depends on how long calls take.
    loader = source(range(100), executor="loop").map(make, executor="loop").prefetch(50, size_bytes=LIMIT, size=len)
    items = aiter(loader)
    await anext(items)
    while loader.stats()["prefetch"].held_bytes < LIMIT:
        await asyncio.sleep(0)
    for _ in range(100):
        await asyncio.sleep(0)
    assert loader.stats()["prefetch"].held_bytes == LIMIT
    # Besides: what was taken, what waits for the application, and one item in front of the bound.
    assert len(made) <= 1 + 1 + 10 + 1 + 1
    await items.aclose()


@pytest.mark.parametrize("concurrency", [1, 4])
async def test_a_slow_application_holds_up_the_source(concurrency: int) -> None:
    taken = 0

    class Numbers:
        def __iter__(self) -> Any:
            nonlocal taken
            for i in range(1_000):
                taken += 1
                yield i

    async def wait(x: int) -> int:
        await asyncio.sleep(0)
        return x

    numbers = source(Numbers(), executor="loop")  # how far a thread is ahead depends on how long calls take
    waiting = numbers.map(wait, concurrency=concurrency).map(wait, concurrency=concurrency)
    loader = waiting.batch(2, executor="loop")
    items = aiter(loader)
    for i in range(20):
        await anext(items)
        for _ in range(50):
            await asyncio.sleep(0)
        assert taken <= 2 * (i + 1) + 60 + 20 * concurrency
    await items.aclose()


MILLION = """
import asyncio, gc, resource
import actorflow as af

async def main():
    async def same(x):
        return x
    loader = (af.pipeline.source(range({count})).map(lambda x: x + 1).filter(lambda x: x % 10).map(same, concurrency=8)
              .shuffle(100).flat_map(lambda x: (x, x)).batch(10, collate=list).prefetch(4))
    seen, marks = 0, []
    async for batch in loader:
        seen += 1
        if seen % ({count} // 30) == 0:
            loader.state_dict()
            gc.collect()
            with open("/proc/self/statm") as file:
                marks.append(int(file.read().split()[1]) * resource.getpagesize())
    print(seen, *marks)

af.run(main())
"""


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="reads /proc")
@pytest.mark.parametrize("count", [2_500, *slow([1_000_000 if FULL else 100_000])])
def test_memory_stays_flat(count: int) -> None:
    """Over a million items in the full profile; resident memory grows by less than what 1 byte for each would take."""
    command = [sys.executable, "-c", MILLION.format(count=count)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=110, check=True)
    seen, *marks = map(int, done.stdout.split())
    assert seen == count * 9 // 10 * 2 // 10
    assert len(marks) >= 5
    assert marks[-1] - marks[len(marks) // 3] < 1_000_000


# -- devices ----------------------------------------------------------------------------------------------------

ROWS = [np.full((16, 16), i, "float32") for i in range(30)]
SIZE = ROWS[0].nbytes


async def test_items_get_to_a_device_in_order() -> None:
    loader = (
        source(ROWS).map(lambda row: {"row": row, "name": "r", "pair": (row, 3)}).to("sim:0", in_flight=3).prefetch(2)
    )
    async with loader:
        items = await collect(loader)
    assert [af.to_numpy(item["row"])[0, 0] for item in items] == list(range(30))
    for item in items:
        assert isinstance(item["row"], af.devices.SimArray)
        assert isinstance(item["pair"][0], af.devices.SimArray)
        assert (item["name"], item["pair"][1]) == ("r", 3)


async def test_numbers_keep_their_shape_on_a_device() -> None:
    async with source([np.array(3.5)]).to("sim:0") as loader:
        (item,) = await collect(loader)
    assert af.to_numpy(item).shape == ()


async def test_nothing_is_copied_on_the_host() -> None:
    async with source(ROWS).to("cpu") as loader:
        assert all(given is row for given, row in zip(await collect(loader), ROWS, strict=True))


def make_graph(budget: int) -> tuple[af.Graph, af.Blob, af.Blob]:
    graph = af.Graph("double", devices={"sim:0": af.devices.SimOptions(memory_budget=budget)})
    x = graph.blob("x", (16, 16), place="sim:0")
    with graph.at("sim:0"):
        return graph, x, af.ops.add(x, x)


async def test_items_on_a_device_count_against_the_graphs_budget() -> None:
    graph, x, y = make_graph(20 * SIZE)
    loader = source(ROWS).to("sim:0", graph=graph).prefetch(100)
    place = af.Place.parse("sim:0")
    async with loader, graph:
        held = []
        async for result in graph.stream(loader.feed(x), fetch=[y], in_flight=2):
            np.testing.assert_array_equal(af.to_numpy(result[y]), 2 * ROWS[len(held)])
            budget = graph.engine.resources.common_budget()
            assert budget is not None
            held.append(budget.shared[place])
            assert held[-1] <= 20 * SIZE
        assert max(held) > 2 * SIZE  # it was read ahead
    del result
    gc.collect()
    while budget.shared[place]:
        await asyncio.sleep(0)


LARGE = np.zeros((5, 16, 16), "float32")


@pytest.mark.parametrize(
    "item", [LARGE, {"rows": LARGE, "name": "r"}, (LARGE[:2], [LARGE[2:]])], ids=["array", "mapping", "nested"]
)
async def test_item_that_can_never_fit_is_an_error(item: Any) -> None:
    graph, _, _ = make_graph(4 * SIZE)
    async with source([item]).to("sim:0", graph=graph) as loader, graph:
        with pytest.raises(af.StageError, match=r"an item of 5120 bytes does not fit on sim:0") as raised:
            await collect(loader)
    assert isinstance(raised.value.__cause__, af.OutOfMemoryError)


async def test_leaving_with_copies_under_way() -> None:
    loader = source(ROWS).to("sim:0", in_flight=4)
    async with loader:
        async for _ in loader:
            break
    assert len(await collect(loader)) == 29
    await loader.aclose()


def test_no_such_device() -> None:
    with pytest.raises(af.PlaceError):
        source([1]).to("nonsense place")


def test_room_that_grows_wakes_the_stage_in_front() -> None:
    """It may have stopped when there was less, and nothing else would have it look again."""
    woken: list[int] = []
    inbox = Inbox(None, 2)  # type: ignore[arg-type]
    inbox.source = SimpleNamespace(wake=lambda: woken.append(inbox.capacity))  # type: ignore[assignment]
    for cost_ns in (0, 0, 10**9, 0):
        inbox.fit(cost_ns)
    assert woken == [BURST, BURST]
