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
from tests.support.effort import FULL, slow

PACKAGE = Path(af.__file__).parent
MODULES = sorted(
    ".".join(("actorflow", *path.relative_to(PACKAGE).with_suffix("").parts)).removesuffix(".__init__")
    for path in PACKAGE.rglob("*.py")
    if path.name != "__main__.py"
)


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
    "actorflow.serve": (*COMMON, "aiohttp"),
    "actorflow.web": (*COMMON, "aiohttp"),
}

SERVER = """
import os, sys
ours = set(sys.stdlib_module_names) | {"actorflow"}
third_party = lambda: {name.partition(".")[0] for name in sys.modules} - ours
of_the_package = lambda: {name for name in sys.modules if name.partition(".")[0] == "actorflow"}
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
        named = {name for name in third_party() - at_start if not name.startswith("_")}
        print(*sorted(named | of_the_package()), flush=True)
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
        # A process with threads must not be copied; and the package is compiled once, by whatever version.
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
        """What is there when a module has been imported: third parties, and the modules of this package."""
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
def imports(pytestconfig: pytest.Config) -> Iterator[Callable[..., Imports]]:
    """The process that has loaded so much and no more."""
    compiled = pytestconfig.rootpath / ".pytest_cache" / "compiled"
    with ExitStack() as stack:
        yield cache(lambda *needed: stack.enter_context(closing(Imports(needed, compiled))))


#: Families of modules that need what may not be there, and what to do then.
EXTRAS = {
    "actorflow.onnx": ("onnx", "onnx is not installed: pip install 'actorflow[onnx]'"),
    "actorflow.ops.cuda": ("cupy", "CuPy is not installed: pip install 'actorflow[cuda12]'"),
    "actorflow.trace.spans": ("opentelemetry", "OpenTelemetry is not installed: pip install 'actorflow[otel]'"),
    "actorflow.transport.mpi": ("mpi4py", "mpi4py is not installed: pip install 'actorflow[mpi]'"),
}
#: They need cuDNN, which `tests/gpu/test_cudnn.py` loads, and oneDNN, which `make test-onednn` does.
ELSEWHERE = {"actorflow.ops.cuda.cudnn", "actorflow.ops.onednn.kernels"}
#: Modules of the package, and what its compiled core makes for the lines of tracebacks.
OWN = {"actorflow", "cython_runtime"}
TRIED = sorted({name for name in MODULES if name.count(".") == 1} | {*EXTRAS})
#: One of each of what `check_third_parties` tells apart, where that does not need an extra.
QUICK = {"actorflow.cli", "actorflow.errors", "actorflow.graph", "actorflow.serve"}


@pytest.mark.parametrize("module", slow(TRIED, but=QUICK))
def test_modules_can_be_imported_alone(module: str, imports: Callable[..., Imports]) -> None:
    """Each module below one, too, in a process of its own, unless importing its package has loaded it already.

    That comes first anyway, so what loads there is loaded the same way when it is asked for. Of those that no package
    loads the short form takes a sixth.
    """
    extra, advice = EXTRAS.get(module, ("numpy", ""))
    if find_spec(extra) is None:
        pytest.skip(advice)
    needed = next((needed for family, needed in FAMILIES.items() if module.startswith(family)), COMMON)
    check_below(module, set(), imports(*needed))


def check_below(module: str, loaded_before: set[str], imports: Imports) -> None:
    below = [name for name in MODULES if name.rpartition(".")[0] == module and name not in {*EXTRAS, *ELSEWHERE}]
    loaded = loaded_before
    if module not in loaded_before and (FULL or below or module in EXTRAS or zlib.crc32(module.encode()) % 6 == 0):
        loaded = imports.loaded_by(module)
        check_third_parties(module, {name for name in loaded if name.partition(".")[0] not in OWN})
    for name in below:
        check_below(name, loaded, imports)


def check_third_parties(module: str, loaded: set[str]) -> None:
    if module.startswith("actorflow.ops.cuda"):
        assert loaded.isdisjoint(OPTIONAL - {"cupy"} | {"aiohttp", "rich"}), module
    elif module.startswith(("actorflow.serve", "actorflow.web")):
        assert loaded.isdisjoint(OPTIONAL | {"rich"}), module
    elif module.startswith("actorflow.cli"):
        assert loaded.isdisjoint(OPTIONAL | {"aiohttp"}), module
    elif module.startswith("actorflow.onnx"):
        assert loaded.isdisjoint(OPTIONAL - {"onnx"} | {"aiohttp", "rich"}), module
    elif module == "actorflow.trace.spans":
        assert loaded <= {"numpy", "opentelemetry", "typing_extensions"}, module
    elif module.startswith("actorflow.transport.mpi"):
        assert loaded.isdisjoint(OPTIONAL - {"mpi4py"} | {"aiohttp", "rich"}), module
    else:
        assert loaded <= {"numpy"}, module


def test_import_actorflow_loads_nothing_but_itself(imports: Callable[..., Imports]) -> None:
    assert imports().loaded_by("actorflow") == {"actorflow"}


def test_public_names() -> None:
    """They are those of the reference: `tests/docs/test_reference.py`."""
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
