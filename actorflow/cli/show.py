"""``actorflow show``: a model without running it: its ops with their shapes, parameters and costs."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table
from rich.text import Text

from actorflow.cli.source import SourceOptions, kind_of, open_models
from actorflow.cli.terminal import Name, count_text, output, run_until_interrupt, serve_page
from actorflow.errors import GraphError, ShapeError, did_you_mean, visible
from actorflow.graph.nodes import Blob, Op, Variable
from actorflow.loop import at_once
from actorflow.ops.fills import Constant
from actorflow.ops.operation import Cost
from actorflow.plan.lengths import Closed
from actorflow.plan.validate import in_order, needed_ops
from actorflow.runtime.model import Model
from actorflow.spec import Length, TensorSpec, at, axes_in, axis

_UNITS = (("G", 10**9), ("M", 10**6), ("k", 10**3))
_NUMBERS = ("parameters", "multiply-adds", "FLOPs", "bytes")  # columns of numbers
_WIDEST = 1 << 20  # more than the cells of any table
_WORDS = ("op", "operation", "results")  # columns of texts


class Row(NamedTuple):
    """An op, or several of a kind. Numbers may be lengths, which follow from open axes."""

    name: str  # of the op; how many of them, of several
    operation: str  # its kind
    shapes: str  # of its results
    parameters: Any  # elements of variables and constants that no row before has
    cost: Cost | None  # None where some operation does not say it
    size_bytes: Any  # read and written, parameters included

    @property
    def numbers(self) -> tuple[Any, ...]:
        """Numbers of the columns; None where unknown."""
        cost = self.cost
        return (self.parameters, cost and cost.multiply_adds, cost and cost.flops, self.size_bytes)


def show(
    source: str,
    options: SourceOptions,
    *,
    page: bool = False,
    port: int | None = None,
    as_json: bool = False,
) -> int:
    """Print the ops of a model, and their costs by formula; nothing is run."""
    is_onnx = kind_of(source) == ".onnx"
    axes = {} if is_onnx else options.axes
    (model,) = open_models([source], options if is_onnx else options._replace(axes={}))
    needed = in_order(model.graph, needed_ops(model.outputs.values()))
    specs = _specs(model, needed, axes)
    ops = [op for op in needed if not isinstance(op.operation, Constant)]  # which are there before a frame
    rows = _rows(ops, specs)
    total = _summed(count_text(len(ops), "op"), "", rows)
    kinds = _by_kind(rows)
    console = output()
    if as_json:
        print(json.dumps(_document(source, model, specs, rows, kinds, total)))
    else:
        _print(console, model, specs, rows, kinds, total)
    if page:
        run_until_interrupt(_serve(model, port, console))
    return 0


async def _serve(model: Model, port: int | None, console: Console) -> None:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(model.graph)
        console.print(f"page: {await serve_page(stack, model.graph, port)}, until Ctrl-C", soft_wrap=True)
        await asyncio.Event().wait()


def _specs(model: Model, ops: Sequence[Op], axes: Mapping[str, Any]) -> Mapping[Blob, TensorSpec]:
    """The types of all blobs, with lengths in the place of open axes."""
    blobs = dict.fromkeys([*model.inputs.values(), *model.outputs.values()])
    blobs |= dict.fromkeys(blob for op in ops for blob in (*op.inputs, *op.outputs))
    known = axes_in(tuple(blob.spec for blob in blobs))
    for name in axes:
        if name not in known:
            raise GraphError(f"model {model.graph.name!r} has no open axis {name!r}{did_you_mean(name, known)}")
        if not isinstance(axes[name], int):
            raise GraphError(
                f"expected the length of axis {name!r}, got {axes[name]!r}: names are for files .onnx alone"
            )
    if known <= axes.keys():
        at_once(Closed(tuple(sorted(axes.items()))).close(ops))  # raises if they do not fit
    lengths = {name: axes.get(name, axis(name)) for name in known}
    return {blob: blob.spec._replace(shape=tuple(_at(n, lengths) for n in blob.shape)) for blob in blobs}


def _at(length: Any, lengths: Mapping[str, Any]) -> Any:
    try:
        return at(length, lengths)
    except ShapeError:  # a quotient of which only a part is known
        return length


def _rows(ops: Sequence[Op], specs: Mapping[Blob, TensorSpec]) -> list[Row]:
    seen: set[Blob] = set()
    rows = []
    for op in ops:
        own = {blob for blob in op.inputs if _is_parameter(blob)} - seen
        seen |= own
        inputs, outputs = ([specs[blob] for blob in blobs] for blobs in (op.inputs, op.outputs))
        is_free = op.operation.is_view or op.operation.kind == "Reshape"
        rows.append(
            Row(
                op.name,
                op.operation.kind,
                ", ".join(map(str, outputs)),
                sum(blob.spec.size for blob in own),
                op.operation.cost(inputs, outputs),
                0 if is_free else sum(spec.size_bytes for spec in (*inputs, *outputs)),
            )
        )
    return rows


def _is_parameter(blob: Blob) -> bool:
    """Whether a blob is a variable, or a constant of more than a number: files need not say which are trained."""
    constant = any(isinstance(op.operation, Constant) for op in blob.producers)
    return isinstance(blob, Variable) or (constant and blob.spec.size > 1)


def _summed(name: str, operation: str, rows: Iterable[Row]) -> Row:
    rows = list(rows)
    costs = [row.cost for row in rows if row.cost is not None]
    cost = Cost(sum(cost.multiply_adds for cost in costs), sum(cost.others for cost in costs))
    known = costs or not rows
    parameters, size_bytes = (sum(column) for column in ([r.parameters for r in rows], [r.size_bytes for r in rows]))
    return Row(name, operation, "", parameters, cost if known else None, size_bytes)


def _by_kind(rows: Sequence[Row]) -> list[Row]:
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        kinds.setdefault(row.operation, []).append(row)
    sums = [_summed(f"{len(of)}", kind, of) for kind, of in kinds.items()]
    return sorted(sums, key=lambda row: (row.cost.flops if row.cost else 0, row.size_bytes), reverse=True)


def _print(
    console: Console,
    model: Model,
    specs: Mapping[Blob, TensorSpec],
    rows: Sequence[Row],
    kinds: Sequence[Row],
    total: Row,
) -> None:
    for what, blobs in (("inputs", model.inputs), ("outputs", model.outputs)):
        listed = ", ".join(f"{name} {specs[blob]}" for name, blob in blobs.items()) or "none"
        console.print(Text(visible(f"{what}: {listed}")))
    for header, shown in ((("op", "operation", "results"), rows), (("operation", "ops"), kinds)):
        table = Table()
        for name in (*header, *_NUMBERS):
            table.add_column(Name(name), justify="left" if name in _WORDS else "right")
        for row in shown:
            words = (row.name, row.operation, row.shapes) if shown is rows else (row.operation, row.name)
            table.add_row(*map(Name, (*words, *map(_text, row.numbers))))
        natural = console.measure(table, options=console.options.update(max_width=_WIDEST)).maximum
        if natural > console.width:  # rather names than lines between them
            table.box, table.pad_edge = None, False
        console.print(table)
    unknown = sum(row.cost is None for row in rows)
    parts = [f"{_text(number)} {what}" for number, what in zip(total.numbers, _NUMBERS, strict=True)]
    missing = f" (without {count_text(unknown, 'op')} whose cost is not known)" if unknown else ""
    console.print(Text(f"{total.name}: {', '.join(parts)}{missing}"))


def _text(number: Any) -> str:
    """Three digits and a unit; each term, if it follows from open axes."""
    if number is None:
        return "?"
    if isinstance(number, Length):
        terms = []
        for product, factor in number.terms:
            names = "*".join(f"({atom})" if not isinstance(atom, str) else atom for atom in product)
            terms.append(names if factor == 1 and names else "*".join(filter(None, (_text(factor), names))))
        return " + ".join(terms)
    for unit, size in _UNITS:
        if abs(number) >= size:
            return f"{number / size:.3g}{unit}" if abs(number) < 999.5 * size else f"{number / size:,.0f}{unit}"
    return f"{number}"


def _document(
    source: str,
    model: Model,
    specs: Mapping[Blob, TensorSpec],
    rows: Sequence[Row],
    kinds: Sequence[Row],
    total: Row,
) -> dict[str, Any]:
    def said(number: Any) -> Any:
        return str(number) if isinstance(number, Length) else number

    def described(row: Row) -> dict[str, Any]:
        return dict(zip(_NUMBERS, map(said, row.numbers), strict=True))

    def types(blobs: Mapping[str, Blob]) -> dict[str, Any]:
        return {
            name: {"shape": [said(length) for length in specs[blob].shape], "dtype": str(blob.dtype)}
            for name, blob in blobs.items()
        }

    return {
        "model": source,
        "inputs": types(model.inputs),
        "outputs": types(model.outputs),
        "ops": [{"op": row.name, "operation": row.operation, "results": row.shapes, **described(row)} for row in rows],
        "operations": {row.operation: {"ops": int(row.name), **described(row)} for row in kinds},
        "total": described(total),
    }
