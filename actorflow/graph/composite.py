"""Composites: sub-graphs with a bottom and a top, connectable with ``>>``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Self, cast, overload

import numpy.typing as npt

from actorflow.errors import DTypeError, GraphError, ShapeError
from actorflow.graph.graph import Graph
from actorflow.graph.nodes import Blob, Initializer, Op, Variable, as_blobs
from actorflow.ops.elementwise import Copy

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # whose variables have defaults

    Top = TypeVar("Top", default=Blob)
    _Next = TypeVar("_Next")
    _Blobs = TypeVar("_Blobs", bound=Blob | Sequence[Blob])
else:
    from typing import TypeVar

    Top = TypeVar("Top")


class Composite(Generic[Top]):
    """A part of a graph that is described first and built when its bottom is connected.

    Layers and models are composites. Building one again, on other blobs of the same graph, makes new ops on the
    same variables: build a network with ``training=True`` and again with ``training=False`` to train and to test it.

    ``[x] >> composite``, ``composite >> [y]`` and ``composite >> composite`` connect it; so does a call,
    ``top = composite(x)``. A subclass defines `build`. A build that raises leaves the graph as it was, and the
    variables, the bottom and the top of the composites that take part.

    For type checkers, a call gives one blob. A composite with several tops declares the type of its calls:
    ``class Halves(af.Composite[tuple[af.Blob, af.Blob]])``.

    Attributes:
        name: Scope of its ops and variables; made unique in the graph.
        bottom: Input blobs of the latest build.
        top: Output blobs of the latest build.
        scope: The sub-graph of the first build, where its variables are; None before.

    Example:
        >>> class Residual(af.Composite):
        ...     def __init__(self, features, name=None):
        ...         super().__init__(name)
        ...         self.inner = af.nn.InnerProduct(features, activation="relu")
        ...
        ...     def build(self, x, *, training):
        ...         scale = self.variable(x, "scale", [], init=0.1)
        ...         return x + scale * self.inner(x, training=training)
        >>> graph = af.Graph("g")
        >>> x = graph.blob("x", ["batch", 4])
        >>> block = Residual(4, name="block")
        >>> block(x)
        <Blob 'block/sum/out' float32[batch, 4] on cpu>
        >>> [variable.name for variable in block.variables]
        ['block/scale', 'block/innerproduct/weight', 'block/innerproduct/bias']
    """

    def __init__(self, name: str | None = None) -> None:
        self.name = name or type(self).__name__.lower()
        self.scope: Graph | None = None
        self.bottom: tuple[Blob, ...] = ()
        self.top: tuple[Blob, ...] = ()
        self._variables: dict[str, Variable] = {}

    def build(self, *bottom: Blob, training: bool) -> Blob | Sequence[Blob]:
        """Make the ops on ``bottom`` and return the top; called inside the composite's own scope."""
        raise GraphError(f"{type(self).__name__} does not say what it is made of: define build()")

    def __call__(self, *bottom: Blob, training: bool = True) -> Top:
        """Build it on ``bottom``; returns the top: one blob, or a tuple of them.

        Args:
            bottom: The input blobs.
            training: Whether layers behave as in training (dropout drops) or as in inference.

        Example:
            >>> graph = af.Graph("g")
            >>> x = graph.blob("x", ["batch", 64])
            >>> net = af.nn.MLP(10, dropout=0.5)
            >>> trained, tested = net(x), net(x, training=False)  # on the same variables
            >>> len(graph.variables)
            4
        """
        if not bottom:
            raise GraphError(f"composite {self.name!r} needs at least one input blob")
        for blob in bottom:
            if not isinstance(blob, Blob):
                raise GraphError(f"composite {self.name!r} connects blobs, got {type(blob).__name__}")
        root = bottom[0].graph.root
        for variable in self._variables.values():
            if variable.graph.root is not root:
                raise GraphError(
                    f"composite {self.name!r} has its variables in graph {variable.graph.root.name!r} "
                    f"and cannot be built in graph {root.name!r}"
                )
        before = self.bottom, self.top, dict(self._variables), self.scope
        with root._store.all_or_nothing(partial(self._restore, *before)):
            with root.unique_subgraph(self.name) as scope:
                self.scope = self.scope or scope
                top = as_blobs(self.build(*bottom, training=training))
            if top is None:
                raise GraphError(f"{type(self).__name__}.build() must return blobs")
        self.bottom, self.top = bottom, top
        return cast(Top, top[0] if len(top) == 1 else top)

    def _restore(
        self, bottom: tuple[Blob, ...], top: tuple[Blob, ...], variables: dict[str, Variable], scope: Graph | None
    ) -> None:
        self.bottom, self.top, self._variables, self.scope = bottom, top, variables, scope

    def variable(
        self,
        like: Blob,
        name: str,
        shape: Sequence[int],
        init: Initializer | npt.ArrayLike,
        dtype: npt.DTypeLike | None = None,
    ) -> Variable:
        """The variable of this name: made at the first build, shared by all later ones.

        Args:
            like: Blob whose graph, dtype and place it takes.
            name: Its name in the composite's scope.
            shape: Its shape; a later build that needs another one is an error.
            init: Its first value, as for `Graph.variable`.
            dtype: Its dtype, where that is not the one of ``like``.
        Raises:
            ShapeError: if an earlier build made it with another shape.

        Example:
            >>> class Scale(af.Composite):
            ...     def build(self, x, *, training):
            ...         return x * self.variable(x, "factor", x.spec.shape[1:], init=2.0)
            >>> graph = af.Graph("g")
            >>> scale = Scale("scale")
            >>> y = scale(graph.blob("x", ["batch", 3]))
            >>> scale.variables[0].value
            array([2., 2., 2.], dtype=float32)
        """
        known = self._variables.get(name)
        if known is None:
            scope: Graph = like.graph.root.current_scope
            known = scope.variable(name, shape, like.dtype if dtype is None else dtype, init, like.place)
            self._variables[name] = known
        elif known.shape != tuple(shape):
            raise ShapeError(
                f"variable {known.name!r} was built with shape {known.shape}, this build needs {tuple(shape)}"
            )
        return known

    @property
    def variables(self) -> tuple[Variable, ...]:
        """Variables of this composite and of the composites inside it, in order of creation.

        Example:
            >>> graph = af.Graph("g")
            >>> net = af.nn.MLP(10, hidden=[32], name="net")
            >>> _ = net(graph.blob("x", ["batch", 64]))
            >>> for variable in net.variables:
            ...     print(variable.name, variable.spec)
            net/hidden0/weight float32[32, 64]
            net/hidden0/bias float32[32]
            net/scores/weight float32[10, 32]
            net/scores/bias float32[10]
        """
        found = dict.fromkeys(self._variables.values())
        for child in self.children():
            found.update(dict.fromkeys(child.variables))
        return tuple(found)

    def children(self) -> Sequence[Composite[Any]]:
        """Composites that this one is made of: every composite among its attributes, lists and tuples included."""
        found: list[Composite[Any]] = []
        for value in vars(self).values():
            items = value if isinstance(value, list | tuple) else (value,)
            found += [item for item in items if isinstance(item, Composite)]
        return found

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.name!r}>"

    def __str__(self) -> str:
        """A line for each part: its class and name, types of its bottom and top in the latest build, its parameters.

        Example:
            >>> graph = af.Graph("g")
            >>> net = af.nn.MLP(10, hidden=[32], name="net")
            >>> _ = net(graph.blob("x", ["batch", 64]))
            >>> print(net)
            MLP net                 float32[batch, 64] -> float32[batch, 10]  2,410 parameters
              InnerProduct hidden0  float32[batch, 64] -> float32[batch, 32]  2,080 parameters
              Dropout dropout0      float32[batch, 32] -> float32[batch, 32]
              InnerProduct scores   float32[batch, 32] -> float32[batch, 10]  330 parameters
        """
        rows = list(self._rows(""))
        first, second = (max(len(row[i]) for row in rows) for i in (0, 1))
        return "\n".join(f"{label:{first}}  {types:{second}}  {count}".rstrip() for label, types, count in rows)

    def _rows(self, indent: str) -> Iterator[tuple[str, str, str]]:
        bottom, top = (", ".join([str(blob.spec) for blob in blobs]) for blobs in (self.bottom, self.top))
        count = sum(variable.spec.size for variable in self.variables)
        types = f"{bottom} -> {top}" if top else "not built"
        yield f"{indent}{type(self).__name__} {self.name}", types, f"{count:,} parameters" if count else ""
        for child in self.children():
            yield from child._rows(indent + "  ")

    def __rrshift__(self, bottom: Blob | Sequence[Blob]) -> Self:
        if isinstance(bottom, Op):
            raise GraphError(f"connect op {bottom.name!r} to composite {self.name!r} through a blob: op >> [y] >> ...")
        blobs = as_blobs(bottom)
        if blobs is None:
            return NotImplemented
        self(*blobs)
        return self

    @overload
    def __rshift__(self, other: Composite[_Next]) -> Composite[_Next]: ...
    @overload
    def __rshift__(self, other: _Blobs) -> _Blobs: ...
    def __rshift__(self, other: Any) -> Any:
        if isinstance(other, Composite):
            if not self.top:
                return Chain(self, other)
            other(*self.top)
            return other
        if isinstance(other, Op):
            raise GraphError(f"connect composite {self.name!r} to op {other.name!r} through a blob: ... >> [y] >> op")
        blobs = as_blobs(other)
        if blobs is None:
            return NotImplemented
        if len(blobs) != len(self.top):
            raise GraphError(
                f"composite {self.name!r} has {len(self.top)} top blobs, got {len(blobs)}"
                + ("" if self.top else ": connect its bottom first, [x] >> composite >> [y]")
            )
        for top, blob in zip(self.top, blobs, strict=True):
            root = top.graph.root
            if blob.graph.root is not root:
                raise GraphError(
                    f"composite {self.name!r} is built in graph {root.name!r}, "
                    f"blob {blob.name!r} is of another one, {blob.graph.root.name!r}"
                )
            if blob.spec != top.spec:
                kind = ShapeError if blob.shape != top.shape else DTypeError
                raise kind(f"composite {self.name!r} gives {top.spec}, blob {blob.name!r} is declared as {blob.spec}")
        with blobs[0].graph.root._store.all_or_nothing():
            for top, blob in zip(self.top, blobs, strict=True):
                root = top.graph.root
                copy = root.current_scope._add_op(root.unique_name("copy"), Copy(), blob.place, None)
                [top] >> copy >> [blob]
        return other


class Chain(Composite[Top]):
    """Composites one after the other; ``a >> b`` makes one while ``a`` has no bottom yet.

    Args:
        parts: The composites; each takes the top of the one before as its bottom.
        name: Scope of its ops and variables.

    Example:
        >>> net = af.nn.Conv(8, 3, activation="relu") >> af.nn.Pool("max", 2) >> af.nn.InnerProduct(10)
        >>> type(net).__name__
        'Chain'
        >>> graph = af.Graph("g")
        >>> images = graph.blob("images", ["batch", 8, 8, 1])
        >>> net(images)
        <Blob 'chain/innerproduct/add/out' float32[batch, 10] on cpu>
    """

    def __init__(self, *parts: Composite[Any], name: str | None = None) -> None:
        super().__init__(name)
        self._named: bool = name is not None
        self.parts: list[Composite[Any]] = [
            inner for part in parts for inner in (part.parts if type(part) is Chain and not part._named else (part,))
        ]

    def build(self, *bottom: Blob, training: bool) -> Blob | Sequence[Blob]:
        """Build each part on the top of the one before."""
        for part in self.parts:
            part(*bottom, training=training)
            bottom = part.top
        return bottom
