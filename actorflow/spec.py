"""The static type of a tensor: dtype and shape, whose lengths may be open until a run.

An axis is opened by its name, ``shape=("batch", 28, 28, 1)``. Its length is a `Length`, which computes as an integer
does: sums, products and floor divisions give further lengths, in one normal form, so that equal ones are equal however
they were written. The idea, and most of the rules, are those of symbolic dimensions in JAX's shape polymorphism.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, cast

import numpy as np

from actorflow.errors import DTypeError, ShapeError

#: Lengths of all open axes of a plan, by their names in alphabetical order.
Lengths: TypeAlias = tuple[tuple[str, int], ...]
#: Axes of an array, at most: NumPy has no more.
MOST_AXES = 64
#: Stands for any length where one is asked for an answer, such as ``n > 3``, or for divisors.
_LONG = math.lcm(*range(1, 51))
#: Most names and parts that a formula may have: one that grows without end, as a file could make it, ends in an error.
_MOST_PARTS = 1_000
_MOST_DEPTH = 50  # parts in parts of a formula: well within the recursion limit of every Python
#: Terms of a sum that is not looked at for that: parts and products of lengths are, and most lengths have no more.
_FEW_TERMS = 4
#: Whether two lengths that may be equal are taken as equal.
_assumes: ContextVar[bool] = ContextVar("actorflow.assumes", default=False)


class TensorSpec(NamedTuple):
    """Shape and dtype of a tensor, known before any value is.

    The length of an axis may be open until a run: it is a `Length` then, which computes as an integer does.

    ``dtype=object`` with ``shape=()`` is the type of "any Python object": such a blob passes values between
    functions unchecked.

    Example:
        >>> spec = af.TensorSpec.of([2, 3], "float64")
        >>> spec
        TensorSpec(shape=(2, 3), dtype=dtype('float64'))
        >>> spec.size, spec.size_bytes
        (6, 48)
        >>> images = af.TensorSpec.of(["batch", 28, 28])
        >>> str(images), images.leading_axis
        ('float32[batch, 28, 28]', 'batch')
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]

    @classmethod
    def of(cls, shape: Any, dtype: Any = "float32") -> TensorSpec:
        """Normalize and check a shape and a dtype.

        Args:
            shape: Length of each axis; a name opens one, and equal names are equal lengths.
            dtype: Whatever NumPy takes as a dtype.
        Raises:
            ShapeError: if an axis is neither a non-negative integer nor a name.
            DTypeError: if NumPy does not know the dtype.

        Example:
            >>> af.TensorSpec.of([], "int64")
            TensorSpec(shape=(), dtype=dtype('int64'))
            >>> str(af.TensorSpec.of(["n", "n", 3]))  # two equal lengths
            'float32[n, n, 3]'
        """
        given = tuple(shape) if isinstance(shape, Iterable) and not isinstance(shape, str) else (shape,)
        lengths: list[int] = []
        for each in given:
            if isinstance(each, str):
                lengths.append(axis(each))
            elif isinstance(each, Length):
                lengths.append(each)  # type: ignore[arg-type]  # which computes as an integer does
            elif isinstance(each, bool) or not isinstance(each, int | np.integer) or each < 0:
                hint = ': give the axis a name, such as "batch"' if each is None else ""
                raise ShapeError(
                    f"shape {given!r}: every axis must be a non-negative integer or a name, got {each!r}{hint}"
                )
            else:
                lengths.append(int(each))
        try:
            kind = np.dtype(dtype)
        except (TypeError, ValueError, SyntaxError) as error:
            raise DTypeError(f"{dtype!r} is not a dtype that NumPy knows") from error
        return cls(tuple(lengths), kind)

    @property
    def axes(self) -> frozenset[str]:
        """Names of the open axes that the shape depends on."""
        return axes_in(self.shape)

    @property
    def leading_axis(self) -> str | None:
        """The open axis that the shape begins with; None if it begins with none."""
        first: Any = self.shape[0] if self.shape else None
        return first.name if isinstance(first, Length) else None

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def size_bytes(self) -> int:
        """Bytes of a dense tensor of this type."""
        return self.size * self.dtype.itemsize

    @property
    def is_object(self) -> bool:
        """True if this is the type of "any Python object"."""
        return self.dtype.hasobject and not self.shape

    def __str__(self) -> str:
        return f"{self.dtype}{list(self.shape)}"


# -- lengths of open axes ---------------------------------------------------------------------------------------------


class _Part(NamedTuple):
    """A term that is not a sum of products: a floor division, or the smaller of two."""

    name: str
    left: Length | int
    right: Length | int

    def __str__(self) -> str:
        if self.name == "min":
            return f"min({self.left}, {self.right})"
        return f"({self.left})//{self.right}" if isinstance(self.right, int) else f"({self.left})//({self.right})"

    @property
    def formula(self) -> list[Any]:
        """The part as lists of texts and numbers."""
        return [self.name, *[each.formula if isinstance(each, Length) else each for each in (self.left, self.right)]]

    def at(self, lengths: Mapping[str, int]) -> int:
        left, right = int(at(self.left, lengths)), int(at(self.right, lengths))
        if self.name == "min":
            return min(left, right)
        if not right:
            raise ShapeError(f"{self} with {said(tuple(lengths.items()))} divides by zero")
        return left // right


_Atom: TypeAlias = str | _Part  # an axis by its name, or a part
_Product: TypeAlias = tuple[_Atom, ...]


class Pending:
    """Base of objects that stand for others until the lengths of open axes are known."""

    __slots__ = ()

    def at(self, lengths: Mapping[str, int]) -> Any:
        """Its value for axes of these lengths; raises KeyError if one is missing."""
        raise NotImplementedError


class Length(Pending):
    """The length of an open axis, or one that follows from such lengths.

    ``==`` compares the formulas: it is true if two are equal whatever the axes' lengths are. Where that is not known,
    ``<``, ``>`` and the truth value answer as for long axes; the answers are checked when a plan is made,
    for the lengths that there are then.
    """

    __slots__ = ("_hash", "terms")

    def __init__(self, terms: tuple[tuple[_Product, int], ...]) -> None:
        self.terms = terms  # factors of the products that are added up: (atoms in order, factor)
        self._hash = hash(terms)

    @property
    def formula(self) -> list[Any]:
        """The formula as lists of texts and numbers, which `of_formula` reads: ``[factor, axis, ...]`` of each term."""
        return [
            [factor, *[atom if isinstance(atom, str) else atom.formula for atom in product]]
            for product, factor in self.terms
        ]

    @classmethod
    def of_formula(cls, formula: Any) -> Length:
        """The length of a formula that may be anything; raises ShapeError if it is not a result of `formula`."""
        try:
            found = _made({tuple(sorted(map(_atom, atoms), key=str)): _factor(each) for each, *atoms in formula})
        except ShapeError:
            raise
        except (TypeError, ValueError) as error:
            raise ShapeError(f"expected the formula of a length, got {formula!r:.200}: {error}") from error
        _check_parts(_parts_of(found))
        if not isinstance(found, Length) or found.formula != formula:
            raise ShapeError(f"expected the formula of a length in its normal form, got {formula!r:.200}")
        return found

    @property
    def axes(self) -> frozenset[str]:
        """Names of the axes that it depends on."""
        return _axes_of(self.terms)

    @property
    def name(self) -> str | None:
        """The axis whose length it is; None if it follows from others."""
        ((product, factor), *rest) = self.terms
        return product[0] if not rest and factor == 1 and len(product) == 1 and isinstance(product[0], str) else None

    def at(self, lengths: Mapping[str, int]) -> int:
        total = 0
        for product, factor in self.terms:
            for atom in product:
                factor *= lengths[atom] if isinstance(atom, str) else atom.at(lengths)
            total += factor
        return total

    # -- arithmetic ----------------------------------------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        terms = _terms(other)
        if terms is None:
            return NotImplemented
        total = Counter(dict(self.terms))
        for product, factor in terms:
            total[product] += factor
        return _made(total)

    def __mul__(self, other: Any) -> Any:
        terms = _terms(other)
        if terms is None:
            return NotImplemented
        if isinstance(other, Length):
            _check_parts(len(terms) * _parts_of(self) + len(self.terms) * _parts_of(other))
        total: Counter[_Product] = Counter()
        for left, a in self.terms:
            for right, b in terms:
                total[tuple(sorted((*left, *right), key=str))] += a * b
        return _made(total)

    __radd__, __rmul__ = __add__, __mul__

    def __neg__(self) -> Any:
        return self * -1

    def __pos__(self) -> Any:
        return self

    def __sub__(self, other: Any) -> Any:
        return NotImplemented if _terms(other) is None else self + other * -1

    def __rsub__(self, other: Any) -> Any:
        return NotImplemented if _terms(other) is None else self * -1 + other

    def __floordiv__(self, other: Any) -> Any:
        return NotImplemented if _terms(other) is None else _divided(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return NotImplemented if _terms(other) is None else _divided(other, self)

    def __mod__(self, other: Any) -> Any:
        return NotImplemented if _terms(other) is None else self - _divided(self, other) * other

    def __rmod__(self, other: Any) -> Any:
        return NotImplemented if _terms(other) is None else other - _divided(other, self) * self

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __pow__(self, power: int) -> Any:
        return math.prod([self] * power)

    # -- comparison ----------------------------------------------------------------------------------------------------

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Length) and self.terms == other.terms:
            return True
        return _assumes.get() and _terms(other) is not None and may_equal(self, other)

    def __lt__(self, other: Any) -> bool:
        return NotImplemented if _terms(other) is None else long(self - other) < 0

    def __le__(self, other: Any) -> bool:
        return NotImplemented if _terms(other) is None else long(self - other) <= 0

    def __gt__(self, other: Any) -> bool:
        return NotImplemented if _terms(other) is None else long(self - other) > 0

    def __ge__(self, other: Any) -> bool:
        return NotImplemented if _terms(other) is None else long(self - other) >= 0

    def __bool__(self) -> bool:
        return self > 0

    # -- the number is needed -----------------------------------------------------------------------------------------

    def __index__(self) -> int:
        raise self._unknown("an integer")

    def __float__(self) -> float:
        raise self._unknown("a number")

    __int__ = __index__

    def __truediv__(self, other: Any) -> Any:
        raise self._unknown("a quotient that is no length")

    __rtruediv__ = __truediv__

    def _unknown(self, wanted: str) -> ShapeError:
        return ShapeError(
            f"the length {self} is not known before a run, and {wanted} is needed here: "
            f"give a number in the place of the open axis {' or '.join(map(repr, sorted(self.axes)))}"
        )

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        texts = []
        for product, factor in self.terms:
            powers = Counter(map(str, product))
            shown = "*".join(name if power == 1 else f"{name}**{power}" for name, power in powers.items())
            number = "" if abs(factor) == 1 and shown else str(abs(factor))
            texts.append(("- " if factor < 0 else "+ ", "*".join(filter(None, (number, shown)))))
        (sign, first), *rest = texts
        return ("-" if sign == "- " else "") + " ".join([first, *[sign + text for sign, text in rest]])


def axis(name: str) -> Any:
    """The length of the axis of this name; raises ShapeError if that is no name."""
    if not name.isidentifier():
        raise ShapeError(f"{name!r} cannot name an axis: a name has letters, digits and _, and begins with no digit")
    return Length((((name,), 1),))


def rows_axis(spec: TensorSpec, what: str) -> tuple[int, TensorSpec]:
    """Position of the one open axis of a type, and the type without it; raises ShapeError if not just one is open."""
    shape: tuple[Any, ...] = spec.shape
    named = [i for i, length in enumerate(shape) if isinstance(length, Length) and length.name is not None]
    if len(named) != 1 or len([length for length in shape if isinstance(length, Length)]) != 1:
        raise ShapeError(f'{what}: expected one open axis, that of the rows, such as ("row", 128), got {spec}')
    return named[0], TensorSpec(shape[: named[0]] + shape[named[0] + 1 :], spec.dtype)


def at(value: Any, lengths: Mapping[str, int]) -> Any:
    """A length as a number; shapes, types and operations that hold some with numbers in their place."""
    if isinstance(value, Pending):
        return value.at(lengths)
    if isinstance(value, tuple):
        found = [at(each, lengths) for each in value]
        if all(new is old for new, old in zip(found, value, strict=True)):
            return value
        return type(value)(*found) if hasattr(value, "_fields") else tuple(found)
    if isinstance(value, slice):
        return slice(at(value.start, lengths), at(value.stop, lengths), at(value.step, lengths))
    if is_dataclass(value) and not isinstance(value, type):
        old = {field.name: getattr(value, field.name) for field in fields(value) if field.init}
        new = {name: at(each, lengths) for name, each in old.items()}
        return value if all(new[name] is each for name, each in old.items()) else replace(value, **new)
    return value


def replaced(shape: tuple[Any, ...], lengths: Mapping[str, Any]) -> tuple[Any, ...]:
    """A shape with other lengths in the place of axes: numbers, or lengths that are open as well."""

    def entered(value: Any) -> Any:
        if isinstance(value, Length):
            terms = [factor * math.prod([entered(atom) for atom in product]) for product, factor in value.terms]
            return sum(terms)
        if isinstance(value, _Part):
            left, right = entered(value.left), entered(value.right)
            if value.name == "//":
                return left // right
            if isinstance(left, Length) or isinstance(right, Length):
                return _made({(_part("min", left, right),): 1})
            return min(left, right)
        return lengths[value] if isinstance(value, str) else value

    return tuple([entered(length) for length in shape])


@lru_cache(4096)
def _axes_of(terms: tuple[Any, ...]) -> frozenset[str]:
    atoms = [atom for product, _ in terms for atom in product]
    return frozenset().union(*[{x} if isinstance(x, str) else axes_in((x.left, x.right)) for x in atoms])


def axes_in(value: Any) -> frozenset[str]:
    """Names of the axes that lengths in shapes, types and operations depend on."""
    if isinstance(value, Length):
        return value.axes
    if isinstance(value, tuple):
        return frozenset().union(*map(axes_in, value)) if value else frozenset()
    if isinstance(value, slice):
        return axes_in((value.start, value.stop, value.step))
    if is_dataclass(value) and not isinstance(value, type):
        return axes_in(tuple([getattr(value, field.name) for field in fields(value)]))
    return frozenset()


def may_equal(left: Any, right: Any) -> bool:
    """Return whether two lengths, or two shapes, are equal for some lengths of axes of at least 2."""
    if isinstance(left, tuple) and isinstance(right, tuple):
        return len(left) == len(right) and all(map(may_equal, left, right))
    if _terms(left) is None or _terms(right) is None:
        return bool(left == right)
    difference = left - right
    if not isinstance(difference, Length):
        return bool(difference == 0)
    formula, number = (right, left) if isinstance(left, int) else (left, right)
    if isinstance(number, Length) or number >= 2:
        return True
    try:  # (n + 15)//48 may well be 1, while n and n + 1 are at least 2
        return bool(at(formula, dict.fromkeys(axes_in(formula), 2)) <= number)
    except ShapeError:  # as it divides by zero then
        return True


@contextmanager
def assumed() -> Iterator[None]:
    """Take lengths that may be equal as equal inside the ``with`` block: the undecided is checked later."""
    token = _assumes.set(True)
    try:
        yield
    finally:
        _assumes.reset(token)


def minimum(left: Any, right: Any) -> Any:
    """The smaller one of two lengths or numbers, as a formula."""
    difference = left - right
    if not isinstance(difference, Length):
        return left if difference < 0 else right
    if difference.terms[0][1] < 0:
        left, right, difference = right, left, -difference
    if is_natural(difference):
        return right
    by = math.gcd(*[factor for _, factor in difference.terms])
    more, less = ([(p, sign * f // by) for p, f in difference.terms if sign * f > 0] for sign in (1, -1))
    over, under = _made(dict(more)), _made(dict(less))  # min(l, r) = r + min(l - r, 0) = r - under + min(over, under)
    return right + by * (_made({(_part("min", over, under),): 1}) - under)


def maximum(left: Any, right: Any) -> Any:
    """The larger one of two lengths or numbers, as a formula."""
    return left + right - minimum(left, right)


def is_natural(length: Any) -> bool:
    """Return whether a length or number is known not to be negative, whatever the axes' lengths are."""
    if not isinstance(length, Length):
        return bool(length >= 0)
    parts = [atom for product, _ in length.terms for atom in product if isinstance(atom, _Part)]
    return all(factor > 0 for _, factor in length.terms) and all(is_natural(n) for p in parts for n in p[1:])


def slice_length(part: tuple[Any, Any, Any], length: Any) -> Any:
    """Number of elements that a slice picks from an axis, as a formula where lengths are open.

    A bound that depends on open axes, and is not negative for long ones, is taken as not negative.
    """
    if not any(isinstance(each, Length) for each in (*part, length)):
        return len(range(*slice(*part).indices(length)))
    start, stop, step = part
    step = 1 if step is None else step
    if step < 0:  # in reverse, as a slice of the reversed axis
        start, stop = (None if end is None else -1 - end for end in (start, stop))
        return slice_length((start, stop, -step), length)
    start = 0 if start is None else start
    if stop is None:
        count = length - _bound(start, length)
    elif start < 0 or stop < 0 or not is_natural(stop - start):
        ends = _bound(stop, length), _bound(start, length)
        count = length + stop - start if stop < 0 <= start else ends[0] - ends[1]
        count = maximum(count, 0)
    else:
        count = minimum(stop, length) - minimum(start, length)
    return (count + step - 1) // step


def _bound(end: Any, length: Any) -> Any:
    """A bound of a slice, counted from the front, and inside of the axis."""
    return maximum(end + length, 0) if end < 0 else minimum(end, length)


@dataclass(frozen=True)
class Follows(Pending):
    """A function's result of lengths not known yet; a parameter of an operation until then (`following`)."""

    function: Callable[..., Any]  # the function, which depends on its arguments alone
    given: tuple[Any, ...]  # lengths and other arguments

    def at(self, lengths: Mapping[str, int]) -> Any:
        return self.function(*at(self.given, lengths))

    def __float__(self) -> float:
        raise ShapeError(f"{self} is not known before a run, and a number is needed here")

    def __str__(self) -> str:
        return f"{self.function.__name__.lstrip('_')}({', '.join(map(str, self.given))})"


def following(function: Callable[..., Any], *given: Any) -> Any:
    """``function(*given)``; where lengths of open axes are given, the result once they are known."""
    return Follows(function, given) if axes_in(given) else function(*given)


def may_divide(length: Any, parts: int) -> bool:
    """Return whether a length can be cut into so many parts of one length, for some lengths of open axes."""
    return may_equal(length, length // parts * parts)


def known(what: str, length: Any) -> int:
    """A length whose number is needed at once; raises ShapeError about ``what`` if it depends on open axes."""
    if isinstance(length, Length):
        names = " and ".join(map(repr, sorted(length.axes)))
        raise ShapeError(
            f"{what} needs the number {length}, which is not known before a run: the axis {names} cannot be open here"
        )
    return length  # type: ignore[no-any-return]


def long(length: Any) -> int:
    """A length as it is where open axes are long."""
    return cast("int", at(length, dict.fromkeys(axes_in(length), _LONG)))


class OpenedInt(int):
    """A number in the place of an open axis' length, which is no axis of one element to repeat even where it is 1."""

    __slots__ = ()


_OPEN = (Length, OpenedInt)


def opened(shape: tuple[Any, ...], lengths: Mapping[str, int]) -> tuple[int, ...]:
    """A shape for these lengths, whose open axes can still be told from the others by `broadcast_shapes`."""
    return tuple([OpenedInt(n.at(lengths)) if isinstance(n, Length) else n for n in shape])


def broadcast_shapes(*shapes: Sequence[int]) -> tuple[int, ...]:
    """`numpy.broadcast_shapes`, of lengths, too.

    An open axis stands for more than one element here, beside which an axis of length 1 is repeated.

    Raises:
        ValueError: if they do not broadcast.
    """
    if not any(isinstance(n, _OPEN) for shape in shapes for n in shape):
        return np.broadcast_shapes(*map(tuple, shapes))
    rank = max(map(len, shapes))
    found: list[Any] = [1] * rank
    for shape in shapes:
        for i, n in enumerate(shape, rank - len(shape)):
            known = found[i]
            if _is_one(known):
                found[i] = n
            elif _is_one(n):
                continue
            elif known == n:
                found[i] = min(known, n, key=_complexity)  # if they are assumed equal
            else:
                raise ValueError(f"shapes {', '.join(map(str, shapes))} do not broadcast")
    return tuple(found)


def _complexity(length: Any) -> tuple[int, int]:
    """Order of lengths that are taken as equal: numbers first, then axes, then formulas of them."""
    return (0 if not isinstance(length, Length) else 1 if length.name else 2), len(str(length))


def may_repeat(shape: Sequence[int], to: Sequence[int]) -> bool:
    """Return whether a shape becomes another one of as many axes by broadcasting."""
    return all(_is_one(n) or n == m for n, m in zip(shape, to, strict=True))


def _is_one(length: Any) -> bool:
    return not isinstance(length, _OPEN) and length == 1


def integers(given: Iterable[Any] | Any) -> tuple[int, ...]:
    """One integer or several, as Python's; lengths as they are, and names of axes as their lengths."""
    one = isinstance(given, int | np.integer | Length | str)
    return tuple([_integer(each) for each in (cast("Any", (given,)) if one else given)])


def _integer(value: Any) -> Any:
    return value if isinstance(value, Length) else axis(value) if isinstance(value, str) else int(value)


def said(lengths: Lengths) -> str:
    """Lengths as text: ``batch = 32, time = 7``."""
    return ", ".join(f"{name} = {n}" for name, n in lengths)


# -- the normal form ---------------------------------------------------------------------------------------------------


def _terms(value: Any) -> tuple[tuple[_Product, int], ...] | None:
    """Of a length, or of a number; None of anything else."""
    if isinstance(value, Length):
        return value.terms
    if isinstance(value, int | np.integer) and not isinstance(value, bool):
        return (((), int(value)),)
    return None


def _parts_of(value: Any) -> int:
    """Number of names and parts of a length, a part of one, or a number."""
    if isinstance(value, _Part):
        return 1 + _parts_of(value.left) + _parts_of(value.right)
    return sum([1 + sum(map(_parts_of, p)) for p, _ in value.terms]) if isinstance(value, Length) else 1


def _check_parts(count: int) -> None:
    if count > _MOST_PARTS:
        raise ShapeError(f"a length is a formula of {count} parts, at most {_MOST_PARTS} are allowed")


def _part(name: str, left: Length | int, right: Length | int) -> _Part:
    found = _Part(name, left, right)
    _check_parts(_parts_of(found))
    if _depth_of(found) > _MOST_DEPTH:
        raise ShapeError(f"a length is a formula of parts in parts, {_MOST_DEPTH} deep at most")
    return found


def _depth_of(value: Any) -> int:
    """How deep the parts of a length, or of a part of one, are in each other."""
    if isinstance(value, Length):
        return max([_depth_of(atom) for product, _ in value.terms for atom in product], default=0)
    return 1 + max(_depth_of(value.left), _depth_of(value.right)) if isinstance(value, _Part) else 0


def _atom(formula: Any) -> _Atom:
    if isinstance(formula, str):
        ((product, _),) = axis(formula).terms
        return cast("_Atom", product[0])
    name, left, right = formula
    if (name, right) == ("//", 0) or name not in ("//", "min"):
        raise ValueError(f"{name!r:.20} of {right!r:.20} is no part of a length")
    return _part(
        name, *[Length.of_formula(each) if isinstance(each, list) else _factor(each) for each in (left, right)]
    )


def _factor(value: Any) -> int:
    if type(value) is not int:
        raise ValueError(f"{value!r:.20} is no factor")
    return value


def _made(total: Mapping[_Product, int]) -> Any:
    """A length, or a number where no axis is left."""
    terms = sorted(((p, factor) for p, factor in total.items() if factor), key=_order)
    if not terms:
        return 0
    if len(terms) == 1 and not terms[0][0]:
        return terms[0][1]
    found = Length(tuple(terms))
    if len(terms) > _FEW_TERMS:
        _check_parts(_parts_of(found))
    return found


def _order(term: tuple[_Product, int]) -> tuple[int, tuple[str, ...]]:
    """The graded lexicographic order, which products keep, so that a division comes to its end."""
    return -len(term[0]), tuple(map(str, term[0]))


def _divided(left: Any, right: Any) -> Any:
    """The floor division, as far as it leaves no rest, and a part for the rest."""
    if isinstance(right, int | np.integer):
        if not right:
            raise ZeroDivisionError(f"{left} // 0")
        return _divided_by(left, int(right))
    quotient, rest = 0, left
    (divisor, by), *_ = right.terms
    while isinstance(rest, Length):
        (product, factor), *_ = rest.terms
        over = Counter(product) - Counter(divisor)
        if factor % by or Counter(divisor) - Counter(product):
            break
        part = _made(Counter({tuple(sorted(over.elements(), key=str)): factor // by}))
        quotient, rest = quotient + part, rest - part * right
    if not isinstance(rest, Length) and rest == 0:
        return quotient
    return quotient + _made(Counter({(_part("//", rest, right),): 1}))


def _divided_by(length: Length, number: int) -> Any:
    """The floor division of a length by a number: ``a + (b + c) // d``, ``d`` without a factor that ``b`` has, too."""
    if number < 0:
        length, number = -length, -number
    whole = _made({product: factor // number for product, factor in length.terms})
    rest = _made({product: factor % number for product, factor in length.terms})
    if not isinstance(rest, Length):
        return whole
    shared = math.gcd(number, *[factor for product, factor in rest.terms if product])
    if shared > 1:  # floor((s * x + c) / (s * d)) = floor((x + floor(c / s)) / d)
        reduced = _made({product: factor // shared for product, factor in rest.terms})
        return whole + reduced // (number // shared)
    for product, factor in rest.terms:
        part = product[0] if factor == len(product) == 1 else None
        if isinstance(part, _Part) and part.name == "//" and isinstance(part.right, int):
            # floor((floor(x / a) + y) / b) = floor((x + a * y) / (a * b))
            others = rest - _made({product: 1})
            return whole + (part.left + others * part.right) // (part.right * number)
    return whole + _made({(_part("//", rest, number),): 1})
