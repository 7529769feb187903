"""What ``import actorflow`` loads and offers."""

import ast
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import actorflow as af

PACKAGE = Path(af.__file__).parent
MODULES = sorted(
    ".".join(("actorflow", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"
)
OPTIONAL = {"cupy", "mpi4py", "opentelemetry", "safetensors", "sklearn", "threadpoolctl", "torch", "uvloop"}

LIST_LOADED = """
import sys
before = set(sys.modules)
import {module}
names = {{name.partition(".")[0] for name in set(sys.modules) - before}}
third_party = names - set(sys.stdlib_module_names) - {{"actorflow"}}
print(" ".join(name for name in third_party if not name.startswith("_")))
"""


def loaded_by(module: str) -> set[str]:
    code = LIST_LOADED.format(module=module)
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", MODULES)
def test_module_can_be_imported_alone(module: str) -> None:
    if module.startswith("actorflow.ops.cuda") and find_spec("cupy") is None:
        pytest.skip("CuPy is not installed: pip install 'actorflow[cuda12]'")
    if module.startswith("actorflow.ops.torch") and find_spec("torch") is None:
        pytest.skip("torch is not installed: make test WITH=torch")
    if module.startswith("actorflow.transport.mpi") and find_spec("mpi4py") is None:
        pytest.skip("mpi4py is not installed: pip install 'actorflow[mpi]'")
    if module == "actorflow.otel" and find_spec("opentelemetry") is None:
        pytest.skip("OpenTelemetry is not installed: pip install 'actorflow[otel]'")
    loaded = loaded_by(module)
    if module.startswith("actorflow.ops.torch"):
        assert loaded.isdisjoint(OPTIONAL - {"threadpoolctl", "torch"} | {"aiohttp", "rich"})
    elif module.startswith("actorflow.web"):
        assert loaded.isdisjoint(OPTIONAL | {"rich"})
    elif module.startswith("actorflow.cli"):
        assert loaded.isdisjoint(OPTIONAL | {"aiohttp"})
    elif module == "actorflow.otel":
        assert loaded <= {"numpy", "opentelemetry", "typing_extensions"}
    elif module.startswith("actorflow.transport.mpi"):
        assert loaded.isdisjoint(OPTIONAL - {"mpi4py"} | {"aiohttp", "rich"})
    else:
        assert loaded <= {"numpy"}


def test_import_actorflow_loads_nothing_but_itself() -> None:
    assert loaded_by("actorflow") == set()


def test_public_names() -> None:
    assert af.__all__ == [
        "ActorflowError",
        "AxisError",
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
        "Graph",
        "GraphError",
        "KernelNotFoundError",
        "MissingExtraError",
        "Op",
        "OpError",
        "OpTimeoutError",
        "OutOfMemoryError",
        "PeerFailedError",
        "PeerLostError",
        "Place",
        "PipelineError",
        "PlaceError",
        "Plan",
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
        "gradient",
        "load_checkpoint",
        "load_checkpoint_sync",
        "nn",
        "ops",
        "pipeline",
        "run",
        "save_checkpoint",
        "save_checkpoint_sync",
        "testing",
        "to_numpy",
        "web",
        "world",
        "__version__",
    ]
    assert {name: getattr(af, name) for name in af.__all__}.keys() <= set(dir(af))


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
    with pytest.raises(AttributeError, match="module 'actorflow' has no attribute 'grpah'"):
        _ = af.grpah
