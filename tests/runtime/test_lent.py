"""Memory of fetched arrays: used again when the application has dropped them, and never before."""

import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow.devices.memory import COPIED_BYTES, POOLED_BYTES

LENGTH = POOLED_BYTES // 4


def graph_of(length: int = LENGTH) -> tuple[af.Graph, af.Blob, af.Blob]:
    graph = af.Graph("lent")
    x = graph.blob("x", length)
    return graph, x, af.ops.scale(x, 2.0)


def allocations(graph: af.Graph) -> int:
    return graph.engine.resources.device(af.Place()).memory.allocations


async def fetched(graph: af.Graph, x: af.Blob, y: af.Blob, number: float) -> Any:
    value = (await graph.run({x: np.full(x.shape, number, np.float32)}))[y]
    np.testing.assert_array_equal(value, np.full(x.shape, 2 * number, np.float32))
    return value


@pytest.mark.parametrize(
    ("length", "count"),
    [(1, 1), (COPIED_BYTES // 4, 1), (COPIED_BYTES // 4 + 1, 3), (LENGTH - 1, 3), (LENGTH, 1)],
    ids=["one number", "copied", "let go", "almost lent", "lent"],
)
async def test_what_becomes_of_a_fetched_array_by_its_size(length: int, count: int) -> None:
    graph, x, y = graph_of(length)
    async with graph:
        for number in range(3):
            await fetched(graph, x, y, number)
        assert allocations(graph) == count
        assert graph.engine.resources.device(af.Place()).memory.used_bytes == 0


async def test_small_arrays_are_the_applications_own() -> None:
    graph, x, y = graph_of(100)
    async with graph:
        kept = [await fetched(graph, x, y, number) for number in range(8)]
        assert all(value.base is None and value.flags.owndata for value in kept)
        for number, value in enumerate(kept):
            np.testing.assert_array_equal(value, np.full(x.shape, 2 * number, np.float32))
        assert allocations(graph) == 1


async def test_a_small_array_with_a_view_of_it() -> None:
    """What is fetched besides its view is copied, and its buffer, which the view shows, is not used again."""
    graph = af.Graph("viewed")
    x = graph.blob("x", (4, 6))
    y = af.ops.scale(x, 2.0)
    flat = af.ops.reshape(y, (24,))
    async with graph:
        kept = []
        for number in range(6):
            kept.append(await graph.run({x: np.full(x.shape, number, np.float32)}, fetch=[y, flat]))
        for number, result in enumerate(kept):
            np.testing.assert_array_equal(result[y], np.full((4, 6), 2 * number, np.float32))
            np.testing.assert_array_equal(result[flat], np.full(24, 2 * number, np.float32))


@pytest.mark.parametrize(
    "keep",
    [
        lambda value: value,
        lambda value: value[1:3],
        lambda value: value[::2].reshape(2, -1).T,
        lambda value: value.view(np.uint8),
        memoryview,
        lambda value: memoryview(value[5:]),
        lambda value: [{"deep": value}],
        np.from_dlpack,
        weakref.ref,
    ],
    ids=["itself", "view", "view of view", "other type", "buffer", "buffer of view", "container", "dlpack", "weakref"],
)
async def test_what_is_kept_is_never_written(keep: Callable[[Any], Any]) -> None:
    graph, x, y = graph_of()
    async with graph:
        kept = keep(await fetched(graph, x, y, 7))
        before = None if isinstance(kept, weakref.ref) else repr(np.array(kept))
        for number in range(6):
            await fetched(graph, x, y, number)
        if before is None:
            assert kept() is None or (kept() == 14).all()
        else:
            assert repr(np.array(kept)) == before
        assert allocations(graph) == 2


def reshaped(value: Any) -> None:
    value.shape = (2, -1)


def retyped(value: Any) -> None:
    value.dtype = np.int32


@pytest.mark.filterwarnings("ignore:Setting the (shape|dtype)")
@pytest.mark.parametrize("change", [reshaped, retyped, lambda value: value.setflags(write=False)])
async def test_an_array_changed_in_place_is_let_go(change: Callable[[Any], None]) -> None:
    graph, x, y = graph_of()
    async with graph:
        change(await fetched(graph, x, y, 1))
        await fetched(graph, x, y, 2)
        assert allocations(graph) == 2


async def test_few_are_kept() -> None:
    graph, x, y = graph_of()
    async with graph:
        many = [await fetched(graph, x, y, number) for number in range(10)]
        memory = graph.engine.resources.device(af.Place()).memory
        assert memory.held_bytes == 10 * POOLED_BYTES
        del many
        assert memory.held_bytes == 4 * POOLED_BYTES
        assert memory.used_bytes == 0
        graph.trim()
        assert memory.held_bytes == 0


@settings(deadline=None, max_examples=50)
@given(steps=st.lists(st.sampled_from(["run", "drop", "view"]), max_size=25))
def test_any_order_of_runs_and_drops(steps: list[str]) -> None:
    async def main() -> None:
        graph, x, y = graph_of()
        held: list[tuple[Any, float]] = []
        async with graph:
            for number, step in enumerate(steps):
                if step == "run":
                    held.append((await fetched(graph, x, y, number), 2.0 * number))
                elif held and step == "drop":
                    held.pop(number % len(held))
                elif held:
                    value, expected = held.pop(number % len(held))
                    held.append((value[: LENGTH // 2 + number], expected))
                    del value
                assert all(value[0] == expected == value[-1] for value, expected in held)

    af.run(main())
