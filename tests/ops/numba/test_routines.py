"""How routines are made: the cache, the process that compiles, threads, forks, and what happens without them."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from importlib import util
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import actorflow as af
from actorflow.errors import DeviceError
from actorflow.ops import registry
from actorflow.ops.numba import Routine, cache, compile_queue, compiled
from actorflow.ops.numba.assembly import entry, leave, routine, vectors
from actorflow.ops.numba.kernels import are_plain

ROOT = Path(__file__).parents[3]
NUMBER = count()
DOUBLED = """
def doubled(x, y, size):
    for i in range(size):
        y[i] = x[i] + x[i]  # {number}
"""


def new_routine(number: int | None = None) -> Routine:
    """One that nobody has compiled."""
    text = DOUBLED.format(number=f"{os.getpid()} {next(NUMBER) if number is None else number}")
    return Routine(text, "doubled", ("float32*", "float32*", "intp"))


def works(routine: Routine) -> bool:
    x, y = np.arange(5, dtype="f"), np.zeros(5, "f")
    routine.wait()(id(x), id(y), 5)
    return bool((y == 2 * x).all())


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of its own, in which there is nothing, nor comes what tests before have asked for."""
    assert compile_queue.compile_queue.settled(60)
    own = tmp_path / "cache"
    monkeypatch.setenv("ACTORFLOW_CACHE_DIR", str(own))
    return own


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """``no_compiler()``: from here on nothing can be compiled."""

    def refuse(*_: Any) -> Any:
        raise OSError("nothing is compiled here")

    def forbid() -> None:
        monkeypatch.setattr(compile_queue.Compiler, "compile", refuse)

    return forbid


def test_a_routine_is_compiled_beside_the_caller(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "numba", raising=False)  # which others may have imported
    routine = new_routine()
    assert routine.function is None
    assert works(routine)
    assert routine.function is not None
    assert "numba" not in sys.modules
    assert [path.stat().st_mode & 0o777 for path in (folder, *cache.routines())] == [0o700, 0o600]


def test_what_is_on_disk_is_there_at_once(folder: Path, no_compiler: Callable[[], None]) -> None:
    assert works(new_routine(-1))
    no_compiler()
    again = new_routine(-1)
    assert again.function is not None
    assert works(again)


@pytest.mark.slow
def test_another_process_finds_it(folder: Path) -> None:
    program = (
        "import sys\nfrom actorflow.ops.numba import Routine, cache\n"
        f"routine = Routine({DOUBLED.format(number='shared')!r}, 'doubled', ('float32*', 'float32*', 'intp'))\n"
        "before = routine.function is not None\nroutine.wait()\nprint(before, len(cache.routines()))"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    answers = [
        subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    assert [(answer.stdout, answer.stderr) for answer in answers] == [("False 1\n", ""), ("True 1\n", "")]


def test_what_it_depends_on_is_in_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    names = {cache.path("a", "f", ("intp",)), cache.path("b", "f", ("intp",)), cache.path("a", "g", ("intp",))}
    names |= {cache.path("a", "f", ("float32",))}
    monkeypatch.setattr(cache, "processor", lambda: ("another", "-avx"))
    names |= {cache.path("a", "f", ("intp",))}
    monkeypatch.setattr(cache, "_versions", lambda: ["0.69"])
    assert len(names | {cache.path("a", "f", ("intp",))}) == 6


@pytest.mark.parametrize("damage", [lambda b: b[:-1], lambda b: b[:50] + b"\0" + b[51:], lambda b: b""])
def test_a_damaged_file_is_made_anew(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    assert works(new_routine(-2))
    (file,) = cache.routines()
    content = file.read_bytes()
    file.write_bytes(damage(content))
    again = new_routine(-2)
    assert again.function is None
    assert works(again)
    assert cache.read(file) is not None


def test_without_room_on_disk_nothing_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("no folder")
    monkeypatch.setenv("ACTORFLOW_CACHE_DIR", str(tmp_path / "file" / "cache"))
    assert works(new_routine())
    assert cache.routines() == []


@pytest.mark.skipif(sys.platform == "win32", reason="rights are the folder's own")
@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_to_is_refused(
    folder: Path, mode: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert works(new_routine(-3))
    (file,) = cache.routines()
    folder.chmod(mode)
    with caplog.at_level(logging.WARNING, "actorflow.ops.numba.cache"):
        assert cache.read(file) is None
        assert works(new_routine())
    (record,) = caplog.records
    assert "others may write there" in record.getMessage()
    assert cache.routines() == [file]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ACTORFLOW_CACHE_DIR": "/a/b", "XDG_CACHE_HOME": "/x"}, "/a/b"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/actorflow"),
        ({"HOME": "/home/me"}, "/home/me/.cache/actorflow"),
    ],
)
@pytest.mark.skipif(sys.platform == "win32", reason="folders have other names")
def test_where_the_cache_is(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str) -> None:
    for name in ("ACTORFLOW_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache.folder() == Path(expected)


@pytest.mark.slow
def test_a_compiler_that_dies_fails_what_it_was_at_and_no_more(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    compile_there = compile_queue.Compiler.compile

    def die(self: compile_queue.Compiler, routine: Routine) -> bytes:
        self.kill()
        return compile_there(self, routine)

    with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "actorflow.ops.numba.compile_queue"):
        patch.setattr(compile_queue.Compiler, "compile", die)
        patch.setattr(compile_queue.compile_queue, "_told", set())  # as if no test before had met it
        lost = new_routine()
        with pytest.raises(DeviceError, match="the compiler's process has ended"):
            lost.wait()
    assert lost.function is None
    assert "NumPy computes instead" in caplog.text
    assert works(new_routine())


def test_what_cannot_be_compiled_says_why(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "actorflow.ops.numba.compile_queue"):
        for _ in range(2):
            wrong = Routine("def wrong(x):\n    x[0] = what_is_this\n", "wrong", ("float32*",))
            with pytest.raises(DeviceError, match=r"(?s)routine 'wrong' could not be compiled: .*what_is_this"):
                wrong.wait()
            assert wrong.function is None
            compiled()  # of what others ask for
    assert 1 <= len(caplog.records) <= 2


@pytest.mark.skipif(vectors("float32") is None, reason="this processor cannot multiply and add in one step")
def test_text_of_llvm_is_compiled_too(folder: Path) -> None:
    arguments = [("float32*", "x"), ("intp", "count")]
    text = entry("count", arguments)
    total = text.variable("i64", 0)
    with text.loop(0, "%count") as i, text.when(text.let(f"icmp ne i64 {i}, 2")):
        text.store("i64", text.add(text.load("i64", total), i), total)
    text.store("float", text.let(f"sitofp i64 {text.load('i64', total)} to float"), text.at("float", "%x", 1))
    known = vectors("float32")
    assert known is not None
    x, function = np.zeros(2, "f"), routine("count", arguments, known, leave(text)).wait()
    function(id(x), 5)
    assert x.tolist() == [0, 8]
    with pytest.raises(DeviceError, match="'f' could not be compiled"):
        Routine("define nonsense", "f", [], is_python=False).wait()


def test_what_somebody_waits_for_comes_first(folder: Path) -> None:
    others = [new_routine() for _ in range(4)]
    for other in others:
        assert other.function is None
    last = new_routine()
    last.wait()
    assert others[-1].function is None
    others[-1].wait()


def test_what_would_call_python_is_refused() -> None:
    wrong = Routine("def wrong(x):\n    print(x[0])\n", "wrong", ("float32*",))
    with pytest.raises(DeviceError, match=r"the machine code calls .*Py"):
        wrong.wait()


async def test_a_loop_waits_for_nothing(folder: Path) -> None:
    await asyncio.to_thread(works, new_routine(-4))
    known, new = new_routine(-4), new_routine()
    assert known.function is None  # it is read from the disk on another thread
    assert new.function is None
    await asyncio.to_thread(compiled_or_other)
    assert known.function is not None
    assert new.function is not None


def compiled_or_other() -> None:
    """Wait for all; other tests' routines may have failed."""
    with suppress(DeviceError):
        compiled()


async def test_the_first_frames_are_numpys_and_later_ones_the_same(folder: Path, by_default: None) -> None:
    graph = af.Graph("g")
    x = graph.blob("x", (2, 9, 9, 8))
    w = graph.constant(np.random.default_rng(1).standard_normal((3, 3, 1, 8)).astype("f"))
    y = af.ops.max_pool(af.ops.conv(x, w, pad=1, groups=8), 3, 2)
    feeds = {x: np.random.default_rng(0).standard_normal((2, 9, 9, 8)).astype("f")}
    async with graph:
        first = (await graph.run(feeds))[y]
        await asyncio.to_thread(compiled_or_other)
        later = (await graph.run(feeds))[y]
    np.testing.assert_array_equal(first, later)
    assert {op.kernel.key.library for op in graph.compile().ops if op.kernel} == {"numba"}
    with graph.at(libraries=["numpy"]):
        other = af.ops.max_pool(x, 3)
    plan = graph.compile(fetch=[other])
    assert [op.kernel.key.library for op in plan.ops if op.kernel] == ["numpy"]


def test_without_a_thread_numpy_computes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> Any:
        raise DeviceError("thread 'actorflow-compiler' cannot be started")

    own = compile_queue.CompileQueue()
    monkeypatch.setattr("actorflow.ops.numba.routine.compile_queue", own)
    monkeypatch.setattr(compile_queue, "start_thread", refuse)
    routine = new_routine()
    assert routine.function is None
    with pytest.raises(DeviceError, match="cannot be started"):
        routine.wait()


@pytest.mark.slow
def test_the_thread_and_the_process_end_when_nothing_is_left(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compile_queue, "LINGER_S", 0.0)
    own = compile_queue.CompileQueue()
    monkeypatch.setattr("actorflow.ops.numba.routine.compile_queue", own)
    made: list[compile_queue.Compiler] = []
    start = compile_queue.Compiler.__init__
    monkeypatch.setattr(compile_queue.Compiler, "__init__", lambda self: (made.append(self), start(self))[1])
    assert works(new_routine())
    for thread in threading.enumerate():
        if thread.name == "actorflow-compiler":
            thread.join()
    assert [each._process.returncode for each in made] == [0]


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_child_has_what_is_made_and_asks_anew_for_the_rest(folder: Path) -> None:
    program = """
import os, sys
from tests.ops.numba.test_routines import new_routine, works
made, asked = new_routine(), new_routine()
assert works(made)
asked.function
child = os.fork()
if not child:
    ok = made.function is not None and works(made) and works(asked) and works(new_routine())
    os._exit(0 if ok else 1)
_, status = os.waitpid(child, 0)
assert works(asked)
print(os.waitstatus_to_exitcode(status))
"""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_missing_numba_is_named_where_it_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    found = util.find_spec
    monkeypatch.setattr(util, "find_spec", lambda name, *more: None if name == "numba" else found(name, *more))
    monkeypatch.delitem(sys.modules, "actorflow.ops.numba")
    monkeypatch.setattr(registry, "_loaded", registry._loaded - {("cpu", "numba")})
    graph = af.Graph("g", libraries=["numba"])
    af.ops.relu(graph.blob("x", 3))
    with pytest.raises(af.MissingExtraError, match=r"pip install 'actorflow\[jit\]'"):
        graph.compile()


@given(st.integers(0, 2**31), st.sampled_from("fd"))
def test_sums_of_products_are_rounded_twice(seed: int, dtype: str) -> None:
    """No product is merged with a sum."""
    random = np.random.default_rng(seed)
    a, b, c = random.standard_normal((3, 1000)).astype(dtype)
    y, name = np.empty_like(a), a.dtype.name
    text = "def f(a, b, c, y, n):\n    for i in range(n):\n        y[i] = a[i] * b[i] + sqrt(abs(c[i])) / b[i]\n"
    function = ROUTINES.setdefault(name, Routine(text, "f", (*[f"{name}*"] * 4, "intp"))).wait()
    function(id(a), id(b), id(c), id(y), a.size)
    np.testing.assert_array_equal(y, a * b + np.sqrt(abs(c)) / b)


ROUTINES: dict[str, Routine] = {}


def test_arrays_that_compiled_code_takes() -> None:
    whole = np.zeros((4, 6), "f")
    shifted = np.zeros(25, np.uint8)[1:].view("f")
    dtype = whole.dtype
    assert are_plain([whole, whole[1:], whole.reshape(-1)], dtype)
    for other in (whole.T, whole[:, 1:], whole[::2], shifted, whole.astype("d"), whole.astype(">f4")):
        assert not are_plain([whole, other], dtype)


@pytest.mark.slow
def test_a_program_that_ends_meanwhile_says_nothing(folder: Path) -> None:
    program = "from tests.ops.numba.test_routines import new_routine\nfor _ in range(3):\n    new_routine().function"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
