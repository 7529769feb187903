"""Models: graphs with names for their inputs and outputs, as files hold them and servers offer them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from os import PathLike
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, Unpack, cast, overload

import numpy.typing as npt

from actorflow.errors import FeedError, GraphError, did_you_mean, time_limit
from actorflow.graph.graph import Graph, targets_of
from actorflow.graph.nodes import Blob, State, Variable
from actorflow.plan.validate import chosen, states_of

if TYPE_CHECKING:
    from actorflow.checkpoint.weights import LoadedWeights
    from actorflow.graph.graph import Fetch
    from actorflow.runtime.batched import Batcher, Batching
    from actorflow.runtime.program import Result

    _Wanted: TypeAlias = str | Blob | Iterable[str | Blob] | None
    _Inputs: TypeAlias = Mapping[str, npt.ArrayLike]
    _Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

_T = TypeVar("_T")


class NoSuchNameError(GraphError, KeyError):
    """A mapping of a model has no such name."""

    __str__ = Exception.__str__  # a KeyError's has quotes around it


class Named(Mapping[str, _T]):
    """Parts of a model by name, whose error for other names suggests the name that was meant.

    Args:
        items: The parts.
        lacking: Beginning of the message: ``model 'net' has no variable``.
        hint: End of the message where no name is near.
    """

    def __init__(self, items: Mapping[str, _T], lacking: str, hint: str = "") -> None:
        self._items = items
        self._lacking = lacking
        self._hint = hint

    def __getitem__(self, name: str) -> _T:
        if name not in self._items:
            raise NoSuchNameError(f"{self._lacking} {name!r}{did_you_mean(name, self._items) or self._hint}")
        return self._items[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __repr__(self) -> str:
        return repr(dict(self._items))


def _check_root(graph: object) -> None:
    if not isinstance(graph, Graph):
        raise TypeError(f"a model is made of a graph, got {type(graph).__name__}")
    if graph.parent is not None:
        raise GraphError(
            f"{graph.name!r} is a sub-graph: make a model of its root {graph.root.name!r}, with the blobs of this part"
        )


class Model:
    """A graph with named inputs and outputs.

    The names are for the outside: names of a file's tensors, or of a server's clients. They need not be those of the
    blobs.

    Args:
        graph: The graph, a root.
        inputs: Blobs that are fed, by name.
        outputs: Blobs that are fetched, by name, one at least.
        values: Blobs in between that have names outside, too; by default the inputs and outputs.
        variables: Its variables by their names outside; by default the graph's under their own names.

    Attributes:
        graph: The graph.
        inputs: As above, in their order.
        outputs: Likewise.
        values: As above.

    Raises:
        GraphError: if the graph is a part of another one, a blob is not of the graph, or the outputs need a source that
            is no input. TypeError if it is not a graph.

    Example:
        >>> graph = af.Graph("net")
        >>> x = graph.blob("x", ["batch", 2])
        >>> y = af.ops.softmax(af.ops.inner(x, graph.variable("w", [3, 2])))
        >>> model = af.Model(graph, inputs={"features": x}, outputs={"scores": y})
        >>> model.run_sync({"features": [[1, 2]]})["scores"].shape
        (1, 3)
        >>> list(model.variables)
        ['w']
    """

    def __init__(
        self,
        graph: Graph,
        inputs: Mapping[str, Blob],
        outputs: Mapping[str, Blob],
        *,
        values: Mapping[str, Blob] | None = None,
        variables: Mapping[str, Variable] | None = None,
    ) -> None:
        _check_root(graph)
        for what, blobs in (("inputs", inputs), ("outputs", outputs)):
            if not isinstance(cast(object, blobs), Mapping):
                raise TypeError(f"{what} of a model must be blobs by name, {{name: blob}}, got {type(blobs).__name__}")
        for blob in (*inputs.values(), *outputs.values()):
            if not isinstance(graph.resolve(blob), Blob):
                raise GraphError(f"model {graph.name!r}: expected a blob, got {blob!r}")
        if not outputs:
            raise GraphError(f"model {graph.name!r} has no output: give at least one blob")
        lacking = [blob.name for blob in _sources(graph, outputs.values()) if blob not in set(inputs.values())]
        if lacking:
            raise GraphError(f"model {graph.name!r}: its outputs need {', '.join(lacking)}, which is no input")
        self.graph = graph
        self.inputs = dict(inputs)
        self.outputs = dict(outputs)
        known = Named({**inputs, **outputs}, f"model {graph.name!r} has no value")
        self.values: Mapping[str, Blob] = known if values is None else values
        self._variables = variables

    @property
    def variables(self) -> Mapping[str, Variable]:
        """Its variables by name: names of a file that weights were loaded from, else their own.

        Example:
            >>> graph = af.Graph("net")
            >>> y = af.nn.InnerProduct(2, name="fc")(graph.blob("x", ["batch", 3]))
            >>> af.onnx.save(graph, "net.onnx")
            >>> model = af.onnx.load("net.onnx", trainable=True)
            >>> model.variables["fc/bias"], len(model.variables)
            (<Variable 'fc/bias' float32[2] on cpu>, 2)
        """
        if self._variables is not None:
            return self._variables
        own = {variable.name: variable for variable in self.graph.variables}
        return Named(own, f"model {self.graph.name!r} has no variable")

    @classmethod
    def of(cls, graph: Graph, *, fetch: Fetch = None) -> Model:
        """The model that a graph is: that of its file, where this says outputs, or one under the names of its blobs.

        Args:
            graph: The graph, a root.
            fetch: Its outputs, as for `Graph.run`; by default its file's, if it was loaded from one, or the sinks.
                Its inputs are the sources that these need.
        Raises:
            GraphError: if it has none of these, or is a part of a graph. TypeError if it is not a graph.

        Example:
            >>> graph = af.Graph("net")
            >>> x = graph.blob("x", ["n"])
            >>> y = af.ops.exp(x)
            >>> model = af.Model.of(graph)
            >>> list(model.inputs), list(model.outputs)
            (['x'], ['exp/out'])
        """
        _check_root(graph)
        if fetch is None and graph._interface is not None:
            return cls(graph, *graph._interface)
        targets = targets_of(fetch)
        _, outputs = chosen(graph, None if targets is None else [graph.resolve(target) for target in targets])
        inputs = {blob.name: blob for blob in _sources(graph, outputs)}
        return cls(graph, inputs, {blob.name: blob for blob in outputs})

    def __repr__(self) -> str:
        def listed(blobs: Mapping[str, Blob]) -> str:
            return ", ".join(f"{name} {blob.spec}" for name, blob in blobs.items()) or "nothing"

        return f"<Model {self.graph.name!r}: {listed(self.inputs)} -> {listed(self.outputs)}>"

    def feeds(self, inputs: _Inputs) -> dict[Blob, npt.ArrayLike]:
        """Feeds for `graph`, of values by the names of inputs.

        Raises:
            FeedError: if an input is missing, or there is none of that name.

        Example:
            >>> graph = af.Graph("net")
            >>> x = graph.blob("x", ["n"])
            >>> model = af.Model(graph, {"values": x}, {"result": x * 2})
            >>> feeds = model.feeds({"values": [1, 2]})
            >>> graph.run_sync(feeds)[model.outputs["result"]]
            array([2., 4.], dtype=float32)
        """
        if type(inputs) is dict and inputs.keys() == self.inputs.keys():
            return {self.inputs[name]: value for name, value in inputs.items()}
        if not isinstance(cast(object, inputs), Mapping):
            got = type(inputs).__name__
            raise TypeError(f"inputs must be arrays by name, {{{next(iter(self.inputs), 'x')!r}: array}}, got {got}")
        for name in inputs:
            if name not in self.inputs:
                raise FeedError(f"model {self.graph.name!r} has no input {name!r}{did_you_mean(name, self.inputs)}")
        missing = [f"{name!r} {blob.spec}" for name, blob in self.inputs.items() if name not in inputs]
        if missing:
            raise FeedError(f"model {self.graph.name!r}: no value for input {', '.join(missing)}")
        return {self.inputs[name]: value for name, value in inputs.items()}

    @overload
    async def run(self, inputs: _Inputs, *, fetch: _Wanted = None, timeout: float | None = None) -> _Arrays: ...
    @overload
    async def run(
        self, inputs: _Inputs, *, fetch: _Wanted = None, timeout: float | None = None, partial: Literal[True]
    ) -> Result: ...
    async def run(
        self, inputs: _Inputs, *, fetch: _Wanted = None, timeout: float | None = None, partial: bool = False
    ) -> _Arrays | Result:
        """Compute the outputs in one frame.

        Args:
            inputs: Arrays by the names of inputs, used without a copy.
            fetch: Names of outputs, of `values`, or of any blobs of the graph, or blobs; the default is all outputs.
            timeout: As for `Graph.run`.
            partial: Go on when an op fails, as `Graph.run` does.
        Returns:
            An array per output, under the keys of ``fetch``, in their order. With ``partial`` a `Result` under these
            names, whose ``errors`` has the errors of outputs that are not there.
        Raises:
            FeedError: if an input is missing or unknown; else as `Graph.run`.
            TypeError: if the inputs are not arrays by name.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("net")
            >>> x = graph.blob("x", ["n"])
            >>> hidden = af.ops.square(x)
            >>> model = af.Model(graph, {"values": x}, {"total": af.ops.sum(hidden)})
            >>> async def main():
            ...     async with graph:
            ...         print(await model.run({"values": [1, 2]}))
            ...         print(await model.run({"values": [1, 2]}, fetch=["total", "square/out"]))
            >>> asyncio.run(main())
            {'total': array(5., dtype=float32)}
            {'total': array(5., dtype=float32), 'square/out': array([1., 4.], dtype=float32)}
        """
        wanted = self._wanted(fetch)
        if timeout is not None:
            timeout = time_limit("timeout", timeout)
        if partial:
            result = await self.graph.run(self.feeds(inputs), fetch=[*wanted.values()], timeout=timeout, partial=True)
            return result._under(wanted)
        # As by `Graph.run`, whose call would be felt where a model is small.
        result = await self.graph._runnable().run(self.feeds(inputs), (*wanted.values(),), timeout)
        return result._by(wanted)

    @overload
    def run_sync(self, inputs: _Inputs, *, fetch: _Wanted = None) -> _Arrays: ...
    @overload
    def run_sync(self, inputs: _Inputs, *, fetch: _Wanted = None, partial: Literal[True]) -> Result: ...
    def run_sync(self, inputs: _Inputs, *, fetch: _Wanted = None, partial: bool = False) -> _Arrays | Result:
        """`run` for scripts, as `Graph.run_sync`.

        Example:
            >>> graph = af.Graph("net")
            >>> model = af.Model(graph, {"values": graph.blob("x", ["n"])}, {"total": af.ops.sum(graph["x"])})
            >>> model.run_sync({"values": [1, 2]})
            {'total': array(3., dtype=float32)}
            >>> model.run_sync({"value": [1, 2]})
            Traceback (most recent call last):
                ...
            actorflow.errors.FeedError: model 'net' has no input 'value'; did you mean 'values'?
            More: actorflow docs running
        """
        wanted = self._wanted(fetch)
        result = self.graph.run_sync(self.feeds(inputs), fetch=[*wanted.values()], partial=partial)
        return result._under(wanted) if partial else result._by(wanted)

    async def warm_up(self, *, axes: Mapping[str, int] | None = None, timeout: float | None = None) -> bool:
        """`Graph.warm_up` with the outputs fetched, also for batched runs of as many rows as ``axes`` says.

        Example:
            >>> graph = af.Graph("net")
            >>> model = af.Model(graph, {"values": graph.blob("x", ["batch", 2])}, {"total": af.ops.sum(graph["x"], 1)})
            >>> async def main():
            ...     async with graph:
            ...         return await model.warm_up(axes={"batch": 32})
            >>> af.run(main())
            True
        """
        outputs = dict.fromkeys(self.outputs.values())
        outputs |= dict.fromkeys(states_of(outputs).values())  # as sessions fetch them
        return await self.graph.warm_up([*outputs], axes=axes, timeout=timeout)

    async def swap(
        self, source: str | PathLike[str] | Mapping[str, npt.ArrayLike], *, strict: bool = True
    ) -> LoadedWeights:
        """Give the model other weights while it runs: each frame computes with the old ones or the new ones, whole.

        Nothing waits for this longer than for a frame before it. All is read, checked, and copied to devices first, and
        arrays that kernels derive from weights are made anew; the arrays are swapped between two
        frames. Frames that have started end with the weights that they began with.

        Args:
            source: A file of `save_weights`, a checkpoint or another safetensors file; a file ``.af``, of which the
                weights are taken; or arrays by the names of `variables`. Those of a file may be the variables' own.
            strict: Whether weights that it lacks, and names in it that are not weights, are errors.
        Returns:
            Missing and unexpected names, as `load_weights`, once no frame reads the old weights any more.
        Raises:
            CheckpointError: with all names, shapes and dtypes that do not fit; nothing has been changed then, nor if
                anything else fails.
            GraphError: if the model has no variables, as one of ONNX that was not loaded with ``trainable=True``; if an
                op of the graph itself asks; of a graph that several ranks run, if frames are in flight.
        Cancellation: either nothing has been changed, or all weights are the new ones.

        Example:
            >>> graph = af.Graph("net")
            >>> y = graph.blob("x", ["batch"]) * graph.variable("w", [], init=2)
            >>> model = af.Model.of(graph)
            >>> async def main():
            ...     async with graph, model.batched() as batcher:
            ...         print((await batcher.run({"x": [1]}))[y])
            ...         await model.swap({"w": np.array(3, "float32")})
            ...         print((await batcher.run({"x": [1]}))[y])
            >>> af.run(main())
            [2.]
            [3.]
        """
        return await self.graph._swap(source, self.variables, strict)

    async def save(self, path: str | PathLike[str]) -> None:
        """Save the ops of the outputs: ``Model.of(await af.load(path))`` is this model again; see `Graph.save`."""
        await self.graph.save(path, fetch=self.outputs, inputs=self.inputs)

    def save_sync(self, path: str | PathLike[str]) -> None:
        """`save` for scripts, as `Graph.save_sync`.

        Example:
            >>> graph = af.Graph("net")
            >>> model = af.Model(graph, {"values": graph.blob("x", ["n"])}, {"total": af.ops.sum(graph["x"])})
            >>> model.save_sync("net.af")
            >>> af.Model.of(af.load_sync("net.af")).run_sync({"values": [1, 2]})
            {'total': array(3., dtype=float32)}
        """
        self.graph.save_sync(path, fetch=self.outputs, inputs=self.inputs)

    def _wanted(self, fetch: _Wanted) -> dict[Any, Blob]:
        if fetch is None:
            return self.outputs
        found: dict[Any, Blob] = {}
        for name in [fetch] if isinstance(fetch, str | Blob) else fetch:
            node = self._named(name)
            if not isinstance(node, Blob):
                outputs = ", ".join([repr(each.name) for each in getattr(node, "outputs", ())]) or "none"
                raise GraphError(f"model {self.graph.name!r}: {name!r} is no blob; its outputs: {outputs}")
            found[name] = node
        return found

    def _named(self, name: Any) -> object:
        for blobs in (self.outputs, self.values):
            if name in blobs:
                return blobs[name]
        found = self.graph.resolve(name) if name in self.graph else None
        if isinstance(found, Blob):
            return found
        if found is not None or isinstance(self.values, Named):
            try:
                return self.values[name]  # says why there is none, of what a file has
            except KeyError:
                return self.graph.resolve(name)
        return self.values[name]

    def batched(self, **options: Unpack[Batching]) -> Batcher:
        """`Graph.batched` with the outputs fetched; takes its other arguments, and feeds by the names of inputs.

        Example:
            >>> import asyncio
            >>> graph = af.Graph("net")
            >>> x = graph.blob("x", ["batch", 2])
            >>> model = af.Model(graph, {"values": x}, {"total": af.ops.sum(x, 1)})
            >>> async def main():
            ...     async with graph, model.batched(max_rows=16) as batcher:
            ...         return (await batcher.run({"values": [[1, 2]]}))["total"]
            >>> asyncio.run(main())
            array([3.], dtype=float32)
        """
        fetch = [*dict.fromkeys(self.outputs.values())]
        return self.graph.batched(fetch=fetch, **options)._known_by(self.inputs, self.outputs)

    def sessions(
        self, state: Mapping[str, str], *, fixed: Mapping[str, npt.ArrayLike] | None = None, **options: Unpack[Batching]
    ) -> Batcher:
        """`batched` for callers that come again: some inputs go on from outputs, for each session by itself.

        Args:
            state: Names of inputs, each with that of the output that gives its next value. The axis of the rows, that
                the other inputs begin with, may be any of these.
            fixed: Values of inputs that are the same for all, and have no open axis, by name.
            options: As for `Graph.batched`.
        Raises:
            GraphError: as `Graph.batched`; if a name is none of an input or an output.

        Example:
            >>> graph = af.Graph("smooth")
            >>> x, before = graph.blob("x", ["batch", 1]), graph.blob("before", [1, "batch"])
            >>> after = before * 0.5 + x.T
            >>> model = af.Model(graph, {"x": x, "before": before}, {"y": after.T, "after": after})
            >>> async def main():
            ...     async with graph, model.sessions({"before": "after"}) as batcher, batcher.session() as session:
            ...         for value in 8, 0, 0:
            ...             result = await session.run({"x": [[value]]})
            ...         return result["y"]
            >>> af.run(main())
            array([[2.]], dtype=float32)
        """
        lacking = f"model {self.graph.name!r} has no"
        inputs, outputs = Named(self.inputs, f"{lacking} input"), Named(self.outputs, f"{lacking} output")
        pairs = {inputs[name]: outputs[following] for name, following in state.items()}
        fetch = [blob for blob in dict.fromkeys(self.outputs.values()) if blob not in pairs.values()]
        given = {inputs[name]: value for name, value in (fixed or {}).items()}
        return self.graph.batched(fetch=fetch, state=pairs, fixed=given, **options)._known_by(self.inputs, self.outputs)


def _sources(graph: Graph, outputs: Iterable[Blob]) -> list[Blob]:
    """Blobs that outputs need and that must be fed, in order of creation; states are fed by sessions."""
    outputs = tuple(outputs)
    outputs = *outputs, *states_of(outputs).values()
    ops, _ = chosen(graph, outputs)
    needed = dict.fromkeys([*outputs, *(blob for op in ops for blob in op.inputs)])
    fed = [blob for blob in needed if not blob.producers and not isinstance(blob, State | Variable)]
    return sorted(fed, key=lambda blob: blob.id)
