"""Draws of arrays and parameters for functions of `actorflow.array`, written once for all libraries of the standard."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import actorflow.array as xp
from tests.operations.table import COMPLEX, INTEGERS, SINGLE_AND_DOUBLE, Row, Sample, fixed

BOOL = ("bool",)
FLOATS = SINGLE_AND_DOUBLE
INEXACT = (*FLOATS, *COMPLEX)
REAL = (*INTEGERS, *FLOATS)
NUMERIC = (*REAL, *COMPLEX)
ALL = (*BOOL, *NUMERIC)
SPECIAL = (0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan, 0.5, 2.5, -3.5, 1e-30, 1e30)
FEW = (*range(-4, 5), 0.5, -1.5, 2.25)

#: Arrays, and parameters by name.
Call = tuple[tuple[np.ndarray, ...], dict[str, Any]]


class Draws:
    """Arrays and choices of the sample of a number.

    Choices are digits of the number, so that the first numbers have all combinations; arrays are drawn by a seed.

    Args:
        number: Of the sample.
        is_smooth: Whether differences are to be taken: arrays are of double precision, small in size, normal, and
            nowhere near a jump.
    """

    def __init__(self, number: int, is_smooth: bool = False) -> None:
        self.random = np.random.default_rng(number)
        self.is_smooth, self.count, self._rest = is_smooth, 1, number
        self.shape: tuple[int, ...] = ()  # of the last array
        self.dtype = "float64"  # likewise

    def __call__(self, *arrays: np.ndarray, **parameters: Any) -> Call:
        return arrays, parameters

    def among(self, *options: Any) -> Any:
        """One of few options, all of which come."""
        self.count *= len(options)
        self._rest, place = divmod(self._rest, len(options))
        return options[place]

    def whole(self, low: int, high: int) -> int:
        """A number up to ``high``, which may come."""
        return int(self.random.integers(low, high + 1))

    def one(self, options: Any) -> Any:
        """One of many options."""
        return options[self.whole(0, len(options) - 1)]

    def some(self, options: Any) -> tuple[Any, ...]:
        """Some of the options, each once, in any order."""
        order = self.random.permutation(len(options))
        return tuple(options[i] for i in order[: self.whole(0, len(options))])

    def array(
        self,
        dtypes: tuple[str, ...] = ALL,
        shape: tuple[int, ...] | None = None,
        dims: tuple[int, int] = (0, 3),
        least: int = 0,
        small: bool = False,
    ) -> np.ndarray:
        """An array with special values; ``small`` ones are such that sums and products of some are exact enough."""
        double = [name for name in ("float64", "complex128") if name in dtypes]
        self.dtype = self.among(*double) if self.is_smooth and double else self.one(dtypes)
        if shape is None:
            sides = (1, 3) if self.is_smooth else (least, 4)
            shape = tuple(self.whole(*sides) for _ in range(self.whole(*dims)))
        self.shape = shape
        return self.elements(np.dtype(self.dtype), shape, small)

    def nonempty(self, dtypes: tuple[str, ...] = ALL, dims: int = 1, small: bool = False) -> np.ndarray:
        """An array with elements, and so many axes or more."""
        return self.array(dtypes, dims=(dims, 3), least=1, small=small)

    def elements(self, dtype: np.dtype[Any], shape: tuple[int, ...], small: bool) -> np.ndarray:
        """Elements of an array."""
        random = self.random
        if dtype.kind == "c":
            part = np.empty(0, dtype).real.dtype
            made = np.empty(shape, dtype)
            made.real, made.imag = self.elements(part, shape, small), self.elements(part, shape, small)
            return made
        if dtype.kind == "b":
            return random.random(shape) < 0.5
        if dtype.kind in "iu":
            info = np.iinfo(dtype)
            near = random.integers(max(info.min, -3), 4, shape, dtype=dtype)
            far = random.integers(info.min, info.max, shape, dtype=dtype, endpoint=True)
            return near if small else np.where(random.random(shape) < 0.5, near, far)
        if self.is_smooth:
            return np.asarray(random.standard_normal(shape))
        info = np.finfo(dtype)
        extremes = [float(x) for x in (info.max, info.smallest_normal, info.smallest_subnormal, info.eps)]
        values = FEW if small else (*SPECIAL, *extremes, *[-x for x in extremes])
        chosen = random.choice(np.array(values), shape)
        return np.asarray(
            np.where(small | (random.random(shape) < 0.5), chosen, random.uniform(-100, 100, shape)), dtype
        )

    def pair(self, dtypes: tuple[str, ...], mixed: bool = True, small: bool = False) -> list[np.ndarray]:
        """Two arrays that broadcast, of dtypes that the standard promotes."""
        whole = self.array(dtypes, small=small)
        one = self.dtype
        others = [each for each in dtypes if mixed and promotes(one, each)] or [one]
        full = self.shape
        cut = [tuple(n if self.random.random() < 0.7 else 1 for n in full)[self.whole(0, len(full)) :] for _ in "ab"]
        side = self.whole(0, 2)
        first, second = [full if side == i else shape for i, shape in enumerate(cut)]
        x = whole if first == full else self.elements(whole.dtype, first, small)
        y = self.array(tuple(others), second, small=small)
        self.shape = np.broadcast_shapes(first, second)
        return [x, y]

    def axis(self, extra: int = 0) -> int:
        """An axis of the last array."""
        return self.whole(-len(self.shape) - extra, len(self.shape) - 1 + extra)

    def axes(self) -> Any:
        """None, an axis, or some of the last array."""
        how = self.among(0, 1, 2) if self.shape else 0
        return None if how == 0 else self.axis() if how == 1 else self.some(range(len(self.shape)))

    def key(self, is_new: bool = False) -> Any:
        """Numbers, slices, and maybe new axes, which index the last array, and an ellipsis, as the standard wants."""
        parts: list[Any] = []
        for n in self.shape[: self.whole(0, len(self.shape))]:
            step = self.one((None, 1, 2, -1, -2))
            ends = (None, *range(-n, n + (step is None or step > 0)))
            piece = slice(self.one(ends), self.one(ends), step)
            parts.append(self.whole(-n, n - 1) if n and self.random.random() < 0.3 else piece)
            parts += [None] * (is_new and self.random.random() < 0.2)
        return (*parts, Ellipsis) if self.random.random() < 0.7 else (Ellipsis, *([slice(None)] if self.shape else []))

    def above(self, dtype: str) -> str | None:
        """A dtype that a sum or product of this one may be formed in, or None."""
        kind = np.dtype(dtype).kind
        wider = [each for each in NUMERIC if np.dtype(each).kind == kind and np.result_type(dtype, each) == each]
        return self.one((None, *wider))


def promotes(one: str, other: str) -> bool:
    """Whether the standard has a dtype for both."""
    kinds = {np.dtype(one).kind, np.dtype(other).kind}
    mixed_signs = kinds == {"i", "u"} and "uint64" in (one, other)
    return not mixed_signs and (len(kinds) == 1 or kinds in ({"i", "u"}, {"f", "c"}))


def found(library: Any, name: str) -> Any:
    """A function of a library, or of one of its modules."""
    for part in name.split("."):
        library = getattr(library, part)
    return library


class Drawn(NamedTuple):
    """Samples of a function, by their numbers.

    Attributes:
        draw: Draws arrays and parameters.
        form: What is done: ``form(xp, *arrays, **parameters)``.
    """

    draw: Callable[[Draws], Call]
    form: Callable[..., Any]

    def __call__(self, number: int, is_smooth: bool = False) -> Sample:
        arrays, parameters = self.draw(Draws(number, is_smooth))
        return Sample(partial(self.form, xp, **parameters), fixed(*arrays))

    def smooth(self, least: int, most: int) -> Iterator[Sample]:
        """Samples with all combinations of parameters if they are few, or with some."""
        draws = Draws(0, is_smooth=True)
        self.draw(draws)
        numbers = np.arange(max(draws.count, least))
        if draws.count > most:
            random = np.random.default_rng(0)
            # What is drawn beside those combinations is in what the number is more than their count.
            numbers = random.choice(draws.count, most, False) + draws.count * random.integers(0, 1 << 20, most)
        for number in numbers.tolist():
            yield self(number, is_smooth=True)


def function(name: str, draw: Callable[[Draws], Call], form: Callable[..., Any] | None = None, **more: Any) -> Row:
    """The row of a function of arrays, by its name in the standard.

    Args:
        name: Of the row, after "array.", and of the function if there is no ``form``.
        draw: Draws arrays and parameters.
        form: What is done: ``form(xp, *arrays, **parameters)``.
        more: Other fields of the row.
    """
    form = form or (lambda xp, *arrays, **parameters: found(xp, name)(*arrays, **parameters))
    drawn = Drawn(draw, form)
    return Row(None, [drawn(0, is_smooth=True)], name=f"array.{name}", standard=form, drawn=drawn, **more)
