"""Modules that ``import actorflow`` loads, and names that it offers."""

import ast
import os
import runpy
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest

import actorflow as af
from tests.support.effort import FULL

PACKAGE = Path(af.__file__).parent
MODULES = sorted(
    ".".join(("actorflow", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"
)


def is_package(name: str) -> bool:
    return PACKAGE.parent.joinpath(*name.split(".")).is_dir()


OPTIONAL = {
    "cupy",
    "mpi4py",
    "onnx",
    "onnxruntime",
    "opentelemetry",
    "safetensors",
    "sklearn",
    "threadpoolctl",
    "torch",
    "uvloop",
}

#: What most modules load anyway, and what those of a family do besides.
COMMON = ("asyncio", "numpy")
FAMILIES = {
    "actorflow.onnx": (*COMMON, "onnx"),
    "actorflow.ops.torch": (*COMMON, "torch"),
    "actorflow.serve": (*COMMON, "aiohttp"),
    "actorflow.web": (*COMMON, "aiohttp"),
}

SERVER = """
import os, sys
ours = set(sys.stdlib_module_names) | {"actorflow"}
third_party = lambda: {name.partition(".")[0] for name in sys.modules} - ours
at_start = third_party()
for needed in sys.argv[1:]:
    __import__(needed)
for line in sys.stdin:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        os.dup2(writing, 1)
        os.dup2(writing, 2)
        __import__(line.strip())
        print(*sorted(name for name in third_party() - at_start if not name.startswith("_")), flush=True)
        if "mpi4py.MPI" in sys.modules:
            sys.modules["mpi4py.MPI"].Finalize()  # or its shared memory stays behind
        os._exit(0)
    os.close(writing)
    with open(reading) as pipe:
        said = pipe.read()
    _, status = os.waitpid(child, 0)
    print(repr((status, said)), flush=True)
"""


class Imports:
    """A process that has loaded what a family of modules needs anyway, and nothing of the package: each import is done
    in a copy of it, which costs a tenth of a new process that loads it all.
    """

    def __init__(self, needed: tuple[str, ...], compiled: Path) -> None:
        # A process with threads must not be copied; and the package is compiled once, not once per import.
        single = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
        environment = {**os.environ, **single, "PYTHONPYCACHEPREFIX": str(compiled)}
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        self._process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", SERVER, *needed],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def loaded_by(self, module: str) -> set[str]:
        """The packages that are there when a module has been imported."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(module + "\n")
        self._process.stdin.flush()
        status, said = ast.literal_eval(self._process.stdout.readline())
        assert status == 0, said
        return set(said.split())

    def close(self) -> None:
        self._process.communicate(timeout=240)


@pytest.fixture(scope="module")
def imports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., Imports]]:
    """The process that has loaded so much and no more."""
    compiled = tmp_path_factory.mktemp("compiled")
    with ExitStack() as stack:
        yield cache(lambda *needed: stack.enter_context(closing(Imports(needed, compiled))))


#: In the short form all packages, and a third of the other modules.
TRIED = [name for name in MODULES if FULL or zlib.crc32(name.encode()) % 3 == 0 or is_package(name)]


@pytest.mark.parametrize("module", TRIED)
def test_module_can_be_imported_alone(module: str, imports: Callable[..., Imports]) -> None:
    if module.startswith("actorflow.ops.cuda") and find_spec("cupy") is None:
        pytest.skip("CuPy is not installed: pip install 'actorflow[cuda12]'")
    if module == "actorflow.ops.cuda.cudnn":
        pytest.skip("it needs cuDNN, which `tests/gpu/test_cudnn.py` loads")
    if module.startswith("actorflow.ops.torch") and find_spec("torch") is None:
        pytest.skip("torch is not installed: make test WITH=torch")
    if module.startswith("actorflow.transport.mpi") and find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed: pip install 'actorflow[mpi]'")
    if module.startswith("actorflow.onnx") and find_spec("onnx") is None:
        pytest.skip("onnx is not installed: pip install 'actorflow[onnx]'")
    if module == "actorflow.trace.spans" and find_spec("opentelemetry") is None:
        pytest.skip("OpenTelemetry is not installed: pip install 'actorflow[otel]'")
    needed = next((needed for family, needed in FAMILIES.items() if module.startswith(family)), COMMON)
    loaded = imports(*needed).loaded_by(module)
    if module.startswith("actorflow.ops.torch"):
        assert loaded.isdisjoint(OPTIONAL - {"threadpoolctl", "torch"} | {"aiohttp", "rich"})
    elif module.startswith("actorflow.ops.cuda"):
        assert loaded.isdisjoint(OPTIONAL - {"cupy"} | {"aiohttp", "rich"})
    elif module.startswith(("actorflow.serve", "actorflow.web")):
        assert loaded.isdisjoint(OPTIONAL | {"rich"})
    elif module.startswith("actorflow.cli"):
        assert loaded.isdisjoint(OPTIONAL | {"aiohttp"})
    elif module.startswith("actorflow.onnx"):
        assert loaded.isdisjoint(OPTIONAL - {"onnx"} | {"aiohttp", "rich"})
    elif module == "actorflow.trace.spans":
        assert loaded <= {"numpy", "opentelemetry", "typing_extensions"}
    elif module.startswith("actorflow.transport.mpi"):
        assert loaded.isdisjoint(OPTIONAL - {"mpi4py"} | {"aiohttp", "rich"})
    else:
        assert loaded <= {"numpy"}


def test_import_actorflow_loads_nothing_but_itself(imports: Callable[..., Imports]) -> None:
    assert imports().loaded_by("actorflow") == set()


def test_public_names() -> None:
    assert af.__all__ == [
        "ActorflowError",
        "AxisError",
        "Batcher",
        "BatcherClosedError",
        "Blob",
        "Chain",
        "Checkpoint",
        "CheckpointError",
        "Checkpoints",
        "Composite",
        "CycleError",
        "DTypeError",
        "DataError",
        "DeviceError",
        "DeviceUnavailableError",
        "FeedError",
        "FiniteCheck",
        "FrameStream",
        "Graph",
        "GraphError",
        "GraphStatistics",
        "KernelNotFoundError",
        "MissingExtraError",
        "Model",
        "NotFiniteError",
        "Op",
        "OpError",
        "OpTimeoutError",
        "OutOfMemoryError",
        "Pause",
        "PeerFailedError",
        "PeerLostError",
        "Place",
        "PipelineError",
        "PlaceError",
        "Plan",
        "QueueFullError",
        "RaceError",
        "Result",
        "RunCancelledError",
        "RunTimeoutError",
        "ShapeError",
        "StageError",
        "StageTimeoutError",
        "StallError",
        "TensorSpec",
        "TransportError",
        "Variable",
        "array",
        "data",
        "devices",
        "grad",
        "gradient",
        "load",
        "load_checkpoint",
        "load_checkpoint_sync",
        "load_sync",
        "load_weights",
        "load_weights_sync",
        "nn",
        "onnx",
        "ops",
        "pipeline",
        "run",
        "save_checkpoint",
        "save_checkpoint_sync",
        "save_weights",
        "save_weights_sync",
        "serve",
        "testing",
        "to_graph",
        "to_numpy",
        "value_and_grad",
        "web",
        "world",
        "__version__",
    ]
    assert dir(af) == sorted(af.__all__)
    for name in af.__all__:
        getattr(af, name)


def test_every_error_is_public() -> None:
    from actorflow import errors

    assert set(errors.__all__) - {"require"} <= set(af.__all__)
    for name in set(errors.__all__) - {"require"}:
        assert getattr(af, name) is getattr(errors, name)


def test_type_checkers_see_every_lazy_name() -> None:
    tree = ast.parse(Path(af.__file__).read_text(encoding="utf-8"))
    imported = {
        alias.asname
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module != "__future__"
        for alias in node.names
    }
    assert imported - {None} == set(af.__all__) - {"__version__"}


def test_unknown_name() -> None:
    with pytest.raises(AttributeError, match=r"module 'actorflow' has no attribute 'grpah'; did you mean 'Graph'"):
        _ = af.grpah


def test_a_free_threaded_python_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its reference counts would let buffers be written that are still read."""
    monkeypatch.setattr(sys, "abiflags", "t", raising=False)
    with pytest.raises(ImportError, match="free-threaded"):
        runpy.run_path(str(af.__file__))
