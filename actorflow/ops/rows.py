"""How an elementwise operation is described: by one row.

A row has NumPy's function, the dtypes that blobs of it have, CUDA C for one element, and the gradient for each
input. From it come the operation's class (`Log`), its functional form for blobs and arrays (`log`), inference, the
kernels for the CPU, simulated accelerators and CUDA, its part in fused kernels, and gradients of any order.

Blobs keep strict dtypes: all inputs have the same, and a number takes it. Arrays follow the array API standard,
whose rules for dtypes are the NumPy function's.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import make_dataclass
from functools import cache, partial
from inspect import Parameter, signature
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from actorflow.core import Loop
from actorflow.errors import DTypeError
from actorflow.ops.fills import with_numbers
from actorflow.ops.operation import Application, Cost, Grads, Operand, Operation, X, apply
from actorflow.ops.shaping import broadcast_shape, sum_to
from actorflow.spec import TensorSpec

Value = npt.NDArray[Any]
DType = np.dtype[Any]
#: Gives the gradient by one input, from ``g``, the inputs, the result if it takes one more, and the parameters by name.
Rule = Callable[..., Any]

#: Kinds of dtypes, and what messages call them. ml_dtypes' bfloat16 has kind V.
FLOATING, NUMERIC, REAL, BOOLS, BITS, ANYTHING = "fcV", "iufcV", "iufV", "b", "biu", "biufcV"
_CALLED = {
    FLOATING: "floating",
    NUMERIC: "numeric",
    REAL: "real",
    BOOLS: "bool",
    BITS: "bool or integer",
    "iu": "integer",
    ANYTHING: "bool or numeric",
    "ifcV": "numeric and signed",
    "fV": "real and floating",
}
BOOL = np.dtype(np.bool_)


def _called(kinds: str) -> str:
    return _CALLED.get(kinds, f"of a dtype of kind {' or '.join(kinds)}")


def ufunc_of(operation: Any) -> np.ufunc | None:
    """NumPy's function that computes an elementwise operation, or a class of them, on arrays of all dtypes."""
    function = operation.function
    return function if isinstance(function, np.ufunc) and operation.types is None else None


#: The gradient of what is constant in pieces.
ZERO: Rule = lambda *_, **__: None  # noqa: E731


class Elementwise(Operation):
    """Base of the operations whose result depends at each place on the elements there alone.

    Class attributes:
        function: Called with arrays that broadcast, ``out``, an array of the result's type, and the parameters by name;
            None where kernels are registered for all devices.
        kinds: Kinds of the dtypes that blobs of it have.
        rules: For each input the gradient by it; None where there is none.
        result: Dtype of the result, or the function of the inputs' dtype that gives it; None for the inputs' own.
        types: For arrays, gives the dtype of the result for dtypes of the inputs; None for that of ``function``.
        aligned: Whether ``out`` may be one of the inputs.
        formula: CUDA C for an element, of the arguments' names; ``T`` is the inputs' type, ``W`` at least float.
        formula_kinds: Kinds of the dtypes that the formula is right for.
        conditions: Number of leading inputs that are bool whatever the dtype of the others.
        summary: Its result, in one sentence.
        example: Operands of an example, and its printed result.
    """

    elementwise = True
    takes_complex = True

    function: ClassVar[Any] = None
    kinds: ClassVar[str] = FLOATING
    rules: ClassVar[Sequence[Rule | None]] = ()
    result: ClassVar[DType | Callable[[DType], DType] | None] = None
    types: ClassVar[Callable[..., DType] | None] = None
    aligned: ClassVar[bool] = True
    formula: ClassVar[str] = ""
    formula_kinds: ClassVar[str] = ""
    conditions: ClassVar[int] = 0
    summary: ClassVar[str] = ""
    example: ClassVar[Sequence[str]] = ()

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The fields by name."""
        return vars(self)

    @property
    def into(self) -> Callable[..., Any]:
        """The NumPy function with the parameters."""
        parameters = self.parameters
        return partial(type(self).function, **parameters) if parameters else type(self).function

    def infer(self, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        kind, names = self.kind, self.arguments
        first = inputs[self.conditions]
        wanted = self.kinds
        if first.dtype.kind not in wanted:
            raise DTypeError(f"{kind}: {names[self.conditions]} must be {_called(wanted)}, got {first}")
        result: Any = type(self).result
        dtype = first.dtype if result is None else result(first.dtype) if callable(result) else result
        if len(inputs) == 1:
            return inputs if result is None else (TensorSpec(first.shape, dtype),)
        named = dict(zip(names, inputs, strict=True))
        for i, (name, spec) in enumerate(named.items()):
            if i < self.conditions:
                if spec.dtype != BOOL:
                    raise DTypeError(f"{kind}: {name} must be bool, got {spec}")
            elif spec.dtype != first.dtype:
                raise DTypeError(f"{kind}: {name} must have {names[self.conditions]}'s dtype {first.dtype}, got {spec}")
        return (TensorSpec(broadcast_shape(kind, **named), dtype),)

    def cost(self, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> Cost | None:
        return Cost(others=outputs[0].size * max(1, len(inputs) - 1))

    def gradient(self, op: Application, grads: Grads, wanted: Sequence[bool]) -> Sequence[Any]:
        (g,), inputs, parameters = grads, op.inputs, self.parameters
        found: list[Any] = []
        for rule, x, want in zip(self.rules, inputs, wanted, strict=True):
            grad = None
            if want and rule is not None:
                # The result is asked for only where the rule needs it: it may have to be computed again.
                results = op.outputs if _arity(rule) > 1 + len(inputs) else ()
                grad = rule(g, *inputs, *results, **parameters)
            found.append(None if grad is None else fit(grad, x))
        return found


def with_constants(operation: Operation, inputs: Sequence[Any]) -> Sequence[Any]:
    """The inputs of an operation, the numbers beside blobs as constants; conditions say nothing of their dtype."""
    if not isinstance(operation, Elementwise):
        return inputs
    free = operation.conditions
    return [*inputs[:free], *with_numbers(*inputs[free:])]


@cache
def _arity(rule: Callable[..., Any]) -> int:
    by_position = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.kind in by_position for each in signature(rule).parameters.values())


def fit(grad: X, x: Any) -> X:
    """A gradient in the type of its input: summed over broadcast axes, and real for a real one."""
    from actorflow.ops.elementwise import cast, real  # rows themselves

    found: Any = grad
    found = sum_to(found, x.shape)
    if found.dtype != x.dtype:
        if found.dtype.kind == "c" and x.dtype.kind != "c":
            found = real(found)
        found = cast(found, x.dtype)
    made: X = found
    return made


class Unary(Protocol):
    """A functional form of one operand."""

    def __call__(self, x: X, /, name: str | None = None) -> X: ...


class Binary(Protocol):
    """A functional form of two operands, one of which may be a number or a NumPy array."""

    def __call__(
        self, a: X | complex | npt.NDArray[Any], b: X | complex | npt.NDArray[Any], /, name: str | None = None
    ) -> X: ...


def operation_class(
    name: str,
    doc: str,
    function: Callable[..., Any] | None,
    *gradient: Rule | None,
    arguments: Sequence[str] = ("x",),
    kind: str = "",
    kinds: str = FLOATING,
    result: DType | Callable[[DType], DType] | None = None,
    types: Callable[..., DType] | None = None,
    cuda: str = "",
    cuda_kinds: str | None = None,
    aligned: bool = True,
    conditions: int = 0,
    parameters: Mapping[str, Any] | None = None,
    check: Callable[..., None] | None = None,
    example: Sequence[str] = (),
    module: str = "",
) -> Any:
    """The class of an elementwise operation.

    Args:
        name: Name of the functional form.
        doc: Its result, in one sentence.
        function: The function of NumPy; see `Elementwise`.
        gradient: For each input the rule of its gradient: none at all for an operation that gradients stop at.
        arguments: Names of the inputs.
        kind: Name of the class; that of the functional form in capitals if left out.
        kinds: Kinds of the dtypes of blobs.
        result: Dtype of the result, see `Elementwise`.
        types: Dtype of the result for arrays, see `Elementwise`.
        cuda: CUDA C for one element.
        cuda_kinds: Kinds of the dtypes that this is right for: those of ``kinds`` but complex ones if left out.
        aligned: Whether the result may be written over an input.
        conditions: Number of leading inputs that are bool.
        parameters: Fields of the operation, with their defaults.
        check: Called with the parameters by name when the operation is applied; raises if they are wrong.
        example: Code of the operands of an example, and what printing the result says: ``("[4.0, 9.0]", "[2. 3.]")``
            for a square root.
        module: Where it is defined.
    """
    fields = [(field, type(default), default) for field, default in (parameters or {}).items()]
    if cuda_kinds is None:
        cuda_kinds = kinds.replace("c", "").replace("V", "") if cuda else ""

    def infer(self: Any, *inputs: TensorSpec) -> tuple[TensorSpec, ...]:
        if check is not None:
            check(**self.parameters)
        return Elementwise.infer(self, *inputs)

    namespace = {
        "__doc__": f"{doc} See `{name}`.",
        "arguments": tuple(arguments),
        "function_name": name,
        "differentiable": bool(gradient),
        "function": None if function is None else staticmethod(function),
        "kinds": kinds,
        "rules": gradient or (None,) * len(arguments),
        "result": staticmethod(result) if callable(result) else result,
        "types": None if types is None else staticmethod(types),
        "aligned": aligned,
        "formula": cuda,
        "formula_kinds": cuda_kinds,
        "conditions": conditions,
        "summary": doc,
        "example": example,
        **({} if check is None else {"infer": infer}),
    }
    kind = kind or "".join(part.capitalize() for part in name.split("_"))
    if not fields:
        return type(kind, (Elementwise,), {**namespace, "__module__": module})
    made = make_dataclass(kind, fields, bases=(Elementwise,), namespace=namespace, frozen=True)
    made.__module__ = module
    return made


def unary(
    name: str, doc: str, function: Callable[..., Any] | None, *gradient: Rule | None, **options: Any
) -> tuple[type[Elementwise], Unary]:
    """An operation on the elements of one operand, and its functional form: all that an elementwise operation needs.

    Args:
        name: Name of the functional form.
        doc: Its result, in one sentence.
        function: The function of NumPy, called with an array and ``out``, which may be that array.
        gradient: The rule of its gradient, called with ``g``, ``x`` and, if it takes one more, the result; written in
            operations of blobs and arrays. None at all for an operation that gradients stop at.
        options: ``kinds``, the kinds of dtypes that blobs of it may have ("fcV", floating, if left out); ``result``,
            the dtype of the result if it is another; ``cuda``, CUDA C for an element ``x``; ``kind``, the name of the
            class; ``example``, the operands of an example in the docstring, as code, and what it prints.
    Returns:
        The class of the operation, and the functional form.
    Example:
        >>> Cbrt, cbrt = af.ops.unary("cbrt", "The cube root.", np.cbrt, lambda g, x, y: g / (3.0 * y * y))
        >>> x = xp.asarray([1.0, 8.0])
        >>> print(cbrt(x), af.grad(lambda x: xp.sum(cbrt(x)))(x).to_numpy().round(4))
        [1. 2.] [0.3333 0.0833]
    """
    module = sys._getframe(1).f_globals["__name__"]
    made = operation_class(name, doc, function, *gradient, module=module, **options)
    operation, at_once = made(), Loop(ufunc_of(made)).of_one

    def form(x: Any, /, name: str | None = None) -> Any:
        found = at_once(x)
        if found is not None:
            return found
        if isinstance(x, Operand):  # as `apply` does
            return x.apply_operation(operation, (x,), name)
        return apply(operation, x, name=name)

    return made, _described(form, made, name, module)


def binary(
    name: str, doc: str, function: Callable[..., Any] | None, *gradient: Rule | None, **options: Any
) -> tuple[type[Elementwise], Binary]:
    """An operation on pairs of elements, and its functional form; they broadcast.

    Args, result: those of `unary`, but ``function`` takes two arrays, and there is a rule of the gradient by each
    operand, called with ``g``, ``a``, ``b`` and, if it takes one more, the result. What was broadcast is summed then.
    Example:
        >>> def weighted(a, b, out):
        ...     np.add(a, 2 * b, out=out)
        >>> Mix, mix = af.ops.binary("mix", "``a + 2 * b``.", weighted, lambda g, a, b: g, lambda g, a, b: 2 * g)
        >>> mix(xp.asarray([1.0, 2.0]), xp.asarray([10.0, 20.0]))
        Array([21., 42.], dtype=float64)
    """
    module = sys._getframe(1).f_globals["__name__"]
    made = operation_class(name, doc, function, *gradient, **{"arguments": ("a", "b"), "module": module, **options})
    operation, at_once = made(), Loop(ufunc_of(made)).of_two

    def form(a: Any, b: Any, /, name: str | None = None) -> Any:
        found = at_once(a, b)
        if found is not None:
            return found
        if isinstance(a, Operand):
            return a.apply_operation(operation, (a, b), name)
        return apply(operation, a, b, name=name)

    return made, _described(form, made, name, module)


def _described(form: Any, made: type[Elementwise], name: str, module: str) -> Any:
    form.__name__ = form.__qualname__ = name
    form.__module__ = module
    form.operation = made
    form.__doc__ = _documentation(made, f"af.ops.{name}" if module.startswith("actorflow.ops.") else name)
    return form


def _documentation(made: type[Elementwise], call: str) -> str:
    """The docstring of a functional form; its example calls it as ``call``."""
    first, *others = made.arguments[made.conditions :]
    lines = [f"{condition}: Bool, a shape that broadcasts." for condition in made.arguments[: made.conditions]]
    lines += [f"{first}: Any shape; a blob is {_called(made.kinds)}."]
    lines += [
        f"{other}: A shape that broadcasts with it, and its dtype; one of them may be a number." for other in others
    ]
    shape = "of the common shape" if others else f"of the shape of ``{first}``"
    dtype = f"of the dtype of ``{first}``" if made.result is None else "bool" if made.result == BOOL else "real"
    source = [f"Source: `numpy.{made.function.__name__}`."] if isinstance(made.function, np.ufunc) else []
    return "\n".join(
        [
            made.summary,
            "",
            "Args:",
            *[f"    {line}" for line in lines],
            "Returns:",
            f"    Blob or array {shape}, {dtype}; arrays have the dtype that the array API standard says.",
            "Raises:",
            "    ShapeError, DTypeError: if the operands do not fit.",
            f"Gradient: {_gradient_text(made)}.",
            *source,
            *_example(made.example, call),
        ]
    )


def _example(parts: Sequence[str], call: str) -> list[str]:
    if not parts:
        return []
    *operands, printed = parts
    given = [f"xp.asarray({each})" if each.startswith("[") else each for each in operands]
    return ["Example:", f"    >>> print({call}({', '.join(given)}))", f"    {printed}"]


def _gradient_text(made: type[Elementwise]) -> str:
    if not made.differentiable:
        return "none"
    if all(rule is ZERO for rule in made.rules):
        return "0"
    return "for each operand, summed over what was broadcast" if len(made.arguments) > 1 else "of any order"


def real_type(dtype: DType) -> DType:
    """The dtype of the parts of complex numbers; real dtypes as they are."""
    return np.empty(0, dtype).real.dtype


def of_ufunc(ufunc: np.ufunc) -> Callable[..., DType]:
    """Gives the dtype of the result of a ufunc."""

    def types(*dtypes: DType) -> DType:
        found: DType = ufunc.resolve_dtypes((*dtypes, None))[-1]
        return found

    return types


def conjugated(x: Any) -> Any:
    """The conjugate; a real operand as it is."""
    from actorflow.ops.elementwise import conj  # a row itself

    return conj(x) if x.dtype.kind == "c" else x


def slope(function: Callable[..., Any]) -> Rule:
    """The rule of a function with a derivative, complex or real, of the input or of the input and the result."""
    if _arity(function) == 1:
        return lambda g, x: g * conjugated(function(x))
    return lambda g, x, y: g * conjugated(function(x, y))
