"""What the frames of one graph run on and what outlives them: a dispatcher, devices, the order at variables."""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import Callable, Collection, Mapping

from actorflow.actors.budget import Budget
from actorflow.actors.dispatcher import Dispatcher
from actorflow.actors.turnstile import Turnstile
from actorflow.actors.variable import VariableActor
from actorflow.devices import Device, open_device
from actorflow.devices.blas import blas_threads
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Op, Variable
from actorflow.ops.function import Function
from actorflow.place import Place
from actorflow.runtime.limits import LoopWatchdog
from actorflow.threads import forget_in_child, held_at_fork


class Claim:
    """What keeps a graph on its loop: a run, say, from before its frame starts until its result has been taken.

    Attributes:
        count: How many there are.
    """

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0

    def release(self) -> None:
        """One less. On the loop's thread, once for each time that it was given out."""
        self.count -= 1


class Equipment:
    """Opened on first use, shared by all programs of a graph, and moved from one event loop to the next.

    Args:
        graph: A root graph.
        make_dispatcher: Called with the loop.

    Attributes:
        graph: The root graph.
        budget: The memory that frames may take, if there is a limit.
    """

    def __init__(self, graph: Graph, make_dispatcher: Callable[[asyncio.AbstractEventLoop], Dispatcher]) -> None:
        self.graph = graph
        self.budget: Budget | None = None
        self._make_dispatcher = make_dispatcher
        self._dispatcher: Dispatcher | None = None
        self._devices: dict[Place, Device] = {}
        self._variables: dict[Variable, VariableActor] = {}
        self._turnstiles: dict[Op, Turnstile] = {}
        self._timed = False
        limit_s = graph.options.block_limit_s
        self._watchdog = None if limit_s is None else LoopWatchdog(graph.name, limit_s)
        self._claim = Claim()
        self._moving = held_at_fork(threading.Lock(), is_outer=True)
        # A graph that is dropped without aclose() leaves no threads behind.
        weakref.finalize(self, _close_all, self._devices, self._watchdog, graph.options.deterministic)
        forget_in_child(self)

    @property
    def dispatcher(self) -> Dispatcher:
        """The dispatcher of the loop that runs now."""
        assert self._dispatcher is not None
        return self._dispatcher

    def device(self, place: Place) -> Device:
        """The device for a place, opened on first use."""
        device = self._devices.get(place)
        if device is None:
            if self.graph.options.deterministic and not self._devices:
                blas_threads.keep_single()
            device = self._devices[place] = open_device(place, self.graph.options.devices.get(place))
            device.bind(self.dispatcher.loop)
            device.memory.budget_bytes = self.graph.budget_of(place)
            device.watch_closely(self._timed)
        return device

    @property
    def devices(self) -> Mapping[Place, Device]:
        """The devices opened so far."""
        return self._devices

    def variable_actor(self, variable: Variable) -> VariableActor:
        """The actor that orders the frames at a variable; one for all programs."""
        actor = self._variables.get(variable)
        if actor is None:
            actor = self._variables[variable] = VariableActor(variable, self.device(variable.place))
        return actor

    @property
    def turnstiles(self) -> Collection[Turnstile]:
        """All that there are."""
        return self._turnstiles.values()

    def turnstile(self, op: Op) -> Turnstile:
        """What keeps the frames of a function op in order; one for all programs."""
        turnstile = self._turnstiles.get(op)
        if turnstile is None:
            operation = op.operation
            assert isinstance(operation, Function)
            # A lane keeps calls apart and in order, but for one that will be repeated: the lane is free meanwhile.
            limit = 1 if not operation.is_async and op.attempts is not None else operation.concurrency
            turnstile = self._turnstiles[op] = Turnstile(limit)
        return turnstile

    def common_budget(self) -> Budget | None:
        """The memory that frames may take, for others who take from it; None without a limit."""
        options = self.graph.options
        limits = [options.memory_budget_bytes, *(device.memory_budget for device in options.devices.values())]
        if self.budget is None and any(limit is not None for limit in limits):
            self.budget = Budget()
        return self.budget

    def forget_parent(self) -> None:
        """This is the child of a fork: loop, devices and what was under way are the parent's. It begins anew."""
        self.budget = self._dispatcher = None
        self._devices.clear()
        self._forget_order()
        self._claim = Claim()

    def _bind_to(self, loop: asyncio.AbstractEventLoop) -> None:
        """Have everything run on a loop."""
        self._dispatcher = self._make_dispatcher(loop)
        for device in self._devices.values():
            device.bind(loop)

    def _time_each(self, timed: bool) -> None:
        """Whether devices take the time of each call, as somebody watches."""
        self._timed = timed
        for device in self._devices.values():
            device.watch_closely(timed)

    def _forget_order(self) -> None:
        """No frame that is known to a variable or a function runs any more."""
        self._variables.clear()
        self._turnstiles.clear()

    def _close(self) -> None:
        """Close the devices, which may be opened again, and wait for their threads."""
        devices = list(self._devices.values())
        _close_all(self._devices, self._watchdog, self.graph.options.deterministic)
        for device in devices:
            device.join()


def _close_all(devices: dict[Place, Device], watchdog: LoopWatchdog | None, deterministic: bool) -> None:
    if watchdog is not None:
        watchdog.stop()
    if deterministic and devices:
        blas_threads.release_single()
    for device in devices.values():
        device.close()
    devices.clear()
