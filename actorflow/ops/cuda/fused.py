"""Kernels of `actorflow.ops.fused`, generated from the formulas of the steps: one launch where nothing is reduced.

Each step is rounded to its dtype, and no kernel contracts products and sums (`actorflow.ops.cuda.launch.OPTIONS`), so
results are those of the steps' own kernels to the bit. Numbers of the steps (such as a factor) are arguments: other
ones need no new kernel.

A chain that ends in reductions is one kernel, too: no value of the chain goes through memory, unless it is a result.
It is a reduction along the middle axis of (outer, length, inner), as those of ``kernels/reduce.cuh``, which computes
each element instead of reading it. Where the columns alone do not fill a device, they are cut into parts, and a second,
small launch puts the parts of all reductions together. The order depends on the shapes alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import cupy
import numpy as np

from actorflow.ops.cuda.launch import (
    ANYTHING,
    C_TYPES,
    Array,
    Formula,
    as_integer,
    compiled,
    contiguous,
    elementwise_of_any,
    formula_of,
    index_type,
    kernel,
    source,
)
from actorflow.ops.cuda.reductions import Columns, Tile
from actorflow.ops.elementwise import Cast, Sum
from actorflow.ops.fills import Fill
from actorflow.ops.fused import Fused
from actorflow.ops.operation import Operation
from actorflow.ops.reductions import CountNonzero, ReduceAll, ReduceAny, ReduceMax, ReduceMean, ReduceMin, ReduceProd
from actorflow.ops.shaping import Reduction
from actorflow.spec import TensorSpec

#: Of variables; arrays of booleans are bytes.
VALUE_TYPES = {**C_TYPES, "bool": "bool"}


class Statements(NamedTuple):
    """CUDA C that computes one element of all steps.

    Attributes:
        lines: Statements.
        names: Names of the inputs, which are variables when the statements begin, and of the steps' values; "" for a
            reduction.
        numbers: Parameters of the operations, which are variables ``n0``, ``n1``, ... of their own types.
    """

    lines: list[str]
    names: list[str]
    numbers: list[Any]


def statements_of(operation: Fused, found: Sequence[TensorSpec], half: str) -> Statements:
    """The statements of a chain.

    Args:
        operation: The chain.
        found: The types of its inputs and steps; see `Fused.specs`.
        half: Name of the type of float16.
    """
    first = len(found) - len(operation.steps)
    types = {**VALUE_TYPES, "float16": half}
    written = Statements([], [f"x{i}" for i in range(first)], [])
    for spec, step in zip(found[first:], operation.steps, strict=True):
        each, arguments = step.operation, step.inputs
        names, numbers = written.names, written.numbers
        if isinstance(each, Reduction):
            names.append("")
            continue
        if isinstance(each, Fill):
            names.append(f"n{len(numbers)}")
            numbers.append(spec.dtype.type(each.value))
            continue
        dtype = next((found[a].dtype for a in arguments if found[a].dtype.kind != "b"), np.dtype(np.bool_))
        formula = _formula(each, len(arguments), dtype)
        own = formula.numbers(each, dtype.type)
        values = [names[a] for a in arguments] + [f"n{len(numbers) + i}" for i in range(len(own))]
        taken = [
            f"const {parameter.replace('float64', 'double')} = {value};"
            for parameter, value in zip(formula.inputs.split(", "), values, strict=True)
        ]
        name, kind = f"v{len(names)}", types[spec.dtype.name]
        own_types = f"typedef {types[dtype.name]} T; typedef Wider<T>::type W;"
        written.lines.append(f"{kind} {name}; {{ {own_types} {' '.join(taken)} {name} = ({kind})({formula.text}); }}")
        names.append(name)
        numbers.extend(own)
    return written


def _formula(operation: Operation, count: int, dtype: np.dtype[Any]) -> Formula:
    if isinstance(operation, Sum):
        names = [f"a{i}" for i in range(count)]
        text = names[0]
        for name in names[1:]:
            text = f"T({text} + {name})"
        return Formula(", ".join(f"T {name}" for name in names), "T", text)
    if isinstance(operation, Cast):
        to_integer = dtype.kind == "f" and operation.dtype.kind in "iu"
        return Formula("T x", "R", as_integer(operation.dtype) if to_integer else "x")
    found = formula_of(type(operation))  # type: ignore[arg-type]
    assert found is not None  # as `may_fuse` has checked
    return found


DType = np.dtype[Any]

#: Blocks of one launch, each of which may take several tiles; far from 2**31, so that indices of tiles do not overflow.
_MOST_BLOCKS = 2**24
_ARRAY_TYPES = {**C_TYPES, "bool": "unsigned char"}
_ADD = "a + b"
#: How two values become one; those that are not here add up.
_COMBINE: dict[type[Operation], str] = {
    ReduceProd: "a * b",
    ReduceMax: "b > a || b != b ? b : a",
    ReduceMin: "b < a || b != b ? b : a",
    ReduceAny: "a || b",
    ReduceAll: "a && b",
}

_NAME = "actorflow_fused_reduction"
_SIZES = [f"INDEX {name}" for name in ("all", "length", "inner", "parts", "columns", "tiles")]
_KERNEL = """{structs}
extern "C" __global__ void {name}({parameters}) {{
  const Tile tile(inner, columns);
  for (INDEX t = blockIdx.x; t < tiles; t += (INDEX)gridDim.x) {{
    const INDEX part = t % parts, c = t / parts * columns + tile.column;
    {starts}
    if (c < all) {{
      const INDEX start = c / inner * length * inner + c % inner;
      for (INDEX k = part * tile.alongs + tile.along; k < length; k += parts * tile.alongs) {{
        const INDEX i = start + k * inner;
        {body}
      }}
    }}
    {combines}
    if (tile.along == 0 && c < all) {{
      {ends}
    }}
  }}
}}
"""


class _Reduction(NamedTuple):
    combine: str  # CUDA C: one value of ``a`` and ``b``
    dtype: DType  # of the computation and of partial results
    out: DType
    term: str  # CUDA C: what an element adds to it
    numbers: tuple[Any, ...]  # the neutral element; for a mean, also the number of elements


class _Prepared(NamedTuple):
    """The kernels for a chain on inputs of known types.

    The first launch takes the inputs, ``sizes``, ``numbers``, those of the reductions, and the results; the second one,
    if there is one, parts in the place of the inputs.
    """

    first: str
    second: str
    sizes: tuple[int, ...]  # by which elements of inputs that broadcast are found
    numbers: tuple[Any, ...]  # parameters of the steps
    reductions: Sequence[_Reduction]
    columns: Columns
    tile: Tile


def reduce_chain(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    """Launch the kernel of a chain with reductions on the current stream.

    Args:
        operation: The chain.
        inputs: Arrays of any strides; those that are not contiguous are copied.
        outputs: Contiguous.
    """
    prepared = _prepared_reduction(operation, tuple([TensorSpec(x.shape, x.dtype) for x in inputs]))
    results, reduced = list(zip(operation.results, outputs, strict=True)), operation.reductions
    mapped, ends = [y for i, y in results if i not in reduced], [y for i, y in results if i in reduced]
    columns, tile = prepared.columns, prepared.tile
    own = [number for each in prepared.reductions for number in each.numbers]
    given = (*map(contiguous, inputs), *prepared.sizes, *prepared.numbers, *own, *mapped)
    if tile.parts == 1:
        _launch(prepared.first, (*given, *ends), columns, tile)
        return
    parts = [cupy.empty((tile.parts, columns.all), each.dtype) for each in prepared.reductions]
    _launch(prepared.first, (*given, *parts), columns, tile)
    rest = Columns(columns.all, tile.parts, columns.all)
    _launch(prepared.second, (*parts, *own, *ends), rest, rest.softmax_tile())


def _launch(text: str, args: tuple[Any, ...], columns: Columns, tile: Tile) -> None:
    if not tile.grid:
        return
    index = index_type(max(columns.all * columns.length, tile.grid))
    sizes = (*columns, tile.parts, tile.columns, tile.grid)
    given = tuple([index(arg) if isinstance(arg, int) else arg for arg in (*args, *sizes)])
    _compiled_reduction(text, index is np.int64)((min(tile.grid, _MOST_BLOCKS),), (tile.block,), given)


@lru_cache(maxsize=256)
def _compiled_reduction(text: str, is_wide: bool) -> Any:
    """The kernel of a source; compiled on its first use, whatever the numbers and sizes are."""
    return compiled(f"{source('tile')}\n{text}", _NAME, is_wide, {"SCALAR": "float"})


@lru_cache(maxsize=256)
def _prepared_reduction(operation: Fused, specs: tuple[TensorSpec, ...]) -> _Prepared:
    found, whole = operation.specs(specs), np.broadcast_shapes(*[spec.shape for spec in specs])
    outer, length, inner = operation.columns(whole)
    columns = Columns(outer * inner, length, inner)
    tile = columns.sum_tile()
    lines, names, numbers = statements_of(operation, found, "Half")
    sizes: list[int] = []
    body = []
    for i, spec in enumerate(specs):
        kind = VALUE_TYPES[spec.dtype.name]
        body.append(f"const {kind} x{i} = ({kind})p{i}[{_place(spec, whole, sizes)}];")
    for i, number in enumerate(numbers):
        kind = VALUE_TYPES[number.dtype.name]
        body.append(f"const {kind} n{i} = ({kind})m{i};")
    reduced, first = operation.reductions, len(specs)
    mapped = [first + i for i in operation.results if i not in reduced]
    body += [*lines, *[f"y{k}[i] = {names[position]};" for k, position in enumerate(mapped)]]
    reductions = [_reduction(operation, i, found, names, length) for i in operation.results if i in reduced]
    wide = [_widened(number) for number in numbers]
    parameters = [*_arrays("const", "p", specs), *[f"INDEX d{i}" for i in range(len(sizes))], *_numbers("m", wide)]
    outputs = _arrays("", "y", [found[position] for position in mapped])
    text = _source(parameters, outputs, body, reductions, is_last=tile.parts == 1)
    rest = ""
    if tile.parts > 1:
        parts = [TensorSpec((), each.dtype) for each in reductions]
        again = [each._replace(term=f"p{k}[i]") for k, each in enumerate(reductions)]
        rest = _source(_arrays("const", "p", parts), [], [], again, is_last=True)
    return _Prepared(text, rest, tuple(sizes), tuple(wide), reductions, columns, tile)


def _reduction(operation: Fused, i: int, found: Sequence[TensorSpec], names: Sequence[str], length: int) -> _Reduction:
    each, (argument,) = operation.steps[i].operation, operation.steps[i].inputs
    x, out = found[argument].dtype, found[len(found) - len(operation.steps) + i].dtype
    dtype: DType = np.dtype(np.float32) if out == np.float16 else out
    term = names[argument]
    if isinstance(each, CountNonzero):
        term = f"{term} != ({VALUE_TYPES[x.name]})0"
    neutral: Any = 1 if isinstance(each, ReduceProd | ReduceAll) else 0
    if isinstance(each, ReduceMax | ReduceMin):
        smallest, largest = _range(dtype)
        neutral = smallest if isinstance(each, ReduceMax) else largest
    numbers = [neutral, length] if isinstance(each, ReduceMean) else [neutral]
    return _Reduction(
        _COMBINE.get(type(each), _ADD), dtype, out, term, tuple([_widened(dtype.type(n)) for n in numbers])
    )


def _range(dtype: DType) -> tuple[Any, Any]:
    if dtype.kind == "f":
        return -np.inf, np.inf
    limits: Any = np.iinfo(dtype)
    return limits.min, limits.max


def _source(
    parameters: Sequence[str],
    outputs: Sequence[str],
    body: Sequence[str],
    reductions: Sequence[_Reduction],
    is_last: bool,
) -> str:
    """CUDA C of a kernel whose body computes element ``i``; ``outputs`` are the parameters behind the numbers."""
    # Reductions of one kind share their memory in the block.
    kinds = list(dict.fromkeys([(each.combine, VALUE_TYPES[each.dtype.name]) for each in reductions]))
    structs = [
        f"struct Combine{k} {{\n"
        f"  __device__ {kind} operator()({kind} a, {kind} b) const {{ return ({kind})({text}); }}\n}};"
        for k, (text, kind) in enumerate(kinds)
    ]
    given, results, starts, terms, combines, ends = [*parameters], [], [], [], [], []
    for k, each in enumerate(reductions):
        kind = VALUE_TYPES[each.dtype.name]
        combine = f"Combine{kinds.index((each.combine, kind))}()"
        given += _numbers(f"e{k}_", each.numbers)
        if each.combine == _ADD:
            starts.append(f"RunningSum<{kind}> sum{k};")
            terms.append(f"sum{k}.add(({kind})({each.term}));")
            combines.append(f"const {kind} total{k} = combined(tile, sum{k}.value(), {combine});")
        else:
            starts.append(f"{kind} total{k} = ({kind})e{k}_0;")
            terms.append(f"total{k} = {combine}(total{k}, ({kind})({each.term}));")
            combines.append(f"total{k} = combined(tile, total{k}, {combine});")
        divided = f"total{k} / e{k}_1" if is_last and len(each.numbers) > 1 else f"total{k}"
        out = _ARRAY_TYPES[(each.out if is_last else each.dtype).name]
        results.append(f"{out}* z{k}")
        ends.append(f"z{k}[part * all + c] = ({out})({divided});")
    return _KERNEL.format(
        name=_NAME,
        structs="\n".join(structs),
        parameters=", ".join([*given, *outputs, *results, *_SIZES]),
        starts="\n    ".join(starts),
        body="\n        ".join([*body, *terms]),
        combines="\n    ".join(combines),
        ends="\n      ".join(ends),
    )


def _place(spec: TensorSpec, whole: tuple[int, ...], sizes: list[int]) -> str:
    """CUDA C: where an input has its element for element ``i`` of the whole shape; the sizes it needs are added."""
    # From the last axis on: lengths of axes that are the input's own, and of those that it is repeated along.
    runs: list[tuple[bool, int]] = []
    own_shape = (*[1] * (len(whole) - len(spec.shape)), *spec.shape)
    for own, length in zip(reversed(own_shape), reversed(whole), strict=True):
        if runs and runs[-1][0] == (own == length):
            runs[-1] = (runs[-1][0], runs[-1][1] * length)
        elif length != 1:
            runs.append((own == length, length))
    terms: list[str] = []
    behind, own_behind = 1, 1

    def size(value: int) -> str:
        sizes.append(value)
        return f"d{len(sizes) - 1}"

    for position, (is_own, length) in enumerate(runs):
        if is_own:
            text = f"i / {size(behind)}" if position else "i"
            text = f"{text} % {size(length)}" if position < len(runs) - 1 else text
            terms.append(f"({text}) * {size(own_behind)}" if terms else text)
            own_behind *= length
        behind *= length
    return " + ".join(terms) or "0"


def _arrays(const: str, name: str, specs: Sequence[TensorSpec]) -> list[str]:
    return [f"{const} {_ARRAY_TYPES[spec.dtype.name]}* {name}{i}".strip() for i, spec in enumerate(specs)]


def _numbers(name: str, numbers: Sequence[Any]) -> list[str]:
    return [f"{C_TYPES[number.dtype.name]} {name}{i}" for i, number in enumerate(numbers)]


def _widened(number: Any) -> Any:
    """A number as the widest of its kind, float16 as float32: what kernels take by value on all platforms."""
    return {"f": np.float64 if number.dtype == np.float64 else np.float32, "u": np.uint64}.get(
        number.dtype.kind, np.int64
    )(number)


@lru_cache(maxsize=256)
def _prepared(operation: Fused, specs: tuple[TensorSpec, ...]) -> tuple[Any, tuple[Any, ...]]:
    found = operation.specs(specs)
    lines, names, numbers = statements_of(operation, found, "float16")
    outputs = [(found[len(specs) + i].dtype.name, names[len(specs) + i]) for i in operation.results]
    lines += [f"y{k} = {name};" for k, (_, name) in enumerate(outputs)]
    inputs = [f"{spec.dtype.name} x{i}" for i, spec in enumerate(specs)]
    inputs += [f"{number.dtype.name} n{i}" for i, number in enumerate(numbers)]
    results = [f"{dtype} y{k}" for k, (dtype, _) in enumerate(outputs)]
    return _compiled(", ".join(inputs), ", ".join(results), "\n".join(lines)), tuple(numbers)


@lru_cache(maxsize=256)
def _compiled(inputs: str, outputs: str, body: str) -> Any:
    """The kernel of a source; compiled on its first use, whatever the numbers are."""
    return elementwise_of_any(f"fused_{body.count(chr(10)) + 1}", inputs, outputs, body)


@kernel(Fused, dtypes=ANYTHING)
def _fused(operation: Fused, inputs: list[Array], outputs: list[Array]) -> None:
    if operation.reductions:
        reduce_chain(operation, inputs, outputs)
        return
    compiled, numbers = _prepared(operation, tuple([TensorSpec(x.shape, x.dtype) for x in inputs]))
    compiled(*inputs, *numbers, *outputs)
