"""Functions in LLVM's own language, for loops whose sums have to stay in registers.

Their text is made line by line; what is a value has a name, ``%7`` say, and a variable an address. LLVM turns variables
into values again, so loops need no further care.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import NamedTuple

from actorflow.ops.numba.machine import address_index, processor
from actorflow.ops.numba.routine import Routine

_ELEMENTS = {"float32": ("float", 4), "float64": ("double", 8)}


class Vectors(NamedTuple):
    """How a processor computes several elements at once.

    Attributes:
        element: LLVM's name of the type of an element.
        size: Its bytes.
        lanes: Elements of a vector.
        registers: Number of vectors that it keeps at hand.
    """

    element: str
    size: int
    lanes: int
    registers: int

    @property
    def vector(self) -> str:
        """LLVM's name of the type of a vector."""
        return f"<{self.lanes} x {self.element}>"

    @property
    def mask(self) -> str:
        """LLVM's name of the type of a truth for each element."""
        return f"<{self.lanes} x i1>"

    @property
    def suffix(self) -> str:
        """How functions of such vectors are called."""
        return f"v{self.lanes}f{8 * self.size}"


@cache
def vectors(dtype: str) -> Vectors | None:
    """This processor's, for one dtype; None if it cannot multiply and add in one step."""
    element, size = _ELEMENTS[dtype]
    features = set(processor().features.split(","))
    if "+avx512f" in features:
        return Vectors(element, size, 64 // size, 32)
    if {"+avx2", "+fma"} <= features:
        return Vectors(element, size, 32 // size, 16)
    if "+neon" in features:
        return Vectors(element, size, 16 // size, 32)
    return None


class Text:
    """The text of one function.

    Args:
        name: Its name.
        arguments: Type and name of each argument.
        result: Type of its result.
        is_inner: Whether only functions of the same text call it.
    """

    def __init__(
        self, name: str, arguments: Sequence[tuple[str, str]], result: str = "void", *, is_inner: bool = False
    ) -> None:
        listed = ", ".join(f"{kind} %{name}" for kind, name in arguments)
        self._head = f"define {'internal ' if is_inner else ''}{result} @{name}({listed}) nounwind {{"
        self._variables: list[str] = []
        self._lines: list[str] = []
        self._count = 0

    def _name(self) -> str:
        self._count += 1
        return f"t{self._count}"

    def do(self, line: str) -> None:
        """Add a line that has no value."""
        self._lines.append(line)

    def let(self, expression: str) -> str:
        """Add a line that has a value, whose name is returned."""
        name = f"%{self._name()}"
        self._lines.append(f"{name} = {expression}")
        return name

    def add(self, a: str, b: str | int) -> str:
        """The sum of two whole numbers."""
        return self.let(f"add i64 {a}, {b}")

    def times(self, a: str, b: str | int) -> str:
        """The product of two whole numbers."""
        return self.let(f"mul i64 {a}, {b}")

    def at(self, kind: str, address: str, index: str | int) -> str:
        """The address of an element."""
        return self.let(f"getelementptr {kind}, ptr {address}, i64 {index}")

    def load(self, kind: str, address: str, index: str | int = 0, *, alignment: int | None = None) -> str:
        """The element at an address, or as many elements further."""
        aligned = "" if alignment is None else f", align {alignment}"
        return self.let(f"load {kind}, ptr {self.at(kind, address, index) if index else address}{aligned}")

    def variable(self, kind: str, value: str | int) -> str:
        """A variable that has a value now; its address."""
        name = f"%{self._name()}"
        self._variables.append(f"{name} = alloca {kind}")
        self.do(f"store {kind} {value}, ptr {name}")
        return name

    def room(self, kind: str, count: int, alignment: int) -> str:
        """Memory of the call for some elements; its address."""
        name = f"%{self._name()}"
        self._variables.append(f"{name} = alloca [{count} x {kind}], align {alignment}")
        return name

    def store(self, kind: str, value: str, address: str, alignment: int | None = None) -> None:
        """Write to an address."""
        self.do(f"store {kind} {value}, ptr {address}{'' if alignment is None else f', align {alignment}'}")

    @contextmanager
    def loop(self, start: str | int, stop: str | int, step: str | int = 1) -> Iterator[str]:
        """What is added within is done for ``range(start, stop, step)``."""
        index, begin, body, end = self.variable("i64", start), self._name(), self._name(), self._name()
        self.do(f"br label %{begin}")
        self.do(f"{begin}:")
        number = self.load("i64", index)
        more = self.let(f"icmp slt i64 {number}, {stop}")
        self.do(f"br i1 {more}, label %{body}, label %{end}")
        self.do(f"{body}:")
        yield number
        self.store("i64", self.add(number, step), index)
        self.do(f"br label %{begin}")
        self.do(f"{end}:")

    @contextmanager
    def when(self, condition: str) -> Iterator[None]:
        """What is added within is done if a condition holds."""
        body, end = self._name(), self._name()
        self.do(f"br i1 {condition}, label %{body}, label %{end}")
        self.do(f"{body}:")
        yield
        self.do(f"br label %{end}")
        self.do(f"{end}:")

    def __str__(self) -> str:
        return "\n".join([self._head, "entry:", *self._variables, *self._lines, "}"])


def spread(text: Text, v: Vectors, number: str) -> str:
    """A vector all of whose elements are one number."""
    first = text.let(f"insertelement {v.vector} poison, {v.element} {number}, i64 0")
    return text.let(f"shufflevector {v.vector} {first}, {v.vector} poison, <{v.lanes} x i32> zeroinitializer")


def fused_multiply_add(text: Text, v: Vectors, a: str, b: str, c: str) -> str:
    """``a * b + c``, rounded once."""
    given = ", ".join(f"{v.vector} {each}" for each in (a, b, c))
    return text.let(f"call {v.vector} @llvm.fma.{v.suffix}({given})")


def first_lanes(text: Text, v: Vectors, count: str) -> str:
    """True for as many lanes."""
    one = text.let(f"insertelement <{v.lanes} x i64> poison, i64 {count}, i64 0")
    kind = f"<{v.lanes} x i64>"
    all_ = text.let(f"shufflevector {kind} {one}, {kind} poison, <{v.lanes} x i32> zeroinitializer")
    lanes = ", ".join(f"i64 {i}" for i in range(v.lanes))
    return text.let(f"icmp sgt {kind} {all_}, <{lanes}>")


def all_or_first_lanes(text: Text, v: Vectors, count: str) -> Iterator[str | None]:
    """No mask, and then that of the first lanes: of what is added for each, the one that fits the count is done.

    AMD's processors write through a mask a dozen times slower than without.
    """
    is_all = text.let(f"icmp sge i64 {count}, {v.lanes}")
    with text.when(is_all):
        yield None
    with text.when(text.let(f"xor i1 {is_all}, true")):
        yield first_lanes(text, v, count)


def load_vector(text: Text, v: Vectors, address: str, mask: str | None = None) -> str:
    """A vector from memory; with a mask only these lanes, the others are 0."""
    if mask is None:
        return text.load(v.vector, address, alignment=v.size)
    given = f"ptr align {v.size} {address}, {v.mask} {mask}, {v.vector} zeroinitializer"
    return text.let(f"call {v.vector} @llvm.masked.load.{v.suffix}.p0({given})")


def store_vector(text: Text, v: Vectors, value: str, address: str, mask: str | None = None) -> None:
    """Write a vector to memory; with a mask only these lanes."""
    if mask is None:
        text.store(v.vector, value, address, v.size)
    else:
        text.do(
            f"call void @llvm.masked.store.{v.suffix}.p0"
            f"({v.vector} {value}, ptr align {v.size} {address}, {v.mask} {mask})"
        )


def declarations(v: Vectors) -> str:
    """Of all functions of LLVM that texts use."""
    vector, name = v.vector, v.suffix
    return "\n".join(
        [
            f"declare {vector} @llvm.fma.{name}({vector}, {vector}, {vector})",
            "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)",
            f"declare {vector} @llvm.fabs.{name}({vector})",
            f"declare {vector} @llvm.sqrt.{name}({vector})",
            f"declare {vector} @llvm.masked.load.{name}.p0(ptr, {v.mask}, {vector})",
            f"declare void @llvm.masked.store.{name}.p0({vector}, ptr, {v.mask})",
        ]
    )


def entry(name: str, arguments: Sequence[tuple[str, str]]) -> Text:
    """The function of a `routine`. It has to end with `leave`.

    Args:
        name: Its name.
        arguments: Type and name of each argument, as `Routine` has them; of an array the name is its address.
    """
    known = {"intp": "i64", "float32": "float", "float64": "double"}
    given = [(known.get(kind, "ptr"), f"o_{each}" if kind.endswith("*") else each) for kind, each in arguments]
    text = Text(name, [("ptr", "result"), ("ptr", "error"), *given], "i32")
    for kind, each in arguments:
        if kind.endswith("*"):
            text.do(f"%{each} = getelementptr i8, ptr {element_address(text, f'%o_{each}')}, i64 0")
    return text


def element_address(text: Text, array: str) -> str:
    """The address of an array's elements."""
    return text.load("ptr", array, address_index() or 0)


def leave(text: Text) -> str:
    """The text of an `entry`, which ends here."""
    text.do("ret i32 0")
    return str(text)


def routine(name: str, arguments: Sequence[tuple[str, str]], v: Vectors, *parts: str) -> Routine:
    """The routine of some texts, the last of which is its `entry`."""
    return Routine("\n\n".join([declarations(v), *parts]), name, [kind for kind, _ in arguments], is_python=False)
