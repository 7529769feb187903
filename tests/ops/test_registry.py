"""The kernel registry: which kernel is found, and what a miss says."""

import subprocess
import sys
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np
import pytest

import actorflow as af
import actorflow.array as xp
import actorflow.ops.cpu
from actorflow import ops
from actorflow.ops import registry
from actorflow.ops.cpu.described import make
from actorflow.ops.operation import apply
from actorflow.ops.registry import KernelKey, find_kernel, kernel, registered_kernels
from tests.operations import operations
from tests.support.effort import slow

F32, F64 = np.dtype("float32"), np.dtype("float64")


@dataclass(frozen=True)
class Twice(ops.Operation):
    """An operation without kernels of its own."""

    def infer(self, *inputs: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return inputs


@pytest.fixture(autouse=True)
def own_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget what is registered here."""
    monkeypatch.setattr(registry, "_kernels", dict(registry._kernels))


def fn(*args: Any) -> None:
    """A kernel; which one is asked for matters only."""


class TestRegistering:
    def test_the_function_stays_what_it_is(self) -> None:
        assert kernel(Twice)(fn) is fn

    def test_by_class_or_by_name(self) -> None:
        kernel(Twice, dtypes=["float32"])(fn)
        kernel("Twice", dtypes=["float64"])(fn)
        keys = [key for key in registered_kernels() if key.operation == "Twice"]
        assert keys == [
            KernelKey("Twice", "cpu", "numpy", "float32", "any"),
            KernelKey("Twice", "cpu", "numpy", "float64", "any"),
        ]

    @pytest.mark.parametrize(
        "dtypes", ["float32", ["float32"], ["f4"], [np.float32], [np.dtype("float32")], iter(["f4"])]
    )
    def test_dtypes_are_normalized(self, dtypes: Any) -> None:
        kernel(Twice, dtypes=dtypes)(fn)
        assert [key.dtype for key in registered_kernels() if key.operation == "Twice"] == ["float32"]

    def test_flags(self) -> None:
        kernel(Twice, returns=True)(fn)
        kernel(Twice, random=True, dtypes="float64")(fn)
        assert find_kernel(Twice(), "cpu", F32).returns
        assert not find_kernel(Twice(), "cpu", F32).random
        assert find_kernel(Twice(), "cpu", F64).random
        assert not find_kernel(Twice(), "cpu", F64).returns

    def test_twice(self) -> None:
        kernel(Twice, dtypes=["float64"])(fn)
        with pytest.raises(
            af.GraphError,
            match=r"already registered for Twice\(device=cpu, library=numpy, dtype=float64, layout=any\): <function fn",
        ):
            kernel(Twice, dtypes=["float32", "float64"])(fn)
        assert [key.dtype for key in registered_kernels() if key.operation == "Twice"] == ["float64"]


class TestFinding:
    def test_the_dtype_before_any(self) -> None:
        for dtypes in ("any", "float32"):
            kernel(Twice, dtypes=dtypes)(fn)
        assert find_kernel(Twice(), "cpu", F32).key.dtype == "float32"
        assert find_kernel(Twice(), "cpu", F64).key.dtype == "any"

    def test_the_layout_before_any(self) -> None:
        for layout in ("any", "nhwc"):
            kernel(Twice, layout=layout)(fn)
        assert find_kernel(Twice(), "cpu", F32, "nhwc").key.layout == "nhwc"
        assert find_kernel(Twice(), "cpu", F32, "nchw").key.layout == "any"
        assert find_kernel(Twice(), "cpu", F32).key.layout == "any"

    def test_the_first_library_before_a_better_match(self) -> None:
        kernel(Twice, library="numpy", dtypes="float32")(fn)
        kernel(Twice, library="mkl")(fn)
        assert find_kernel(Twice(), "cpu", F32, libraries=("mkl", "numpy")).key.library == "mkl"
        assert find_kernel(Twice(), "cpu", F32, libraries=iter(("numpy", "mkl"))).key.library == "numpy"
        assert find_kernel(Twice(), "cpu", F32, libraries=("none", "mkl")).key.library == "mkl"

    def test_devices_are_apart(self) -> None:
        kernel(Twice, device="sim")(fn)
        assert find_kernel(Twice(), "sim", F32).key.device == "sim"
        with pytest.raises(
            af.KernelNotFoundError,
            match=r"(?m)no kernel for Twice\(device=cpu, library=numpy, dtype=float32, layout=any\); registered:\n"
            r"  Twice\(device=sim, library=numpy, dtype=any, layout=any\)$",
        ) as caught:
            find_kernel(Twice(), "cpu", F32)
        assert isinstance(caught.value, LookupError)

    def test_a_miss_lists_all_of_the_operation(self) -> None:
        kernel(Twice, dtypes=["float32", "float64"])(fn)
        kernel(Twice, library="mkl", layout="nhwc")(fn)
        with pytest.raises(af.KernelNotFoundError) as caught:
            find_kernel(Twice(), "cpu", np.dtype("int8"), libraries=("mkl", "numpy"))
        assert str(caught.value).splitlines() == [
            "no kernel for Twice(device=cpu, library=mkl|numpy, dtype=int8, layout=any); registered:",
            "  Twice(device=cpu, library=numpy, dtype=float32, layout=any)",
            "  Twice(device=cpu, library=numpy, dtype=float64, layout=any)",
            "  Twice(device=cpu, library=mkl, dtype=any, layout=nhwc)",
        ]

    @pytest.mark.parametrize("place", ["cpu", "sim:0"])
    def test_what_is_defined_again_has_a_kernel_of_its_own(self, place: str) -> None:
        """As a cell of a notebook defines that is run again."""
        found = []
        for factor in (2.0, 3.0):
            _, times = ops.unary("times", "A product.", lambda x, out, factor=factor: np.multiply(x, factor, out=out))
            graph = af.Graph("products")
            with graph.at(place):
                x = graph.blob("x", shape=2)
                y = ops.copy(times(x))
            found.append(af.to_numpy(graph.run_sync({x: [1, 2]})[y]).tolist())
        assert found == [[2.0, 4.0], [3.0, 6.0]]

    def test_a_kernel_runs_when_it_is_called(self) -> None:
        async def waiting(operation: Twice, inputs: list[Any], outputs: list[Any]) -> None: ...

        def yielding(operation: Twice, inputs: list[Any], outputs: list[Any]) -> Any:
            yield

        with pytest.raises(af.GraphError, match=r"waiting.* is an async function: a kernel is a plain one"):
            kernel(Twice)(waiting)
        with pytest.raises(af.GraphError, match=r"yielding is a generator function, .*: a kernel needs a"):
            kernel(Twice)(yielding)

    def test_a_miss_without_any_names_what_has_nearly_that_name(self) -> None:
        kernel("Another")(fn)
        kernel("Twicce")(fn)
        with pytest.raises(
            af.KernelNotFoundError,
            match=r"registered:\n  nothing: register one with @af\.ops\.kernel\(Twice\); did you mean 'Twicce'",
        ) as caught:
            find_kernel(Twice(), "cpu", F32)
        assert "Another" not in str(caught.value)


class TestOwnKernels:
    def test_every_operation_has_a_kernel(self) -> None:
        known = {key.operation for key in registered_kernels()}
        missing = {kind for kind in operations() if kind.__name__ not in known}
        made = {kind for kind in missing if make(kind, KernelKey(kind.__name__, "cpu", "numpy", "float32", "any"))}
        assert {kind.__name__ for kind in missing - made} == {"Function", "Emitting", "AllReduce", "Numbers"}


def test_a_kernel_is_bound_to_each_step_of_a_program() -> None:
    """Once, with the types of the step's inputs; what was bound computes."""
    bound: list[Any] = []

    def bind(operation: Twice, inputs: Any) -> Any:
        bound.append([spec.shape for spec in inputs])
        return lambda operation, inputs, outputs: np.multiply(inputs[0], len(bound), out=outputs[0])

    def unbound(operation: Twice, inputs: Any, outputs: Any) -> None:
        raise AssertionError("the step's own function is to compute")

    kernel(Twice, library="binding", bind=bind)(unbound)
    graph = af.Graph("g", libraries=["binding"])
    x, y = graph.blob("x", 2), graph.blob("y", 3)
    doubled = [graph.apply(Twice(), each) for each in (x, y)]
    for _ in range(2):
        result = graph.run_sync({x: [1, 2], y: [1, 2, 3]})
        assert [result[each].tolist() for each in doubled] == [[2, 4], [2, 4, 6]]
    assert sorted(bound) == [[(2,)], [(3,)]]


class TestPublicFace:
    def test_dir_shows_what_is_public(self) -> None:
        assert dir(ops) == sorted(ops.__all__)
        assert len(set(ops.__all__)) == len(ops.__all__)

    def test_internal_operations_are_not_shown(self) -> None:
        """Operations that only gradients or other functions make are imported from where they are."""
        faces = {ops.linalg.__name__, ops.fft.__name__}  # have faces of their own
        internal = {kind.__name__ for kind in operations() if kind.__module__ not in faces} - set(ops.__all__)
        gradients = {name for name in internal if name.endswith("Down")} | {"ConvWeight", "InnerWeight"}
        assert internal - gradients == {
            *("AddAt", "ChannelWindowSum", "Constant", "Followed", "Gather"),
            *("NormFactor", "Numbers", "Ragged", "Recurrence", "ScaleBy", "SquareSum", "Together"),
        }
        assert not any(name.endswith("Down") for name in ops.__all__)

    def test_a_function_and_its_class_agree_in_name(self) -> None:
        """But for reductions, whose classes are ``ReduceSum``, ..., and those that no function makes alone."""
        functions = {name.replace("_", "") for name in ops.__all__ if name.islower()}
        classes = {kind.__name__ for kind in operations()} & set(ops.__all__)
        others = {name for name in classes if name.lower().removeprefix("reduce") not in functions}
        assert others == {
            *("AdagradUpdate", "AdamUpdate", "RmsPropUpdate", "SgdUpdate"),  # made by optimizers
            *("AllReduce", "Function", "Emitting", "Fused"),  # made by `nn.parallel`, graphs and plans
            "GeluTanh",  # a form of `gelu`
            "CachedAttention",  # made by `Cache.attention`
            *("BatchNormInference", "LSTMGates"),  # the second operation of `batch_norm`, and part of `lstm_cell`
        }


FIRST_GRAPHS = """
import sys, threading
import actorflow as af

sys.setswitchinterval(1e-6)
start = threading.Barrier(8)
found = []

def work(number):
    start.wait()
    graph = af.Graph("g")
    x = graph.blob("x", shape=(3,))
    y = af.ops.scale(af.ops.relu(x), float(number))
    found.append(graph.run_sync({x: [1.0, -1.0, 2.0]})[y].tolist() == [number, 0.0, 2.0 * number])

threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
print(found == [True] * 8)
"""


@pytest.mark.parametrize("time", [0, *slow([1, 2])])
def test_the_first_graphs_of_a_process_may_start_in_several_threads_at_once(time: int) -> None:
    """Modules, kernels and devices are looked up on first use, which must not be half done for anybody."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", FIRST_GRAPHS], capture_output=True, text=True, timeout=240, check=False
    )
    assert (done.stdout.strip(), done.stderr) == ("True", "")


SPEC = af.TensorSpec.of((2,))


@pytest.mark.together("found", [SPEC, [3], ((2, 3),), "spec", 5, (SPEC, None)], ids=str)
def test_an_infer_that_does_not_return_types_is_named(found: Any) -> None:
    @dataclass(frozen=True, eq=False)
    class Wrong(ops.Operation):
        arguments = ("x",)

        def infer(self, *inputs: af.TensorSpec) -> Any:
            return found

        def compute(self, x: Any) -> Any:  # type: ignore[override]
            return x

    got = r"a bare TensorSpec, float32\[2\]" if found is SPEC else ""
    for x in (af.Graph("g").blob("x", (2,)), af.array.ones(2)):
        with pytest.raises(af.GraphError, match=r"Wrong\.infer must return a tuple of TensorSpec, .*got " + got):
            apply(Wrong(), x)


@dataclass(frozen=True)
class Unlike(ops.Operation):
    """Gives something else than it says for what is negative."""

    way: str

    def infer(self, x: af.TensorSpec) -> tuple[af.TensorSpec, ...]:
        return (x,)

    def compute(self, x: np.ndarray) -> Any:
        if x.reshape(-1)[0] >= 0:
            return x + 1
        wrong: dict[str, Any] = {
            "fewer": lambda: x[::2].copy(),
            "more": lambda: np.concatenate([x, x]),
            "another rank": lambda: x[None],
            "another dtype": lambda: x.astype("f8"),
            "several": lambda: (x, x),
            "no array": lambda: [1.0, 2.0],
        }
        return wrong[self.way]()


@dataclass(frozen=True)
class Returning(Unlike):
    """The same, with a kernel of its own that returns what it makes."""

    def returned(self, x: np.ndarray) -> Any:
        y = self.compute(x)
        return [*y] if isinstance(y, tuple | list) else [y]


@dataclass(frozen=True)
class Replacing(Returning):
    """The same, with a kernel that puts what it makes in the place of its buffer."""


WAYS = ("fewer", "more", "another rank", "another dtype", "several", "no array")
#: By name: options of the graph, where the op is, and how it is made.
MODES: dict[str, tuple[dict[str, Any], str, dict[str, Any]]] = {
    "plain": ({}, "cpu", {}),
    "checked": ({"check_finite": True}, "cpu", {}),
    "in order": ({"sequential": True}, "cpu", {}),
    "limited": ({"memory_budget": 1 << 30}, "cpu", {}),
    "on its lane": ({}, "cpu", {"retries": 1, "lane": "other"}),
    "on a device": ({}, "sim:0", {}),
    "captured": ({"capture": True}, "sim:0", {}),
}


class TestWhatKernelsReturn:
    """What a kernel gives in the place of its buffers is of the inferred types, whatever fires the op."""

    @pytest.fixture(autouse=True)
    def kernels(self, own_registry: None) -> None:
        def returning(operation: Any, inputs: list[Any], outputs: None) -> Any:
            return operation.returned(*inputs)

        def replacing(operation: Any, inputs: list[Any], outputs: list[Any]) -> None:
            if inputs[0].reshape(-1)[0] >= 0:
                np.add(inputs[0], 1, out=outputs[0])
            else:
                outputs[:] = operation.returned(*inputs)

        kernel(Returning, returns=True)(returning)
        kernel(Replacing)(replacing)

    @pytest.mark.parametrize("kind", [Unlike, Returning, Replacing])
    @pytest.mark.parametrize("mode", MODES)
    async def test_in_a_graph(self, kind: type[Any], mode: str) -> None:
        options, place, settings = MODES[mode]
        for way in WAYS:
            graph = af.Graph(way, **options)
            x = graph.blob("x", (64,), place=place)
            op = graph.op("unlike", kind(way), place=place, **settings)
            y = op(ops.scale(x, 2.0))
            z = ops.relu(y * 2.0) + 1.0
            async with graph:
                for sign in (1, 1, -1, -1, 1):
                    run = graph.run({x: np.full(64, sign, "f")}, fetch=[z])
                    if sign > 0:
                        np.testing.assert_array_equal(af.to_numpy((await run)[z]), np.full(64, 7, "f"))
                        continue
                    with pytest.raises(af.OpError) as caught:
                        await run
                    assert caught.value.op is op
                    if kind is Unlike and way in ("fewer", "more", "another rank"):
                        assert isinstance(caught.value.__cause__, af.ShapeError | af.DeviceError)
                        assert "expected shape (64,), as inferred, got" in str(caught.value)

    async def test_of_a_constant(self) -> None:
        for way in WAYS:
            graph = af.Graph(way)
            y = graph.apply(Unlike(way), graph.constant(np.full(64, -1, "f")))
            z = graph.blob("x", (64,)) + y
            async with graph:
                with pytest.raises(af.OpError, match="the kernel"):
                    await graph.run({"x": np.ones(64, "f")}, fetch=[z])

    @pytest.mark.parametrize("place", ["cpu", "sim:0"])
    def test_of_arrays(self, place: str) -> None:
        with xp.session():
            for way, sign in product(WAYS, (1, 1, 1, -1, -1, 1)):
                x = xp.asarray(np.full(64, sign, "f"), device=place)
                z = ops.relu(ops.apply(Unlike(way), x * 2.0) * 2.0) + 1.0
                if sign > 0:
                    assert np.asarray(z.to_device("cpu")).tolist() == [7.0] * 64
                else:
                    with pytest.raises(af.OpError, match="unlike"):
                        np.asarray(z.to_device("cpu"))
