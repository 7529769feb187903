"""Programs on a loop of their own, Ctrl-C in the middle of them, and the ends of tasks."""

import ast
import asyncio
import itertools
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import actorflow as af
from actorflow import loop as loops
from actorflow.loop import end, wait_out, waits
from actorflow.testing import virtual_time_loop
from tests.support.effort import FULL, slow
from tests.support.loops import loop_factories

#: Names that timers, futures, frames and graphs have in the package, which are cancelled there, unlike tasks.
NO_TASKS = {"timer", "_timer", "late", "_linger", "_next", "_next_look", "handle"}
NO_TASKS |= {"outcome", "future", "ended", "answer", "frame", "other", "_graph", "self"}


def test_run_gives_what_the_program_returns() -> None:
    async def main() -> str:
        await asyncio.sleep(0)
        return "done"

    assert af.run(main()) == "done"


async def test_run_inside_a_loop_says_what_to_do_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        raise AssertionError

    program = main()
    with pytest.raises(RuntimeError, match=r"a notebook.*: await main\(\)"):
        af.run(program)
    assert program.cr_frame is None  # closed: no warning that it was never awaited
    await asyncio.sleep(0)  # the loop goes on


class Pressed:
    """Runs a program, and presses Ctrl-C when the interpreter comes to the calls and returns with some numbers.

    They are numbered from where Ctrl-C is taken.
    """

    def __init__(self, presses: list[int]) -> None:
        self.loops: list[asyncio.AbstractEventLoop] = []
        self.left: list[int] = presses
        self.events = 0
        self.task: asyncio.Task[None] | None = None

    def run(self) -> None:
        main = self.main()
        sys.setprofile(self.look)
        try:
            af.run(main)
        finally:
            sys.setprofile(None)
            main.close()

    async def main(self) -> None:
        self.loops.append(asyncio.get_running_loop())
        if len(self.left) > 1:  # the second Ctrl-C does not wait for what is left
            return
        items = self.items()
        await anext(items)
        self.task = asyncio.create_task(self.tidy())
        await asyncio.sleep(0)

    async def items(self) -> AsyncIterator[int]:
        try:
            yield 1
        finally:
            await asyncio.sleep(0)

    async def tidy(self) -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0)

    def look(self, frame: FrameType, event: str, _: object) -> None:
        handler: Any = signal.getsignal(signal.SIGINT)
        if handler is signal.default_int_handler:
            return  # in front of all, or behind it: Python's own handler raises at once
        self.events += 1
        if self.left and self.events == self.left[0]:
            del self.left[0]
            handler(signal.SIGINT, frame)


@pytest.mark.filterwarnings("ignore:coroutine '.*shutdown:RuntimeWarning")  # the second Ctrl-C cuts the loop's end off
@pytest.mark.parametrize("again", [*slow([None]), 1, *slow([40])])
@pytest.mark.parametrize("kind_of_loop", sorted(loop_factories()))
def test_ctrl_c_is_a_keyboard_interrupt_wherever_the_interpreter_is(
    kind_of_loop: str, again: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loops, "_loop_factory", lambda: loop_factories()[kind_of_loop])
    handler = signal.getsignal(signal.SIGINT)
    for number in itertools.count(1, 1 if FULL else 23 if again is None else 41):
        pressed = Pressed([number] if again is None else [number, number + again])
        try:
            pressed.run()
        except KeyboardInterrupt:
            pass
        else:
            assert pressed.left  # it has ended before
            break
        finally:
            assert signal.getsignal(signal.SIGINT) is handler
        assert all(loop.is_closed() for loop in pressed.loops)
    assert number > 100


def test_a_program_may_take_ctrl_c_for_itself_and_the_third_one_ends_what_blocks() -> None:
    async def main() -> str:
        try:
            signal.raise_signal(signal.SIGINT)
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "taken"
        return ""

    async def blocks() -> None:
        for _ in range(3):
            signal.raise_signal(signal.SIGINT)

    assert af.run(main()) == "taken"
    with pytest.raises(KeyboardInterrupt):
        af.run(blocks())


class Tidy:
    """A function that tidies up, in several turns of the loop."""

    def __init__(self, turns: int = 5) -> None:
        self.turns = turns
        self.outcome = ""

    async def __call__(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            self.outcome = "cut off"
            for _ in range(self.turns):
                await asyncio.sleep(0)
            self.outcome = "tidied"


async def test_a_task_is_told_to_end_once() -> None:
    tidy = Tidy()
    task = asyncio.create_task(tidy())
    await asyncio.sleep(0)
    while not task.done():
        end(task)
        await asyncio.sleep(0)
    assert (tidy.outcome, task.cancelled()) == ("tidied", True)
    end(task)  # nothing happens


async def test_a_task_that_others_have_told_to_end_is_not_told_again() -> None:
    tidy = Tidy()
    task = asyncio.create_task(tidy())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    end(task)
    await asyncio.wait([task])
    assert tidy.outcome == "tidied"


@pytest.mark.parametrize("takes_back", [True, False])
def test_a_task_that_goes_on_behind_a_cancellation_of_others_is_told_after_that(takes_back: bool) -> None:
    tidy = Tidy()

    async def limited() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            if takes_back:
                task.uncancel()
        await tidy()

    async def main() -> None:
        task = asyncio.create_task(limited())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
        end(task)
        await asyncio.wait([task])
        assert task.cancelled()
        assert tidy.outcome == "tidied"

    with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
        runner.run(main())


def test_a_long_clean_up_is_not_cut_off_by_who_tells_again() -> None:
    async def tidy() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(3600)
        return "tidied"

    async def main() -> str:
        task = asyncio.create_task(tidy())
        await asyncio.sleep(0)
        end(task)
        await asyncio.sleep(0)
        end(task)
        return await task

    with asyncio.Runner(loop_factory=virtual_time_loop) as runner:
        assert runner.run(main()) == "tidied"


async def test_who_waits_for_tasks_is_cancelled_again_and_again() -> None:
    tidy = Tidy()
    task = asyncio.create_task(tidy())
    await asyncio.sleep(0)
    end(task)
    waiting = asyncio.create_task(wait_out([task]))
    await asyncio.sleep(0)
    while not waiting.done():
        waiting.cancel()
        await asyncio.sleep(0)
    assert (tidy.outcome, task.done(), waiting.cancelled()) == ("tidied", True, True)


@pytest.mark.parametrize("kind_of_loop", sorted(loop_factories()))
def test_what_belongs_to_a_closed_loop_is_left_alone(kind_of_loop: str) -> None:
    loop = loop_factories()[kind_of_loop]()
    future: asyncio.Future[None] = loop.create_future()

    async def wait() -> None:
        await future

    task = loop.create_task(wait())
    loop.run_until_complete(asyncio.sleep(0))
    assert waits(task)
    loop.close()
    end(task)
    assert [waits(task), waits(future), waits(None)] == [False, False, False]
    asyncio.run(wait_out([task]))
    task._log_destroy_pending = False  # type: ignore[attr-defined]  # it never can end


def test_tasks_are_cancelled_in_one_place() -> None:
    package = Path(af.__file__).parent
    found = set()
    for path in package.rglob("*.py"):
        if "testing" in path.parts or path == package / "loop.py":
            continue
        text = path.read_text()
        for node in ast.walk(ast.parse(text)) if ".cancel(" in text else ():
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "cancel":
                whose = node.func.value
                name = getattr(whose, "attr", None) or getattr(whose, "id", None) or ast.unparse(whose)
                if name not in NO_TASKS:
                    found.add(f"{path.relative_to(package)}: {ast.unparse(node)}")
    assert not found
