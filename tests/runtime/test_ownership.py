"""What is fed stays the caller's, what is fetched becomes the caller's, and functions change nothing they are given.

Graphs are drawn of all that hands memory on: functions that return their input, a view of it or what they keep, views,
kernels that compute in place, constants, variables. Then each side writes into all that is its own.
"""

import asyncio
import gc
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import actorflow as af
from actorflow.devices.memory import COPIED_BYTES, POOLED_BYTES
from tests.support.effort import FULL

ROWS = 3
#: Rows that are copied when they are fetched, that are not, and that are used again.
WIDTHS = (2, COPIED_BYTES // 4, POOLED_BYTES // 4)


@dataclass(frozen=True)
class Returned(af.ops.Operation):
    """An operation whose kernel returns its input."""

    arguments = ("x",)

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs

    def compute(self, x: Any) -> Any:  # type: ignore[override]
        return x


@dataclass(frozen=True, eq=False)
class Foreign(Returned):
    """An operation whose kernel returns memory that it has, and that is no array's."""

    memory: bytearray

    def compute(self, x: Any) -> Any:  # type: ignore[override]
        return np.ndarray(x.shape, "f", self.memory)


@dataclass
class Subject:
    """A graph, and what there is beside its feeds and results that nobody may change."""

    kinds: tuple[str, ...]
    reads: tuple[int, ...]
    width: int
    written: list[str] = field(default_factory=list)
    kept: list[Any] = field(default_factory=list)
    updating: list[Any] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.graph = af.Graph("owned")
        self.x = self.graph.blob("x", ("batch", self.width))
        self.weight = self.graph.variable("weight", (1, self.width), init=2)
        self.blobs = [self.x]
        for kind, read in zip(self.kinds, self.reads, strict=True):
            self.blobs.append(KINDS[kind][0](self, self.blobs[read % len(self.blobs)]))

    def expected(self, x: Any) -> list[Any]:
        values = [x]
        for kind, read in zip(self.kinds, self.reads, strict=True):
            values.append(KINDS[kind][1](values[read % len(values)].copy()))
        return values

    def own(self, fn: Callable[[Any], Any], x: af.Blob, *, is_async: bool = False) -> af.Blob:
        """A function that tries to write into what it is given."""

        def careless(x: Any) -> Any:
            for change in (lambda: x.fill(99), lambda: np.add(x, 1, out=x), lambda: x.T.sort()):
                try:
                    change()
                except ValueError:
                    continue
                self.written.append("by a function")
            return fn(x)

        async def careless_async(x: Any) -> Any:
            await asyncio.sleep(0)
            return careless(x)

        found: af.Blob = self.graph.function(
            self.graph.unique_name("own"), careless_async if is_async else careless, x.spec
        )(x)
        return found

    def keep(self, value: Any) -> Any:
        self.kept.append(value)
        return value

    def returns_kept(self, x: af.Blob) -> af.Blob:
        kept = self.keep(np.full((64, self.width), 7, "f"))
        return self.own(lambda x: kept[: len(x)], x)

    def returns_foreign(self, x: af.Blob) -> af.Blob:
        """Memory that is no array's."""
        memory = bytearray(np.full((64, self.width), 7, "f"))
        self.keep(np.frombuffer(memory, "f"))
        return self.graph.apply(Foreign(memory), x)

    def with_literal(self, x: af.Blob) -> af.Blob:
        return x + self.keep(np.full((1, self.width), 3, "f"))

    def updates(self, x: af.Blob) -> af.Blob:
        """A variable that is given what it was, by a function."""
        mine = self.graph.variable(self.graph.unique_name("mine"), (1, self.width), init=1)
        update = self.graph.function(self.graph.unique_name("update"), lambda w: w)
        [mine] >> update >> [mine]
        self.updating.append(update)
        return x * mine


#: What an op makes of a blob, and its value.
KINDS: dict[str, tuple[Callable[[Subject, af.Blob], af.Blob], Callable[[Any], Any]]] = {
    "its input": (lambda s, x: s.own(lambda x: x, x), lambda x: x),
    "its input, later": (lambda s, x: s.own(lambda x: x, x, is_async=True), lambda x: x),
    "a view": (lambda s, x: s.own(lambda x: x[:, :], x), lambda x: x),
    "a view of another type": (lambda s, x: s.own(lambda x: x.view(np.uint32).view("f"), x), lambda x: x),
    "a new array": (lambda s, x: s.own(lambda x: x + 1, x), lambda x: x + 1),
    "a new array, later": (lambda s, x: s.own(lambda x: x + 1, x, is_async=True), lambda x: x + 1),
    "a new array that is kept": (lambda s, x: s.own(lambda x: s.keep(x + 1), x), lambda x: x + 1),
    "its input, kept": (lambda s, x: s.own(s.keep, x), lambda x: x),
    "a part of a new array": (lambda s, x: s.own(lambda x: np.tile(x, (2, 1))[: len(x)], x), lambda x: x),
    "a new array by columns": (lambda s, x: s.own(lambda x: np.asfortranarray(x * 2), x), lambda x: x * 2),
    "a new array, read-only": (lambda s, x: s.own(lambda x: af.interchange.read_only(x + 1), x), lambda x: x + 1),
    "a row many times": (
        lambda s, x: s.own(lambda x: np.broadcast_to(np.full(s.width, 7, "f"), x.shape), x),
        lambda x: np.full_like(x, 7),
    ),
    "a column many times": (
        lambda s, x: s.own(lambda x: np.broadcast_to(x[:, :1] + 0, x.shape), x),
        lambda x: np.broadcast_to(x[:, :1], x.shape),
    ),
    "an array that it keeps": (Subject.returns_kept, lambda x: np.full_like(x, 7)),
    "a list": (lambda s, x: s.own(lambda x: x[:, :2].tolist(), x) if s.width == 2 else x + 0, lambda x: x + 0),
    "in place": (lambda s, x: af.ops.relu(af.ops.scale(x, 2.0)), lambda x: np.maximum(x * 2, 0)),
    "reshaped": (lambda s, x: af.ops.reshape(af.ops.reshape(x, (-1,)), x.shape), lambda x: x),
    "cut": (lambda s, x: x[:, :], lambda x: x),
    "returned by a kernel": (lambda s, x: s.graph.apply(Returned(), x), lambda x: x),
    "foreign memory of a kernel": (Subject.returns_foreign, lambda x: np.full_like(x, 7)),
    "turned": (lambda s, x: x.T.T, lambda x: x),
    "with a literal": (Subject.with_literal, lambda x: x + np.float32(3)),
    "with a variable": (lambda s, x: x * af.ops.reshape(s.weight, (s.width,)), lambda x: x * 2),
    "with a variable that is updated": (Subject.updates, lambda x: x),
}

#: What a caller may feed: an array of a value, and what it is fed as.
FORMS: dict[str, Callable[[Any], tuple[Any, Any]]] = {
    "array": lambda x: (x, x),
    "read-only": lambda x: (x, af.interchange.read_only(x)),
    "part of another": lambda x: ((whole := np.concatenate([x, x])), whole[: len(x)]),
    "by columns": lambda x: ((turned := x.T.copy()), turned.T),
    "of a class of its own": lambda x: (x, x.view(np.matrix)),
    "by DLPack": lambda x: (x, Exported(x)),
    "narrower": lambda x: ((narrow := x.astype("f2")), narrow),
}


class Exported:
    def __init__(self, array: Any) -> None:
        self.array, self.shape = array, array.shape

    def __dlpack__(self, **options: Any) -> Any:
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def value(seed: int, width: int) -> Any:
    return np.random.default_rng(seed).integers(-8, 8, (ROWS, width)).astype("f")


def check(found: Iterable[Any], expected: Iterable[Any]) -> None:
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(mine, other, strict=True)


@dataclass
class Caller:
    """What a caller feeds and fetches."""

    subject: Subject
    form: str
    seed: int

    def __post_init__(self) -> None:
        self.held, fed = FORMS[self.form](value(self.seed, self.subject.width))
        self.feeds = {self.subject.x: fed}
        self.expected = self.subject.expected(value(self.seed, self.subject.width))

    def take(self, result: af.Result) -> None:
        self.results = [result[blob] for blob in self.fetched(self.subject)]

    @staticmethod
    def fetched(subject: Subject) -> list[af.Blob]:
        return list(dict.fromkeys(subject.blobs))

    def check(self) -> None:
        of_blob = dict(zip(self.subject.blobs, self.expected, strict=True))
        check(self.results, of_blob.values())

    def check_feed(self) -> None:
        check([self.held], [FORMS[self.form](value(self.seed, self.subject.width))[0]])


async def by_run(subject: Subject, callers: list[Caller]) -> None:
    for caller, result in zip(
        callers,
        await asyncio.gather(
            *[subject.graph.run(each.feeds, fetch=[*Caller.fetched(subject), *subject.updating]) for each in callers]
        ),
        strict=True,
    ):
        caller.take(result)


async def by_stream(subject: Subject, callers: list[Caller]) -> None:
    feeds = [each.feeds for each in callers]
    results = subject.graph.stream(feeds, fetch=[*Caller.fetched(subject), *subject.updating], in_flight=2)
    for caller in callers:
        caller.take(await anext(results))
    await results.aclose()


async def by_batch(subject: Subject, callers: list[Caller]) -> None:
    async with subject.graph.batched(fetch=Caller.fetched(subject), max_rows=2 * ROWS) as batcher:
        results = await asyncio.gather(*[batcher.run(each.feeds) for each in callers])
    for caller, result in zip(callers, results, strict=True):
        caller.take(result)


WAYS = {"run": by_run, "stream": by_stream, "batched": by_batch}


async def compare(subject: Subject, way: str, forms: list[str]) -> None:
    async with subject.graph:
        for turn in range(2):
            callers = [Caller(subject, form, 10 * turn + i) for i, form in enumerate(forms)]
            await WAYS[way](subject, callers)
            assert subject.written == []
            kept = [np.array(each) for each in subject.kept]
            weights = {each: each.value.copy() for each in subject.graph.variables}
            for caller in callers:
                caller.check()
                caller.check_feed()
            for i, caller in enumerate(callers):
                for j, mine in enumerate(caller.results):
                    mine.fill(-1000 - j)
                    for other in caller.results[j + 1 :]:
                        assert not np.shares_memory(mine, other)
                    check(
                        [each.flat[0] for each in caller.results[: j + 1]],
                        [np.float32(-1000 - k) for k in range(j + 1)],
                    )
                for other in callers[i + 1 :]:
                    other.check()
                for other in callers:
                    other.check_feed()
                check(subject.kept, kept)
                check([each.value for each in weights], weights.values())
            alive = [weakref.ref(caller.held) for caller in callers]
            for caller in callers:
                caller.held.fill(55)
                marks = [np.float32(-1000 - j) for j in range(len(caller.results))]
                check([each.flat[0] for each in caller.results], marks)
            if "its input, kept" not in subject.kinds:
                results = [caller.results for caller in callers]
                del callers, caller, other
                gc.collect()
                assert [each() for each in alive] == [None] * len(alive), len(results)


@pytest.mark.together("way", WAYS, at_once=13)
@pytest.mark.together("kind", KINDS)
@pytest.mark.any_loop
async def test_each_kind_before_others_and_behind_them(kind: str, way: str) -> None:
    for width in WIDTHS[:2] if FULL else WIDTHS[:1]:
        await compare(Subject((kind, "its input", "in place", kind), (0, 1, 1, 3), width), way, ["array"] * 2)


@pytest.mark.together("form", FORMS, at_once=12)
@pytest.mark.together("way", WAYS)
@pytest.mark.any_loop
async def test_whatever_is_fed(form: str, way: str) -> None:
    for width in WIDTHS[:2]:
        await compare(Subject(("its input", "in place", "reshaped", "cut"), (0, 0, 0, 1), width), way, [form, form])


@settings(max_examples=settings.default.max_examples // 3)  # type: ignore[union-attr]
@given(
    st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.integers(0, 9)), min_size=1, max_size=6),
    st.sampled_from(WIDTHS),
    st.sampled_from(sorted(WAYS)),
    st.lists(st.sampled_from(sorted(FORMS)), min_size=1, max_size=3),
)
def test_any_graph(steps: list[tuple[str, int]], width: int, way: str, forms: list[str]) -> None:
    subject = Subject(tuple(kind for kind, _ in steps), tuple(read for _, read in steps), width)
    af.run(compare(subject, way, forms))
