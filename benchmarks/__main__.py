"""``python -m benchmarks``: measure some questions, or all."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import Harness, Table, UnavailableError
from benchmarks.machine import describe_machine
from benchmarks.report import print_machine, print_question
from benchmarks.results import RESULTS, Answer, write_json, write_results

__all__ = ["BY_NAME", "QUESTIONS", "main"]

#: Modules of this package that have a coroutine function ``measure(harness)`` and say in their docstring what it asks.
QUESTIONS = (
    "dispatch",
    "build",
    "watched",
    "loop_lag",
    "small_ops",
    "loops",
    "emitting",
    "wide",
    "allocation",
    "service",
    "fastapi_onnx",
    "serving",
    "batched",
    "writing",
    "sim",
    "pipeline",
    "arrays",
    "mpi",
    "scaling",
    "training",
    "inference",
    "batch_one",
    "onnx",
)
#: Those that need what few machines have: asked by name alone.
BY_NAME = ("gpu",)
_ROUNDS, _QUICK_ROUNDS = 7, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        0 if it ran, whether or not budgets were met; 2 if what a question is about is not to be had here.
    """
    options = _parse(arguments)
    if options.list:
        for name in QUESTIONS + BY_NAME:
            print(f"{name:13} {_question(name).__doc__.splitlines()[0]}")
        return 0
    loop_name, loop_factory = _loop(options.loop)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, soft_wrap=True)
    machine = describe_machine()
    print_machine(console, machine, loop_name)
    answers: dict[str, Answer] = {}
    for name in options.names or QUESTIONS:
        rounds = options.repeat or (_QUICK_ROUNDS if options.quick else _ROUNDS)
        harness = Harness(options.quick, rounds, options.place, options.data)
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            try:
                tables: list[Table] = runner.run(_question(name).measure(harness))
            except UnavailableError as error:
                print(f"{name}: {error}", file=sys.stderr)
                return 2
        print_question(console, name, tables, harness.left_out)
        answers[name] = Answer(tables, harness.left_out)
    head = {"quick": options.quick, "rounds": rounds, "loop": loop_name, "machine": machine}
    if options.json is not None:
        write_json(options.json, head, answers)
    if options.results is not None:
        print(f"written: {write_results(options.results, head, answers)}")
    return 0


def _question(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure actorflow beside its peers.")
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help=f"of {', '.join(QUESTIONS)} (all by default) and {', '.join(BY_NAME)}"
    )
    parser.add_argument("--list", action="store_true", help="say what each question asks, and stop")
    parser.add_argument("--quick", action="store_true", help="a smoke run: little work, figures that mean little")
    parser.add_argument("--repeat", type=int, metavar="N", help=f"rounds ({_ROUNDS}, or {_QUICK_ROUNDS} with --quick)")
    parser.add_argument("--loop", choices=("auto", "uvloop", "asyncio"), default="auto", help="auto: as af.run does")
    parser.add_argument("--place", metavar="PLACE", help="where `gpu` computes (cuda:0); sim:0 and cpu try it out")
    parser.add_argument("--data", type=Path, metavar="DIR", help="of CIFAR-10, for the training of `gpu`")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument(
        "--results",
        type=Path,
        metavar="DIR",
        help=f"write a table there, named after device and date ({RESULTS} for `gpu`, unless --quick)",
    )
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in QUESTIONS + BY_NAME]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(QUESTIONS + BY_NAME)}")
    if options.results is None and "gpu" in options.names and not options.quick:
        options.results = RESULTS
    if options.repeat is not None and options.repeat < 1:
        parser.error(f"--repeat must be at least 1, got {options.repeat}")
    return options


def _loop(name: str) -> tuple[str, Callable[[], asyncio.AbstractEventLoop]]:
    if name != "asyncio":
        try:
            import uvloop
        except ImportError:  # not on Windows
            if name == "uvloop":
                raise SystemExit("uvloop is not installed") from None
        else:
            return "uvloop", uvloop.new_event_loop
    return "asyncio", asyncio.new_event_loop


if __name__ == "__main__":
    sys.exit(main())
