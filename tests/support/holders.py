"""Ways in which somebody may refer to an object: what is used again must be seen to be held by each of them.

Nothing here keeps an object by accident: each function lets go of its argument when it returns.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Generator
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np

#: Takes an object, holds it, and returns how to let go of it.
Hold = Callable[[Any], Callable[[], object]]
#: Makes an object that a frame of the caller holds while it asks ``is_free()``; returns the answer.
Call = Callable[[Callable[[], Any], Callable[[], bool]], bool]


def in_a_list(held: Any) -> Callable[[], object]:
    holder = [held]
    return holder.clear


def in_a_dictionary(held: Any) -> Callable[[], object]:
    holder = {"key": held}
    return holder.clear


def in_an_attribute(held: Any) -> Callable[[], object]:
    holder = SimpleNamespace(held=held)
    return lambda: delattr(holder, "held")


def in_a_closure(held: Any) -> Callable[[], object]:
    def function() -> Any:
        return held

    holder = [function]
    del function
    return holder.clear


def in_a_partial_call(held: Any) -> Callable[[], object]:
    holder = [functools.partial(id, held)]
    return holder.clear


def in_an_exception(held: Any) -> Callable[[], object]:
    """By a local variable of a frame of its traceback."""
    holder = []

    def fail(held: Any) -> None:
        raise ValueError("held")

    try:
        fail(held)
    except ValueError as error:
        holder.append(error.__traceback__.tb_next)
    return holder.clear


def by_a_generator(held: Any) -> Callable[[], object]:
    """By a local variable of it."""

    def generate() -> Generator[None, Any, None]:
        value = yield
        yield
        del value

    generator = generate()
    next(generator)
    generator.send(held)
    return generator.close


def by_a_generators_stack(held: Any) -> Callable[[], object]:
    """By an expression of it whose other half has not been computed yet."""

    def generate() -> Generator[None, Any, None]:
        max((yield), (yield), key=id)

    generator = generate()
    next(generator)
    generator.send(held)
    return generator.close


def by_a_coroutine(held: Any) -> Callable[[], object]:
    """By an argument of one that it awaits."""

    class Pause:
        def __await__(self) -> Generator[None, None, None]:
            yield

    async def inner(value: Any) -> Any:
        await Pause()
        return value

    async def outer(value: Any) -> Any:
        return await inner(value)

    coroutine = outer(held)
    coroutine.send(None)
    return coroutine.close


def _by_a_thread(target: Callable[[list[Any], Callable[[], None]], None], held: Any) -> Callable[[], object]:
    """By a thread's frames: it takes the object from the list, and waits."""
    taken, told = threading.Event(), threading.Event()
    given = [held]

    def wait() -> None:
        taken.set()
        told.wait()

    thread = threading.Thread(target=target, args=(given, wait), daemon=True)
    thread.start()
    taken.wait()

    def release() -> None:
        told.set()
        thread.join()

    return release


def by_a_thread(held: Any) -> Callable[[], object]:
    """By a local variable."""

    def target(given: list[Any], wait: Callable[[], None]) -> None:
        value = given.pop()
        wait()
        del value

    return _by_a_thread(target, held)


def by_an_argument_in_a_thread(held: Any) -> Callable[[], object]:
    """By an argument alone, of a call that waits."""

    def inner(value: Any, wait: Callable[[], None]) -> None:
        wait()

    def target(given: list[Any], wait: Callable[[], None]) -> None:
        inner(given.pop(), wait)

    return _by_a_thread(target, held)


def by_a_threads_stack(held: Any) -> Callable[[], object]:
    """By an expression whose other half is being computed."""

    def target(given: list[Any], wait: Callable[[], None]) -> None:
        (given.pop(), wait())

    return _by_a_thread(target, held)


#: Of any object.
HOLDS: list[Hold] = [
    in_a_list,
    in_a_dictionary,
    in_an_attribute,
    in_a_closure,
    in_a_partial_call,
    in_an_exception,
    by_a_generator,
    by_a_generators_stack,
    by_a_coroutine,
    by_a_thread,
    by_an_argument_in_a_thread,
    by_a_threads_stack,
]


def _through(look: Callable[[Any], Any], name: str) -> Hold:
    def hold(array: Any) -> Callable[[], object]:
        holder = [look(array)]
        return holder.clear

    hold.__name__ = name
    return hold


#: Of arrays of NumPy: what shows their memory.
LOOKS: list[Hold] = [
    _through(lambda array: array[1:], "by_a_view"),
    _through(lambda array: array[:0], "by_an_empty_view"),
    _through(lambda array: array[1:][:1].view(), "by_a_view_of_a_view"),
    _through(lambda array: np.asarray(array), "by_itself_as_an_array"),
    _through(memoryview, "by_an_exported_buffer"),
    _through(lambda array: np.frombuffer(memoryview(array).cast("B"), np.uint8), "by_an_array_of_its_bytes"),
    _through(lambda array: array.__dlpack__(), "by_a_capsule"),
    _through(iter, "by_an_iterator"),
    _through(lambda array: array.sum, "by_a_bound_method"),
    _through(lambda array: array.flat, "by_a_flat_iterator"),
    _through(lambda array: np.nditer(array), "by_another_iterator"),
]


def as_a_local_variable(make: Callable[[], Any], is_free: Callable[[], bool]) -> bool:
    held = make()
    answer = is_free()
    del held
    return answer


def as_an_argument(make: Callable[[], Any], is_free: Callable[[], bool]) -> bool:
    def inner(held: Any) -> bool:
        return is_free()

    return inner(make())


def as_one_of_many_arguments(make: Callable[[], Any], is_free: Callable[[], bool]) -> bool:
    def inner(*held: Any) -> bool:
        return is_free()

    return inner(*[make()])


def as_an_argument_by_name(make: Callable[[], Any], is_free: Callable[[], bool]) -> bool:
    def inner(held: Any) -> bool:
        return is_free()

    return inner(held=make())


def as_a_variable_whose_reader_has_ended(make: Callable[[], Any], is_free: Callable[[], bool]) -> bool:
    """The callee forgets its argument; the caller has it still."""

    def inner(held: Any) -> bool:
        del held
        return is_free()

    held = make()
    return inner(held)


def on_the_stack(make: Callable[[], Any], is_free: Callable[[], bool]) -> bool:
    return (make(), is_free())[1]


def on_the_stack_from_a_variable(make: Callable[[], Any], is_free: Callable[[], bool]) -> bool:
    """The variable is another object's before the expression is computed."""
    held = make()
    return (held, held := None, is_free())[2]


def as_the_object_of_a_method(make: Callable[[], Any], is_free: Callable[[], bool]) -> bool:
    """The object whose method is called stays until it returns."""

    class Holder:
        def __init__(self) -> None:
            self.held = make()

        def ask(self) -> bool:
            return is_free()

    return Holder().ask()


def as_the_item_of_a_loop(make: Callable[[], Any], is_free: Callable[[], bool]) -> bool:
    answers = [is_free() for _ in [make()]]
    return answers[0]


#: Frames between which and the question are others.
CALLS: list[Call] = [
    as_a_local_variable,
    as_an_argument,
    as_one_of_many_arguments,
    as_an_argument_by_name,
    as_a_variable_whose_reader_has_ended,
    on_the_stack,
    on_the_stack_from_a_variable,
    as_the_object_of_a_method,
    as_the_item_of_a_loop,
]


class Place(Protocol):
    """Somewhere that an object is in while others may hold it."""

    def make(self) -> Any:
        """A new object, which is in the place."""

    def is_free(self) -> bool:
        """Return whether the place, which is asked once, takes the object as one that nothing else holds."""


def check_hold(make_place: Callable[[], Place], hold: Hold) -> None:
    """While it is held and after it was let go."""
    check_holds(make_place(), [(hold, True)])
    check_holds(make_place(), [(hold, False)])


def check_holds(place: Place, holds: list[tuple[Hold, bool]]) -> None:
    """An object that is held in several ways, each with whether that is so still when the place is asked."""
    held = place.make()
    releases = [(hold(held), stays) for hold, stays in holds]
    del held
    for release, stays in releases:
        if not stays:
            release()
    free = place.is_free()
    for release, stays in releases:
        if stays:
            release()
    assert free == (not any(stays for _, stays in holds))
