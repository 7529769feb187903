"""The service that runs graphs for threads without a loop."""

import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import actorflow as af
from actorflow.devices.team import team
from actorflow.runtime.service import Service


class Kept:
    """A graph that a service keeps: the square of a matrix."""

    def __init__(self, size: int) -> None:
        self.graph = af.Graph("kept")
        self.x = self.graph.blob("x", (size, size), "float64")
        self.y = af.ops.matmul(self.x, self.x)


@pytest.fixture
def service() -> Iterator[Service]:
    made = Service("actorflow-test", None, {})
    yield made
    made.close()
    made.join()


def squares(service: Service, *values: np.ndarray) -> list[np.ndarray]:
    """The squares of matrices, one after the other."""
    found: list[Any] = []
    ended = threading.Event()

    async def run(service: Service) -> None:
        try:
            for value in values:
                kept = service.kept(value.shape, lambda: Kept(len(value)))  # noqa: B023  called at once
                found.append((await service.run(kept.graph, {kept.x: value}, [kept.y]))[kept.y])
        finally:
            ended.set()

    service.submit(run)
    assert ended.wait(60)
    return found


def test_graphs_are_kept_by_their_keys(service: Service) -> None:
    values = [np.full((n, n), float(n)) for n in (2, 3, 2)]
    for value, square in zip(values, squares(service, *values), strict=True):
        np.testing.assert_array_equal(square, value @ value)
    assert [*service.graphs] == [(3, 3), (2, 2)]  # the one used last at the end


def test_cores_are_shared_out_among_lanes_only_while_something_runs(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So products in other threads have all of them meanwhile."""
    seen: list[int] = []
    before = team._lanes
    matmul = np.matmul

    def noted(*arguments: Any, **options: Any) -> Any:
        seen.append(team._lanes - before)
        return matmul(*arguments, **options)

    monkeypatch.setattr(np, "matmul", noted)
    squares(service, np.ones((4, 4)), np.ones((4, 4)))
    assert seen == [1, 1]
    assert team._lanes == before


def test_free_buffers_that_no_run_uses_are_given_up(service: Service) -> None:
    large, small = np.ones((1_000, 1_000)), np.ones((300, 300))
    squares(service, large)
    pool = service.devices[af.Place()].memory
    assert pool.held_bytes >= large.nbytes
    for size in range(300, 600, 15):
        squares(service, np.ones((size, size)), small)
    assert pool.held_bytes < large.nbytes
