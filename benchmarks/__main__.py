"""``python -m benchmarks``: measure some questions, or all."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.harness import Harness, Table
from benchmarks.machine import describe_machine
from benchmarks.report import as_json, print_machine, print_question

__all__ = ["QUESTIONS", "main"]

#: Modules of this package that have a coroutine function ``measure(harness)`` and say in their docstring what it asks.
QUESTIONS = ("dispatch", "build", "watched", "loop_lag", "small_ops", "wide", "allocation", "service")
_ROUNDS, _QUICK_ROUNDS = 7, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; the exit code says whether it ran, not whether budgets were met."""
    options = _parse(arguments)
    if options.list:
        for name in QUESTIONS:
            print(f"{name:12} {_question(name).__doc__.splitlines()[0]}")
        return 0
    loop_name, loop_factory = _loop(options.loop)
    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False, soft_wrap=True)
    machine = describe_machine()
    print_machine(console, machine, loop_name)
    questions: dict[str, Any] = {}
    for name in options.names or QUESTIONS:
        harness = Harness(options.quick, options.repeat or (_QUICK_ROUNDS if options.quick else _ROUNDS))
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            tables: list[Table] = runner.run(_question(name).measure(harness))
        print_question(console, name, tables, harness.left_out)
        questions[name] = as_json(tables, harness.left_out)
    if options.json is not None:
        content = {"quick": options.quick, "loop": loop_name, "machine": machine, "questions": questions}
        options.json.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return 0


def _question(name: str) -> Any:
    return importlib.import_module(f"benchmarks.{name}")


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure actorflow beside its peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(QUESTIONS)}; all by default")
    parser.add_argument("--list", action="store_true", help="say what each question asks, and stop")
    parser.add_argument("--quick", action="store_true", help="a smoke run: little work, figures that mean little")
    parser.add_argument("--repeat", type=int, metavar="N", help=f"rounds ({_ROUNDS}, or {_QUICK_ROUNDS} with --quick)")
    parser.add_argument("--loop", choices=("auto", "uvloop", "asyncio"), default="auto", help="auto: as af.run does")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in QUESTIONS]
    if unknown:
        parser.error(f"no benchmark {', '.join(unknown)}; there are {', '.join(QUESTIONS)}")
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
